package wire

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// Decode decodes the JSON of one object into a Go type, as the API machinery
// does: field names are case-sensitive, integers keep their 64 bits, unknown
// fields are skipped, the last of duplicate fields counts, invalid UTF-8 is
// replaced. The object shares no memory with raw.
func Decode(raw []byte, into runtime.Object) error {
	return decode(NewScanner(raw), into)
}

// Decode decodes as [Decode] does, into an object that is empty. It does not check
// what was checked before: neither the text nor the object.
func (t *Text) Decode(into runtime.Object) error {
	if !t.checked {
		return Decode(t.Raw, into)
	}
	return decode(t.Scanner(0), into)
}

func decode(s Scanner, into runtime.Object) error {
	if into, isTree := into.(runtime.Unstructured); isTree {
		// All of it has type any, so the API machinery's own decoder is the shortest way.
		var content map[string]any
		if err := kjson.UnmarshalCaseSensitivePreserveInts(s.text, &content); err != nil {
			return err
		}
		into.SetUnstructuredContent(content)
		return nil
	}
	if fill(s, into) {
		return nil
	}
	if err := json.Unmarshal(s.text, into, asAPIMachinery); err != nil {
		return explain(s.text, into, err)
	}
	return nil
}

// asAPIMachinery makes the library's decoder do what sigs.k8s.io/json does, which
// is what the API machinery decodes with: encoding/json, but with case-sensitive
// names and with integers as int64 where the Go type is any. Of the libraries that
// agree with the API machinery it is the fastest; docs/adr/0004-decoder.md has the
// measurements.
var asAPIMachinery = json.JoinOptions(
	jsonv1.DefaultOptionsV1(),
	json.MatchCaseInsensitiveNames(false),
	json.WithUnmarshalers(json.JoinUnmarshalers(json.UnmarshalFromFunc(unmarshalAny), json.UnmarshalFromFunc(unmarshalQuantity))),
)

// unmarshalQuantity decodes a quantity that takes little time.
func unmarshalQuantity(decoder *jsontext.Decoder, into *resource.Quantity) error {
	value, err := decoder.ReadValue()
	if err != nil {
		return err
	}
	if isCostly(string(value)) {
		return fmt.Errorf("the quantity %.40s is too long, or its exponent is", value)
	}
	return into.UnmarshalJSON(value)
}

// maxQuantity is the longest quantity that is read.
const maxQuantity = 1 << 10

// isCostly reports whether a quantity could take more than milliseconds to read:
// resource.ParseQuantity computes with 1e-999999999 for minutes. API servers send
// quantities of built-in kinds in their canonical form, which is short.
func isCostly(quantity string) bool {
	exponent := strings.LastIndexAny(quantity, "eE") + 1
	return len(quantity) > maxQuantity || exponent > 0 && len(strings.Trim(quantity[exponent:], "+-\" ")) > 3
}

// unmarshalAny decodes a value of type any. Only custom resources have such
// fields, so its speed does not matter.
func unmarshalAny(decoder *jsontext.Decoder, into *any) error {
	value, err := decoder.ReadValue()
	if err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(value, into)
}
