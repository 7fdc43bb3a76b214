package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

func everyPod(name string, mutate func(context.Context, *corev1.Pod, *extension.Request) error) *extension.Handler {
	return extension.MutatingFunc(mutate, extension.Scope{Name: name, Rules: extension.Pods(), NamespaceSelector: extension.EveryNamespace()})
}

// Of each handler, exactly one webhook gets a request, whatever the labels of the
// namespace, and it has the mode of the first rule that holds.
func TestModesDivideNamespacesAndLeaveNoneOut(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	keys, texts := []string{"a", "b", corev1.LabelMetadataName}, []string{"x", "y", "z"}
	term := func() metav1.LabelSelectorRequirement {
		r := metav1.LabelSelectorRequirement{Key: keys[random.IntN(3)], Operator: []metav1.LabelSelectorOperator{
			metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
		}[random.IntN(4)]}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = texts[:1+random.IntN(2)]
		}
		return r
	}
	selector := func() *metav1.LabelSelector {
		s := &metav1.LabelSelector{}
		for range random.IntN(3) {
			s.MatchExpressions = append(s.MatchExpressions, term())
		}
		if random.IntN(3) == 0 {
			s.MatchLabels = map[string]string{keys[random.IntN(3)]: texts[random.IntN(3)]}
		}
		return s
	}
	allModes, tooMany := []extension.Mode{extension.Enforce, extension.Warn, extension.Observe}, 0
	for range 2000 {
		base := selector()
		own := allModes[random.IntN(3)]
		var handlers []*extension.Handler
		for _, name := range []string{"one", "two"} {
			h := extension.ValidatingFunc(func(context.Context, *corev1.Pod, *extension.Request) error { return nil },
				extension.Scope{Name: name, NamespaceSelector: base, FailurePolicy: new(admissionregistrationv1.Ignore), Mode: own})
			handlers = append(handlers, h)
		}
		var rules []webhook.ModeRule
		for range random.IntN(4) {
			rule := webhook.ModeRule{Extensions: [][]string{{"one"}, {"two"}, {"*"}}[random.IntN(3)], Mode: allModes[random.IntN(3)]}
			if random.IntN(4) > 0 {
				rule.NamespaceSelector = selector()
			}
			rules = append(rules, rule)
		}
		webhooks, err := webhook.Group(handlers, webhook.Defaults{Modes: rules})
		if err != nil {
			tooMany++
			if !strings.Contains(err.Error(), "more than 32") {
				t.Fatal(err)
			}
			continue
		}
		checkParts(t, webhooks, base, rules, own, keys, texts)
	}
	if tooMany > 100 {
		t.Errorf("%d of 2000 were refused", tooMany)
	}
}

func checkParts(t *testing.T, webhooks []*webhook.Webhook, base *metav1.LabelSelector, rules []webhook.ModeRule, own extension.Mode, keys, texts []string) {
	t.Helper()
	matches := func(s *metav1.LabelSelector, set labels.Set) bool {
		if s == nil {
			return true
		}
		parsed, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		return parsed.Matches(set)
	}
	for n := range 64 {
		set := labels.Set{}
		for i, key := range keys {
			if v := n >> (2 * i) & 3; v < 3 {
				set[key] = texts[v]
			}
		}
		for _, name := range []string{"one", "two"} {
			want := []extension.Mode{}
			if matches(base, set) {
				want = append(want, own)
			}
			for _, rule := range rules {
				if len(want) > 0 && (rule.Extensions[0] == "*" || rule.Extensions[0] == name) && matches(rule.NamespaceSelector, set) {
					want[0] = rule.Mode
					break
				}
			}
			got := []extension.Mode{}
			for _, w := range webhooks {
				if strings.HasPrefix(w.Name, name) && matches(w.Scope.NamespaceSelector, set) {
					got = append(got, w.Mode)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s in a namespace with %v is in %v, want %v; of base %v and rules %+v", name, set, got, want, base, rules)
			}
		}
	}
}

func TestAnExtensionThatIsNotInForce(t *testing.T) {
	outcomes := map[string]func(context.Context, *corev1.Pod, *extension.Request) error{
		"allows": func(context.Context, *corev1.Pod, *extension.Request) error { return nil },
		"denies": func(context.Context, *corev1.Pod, *extension.Request) error { return extension.Deny("no owner") },
		"changes": func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, "example.com/team", "a")
			pod.Spec.Containers[0].Image = "pinned"
			return nil
		},
		"fails":    func(context.Context, *corev1.Pod, *extension.Request) error { return errors.New("no connection") },
		"panics":   func(context.Context, *corev1.Pod, *extension.Request) error { panic("oh") },
		"ends":     func(context.Context, *corev1.Pod, *extension.Request) error { runtime.Goexit(); return nil },
		"warns":    func(_ context.Context, _ *corev1.Pod, req *extension.Request) error { req.Warnf("old"); return nil },
		"overruns": func(ctx context.Context, _ *corev1.Pod, _ *extension.Request) error { <-ctx.Done(); return ctx.Err() },
	}
	wantWarnings := map[string]string{
		"denies":  "watched would deny this once it is enforced: no owner",
		"changes": "watched would change this once it is enforced: metadata.labels, spec.containers[0].image",
		"warns":   "old",
	}
	wantAudit := map[string]map[string]string{
		"denies":  {"watched.would-deny": "no owner"},
		"changes": {"watched.would-change": "metadata.labels, spec.containers[0].image"},
	}
	for _, mode := range []extension.Mode{extension.Warn, extension.Observe} {
		for name, handle := range outcomes {
			t.Run(fmt.Sprintf("%s and %s", mode, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					webhooks, err := webhook.Group([]*extension.Handler{everyPod("watched", handle)}, webhook.Defaults{Modes: []webhook.ModeRule{{Extensions: []string{"watched"}, Mode: mode}}})
					if err != nil {
						t.Fatal(err)
					}
					w := webhooks[0]
					if w.Mutating || *w.Scope.FailurePolicy != admissionregistrationv1.Ignore || w.Scope.Timeout != time.Second {
						t.Errorf("it is registered as %+v", w.Scope)
					}
					began := time.Now()
					request := podRequest(admissionv1.Create)
					response := decided(t, request, send(t, request, w.Handler(webhook.HandlerOptions{}), w.Path()))
					if took := time.Since(began); took > 500*time.Millisecond {
						t.Errorf("the answer took %s", took)
					}
					if !response.Allowed || response.Patch != nil {
						t.Errorf("it is in force: %+v", response)
					}
					var warnings []string
					if want := wantWarnings[name]; want != "" && mode == extension.Warn {
						warnings = append(warnings, want)
					}
					if !slices.Equal(response.Warnings, warnings) {
						t.Errorf("warnings %q, want %q", response.Warnings, warnings)
					}
					if want := wantAudit[name]; !maps.Equal(response.AuditAnnotations, want) {
						t.Errorf("annotations %v, want %v", response.AuditAnnotations, want)
					}
					time.Sleep(time.Minute) // until the handler has ended
				})
			})
		}
	}
}

func TestAnExtensionThatEndsItsGoroutineIsCountedAndHidesNoOther(t *testing.T) {
	for _, mode := range []extension.Mode{extension.Enforce, extension.Observe} {
		scope := extension.Scope{Name: unique("ends"), Mode: mode}
		webhooks := grouped(t,
			extension.ValidatingFunc(func(context.Context, *corev1.Pod, *extension.Request) error { runtime.Goexit(); return nil }, scope),
			extension.ValidatingFunc(func(context.Context, *corev1.Pod, *extension.Request) error { return extension.Deny("no owner") }, scope))
		core, logs := observer.New(zap.WarnLevel)
		w, request := webhooks[0], podRequest(admissionv1.Create)
		ended := make(chan *http.Response)
		go func() {
			defer close(ended)
			answer := send(t, request, w.Handler(webhook.HandlerOptions{Logger: zap.New(core)}), w.Path())
			if response := decided(t, request, answer); !response.Allowed || len(response.AuditAnnotations) != 1 {
				t.Errorf("%s: the answer is %+v", mode, response)
			}
		}()
		<-ended
		label := "validate/" + w.Name
		if mode == extension.Observe {
			label = "observe/" + label
		}
		if n := sum(t, "admitkit_admission_requests_total", map[string]string{"webhook": label, "result": "error"}); n != 1 {
			t.Errorf("%s: it is counted %v times", mode, n)
		}
		if logged := logs.FilterMessage("an extension that is not in force failed").Len(); mode == extension.Observe && logged != 1 {
			t.Errorf("it is logged %d times", logged)
		}
	}
}

func TestAnExtensionHasOnlyModesThatItsAuthorAllows(t *testing.T) {
	effects, never := new(admissionregistrationv1.SideEffectClassNoneOnDryRun), []extension.Mode{extension.Warn, extension.Observe}
	for name, test := range map[string]struct {
		scope      extension.Scope
		extensions string // of the rule, none without it
		mode       extension.Mode
		want       any // a mode, or an error
	}{
		"nothing is said":                      {want: extension.Enforce},
		"one with effects":                     {extension.Scope{SideEffects: effects}, "", "", extension.Enforce},
		"one with effects that observes":       {extension.Scope{SideEffects: effects, Mode: extension.Observe}, "", "", "Mode: it cannot be in Observe: it has side effects"},
		"one that leaves its effects out":      {extension.Scope{SideEffects: effects, Mode: extension.Observe, Modes: []extension.Mode{extension.Observe}}, "", "", extension.Observe},
		"a mode that its author does not name": {extension.Scope{Mode: extension.Warn, Modes: []extension.Mode{extension.Enforce}}, "", "", "Mode: it cannot be in Warn: its Scope.Modes are [Enforce]"},
		"one that is never in force":           {extension.Scope{Mode: extension.Warn, Modes: never}, "*", extension.Enforce, extension.Warn},
		"the operator enforces it":             {extension.Scope{Mode: extension.Warn, Modes: never}, "it", extension.Enforce, "it: it cannot be in Enforce: its Scope.Modes are [Warn Observe]"},
		"its author names no mode for it":      {extension.Scope{Modes: never}, "", "", "Mode: it cannot be in Enforce: its Scope.Modes are [Warn Observe]"},
		"no mode":                              {extension.Scope{Modes: []extension.Mode{"On"}}, "", "", `Modes[0]: "On": must be Enforce, Warn or Observe`},
	} {
		t.Run(name, func(t *testing.T) {
			test.scope.Name = "it"
			var rules []webhook.ModeRule
			if test.extensions != "" {
				rules = []webhook.ModeRule{{Extensions: []string{test.extensions}, Mode: test.mode}}
			}
			handler := extension.ValidatingFunc(func(context.Context, *corev1.Pod, *extension.Request) error { return nil }, test.scope)
			webhooks, err := webhook.Group([]*extension.Handler{handler}, webhook.Defaults{Modes: rules})
			if want, isError := test.want.(string); isError {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
			} else if err != nil || webhooks[0].Mode != test.want {
				t.Errorf("got %v, %v, want %s", webhooks, err, test.want)
			}
		})
	}
}

func TestAFindingIsOfLimitedLength(t *testing.T) {
	long := strings.Repeat("k", 1<<20)
	label := everyPod("label", func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
		pod.Labels[long] = "yes"
		return nil
	})
	webhooks, err := webhook.Group([]*extension.Handler{label}, webhook.Defaults{Modes: []webhook.ModeRule{{Extensions: []string{"label"}, Mode: extension.Observe}}})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // an answer does not wait for long, and this may take its time
		request := podRequest(admissionv1.Create)
		request.Object.Raw = []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"b"}}}`)
		response := decided(t, request, send(t, request, webhooks[0].Handler(webhook.HandlerOptions{}), webhooks[0].Path()))
		if finding := response.AuditAnnotations["label.would-change"]; !strings.HasPrefix(finding, "metadata.labels.kkk") || len(finding) > 10<<10 {
			t.Errorf("it has %d bytes", len(finding))
		}
	})
}

// An API server drops the warnings of all webhooks together that are more than 4096 characters.
func TestAnExtensionThatWarnsLeavesRoomForOtherWarnings(t *testing.T) {
	chatty := everyPod("chatty", func(_ context.Context, _ *corev1.Pod, req *extension.Request) error {
		for i := range 16 {
			req.Warnf("%d%s", i, strings.Repeat("x", 200))
		}
		return extension.Deny("no")
	})
	webhooks, err := webhook.Group([]*extension.Handler{chatty}, webhook.Defaults{Modes: []webhook.ModeRule{{Extensions: []string{"chatty"}, Mode: extension.Warn}}})
	if err != nil {
		t.Fatal(err)
	}
	request := podRequest(admissionv1.Create)
	response := decided(t, request, send(t, request, webhooks[0].Handler(webhook.HandlerOptions{}), webhooks[0].Path()))
	if n := len(strings.Join(response.Warnings, "")); n > 1024 || len(response.Warnings) < 2 || response.Warnings[0] != "chatty would deny this once it is enforced: no" {
		t.Errorf("its warnings have %d characters: %q", n, response.Warnings)
	}
}

// It takes neither places nor memory from extensions in force, and nobody waits for it.
func TestAnExtensionThatObservesCannotStarveOthers(t *testing.T) {
	for name, serve := range map[string]func([]*webhook.Webhook, webhook.HandlerOptions) (observing, enforcing http.Handler){
		"in the same revision": func(webhooks []*webhook.Webhook, options webhook.HandlerOptions) (observing, enforcing http.Handler) {
			return webhooks[0].Handler(options), webhooks[1].Handler(options)
		},
		"in another revision": func(webhooks []*webhook.Webhook, options webhook.HandlerOptions) (observing, enforcing http.Handler) {
			others := webhook.OtherRevisions(webhooks, options)
			return others, others
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := make(chan struct{})
				hangs := everyPod("hangs", func(context.Context, *corev1.Pod, *extension.Request) error { <-end; return nil })
				stamps := everyPod("stamps", func(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
					pod.Labels = map[string]string{"stamped": "yes"}
					return nil
				})
				webhooks, err := webhook.Group([]*extension.Handler{hangs, stamps}, webhook.Defaults{Modes: []webhook.ModeRule{{Extensions: []string{"hangs"}, Mode: extension.Observe}}})
				if err != nil {
					t.Fatal(err)
				}
				observing, enforcing := serve(webhooks, webhook.HandlerOptions{Memory: webhook.NewMemory(8 << 20), MaxInFlight: 1000})
				var flood sync.WaitGroup
				var waited atomic.Int64
				for range 500 {
					flood.Go(func() {
						began := time.Now()
						answer := send(t, podRequest(admissionv1.Create), observing, webhooks[0].Path())
						took := time.Since(began)
						if took > 500*time.Millisecond || answer.Header().Get("Retry-After") != "" {
							t.Errorf("an API server waits for %s: %d", took, answer.Code)
						}
						if took > 20*time.Millisecond {
							waited.Add(1)
						}
					})
				}
				flood.Wait()
				if n := waited.Load(); n > 250 {
					t.Errorf("%d requests hold a connection for long", n)
				}
				request, began := podRequest(admissionv1.Create), time.Now()
				response := decided(t, request, send(t, request, enforcing, webhooks[1].Path()))
				if took := time.Since(began); len(response.Patch) == 0 || took > 0 {
					t.Errorf("after %s the extension in force says %+v", took, response)
				}
				close(end)
				synctest.Wait()
			})
		})
	}
}
