// Command admitkit runs the extensions that ship with admitkit as one operator.
package main

import (
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

func main() {
	var auditOptions audit.Options
	cmd := command.New("admitkit", func(mgr *manager.Manager) error {
		return mgr.AddExtension(audit.New(auditOptions))
	})
	cmd.PersistentFlags().BoolVar(&auditOptions.Required, "audit-required", false,
		"deny exec and attach when they cannot be recorded as an Event, or the webhook is down")
	command.Main(cmd)
}
