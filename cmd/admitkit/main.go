// Command admitkit runs the extensions that ship with admitkit as one operator.
package main

import (
	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/extension/access"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

func main() {
	var auditing auditFlags
	var accessOptions access.Options
	var withAccess bool
	var rules ruleFlags
	var cmd *cobra.Command
	cmd = command.New("admitkit", func(mgr *manager.Manager) error {
		auditOptions, err := auditing.options(cmd)
		if err != nil {
			return err
		}
		namespace := cmd.PersistentFlags().Lookup("namespace").Value.String()
		auditOptions.Namespace, auditOptions.AccessRequests = namespace, withAccess
		if err := rules.complete(&auditOptions, withAccess); err != nil {
			return err
		}
		if withAccess {
			accessOptions.Namespace, accessOptions.SingleUse = namespace, auditOptions.Enforcement != nil
			if err := access.New(accessOptions).AddTo(mgr); err != nil {
				return err
			}
		}
		return audit.New(auditOptions).AddTo(mgr)
	})
	flags := cmd.PersistentFlags()
	flags.BoolVar(&withAccess, "access", false, "grant requests for time-limited access; needs the CRDs of config/crd")
	flags.DurationVar(&accessOptions.Retention, "access-retention", access.DefaultRetention, "how long a request stays as a record after its access has ended")
	flags.IntVar(&accessOptions.Workers, "access-workers", access.DefaultWorkers, "how many requests of a kind are worked on at once")
	auditing.bind(flags)
	rules.bind(flags)
	command.Main(cmd)
}
