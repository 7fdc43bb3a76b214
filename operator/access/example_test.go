package access_test

import (
	"time"

	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/access"
)

// A program that grants requests for access, and keeps their record for a week.
func Example() {
	command.Main(command.New("access", func(mgr *manager.Manager) error {
		return mgr.AddExtension(access.New(access.Options{Retention: 7 * 24 * time.Hour}))
	}))
}
