package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// part is an extension, or a service to all of them, as the command line and the chart have
// it. A new one is a file with its part, a line of newOperator, and the chart's values.
type part struct {
	bind func(*pflag.FlagSet)
	// on reports whether it runs. Its flags, which begin with one of these, have no effect
	// else, which an error says with the words of off, such as "without --access".
	on    func() bool
	flags []string
	off   string
	// options are with what the flags begin that set the options of the library, by how
	// errors about these begin.
	options map[string]string
	// enabled is the value of the chart without which it has none of values, its values by
	// flag. "" is for a part that other values enable.
	enabled string
	values  map[string]string
}

// effect returns an error about a flag that is given while its part is off.
func (p *part) effect(flag string) error {
	if !p.on() {
		for _, prefix := range p.flags {
			if strings.HasPrefix(flag, prefix) {
				return fmt.Errorf("--%s has no effect %s", flag, p.off)
			}
		}
	}
	return nil
}
