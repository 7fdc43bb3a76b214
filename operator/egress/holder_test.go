package egress_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

// held is a policy with the addresses of the API server.
var held = egress.Held{
	ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "access-a", Labels: map[string]string{v1alpha1.LabelManagedBy: "x", "admitkit.dev/of": "a"}},
	Label:      "u-1", Options: &egress.Options{Mode: egress.ModeOn},
	Decision: &v1alpha1.EgressDecision{Policy: "NetworkPolicy", Egress: v1alpha1.Egress{APIServer: true}},
}

var apiServer = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443")}

// Others may have added labels, annotations and finalizers. A finalizer must stay: some controller waits for it.
func TestAPolicyIsWrittenOverWhatOthersMadeOfIt(t *testing.T) {
	want, err := held.Compose(apiServer)
	if err != nil {
		t.Fatal(err)
	}
	for sentence, change := range map[string]func(*unstructured.Unstructured){
		"as it was made": func(*unstructured.Unstructured) {},
		"wider": func(p *unstructured.Unstructured) {
			p.Object["spec"] = map[string]any{"egress": []any{map[string]any{}}}
		},
		"with labels of ours that are not its own": func(p *unstructured.Unstructured) { p.SetLabels(map[string]string{"admitkit.dev/run": "b"}) },
		"with what others put there": func(p *unstructured.Unstructured) {
			p.SetLabels(map[string]string{"team": "blue"})
			p.SetAnnotations(map[string]string{"example.com/seen": "1"})
			p.SetFinalizers([]string{"example.com/wait"})
		},
	} {
		for _, cached := range []bool{true, false} { // a cache of what has our label does not see all
			t.Run(sentence, func(t *testing.T) {
				there := want.DeepCopy()
				change(there)
				api := fake.NewClientBuilder().WithObjects(there).Build()
				h := egress.Holder{Options: held.Options, Kinds: held.Options.Kinds()}
				h.Use(api, api, clock.RealClock{})
				of := &egress.Restoration{Want: want}
				if cached {
					of.Current = egress.NewPolicy(want.GroupVersionKind())
					if err := api.Get(t.Context(), client.ObjectKeyFromObject(want), of.Current); err != nil {
						t.Fatal(err)
					}
				}
				written, err := h.Write(t.Context(), of)
				if err != nil {
					t.Fatal(err)
				}
				is := egress.NewPolicy(want.GroupVersionKind())
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(want), is); err != nil {
					t.Fatal(err)
				}
				if left, err := held.Restore(is, apiServer); left != nil || err != nil || written.GetResourceVersion() != is.GetResourceVersion() {
					t.Errorf("afterwards it is %+v, %v", left, err)
				}
				foreign := map[string]string{}
				for _, of := range []map[string]string{there.GetLabels(), there.GetAnnotations()} {
					maps.Copy(foreign, of)
				}
				for key, value := range foreign {
					if len(v1alpha1.Ours(map[string]string{key: value})) == 0 && is.GetLabels()[key] != value && is.GetAnnotations()[key] != value {
						t.Errorf("%s=%s of others is gone", key, value)
					}
				}
				if !slices.Equal(is.GetFinalizers(), there.GetFinalizers()) {
					t.Errorf("it has the finalizers %v", is.GetFinalizers())
				}
			})
		}
	}
}

func TestAPolicyThatIsGoneIsMade(t *testing.T) {
	api := fake.NewClientBuilder().Build()
	h := egress.Holder{Options: held.Options}
	h.Use(api, api, clock.RealClock{})
	of, err := held.Restore(nil, apiServer)
	if err != nil || of.Was != egress.Deleted {
		t.Fatalf("%+v, %v", of, err)
	}
	written, err := h.Write(t.Context(), of)
	if err != nil || written.GetResourceVersion() == "" {
		t.Errorf("%v, %v", written, err)
	}
}

// Admission refuses such a policy, but one may be older than that.
func TestAPolicyOfOthersThatAllowsMoreIsNamed(t *testing.T) {
	own, err := held.Compose(apiServer)
	if err != nil {
		t.Fatal(err)
	}
	wide := own.DeepCopy()
	wide.SetName("all")
	wide.Object["spec"] = map[string]any{"podSelector": map[string]any{}, "egress": []any{map[string]any{}}}
	elsewhere := wide.DeepCopy()
	elsewhere.SetNamespace("other")
	check := func(ctx context.Context, there ...client.Object) error {
		h := egress.Holder{Options: held.Options, Kinds: held.Options.Kinds()}
		h.Use(fake.NewClientBuilder().WithObjects(there...).Build(), nil, clock.RealClock{})
		return h.CheckOthers(ctx, client.ObjectKeyFromObject(own), map[string]string{v1alpha1.LabelEgress: "u-1"}, "Pods")
	}
	if err := check(t.Context(), own, elsewhere); err != nil {
		t.Errorf("their own, and one elsewhere: %v", err)
	}
	if u, ok := errors.AsType[*egress.Unheld](check(t.Context(), own, wide)); !ok || u.Reason != v1alpha1.ReasonEgressWidened {
		t.Errorf("it says %v", u)
	}
}
