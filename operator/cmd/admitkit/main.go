// Command admitkit runs the extensions that ship with admitkit as one operator.
package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/binding"
	"github.com/admitkit/admitkit/operator/session"
)

func main() {
	command.Main(newOperator().cmd)
}

// operator has the flags, and adds the extensions that they enable.
type operator struct {
	cmd      *cobra.Command
	access   accessFlags
	auditing auditFlags
	binding  bindingFlags
	sessions sessionFlags
	tracing  tracing
	parts    []part
	// apiService is nil unless sessions are read by the API server.
	apiService client.Object
}

func newOperator() *operator {
	o := &operator{}
	o.parts = []part{o.auditing.part(), o.access.part(), o.binding.part(), o.sessions.part(), o.tracing.part()}
	options := []command.Option{command.WithOptions(o.tracing.start), command.WithInstallOptions(func(install *manager.InstallOptions) {
		if o.apiService != nil {
			install.Objects = append(install.Objects, o.apiService)
		}
	})}
	for _, p := range o.parts {
		for about, prefix := range p.options {
			options = append(options, command.WithOptionFlags(about, prefix))
		}
	}
	o.cmd = command.New("admitkit", o.addTo, options...)
	o.tracing.wrap(o.cmd)
	flags := o.cmd.PersistentFlags()
	for _, p := range o.parts {
		p.bind(flags)
	}
	flags.VisitAll(func(f *pflag.Flag) { markPath(flags, f.Name) })
	return o
}

// markPath marks the flags that name files and folders of the Pods, for completion and for
// the warnings of manifests. Those of sessions are mounted.
func markPath(flags *pflag.FlagSet, name string) {
	switch {
	case strings.HasPrefix(name, "sessions-"):
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
		if sessions, err = o.sessions.extension(mgr, o.auditing.on && o.auditing.objects, o.accessNamespaces(mgr), o.auditing.redact); err != nil {
			return err
		}
		if o.sessions.options.API {
			o.apiService = session.APIService(mgr.GetWebhookNamespace(), mgr.GetManagerOptions().ServiceName, o.sessions.options.Port)
		}
		if o.sessions.options.Unrecorded == session.Closed {
			o.access.options.Sessions = sessions
		}
	}
	extensions, err := o.extensions()
	if err != nil {
		return err
	}
	if o.access.on && len(mgr.GetNamespaces()) == 0 && len(o.access.options.Namespaces) == 0 {
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
	case !o.access.on:
		return nil
	case len(o.access.options.Namespaces) == 0:
		return mgr.GetNamespaces()
	}
	return o.access.options.Namespaces
}

// unrecordedAccess returns the namespaces in which access is granted and sessions are not
// recorded, as far as both are named.
func (o *operator) unrecordedAccess() []string {
	if !o.access.on || len(o.sessions.namespaces) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(o.access.options.Namespaces), func(name string) bool { return slices.Contains(o.sessions.namespaces, name) })
}

// extensions returns those that the flags enable.
func (o *operator) extensions() (extensions []any, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	var auditing *audit.Audit
	if o.auditing.on {
		options, err := o.auditing.options(o.access.on)
		if err != nil {
			return nil, err
		}
		o.access.options.SingleUse = options.Enforcement != nil && options.Enforcement.Mode.Enforced()
		auditing = audit.New(options)
	}
	if o.access.on {
		granting, err := o.access.extension()
		if err != nil {
			return nil, err
		}
		extensions = append(extensions, granting)
	}
	if o.binding.on() {
		extensions = append(extensions, binding.New(o.binding.options))
	}
	if auditing != nil {
		extensions = append(extensions, auditing)
	}
	return extensions, nil
}

// check rejects an operator without extensions, and flags that would have no effect: the
// user would believe that something is recorded, or granted.
func (o *operator) check() error {
	if !o.auditing.on && !o.access.on && !o.binding.on() && !o.sessions.on {
		return errors.New("--audit=false without --access, without --sessions and without roles to bind (--bindable-role): there is nothing to do; enable one of them")
	}
	errs := []error{o.tracing.check()}
	if o.sessions.on && o.sessions.options.API && !o.auditing.on {
		errs = append(errs, errors.New("--sessions-api needs --audit: else nobody would know who has read a recording"))
	}
	o.cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed || o.sessions.on && f.Name == "audit-redact" { // recordings go by it, too
			return
		}
		for _, p := range o.parts {
			errs = append(errs, p.effect(f.Name))
		}
	})
	return errors.Join(errs...)
}
