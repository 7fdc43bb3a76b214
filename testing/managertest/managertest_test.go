package managertest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/testing/managertest"
)

// The tests of this package share one real API server.
var cluster *controlplane.ControlPlane

func TestMain(m *testing.M) {
	os.Exit(testkit.Main(m, controlplane.Options{}, func(c *controlplane.ControlPlane) error {
		cluster = c
		return nil
	}))
}

// byWhom annotates Pods with their creator.
func byWhom(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "by", req.User().Username)
	return nil
}

func addByWhom(mgr *manager.Manager) error {
	return mgr.AddExtension(extension.MutatingFunc(byWhom, extension.Scope{Name: "by-whom"}))
}

// stamps is a Reconciler that labels each ConfigMap.
type stamps struct {
	client client.Client
	rights []rbacv1.PolicyRule
	// later, if set, holds up what it does last: a call without the right.
	later chan struct{}
}

func (s *stamps) Register(mgr extension.Manager) error {
	kube := mgr.GetKubeManager()
	s.client = kube.GetClient()
	return builder.ControllerManagedBy(kube).For(&corev1.ConfigMap{}).Complete(s)
}

func (s *stamps) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var object corev1.ConfigMap
	if err := s.client.Get(ctx, req.NamespacedName, &object); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if object.Labels["stamped"] == "yes" {
		return reconcile.Result{}, nil
	}
	metav1.SetMetaDataLabel(&object.ObjectMeta, "stamped", "yes")
	if err := s.client.Update(ctx, &object); err != nil || s.later == nil {
		return reconcile.Result{}, err
	}
	<-s.later
	return reconcile.Result{}, s.client.Status().Update(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name}})
}

func (s *stamps) Rights() []rbacv1.PolicyRule { return s.rights }

// settings is a Mutator that reads a ConfigMap.
type settings struct {
	client client.Reader
	rights []rbacv1.PolicyRule
}

func (s *settings) Register(mgr extension.Manager) error {
	s.client = mgr.GetKubeManager().GetAPIReader()
	return nil
}

func (s *settings) Mutate(ctx context.Context, pod *corev1.Pod, _ *extension.Request) error {
	// It hides the error, as an author may.
	_ = s.client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: "settings"}, &corev1.ConfigMap{})
	return nil
}

func (s *settings) Rights() []rbacv1.PolicyRule { return s.rights }

func on(resource string, verbs ...string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}}
}

func podIn(namespace string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}}
}

func configMapIn(namespace string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "settings"}}
}

func stamped(ctx context.Context, t *testing.T, installed *managertest.Installation, object *corev1.ConfigMap) bool {
	t.Helper()
	if err := installed.Admin.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	return object.Labels["stamped"] == "yes"
}

// sidecars is a Mutator that adds a sidecar to Pods, with the image that a ConfigMap of their
// namespace names.
type sidecars struct{ client client.Reader }

func (s *sidecars) Reads() []client.Object { return []client.Object{&corev1.ConfigMap{}} }

func (s *sidecars) Register(mgr extension.Manager) error {
	s.client = mgr.GetKubeManager().GetClient()
	return nil
}

func (s *sidecars) Mutate(ctx context.Context, pod *corev1.Pod, _ *extension.Request) error {
	var config corev1.ConfigMap
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: "settings"}, &config); err != nil {
		return err
	}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "sidecar", Image: config.Data["image"]})
	return nil
}

func TestSeveralNamespacesAreWatched(t *testing.T) {
	t.Parallel()
	var watched []string
	var settings []client.Object
	for _, name := range []string{"one", "two"} {
		watched = append(watched, "several-"+name)
		object := configMapIn("several-" + name)
		object.Data = map[string]string{"image": "proxy-" + name}
		settings = append(settings, object)
	}
	settings = append(settings, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "several-not"}}, configMapIn("several-not"))
	seen := &namesSeen{}
	installed := managertest.Run(t, cluster, managertest.Options{Name: "several", Manager: manager.Options{Namespaces: watched}, Objects: settings}, func(mgr *manager.Manager) error {
		return errors.Join(
			mgr.AddExtension(extension.Mutating(&sidecars{}, extension.Scope{Name: "sidecar"})),
			mgr.AddExtension(&stamps{rights: on("configmaps", "list", "watch", "update")}),
			mgr.AddExtension(seen))
	})
	for i, namespace := range append(watched, "several-not") {
		pod := podIn(namespace)
		if err := installed.Admin.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		var images []string
		for _, c := range pod.Spec.Containers {
			images = append(images, c.Image)
		}
		if want := [][]string{{"web", "proxy-one"}, {"web", "proxy-two"}, {"web"}}[i]; !slices.Equal(images, want) {
			t.Errorf("a Pod in %s has the images %v, want %v", namespace, images, want)
		}
	}
	for _, namespace := range watched {
		testkit.Eventually(t, "what runs apart works in "+namespace, func(ctx context.Context) bool {
			return stamped(ctx, t, installed, configMapIn(namespace)) && seen.has(namespace)
		})
	}
	if stamped(t.Context(), t, installed, configMapIn("several-not")) || seen.has("several-not") {
		t.Error("what runs apart works in a namespace that is not watched")
	}
	var roles rbacv1.RoleList
	if err := installed.Admin.List(t.Context(), &roles); err != nil {
		t.Fatal(err)
	}
	places := map[string]bool{}
	for _, role := range roles.Items {
		if role.Name == "several-extensions" || role.Name == "several-reconciler-extensions" {
			places[role.Namespace+"/"+role.Name] = true
		}
	}
	if want := []string{"several-one/several-extensions", "several-one/several-reconciler-extensions", "several-two/several-extensions", "several-two/several-reconciler-extensions"}; !slices.Equal(slices.Sorted(maps.Keys(places)), want) {
		t.Errorf("the Roles are %v", places)
	}
	var wide rbacv1.ClusterRoleList
	if err := installed.Admin.List(t.Context(), &wide); err != nil {
		t.Fatal(err)
	}
	for _, role := range wide.Items {
		if strings.HasSuffix(role.Name, "-extensions") && strings.HasPrefix(role.Name, installed.WebhookNamespace) {
			t.Errorf("ClusterRole %s: %v", role.Name, role.Rules)
		}
	}
}

// namesSeen is a Watcher that keeps the namespaces of the Pods.
type namesSeen struct{ namespaces sync.Map }

func (s *namesSeen) Handle(_ context.Context, _ extension.Manager, event watch.Event) {
	s.namespaces.Store(event.Object.(*corev1.Pod).Namespace, true)
}

func (s *namesSeen) has(namespace string) bool {
	_, seen := s.namespaces.Load(namespace)
	return seen
}

func TestAPodIsAdmittedInTheNamespaceOfTheRunAndNowhereElse(t *testing.T) {
	t.Parallel()
	one := managertest.Run(t, cluster, managertest.Options{}, addByWhom)
	other := managertest.Run(t, cluster, managertest.Options{}, func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.ValidatingFunc(func(context.Context, *corev1.Pod, *extension.Request) error {
			return extension.Deny("not here")
		}, extension.Scope{}))
	})
	pod := podIn(one.Namespace)
	if err := one.As("alice", "system:masters").Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if pod.Annotations["by"] != "alice" {
		t.Errorf("the annotations are %v", pod.Annotations)
	}
	if err := one.Admin.Create(t.Context(), podIn(other.Namespace)); err == nil || !strings.Contains(err.Error(), "not here") {
		t.Errorf("the second run answers %v", err)
	}
	if err := one.AsServiceAccount(one.Namespace, "builder").Create(t.Context(), podIn(one.Namespace)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:"+one.Namespace+":builder") {
		t.Errorf("a ServiceAccount without rights gets %v", err)
	}
	if metrics := one.Metrics(); !strings.Contains(metrics, `admitkit_admission_requests_total{`) {
		t.Error("the metrics do not count requests")
	}
}

func TestEachProcessHasTheRightsOfItsServiceAccountAlone(t *testing.T) {
	t.Parallel()
	installed := managertest.Run(t, cluster, managertest.Options{Name: "stamps"}, func(mgr *manager.Manager) error {
		writers := extension.Scope{Rules: extension.Resources("", "v1", []string{"configmaps"}, admissionregistrationv1.Update)}
		if err := mgr.AddExtension(extension.MutatingFunc(func(_ context.Context, object *corev1.ConfigMap, req *extension.Request) error {
			metav1.SetMetaDataAnnotation(&object.ObjectMeta, "by", req.User().Username)
			return nil
		}, writers)); err != nil {
			return err
		}
		return mgr.AddExtension(&stamps{rights: on("configmaps", "list", "watch", "update")})
	})
	object := configMapIn(installed.Namespace)
	testkit.Create(t, installed.Admin, object)
	testkit.Eventually(t, "the ConfigMap is stamped", func(ctx context.Context) bool { return stamped(ctx, t, installed, object) })
	if want := "system:serviceaccount:" + installed.WebhookNamespace + ":stamps-reconciler"; object.Annotations["by"] != want {
		t.Errorf("it was stamped by %q, not by %q", object.Annotations["by"], want)
	}
	for account, may := range map[string]bool{"stamps": false, "stamps-registrar": false, "stamps-reconciler": true} {
		err := installed.AsServiceAccount(installed.WebhookNamespace, account).Update(t.Context(), object.DeepCopy(), client.DryRunAll)
		if may && err != nil || !may && !apierrors.IsForbidden(err) {
			t.Errorf("%s updates a ConfigMap: %v", account, err)
		}
	}
}

// widgets is a custom resource, without a Go type.
func widgets() *apiextensionsv1.CustomResourceDefinition {
	open := true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &open}},
			}},
		},
	}
}

func newWidget(namespace, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"namespace": namespace, "name": name},
	}}
}

// asUnstructured returns an object as a manifest has it.
func asUnstructured(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *unstructured.Unstructured {
	t.Helper()
	content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	return object
}

func TestWhatTheExtensionsNeedIsThereBeforeThem(t *testing.T) {
	t.Parallel()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "widgets-"}}
	options := managertest.Options{Objects: []client.Object{namespace, widgets(), newWidget("default", "early")}}
	installed := managertest.Run(t, cluster, options, func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.ValidatingFunc(func(_ context.Context, object *unstructured.Unstructured, _ *extension.Request) error {
			return extension.Denyf("no widget %s", object.GetName())
		}, extension.Scope{Rules: extension.Resources("example.com", "v1", []string{"widgets"}, admissionregistrationv1.Create)}))
	})
	if err := installed.Admin.Get(t.Context(), client.ObjectKeyFromObject(namespace), namespace); err != nil {
		t.Error(err)
	}
	if err := installed.Admin.Create(t.Context(), newWidget(installed.Namespace, "late")); err == nil || !strings.Contains(err.Error(), "no widget late") {
		t.Errorf("the answer is %v", err)
	}
}

func TestCRDsAreWrittenOnlyIfTheyAreNotAsTheyShouldBe(t *testing.T) {
	t.Parallel()
	const changed, deleted = "previewenvironments.preview.example.com", "alarms.alarm.example.com"
	options := managertest.Options{CRDPaths: []string{"../../examples/preview/crd", "../../examples/alarm/crd"}}
	var mu sync.Mutex
	written := map[string]bool{}
	installed := managertest.Run(t, cluster, options, func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.ValidatingFunc(func(_ context.Context, crd *metav1.PartialObjectMetadata, req *extension.Request) error {
			mu.Lock()
			defer mu.Unlock()
			written[string(req.Operation)+" "+crd.Name] = true
			return nil
		}, extension.Scope{Rules: extension.Resources("apiextensions.k8s.io", "v1", []string{"customresourcedefinitions"}, admissionregistrationv1.Create, admissionregistrationv1.Update)}))
	})
	admin := testkit.Client(t, cluster.Admin(), nil)
	var crd apiextensionsv1.CustomResourceDefinition
	testkit.Succeeds(t, time.Minute, "one is changed, and the webhook is called", func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKey{Name: changed}, &crd); err != nil {
			return err
		}
		crd.Spec.Names.ShortNames = []string{"of-somebody-else"}
		if err := admin.Update(ctx, &crd); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if !written["UPDATE "+changed] {
			return errors.New("it is not called")
		}
		clear(written)
		return nil
	})
	if err := admin.Delete(t.Context(), &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: deleted}}); err != nil {
		t.Fatal(err)
	}
	managertest.Run(t, cluster, options, addByWhom)
	installed.Stop()
	maps.DeleteFunc(written, func(name string, _ bool) bool { // other tests run in parallel
		return !strings.HasSuffix(name, " "+changed) && !strings.HasSuffix(name, " "+deleted)
	})
	if want := map[string]bool{"CREATE " + deleted: true, "UPDATE " + changed: true}; !maps.Equal(written, want) {
		t.Errorf("written are %v, want %v", written, want)
	}
}

// watching watches and reads Widgets, whose plural no extension says.
type watching struct{ seen chan string }

func (w *watching) Watch(_ context.Context, _ extension.Manager, _ watch.EventType, widget *unstructured.Unstructured) {
	w.seen <- widget.GetName()
}

func (w *watching) Reads() []client.Object { return []client.Object{newWidget("", "")} }

func TestTheRightsToAKindOfOnesOwnAreThose(t *testing.T) {
	t.Parallel()
	for name, crd := range map[string]client.Object{"typed": widgets(), "unstructured": asUnstructured(t, widgets())} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &watching{seen: make(chan string, 10)}
			installed := managertest.Run(t, cluster, managertest.Options{Objects: []client.Object{crd}}, func(mgr *manager.Manager) error {
				return mgr.AddExtension(extension.Watching(w, extension.WatchScope{Kind: newWidget("", "").GroupVersionKind()}))
			})
			if err := installed.Admin.Create(t.Context(), newWidget(installed.Namespace, "new")); err != nil {
				t.Fatal(err)
			}
			select {
			case seen := <-w.seen:
				if seen != "new" {
					t.Errorf("it saw %s", seen)
				}
			case <-time.After(time.Minute):
				t.Error("it saw nothing")
			}
		})
	}
}

// recorder is a test that may fail without failing this one.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	errors   []string
	failed   bool
	cleanups []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) FailNow() { runtime.Goexit() }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// said returns the errors of the test.
func (r *recorder) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.errors, "\n")
}

// tried runs a test to its end, and returns what it reports.
func tried(t *testing.T, test func(*recorder)) string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, cleanup := range slices.Backward(r.cleanups) {
				cleanup()
			}
		}()
		test(r)
	}()
	<-done
	return r.said()
}

func TestAReconcilerThatDoesNotAskForARightFailsTheTest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rights []rbacv1.PolicyRule
		later  chan struct{}
		want   string
	}{
		"nothing is asked for":                                         {nil, nil, `cannot watch resource "configmaps"`},
		"the right to write is missing":                                {on("configmaps", "list", "watch"), nil, `cannot update resource "configmaps"`},
		"a right is missing after the test has seen what it waits for": {on("configmaps", "list", "watch", "update"), make(chan struct{}), `cannot update resource "pods/status"`},
		"every right is asked for":                                     {on("configmaps", "list", "watch", "update"), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := tried(t, func(r *recorder) {
				installed := managertest.Run(r, cluster, managertest.Options{}, func(mgr *manager.Manager) error {
					return mgr.AddExtension(&stamps{rights: c.rights, later: c.later})
				})
				if c.later != nil {
					r.Cleanup(func() { close(c.later) })
				}
				object := configMapIn(installed.Namespace)
				testkit.Create(r, installed.Admin, object)
				testkit.Eventually(t, "the ConfigMap is stamped, or the test fails", func(ctx context.Context) bool {
					return r.Failed() || stamped(ctx, t, installed, object)
				})
			})
			if c.want == "" && said != "" || !strings.Contains(said, c.want) || c.want != "" && !strings.Contains(said, "ServiceAccount test-reconciler") {
				t.Errorf("the test reports %q, want %q", said, c.want)
			}
		})
	}
}

func TestAServerWhoseExtensionHidesARefusalFailsTheTest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rights []rbacv1.PolicyRule
		want   string
	}{
		"nothing is asked for":   {nil, `cannot get resource "configmaps"`},
		"the right is asked for": {on("configmaps", "get"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := tried(t, func(r *recorder) {
				installed := managertest.Run(r, cluster, managertest.Options{Name: "reader"}, func(mgr *manager.Manager) error {
					return mgr.AddExtension(extension.Mutating(&settings{rights: c.rights}, extension.Scope{}))
				})
				testkit.Create(r, installed.Admin, podIn(installed.Namespace))
			})
			if c.want == "" && said != "" || !strings.Contains(said, c.want) || c.want != "" && !strings.Contains(said, "ServiceAccount reader lacks") {
				t.Errorf("the test reports %q, want %q", said, c.want)
			}
		})
	}
}

func TestARefusalThatTheTestWantsIsPassedOn(t *testing.T) {
	t.Parallel()
	sentences := make(chan string, 1)
	installed := managertest.Run(t, cluster, managertest.Options{Forbidden: func(account, sentence string) {
		sentences <- account + ": " + sentence
	}}, func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.Mutating(&settings{}, extension.Scope{}))
	})
	testkit.Create(t, installed.Admin, podIn(installed.Namespace))
	if got := <-sentences; !strings.HasPrefix(got, "test: configmaps \"settings\" is forbidden") {
		t.Errorf("it says %q", got)
	}
}

func TestAfterTheEndNothingIsCalled(t *testing.T) {
	t.Parallel()
	installed := managertest.Run(t, cluster, managertest.Options{AllNamespaces: true}, func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.MutatingFunc(byWhom, extension.Scope{
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"only": "here"}}, // others run in parallel
		}))
	})
	pod := podIn(testkit.Namespace(t, installed.Admin))
	pod.Labels = map[string]string{"only": "here"}
	if err := installed.Admin.Create(t.Context(), pod, client.DryRunAll); err != nil || pod.Annotations["by"] != "admin" {
		t.Errorf("%v, the annotations are %v", err, pod.Annotations)
	}
	installed.Stop()
	var configurations admissionregistrationv1.MutatingWebhookConfigurationList
	if err := installed.Admin.List(t.Context(), &configurations); err != nil {
		t.Fatal(err)
	}
	for _, configuration := range configurations.Items {
		if strings.HasSuffix(configuration.Name, "."+installed.WebhookNamespace) {
			t.Errorf("%s is left", configuration.Name)
		}
	}
	var secrets corev1.SecretList
	if err := installed.Admin.List(t.Context(), &secrets, client.InNamespace(installed.WebhookNamespace)); err != nil || len(secrets.Items) > 0 {
		t.Errorf("%v, the Secrets are %v", err, secrets.Items)
	}
}

// leaves is a Remover that fails.
type leaves struct{ *stamps }

func (leaves) Remove(context.Context, extension.Manager) error { return fmt.Errorf("a widget is left") }

func TestWhatGoesWrongFailsTheTest(t *testing.T) {
	t.Parallel()
	rights := on("configmaps", "list", "watch", "update")
	for name, c := range map[string]struct {
		options managertest.Options
		build   func(*manager.Manager) error
		want    string
	}{
		"an option that Run sets": {
			managertest.Options{Manager: manager.Options{KubeConfig: "x"}}, addByWhom, "options: Manager.KubeConfig: must be empty: Run sets it",
		},
		"one namespace and all": {
			managertest.Options{AllNamespaces: true, Manager: manager.Options{Namespaces: []string{"apps"}}}, addByWhom, `AllNamespaces and Manager.Namespaces ["apps"]: set only one`,
		},
		"an option that is wrong": {
			managertest.Options{Manager: manager.Options{WatcherStartRV: "x"}}, addByWhom, "WatcherStartRV",
		},
		"no build":     {managertest.Options{}, nil, "build is nil: it adds the extensions"},
		"no extension": {managertest.Options{}, func(*manager.Manager) error { return nil }, "there is no extension"},
		"an extension that cannot be added": {
			managertest.Options{}, func(mgr *manager.Manager) error { return mgr.AddExtension("x") }, "adding an extension",
		},
		"an extension that does not start": {
			managertest.Options{}, func(mgr *manager.Manager) error { return mgr.AddExtension(stillborn{}) }, "test-reconciler has ended: manager: registering managertest_test.stillborn: no",
		},
		"a Reconciler of a kind that the API server does not have": {
			managertest.Options{},
			func(mgr *manager.Manager) error { return mgr.AddExtension(astray{}) },
			"the cache of Nothing is not filled: the API server does not have this kind in example.com/v1: install its CustomResourceDefinition",
		},
		"a Remover that leaves something": {
			managertest.Options{}, func(mgr *manager.Manager) error { return mgr.AddExtension(leaves{&stamps{rights: rights}}) }, "a widget is left",
		},
		"a path without CRDs": {managertest.Options{CRDPaths: []string{"nowhere"}}, addByWhom, "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := tried(t, func(r *recorder) { managertest.Run(r, cluster, c.options, c.build) })
			if !strings.Contains(said, c.want) || strings.Count(said, "managertest: ") != 1 {
				t.Errorf("the test reports %q, want %q once", said, c.want)
			}
		})
	}
}

// astray is a Reconciler of a kind that does not exist.
type astray struct{ reconcile.Reconciler }

func (a astray) Register(mgr extension.Manager) error {
	nothing := &unstructured.Unstructured{}
	nothing.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Nothing"})
	return builder.ControllerManagedBy(mgr.GetKubeManager()).For(nothing).Complete(a)
}

// stillborn is a Reconciler that does not register.
type stillborn struct{ reconcile.Reconciler }

func (stillborn) Register(extension.Manager) error { return fmt.Errorf("no") }
