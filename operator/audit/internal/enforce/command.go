package enforce

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Command is an entry in the list of allowed commands: see audit.Command.
type Command struct {
	Argv   []string
	Prefix bool
}

// ParseCommand reads a command as flags and files spell it: see
// audit.ParseCommand.
func ParseCommand(text string) (Command, error) {
	var c Command
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		if err := json.Unmarshal([]byte(text), &c.Argv); err != nil {
			return c, fmt.Errorf("command %q begins like a JSON array of strings: %w", text, err)
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
		return errors.New("a command has at least one word, for example \"ls -l\" or \"tar cf - ...\"")
	}
	return nil
}

// matches reports whether the entry allows argv.
func (c Command) matches(argv []string) bool {
	if c.Prefix {
		return len(argv) >= len(c.Argv) && slices.Equal(argv[:len(c.Argv)], c.Argv)
	}
	return slices.Equal(argv, c.Argv)
}

// String returns the entry as ParseCommand reads it.
func (c Command) String() string {
	words := c.Argv
	if c.Prefix {
		words = append(slices.Clone(words), "...")
	}
	if slices.ContainsFunc(words, func(word string) bool { return word == "" || strings.ContainsAny(word, " \t\n\"'[\\") }) {
		text, _ := json.Marshal(words) // strings always marshal
		return string(text)
	}
	return strings.Join(words, " ")
}
