package egress

import (
	"context"
	"net/netip"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// AnnotationAPIServer on a policy has the API server's addresses that it was composed with,
// separated by commas.
const AnnotationAPIServer = "admitkit.dev/api-server"

// NewPolicy returns an empty policy of a kind.
func NewPolicy(kind schema.GroupVersionKind) *unstructured.Unstructured {
	policy := &unstructured.Unstructured{}
	policy.SetGroupVersionKind(kind)
	return policy
}

// Kinds returns the kinds that policies may be of, whether the API server serves them or not.
func (o *Options) Kinds() []schema.GroupVersionKind {
	switch {
	case !o.On():
		return nil
	case o.Cilium:
		return []schema.GroupVersionKind{CiliumNetworkPolicy, NetworkPolicy}
	}
	return []schema.GroupVersionKind{NetworkPolicy}
}

// Connect finds out which kinds of policies there are, and says if the API server does not serve one that the options want.
func (h *Holder) Connect(mgr extension.Manager, log *zap.Logger) error {
	h.Kinds = h.Options.Kinds()
	if len(h.Kinds) < 2 {
		return nil
	}
	config, err := mgr.GetKubeConnection()
	if err != nil {
		return err
	}
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	serves, err := ServesCilium(d)
	if err == nil && !serves {
		h.Kinds = []schema.GroupVersionKind{NetworkPolicy}
		log.Warn("the API server serves no CiliumNetworkPolicies: NetworkPolicies are made until a restart finds them")
	}
	return err
}

// Cache says what of policies, and of the API server's addresses, a cache is to hold: ours are the policies.
func (h *Holder) Cache(ours cache.ByObject) map[client.Object]cache.ByObject {
	held := map[client.Object]cache.ByObject{}
	if len(h.Kinds) > 0 {
		in := func(config cache.Config) cache.ByObject {
			return cache.ByObject{Namespaces: map[string]cache.Config{APIServerNamespace: config}}
		}
		held[&corev1.Service{}] = in(cache.Config{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, APIServerService)})
		held[&discoveryv1.EndpointSlice{}] = in(cache.Config{LabelSelector: APIServerSlices()})
	}
	for _, kind := range h.Kinds {
		held[NewPolicy(kind)] = ours
	}
	return held
}

// NamesAPIServer reports whether a policy has the addresses of the API server: to allow
// them, or to leave them out of the internet.
func NamesAPIServer(e *v1alpha1.Egress) bool { return e.APIServer || e.Internet }

// APIServer returns where Pods reach the API server now: see [APIServerOf]. Where nothing holds Pods, a cache has nothing of
// that ([Holder.Cache]), and nobody is asked.
func (h *Holder) APIServer(ctx context.Context, reader client.Reader) ([]netip.AddrPort, error) {
	if len(h.Kinds) == 0 {
		return nil, nil
	}
	service := &corev1.Service{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: APIServerNamespace, Name: APIServerService}, service)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	if err != nil {
		service = nil
	}
	var list discoveryv1.EndpointSliceList
	err = reader.List(ctx, &list, client.InNamespace(APIServerNamespace), client.MatchingLabelsSelector{Selector: APIServerSlices()})
	return APIServerOf(service, list.Items), err
}
