package manager_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/certs"
	v1 "github.com/admitkit/admitkit/examples/alarm/v1"
	v2 "github.com/admitkit/admitkit/examples/alarm/v2"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// alarms are the Alarms of one test, which have a group of their own.
type alarms struct {
	t      *testing.T
	group  string
	client dynamic.Interface
}

func newAlarms(t *testing.T) *alarms {
	t.Helper()
	client, err := dynamic.NewForConfigAndClient(cluster.Config(), clientset.RESTClient().(*rest.RESTClient).Client)
	if err != nil {
		t.Fatal(err)
	}
	return &alarms{t: t, group: "t" + strings.ToLower(strconv.FormatInt(time.Now().UnixNano(), 36)) + ".alarm.example.com", client: client}
}

func (a *alarms) crd() string { return "alarms." + a.group }

func (a *alarms) of(version string) dynamic.NamespaceableResourceInterface {
	return a.client.Resource(schema.GroupVersionResource{Group: a.group, Version: version, Resource: "alarms"})
}

// install creates the CustomResourceDefinition, and removes it with the test.
func (a *alarms) install() {
	a.t.Helper()
	text, err := os.ReadFile("../examples/alarm/crd/alarm.example.com_alarms.yaml")
	if err != nil {
		a.t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(bytes.ReplaceAll(text, []byte("alarm.example.com"), []byte(a.group)), &object.Object); err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.client.Resource(crds).Create(a.t.Context(), object, metav1.CreateOptions{}); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		_ = a.client.Resource(crds).Delete(context.WithoutCancel(a.t.Context()), a.crd(), metav1.DeleteOptions{})
	})
	testkit.Succeeds(a.t, time.Minute, "the kind is served", func(ctx context.Context) error {
		_, err := a.of("v2").Namespace("default").List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

func (a *alarms) converter() *extension.Converter {
	return extension.Converting(a.crd(), "v2", extension.Between("v1",
		func(from *v1.Alarm, to *v2.Alarm) error {
			if from.Spec.Text == "panic" {
				panic("the text says so")
			}
			to.Spec.Message = from.Spec.Text
			if from.Spec.Time == "" {
				return nil // it is not whole
			}
			_, err := fmt.Sscanf(from.Spec.Time, "%d:%d", &to.Spec.Hour, &to.Spec.Minute)
			return err
		},
		func(from *v2.Alarm, to *v1.Alarm) error {
			if from.Spec.Message == "unspeakable" {
				return errors.New("v1 cannot say this")
			}
			to.Spec = v1.AlarmSpec{Time: fmt.Sprintf("%02d:%02d", from.Spec.Hour, from.Spec.Minute), Text: from.Spec.Message}
			return nil
		}))
}

// object returns the object of a number in a version.
func (a *alarms) object(version string, n int) *unstructured.Unstructured {
	hour, minute := n/60%24, n%60
	spec := map[string]any{"hour": int64(hour), "minute": int64(minute), "message": fmt.Sprintf("alarm %d", n)}
	if version == "v1" {
		spec = map[string]any{"time": fmt.Sprintf("%02d:%02d", hour, minute), "text": fmt.Sprintf("alarm %d", n)}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": a.group + "/" + version, "kind": "Alarm", "metadata": map[string]any{"name": fmt.Sprintf("alarm-%d", n)}, "spec": spec,
	}}
}

// stanza returns spec.conversion.
func (a *alarms) stanza(ctx context.Context) (map[string]any, error) {
	live, err := a.client.Resource(crds).Get(ctx, a.crd(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	stanza, _, err := unstructured.NestedMap(live.Object, "spec", "conversion")
	return stanza, err
}

func (a *alarms) patch(patch string) {
	a.t.Helper()
	if _, err := a.client.Resource(crds).Patch(a.t.Context(), a.crd(), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		a.t.Fatal(err)
	}
}

// isConverted waits until the API server converts.
func (a *alarms) isConverted() {
	a.t.Helper()
	testkit.Succeeds(a.t, time.Minute, "the API server asks the converter", func(ctx context.Context) error {
		_, err := a.of("v1").Namespace("default").Create(ctx, a.object("v1", 1), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		stanza, err := a.stanza(ctx)
		if err == nil && stanza["strategy"] != "Webhook" {
			err = fmt.Errorf("the stanza is %v", stanza)
		}
		return err
	})
}

// inParallel calls do for each number below n from several goroutines.
func inParallel(n int, do func(int)) {
	var group sync.WaitGroup
	var next atomic.Int64
	for range 8 {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	group.Wait()
}

// reviews returns how many reviews of the kind had a result.
func (a *alarms) reviews(result string) float64 {
	a.t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		a.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "admitkit_conversion_reviews_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if labels := metric.GetLabel(); labels[0].GetValue() == a.crd() && labels[1].GetValue() == result {
				return metric.GetCounter().GetValue()
			}
		}
	}
	a.t.Fatalf("there is no counter of the result %s", result)
	return 0
}

func TestObjectsAreWrittenAndReadInBothVersionsWhileTheCAIsRotated(t *testing.T) {
	t.Parallel()
	a, namespace := newAlarms(t), newNamespace(t)
	a.install()
	start(t, manager.Options{Namespaces: []string{namespace}, Certificates: manager.CertificateOptions{
		CALifetime: time.Hour, LeafLifetime: 6 * time.Second, PropagationDelay: time.Second,
	}}, a.converter())
	a.isConverted()
	objects := testkit.Long(10_000, 100)
	var failed, calls atomic.Int64
	attempt := func(what string, err error) {
		calls.Add(1)
		if err != nil && failed.Add(1) <= 10 {
			t.Errorf("%s: %v", what, err)
		}
	}
	inParallel(objects, func(n int) {
		version := []string{"v1", "v2"}[n%2]
		_, err := a.of(version).Namespace(namespace).Create(t.Context(), a.object(version, n), metav1.CreateOptions{})
		attempt("creating in "+version, err)
	})
	read := func(n int) {
		for _, version := range []string{"v1", "v2"} {
			want := a.object(version, n)
			got, err := a.of(version).Namespace(namespace).Get(t.Context(), want.GetName(), metav1.GetOptions{})
			if err == nil && fmt.Sprint(got.Object["spec"]) != fmt.Sprint(want.Object["spec"]) {
				err = fmt.Errorf("the spec is %v, want %v", got.Object["spec"], want.Object["spec"])
			}
			attempt("reading in "+version, err)
		}
	}
	inParallel(objects/2, read)

	secrets := clientset.CoreV1().Secrets(namespace)
	before, err := secrets.Patch(t.Context(), "admitkit-setupcertificate", types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"now"}}}`, certs.RotateAnnotation), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rotated := make(chan struct{})
	var reading sync.WaitGroup
	for worker := range 4 {
		reading.Go(func() {
			for n := worker; ; n += 4 {
				read(n % objects)
				select {
				case <-rotated:
					return
				case <-time.After(testkit.Long(0, 50*time.Millisecond)):
				}
			}
		})
	}
	err = testkit.Poll(t.Context(), 3*time.Minute, "the next CA signs and the previous one is dropped", func(ctx context.Context) error {
		secret, err := secrets.Get(ctx, before.Name, metav1.GetOptions{})
		if err == nil && (bytes.Equal(secret.Data[certs.CertKey], before.Data[certs.CertKey]) || len(secret.Data[certs.PreviousCertKey])+len(secret.Data[certs.NextCertKey]) > 0) {
			err = errors.New("the rotation is under way")
		}
		return err
	})
	close(rotated)
	reading.Wait()
	if err != nil {
		t.Fatal(err)
	}
	inParallel(objects, read)
	converted := a.reviews("converted")
	testkit.Figure("convert.objects", float64(objects), "objects")
	testkit.Figure("convert.calls", converted, "conversion reviews")
	testkit.Figure("convert.failed", float64(failed.Load()), "requests")
	if converted < float64(objects) || a.reviews("error")+a.reviews("refused")+a.reviews("panic")+a.reviews("timeout") > 0 {
		t.Errorf("%g reviews were converted, for %d requests; failed were %g, refused %g, timeout %g", converted, calls.Load(), a.reviews("error"), a.reviews("refused"), a.reviews("timeout"))
	}
}

func TestAConversionThatFailsIsToldToItsUser(t *testing.T) {
	t.Parallel()
	a := newAlarms(t)
	a.install()
	r := start(t, manager.Options{Namespaces: []string{newNamespace(t)}}, a.converter())
	a.isConverted()
	object := a.object("v2", 1)
	object.SetName("secret")
	object.Object["spec"].(map[string]any)["message"] = "unspeakable"
	if _, err := a.of("v2").Namespace("default").Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.of("v1").Namespace("default").Get(t.Context(), "secret", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), a.crd()+" default/secret: v1 cannot say this") {
		t.Errorf("reading it in v1: %v", err)
	}
	object = a.object("v1", 2)
	object.Object["spec"].(map[string]any)["text"] = "panic"
	if _, err := a.of("v1").Namespace("default").Create(t.Context(), object, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "panic: the text says so") {
		t.Errorf("creating it in v1: %v", err)
	}
	if a.reviews("error") == 0 || a.reviews("panic") == 0 || r.logs.FilterMessage("converter panicked").Len() == 0 {
		t.Error("the failures are not counted and logged")
	}
	a.isConverted() // still
}

// As Flux and Argo CD do when a repository goes from v1 to v2: the API server converts the object without what the manager
// has given up.
func TestAManagerAppliesAnObjectInOneVersionAfterAnother(t *testing.T) {
	t.Parallel()
	a := newAlarms(t)
	a.install()
	start(t, manager.Options{Namespaces: []string{newNamespace(t)}}, a.converter())
	a.isConverted()
	for _, version := range []string{"v1", "v2", "v1"} {
		if _, err := a.of(version).Namespace("default").Apply(t.Context(), "alarm-1", a.object(version, 1), metav1.ApplyOptions{FieldManager: "flux"}); err != nil {
			t.Errorf("applying %s: %v", version, err)
		}
	}
}

func TestAConversionWaitsForItsDefinitionAndIsRepaired(t *testing.T) {
	t.Parallel()
	a, namespace, health := newAlarms(t), newNamespace(t), fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	r := newManager(t, manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{HealthAddress: health}}, a.converter(), mark("a", extension.Scope{}))
	r.run(t)
	testkit.Eventually(t, "it is not ready, and says why", func(context.Context) bool {
		status, text := body(t, "http://"+health+"/readyz")
		return status == http.StatusInternalServerError && strings.Contains(text, "[-]conversion failed: CustomResourceDefinition "+a.crd()+" does not exist")
	})
	select {
	case <-r.Ready():
		t.Error("it is ready before its conversion is registered")
	default:
	}
	eventuallyCalled(t, namespace, "marked") // the webhooks do not wait for it
	a.install()
	r.await(t)
	a.isConverted()
	testkit.Eventually(t, "it is ready", func(context.Context) bool {
		status, _ := body(t, "http://"+health+"/readyz")
		return status == http.StatusOK
	})
	for what, patch := range map[string]string{
		"the strategy None": `{"spec":{"conversion":{"strategy":"None","webhook":null}}}`,
		"another caBundle":  `{"spec":{"conversion":{"webhook":{"clientConfig":{"caBundle":null}}}}}`,
		"another address":   `{"spec":{"conversion":{"webhook":{"clientConfig":{"url":"https://192.0.2.1/convert"}}}}}`,
	} {
		before, err := a.stanza(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a.patch(patch)
		testkit.Eventually(t, what+" is repaired", func(ctx context.Context) bool {
			after, err := a.stanza(ctx)
			return err == nil && fmt.Sprint(after) == fmt.Sprint(before)
		})
	}
	// Who does it again and again has to wait, and is named.
	testkit.Within(t, time.Minute, "the log names who changes the stanza again and again", func(context.Context) bool {
		a.patch(`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`)
		return strings.Contains(fmt.Sprint(r.logs.All()), "times; the next repair is in")
	})
}

// alarmClock is a Reconciler of Alarms in v1.
type alarmClock struct {
	group string
	seen  chan string
}

func (c *alarmClock) Register(mgr extension.Manager) error {
	kube := mgr.GetKubeManager()
	return ctrl.NewControllerManagedBy(kube).For(ofKind(c.group, "v1", "Alarm")).Complete(c)
}

func (c *alarmClock) Reconcile(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
	c.seen <- req.Name
	return ctrl.Result{}, nil
}

func TestAConverterIsReadyBeforeTheCacheThatNeedsIt(t *testing.T) {
	t.Parallel()
	a, namespace, health := newAlarms(t), newNamespace(t), fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	a.install()
	if _, err := a.of("v2").Namespace(namespace).Create(t.Context(), a.object("v2", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The API server cannot list them while the Service leads nowhere.
	hold := &held{asked: make(chan struct{}, 1), released: make(chan struct{}), matches: func(r *http.Request) bool {
		return strings.HasPrefix(r.URL.Path, "/apis/"+a.group+"/v1/") && strings.HasSuffix(r.URL.Path, "/alarms")
	}}
	config := cluster.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { hold.next = next; return hold })
	clock := &alarmClock{a.group, make(chan string, 1)}
	newManager(t, manager.Options{Namespaces: []string{namespace}, RESTConfig: config, Serving: manager.ServingOptions{HealthAddress: health}}, a.converter(), clock).run(t)
	<-hold.asked
	if stanza, err := a.stanza(t.Context()); err != nil || stanza["strategy"] != "Webhook" {
		t.Errorf("it lists objects that nobody converts: %v, %v", stanza, err)
	}
	testkit.Eventually(t, "it is ready", func(context.Context) bool {
		status, _ := body(t, "http://"+health+"/readyz")
		return status == http.StatusOK
	})
	close(hold.released)
	if name := <-clock.seen; name != "alarm-1" {
		t.Errorf("it reconciled %q", name)
	}
}

// texts denies Pods unless it reads an alarm in the version that is not stored.
type texts struct {
	mgr  extension.Manager
	kind schema.GroupVersionKind
}

func (g *texts) Register(mgr extension.Manager) error {
	g.mgr = mgr
	return nil
}

func (g *texts) list() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(g.kind)
	return object
}

func (g *texts) Reads() []client.Object { return []client.Object{g.list()} }

func (g *texts) Validate(ctx context.Context, _ *corev1.Pod, req *extension.Request) error {
	alarm := g.list()
	if err := g.mgr.GetKubeManager().GetClient().Get(ctx, client.ObjectKey{Namespace: req.Namespace, Name: "alarm-1"}, alarm); err != nil {
		return err
	}
	text, _, _ := unstructured.NestedString(alarm.Object, "spec", "text")
	return extension.Denyf("the text is %q", text)
}

// All replicas are gone at once, and nobody else converts.
func TestAProgramThatReadsTheKindThatItConvertsStartsAgain(t *testing.T) {
	t.Parallel()
	a, namespace := newAlarms(t), newNamespace(t)
	a.install()
	if _, err := a.of("v2").Namespace(namespace).Create(t.Context(), a.object("v2", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	options := manager.Options{Namespaces: []string{namespace}, Port: freeport.For(t)}
	for _, begin := range []string{"first", "second"} {
		guard := &texts{kind: schema.GroupVersionKind{Group: a.group, Version: "v1", Kind: "Alarm"}}
		r := newManager(t, options, a.converter(), extension.Validating(guard, extension.Scope{Name: "texts"}))
		r.run(t)
		testkit.Succeeds(t, time.Minute, "it reads the alarm in v1 at the "+begin+" start", func(ctx context.Context) error {
			select {
			case err := <-r.done:
				r.done <- err
				return fmt.Errorf("it has stopped: %w", err)
			default:
			}
			_, err := dryRunPod(ctx, namespace)
			if err == nil || !strings.Contains(err.Error(), `the text is "alarm 1"`) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		// The API server forgets what was converted.
		patch := []byte(`{"spec":{"names":{"shortNames":["` + begin + `"]}}}`)
		if _, err := a.client.Resource(crds).Patch(t.Context(), a.crd(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		testkit.Succeeds(t, time.Minute, "nobody converts", func(ctx context.Context) error {
			_, err := a.of("v1").Namespace(namespace).Get(ctx, "alarm-1", metav1.GetOptions{})
			if err == nil {
				return errors.New("somebody does")
			}
			return nil
		})
	}
}

// Otherwise it sees objects without the fields of the stored version, and removes them by an update.
func TestAReconcilerWaitsUntilItsKindIsConverted(t *testing.T) {
	t.Parallel()
	a, namespace := newAlarms(t), newNamespace(t)
	a.install()
	if _, err := a.of("v2").Namespace(namespace).Create(t.Context(), a.object("v2", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	clock := &alarmClock{a.group, make(chan string, 1)}
	ready := func(health string) (bool, string) {
		status, text := body(t, "http://"+health+"/readyz")
		return status == http.StatusOK, text
	}
	var replicas []string // one leads, and another one stands by
	for range 2 {
		health := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
		replicas = append(replicas, health)
		options := manager.Options{Namespaces: []string{namespace}, Serving: manager.ServingOptions{HealthAddress: health}, Watching: manager.WatchingOptions{LeaderElection: true}}
		replica, ctx := newManager(t, options, a.converter(), clock), t.Context()
		ended := make(chan error, 1)
		go func() { ended <- replica.Reconcile(ctx) }()
		t.Cleanup(func() { t.Log(<-ended) })
	}
	for _, health := range replicas {
		testkit.Eventually(t, "it is not ready, and says why", func(context.Context) bool {
			ok, text := ready(health)
			return !ok && strings.Contains(text, "[-]conversion failed: CustomResourceDefinition "+a.crd()+": its conversion is not registered yet")
		})
	}
	select {
	case name := <-clock.seen:
		t.Errorf("it reconciled %q, which nobody converts", name)
	default:
	}
	start(t, manager.Options{Namespaces: []string{namespace}}, a.converter())
	if name := <-clock.seen; name != "alarm-1" {
		t.Errorf("it reconciled %q", name)
	}
	for _, health := range replicas {
		testkit.Eventually(t, "it is ready", func(context.Context) bool {
			ok, _ := ready(health)
			return ok
		})
	}
}

func TestAConversionOfAnotherInstallationIsLeftAlone(t *testing.T) {
	t.Parallel()
	a := newAlarms(t)
	a.install()
	first := start(t, manager.Options{Namespaces: []string{newNamespace(t)}}, a.converter())
	second := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}}, a.converter())
	if err := second.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "another installation's") || !strings.Contains(err.Error(), a.crd()) {
		t.Errorf("the second ends with %v", err)
	}
	// An uninstallation gives it up. The stanza stays: there are two versions.
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if err := first.UnregisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stanza, err := a.stanza(t.Context()); err != nil || stanza["strategy"] != "Webhook" {
		t.Errorf("the stanza is now %v, %v", stanza, err)
	}
	if first.logs.FilterMessageSnippet("spec.conversion stays in the CustomResourceDefinition").Len() != 1 {
		t.Error("the log does not say that the stanza stays")
	}
	third := start(t, manager.Options{Namespaces: []string{newNamespace(t)}}, a.converter())
	a.isConverted()
	if third.logs.FilterMessage("webhooks registered").Len() == 0 {
		t.Error("the log does not say that the stanza is registered")
	}
}

func TestARegistrarWritesTheStanzaForServersThatMayNot(t *testing.T) {
	t.Parallel()
	a, namespace := newAlarms(t), newNamespace(t)
	no, port := false, freeport.For(t)
	options := manager.Options{Namespaces: []string{namespace}, Port: port, Certificates: manager.CertificateOptions{LeafSecretName: "leaf"}}
	registrar := newManager(t, options, a.converter())
	if err := registrar.RegisterExtensions(t.Context()); err == nil || !strings.Contains(err.Error(), "CustomResourceDefinition "+a.crd()+" does not exist") {
		t.Errorf("registering for a definition that does not exist: %v", err)
	}
	a.install()
	if err := registrar.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	options.RegisterWebHook = &no
	start(t, options, a.converter())
	a.isConverted()
	if stanza, err := a.stanza(t.Context()); err != nil || !strings.Contains(fmt.Sprint(stanza), "/convert/"+a.crd()) {
		t.Errorf("the stanza is %v, %v", stanza, err)
	}
	if secret, err := clientset.CoreV1().Secrets(namespace).Get(t.Context(), "leaf", metav1.GetOptions{}); err != nil || secret.Type != corev1.SecretTypeTLS {
		t.Errorf("the servers' Secret: %v", err)
	}
}

func TestACheckOfAProgramThatOnlyConvertsComparesItsStanzas(t *testing.T) {
	t.Parallel()
	a, namespace := newAlarms(t), newNamespace(t)
	options := manager.Options{Namespaces: []string{namespace}, Port: freeport.For(t)}
	check := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return newManager(t, options, a.converter()).CheckRegistered(ctx)
	}
	fails := func(want string) {
		t.Helper()
		var err error
		for limit := time.Second; limit <= time.Minute; limit *= 4 { // on a machine that is busy, a short check finds out nothing
			if err = check(limit); err == nil || strings.Contains(err.Error(), want) {
				break
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	fails("CustomResourceDefinition " + a.crd() + " does not exist: apply it")
	a.install()
	fails("spec.conversion of CustomResourceDefinition " + a.crd() + " is not as it should be: conversion")
	if err := newManager(t, options, a.converter()).RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := check(time.Minute); err != nil {
		t.Errorf("it fails: %v", err)
	}
	a.patch(`{"spec":{"conversion":{"webhook":{"clientConfig":{"url":"https://192.0.2.1/convert"}}}}}`)
	fails("is not as it should be: target")
	a.patch(`{"spec":{"conversion":{"webhook":{"clientConfig":{"caBundle":null}}}}}`)
	fails("is not as it should be: target")
	a.patch(`{"metadata":{"annotations":{"admitkit.dev/converter":"somebody/else"}}}`)
	if err := check(time.Minute); err == nil || !strings.Contains(err.Error(), "another installation's") {
		t.Errorf("got %v", err)
	}
}

func TestTwoConvertersOfOneKindAreRefused(t *testing.T) {
	t.Parallel()
	mgr := newManager(t, manager.Options{Namespaces: []string{"apps"}}, newAlarms(t).converter())
	a := &alarms{group: "x.example.com"}
	if err := mgr.AddExtension(a.converter()); err != nil {
		t.Fatal(err)
	}
	if err := mgr.AddExtension(a.converter()); err == nil || !strings.Contains(err.Error(), "two Converters") {
		t.Errorf("got %v", err)
	}
}

// A conversion that another installation has taken is not for this one to keep at its paths.
func TestAConversionThatAnotherInstallationTakesStopsNoPaths(t *testing.T) {
	t.Parallel()
	namespace, a := newNamespace(t), newAlarms(t)
	a.install()
	start(t, manager.Options{Namespaces: []string{namespace}, Certificates: quickPaths}, mark("a", extension.Scope{}), a.converter())
	a.isConverted()
	first := registeredPath(t, namespace)
	a.patch(`{"metadata":{"annotations":{"admitkit.dev/converter":"another"}},"spec":{"conversion":{"webhook":{"clientConfig":{"url":"https://elsewhere.example.com/convert"}}}}}`)
	for range 2 { // the second time begins once the first was published
		overdue(t, namespace)
		testkit.Eventually(t, "another path is registered", func(context.Context) bool { return registeredPath(t, namespace) != first })
		first = registeredPath(t, namespace)
	}
	eventuallyCalled(t, namespace, "marked")
	a.patch(`{"metadata":{"annotations":{"admitkit.dev/converter":null}}}`) // which an uninstallation waits for
	a.isConverted()
}
