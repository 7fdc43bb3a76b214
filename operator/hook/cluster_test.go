package hook_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/hook"
	"github.com/admitkit/admitkit/operator/hook/protocol"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The tests share one control plane and, unless they say otherwise, one engine.
var (
	cluster *controlplane.ControlPlane
	scheme  = testkit.Scheme(v1alpha1.AddToScheme)
	admin   client.WithWatch
	// operator has the rights of the engine and those in rights, and no others.
	operator *controlplane.User
	// proxy answers for the names of Services.
	proxy *hooks
)

// rights are those of the engine, and those that the authors of the tests' controllers add.
const rights = `
apiVersion: v1
kind: Namespace
metadata: {name: credentials}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: hooks}
rules:
- {apiGroups: [metacontroller.k8s.io], resources: [compositecontrollers, decoratorcontrollers], verbs: [get, list, watch]}
- {apiGroups: [metacontroller.k8s.io], resources: [compositecontrollers/status, decoratorcontrollers/status], verbs: [patch]}
- {apiGroups: [metacontroller.k8s.io], resources: [controllerrevisions], verbs: [get, list, watch, create, update, delete]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
- {apiGroups: [gone.example.com], resources: [gones, gones/status], verbs: [get, list, watch, create, patch, update, delete]}
- {apiGroups: [example.com], resources: [things, clusterthings, bares], verbs: [get, list, watch, create, patch, update, delete]}
- {apiGroups: [example.com], resources: [things/status, clusterthings/status], verbs: [update]}
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [namespaces], verbs: [get, list, watch]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], resourceNames: [view, edit], verbs: [bind]}
- {apiGroups: [apps], resources: [deployments], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [example.com], resources: [schemas], verbs: [get, list, watch, create, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: hooks}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: hooks}
subjects: [{kind: ServiceAccount, namespace: hooks-system, name: hooks}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: hooks, namespace: credentials}
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: hooks, namespace: credentials}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: hooks}
subjects: [{kind: ServiceAccount, namespace: hooks-system, name: hooks}]
`

// allowed are the kinds that the engine's hooks may be about.
var allowed = []string{
	"things.example.com", "clusterthings.example.com", "bares.example.com", "configmaps", "services", "namespaces",
	"rolebindings.rbac.authorization.k8s.io", "deployments.apps", "schemas.example.com", "gones.gone.example.com", "laters.later.example.com",
}

func TestMain(m *testing.M) {
	// Names of Services mean nothing here: a proxy answers for them, as it does for all hosts
	// that are not this one. Go reads the variable once.
	proxy = &hooks{answer: func(http.ResponseWriter, *request) any { return object{} }}
	proxy.Server = httptest.NewServer(proxy.handler())
	if err := os.Setenv("HTTP_PROXY", proxy.URL); err != nil {
		panic(err)
	}
	code := testkit.Main(m, controlplane.Options{
		CRDPaths: []string{"../config/crd/metacontroller", "testdata/kinds.yaml"}, ControllerManager: true,
	}, func(c *controlplane.ControlPlane) (err error) {
		cluster = c
		if admin, err = testkit.NewClient(c.Admin(), scheme); err != nil {
			return err
		}
		if operator, err = testkit.ServiceAccount(c, "hooks-system", "hooks"); err != nil {
			return err
		}
		return testkit.Apply(context.Background(), c, rights)
	})
	covered.Lock()
	testkit.Figure("hook.protocol_cases", float64(len(covered.cases)), "cases")
	testkit.Figure("hook.wrong", float64(len(covered.wrong)), "cases")
	covered.Unlock()
	os.Exit(code)
}

// covered are the cases of the protocol whose tests have passed, and wrong those whose tests
// have failed.
var covered = struct {
	sync.Mutex
	cases, wrong map[string]bool
}{cases: map[string]bool{}, wrong: map[string]bool{}}

// covers says which cases of the protocol a test is about.
func covers(t *testing.T, cases ...string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Skipped() {
			return
		}
		of := covered.cases
		if t.Failed() {
			of = covered.wrong
		}
		covered.Lock()
		defer covered.Unlock()
		for _, each := range cases {
			of[each] = true
		}
	})
}

// waitABit is how long a test waits for what takes a moment.
const waitABit = 30 * time.Second

type object = map[string]any

// with returns an object with more fields.
func with(o, more object) object {
	all := maps.Clone(o)
	maps.Copy(all, more)
	return all
}

// request is what a test's hook is asked.
type request struct {
	Controller, Parent, Object object
	Children, Attachments      map[string]map[string]object
	Related                    map[string]map[string]object
	Finalizing                 bool
	path, host                 string
	header                     http.Header
	raw                        []byte
	ended                      <-chan struct{} // closed when the caller waits no longer
}

// hooks is a web server that notes what it is asked.
type hooks struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*request
	answer   func(http.ResponseWriter, *request) any
}

// serve starts a server of hooks; answer returns what is sent as JSON, or nil if it has
// answered itself.
func serve(t *testing.T, answer func(http.ResponseWriter, *request) any) *hooks {
	t.Helper()
	h := &hooks{answer: answer}
	h.Server = httptest.NewServer(h.handler())
	t.Cleanup(h.Close)
	return h
}

func (h *hooks) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		asked := &request{path: r.URL.Path, host: r.Host, header: r.Header, raw: body, ended: r.Context().Done()}
		if err == nil {
			err = json.Unmarshal(body, asked)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		h.requests = append(h.requests, asked)
		answer := h.answer
		h.mu.Unlock()
		if result := answer(w, asked); result != nil {
			_ = json.NewEncoder(w).Encode(result)
		}
	})
}

func (h *hooks) change(answer func(http.ResponseWriter, *request) any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

// asked returns the requests of a path, or all.
func (h *hooks) asked(path string) (of []*request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.requests {
		if path == "" || r.path == path {
			of = append(of, r)
		}
	}
	return of
}

var engine sync.Once

// written are the requests of the engine that write to an object of a namespace.
var written = &writes{all: map[string]int{}}

type writes struct {
	mu  sync.Mutex
	all map[string]int
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func (w *writes) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet && !r.URL.Query().Has("dryRun") {
			_, after, _ := strings.Cut(r.URL.Path, "/namespaces/")
			namespace, rest, _ := strings.Cut(after, "/")
			if !strings.HasSuffix(rest, "/status") && !strings.HasPrefix(rest, "events") {
				w.mu.Lock()
				w.all[namespace]++
				w.mu.Unlock()
			}
		}
		return next.RoundTrip(r)
	})
}

// of returns how many there were in a namespace.
func (w *writes) of(namespace string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[namespace]
}

// logged are the warnings of the engine that the tests share.
var logged *observer.ObservedLogs

// running starts the engine that the tests of webhooks share.
func running(t *testing.T) {
	t.Helper()
	engine.Do(func() {
		core, logs := observer.New(zapcore.WarnLevel)
		logged = logs
		config := rest.CopyConfig(operator.Config)
		config.Wrap(written.wrap)
		mgr, err := manager.New(manager.Options{
			OperatorFingerprint: "hooks", Host: "127.0.0.1", WebhookNamespace: "default", RESTConfig: config, Logger: zap.New(core).Sugar(),
			Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)}, RegisterWebHook: new(bool),
		})
		if err == nil {
			err = mgr.AddExtension(hook.New(hook.Options{Kinds: allowed, Namespaces: []string{"credentials"}, Compiler: compiler}))
		}
		if err != nil {
			panic(err)
		}
		go func() {
			if err := mgr.Reconcile(context.Background()); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	})
}

// compiler stands for that of operator/hook/rego: the source is the response.
func compiler(_ context.Context, policy protocol.Policy) (protocol.Hook, error) {
	if strings.Contains(policy.Source, "panics") {
		panic("the compiler has a bug")
	}
	if strings.Contains(policy.Source, "broken") {
		return nil, fmt.Errorf("%s:1: it is broken", policy.Name)
	}
	return protocol.HookFunc(func(context.Context, protocol.Request) ([]byte, error) { return []byte(policy.Source), nil }), nil
}

// create makes what a YAML-like object says, and removes it when the test ends.
func create(t *testing.T, o object) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: o}
	testkit.Create(t, admin, u)
	t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(t.Context()), u.DeepCopy()) })
	return u
}

func named(apiVersion, kind, namespace, name string, with ...object) object {
	metadata := object{"name": name}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	o := object{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
	for _, each := range with {
		maps.Copy(o, each)
	}
	return o
}

// thing is a parent, which only the controllers of its test select.
func thing(namespace, name string, with ...object) object {
	o := named("example.com/v1", "Thing", namespace, name, with...)
	o["metadata"].(object)["labels"] = object{"test": namespace}
	return o
}

// composite is a CompositeController of Things of a namespace, with ConfigMaps as children.
func composite(namespace string, hooks object, method string, with ...object) object {
	spec := object{
		"parentResource":   object{"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}}},
		"childResources":   []any{object{"apiVersion": "v1", "resource": "configmaps", "updateStrategy": object{"method": method}}},
		"generateSelector": true,
		"hooks":            hooks,
	}
	for _, each := range with {
		maps.Copy(spec, each)
	}
	return named("metacontroller.k8s.io/v1alpha1", "CompositeController", "", namespace, object{"spec": spec})
}

func at(url string, with ...object) object {
	webhook := object{"url": url}
	h := object{"webhook": webhook}
	for _, each := range with {
		for key, value := range each {
			if key == "version" {
				h[key] = value
			} else {
				webhook[key] = value
			}
		}
	}
	return h
}

func configMap(name string, data object) object {
	return named("v1", "ConfigMap", "", name, object{"data": data})
}

func get(t *testing.T, apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: named(apiVersion, kind, namespace, name)}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, u); err != nil {
		return nil
	}
	return u
}

func data(t *testing.T, namespace, name string) map[string]string {
	t.Helper()
	var c corev1.ConfigMap
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &c); err != nil {
		return nil
	}
	return c.Data
}

// condition waits until a controller has a condition whose message has all parts.
func condition(t *testing.T, kind, name, condition string, status metav1.ConditionStatus, reason string, parts ...string) {
	t.Helper()
	var last *metav1.Condition
	defer func() {
		if t.Failed() {
			t.Logf("the condition is %+v", last)
		}
	}()
	testkit.Eventually(t, fmt.Sprintf("%s %s has %s %s %s %q", kind, name, condition, status, reason, parts), func(context.Context) bool {
		u := get(t, "metacontroller.k8s.io/v1alpha1", kind, "", name)
		if u == nil {
			return false
		}
		var of struct{ Status v1alpha1.ControllerStatus }
		text, _ := json.Marshal(u.Object)
		if json.Unmarshal(text, &of) != nil {
			return false
		}
		last = meta.FindStatusCondition(of.Status.Conditions, condition)
		if last == nil || last.Status != status || reason != "" && last.Reason != reason {
			return false
		}
		for _, part := range parts {
			if !strings.Contains(last.Message, part) {
				return false
			}
		}
		return true
	})
}

// event waits for an Event about an object whose note has all parts.
func event(t *testing.T, kind, namespace, name, reason string, parts ...string) {
	t.Helper()
	var notes []string
	defer func() {
		if t.Failed() {
			t.Logf("the Events are %q", notes)
		}
	}()
	testkit.Eventually(t, fmt.Sprintf("%s %s has the Event %s %q", kind, name, reason, parts), func(ctx context.Context) bool {
		var events eventsv1.EventList
		if admin.List(ctx, &events, client.InNamespace(cmp.Or(namespace, metav1.NamespaceDefault))) != nil {
			return false
		}
		notes = nil
		for _, e := range events.Items {
			if e.Regarding.Kind != kind || e.Regarding.Name != name {
				continue
			}
			notes = append(notes, e.Reason+" "+e.Note)
			if e.Reason == reason && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(e.Note, part) }) {
				return true
			}
		}
		return false
	})
}
