package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
)

const seed = "../../examples/hooks-transient-binding/"

var (
	cluster  *controlplane.ControlPlane
	operator *controlplane.User
	admin    client.WithWatch
)

func TestMain(m *testing.M) {
	os.Exit(testkit.Main(m, controlplane.Options{
		CRDPaths: []string{"../../config/crd/metacontroller", seed + "crd.yaml"}, ControllerManager: true,
	}, func(c *controlplane.ControlPlane) (err error) {
		cluster = c
		if admin, err = testkit.NewClient(c.Admin(), testkit.Scheme()); err != nil {
			return err
		}
		if operator, err = testkit.ServiceAccount(c, "hooks-system", "hooks"); err != nil {
			return err
		}
		return testkit.Apply(context.Background(), c, rights)
	}))
}

// rights are those of the extension, and what the author of the seed's controllers adds.
const rights = `
apiVersion: v1
kind: Namespace
metadata: {name: transient-binding}
---
apiVersion: v1
kind: Namespace
metadata: {name: apps}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: hooks}
rules:
- {apiGroups: [metacontroller.k8s.io], resources: [compositecontrollers, decoratorcontrollers], verbs: [get, list, watch]}
- {apiGroups: [metacontroller.k8s.io], resources: [compositecontrollers/status, decoratorcontrollers/status], verbs: [patch]}
- {apiGroups: [metacontroller.k8s.io], resources: [controllerrevisions], verbs: [get, list, watch, create, update, delete]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
- {apiGroups: [example.com], resources: [transientrolebindings, transientclusterrolebindings], verbs: [get, list, watch, patch]}
- {apiGroups: [example.com], resources: [transientrolebindings/status, transientclusterrolebindings/status], verbs: [update]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings, clusterrolebindings], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], resourceNames: [view], verbs: [bind]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: hooks}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: hooks}
subjects: [{kind: ServiceAccount, namespace: hooks-system, name: hooks}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: hooks, namespace: transient-binding}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: hooks, namespace: transient-binding}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: hooks}
subjects: [{kind: ServiceAccount, namespace: hooks-system, name: hooks}]
`

// run runs the program as its flags say, with the rights above.
func run(t *testing.T, args ...string) {
	t.Helper()
	p := newProgram()
	if err := p.cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	logger, _ := testkit.Logger(t)
	mgr, err := manager.New(manager.Options{
		OperatorFingerprint: "hooks", Host: "127.0.0.1", WebhookNamespace: "hooks-system", RESTConfig: operator.Config, Logger: logger,
		Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)}, RegisterWebHook: new(bool),
	})
	if err == nil {
		err = p.addTo(mgr)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- mgr.Reconcile(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// apply applies a file of the example, as its README says.
func apply(t *testing.T, manifest string) {
	t.Helper()
	if err := testkit.Apply(t.Context(), cluster, manifest); err != nil {
		t.Fatal(err)
	}
}

// parent is a binding of the role view between two times.
func parent(kind, namespace, name string, from, until time.Time, subjects ...any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": kind,
		"validFrom": from.UTC().Format(time.RFC3339), "validUntil": until.UTC().Format(time.RFC3339),
		"roleRef":  map[string]any{"apiGroup": rbacv1.GroupName, "kind": "ClusterRole", "name": "view"},
		"subjects": subjects,
	}}
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

func user(name string) any {
	return map[string]any{"apiGroup": rbacv1.GroupName, "kind": "User", "name": name}
}

// The seed is GoogleCloudPlatform/k8s-transient-role-binding, which runs on Metacontroller.
func TestTheSeedRunsWithItsPolicyInside(t *testing.T) {
	policy, err := os.ReadFile(seed + "policy/controller.rego")
	if err != nil {
		t.Fatal(err)
	}
	controllers, err := os.ReadFile(seed + "controllers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: transient-binding, name: policy}, data: {controller.rego: "+fmt.Sprintf("%q", policy)+"}}")
	runsTheSeed(t, string(controllers))
	t.Run("the window opens and closes to the second", isExact)
}

// make opa builds OPA, and runs this test with it.
func TestTheSeedRunsWithARealOPAServer(t *testing.T) {
	opa := os.Getenv("ADMITKIT_OPA")
	if opa == "" {
		t.Skip("ADMITKIT_OPA names no OPA: run make opa")
	}
	address := fmt.Sprintf("127.0.0.1:%d", freeport.For(t))
	server := testkit.Run(t, exec.Command(opa, "run", "--server", "--v0-compatible", "--disable-telemetry", "--addr", address, seed+"policy/controller.rego"))
	testkit.Succeeds(t, time.Minute, "OPA serves the policy", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/health", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
	controllers, err := os.ReadFile(seed + "controllers-opa.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// The Service's name means nothing outside of a cluster: all else is as it is.
	const service = "opa.transient-binding.svc:8181"
	if !strings.Contains(string(controllers), service) {
		t.Fatal("the manifests do not call OPA")
	}
	runsTheSeed(t, strings.ReplaceAll(string(controllers), service, address))
	server.Kill()
}

// runsTheSeed runs the cases of the seed on its controllers, and removes them.
func runsTheSeed(t *testing.T, controllers string) {
	t.Helper()
	apply(t, controllers)
	run(t, "--hooks-namespaces=transient-binding", "--hooks-kinds=transientrolebindings.example.com,transientclusterrolebindings.example.com,"+
		"rolebindings.rbac.authorization.k8s.io,clusterrolebindings.rbac.authorization.k8s.io")
	t.Cleanup(func() {
		for _, kind := range []string{"TransientRoleBinding", "TransientClusterRoleBinding"} {
			parents := &unstructured.Unstructured{}
			parents.SetAPIVersion("example.com/v1")
			parents.SetKind(kind)
			if err := admin.DeleteAllOf(context.WithoutCancel(t.Context()), parents, client.InNamespace(map[bool]string{true: "apps"}[kind == "TransientRoleBinding"])); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("each", func(t *testing.T) {
		for sentence, test := range map[string]func(*testing.T){
			"what is bound in a namespace can be used between the times, and neither before nor after": func(t *testing.T) { opensAndCloses(t, "TransientRoleBinding", "apps") },
			"what is bound in the cluster can be used between the times, and neither before nor after": func(t *testing.T) { opensAndCloses(t, "TransientClusterRoleBinding", "") },
			"what is deleted ends at once":        endsWithItsParent,
			"subjects of one name are left alone": rests,
		} {
			t.Run(sentence, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
}

func opensAndCloses(t *testing.T, kind, namespace string) {
	eve := "eve-of-" + strings.ToLower(kind)
	object := parent(kind, namespace, "oncall", time.Now().Add(time.Hour), time.Now().Add(2*time.Hour), user(eve))
	testkit.Create(t, admin, object)
	// An hour is longer than any machine takes to see it. Only then the beginning is brought forward.
	testkit.Succeeds(t, time.Minute, "the hook has answered", func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		if observed, _, err := unstructured.NestedInt64(object.Object, "status", "observedGeneration"); err != nil || observed != object.GetGeneration() {
			return fmt.Errorf("generation %d is observed: %w", observed, err)
		}
		return nil
	})
	var binding client.Object = &rbacv1.RoleBinding{}
	if namespace == "" {
		binding = &rbacv1.ClusterRoleBinding{}
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), binding); !apierrors.IsNotFound(err) {
		t.Errorf("there is a binding an hour before the time: %v", err)
	}
	from := time.Now().Add(2 * time.Second).Truncate(time.Second)
	begins := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"validFrom": %q}`, from.UTC().Format(time.RFC3339)))
	if err := admin.Patch(t.Context(), object, begins); err != nil {
		t.Fatal(err)
	}
	can := func(ctx context.Context) bool {
		may, err := testkit.May(ctx, admin, authorizationv1.SubjectAccessReviewSpec{
			User: eve, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "apps", Verb: "list", Resource: "pods"},
		})
		if err != nil {
			t.Error(err)
		}
		return may
	}
	testkit.Eventually(t, eve+" can", can)
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), binding); err != nil {
		t.Fatal(err)
	}
	if early := from.Sub(binding.GetCreationTimestamp().Time); early > 0 {
		t.Errorf("it is bound %s before the time", early)
	}
	// Said only now, so that it has not passed on a busy machine before anybody could.
	until := time.Now().Add(3 * time.Second).Truncate(time.Second)
	ends := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"validUntil": %q}`, until.UTC().Format(time.RFC3339)))
	if err := admin.Patch(t.Context(), object, ends); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, eve+" cannot any more", func(ctx context.Context) bool { return !can(ctx) })
	if early := time.Until(until); early > 0 {
		t.Errorf("it ended %s early", early)
	}
	testkit.Succeeds(t, time.Minute, "the policy's conditions tell it", func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
		if err != nil || len(conditions) != 2 {
			return fmt.Errorf("%v: %w", conditions, err)
		}
		for i, want := range []string{"Removed", "Created"} { // the newest is the first
			if got := conditions[i].(map[string]any)["reason"]; got != want {
				return fmt.Errorf("condition %d is %v, want %s", i, got, want)
			}
		}
		return nil
	})
}

func endsWithItsParent(t *testing.T) {
	object := parent("TransientRoleBinding", "apps", "deleted", time.Now().Add(-time.Minute), time.Now().Add(time.Hour), user("eve"))
	testkit.Create(t, admin, object)
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "deleted"}}
	testkit.Succeeds(t, time.Minute, "it is bound", func(ctx context.Context) error {
		return admin.Get(ctx, client.ObjectKeyFromObject(binding), binding)
	})
	if err := admin.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, time.Minute, "the garbage collector has the binding", func(ctx context.Context) bool {
		return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(binding), binding))
	})
}

// rests has subjects that only look alike. The seed's issues say that they flapped.
func rests(t *testing.T) {
	account := func(namespace string) any {
		return map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": "default"}
	}
	group := map[string]any{"apiGroup": rbacv1.GroupName, "kind": "Group", "name": "jane"}
	object := parent("TransientRoleBinding", "apps", "alike", time.Now().Add(-time.Minute), time.Now().Add(time.Hour),
		account("apps"), account("default"), user("jane"), group)
	testkit.Create(t, admin, object)
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "alike"}}
	testkit.Succeeds(t, time.Minute, "it is bound and told", func(ctx context.Context) error {
		if err := errors.Join(admin.Get(ctx, client.ObjectKeyFromObject(binding), binding), admin.Get(ctx, client.ObjectKeyFromObject(object), object)); err != nil {
			return err
		}
		if conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions"); err != nil || len(conditions) != 1 {
			return fmt.Errorf("%v: %w", conditions, err)
		}
		return nil
	})
	wrote := make(chan string, 100)
	parents := &unstructured.UnstructuredList{}
	parents.SetAPIVersion("example.com/v1")
	parents.SetKind("TransientRoleBindingList")
	for version, list := range map[string]client.ObjectList{binding.ResourceVersion: &rbacv1.RoleBindingList{}, object.GetResourceVersion(): parents} {
		events, err := admin.Watch(t.Context(), list, &client.ListOptions{Namespace: "apps", Raw: &metav1.ListOptions{ResourceVersion: version}})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		go func() {
			for event := range events.ResultChan() {
				if o, ok := event.Object.(client.Object); ok && o.GetName() == "alike" {
					wrote <- fmt.Sprintf("%s %T", event.Type, o)
				}
			}
		}()
	}
	select {
	case what := <-wrote:
		t.Errorf("written at rest: %s", what)
	case <-time.After(testkit.Long(10*time.Minute, 3*time.Second)): // that nothing happens takes time to see
	}
}

// isExact measures how late the bindings come and go, as a watch sees it.
func isExact(t *testing.T) {
	testkit.OnlyLong(t)
	const count = 200
	events, err := admin.Watch(t.Context(), &rbacv1.RoleBindingList{}, client.InNamespace("apps"))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	from := time.Now().Add(20 * time.Second).Truncate(time.Second)
	until := from.Add(10 * time.Second)
	for n := range count {
		testkit.Create(t, admin, parent("TransientRoleBinding", "apps", fmt.Sprintf("exact-%d", n), from, until, user("eve")))
	}
	var late []time.Duration
	limit := time.After(2 * time.Minute)
	for len(late) < 2*count {
		select {
		case event := <-events.ResultChan():
			b, ok := event.Object.(*rbacv1.RoleBinding)
			if !ok || !strings.HasPrefix(b.Name, "exact-") {
				continue
			}
			switch event.Type {
			case watch.Added:
				late = append(late, time.Since(from))
			case watch.Deleted:
				late = append(late, time.Since(until))
			}
		case <-limit:
			t.Fatalf("%d of %d bindings came and went", len(late), 2*count)
		}
	}
	for _, each := range late {
		if each < 0 {
			t.Errorf("a binding came or went %s early", -each)
		}
	}
	testkit.Figure("hook.window_p50_ms", testkit.Milliseconds(testkit.Percentile(late, .5)), "ms")
	testkit.Figure("hook.window_p99_ms", testkit.Milliseconds(testkit.Percentile(late, .99)), "ms")
}
