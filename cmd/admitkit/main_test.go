package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/extension"
)

// packages are those that the parts which are added come from.
type packages map[string]bool

func (p packages) AddExtension(e any) error {
	name := strings.TrimPrefix(fmt.Sprintf("%T", e), "*")
	if a, ok := e.(*extension.Handler); ok {
		name = a.Name()
	}
	p[strings.Split(name, ".")[0]] = true
	return nil
}

func TestTheOperatorRunsTheExtensionsThatAreOn(t *testing.T) {
	for args, want := range map[string]string{
		"":                       "access: off, audit: on",
		"--access":               "access: on, audit: on",
		"--access --audit=false": "access: on, audit: off",
		"--access --enforce":     "access: on, audit: on",
		"--audit=false":          "--audit=false without --access",
		"--enforce":              "--enforce needs --access",
		"--audit=false --access --audit-required":              "--audit-required has no effect with --audit=false",
		"--audit=false --access --enforce":                     "--enforce has no effect with --audit=false",
		"--audit=false --access --evict-touched-pods-after=1h": "--evict-touched-pods-after has no effect",
	} {
		t.Run(args, func(t *testing.T) {
			o := newOperator()
			if err := o.cmd.ParseFlags(strings.Fields(args)); err != nil {
				t.Fatal(err)
			}
			added := packages{}
			if err := o.addTo(added); err != nil {
				if !strings.HasPrefix(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
				return
			}
			state := map[bool]string{true: "on", false: "off"}
			if got := fmt.Sprintf("access: %s, audit: %s", state[added["access"]], state[added["audit"]]); got != want {
				t.Errorf("got %s of %v, want %s", got, slices.Sorted(maps.Keys(added)), want)
			}
		})
	}
}
