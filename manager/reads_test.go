package manager_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// library is a Mutator that reads before it answers, and annotates the Pod with what read
// returns.
type library struct {
	reads []client.Object
	read  func(ctx context.Context, kube client.Client, namespace string) (string, error)
	kube  client.Client
}

func (l *library) Reads() []client.Object { return l.reads }

func (l *library) Register(mgr extension.Manager) error {
	l.kube = mgr.GetKubeManager().GetClient()
	return nil
}

func (l *library) Mutate(ctx context.Context, pod *corev1.Pod, req *extension.Request) error {
	text, err := l.read(ctx, l.kube, req.Namespace)
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "read", text)
	return nil
}

// team reads the label of a Namespace.
func team(ctx context.Context, kube client.Client, name string) (string, error) {
	var namespace corev1.Namespace
	err := kube.Get(ctx, client.ObjectKey{Name: name}, &namespace)
	return fmt.Sprintf("%s, %d managers", namespace.Labels["team"], len(namespace.ManagedFields)), err
}

// ofKind returns an empty object without a Go type.
func ofKind(group, version, kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
	return object
}

// everyForm reads one kind in each form, with and without a namespace.
func everyForm(ctx context.Context, kube client.Client, name string) (string, error) {
	text, err := team(ctx, kube, name)
	if err != nil {
		return "", err
	}
	settings := ofKind("", "v1", "ConfigMap")
	if err := kube.Get(ctx, client.ObjectKey{Namespace: name, Name: "settings"}, settings); err != nil {
		return "", err
	}
	tier, _, err := unstructured.NestedString(settings.Object, "data", "tier")
	if err != nil {
		return "", err
	}
	secrets := &metav1.PartialObjectMetadataList{}
	secrets.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "SecretList"})
	if err := kube.List(ctx, secrets, client.InNamespace(name), client.MatchingLabels{"of": "library"}); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, %s, %d Secrets", text, tier, len(secrets.Items)), nil
}

// userWith returns a connection as a user who has the rights of a manager that registers,
// and rules.
func userWith(t *testing.T, name string, rules ...rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"admitkit-setupcertificate", "admitkit-paths"}, Verbs: []string{"get", "watch", "update", "delete"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets", "configmaps", "events"}, Verbs: []string{"create"}})
	meta := metav1.ObjectMeta{Name: name}
	if _, err := clientset.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := clientset.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	user, err := cluster.AddUser(name)
	if err != nil {
		t.Fatal(err)
	}
	return user.Config
}

func mayRead(resources []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: resources, Verbs: verbs}
}

func TestAnAdmissionReadsWhatItDeclares(t *testing.T) {
	t.Parallel()
	home := newNamespace(t)
	if _, err := clientset.CoreV1().Namespaces().Patch(t.Context(), home, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"team":"shop"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := clientset.CoreV1().ConfigMaps(home).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"tier": "gold"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := clientset.CoreV1().Secrets(home).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key", Labels: map[string]string{"of": "library"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secrets := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}
	l := &library{read: everyForm, reads: []client.Object{&corev1.Namespace{}, ofKind("", "v1", "ConfigMap"), secrets}}
	config := userWith(t, "reads-every-form", mayRead([]string{"namespaces", "configmaps", "secrets"}, "list", "watch"))
	start(t, manager.Options{Namespaces: []string{home}, RESTConfig: config}, extension.Mutating(l, extension.Scope{Name: "library"}))
	eventuallyCalled(t, home, "read")
	pod, err := dryRunPod(t.Context(), home)
	if err != nil || pod.Annotations["read"] != "shop, 0 managers, gold, 1 Secrets" {
		t.Errorf("a Pod has the annotations %v: %v", pod.Annotations, err)
	}
}

func TestAReadThatCannotWorkEndsTheStart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		reads client.Object
		verbs []string
		want  string
	}{
		"without any right": {
			&corev1.Namespace{}, nil,
			`Reads of *manager_test.library: Namespace: namespaces is forbidden: User "reads-0" cannot list resource "namespaces" in API group "" at the cluster scope: grant get, list and watch, as the command manifests does`,
		},
		"without the right to watch": {&corev1.Namespace{}, []string{"list"}, `User "reads-1" cannot watch resource "namespaces"`},
		"of a kind that the API server does not have": {
			ofKind("example.com", "v1", "Gateway"), nil,
			`Reads of *manager_test.library: Gateway: the API server does not have this kind in example.com/v1: install its CustomResourceDefinition`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			user := "reads-" + fmt.Sprint(len(test.verbs))
			if test.reads.GetObjectKind().GroupVersionKind().Group != "" {
				user = "reads-gateways"
			}
			options := manager.Options{Namespaces: []string{newNamespace(t)}, RESTConfig: userWith(t, user, mayRead([]string{"namespaces"}, append(test.verbs, "get")...))}
			r := newManager(t, options, extension.Mutating(&library{reads: []client.Object{test.reads}, read: team}, extension.Scope{}))
			began := time.Now()
			err := r.Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || time.Since(began) > 30*time.Second {
				t.Errorf("after %s the start ends with %v, want %q", time.Since(began), err, test.want)
			}
		})
	}
}

func TestAnAdmissionThatReadsWhatItDoesNotDeclareFailsAtOnce(t *testing.T) {
	t.Parallel()
	home := newNamespace(t)
	l := &library{read: team}
	start(t, manager.Options{Namespaces: []string{home}, RESTConfig: userWith(t, "reads-undeclared")}, extension.Mutating(l, extension.Scope{Name: "library"}))
	var err error
	testkit.Eventually(t, "the API server calls the webhook", func(ctx context.Context) bool {
		_, err = dryRunPod(ctx, home)
		return err != nil
	})
	// If it waited for an informer, the API server's patience would end first.
	if want := "reading Namespace of v1 in an admission: no extension declares it: return it from Reads (extension.Reader)"; !strings.Contains(err.Error(), want) {
		t.Errorf("the answer is %v, want %q", err, want)
	}
}

// held is a transport that holds what matches back until released is closed.
type held struct {
	next     http.RoundTripper
	matches  func(*http.Request) bool
	asked    chan struct{}
	released chan struct{}
}

func (h *held) WrappedRoundTripper() http.RoundTripper { return h.next }

func (h *held) RoundTrip(r *http.Request) (*http.Response, error) {
	if h.matches(r) {
		select {
		case h.asked <- struct{}{}:
		default:
		}
		select {
		case <-h.released:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return h.next.RoundTrip(r)
}

func TestAManagerIsReadyWhenWhatItsExtensionsReadIsThere(t *testing.T) {
	t.Parallel()
	home := newNamespace(t)
	hold := &held{asked: make(chan struct{}, 1), released: make(chan struct{}), matches: func(r *http.Request) bool {
		// The informer, not the check of the rights, which reads metadata.
		return r.URL.Path == "/api/v1/namespaces" && !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata")
	}}
	config := cluster.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { hold.next = next; return hold })
	l := &library{read: team, reads: []client.Object{&corev1.Namespace{}}}
	r := newManager(t, manager.Options{Namespaces: []string{home}, RESTConfig: config, OperatorFingerprint: "reads-held"}, extension.Mutating(l, extension.Scope{Name: "library"}))
	r.run(t)
	<-hold.asked
	select {
	case <-r.Ready():
		t.Error("it is ready without the objects")
	case <-time.After(time.Second): // that nothing happens takes time to see
	}
	began := time.Now()
	if conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", r.address); err == nil {
		_ = conn.Close()
		t.Error("a handshake succeeds without the objects")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a handshake takes %s to fail", took)
	}
	for _, configuration := range configurationsOf(t) {
		if strings.HasPrefix(configuration, "reads-held.") {
			t.Errorf("%s is registered without the objects", configuration)
		}
	}
	close(hold.released)
	r.await(t)
}

// lazy is a Reconciler that reads a kind that nothing declares.
type lazy struct {
	kube client.Client
	read chan error
}

func (l *lazy) Register(mgr extension.Manager) error {
	l.kube = mgr.GetKubeManager().GetClient()
	return ctrl.NewControllerManagedBy(mgr.GetKubeManager()).Named("lazy").For(&corev1.Pod{}).Complete(l)
}

func (l *lazy) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	_, err := team(ctx, l.kube, req.Namespace)
	l.read <- err
	return ctrl.Result{}, nil
}

func TestAReconcilerReadsAsWithControllerRuntime(t *testing.T) {
	t.Parallel()
	home := newNamespace(t)
	createPod(t, home, newPod("web"))
	l := &lazy{read: make(chan error, 10)}
	start(t, manager.Options{Namespaces: []string{home}}, l)
	if err := <-l.read; err != nil {
		t.Error(err)
	}
}

func TestAnExtensionReturnsObjectsThatCanBeRead(t *testing.T) {
	t.Parallel()
	for want, object := range map[string]client.Object{
		"Reads of *manager_test.library: an object is nil":                        nil,
		"a *v1.PartialObjectMetadata has no kind: name it by SetGroupVersionKind": &metav1.PartialObjectMetadata{},
		"a *unstructured.Unstructured has no kind":                                &unstructured.Unstructured{},
		"no kind is registered for the type manager_test.foreign in scheme":       &foreign{},
	} {
		mgr, err := manager.New(manager.Options{Namespaces: []string{"apps"}, OperatorFingerprint: "x", Host: "127.0.0.1", RESTConfig: cluster.Config()})
		if err != nil {
			t.Fatal(err)
		}
		err = mgr.AddExtension(extension.Mutating(&library{reads: []client.Object{object}}, extension.Scope{}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("AddExtension returns %v, want %q", err, want)
		}
	}
}

// foreign is a type that no scheme has.
type foreign struct{ corev1.Pod }
