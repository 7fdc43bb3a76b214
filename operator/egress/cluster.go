package egress

import (
	"context"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// AnnotationAPIServer on a policy has the API server's addresses that it was composed with,
// as [FormatEndpoints] writes them.
const AnnotationAPIServer = "admitkit.dev/api-server"

// NewPolicy returns an empty policy of a kind.
func NewPolicy(kind schema.GroupVersionKind) *unstructured.Unstructured {
	policy := &unstructured.Unstructured{}
	policy.SetGroupVersionKind(kind)
	return policy
}

// Kinds returns the kinds of policies that there are, none if nothing holds Pods. New policies
// are of the first. Without CiliumNetworkPolicy, although the options want it, the API server
// does not serve that kind. connect is asked only if they want it.
func Kinds(o *Options, connect func() (*rest.Config, error)) ([]schema.GroupVersionKind, error) {
	if !o.On() {
		return nil, nil
	}
	kinds := []schema.GroupVersionKind{NetworkPolicy}
	if !o.Cilium {
		return kinds, nil
	}
	config, err := connect()
	if err != nil {
		return nil, err
	}
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	serves, err := ServesCilium(d)
	if err != nil {
		return nil, err
	}
	if serves {
		kinds = []schema.GroupVersionKind{CiliumNetworkPolicy, NetworkPolicy}
	}
	return kinds, nil
}

// NamesAPIServer reports whether a policy has the addresses of the API server: to allow
// them, or to leave them out of the internet.
func NamesAPIServer(e *v1alpha1.Egress) bool { return e.APIServer || e.Internet }

// APIServerCache says what a cache holds for [ReadAPIServer].
func APIServerCache() map[client.Object]cache.ByObject {
	in := func(config cache.Config) cache.ByObject {
		return cache.ByObject{Namespaces: map[string]cache.Config{APIServerNamespace: config}}
	}
	return map[client.Object]cache.ByObject{
		&corev1.Service{}:            in(cache.Config{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, APIServerService)}),
		&discoveryv1.EndpointSlice{}: in(cache.Config{LabelSelector: APIServerSlices()}),
	}
}

// ReadAPIServer returns where Pods reach the API server now: see [APIServerOf].
func ReadAPIServer(ctx context.Context, reader client.Reader) ([]netip.AddrPort, error) {
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
