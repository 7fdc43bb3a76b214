package redact_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/admitkit/admitkit/extension/redact"
	"github.com/admitkit/admitkit/internal/testkit"
)

func TestSecretsAreTakenOutOfCommands(t *testing.T) {
	redactor, err := redact.New(redact.Default...)
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
	redactor, err := redact.New(redact.Default...)
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

func TestASecretIsFoundInLinearTime(t *testing.T) {
	redactor, err := redact.New(redact.Default...)
	if err != nil {
		t.Fatal(err)
	}
	// By the square of its length, half a MiB would take minutes. It takes up to 0.5 s, and has taken 11 s on a machine
	// with thirty processes for two processors.
	length, most := testkit.Long(32<<10, 512<<10), testkit.Long(10*time.Millisecond, time.Minute)
	worst := time.Duration(0)
	for _, part := range []string{"a", "a=", "token=", `token="`, `token='token="`, "token ", "--token ", "token   ", "token=$(", "://a", "://a:b", "bearer ", "token:bearer ", `"\`, "a =>", `a\\`, "<a>", "<token>", `token=\"`, "a:b", "a:b@", "token=<<", "token=<<a\n", "token=[", "<value=", `<a name="token" value=`, "-----BEGIN PRIVATE KEY-----", `token="""`} {
		took := time.Hour
		for range testkit.Long(3, 1) { // the machine may be busy
			began := time.Now()
			redactor.Command([]string{strings.Repeat(part, length/len(part))})
			took = min(took, time.Since(began))
		}
		began := time.Now()
		thorough(t).Command([]string{strings.Repeat(part, length/len(part))})
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%q again and again takes a thorough Redactor %s", part, took)
		}
		worst = max(worst, took)
		if took > most {
			t.Errorf("%q again and again takes %s", part, took)
		}
	}
	testkit.Figure("audit.redact_worst_ms", testkit.Milliseconds(worst), "ms")
}

func FuzzRedactionLeavesWhatAShellCouldRun(f *testing.F) {
	redactor, err := redact.New(redact.Default...)
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
	pins, err := redact.New(`pin`)
	if err != nil {
		t.Fatal(err)
	}
	if got := pins.Command([]string{"--pin=1", "--password=2"}); got[0] != "--pin=REDACTED" || got[1] != "--password=2" {
		t.Errorf("got %q", got)
	}
	none, err := redact.New()
	if err != nil {
		t.Fatal(err)
	}
	if got := none.Command([]string{"--password=2"}); got[0] != "--password=2" {
		t.Errorf("got %q", got)
	}
	for _, wrong := range []string{"(", ""} {
		if _, err := redact.New(wrong); err == nil {
			t.Errorf("pattern %q: got no error", wrong)
		}
	}
}

func ExampleRedactor_Command() {
	redactor, err := redact.New(redact.Default...)
	if err != nil {
		panic(err)
	}
	fmt.Println(redactor.Command([]string{"mysql", "--password", "hunter2", "shop"}))
	// Output: [mysql --password REDACTED shop]
}

// thorough returns a Redactor that replaces secrets by X, but for those.
func thorough(t testing.TB) *redact.Redactor {
	t.Helper()
	redactor, err := redact.New(redact.Default...)
	if err != nil {
		t.Fatal(err)
	}
	return redactor.Thorough(func(string) string { return "X" })
}

func TestAThoroughRedactorLeavesNoValue(t *testing.T) {
	redactor := thorough(t)
	for text, want := range map[string]string{
		`TOKEN="a b; c" run`:                            `TOKEN="X" run`,
		`TOKEN=$(cat /x) run`:                           `TOKEN=X /x) run`,
		`{"password": "s3\"cr3t", "a": 1}`:              `{"password": "X", "a": 1}`,
		"password: my pass phrase\nuser: bob":           "password: X\nuser: bob",
		"password: 'my pass phrase' # why":              "password: 'X' # why",
		`--password 'a b' --user c`:                     `--password 'X' --user c`,
		`TOKEN="never ended`:                            `TOKEN="X`,
		"postgres://bob:p@ss(word@db/app":               "postgres://bob:X@db/app",
		"https://s3cr3t@github.com/a/b":                 "https://X@github.com/a/b",
		"ssh://git@github.com/a/b":                      "ssh://git@github.com/a/b",
		"https://host/a@b":                              "https://host/a@b",
		"Authorization: Bearer a(b)":                    "Authorization: Bearer X",
		"key ghp_0123456789abcdefABCDEF here":           "key X here",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmVk": "X",
		"a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb":               "a\nX\nb",
		"-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----":                             "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
		`msg="{\"password\": \"a b\", \"c\": 1}"`:                                                  `msg="{\"password\": \"X\", \"c\": 1}"`,
		"https://hooks.slack.com/services/T0/B0/s3cr3t":                                            "https://X",
		"nothing secret; ls -la":                                                                   "nothing secret; ls -la",
		"<a><password>a b</password><c>d</c></a>":                                                  "<a><password>X</password><c>d</c></a>",
		"'token' => 'a b', 'c' => 'd'":                                                             "'token' => 'X', 'c' => 'd'",
		`<db password="a b" user='bob'/>`:                                                          `<db password="X" user='bob'/>`,
		`<x:password type="text">a b</x:password>`:                                                 `<x:password type="text">X</x:password>`,
		"<password>\n<![CDATA[a<b]]></password>":                                                   "<password>\n<![CDATA[X]]></password>",
		`<add key="db.password" value="a b"/><add value='c' key='user'/>`:                          `<add key="db.password" value="X"/><add value='c' key='user'/>`,
		`<add value="a b" key="token"/>`:                                                           `<add value="X" key="token"/>`,
		`<property name="password">a</property><property name="user">b</property>`:                 `<property name="password">X</property><property name="user">b</property>`,
		`<property name="token"> <value>a</value></property>`:                                      `<property name="token"> <value>X</value></property>`,
		"DSN=bob:s3@cret@tcp(db:3306)/app":                                                         "DSN=bob:X@tcp(db:3306)/app",
		`curl "bob:s3cret@db.example.com:80"`:                                                      `curl "bob:X@db.example.com:80"`,
		"mailto:bob@example.com app:v1@sha256:12 git@github.com:a/b user: bob@a":                   "mailto:bob@example.com app:v1@sha256:12 git@github.com:a/b user: bob@a",
		"TOKEN ?= a\nSECRET+=b\npassword <- 'c'":                                                   "TOKEN ?= X\nSECRET+=X\npassword <- 'X'",
		`TOKEN=f"a b" TOKENS=["a", "b"] x`:                                                         `TOKEN=f"X" TOKENS=X x`,
		"token = \"\"\"\na\nb\"\"\"\nc":                                                            "token = \"\"\"X\"\"\"\nc",
		"password = <<EOF\na\nb\nEOF\nc":                                                           "password = <<EOF\nX\nEOF\nc",
		"password=a\\\nb\nc":                                                                       "password=X\nc",
		`setPassword("a b")`:                                                                       `setPassword("X")`,
		"-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: A-1\n\nMIIE\n-----END RSA PRIVATE KEY-----\nb": "X\nb",
		"-----BEGIN PGP PRIVATE KEY BLOCK-----\nMIIE\n-----END PGP PRIVATE KEY BLOCK-----":         "X",
		"sk-proj-0123456789abcdefghij":                                                             "X",
	} {
		if got := redactor.Text(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	if got := redactor.Command([]string{"login", "--password", "a b", "--token=$(c;d)", "bob"}); got[2] != "X" || got[3] != "--token=X" || got[4] != "bob" {
		t.Errorf("got %q", got)
	}
}

func FuzzAThoroughRedactionIsFinal(f *testing.F) {
	for _, text := range []string{`token="a b" --password x`, "https://a:b@c", "Authorization: Bearer x", `"pwd" : 'x';y`, "pwd:\n token: x", `secret='`, `<a key="pwd" value="x">`, "<pwd><![CDATA[x", "a:b@c:d@e", "token=<<E\nx\nE", `token=["x`, "token ?= x\\\ny", `token('x`, `pwd="""x`, `pwd=$'x`} {
		f.Add(text)
	}
	redactor := thorough(f)
	f.Fuzz(func(t *testing.T, text string) {
		once := redactor.Text(text)
		if twice := redactor.Text(once); twice != once {
			t.Fatalf("%q becomes %q, and then %q", text, once, twice)
		}
	})
}
