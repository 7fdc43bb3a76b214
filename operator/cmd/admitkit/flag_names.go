package main

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Extensions name the options of Go, which who gives flags does not know.
var (
	optionName = regexp.MustCompile(`\b[A-Z][A-Za-z]+\b`)
	hump       = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)
)

// places are what errors about options have in them, and the prefix of their flags, the
// inner ones first.
var places = []struct{ marker, prefix string }{
	{"sink otlp: ", otlpPrefix},
	{"sink cloudevents: ", cloudEventsPrefix},
	{"sink file: ", "audit-file"},
	{"sink auditevent: ", "audit"},
	{"Notifications: ", notifyPrefix},
	{"access options: ", "access"},
	{"binding options: ", "binding"},
	{"session options: ", "sessions"},
}

// inFlags makes every subcommand name flags.
func inFlags(root *cobra.Command) {
	for _, sub := range root.Commands() {
		run := sub.RunE
		sub.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if err == nil {
				return nil
			}
			for _, place := range places {
				if before, about, found := strings.Cut(err.Error(), place.marker); found {
					return &translated{before + place.marker + words(cmd.Flags(), place.prefix, about), err}
				}
			}
			return err
		}
	}
}

// words returns a text with flags for the names of options, whose flags have a prefix.
func words(flags *pflag.FlagSet, prefix, text string) string {
	text = strings.NewReplacer("Header or TokenFile", "TokenFile", "Service is empty", "--service-name is empty").Replace(text)
	return optionName.ReplaceAllStringFunc(text, func(name string) string {
		kebab := strings.ToLower(hump.ReplaceAllString(name, "$1$3-$2$4"))
		if kebab == "url" && flags.Lookup(prefix+"-url") == nil {
			kebab = "endpoint"
		}
		candidates := []string{prefix + "-" + kebab}
		if strings.Contains(kebab, "-") { // one word may be any word
			candidates = append(candidates, kebab)
		}
		for _, flag := range candidates {
			if flags.Lookup(flag) != nil {
				return "--" + flag
			}
			// A flag that is repeated is named after one of many.
			if one, many := strings.CutSuffix(flag, "s"); many && flags.Lookup(one) != nil {
				return "--" + one
			}
		}
		return name
	})
}

// translated is an error with another text.
type translated struct {
	text string
	err  error
}

func (e *translated) Error() string { return e.text }
func (e *translated) Unwrap() error { return e.err }
