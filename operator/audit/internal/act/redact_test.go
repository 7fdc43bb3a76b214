package act_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/extension/redact"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

func TestARecordHasTheBeginningTheEndAndTheSumOfALongCommand(t *testing.T) {
	redactor, err := redact.New(redact.Default...)
	if err != nil {
		t.Fatal(err)
	}
	comment := "# " + strings.Repeat("x", 40<<10)
	for name, test := range map[string]struct {
		command          []string
		first, cut, last string
	}{
		"in one argument":       {[]string{"sh", "-c", comment + "\nevil --token s3cr3t"}, "sh", "[... 8223 bytes ...]", "evil --token REDACTED"},
		"over many arguments":   {strings.Split(strings.Repeat("argument ", 5000)+"evil", " "), "argument", "[... 12237 bytes ...]", "evil"},
		"of nothing":            {append(make([]string, 40<<10), "evil"), "", "[... 8197 bytes ...]", "evil"},
		"with a secret cut off": {[]string{"a", "--token", strings.Repeat("s3cr3t", 10<<10), comment + "b"}, "a", "[... 8215 bytes ...]", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			a := &act.Act{Record: v1alpha1.AuditRecord{Command: test.command}}
			record := act.Redact(redactor, a)
			text, all := strings.Join(record.Command, "\x00"), strings.Join(test.command, "\x00")+"\x00"
			if len(text) > 33<<10 {
				t.Errorf("it has %d bytes", len(text))
			}
			if record.Command[0] != test.first || !strings.Contains(text, test.cut) || !strings.HasSuffix(text, test.last) || strings.Contains(text, "s3cr3t") {
				t.Errorf("it is %.100q ... %q", text, text[len(text)-100:])
			}
			if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(all))); record.CommandSHA256 != sum || record.CommandBytes != int64(len(all)) {
				t.Errorf("%d bytes with the sum %s, want %d with %s", record.CommandBytes, record.CommandSHA256, len(all), sum)
			}
			if !slices.Contains(record.Flags, v1alpha1.FlagTruncated) {
				t.Errorf("the flags are %v", record.Flags)
			}
		})
	}
}
