package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/egress"
)

// accessFlags are the flags of the access extension.
type accessFlags struct {
	on      bool
	options access.Options
	checks  string
	flags   *pflag.FlagSet
}

func (a *accessFlags) part() part {
	return part{
		bind: a.bind, on: func() bool { return a.on }, flags: []string{"access-", "cluster-pod-cidrs", "cluster-service-cidrs"}, off: "without --access",
		options: map[string]string{"access options: ": "access", "Notifications: ": notifyPrefix},
		enabled: "access.enabled",
		values: map[string]string{
			"access": "access.enabled", "access-namespaces": "access.namespaces", "access-role": "access.roles", "access-cluster-role": "access.clusterRoles",
			"access-retention": "access.retention", "access-workers": "access.workers", "access-warn-before": "access.warnBefore",
			"access-network-policy": "access.egress.networkPolicy", "access-cilium": "access.egress.cilium",
			"cluster-pod-cidrs": "access.egress.podCIDRs", "cluster-service-cidrs": "access.egress.serviceCIDRs",
			"access-notify-url": "access.notify.url", "access-notify-source": "access.notify.source",
		},
	}
}

func (a *accessFlags) bind(flags *pflag.FlagSet) {
	a.flags = flags
	o := &a.options
	flags.BoolVar(&a.on, "access", false, "grant requests for time-limited access; needs the CRDs of operator/config/crd")
	flags.StringSliceVar(&o.Namespaces, "access-namespaces", nil, "namespaces in which access is granted, or * for all but the control plane's and the manager's own (default: --namespace; required with --access if that is empty)")
	flags.StringSliceVar(&o.Roles, "access-role", nil, "a Role, as NAMESPACE/NAME, that RoleAccessTemplates may give for a while; repeatable (default none). admitkit gets the right to bind it")
	flags.StringSliceVar(&o.ClusterRoles, "access-cluster-role", nil, "a ClusterRole that RoleAccessTemplates may give in the namespaces of access; repeatable (default none). admitkit gets the right to bind it there")
	flags.DurationVar(&o.Retention, "access-retention", access.DefaultRetention, "how long a request is kept as a record after its access has ended")
	flags.IntVar(&o.Workers, "access-workers", access.DefaultWorkers, "number of requests of each kind that are processed at a time")
	flags.StringVar(&a.checks, "access-checks", "", "file with the checks that templates may name in accessConfig.check, in YAML or JSON: which endpoints decide about requests")
	flags.DurationVar(&o.WarnBefore, "access-warn-before", 5*time.Minute, "how long before its end a grant is announced to end, but not sooner than in the last quarter of its time; 0 for never")
	flags.StringVar((*string)(&o.Egress.Mode), "access-network-policy", "", "whether network policies are enforced in this cluster, and so hold access Pods to spec.egress of their template: on; auto, which looks for a network plugin in kube-system; "+
		"or off, with which such Pods are made without a policy, and say so (default: templates with spec.egress are refused)")
	flags.BoolVar(&o.Egress.Cilium, "access-cilium", false, "hold access Pods by CiliumNetworkPolicies, if the API server serves them at the start")
	flags.StringSliceVar(&o.Egress.PodCIDRs, "cluster-pod-cidrs", nil, "addresses of the cluster's Pods, of IPv4 and IPv6 where it has both, which the internet in spec.egress does not include (default none, and no template may have the internet)")
	flags.StringSliceVar(&o.Egress.ServiceCIDRs, "cluster-service-cidrs", nil, "addresses of the cluster's Services, as for Pods")
	command.NameOptions(flags, "access-network-policy", "Egress: Mode")
	command.NameOptions(flags, "cluster-pod-cidrs", "Egress: PodCIDRs")
	command.NameOptions(flags, "cluster-service-cidrs", "Egress: ServiceCIDRs")
	bindCloudEvents(flags, notifyPrefix, "each step of an access request to this HTTPS endpoint as a CloudEvent", "admitkit.dev/access", "1000 notifications are queued in memory", &o.Notifications)
}

// extension returns the extension.
func (a *accessFlags) extension() (*access.Access, error) {
	if err := errors.Join(checkNotify(a.flags, &a.options.Notifications), a.checkEgress()); err != nil {
		return nil, err
	}
	if a.checks != "" {
		var err error
		if a.options.Checks, err = access.ReadChecks(a.checks); err != nil {
			return nil, fmt.Errorf("--access-checks: %w", err)
		}
	}
	return access.New(a.options), nil
}

// checkEgress rejects flags that would have no effect.
func (a *accessFlags) checkEgress() (err error) {
	if a.options.Egress.Mode != egress.ModeNone {
		return nil
	}
	for _, name := range []string{"access-cilium", "cluster-pod-cidrs", "cluster-service-cidrs"} {
		if a.flags.Changed(name) {
			err = errors.Join(err, fmt.Errorf("--%s has no effect without --access-network-policy", name))
		}
	}
	return err
}
