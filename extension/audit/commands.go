package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Command is an entry of the list of commands that are allowed. It is compared
// word by word with the array that the API server hands to the container, never
// with a line of text: "ls -l" in one word is another command than two words.
type Command struct {
	// Argv is the command and its arguments.
	Argv []string
	// Prefix allows any arguments after Argv. Mind what a command makes of
	// them: sh, env, find and tar can each start others.
	Prefix bool
}

// ParseCommand reads a command as flags and files have it: words between
// spaces, or a JSON array of strings where words have spaces of their own.
// Words, or an array, that end in "..." are a prefix.
func ParseCommand(text string) (Command, error) {
	var c Command
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		if err := json.Unmarshal([]byte(text), &c.Argv); err != nil {
			return c, fmt.Errorf("command %q: %w; it begins like a JSON array of strings", text, err)
		}
	} else {
		c.Argv = strings.Fields(text)
	}
	if last := len(c.Argv) - 1; last >= 0 && c.Argv[last] == "..." {
		c.Argv, c.Prefix = c.Argv[:last], true
	}
	return c, c.validate()
}

func (c Command) validate() error {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return errors.New("a command has at least one word, such as in \"ls -l\" or \"tar cf - ...\"")
	}
	return nil
}

// matches reports whether it allows argv.
func (c Command) matches(argv []string) bool {
	if c.Prefix {
		return len(argv) >= len(c.Argv) && slices.Equal(argv[:len(c.Argv)], c.Argv)
	}
	return slices.Equal(argv, c.Argv)
}

// String returns it as ParseCommand reads it.
func (c Command) String() string {
	words := c.Argv
	if c.Prefix {
		words = append(slices.Clone(words), "...")
	}
	if slices.ContainsFunc(words, func(word string) bool { return word == "" || strings.ContainsAny(word, " \t\n\"'[\\") }) {
		text, _ := json.Marshal(words) // strings can always be marshalled
		return string(text)
	}
	return strings.Join(words, " ")
}
