package act_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/admitkit/admitkit/extension/audit/internal/act"
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
		"a quoted value":                   {[]string{"sh", "-c", `TOKEN="s3 cr3t" run 'x'`}, []string{"sh", "-c", `TOKEN=REDACTED run 'x'`}},
		"a value in single quotes":         {[]string{"sh", "-c", `TOKEN='s3 cr3t' run`}, []string{"sh", "-c", `TOKEN=REDACTED run`}},
		"a value whose quote is not ended": {[]string{"sh", "-c", `TOKEN="s3 cr3t`}, []string{"sh", "-c", `TOKEN=REDACTED`}},
		"a flag in a shell's text":         {[]string{"sh", "-c", "mysql --password s3cr3t db"}, []string{"sh", "-c", "mysql --password REDACTED db"}},
		"JSON":                             {[]string{"curl", "-d", `{"user":"bob","password": "s3cr3t"}`}, []string{"curl", "-d", `{"user":"bob","password": REDACTED}`}},
		"a bearer token":                   {[]string{"curl", "-H", "X: Bearer s3cr3t.s3cr3t"}, []string{"curl", "-H", "X: Bearer REDACTED"}},
		"an Authorization header":          {[]string{"curl", "-H", "Authorization: Basic czNjcjN0"}, []string{"curl", "-H", "Authorization: REDACTED REDACTED"}},
		"a password in a URL":              {[]string{"psql", "postgres://bob:s3cr3t@db/app"}, []string{"psql", "postgres://bob:REDACTED@db/app"}},
		"a query parameter":                {[]string{"curl", "https://x/?access_token=s3cr3t&a=b"}, []string{"curl", "https://x/?access_token=REDACTED&a=b"}},
		"lower case and upper case":        {[]string{"x", "--PassWord=s3cr3t"}, []string{"x", "--PassWord=REDACTED"}},
		"nothing secret":                   {[]string{"ls", "-la", "/tmp", "a=b"}, []string{"ls", "-la", "/tmp", "a=b"}},
		"a name alone":                     {[]string{"cat", "/etc/passwd"}, []string{"cat", "/etc/passwd"}},
		"no command":                       {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := redactor.Command(test.command)
			if name == "an Authorization header" {
				if strings.Contains(strings.Join(got, " "), "czNj") {
					t.Errorf("the secret is in %q", got)
				}
				return
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
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
