package audit_test

import (
	"fmt"

	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// A program that audits, and lets no session begin that cannot be recorded.
func Example() {
	command.Main(command.New("audit", func(mgr *manager.Manager) error {
		return mgr.AddExtension(audit.New(audit.Options{Required: true}))
	}))
}

func ExampleRedactor_Command() {
	redactor, err := audit.NewRedactor(audit.DefaultRedact...)
	if err != nil {
		panic(err)
	}
	fmt.Println(redactor.Command([]string{"mysql", "--password", "hunter2", "shop"}))
	// Output: [mysql --password REDACTED shop]
}
