package offline_test

import (
	"context"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

// labeller sets a label to what value makes of it.
func labeller(name, key string, value func(string) string, scope extension.Scope) *extension.Handler {
	scope.Name = name
	return extension.Mutating(extension.MutatorFunc[*corev1.Pod](func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, key, value(pod.Labels[key]))
		return nil
	}), scope)
}

// called returns the webhooks that a Pod with these labels reaches, in order.
func called(t *testing.T, labels map[string]string, handlers ...*extension.Handler) []string {
	t.Helper()
	webhooks, err := webhook.Group(handlers, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	req, err := new(offline.Kinds).NewRequest(admissionv1.Create, object("v1", "Pod", labels), nil, "apps")
	if err != nil {
		t.Fatal(err)
	}
	out, err := offline.New(webhooks, offline.Options{Webhook: webhook.HandlerOptions{Scheme: scheme.Scheme}}).Admit(t.Context(), req)
	if err != nil || !out.Allowed {
		t.Fatalf("%+v, %v", out, err)
	}
	var names []string
	for _, step := range out.Steps {
		names = append(names, step.Webhook.Name)
	}
	return names
}

func TestTheLabelsThatAMutatorSetsDecideWhoIsCalledNext(t *testing.T) {
	set := func(string) string { return "a" }
	selected := extension.Scope{ObjectSelector: where("team", metav1.LabelSelectorOpExists)}
	unselected := extension.Scope{ObjectSelector: where("team", metav1.LabelSelectorOpDoesNotExist)}
	validator := func(name string, scope extension.Scope) *extension.Handler {
		scope.Name = name
		return extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(context.Context, *corev1.Pod, *extension.Request) error { return nil }), scope)
	}
	got := called(t, nil,
		labeller("early", "early", set, selected), labeller("team", "team", set, extension.Scope{}), labeller("late", "late", set, selected),
		labeller("too-late", "too-late", set, unselected), validator("guard", selected), validator("no-guard", unselected))
	if want := []string{"team", "late", "guard"}; !slices.Equal(got, want) {
		t.Errorf("called %v, want %v", got, want)
	}
}

func TestAWebhookIsReinvokedIfTheObjectChangedAfterIt(t *testing.T) {
	ifNeeded := extension.Scope{ReinvocationPolicy: new(admissionregistrationv1.IfNeededReinvocationPolicy)}
	once := func(string) string { return "a" }
	longer := func(value string) string { return value + "a" }
	for name, test := range map[string]struct {
		handlers []*extension.Handler
		want     []string
	}{
		"not if it changed the object last": {
			[]*extension.Handler{labeller("a", "a", once, extension.Scope{}), labeller("b", "b", once, ifNeeded)}, []string{"a", "b"},
		},
		"not if it did not ask for it": {
			[]*extension.Handler{labeller("a", "a", once, extension.Scope{}), labeller("b", "b", once, extension.Scope{})}, []string{"a", "b"},
		},
		"once": {
			[]*extension.Handler{labeller("a", "a", once, ifNeeded), labeller("b", "b", longer, ifNeeded)}, []string{"a", "b", "a"},
		},
		"also after the reinvocation of one before it": {
			[]*extension.Handler{labeller("a", "a", longer, ifNeeded), labeller("b", "b", once, ifNeeded)}, []string{"a", "b", "a", "b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := called(t, nil, test.handlers...); !slices.Equal(got, test.want) {
				t.Errorf("called %v, want %v", got, test.want)
			}
		})
	}
}
