package manager_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// enforcerLabel is on the configurations that the enforcer has changed.
const enforcerLabel = "test.admitkit.dev/enforced"

// enforcer is a platform, such as AKS with its Admissions Enforcer, that adds a label and
// terms to the configurations of an installation whenever they lack them.
type enforcer struct {
	name  string
	terms []metav1.LabelSelectorRequirement
}

// run enforces until the test ends.
func (e enforcer) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + e.name}
	registrations := clientset.AdmissionregistrationV1()
	for _, start := range []func(context.Context, metav1.ListOptions) (watch.Interface, error){
		registrations.MutatingWebhookConfigurations().Watch, registrations.ValidatingWebhookConfigurations().Watch,
	} {
		changes, err := start(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			defer changes.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case change, open := <-changes.ResultChan():
					if !open {
						if ctx.Err() == nil {
							t.Error("the enforcer's watch has ended")
						}
						return
					}
					if change.Type == watch.Added || change.Type == watch.Modified {
						e.enforce(ctx, t, change.Object)
					}
				}
			}
		})
	}
}

// enforce adds what is missing. If somebody wrote in between, there is another event.
func (e enforcer) enforce(ctx context.Context, t *testing.T, object runtime.Object) {
	var err error
	update := metav1.UpdateOptions{FieldManager: "enforcer"}
	switch config := object.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		missing := e.add(&config.ObjectMeta)
		for i := range config.Webhooks {
			missing = e.addTerms(config.Webhooks[i].NamespaceSelector) || missing
		}
		if missing {
			_, err = clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(ctx, config, update)
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		missing := e.add(&config.ObjectMeta)
		for i := range config.Webhooks {
			missing = e.addTerms(config.Webhooks[i].NamespaceSelector) || missing
		}
		if missing {
			_, err = clientset.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, config, update)
		}
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		t.Error(err)
	}
}

func (e enforcer) add(meta *metav1.ObjectMeta) bool {
	missing := meta.Labels[enforcerLabel] == ""
	metav1.SetMetaDataLabel(meta, enforcerLabel, "true")
	return missing
}

func (e enforcer) addTerms(selector *metav1.LabelSelector) (missing bool) {
	for _, term := range e.terms {
		if !hasTerm(selector, term) {
			selector.MatchExpressions = append(selector.MatchExpressions, term)
			missing = true
		}
	}
	return missing
}

func hasTerm(selector *metav1.LabelSelector, term metav1.LabelSelectorRequirement) bool {
	return slices.ContainsFunc(selector.MatchExpressions, func(have metav1.LabelSelectorRequirement) bool {
		return have.Key == term.Key && have.Operator == term.Operator && slices.Equal(have.Values, term.Values)
	})
}

// enforced reports whether both configurations have the label and the terms.
func (e enforcer) enforced(t *testing.T) bool {
	t.Helper()
	registrations := clientset.AdmissionregistrationV1()
	mutating, err := registrations.MutatingWebhookConfigurations().Get(t.Context(), e.name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	validating, err := registrations.ValidatingWebhookConfigurations().Get(t.Context(), e.name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	var selectors []*metav1.LabelSelector
	for i := range mutating.Webhooks {
		selectors = append(selectors, mutating.Webhooks[i].NamespaceSelector)
	}
	for i := range validating.Webhooks {
		selectors = append(selectors, validating.Webhooks[i].NamespaceSelector)
	}
	for _, selector := range selectors {
		for _, term := range e.terms {
			if !hasTerm(selector, term) {
				return false
			}
		}
	}
	return mutating.Labels[enforcerLabel] == "true" && validating.Labels[enforcerLabel] == "true"
}

// writes are those of webhook configurations by one manager, which reads the mutating one before the validating one.
type writes struct {
	mu                sync.Mutex
	mutating          []time.Time
	validating, looks int
}

// options returns options whose connection notes the writes.
func (w *writes) options(namespace string) manager.Options {
	return manager.Options{Namespaces: []string{namespace}, RESTConfig: watched(func(r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		switch validating := strings.Contains(r.URL.Path, "/validatingwebhookconfigurations"); {
		case validating && r.Method == http.MethodGet:
			w.looks++
		case validating:
			w.validating++
		case r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/mutatingwebhookconfigurations"):
			w.mutating = append(w.mutating, time.Now())
		}
	})}
}

// ofMutating returns when the mutating configuration was written.
func (w *writes) ofMutating() []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.mutating)
}

// counts returns how often a configuration was written, and how often both were read.
func (w *writes) counts() (written, looks int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.mutating) + w.validating, w.looks
}

// allowAll is a validating webhook.
func allowAll(name string) *extension.Handler {
	return extension.Validating(extension.ValidatorFunc[*corev1.Pod](func(context.Context, *corev1.Pod, *extension.Request) error { return nil }), extension.Scope{Name: name})
}

// damage changes the mutating configuration.
func damage(t *testing.T, name string, change func(*admissionregistrationv1.MutatingWebhookConfiguration)) {
	t.Helper()
	configs := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations()
	testkit.Succeeds(t, time.Minute, "the configuration is damaged", func(ctx context.Context) error {
		config, err := configs.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(config)
		_, err = configs.Update(ctx, config, metav1.UpdateOptions{FieldManager: "somebody"})
		return err
	})
}

func TestTermsOfAPlatformThatMayStayMakeNoWrites(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	var written writes
	options := written.options(namespace)
	options.Registration.TolerateSelectorTerms = []string{"control-plane=true", "kubernetes.azure.com/managedby=aks"}
	start(t, options, mark("a", extension.Scope{Name: "one"}), allowAll("two"))
	platform := enforcer{"admitkit." + namespace, []metav1.LabelSelectorRequirement{
		{Key: "control-plane", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"true"}},
		{Key: "kubernetes.azure.com/managedby", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"aks"}},
		// Nobody named this one. It excludes nothing of what the webhooks select.
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-system", "gke-managed-system"}},
	}}
	platform.run(t)
	testkit.Eventually(t, "the platform has changed both configurations", func(context.Context) bool { return platform.enforced(t) })
	eventuallyCalled(t, namespace, "marked")

	before, _ := written.counts()
	for i := range testkit.Long(60, 6) {
		_, looks := written.counts()
		damage(t, platform.name, func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, "test.admitkit.dev/touched", fmt.Sprint(i))
		})
		testkit.Eventually(t, "the manager looks at the configurations after a change", func(context.Context) bool {
			_, now := written.counts()
			return now > looks
		})
	}
	after, _ := written.counts()
	testkit.Figure("enforcer.writes", float64(after-before), "writes")
	if after != before {
		t.Errorf("%d writes, although all terms may stay", after-before)
	}
	if !platform.enforced(t) {
		t.Error("the terms or the label of the platform are gone")
	}
	repairedWithTheTerms(t, platform)
	if repaired, _ := written.counts(); repaired == before {
		t.Error("no repair was counted, so the count of writes above says nothing")
	}
}

// repairedWithTheTerms damages the configurations in each way in which somebody escapes
// admission, and expects a repair within ten seconds that leaves the platform's terms.
func repairedWithTheTerms(t *testing.T, platform enforcer) {
	t.Helper()
	whole := func() *admissionregistrationv1.MutatingWebhookConfiguration {
		config, err := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), platform.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	rules := len(whole().Webhooks[0].Rules[0].Operations)
	for name, way := range map[string]struct {
		damage func(*admissionregistrationv1.MutatingWebhook)
		whole  func(*admissionregistrationv1.MutatingWebhook) bool
	}{
		"a rule that covers nothing": {
			func(w *admissionregistrationv1.MutatingWebhook) { w.Rules[0].Resources = []string{"nodes"} },
			func(w *admissionregistrationv1.MutatingWebhook) bool {
				return w.Rules[0].Resources[0] == "pods" && len(w.Rules[0].Operations) == rules
			},
		},
		"a match condition": {
			func(w *admissionregistrationv1.MutatingWebhook) {
				w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "never", Expression: "false"}}
			},
			func(w *admissionregistrationv1.MutatingWebhook) bool { return len(w.MatchConditions) == 0 },
		},
		"an object selector": {
			func(w *admissionregistrationv1.MutatingWebhook) {
				w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"never": "there"}}
			},
			func(w *admissionregistrationv1.MutatingWebhook) bool { return len(w.ObjectSelector.MatchLabels) == 0 },
		},
		"another value of a tolerated key": {
			func(w *admissionregistrationv1.MutatingWebhook) {
				w.NamespaceSelector.MatchExpressions = append(w.NamespaceSelector.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: "control-plane", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"mine"}})
			},
			func(w *admissionregistrationv1.MutatingWebhook) bool {
				return !slices.ContainsFunc(w.NamespaceSelector.MatchExpressions, func(term metav1.LabelSelectorRequirement) bool { return slices.Contains(term.Values, "mine") })
			},
		},
		"the namespace of our own": {
			func(w *admissionregistrationv1.MutatingWebhook) {
				w.NamespaceSelector.MatchLabels, w.NamespaceSelector.MatchExpressions = map[string]string{corev1.LabelMetadataName: "elsewhere"}, nil
			},
			func(w *admissionregistrationv1.MutatingWebhook) bool {
				return w.NamespaceSelector.MatchLabels[corev1.LabelMetadataName] != "elsewhere"
			},
		},
	} {
		began := time.Now()
		damage(t, platform.name, func(c *admissionregistrationv1.MutatingWebhookConfiguration) { way.damage(&c.Webhooks[0]) })
		testkit.Eventually(t, name+" is repaired", func(context.Context) bool { return way.whole(&whole().Webhooks[0]) })
		if took := time.Since(began); took > testkit.Long(10*time.Second, time.Minute) {
			t.Errorf("%s: repaired after %s only", name, took)
		}
	}
	testkit.Eventually(t, "the platform's terms are there", func(context.Context) bool { return platform.enforced(t) })
}

func TestAPlatformWhoseTermsMayNotStayIsRepairedMoreAndMoreSeldom(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	var written writes
	r := start(t, written.options(namespace), mark("a", extension.Scope{Name: "one"}))
	eventuallyCalled(t, namespace, "marked")
	before := len(written.ofMutating())
	began := time.Now()
	enforcer{"admitkit." + namespace, []metav1.LabelSelectorRequirement{
		{Key: "control-plane", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"true"}},
	}}.run(t)
	testkit.Eventually(t, "the second repair", func(context.Context) bool { return len(written.ofMutating()) >= before+2 })
	// The war over selectors does not delay the repair of anything else.
	broken := time.Now()
	damage(t, "admitkit."+namespace, func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
		c.Webhooks[0].Rules[0].Resources = []string{"nodes"}
	})
	testkit.Eventually(t, "the rule is repaired", func(context.Context) bool {
		return liveConfiguration(t, namespace).Webhooks[0].Rules[0].Resources[0] == "pods"
	})
	if took := time.Since(broken); took > testkit.Long(10*time.Second, time.Minute) {
		t.Errorf("in a war over selectors a rule is repaired after %s only", took)
	}
	testkit.Eventually(t, "five repairs", func(context.Context) bool { return len(written.ofMutating()) >= before+5 })
	at := written.ofMutating()[before:]
	// Of five, one may be that of the rule: the other four are 1, 2 and 4 s apart.
	if took := at[4].Sub(at[0]); took < 6*time.Second {
		t.Errorf("five repairs within %s", took)
	}
	said := r.logs.FilterMessage("webhooks registered").FilterField(zapcore.Field{Key: "reason", Type: zapcore.StringType, String: "selectors"}).All()
	if most := 1 + int(time.Since(began)/time.Minute); len(said) == 0 || len(said) > most {
		t.Errorf("the log says %d times that selectors were repaired, want 1 to %d", len(said), most)
	} else if detail := fmt.Sprint(said[0].ContextMap()["detail"]); !strings.Contains(detail, "--tolerate-selector-terms=control-plane=true") {
		t.Errorf("the log does not say how to let the term stay: %q", detail)
	}
	testkit.Eventually(t, "there is an Event with the remedy", func(ctx context.Context) bool {
		events, err := clientset.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Registered"})
		if err != nil {
			return false
		}
		remedies := 0
		for i := range events.Items {
			if strings.Contains(events.Items[i].Message, "--tolerate-selector-terms=control-plane=true") {
				remedies++
			}
		}
		if most := 1 + int(time.Since(began)/time.Minute); remedies > most {
			t.Fatalf("%d Events of one cause in %s", remedies, time.Since(began))
		}
		return remedies > 0
	})
}
