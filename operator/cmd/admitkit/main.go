// Command admitkit runs the extensions that ship with admitkit as one operator.
package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/binding"
	"github.com/admitkit/admitkit/operator/session"
)

func main() {
	command.Main(newOperator().cmd)
}

// operator has the flags, and adds the extensions that they enable.
type operator struct {
	cmd                   *cobra.Command
	withAudit, withAccess bool
	access                access.Options
	accessChecks          string
	auditing              auditFlags
	rules                 ruleFlags
	binding               bindingFlags
	sessions              sessionFlags
	tracing               tracing
	// apiService is nil unless sessions are read by the API server.
	apiService client.Object
}

func newOperator() *operator {
	o := &operator{}
	o.cmd = command.New("admitkit", o.addTo, command.WithOptions(o.tracing.start), command.WithInstallOptions(func(install *manager.InstallOptions) {
		if o.apiService != nil {
			install.Objects = append(install.Objects, o.apiService)
		}
	}))
	o.tracing.wrap(o.cmd)
	inFlags(o.cmd)
	flags := o.cmd.PersistentFlags()
	flags.BoolVar(&o.withAudit, "audit", true, "record who accessed which Pod, by exec and every other way")
	flags.BoolVar(&o.withAccess, "access", false, "grant requests for time-limited access; needs the CRDs of operator/config/crd")
	flags.StringSliceVar(&o.access.Namespaces, "access-namespaces", nil, "namespaces in which access is granted, or * for all but the control plane's and the manager's own (default: --namespace; required with --access if that is empty)")
	flags.StringSliceVar(&o.access.Roles, "access-role", nil, "a Role, as NAMESPACE/NAME, that RoleAccessTemplates may give for a while; repeatable (default none). admitkit gets the right to bind it")
	flags.StringSliceVar(&o.access.ClusterRoles, "access-cluster-role", nil, "a ClusterRole that RoleAccessTemplates may give in the namespaces of access; repeatable (default none). admitkit gets the right to bind it there")
	flags.DurationVar(&o.access.Retention, "access-retention", access.DefaultRetention, "how long a request is kept as a record after its access has ended")
	flags.IntVar(&o.access.Workers, "access-workers", access.DefaultWorkers, "number of requests of each kind that are processed at a time")
	flags.StringVar(&o.accessChecks, "access-checks", "", "file with the checks that templates may name in accessConfig.check, in YAML or JSON: which endpoints decide about requests")
	flags.DurationVar(&o.access.WarnBefore, "access-warn-before", 5*time.Minute, "how long before its end a grant is announced to end, but not sooner than in the last quarter of its time; 0 for never")
	bindEgress(flags, &o.access.Egress)
	bindCloudEvents(flags, notifyPrefix, "each step of an access request to this HTTPS endpoint as a CloudEvent", "admitkit.dev/access", "1000 notifications are queued in memory", &o.access.Notifications)
	o.auditing.bind(flags)
	o.rules.bind(flags)
	o.binding.bind(flags)
	o.sessions.bind(flags)
	o.tracing.bind(flags)
	flags.VisitAll(func(f *pflag.Flag) { markPath(flags, f.Name) })
	return o
}

// markPath marks the flags that name files and folders of the Pods, for completion and for
// the warnings of manifests. Those of sessions are mounted.
func markPath(flags *pflag.FlagSet, name string) {
	switch {
	case ofSessions(name):
	case strings.HasSuffix(name, "-file"), name == "access-checks":
		_ = cobra.MarkFlagFilename(flags, name) // it is there
	case strings.HasSuffix(name, "-dir"):
		_ = cobra.MarkFlagDirname(flags, name)
	}
}

func (o *operator) addTo(mgr *manager.Manager) error {
	var sessions *session.Session
	if o.sessions.on {
		var err error
		if sessions, err = o.sessions.extension(mgr, o.withAudit && o.auditing.objects, o.accessNamespaces(mgr), o.auditing.redact); err != nil {
			return err
		}
		if o.sessions.options.API {
			o.apiService = session.APIService(mgr.GetWebhookNamespace(), mgr.GetManagerOptions().ServiceName, o.sessions.options.Port)
		}
		if o.sessions.options.Unrecorded == session.Closed {
			o.access.Sessions = sessions
		}
	}
	extensions, err := o.extensions()
	if err != nil {
		return err
	}
	if o.withAccess && mgr.GetNamespace() == "" && len(o.access.Namespaces) == 0 {
		return errors.New("--access: say in which namespaces access may be granted: --access-namespaces=a,b, or --access-namespaces='*' for all but the control plane's and the manager's own. " +
			"Whoever takes the process that reconciles over can do there what an administrator can; with all, that is the cluster")
	}
	if sessions != nil {
		extensions = append(extensions, sessions)
		if places := o.unrecordedAccess(); len(places) > 0 {
			mgr.GetLogger().Warnw("access is granted in namespaces where sessions are not recorded; add them to --sessions-namespaces to record what happens in access Pods", "namespaces", places)
		}
	}
	for _, e := range extensions {
		if err := mgr.AddExtension(e); err != nil {
			return err
		}
	}
	return o.sessions.checkShared(o.cmd)
}

// accessNamespaces are those in which access is granted.
func (o *operator) accessNamespaces(mgr *manager.Manager) []string {
	switch {
	case !o.withAccess:
		return nil
	case len(o.access.Namespaces) == 0 && mgr.GetNamespace() != "":
		return []string{mgr.GetNamespace()}
	}
	return o.access.Namespaces
}

// unrecordedAccess returns the namespaces in which access is granted and sessions are not
// recorded, as far as both are named.
func (o *operator) unrecordedAccess() []string {
	if !o.withAccess || len(o.sessions.namespaces) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(o.access.Namespaces), func(name string) bool { return slices.Contains(o.sessions.namespaces, name) })
}

// extensions returns those that the flags enable.
func (o *operator) extensions() (extensions []any, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	var options audit.Options
	if o.withAudit {
		if options, err = o.auditOptions(); err != nil {
			return nil, err
		}
	}
	if o.withAccess {
		o.access.SingleUse = options.Enforcement != nil
		flags := o.cmd.PersistentFlags()
		if err := checkNotify(flags, &o.access.Notifications); err != nil {
			return nil, err
		}
		if err := checkEgress(flags, &o.access.Egress); err != nil {
			return nil, err
		}
		if o.accessChecks != "" {
			if o.access.Checks, err = access.ReadChecks(o.accessChecks); err != nil {
				return nil, fmt.Errorf("--access-checks: %w", err)
			}
		}
		extensions = append(extensions, access.New(o.access))
	}
	if o.binding.on() {
		extensions = append(extensions, binding.New(o.binding.options))
	}
	if o.withAudit {
		extensions = append(extensions, audit.New(options))
	}
	return extensions, nil
}

// check rejects an operator without extensions, and flags that would have no effect: the
// user would believe that something is recorded, or granted.
func (o *operator) check() error {
	if !o.withAudit && !o.withAccess && !o.binding.on() && !o.sessions.on {
		return errors.New("--audit=false without --access, without --sessions and without roles to bind (--bindable-role): there is nothing to do; enable one of them")
	}
	errs := []error{o.tracing.check(o.cmd.PersistentFlags())}
	if o.sessions.on && o.sessions.options.API && !o.withAudit {
		errs = append(errs, errors.New("--sessions-api needs --audit: else nobody would know who has read a recording"))
	}
	o.cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			errs = append(errs, o.hasEffect(f.Name))
		}
	})
	return errors.Join(errs...)
}

// hasEffect returns an error about a flag that is given and has none.
func (o *operator) hasEffect(flag string) error {
	is := func(prefix string) bool { return strings.HasPrefix(flag, prefix) }
	switch {
	case o.sessions.on && flag == "audit-redact": // recordings go by it, too
	case !o.withAudit && slices.ContainsFunc(ofAudit, is):
		return fmt.Errorf("--%s has no effect with --audit=false", flag)
	case !o.withAccess && (is("access-") || is("cluster-pod-cidrs") || is("cluster-service-cidrs")):
		return fmt.Errorf("--%s has no effect without --access", flag)
	case !o.sessions.on && ofSessions(flag):
		return fmt.Errorf("--%s has no effect without --sessions", flag)
	case !o.binding.on() && is("binding-"):
		return fmt.Errorf("--%s has no effect without --bindable-role, --bindable-cluster-role or --bindable-cluster-wide", flag)
	}
	return nil
}

// ofAudit are the prefixes of the audit extension's flags.
var ofAudit = []string{"audit-", "cluster-name", "enforce", "mark-touched-pods", "evict-"}

func (o *operator) auditOptions() (audit.Options, error) {
	options, err := o.auditing.options(o.cmd)
	if err != nil {
		return options, err
	}
	options.AccessRequests = o.withAccess
	return options, o.rules.complete(&options, o.withAccess)
}
