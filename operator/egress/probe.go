package egress

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// plugins are the labels of the Pods in kube-system of network plugins that enforce
// NetworkPolicies.
var plugins = []struct{ name, key, value string }{
	{"Calico", "k8s-app", "calico-node"},
	{"Cilium", "k8s-app", "cilium"},
	{"Cilium", "app", "cilium"},
	{"Weave Net", "name", "weave-net"},
	{"kube-router", "k8s-app", "kube-router"},
	{"Antrea", "app.kubernetes.io/name", "antrea-agent"},
}

// Probe looks for a network plugin that enforces NetworkPolicies, by the Pods in
// kube-system: at most one of each is read, and only its metadata. Let the reader ask the
// API server; a cache would hold all these Pods. reason says what was found, or that
// nothing was, and what to do.
func Probe(ctx context.Context, reader client.Reader) (enforced bool, reason string, err error) {
	for _, plugin := range plugins {
		pods := &metav1.PartialObjectMetadataList{}
		pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		err := reader.List(ctx, pods, client.InNamespace(metav1.NamespaceSystem), client.MatchingLabels{plugin.key: plugin.value}, client.Limit(1))
		if err != nil {
			return false, "", fmt.Errorf("looking for a network plugin in %s: %w", metav1.NamespaceSystem, err)
		}
		if len(pods.Items) > 0 {
			return true, fmt.Sprintf("Pod %s in %s is of %s, which enforces network policies", pods.Items[0].Name, metav1.NamespaceSystem, plugin.name), nil
		}
	}
	return false, "no Pod in " + metav1.NamespaceSystem + " is of a network plugin known to enforce network policies (Calico, Cilium, Weave Net, kube-router, Antrea): " +
		"install one, or, if another enforces them here, let the operator say on instead of auto", nil
}

// Prober decides whether network policies are enforced, by the operator's mode. It is to be
// asked whenever a Pod is about to be made, and the decision kept with that Pod.
type Prober struct {
	Mode   Mode
	Reader client.Reader
	Clock  clock.PassiveClock

	mu       sync.Mutex
	at       time.Time
	enforced bool
	reason   string
}

// probedFor is how long the result of a probe counts: many Pods may wait for it.
const probedFor = 2 * time.Second

// Enforced reports whether policies are enforced, and why.
func (p *Prober) Enforced(ctx context.Context) (enforced bool, reason string, err error) {
	switch p.Mode {
	case ModeOn:
		return true, "the operator says that network policies are enforced", nil
	case ModeOff:
		return false, "the operator says that network policies are off", nil
	case ModeNone:
		return false, "the operator has not said whether network policies are enforced", nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.Clock.Now(); p.reason == "" || now.Sub(p.at) >= probedFor {
		enforced, reason, err := Probe(ctx, p.Reader)
		if err != nil {
			return false, "", err
		}
		p.at, p.enforced, p.reason = now, enforced, reason
	}
	return p.enforced, p.reason, nil
}

// The kinds of policies.
var (
	NetworkPolicy       = schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"}
	CiliumNetworkPolicy = schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNetworkPolicy"}
)

// ServesCilium reports whether the API server serves CiliumNetworkPolicies.
func ServesCilium(d discovery.ServerResourcesInterface) (bool, error) {
	list, err := d.ServerResourcesForGroupVersion(CiliumNetworkPolicy.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking whether the API server serves %s: %w", CiliumNetworkPolicy.Kind, err)
	}
	for _, resource := range list.APIResources {
		if resource.Kind == CiliumNetworkPolicy.Kind {
			return true, nil
		}
	}
	return false, nil
}
