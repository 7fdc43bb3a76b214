package act_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/extension/redact"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// fill gives every text in a value 100 KiB, and every list a thousand elements.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1000, 1000))
		for i := range 1000 {
			fill(v.Index(i), text[:len(text)/1000])
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string][]string{text: {text}, "key": {text, text}}))
	case reflect.Struct:
		if v.Type().PkgPath() == "k8s.io/apimachinery/pkg/apis/meta/v1" {
			return
		}
		for _, field := range v.Fields() {
			fill(field, text)
		}
	}
}

func TestNoPartOfARecordIsLong(t *testing.T) {
	redactor, err := redact.New(redact.Default...)
	if err != nil {
		t.Fatal(err)
	}
	a := &act.Act{}
	fill(reflect.ValueOf(&a.Record).Elem(), strings.Repeat("x", 100<<10))
	a.Record.ID, a.Record.Amends, a.Record.Cluster, a.Record.Flags = "id", "", "", nil // what audit writes itself
	a.Record.Way, a.Record.Verb, a.Record.Decision, a.Record.Rule = v1alpha1.WayExec, "connect", v1alpha1.AuditAllowed, ""
	record := act.Redact(redactor, a)
	text, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	// Commands of 32 KiB together twice, of which quotes and commas make up to three times
	// as much, three lists of 8, and a little of each text.
	if len(text) > 192<<10 || !slices.Contains(record.Flags, v1alpha1.FlagTruncated) {
		t.Errorf("the record has %d bytes and the flags %v", len(text), record.Flags)
	}
	again, err := json.Marshal(act.Brief(record))
	if err != nil || len(again) > 85<<10 || len(again) >= len(text) {
		t.Errorf("%v: the brief record has %d bytes", err, len(again))
	}
	if len(record.Containers) != 33 || len(record.User.Groups) < 10 {
		t.Errorf("%d containers and %d groups are left", len(record.Containers), len(record.User.Groups))
	}
}

func TestWhatIsCutHasItsSizeAndSum(t *testing.T) {
	r := &v1alpha1.AuditRecord{Container: strings.Repeat("c", 600), Pod: "web", User: v1alpha1.AuditUser{Groups: []string{"devs", strings.Repeat("g", 9<<10)}}}
	act.Bound(r)
	// printf c%.0s {1..600} | sha256sum
	const sum = "8a88f9e43d03b7d9108742e08073a17ed8a36b1eb9326195938374ffeb14a16e"
	if want := strings.Repeat("c", 384) + "[... 88 bytes, SHA-256 of all " + sum + " ...]" + strings.Repeat("c", 128); r.Container != want || r.Pod != "web" {
		t.Errorf("got %q", r.Container)
	}
	if len(r.User.Groups) != 2 || r.User.Groups[0] != "devs" || !strings.HasPrefix(r.User.Groups[1], "[... 1 more, SHA-256 of all ") {
		t.Errorf("got %q", r.User.Groups)
	}
}
