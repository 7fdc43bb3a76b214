package admit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/testing/admit"
)

// lister is an extension with a cache of its own. It denies every Pod with the names of
// those that it finds there, or with the error.
type lister struct {
	namespaces []string
	pods       cache.ByObject
	verbs      []string
	find       func(context.Context, client.Reader) (string, error)
	cache      cache.Cache
}

func (l *lister) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: l.verbs}}
}

func (l *lister) Register(mgr extension.Manager) error {
	own, err := cluster.New(mgr, cluster.Options{Name: "lister", Namespaces: l.namespaces, ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: l.pods}})
	if err != nil {
		return err
	}
	l.cache = own.GetCache()
	informer, err := l.cache.GetInformer(mgr.GetContext(), &corev1.Pod{})
	if err != nil {
		return err
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{}); err != nil {
		return err
	}
	return own.GetFieldIndexer().IndexField(mgr.GetContext(), &corev1.Pod{}, "image", func(object client.Object) (images []string) {
		for _, container := range object.(*corev1.Pod).Spec.Containers {
			images = append(images, container.Image)
		}
		return images
	})
}

func (l *lister) Validate(ctx context.Context, _ *corev1.Pod, _ *extension.Request) error {
	found, err := l.find(ctx, l.cache)
	if err != nil {
		found = err.Error()
	}
	return extension.Deny(found)
}

func list(opts ...client.ListOption) func(context.Context, client.Reader) (string, error) {
	return func(ctx context.Context, reader client.Reader) (string, error) {
		var pods corev1.PodList
		err := reader.List(ctx, &pods, opts...)
		var names []string
		for _, p := range pods.Items {
			names = append(names, p.Namespace+"/"+p.Name)
		}
		return fmt.Sprint(names), err
	}
}

func get(name string) func(context.Context, client.Reader) (string, error) {
	return func(ctx context.Context, reader client.Reader) (string, error) {
		var p corev1.Pod
		err := reader.Get(ctx, client.ObjectKey{Namespace: "shop", Name: name}, &p)
		return fmt.Sprintf("%s on %s with %d containers", p.Name, p.Spec.NodeName, len(p.Spec.Containers)), err
	}
}

// shopPods are a and b in shop, c elsewhere. a and c have the label, a has another image.
func shopPods() (all []*corev1.Pod) {
	for name, namespace := range map[string]string{"a": "shop", "b": "shop", "c": "elsewhere"} {
		p := pod(name)
		p.Namespace, p.Spec.NodeName = namespace, "node-"+name
		if name != "b" {
			p.Labels = map[string]string{"team": "x"}
		}
		if name == "a" {
			p.Spec.Containers[0].Image = "example.com/a"
		}
		all = append(all, p)
	}
	return all
}

func TestACacheOfAnExtensionsOwnHasWhatItSelects(t *testing.T) {
	labelled := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{"team": "x"})}
	trimmed := cache.ByObject{Transform: cluster.TrimPod}
	onNode := cache.ByObject{Field: fields.OneTermEqualSelector("spec.nodeName", "node-b")}
	shop := []string{"shop"}
	image := client.MatchingFields{"image": "example.com/main:1"}
	for name, test := range map[string]struct {
		namespaces []string
		pods       cache.ByObject
		find       func(context.Context, client.Reader) (string, error)
		want       string
	}{
		"all":                           {nil, cache.ByObject{}, list(), "[elsewhere/c shop/a shop/b]"},
		"those of a namespace":          {shop, cache.ByObject{}, list(), "[shop/a shop/b]"},
		"those of two namespaces":       {[]string{"shop", "elsewhere"}, cache.ByObject{}, list(), "[elsewhere/c shop/a shop/b]"},
		"none of another namespace":     {shop, cache.ByObject{}, list(client.InNamespace("elsewhere")), "unable to list: elsewhere because of unknown namespace for the cache"},
		"those with a label":            {nil, labelled, list(), "[elsewhere/c shop/a]"},
		"those with a label, there":     {shop, labelled, list(), "[shop/a]"},
		"those with the value":          {nil, onNode, list(), "[shop/b]"},
		"those with a label, in a list": {nil, cache.ByObject{}, list(client.InNamespace("shop"), client.MatchingLabels{"team": "x"}), "[shop/a]"},
		"those that an index finds":     {nil, cache.ByObject{}, list(image), "[elsewhere/c shop/b]"},
		"those of a namespace, by it":   {nil, cache.ByObject{}, list(image, client.InNamespace("shop")), "[shop/b]"},
		"none by a field without one":   {nil, cache.ByObject{}, list(client.MatchingFields{"spec.nodeName": "node-b"}), "Index with name field:spec.nodeName does not exist"},
		"one":                           {nil, cache.ByObject{}, get("a"), "a on node-a with 1 containers"},
		"one, trimmed":                  {nil, trimmed, get("a"), "a on  with 0 containers"},
		"none that is not selected":     {nil, labelled, get("b"), `Pod "b" not found`},
		"none in a namespace not held":  {[]string{"elsewhere"}, cache.ByObject{}, get("a"), "unable to get: shop/a because of unknown namespace for the cache"},
		"metadata": {nil, cache.ByObject{}, func(ctx context.Context, reader client.Reader) (string, error) {
			p := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
			err := reader.Get(ctx, client.ObjectKey{Namespace: "shop", Name: "a"}, p)
			return p.Labels["team"], err
		}, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			client := admit.New(t, extension.Validating(&lister{test.namespaces, test.pods, []string{"list", "watch"}, test.find, nil}, extension.Scope{}))
			for _, p := range shopPods() {
				client.With(p)
			}
			if result := client.Create(pod("web")); result.Reason != test.want {
				t.Errorf("it finds %q, want %q", result.Reason, test.want)
			}
		})
	}
}

func TestACacheIsNeverStale(t *testing.T) {
	client := admit.New(t, extension.Validating(&lister{verbs: []string{"list", "watch"}, find: list()}, extension.Scope{}))
	for _, want := range []string{"[]", "[shop/a]"} {
		if result := client.Create(pod("web")); result.Reason != want {
			t.Errorf("it finds %q, want %q", result.Reason, want)
		}
		added := pod("a")
		added.Namespace = "shop"
		client.With(added)
	}
}

func TestACacheThatTheAPIServerRefusesEndsTheTest(t *testing.T) {
	x := extension.Validating(&lister{pods: cache.ByObject{Field: fields.OneTermEqualSelector("spec.hostname", "h")}, find: list()}, extension.Scope{})
	const want = "lister: a cache cannot select a Pod by spec.hostname=h: field label not supported: spec.hostname"
	if said := ended(t, x, func(c *admit.Client) { c.Create(pod("web")) }); !strings.Contains(said, want) {
		t.Errorf("it says %q", said)
	}
}

func TestACacheNeedsTheRightsOfAnInformer(t *testing.T) {
	for verbs, missing := range map[string]string{"": "list", "get watch": "list", "list": "watch"} {
		for name, find := range map[string]func(context.Context, client.Reader) (string, error){
			"a list": list(), "a list by an index": list(client.MatchingFields{"image": "x"}), "a read": get("a"),
		} {
			t.Run(fmt.Sprintf("%s with the verbs %q", name, verbs), func(t *testing.T) {
				v := &verdict{TB: t}
				result := admit.New(v, extension.Validating(&lister{verbs: strings.Fields(verbs), find: find}, extension.Scope{})).Create(pod("web"))
				want := "cannot " + missing + ` resource "pods" in API group "" at the cluster scope`
				if len(v.errors) != 1 || !strings.HasSuffix(v.errors[0], "or the kind from Reads():\n"+want) || !strings.Contains(result.Reason, want) {
					t.Errorf("got %q, %+v", v.errors, result)
				}
			})
		}
	}
}
