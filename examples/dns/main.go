// Command dns sets DNS options of Pods. With its default, ndots:2, a lookup of
// api.example.com is one query and not five: Kubernetes' own default of 5 tries
// each search domain first (https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/).
//
//	dns start --option ndots=2 --option timeout=1 ...
package main

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

type dnsOptions map[string]string

// Mutate adds the options that the Pod does not have. A Pod that uses the node's
// DNS is left alone.
func (o dnsOptions) Mutate(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	if pod.Spec.DNSPolicy == corev1.DNSDefault {
		return nil
	}
	config := ptr.Deref(pod.Spec.DNSConfig, corev1.PodDNSConfig{})
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if slices.ContainsFunc(config.Options, func(option corev1.PodDNSConfigOption) bool { return option.Name == name }) {
			continue
		}
		option := corev1.PodDNSConfigOption{Name: name}
		if value := o[name]; value != "" {
			option.Value = &value
		}
		config.Options = append(config.Options, option)
	}
	pod.Spec.DNSConfig = &config
	return nil
}

func main() {
	options := dnsOptions{"ndots": "2"}
	cmd := command.New("dns", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.Mutating(options, extension.Scope{Name: "dns"}))
	})
	cmd.PersistentFlags().StringToStringVar((*map[string]string)(&options), "option", options, "options as in resolv.conf(5), NAME=VALUE or NAME=")
	command.Main(cmd)
}
