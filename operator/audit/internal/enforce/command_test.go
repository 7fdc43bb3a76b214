package enforce

import (
	"testing"
)

func TestACommandIsComparedWordByWord(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		argv []string
		want bool
	}{
		"the same words":                      {"ls -l", []string{"ls", "-l"}, true},
		"another word more":                   {"ls -l", []string{"ls", "-l", "/"}, false},
		"a word less":                         {"ls -l", []string{"ls"}, false},
		"an empty word more":                  {"ls -l", []string{"ls", "-l", ""}, false},
		"the line in one word":                {"ls -l", []string{"ls -l"}, false},
		"in a shell":                          {"ls -l", []string{"sh", "-c", "ls -l"}, false},
		"another case":                        {"ls -l", []string{"LS", "-l"}, false},
		"another path":                        {"ls -l", []string{"./ls", "-l"}, false},
		"a prefix, alone":                     {"tar cf - ...", []string{"tar", "cf", "-"}, true},
		"a prefix and more":                   {"tar cf - ...", []string{"tar", "cf", "-", "/etc"}, true},
		"a prefix within a word":              {"tar ...", []string{"tarantula"}, false},
		"less than the prefix":                {"tar cf - ...", []string{"tar", "cf"}, false},
		"words with spaces":                   {`["sh", "-c", "ls -l"]`, []string{"sh", "-c", "ls -l"}, true},
		"a prefix of words with spaces":       {`["sh", "-c", "ls -l", "..."]`, []string{"sh", "-c", "ls -l", "x"}, true},
		"no command":                          {"ls ...", nil, false},
		"dots that the client sends are dots": {"ls", []string{"ls", "..."}, false},
	} {
		c, err := ParseCommand(test.text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.matches(test.argv) != test.want {
			t.Errorf("%s: %q allows %q: %t", name, test.text, test.argv, !test.want)
		}
		if again, err := ParseCommand(c.String()); err != nil || again.String() != c.String() || again.Prefix != c.Prefix {
			t.Errorf("%s: %q is written as %q, which is read as %q: %v", name, test.text, c, again, err)
		}
	}
	for _, text := range []string{"", "  ", "...", "[]", `["..."]`, `[""]`, `["ls"`} {
		if c, err := ParseCommand(text); err == nil {
			t.Errorf("%q is a command: %+v", text, c)
		}
	}
}
