package main

import (
	"github.com/spf13/pflag"

	"github.com/admitkit/admitkit/operator/binding"
)

// bindingFlags are the flags of the binding extension. It is on if a role may be bound.
type bindingFlags struct{ options binding.Options }

func (b *bindingFlags) part() part {
	return part{
		bind: b.bind, on: b.on, flags: []string{"binding-"}, off: "without --bindable-role, --bindable-cluster-role or --bindable-cluster-wide",
		options: map[string]string{"binding options: ": "binding"},
		values: map[string]string{
			"bindable-role": "binding.roles", "bindable-cluster-role": "binding.clusterRoles", "binding-namespaces": "binding.namespaces",
			"bindable-cluster-wide": "binding.clusterWide", "binding-max-duration": "binding.maxDuration", "binding-max-lead": "binding.maxLead", "binding-retention": "binding.retention",
			"binding-workers": "binding.workers",
		},
	}
}

func (b *bindingFlags) bind(flags *pflag.FlagSet) {
	o := &b.options
	flags.StringSliceVar(&o.BindableRoles, "bindable-role", nil, "a Role that TransientRoleBindings may bind, as NAMESPACE/NAME; repeatable; needs the CRDs of operator/config/crd")
	flags.StringSliceVar(&o.BindableClusterRoles, "bindable-cluster-role", nil, "a ClusterRole that TransientRoleBindings may bind in --binding-namespaces; repeatable")
	flags.StringSliceVar(&o.Namespaces, "binding-namespaces", nil, "namespaces in which --bindable-cluster-role may be bound (default: --namespace; required with it if that is empty)")
	flags.StringSliceVar(&o.BindableClusterWide, "bindable-cluster-wide", nil, "a ClusterRole that TransientClusterRoleBindings may bind in the whole cluster; repeatable")
	flags.DurationVar(&o.MaxDuration, "binding-max-duration", binding.DefaultMaxDuration, "how long a transient binding may exist")
	flags.DurationVar(&o.MaxLead, "binding-max-lead", binding.DefaultMaxLead, "how far ahead a transient binding may begin")
	flags.DurationVar(&o.Retention, "binding-retention", binding.DefaultRetention, "how long a transient binding is kept as a record after its end")
	flags.IntVar(&o.Workers, "binding-workers", binding.DefaultWorkers, "number of transient bindings of each kind that are processed at a time")
}

// on reports whether any role may be bound.
func (b *bindingFlags) on() bool {
	o := &b.options
	return len(o.BindableRoles)+len(o.BindableClusterRoles)+len(o.BindableClusterWide) > 0
}
