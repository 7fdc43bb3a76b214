package main

import (
	"fmt"
	"strings"
	"testing"
)

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
			extensions, err := o.extensions()
			if err != nil {
				if !strings.HasPrefix(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
				return
			}
			got := map[string]string{"*access.Access": "off", "*audit.Audit": "off"}
			for _, e := range extensions {
				got[fmt.Sprintf("%T", e)] = "on"
			}
			if got := fmt.Sprintf("access: %s, audit: %s", got["*access.Access"], got["*audit.Audit"]); got != want {
				t.Errorf("got %s of %T, want %s", got, extensions, want)
			}
		})
	}
}
