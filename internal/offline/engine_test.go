package offline_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

var configMaps = extension.Resources("", "v1", []string{"configmaps"}, admissionregistrationv1.Create)

// labeller sets the label of its name to what value makes of it.
func labeller(name string, value func(string) string, scope extension.Scope) *extension.Handler {
	scope.Name, scope.Rules = name, configMaps
	return extension.Mutating(extension.MutatorFunc[*corev1.ConfigMap](func(_ context.Context, object *corev1.ConfigMap, _ *extension.Request) error {
		metav1.SetMetaDataLabel(&object.ObjectMeta, name, value(object.Labels[name]))
		return nil
	}), scope)
}

func onlooker(name string, scope extension.Scope) *extension.Handler {
	scope.Name, scope.Rules = name, configMaps
	return extension.Validating(extension.ValidatorFunc[*corev1.ConfigMap](func(context.Context, *corev1.ConfigMap, *extension.Request) error { return nil }), scope)
}

// chain is what one ConfigMap goes through. TestTheRealAPIServerCallsTheSameWebhooks
// sends one through the same on a real API server.
type chain struct {
	handlers []*extension.Handler
	called   []string
}

func chains() map[string]chain {
	ifNeeded := extension.Scope{ReinvocationPolicy: new(admissionregistrationv1.IfNeededReinvocationPolicy)}
	selected := extension.Scope{ObjectSelector: where("team", metav1.LabelSelectorOpExists)}
	unselected := extension.Scope{ObjectSelector: where("team", metav1.LabelSelectorOpDoesNotExist)}
	team := []admissionregistrationv1.MatchCondition{{Name: "team", Expression: "has(object.metadata.labels) && 'team' in object.metadata.labels"}}
	noTeam := []admissionregistrationv1.MatchCondition{{Name: "no-team", Expression: "!(" + team[0].Expression + ")"}}
	once := func(string) string { return "a" }
	longer := func(value string) string { return value + "a" }
	return map[string]chain{
		"the labels that a mutator sets decide who is called next": {
			[]*extension.Handler{
				labeller("early", once, selected), labeller("team", once, extension.Scope{}), labeller("late", once, selected),
				labeller("too-late", once, unselected), onlooker("guard", selected), onlooker("no-guard", unselected),
			},
			[]string{"team", "late", "guard"},
		},
		"so do match conditions": {
			[]*extension.Handler{
				labeller("early", once, extension.Scope{MatchConditions: team}), labeller("team", once, extension.Scope{}),
				labeller("late", once, extension.Scope{MatchConditions: team}), labeller("too-late", once, extension.Scope{MatchConditions: noTeam}),
				onlooker("guard", extension.Scope{MatchConditions: team}), onlooker("no-guard", extension.Scope{MatchConditions: noTeam}),
			},
			[]string{"team", "late", "guard"},
		},
		"who changed the object last is not called again": {
			[]*extension.Handler{labeller("a", once, extension.Scope{}), labeller("b", once, ifNeeded)}, []string{"a", "b"},
		},
		"who does not ask for it is not called again": {
			[]*extension.Handler{labeller("a", once, extension.Scope{}), labeller("b", once, extension.Scope{})}, []string{"a", "b"},
		},
		"one is called again once": {
			[]*extension.Handler{labeller("a", once, ifNeeded), labeller("b", longer, ifNeeded)}, []string{"a", "b", "a"},
		},
		"one is called again because one before it was": {
			[]*extension.Handler{labeller("a", longer, ifNeeded), labeller("b", once, ifNeeded)}, []string{"a", "b", "a", "b"},
		},
		"one that no longer matches is not called again": {
			[]*extension.Handler{labeller("a", longer, extension.Scope{ObjectSelector: unselected.ObjectSelector, ReinvocationPolicy: ifNeeded.ReinvocationPolicy}), labeller("team", once, extension.Scope{})},
			[]string{"a", "team"},
		},
	}
}

func TestWebhooksAreCalledInTheOrderOfTheAPIServer(t *testing.T) {
	for name, test := range chains() {
		t.Run(name, func(t *testing.T) {
			webhooks, err := webhook.Group(test.handlers, webhook.Defaults{})
			if err != nil {
				t.Fatal(err)
			}
			req, err := offline.KindsOf(&kinds.Table{}).NewRequest(admissionv1.Create, object("v1", "ConfigMap", nil), nil, "apps")
			if err != nil {
				t.Fatal(err)
			}
			out, err := offline.New(webhooks, offline.Options{Webhook: webhook.HandlerOptions{Scheme: scheme.Scheme}}).Admit(t.Context(), req)
			if err != nil || !out.Allowed {
				t.Fatalf("%+v, %v", out, err)
			}
			var called []string
			for _, step := range out.Steps {
				called = append(called, step.Webhook.Name)
			}
			if !slices.Equal(called, test.called) {
				t.Errorf("called %v, want %v", called, test.called)
			}
		})
	}
}

func TestAMutatorWhoseMatchConditionFailsEndsTheRequest(t *testing.T) {
	once, longer := func(string) string { return "a" }, func(value string) string { return value + "a" }
	conditional := func(expression string) extension.Scope {
		return extension.Scope{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: expression}}}
	}
	ifNeeded := extension.Scope{ReinvocationPolicy: new(admissionregistrationv1.IfNeededReinvocationPolicy)}
	for name, test := range map[string]struct {
		handlers []*extension.Handler
		called   int
	}{
		"at once": {
			[]*extension.Handler{labeller("first", once, extension.Scope{}), labeller("second", once, conditional("object.metadata.labels['third'] == 'a'")), onlooker("guard", extension.Scope{})}, 1,
		},
		"when others are called again": {
			[]*extension.Handler{
				labeller("second", once, conditional("!has(object.metadata.labels) || object.metadata.labels['fourth'] == 'a'")), labeller("first", longer, ifNeeded), labeller("third", once, extension.Scope{}),
			}, 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			webhooks, err := webhook.Group(test.handlers, webhook.Defaults{})
			if err != nil {
				t.Fatal(err)
			}
			req, err := offline.KindsOf(&kinds.Table{}).NewRequest(admissionv1.Create, object("v1", "ConfigMap", nil), nil, "apps")
			if err != nil {
				t.Fatal(err)
			}
			out, err := offline.New(webhooks, offline.Options{Webhook: webhook.HandlerOptions{Scheme: scheme.Scheme}}).Admit(t.Context(), req)
			if err != nil || out.Allowed || len(out.Steps) != test.called || !strings.Contains(out.Status.Message, "webhook second: a match condition failed, and its failure policy is Fail: c: ") {
				t.Errorf("got %+v, %v", out, err)
			}
		})
	}
}

// An extension in Observe answers nobody, and one may end its goroutine: both are told, of
// the request that they were called for.
func TestWhatAnExtensionDoesIsToldOfItsRequest(t *testing.T) {
	for name, test := range map[string]struct {
		mode     extension.Mode
		validate func() error
		result   string
	}{
		"one that ends its goroutine":                   {extension.Enforce, func() error { runtime.Goexit(); return nil }, "error"},
		"one that observes and ends its goroutine":      {extension.Observe, func() error { runtime.Goexit(); return nil }, "error"},
		"one that observes and takes more than a while": {extension.Observe, func() error { time.Sleep(2 * time.Second); return extension.Deny("no") }, "denied"},
		"one that observes and takes too long":          {extension.Observe, func() error { time.Sleep(20 * time.Second); return extension.Deny("no") }, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				webhooks, err := webhook.Group([]*extension.Handler{extension.ValidatingFunc(func(context.Context, *corev1.ConfigMap, *extension.Request) error { return test.validate() },
					extension.Scope{Name: "it", Rules: configMaps, Mode: test.mode})}, webhook.Defaults{})
				if err != nil {
					t.Fatal(err)
				}
				req, err := offline.KindsOf(&kinds.Table{}).NewRequest(admissionv1.Create, object("v1", "ConfigMap", nil), nil, "apps")
				if err != nil {
					t.Fatal(err)
				}
				engine := offline.New(webhooks, offline.Options{Webhook: webhook.HandlerOptions{Scheme: scheme.Scheme}})
				admitted := make(chan *offline.Outcome)
				go func() {
					defer close(admitted)
					out, err := engine.Admit(t.Context(), req)
					if err != nil {
						t.Error(err)
					}
					admitted <- out
				}()
				if out := <-admitted; out == nil || len(out.Steps) != 1 || out.Steps[0].Result != test.result {
					t.Errorf("got %+v", out)
				}
				time.Sleep(time.Minute) // until it has ended
			})
		})
	}
}
