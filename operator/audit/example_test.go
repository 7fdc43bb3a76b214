package audit_test

import (
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/audit"
)

// A program that audits, and lets no session begin that cannot be recorded.
func Example() {
	command.Main(command.New("audit", func(mgr *manager.Manager) error {
		return mgr.AddExtension(audit.New(audit.Options{Required: true}))
	}))
}
