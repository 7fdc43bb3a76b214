package manager_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
)

// registeredOnce has a server, and what a registrar registered that repairs nothing.
type registeredOnce struct {
	*testing.T
	options    manager.Options
	extensions []any
	server     *running
}

func registerOnce(t *testing.T, namespace string) *registeredOnce {
	t.Helper()
	validator := extension.ValidatingFunc(func(context.Context, *corev1.Pod, *extension.Request) error { return nil }, extension.Scope{Name: "b"})
	r := &registeredOnce{T: t, extensions: []any{markExtension{"a"}, validator}}
	serves := false
	r.server = newManager(t, manager.Options{Namespaces: []string{namespace}, RegisterWebHook: &serves}, r.extensions...)
	r.options = manager.Options{Namespaces: []string{namespace}, Port: r.server.GetManagerOptions().Port}
	r.register()
	r.server.run(t)
	r.server.await(t)
	r.holds()
	return r
}

func (r *registeredOnce) register() {
	r.Helper()
	if err := newManager(r.T, r.options, r.extensions...).RegisterExtensions(r.Context()); err != nil {
		r.Fatal(err)
	}
}

func (r *registeredOnce) check(limit time.Duration, extensions ...any) error {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	options := r.options
	if as := r.options.RESTConfig; as != nil {
		options.RESTConfig = rest.CopyConfig(as)
	}
	return newManager(r.T, options, extensions...).CheckRegistered(ctx)
}

func (r *registeredOnce) holds() {
	r.Helper()
	if err := r.check(time.Minute, r.extensions...); err != nil {
		r.Errorf("it fails: %v", err)
	}
}

// fails wants an error. On a machine that is busy, a short check may find out nothing.
func (r *registeredOnce) fails(want string, extensions ...any) {
	r.Helper()
	var err error
	for limit := time.Second; limit <= time.Minute; limit *= 4 {
		if err = r.check(limit, extensions...); err == nil || strings.Contains(err.Error(), want) {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), want) {
		r.Errorf("got %v, want %s", err, want)
	}
}

func TestACheckSaysWhatIsWrongAndThatTheWebhooksDoNotAnswer(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	r := registerOnce(t, namespace)
	client, name := clientset.AdmissionregistrationV1(), "admitkit."+namespace
	before, err := client.ValidatingWebhookConfigurations().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change := func(change func(*admissionregistrationv1.ValidatingWebhook)) {
		t.Helper()
		live, err := client.ValidatingWebhookConfigurations().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(&live.Webhooks[0])
		if _, err := client.ValidatingWebhookConfigurations().Update(t.Context(), live, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	change(func(w *admissionregistrationv1.ValidatingWebhook) {
		w.MatchConditions = append(w.MatchConditions, admissionregistrationv1.MatchCondition{Name: "never", Expression: "false"})
	})
	r.fails("ValidatingWebhookConfiguration "+name+" is not as it should be: matchConditions", r.extensions...)
	change(func(w *admissionregistrationv1.ValidatingWebhook) {
		w.MatchConditions = before.Webhooks[0].MatchConditions
	})
	r.holds()

	ignore := admissionregistrationv1.Ignore
	change(func(w *admissionregistrationv1.ValidatingWebhook) { w.FailurePolicy = &ignore })
	r.fails("is not as it should be: failurePolicy", r.extensions...)
	change(func(w *admissionregistrationv1.ValidatingWebhook) { w.FailurePolicy = before.Webhooks[0].FailurePolicy })

	change(func(w *admissionregistrationv1.ValidatingWebhook) { w.ClientConfig.CABundle = nil })
	r.fails("do not all trust the same CA", r.extensions...)
	change(func(w *admissionregistrationv1.ValidatingWebhook) {
		w.ClientConfig.CABundle = before.Webhooks[0].ClientConfig.CABundle
	})
	r.holds()

	if _, err := client.ValidatingWebhookConfigurations().Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"admitkit.dev/owner":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	r.fails("is not as it should be: annotations: admitkit.dev/owner is missing", r.extensions...)
	r.register()
	r.holds()

	r.fails("MutatingWebhookConfiguration "+name+" was registered by another version of this program, or with other flags", markExtension{"a"}, markExtension{"c"}, r.extensions[1])

	if err := client.ValidatingWebhookConfigurations().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.fails("ValidatingWebhookConfiguration "+name+" is missing", r.extensions...)
	if _, err := client.ValidatingWebhookConfigurations().Get(t.Context(), name, metav1.GetOptions{}); err == nil {
		t.Error("a check repairs")
	}
	r.register()
	r.holds()

	if err := r.server.stop(); err != nil {
		t.Fatal(err)
	}
	r.fails("probing "+name, r.extensions...)
}

func TestACheckNeedsOnlyToReadTheConfigurationsAndToTryAConfigMap(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	r := registerOnce(t, namespace)
	name := "admitkit." + namespace
	user, err := testkit.ServiceAccount(cluster, namespace, "check")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if own, err := rest.HTTPClientFor(user.Config); err == nil {
			utilnet.CloseIdleConnectionsFor(own.Transport)
		}
	})
	r.options.RESTConfig = user.Config
	r.fails("is forbidden", r.extensions...)
	subject := fmt.Sprintf("{kind: ServiceAccount, name: check, namespace: %s}", namespace)
	if err := testkit.Apply(t.Context(), cluster, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: check, namespace: %[1]s}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: check, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: check}
subjects: [%[2]s]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: check-%[1]s}
rules: [{apiGroups: [admissionregistration.k8s.io], resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations], resourceNames: [%[3]s], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: check-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: check-%[1]s}
subjects: [%[2]s]
`, namespace, subject, name)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		rbac := clientset.RbacV1()
		if err := errors.Join(rbac.ClusterRoleBindings().Delete(ctx, "check-"+namespace, metav1.DeleteOptions{}), rbac.ClusterRoles().Delete(ctx, "check-"+namespace, metav1.DeleteOptions{})); err != nil {
			t.Error(err)
		}
	})
	r.holds()
	made, err := clientset.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "admitkit.dev/probe"})
	if err != nil || len(made.Items) > 0 {
		t.Errorf("it leaves %d ConfigMaps, %v", len(made.Items), err)
	}
}

func TestACheckOfWhatCannotBeCheckedFails(t *testing.T) {
	t.Parallel()
	off := false
	for want, options := range map[string]manager.Options{
		"there is no extension": {Namespaces: []string{"default"}},
		"Registration.Probe":    {Namespaces: []string{"default"}, Registration: manager.RegistrationOptions{Probe: &off}},
	} {
		var extensions []any
		if options.Registration.Probe != nil {
			extensions = append(extensions, markExtension{"a"})
		}
		if err := newManager(t, options, extensions...).CheckRegistered(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
