package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/admitkit/admitkit/operator/audit"
)

// ruleFlags are the flags for what the audit extension does besides recording.
type ruleFlags struct {
	enforce     bool
	enforcement audit.Enforcement
	commands    []string
	mark        bool
	touched     audit.TouchedPods
}

func (r *ruleFlags) bind(flags *pflag.FlagSet) {
	e, t := &r.enforcement, &r.touched
	flags.BoolVar(&r.enforce, "enforce", false, "refuse sessions without an active access request, in namespaces labelled "+audit.LabelEnforce+"=true; needs --access")
	flags.StringSliceVar(&e.Namespaces, "enforce-namespaces", nil, "enforce in these namespaces instead of those with the label")
	flags.StringArrayVar(&e.ExemptUsers, "enforce-exempt-user", nil, "a user to whom no rule applies; each use is recorded (break-glass); repeatable")
	flags.StringArrayVar(&e.ExemptGroups, "enforce-exempt-group", nil, "a group to whose members no rule applies (break-glass); repeatable")
	flags.StringArrayVar(&r.commands, "enforce-command", nil, "a command that sessions may run, such as \"ls -l\", \"tar cf - ...\" with any further arguments, or a JSON array; repeatable (default any)")
	flags.BoolVar(&e.ForbidTTY, "enforce-no-tty", false, "refuse sessions with a terminal")
	flags.BoolVar(&e.ForbidStdin, "enforce-no-stdin", false, "refuse sessions with standard input")
	flags.BoolVar(&r.mark, "mark-touched-pods", false, "label the Pods of interactive sessions")
	flags.DurationVar(&t.EvictAfter, "evict-touched-pods-after", 0, "evict the Pods of interactive sessions this long after the last one began (default never)")
	flags.DurationVar(&t.MaxEvictAfter, "evict-touched-pods-max", 0, "latest eviction that the annotation "+audit.AnnotationEvictAfter+" can request (default 24h)")
	flags.BoolVar(&t.Unmanaged, "evict-unmanaged-pods", false, "also evict Pods that no controller replaces")
}

// complete sets the options from the flags.
func (r *ruleFlags) complete(options *audit.Options, withAccess bool) error {
	e := &r.enforcement
	if !r.enforce && (len(e.Namespaces)+len(e.ExemptUsers)+len(e.ExemptGroups)+len(r.commands) > 0 || e.ForbidTTY || e.ForbidStdin) {
		return errors.New("flags that begin with --enforce- need --enforce")
	}
	if r.enforce {
		if !withAccess {
			return errors.New("--enforce needs --access: without it nobody could request a session")
		}
		e.Commands = nil
		for _, text := range r.commands {
			c, err := audit.ParseCommand(text)
			if err != nil {
				return fmt.Errorf("--enforce-command: %w", err)
			}
			e.Commands = append(e.Commands, c)
		}
		options.Enforcement = e
	}
	if r.mark || r.touched.EvictAfter > 0 {
		options.TouchedPods = &r.touched
	}
	return nil
}
