package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/admitkit/admitkit/operator/egress"
)

// bindEgress binds the flags about what Pods may reach.
func bindEgress(flags *pflag.FlagSet, o *egress.Options) {
	flags.StringVar((*string)(&o.Mode), "access-network-policy", "", "whether network policies are enforced in this cluster, and so hold access Pods to spec.egress of their template: on; auto, which looks for a network plugin in kube-system; "+
		"or off, with which such Pods are made without a policy, and say so (default: templates with spec.egress are refused)")
	flags.BoolVar(&o.Cilium, "access-cilium", false, "hold access Pods by CiliumNetworkPolicies, if the API server serves them at the start")
	flags.StringSliceVar(&o.PodCIDRs, "cluster-pod-cidrs", nil, "addresses of the cluster's Pods, of IPv4 and IPv6 where it has both, which the internet in spec.egress does not include (default none, and no template may have the internet)")
	flags.StringSliceVar(&o.ServiceCIDRs, "cluster-service-cidrs", nil, "addresses of the cluster's Services, as for Pods")
}

// checkEgress rejects flags that would have no effect.
func checkEgress(flags *pflag.FlagSet, o *egress.Options) error {
	if o.Mode != egress.ModeNone {
		return nil
	}
	var errs []error
	for _, name := range []string{"access-cilium", "cluster-pod-cidrs", "cluster-service-cidrs"} {
		if flags.Changed(name) {
			errs = append(errs, errors.New("--"+name+" has no effect without --access-network-policy"))
		}
	}
	return errors.Join(errs...)
}
