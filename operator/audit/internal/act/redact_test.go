package act_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

func TestSecretsAreTakenOutOfCommands(t *testing.T) {
	redactor, err := act.NewRedactor(act.DefaultRedact...)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ command, want []string }{
		"a flag with its value":            {[]string{"login", "--password=s3cr3t", "-u", "bob"}, []string{"login", "--password=REDACTED", "-u", "bob"}},
		"a flag before its value":          {[]string{"login", "--password", "s3cr3t", "bob"}, []string{"login", "--password", "REDACTED", "bob"}},
		"a flag with one dash":             {[]string{"app", "-token", "s3cr3t"}, []string{"app", "-token", "REDACTED"}},
		"a flag whose name has more parts": {[]string{"aws", "--aws-secret-access-key=s3cr3t"}, []string{"aws", "--aws-secret-access-key=REDACTED"}},
		"a flag without a value":           {[]string{"app", "--password", "--verbose"}, []string{"app", "--password", "--verbose"}},
		"a variable":                       {[]string{"env", "PGPASSWORD=s3cr3t", "psql"}, []string{"env", "PGPASSWORD=REDACTED", "psql"}},
		"a variable in a shell's text":     {[]string{"sh", "-c", "export API_KEY=s3cr3t; run"}, []string{"sh", "-c", "export API_KEY=REDACTED; run"}},
		"a quoted value":                   {[]string{"sh", "-c", `TOKEN="s3cr3t" run 'x'`}, []string{"sh", "-c", `TOKEN=REDACTED run 'x'`}},
		"a value in single quotes":         {[]string{"sh", "-c", `TOKEN='s3cr3t' run`}, []string{"sh", "-c", `TOKEN=REDACTED run`}},
		"a value whose quote is not ended": {[]string{"sh", "-c", `TOKEN="s3cr3t`}, []string{"sh", "-c", `TOKEN=REDACTED`}},
		"a flag in a shell's text":         {[]string{"sh", "-c", "mysql --password s3cr3t db"}, []string{"sh", "-c", "mysql --password REDACTED db"}},
		"JSON":                             {[]string{"curl", "-d", `{"user":"bob","password": "s3cr3t"}`}, []string{"curl", "-d", `{"user":"bob","password": REDACTED}`}},
		"a bearer token":                   {[]string{"curl", "-H", "X: Bearer s3cr3t.s3cr3t"}, []string{"curl", "-H", "X: Bearer REDACTED"}},
		"a password in a URL":              {[]string{"psql", "postgres://bob:s3cr3t@db/app"}, []string{"psql", "postgres://bob:REDACTED@db/app"}},
		"a query parameter":                {[]string{"curl", "https://x/?access_token=s3cr3t&a=b"}, []string{"curl", "https://x/?access_token=REDACTED&a=b"}},
		"lower case and upper case":        {[]string{"x", "--PassWord=s3cr3t"}, []string{"x", "--PassWord=REDACTED"}},
		"nothing secret":                   {[]string{"ls", "-la", "/tmp", "a=b"}, []string{"ls", "-la", "/tmp", "a=b"}},
		"a name alone":                     {[]string{"cat", "/etc/passwd"}, []string{"cat", "/etc/passwd"}},
		"an escaped quote in a value":      {[]string{"sh", "-c", `TOKEN="s3\"cr3t" run`}, []string{"sh", "-c", `TOKEN=REDACTED run`}},
		"two flags in a shell's text":      {[]string{"sh", "-c", "app --password --verbose x"}, []string{"sh", "-c", "app --password --verbose x"}},
		"an Authorization header":          {[]string{"curl", "-H", "Authorization: Basic czNjcjN0"}, []string{"curl", "-H", "Authorization: Basic REDACTED"}},
		"no command":                       {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := redactor.Command(test.command)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatAShellCouldRunIsNotTakenForASecret(t *testing.T) {
	redactor, err := act.NewRedactor(act.DefaultRedact...)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"eval", "$1", "--token", "rm -rf /data"},
		{"eval", "$1", "--token", "rm\t-rf\t/data"},
		{"eval", "$1", "--token", "a\nb"},
		{"eval", "$1", "--token", "a;b"},
		{"sh", "-c", `a_token="$(evil)"`},
		{"sh", "-c", `a_token=$(evil)`},
		{"sh", "-c", "a_token=`evil`"},
		{"sh", "-c", `a_token=<(evil)`},
		{"sh", "-c", `a_token="evil it"; $a_token`},
		{"sh", "-c", `sh -c --token 'evil it'`},
		{"sh", "-c", `curl http://a:$(evil)@b`},
		{"eval", "$1", "--token", "rm${IFS}-rf${IFS}/data"},
		{"eval", "$1", "--token", "{rm,-rf,/data}"},
		{"eval", "$1", "--token", "a&evil"},
		{"eval", "$1", "--token", "a|evil"},
		{"eval", "$1", "--token", ">/data"},
		{"sh", "-c", "eval $(echo http://a:rm${IFS}evil@b)"},
		{"sh", "-c", "TOKEN= /usr/bin/evil -rf /data"},
		{"sh", "-c", "TOKEN=\nevil"},
		{"sh", "-c", ": --token\nevil"},
		{"sh", "-c", ": bearer\nevil"},
		{"sh", "-c", "# token:\nevil"},
	} {
		if diff := cmp.Diff(command, redactor.Command(command)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestARecordHasTheBeginningTheEndAndTheSumOfALongCommand(t *testing.T) {
	redactor, err := act.NewRedactor(act.DefaultRedact...)
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
			record := redactor.Record(a)
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

func TestASecretIsFoundInLinearTime(t *testing.T) {
	redactor, err := act.NewRedactor(act.DefaultRedact...)
	if err != nil {
		t.Fatal(err)
	}
	// By the square of its length, half a MiB would take minutes. It takes up to 0.5 s, and has taken 11 s on a machine
	// with thirty processes for two processors.
	length, most := testkit.Long(32<<10, 512<<10), testkit.Long(10*time.Millisecond, time.Minute)
	worst := time.Duration(0)
	for _, part := range []string{"a", "a=", "token=", `token="`, `token='token="`, "token ", "--token ", "token   ", "token=$(", "://a", "://a:b", "bearer ", "token:bearer ", `"\`} {
		took := time.Hour
		for range testkit.Long(3, 1) { // the machine may be busy
			began := time.Now()
			redactor.Command([]string{strings.Repeat(part, length/len(part))})
			took = min(took, time.Since(began))
		}
		worst = max(worst, took)
		if took > most {
			t.Errorf("%q again and again takes %s", part, took)
		}
	}
	testkit.Figure("audit.redact_worst_ms", testkit.Milliseconds(worst), "ms")
}

func FuzzRedactionLeavesWhatAShellCouldRun(f *testing.F) {
	redactor, err := act.NewRedactor(act.DefaultRedact...)
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{`a_token="$(evil)" --password x`, "://a:b@c", "Authorization: Bearer x", `"pwd" : 'x';y`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		clean := redactor.Command([]string{text})[0]
		for _, part := range []string{"`", "$", "(", "{", "<", ">", "&", "|", ";", "\n"} {
			if strings.Count(clean, part) != strings.Count(text, part) {
				t.Fatalf("%q becomes %q, which has another number of %q", text, clean, part)
			}
		}
	})
}

func TestTheListOfNamesCanBeChanged(t *testing.T) {
	pins, err := act.NewRedactor(`pin`)
	if err != nil {
		t.Fatal(err)
	}
	if got := pins.Command([]string{"--pin=1", "--password=2"}); got[0] != "--pin=REDACTED" || got[1] != "--password=2" {
		t.Errorf("got %q", got)
	}
	none, err := act.NewRedactor()
	if err != nil {
		t.Fatal(err)
	}
	if got := none.Command([]string{"--password=2"}); got[0] != "--password=2" {
		t.Errorf("got %q", got)
	}
	for _, wrong := range []string{"(", ""} {
		if _, err := act.NewRedactor(wrong); err == nil {
			t.Errorf("pattern %q: got no error", wrong)
		}
	}
}

func ExampleRedactor_Command() {
	redactor, err := act.NewRedactor(act.DefaultRedact...)
	if err != nil {
		panic(err)
	}
	fmt.Println(redactor.Command([]string{"mysql", "--password", "hunter2", "shop"}))
	// Output: [mysql --password REDACTED shop]
}
