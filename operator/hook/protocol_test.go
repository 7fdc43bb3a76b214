package hook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/hook"
)

// secretOf refers to a Secret that the engine may read.
func secretOf(name string) object {
	return object{"secretRef": object{"name": name, "namespace": "credentials"}}
}

// status waits for a field of a Thing's status.
func status(t *testing.T, namespace, name, field string, want any) {
	t.Helper()
	var last any
	testkit.Eventually(t, fmt.Sprintf("%s/%s has the status %s: %v", namespace, name, field, want), func(context.Context) bool {
		last, _, _ = unstructured.NestedFieldNoCopy(get(t, "example.com/v1", "Thing", namespace, name).Object, "status", field)
		return fmt.Sprint(last) == fmt.Sprint(want)
	})
}

func patchThing(t *testing.T, namespace, name, patch string) {
	t.Helper()
	u := &unstructured.Unstructured{Object: named("example.com/v1", "Thing", namespace, name)}
	if err := admin.Patch(t.Context(), u, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

func TestARequestHasWhatTheProtocolSays(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "request: controller", "request: parent", "request: children of every kind", "request: related", "request: finalizing", "status null", "parentResource.labelSelector")
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(http.ResponseWriter, *request) any { return object{"status": nil, "children": nil} })
	create(t, composite(namespace, object{"sync": at(h.URL + "/sync")}, "InPlace"))
	create(t, named("example.com/v1", "Thing", namespace, "not-selected"))
	create(t, thing(namespace, "a", object{"top": "level", "spec": object{"n": int64(9007199254740993)}, "status": object{"old": true}}))
	status(t, namespace, "a", "observedGeneration", 1)
	first := h.asked("/sync")[0]
	var raw object
	if err := json.Unmarshal(first.raw, &raw); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(raw)); fmt.Sprint(got) != "[children controller finalizing parent related]" {
		t.Errorf("the fields are %v", got)
	}
	if got := fmt.Sprint(raw["children"], raw["related"], raw["finalizing"]); got != "map[ConfigMap.v1:map[]] map[] false" {
		t.Error(got)
	}
	if first.Controller["kind"] != "CompositeController" || first.Controller["spec"] == nil || first.Parent["top"] != "level" || first.Parent["kind"] != "Thing" {
		t.Errorf("controller %v, parent %v", first.Controller, first.Parent)
	}
	if !strings.Contains(string(first.raw), "9007199254740993") || first.header.Get("Content-Type") != "application/json" {
		t.Errorf("%s %s", first.header, first.raw)
	}
	for _, r := range h.asked("") {
		if r.Parent["metadata"].(object)["name"] != "a" {
			t.Error("the hook was asked about a parent that labelSelector does not select")
		}
	}
}

func TestAResponseIsReadStrictlyOrNotAsItsModeSays(t *testing.T) {
	t.Parallel()
	running(t)
	for name, each := range map[string]struct {
		with object
		ok   bool
	}{
		"v1": {object{}, true}, "v1 strict": {object{"responseUnMarshallMode": "strict"}, false},
		"v2": {object{"version": "v2"}, false}, "v2 loose": {object{"version": "v2", "responseUnMarshallMode": "loose"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			covers(t, "responseUnMarshallMode: "+name)
			namespace := testkit.Namespace(t, admin)
			h := serve(t, func(http.ResponseWriter, *request) any {
				return object{"children": []any{}, "status": object{"read": "yes"}, "newer": 1}
			})
			create(t, composite(namespace, object{"sync": at(h.URL, each.with)}, "InPlace"))
			create(t, thing(namespace, "a"))
			if each.ok {
				status(t, namespace, "a", "read", "yes")
				return
			}
			condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "HookFailed", "newer")
		})
	}
}

func TestAResponseThatIsTheSameIsNotSentAgain(t *testing.T) {
	t.Parallel()
	running(t)
	for _, code := range []int{http.StatusNotModified, http.StatusPreconditionFailed} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			covers(t, fmt.Sprint("etag: ", code))
			namespace := testkit.Namespace(t, admin)
			h := serve(t, func(w http.ResponseWriter, r *request) any {
				if r.header.Get("If-None-Match") == `"1"` {
					w.WriteHeader(code)
					return nil
				}
				w.Header().Set("ETag", `"1"`)
				return object{"children": []any{configMap("x", object{"a": "b"})}, "status": object{"made": "yes"}}
			})
			create(t, composite(namespace, object{"sync": at(h.URL, object{"etag": object{"enabled": true, "cacheTimeoutSeconds": 60}})}, "InPlace"))
			create(t, thing(namespace, "a"))
			status(t, namespace, "a", "made", "yes")
			if err := admin.Delete(t.Context(), get(t, "v1", "ConfigMap", namespace, "x")); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the child comes back by the kept response", func(context.Context) bool { return data(t, namespace, "x")["a"] == "b" })
			if last := h.asked(""); last[len(last)-1].header.Get("If-None-Match") != `"1"` {
				t.Errorf("the hook was asked without If-None-Match")
			}
		})
	}
}

func TestAChildThatIsGoneBeforeItWasSeenComesBack(t *testing.T) {
	t.Parallel()
	running(t)
	namespace, other := testkit.Namespace(t, admin), testkit.Namespace(t, admin)
	first, release := make(chan struct{}), make(chan struct{})
	name := func(r *request) string { return (&unstructured.Unstructured{Object: r.Parent}).GetName() }
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		if name(r) == "a" {
			<-first
		} else {
			<-release
		}
		return object{"children": []any{configMap(name(r), object{"a": "b"})}, "status": object{"made": "yes"}}
	})
	begin, finish := sync.OnceFunc(func() { close(first) }), sync.OnceFunc(func() { close(release) })
	t.Cleanup(func() { begin(); finish() })
	asked := func(count int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint(count, " hooks wait"), func(context.Context) bool { return len(h.asked("")) == count })
	}
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	create(t, thing(namespace, "a"))
	asked(1)
	for i := range hook.DefaultWorkers {
		create(t, thing(namespace, fmt.Sprint("b", i))) // the last one waits for the worker of a
	}
	asked(hook.DefaultWorkers)
	// Controllers share their watches, so this one has in its cache what another has seen.
	seen := serve(t, func(http.ResponseWriter, *request) any { return object{"children": []any{configMap("x", nil)}} })
	create(t, composite(other, object{"sync": at(seen.URL)}, "InPlace"))
	create(t, thing(other, "a"))
	testkit.Eventually(t, "the other child is seen", func(context.Context) bool {
		return slices.ContainsFunc(seen.asked(""), func(r *request) bool { return len(r.Children["ConfigMap.v1"]) > 0 })
	})
	begin()
	status(t, namespace, "a", "made", "yes")
	for _, child := range []*unstructured.Unstructured{get(t, "v1", "ConfigMap", namespace, "a"), get(t, "v1", "ConfigMap", other, "x")} {
		if err := admin.Delete(t.Context(), child); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "the other child comes back", func(context.Context) bool { return get(t, "v1", "ConfigMap", other, "x") != nil })
	finish()
	testkit.Eventually(t, "the child comes back", func(context.Context) bool { return data(t, namespace, "a")["a"] == "b" })
}

func TestAHookThatIsTooSlowIsACondition(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "webhook.timeout")
	namespace := testkit.Namespace(t, admin)
	release := make(chan struct{})
	h := serve(t, func(http.ResponseWriter, *request) any { <-release; return nil })
	t.Cleanup(func() { close(release) })
	create(t, composite(namespace, object{"sync": at(h.URL, object{"timeout": "100ms"})}, "InPlace"))
	create(t, thing(namespace, "a"))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "HookFailed", "deadline exceeded")
}

func TestAServiceIsCalledByItsName(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "webhook.service", "webhook.path")
	namespace := testkit.Namespace(t, admin)
	create(t, composite(namespace, object{"sync": object{"webhook": object{
		"service": object{"name": "hooks", "namespace": namespace, "port": int64(8080), "protocol": "http"}, "path": "/sync",
	}}}, "InPlace"))
	create(t, thing(namespace, "a"))
	testkit.Eventually(t, "the Service is called", func(context.Context) bool {
		return slices.ContainsFunc(proxy.asked("/sync"), func(r *request) bool { return r.host == "hooks."+namespace+":8080" })
	})
}

// secure is a hook behind TLS that says as whom it was called.
func secure(t *testing.T) (h *hooks, authority string) {
	t.Helper()
	h = &hooks{answer: func(_ http.ResponseWriter, r *request) any {
		return object{"status": object{"as": r.header.Get("Authorization") + r.header.Get("X-Certificate")}}
	}}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			r.Header.Set("X-Certificate", r.TLS.PeerCertificates[0].Subject.CommonName)
		}
		h.handler().ServeHTTP(w, r)
	}))
	h.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	h.StartTLS()
	t.Cleanup(h.Close)
	return h, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}))
}

func TestAHookIsReachedAsItsConnectionSays(t *testing.T) {
	t.Parallel()
	running(t)
	h, authority := secure(t)
	base64Of := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	certFile, keyFile := testkit.NewClientCA(t).IssueFiles(t, t.TempDir(), "hooks")
	cert, err := os.ReadFile(filepath.Clean(certFile))
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Clean(keyFile))
	if err != nil {
		t.Fatal(err)
	}
	name := testkit.Namespace(t, admin)
	create(t, named("v1", "Secret", "credentials", name, object{"data": object{
		"ca.crt": base64Of(authority), "mine": base64Of(authority), "token": base64Of("sesame\n"), "username": base64Of("jane"), "password": base64Of("pw\n"),
		"user": base64Of("joe"), "pass": base64Of("pw2"), "tls.crt": base64Of(string(cert)), "tls.key": base64Of(string(key)), "c": base64Of(string(cert)), "k": base64Of(string(key)),
	}}))
	create(t, named("v1", "ConfigMap", "credentials", name, object{"data": object{"ca.crt": authority}}))
	ref := func(key string) object { return object{"name": name, "namespace": "credentials", "key": key} }
	inline := object{"inline": authority}
	trusted := func(more object) object { return with(object{"caBundle": inline}, more) }
	endpoint := func(host string) object {
		return object{"endpointConfigs": []any{trusted(object{"host": host, "authorization": object{"secretRef": ref("token")}})}}
	}
	host := strings.TrimPrefix(h.URL, "https://")
	for what, each := range map[string]struct {
		webhook, spec object
		as            string
	}{
		"caBundle.inline":       {trusted(nil), nil, ""},
		"caBundle.secretRef":    {object{"caBundle": object{"secretRef": ref("mine")}}, nil, ""},
		"caBundle.configMapRef": {object{"caBundle": object{"configMapRef": object{"name": name, "namespace": "credentials"}}}, nil, ""},
		"authorization":         {trusted(object{"authorization": object{"secretRef": ref("token")}}), nil, "Bearer sesame"},
		"authorization.type":    {trusted(object{"authorization": object{"type": "Token", "secretRef": ref("token")}}), nil, "Token sesame"},
		"basicAuth":             {trusted(object{"basicAuth": secretOf(name)}), nil, "Basic " + base64Of("jane:pw")},
		"basicAuth: keys":       {trusted(object{"basicAuth": with(secretOf(name), object{"usernameKey": "user", "passwordKey": "pass"})}), nil, "Basic " + base64Of("joe:pw2")},
		"clientTLS":             {trusted(object{"clientTLS": secretOf(name)}), nil, "hooks"},
		"clientTLS: keys":       {trusted(object{"clientTLS": with(secretOf(name), object{"certKey": "c", "privateKeyKey": "k"})}), nil, "hooks"},
		"endpointConfigs":       {nil, endpoint(host), "Bearer sesame"},
		"endpointConfigs: the webhook's own come first": {trusted(nil), endpoint(host), ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			covers(t, what)
			namespace := testkit.Namespace(t, admin)
			create(t, composite(namespace, object{"sync": at(h.URL, each.webhook)}, "InPlace", each.spec))
			create(t, thing(namespace, "a"))
			status(t, namespace, "a", "as", each.as)
			condition(t, "CompositeController", namespace, "Honored", metav1.ConditionTrue, "")
		})
	}
	for what, spec := range map[string]object{"nobody vouches for it": nil, "another port is another endpoint": endpoint(strings.Split(host, ":")[0])} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			namespace := testkit.Namespace(t, admin)
			create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace", spec))
			create(t, thing(namespace, "a"))
			condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "HookFailed", x509.UnknownAuthorityError{}.Error())
		})
	}
}

func TestRelatedObjectsAreThoseOfTheRule(t *testing.T) {
	t.Parallel()
	running(t)
	home, away := testkit.Namespace(t, admin), testkit.Namespace(t, admin)
	for _, namespace := range []string{home, away} {
		for _, name := range []string{"red", "blue"} {
			c := named("v1", "ConfigMap", namespace, name)
			c["metadata"].(object)["labels"] = object{"color": name, "test": home}
			create(t, c)
		}
		u := get(t, "v1", "Namespace", "", namespace)
		u.SetLabels(map[string]string{"side": map[bool]string{true: "home", false: "away"}[namespace == home], "test": home})
		if err := admin.Update(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	both := object{"matchLabels": object{"test": home}}
	for name, each := range map[string]struct {
		version string
		rule    object
		want    []string
	}{
		"v1 labelSelector":     {"v1", object{"labelSelector": both}, []string{"blue", "red"}},
		"v1 names":             {"v1", object{"names": []any{"red"}}, []string{"red"}},
		"v2 labelSelector":     {"v2", object{"labelSelector": object{"matchLabels": object{"color": "red", "test": home}}}, []string{away + "/red", home + "/red"}},
		"v2 namespace":         {"v2", object{"namespace": away, "labelSelector": both}, []string{away + "/blue", away + "/red"}},
		"v2 namespaceSelector": {"v2", object{"namespaceSelector": object{"matchLabels": object{"side": "away", "test": home}}, "labelSelector": both}, []string{away + "/blue", away + "/red"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			covers(t, "relatedResources: "+name)
			namespace := "related-" + strings.ReplaceAll(strings.ToLower(name), " ", "-") + "-" + home
			h := serve(t, func(_ http.ResponseWriter, r *request) any {
				if r.path == "/customize" {
					return object{"relatedResources": []any{with(object{"apiVersion": "v1", "resource": "configmaps"}, each.rule)}}
				}
				return object{"children": []any{}, "status": object{"seen": strings.Join(slices.Sorted(maps.Keys(r.Related["ConfigMap.v1"])), ",")}}
			})
			create(t, composite(namespace, object{
				"sync": at(h.URL, object{"version": each.version}), "customize": at(h.URL+"/customize", object{"version": each.version}),
			}, "InPlace"))
			o := named("example.com/v1", "Thing", home, namespace)
			o["metadata"].(object)["labels"] = object{"test": namespace}
			create(t, o)
			slices.Sort(each.want)
			status(t, home, namespace, "seen", strings.Join(each.want, ","))
		})
	}
	t.Run("a kind that hooks may not be about stays unseen", func(t *testing.T) {
		t.Parallel()
		namespace := testkit.Namespace(t, admin)
		h := serve(t, func(http.ResponseWriter, *request) any {
			return object{"relatedResources": []any{object{"apiVersion": "v1", "resource": "pods"}}}
		})
		create(t, composite(namespace, object{"sync": at(h.URL), "customize": at(h.URL)}, "InPlace"))
		create(t, thing(namespace, "a"))
		condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "KindNotAllowed", "pods")
	})
}

func TestADecoratorSeesRelatedObjectsAndIsCalledAgain(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "decorator: customize", "decorator: resyncAfterSeconds", "decorator: related", "decorator: version v2")
	namespace := testkit.Namespace(t, admin)
	create(t, named("v1", "ConfigMap", namespace, "config"))
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		if r.path == "/customize" {
			return object{"relatedResources": []any{object{"apiVersion": "v1", "resource": "configmaps", "names": []any{"config"}, "namespace": namespace}}}
		}
		seen := r.Related["ConfigMap.v1"][namespace+"/config"] != nil && r.Attachments["ConfigMap.v1"] != nil
		return object{"attachments": []any{}, "resyncAfterSeconds": 0.2, "status": object{"seen": seen}}
	})
	create(t, decorator(namespace, object{
		"resources":   []any{object{"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}}}},
		"attachments": []any{object{"apiVersion": "v1", "resource": "configmaps"}},
		"hooks":       object{"sync": at(h.URL, object{"version": "v2"}), "customize": at(h.URL+"/customize", object{"version": "v2"})},
	}))
	create(t, thing(namespace, "a"))
	status(t, namespace, "a", "seen", true)
	testkit.Eventually(t, "the hook is called again and again", func(context.Context) bool { return len(h.asked("/")) > 3 })
}

func TestAChangeOfTheStatusAloneCallsTheHookUnlessItIsIgnored(t *testing.T) {
	t.Parallel()
	running(t)
	for _, ignore := range []bool{false, true} {
		t.Run(fmt.Sprint(ignore), func(t *testing.T) {
			t.Parallel()
			covers(t, fmt.Sprint("ignoreStatusChanges ", ignore))
			namespace := testkit.Namespace(t, admin)
			h := serve(t, func(_ http.ResponseWriter, r *request) any {
				return object{"status": object{"spec": fmt.Sprint(r.Parent["spec"])}}
			})
			create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace", object{"parentResource": object{
				"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}}, "ignoreStatusChanges": ignore,
			}}))
			create(t, thing(namespace, "a", object{"spec": "1"}))
			status(t, namespace, "a", "spec", "1")
			u := get(t, "example.com/v1", "Thing", namespace, "a")
			u.Object["status"] = object{"spec": "by somebody else"}
			if err := admin.Status().Update(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			if !ignore {
				status(t, namespace, "a", "spec", "1")
				return
			}
			// An event later comes after that of the status: by then it has been ignored.
			calls := len(h.asked(""))
			patchThing(t, namespace, "a", `{"spec":"2"}`)
			status(t, namespace, "a", "spec", "2")
			if got := len(h.asked("")) - calls; got != 1 {
				t.Errorf("the hook was called %d times", got)
			}
		})
	}
}

// A hook may record something in the status, and act when it sees it recorded.
func TestAHookIsCalledAfterItsOwnWritesUntilNothingChanges(t *testing.T) {
	t.Parallel()
	running(t)
	phaseOf := func(o object) string {
		phase, _, _ := unstructured.NestedString(o, "status", "phase")
		return phase
	}
	next := map[string]string{"": "Pending", "Pending": "Creating", "Creating": "Ready", "Ready": "Ready"}
	phases := func(r *request) any {
		phase := phaseOf(r.Parent)
		if late, _, _ := unstructured.NestedString(r.Parent, "metadata", "labels", "late"); late == "" {
			phase = next[phase]
		}
		return object{"status": object{"phase": phase}}
	}
	count := func(most float64) func(*request) any {
		return func(r *request) any {
			step, _, _ := unstructured.NestedFloat64(r.Parent, "status", "step")
			return object{"status": object{"step": min(step+1, most)}}
		}
	}
	field := func(want any, fields ...string) func(*unstructured.Unstructured) bool {
		return func(p *unstructured.Unstructured) bool {
			got, _, _ := unstructured.NestedFieldNoCopy(p.Object, fields...)
			return fmt.Sprint(got) == fmt.Sprint(want)
		}
	}
	drains := func(r *request) any {
		if !r.Finalizing {
			return object{"status": object{"phase": "Running"}}
		}
		return object{"status": object{"phase": "Draining"}, "finalized": phaseOf(r.Parent) == "Draining"}
	}
	gone := func(p *unstructured.Unstructured) bool { return p == nil }
	ignoring := object{"ignoreStatusChanges": true}
	var resyncs atomic.Int64
	for name, each := range map[string]struct {
		resource object
		finalize bool
		answer   func(*request) any
		ends     func(*unstructured.Unstructured) bool
		calls    int // in all, or 0 if others call it, too
	}{
		"status: phases":                         {nil, false, phases, field("Ready", "status", "phase"), 4},
		"status: phases, ignoreStatusChanges":    {ignoring, false, phases, field("Pending", "status", "phase"), 1},
		"status: dozens of steps":                {nil, false, count(60), field(60, "status", "step"), 61},
		"finalize: a phase":                      {nil, true, drains, gone, 0},
		"finalize: a phase, ignoreStatusChanges": {ignoring, true, drains, gone, 0},
		"resyncAfterSeconds, asked for when at rest": {nil, false, func(r *request) any {
			switch phase := phaseOf(r.Parent); {
			case phase == "":
				return object{"status": object{"phase": "Seen"}}
			case resyncs.Add(1) == 1:
				return object{"status": object{"phase": phase}, "resyncAfterSeconds": 0.2}
			}
			return object{"status": object{"phase": "Resynced"}}
		}, field("Resynced", "status", "phase"), 4},
		"resyncAfterSeconds, with a status that changes": {nil, false, func(r *request) any {
			polls, _, _ := unstructured.NestedFloat64(r.Parent, "status", "polls")
			if polls >= 4 {
				return object{"status": object{"polls": polls}}
			}
			return object{"status": object{"polls": polls + 1}, "resyncAfterSeconds": 0.1}
		}, field(4, "status", "polls"), 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			covers(t, "own writes: "+name)
			namespace := testkit.Namespace(t, admin)
			h := serve(t, func(_ http.ResponseWriter, r *request) any { return each.answer(r) })
			hooks := object{"sync": at(h.URL)}
			if each.finalize {
				hooks["finalize"] = at(h.URL + "/finalize")
			}
			create(t, composite(namespace, hooks, "", object{"parentResource": with(object{
				"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}},
			}, each.resource)}))
			parent := create(t, thing(namespace, "a", object{"spec": "1"}))
			if each.finalize {
				status(t, namespace, "a", "phase", "Running")
				if err := admin.Delete(t.Context(), parent); err != nil {
					t.Fatal(err)
				}
			}
			testkit.Eventually(t, "it ends", func(context.Context) bool { return each.ends(get(t, "example.com/v1", "Thing", namespace, "a")) })
			if each.calls > 0 {
				rests(t, h, namespace, each.calls)
			}
		})
	}
	t.Run("decorator: an annotation", func(t *testing.T) {
		t.Parallel()
		covers(t, "own writes: decorator annotation")
		namespace := testkit.Namespace(t, admin)
		h := serve(t, func(_ http.ResponseWriter, r *request) any {
			step, _, _ := unstructured.NestedString(r.Object, "metadata", "annotations", "step")
			return object{"annotations": object{"step": map[string]string{"": "1", "1": "2", "2": "3", "3": "3"}[step]}}
		})
		create(t, decorator(namespace, object{
			"resources": []any{object{"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}}}},
			"hooks":     object{"sync": at(h.URL)},
		}))
		create(t, thing(namespace, "a"))
		testkit.Eventually(t, "the last step is there", func(context.Context) bool {
			return get(t, "example.com/v1", "Thing", namespace, "a").GetAnnotations()["step"] == "3"
		})
		rests(t, h, namespace, 4)
	})
}

// rests checks that a hook has been called so many times in all for the Thing a, and that it
// is at rest then: an event later calls it once, and nothing is written.
func rests(t *testing.T, h *hooks, namespace string, calls int) {
	t.Helper()
	asked := func(count int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint("the hook is called ", count, " times"), func(context.Context) bool { return len(h.asked("")) >= count })
	}
	asked(calls)
	before := get(t, "example.com/v1", "Thing", namespace, "a").Object["status"]
	for _, late := range []string{"1", "2"} { // with the second call all that the first one wrote is there
		patchThing(t, namespace, "a", fmt.Sprintf(`{"metadata":{"labels":{"late":%q}}}`, late))
		calls++
		asked(calls)
	}
	if now := get(t, "example.com/v1", "Thing", namespace, "a").Object["status"]; fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("at rest the status became %v, and was %v", now, before)
	}
	if got := len(h.asked("")); got != calls {
		t.Errorf("the hook was called %d times, want %d", got, calls)
	}
	if told := logged.FilterField(zap.String("parent", namespace+"/a")).All(); len(told) > 0 {
		t.Errorf("it was logged: %v", told)
	}
}

func TestAParentThatIsSelectedNoMoreIsFinalized(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "hooks.finalize: selected no more")
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		if r.Finalizing {
			return object{"children": []any{}, "finalized": len(r.Children["ConfigMap.v1"]) == 0}
		}
		return object{"children": []any{configMap("x", nil)}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL), "finalize": at(h.URL)}, "InPlace"))
	create(t, thing(namespace, "a"))
	testkit.Eventually(t, "the child is there", func(context.Context) bool { return get(t, "v1", "ConfigMap", namespace, "x") != nil })
	patchThing(t, namespace, "a", `{"metadata":{"labels":{"test":null}}}`)
	testkit.Eventually(t, "the child and the finalizer are gone", func(context.Context) bool {
		return get(t, "v1", "ConfigMap", namespace, "x") == nil && len(get(t, "example.com/v1", "Thing", namespace, "a").GetFinalizers()) == 0
	})
}

// Somebody else's finalizer keeps it.
func TestAParentThatIsBeingDeletedIsSyncedWithoutItsChildren(t *testing.T) {
	t.Parallel()
	running(t)
	for name, each := range map[string]struct {
		finalize, deletedBefore bool
		path                    string
	}{
		"no finalize":                         {false, false, "/sync"},
		"no finalize, deleted before":         {false, true, "/sync"},
		"finalize, after its finalizer":       {true, false, "/finalize"},
		"finalize, deleted before, unadopted": {true, true, "/finalize"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			covers(t, "being deleted: "+name)
			namespace := testkit.Namespace(t, admin)
			h := serve(t, func(_ http.ResponseWriter, r *request) any {
				metadata := r.Parent["metadata"].(object)
				children := []any{configMap("x", nil)}
				if metadata["deletionTimestamp"] == nil {
					return object{"children": children}
				}
				held := !strings.Contains(fmt.Sprint(metadata["finalizers"]), "metacontroller.io")
				if held { // the children are nobody's any more
					children = []any{configMap("y", nil)}
				}
				return object{"children": children, "finalized": true, "status": object{"path": r.path, "finalizing": r.Finalizing, "held": held}}
			})
			hooks := object{"sync": at(h.URL + "/sync")}
			if each.finalize {
				hooks["finalize"] = at(h.URL + "/finalize")
			}
			controller := composite(namespace, hooks, "")
			parent := thing(namespace, "a")
			parent["metadata"].(object)["finalizers"] = []any{"example.com/others"}
			t.Cleanup(func() {
				u := &unstructured.Unstructured{Object: named("example.com/v1", "Thing", namespace, "a")}
				_ = admin.Patch(context.WithoutCancel(t.Context()), u, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
			})
			created := create(t, parent)
			if !each.deletedBefore {
				create(t, controller)
				testkit.Eventually(t, "the child is there", func(context.Context) bool { return get(t, "v1", "ConfigMap", namespace, "x") != nil })
			}
			if err := admin.Delete(t.Context(), created); err != nil {
				t.Fatal(err)
			}
			if each.deletedBefore {
				create(t, controller)
			}
			status(t, namespace, "a", "held", true)
			status(t, namespace, "a", "path", each.path)
			status(t, namespace, "a", "finalizing", each.finalize)
			if made, kept := get(t, "v1", "ConfigMap", namespace, "y") != nil, get(t, "v1", "ConfigMap", namespace, "x") != nil; made || kept == each.deletedBefore {
				t.Errorf("x is there: %t, y is there: %t", kept, made)
			}
			condition(t, "CompositeController", namespace, "Converged", metav1.ConditionTrue, "")
		})
	}
}

func TestAChangeDuringACallIsNotLost(t *testing.T) {
	t.Parallel()
	running(t)
	for _, kind := range []string{"CompositeController", "DecoratorController"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			namespace := testkit.Namespace(t, admin)
			h := serve(t, func(_ http.ResponseWriter, r *request) any {
				parent := r.Parent
				if parent == nil {
					parent = r.Object
				}
				spec := fmt.Sprint(parent["spec"])
				if spec == "1" {
					patchThing(t, namespace, "a", `{"spec":"2"}`)
				}
				return object{"status": object{"spec": spec}, "labels": object{"spec": spec}}
			})
			if kind == "CompositeController" {
				create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
			} else {
				create(t, decorator(namespace, object{
					"resources": []any{object{"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}}}},
					"hooks":     object{"sync": at(h.URL)},
				}))
			}
			create(t, thing(namespace, "a", object{"spec": "1"}))
			status(t, namespace, "a", "spec", "2")
		})
	}
}

// A kind may go, and come back as another, while its controller runs.
func TestAKindThatGoesAndComesBackIsNoticed(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "childResources.optional")
	definition := func(scope string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: named("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "gones.gone.example.com", object{"spec": object{
			"group": "gone.example.com", "scope": scope, "names": object{"kind": "Gone", "plural": "gones", "singular": "gone"},
			"versions": []any{object{
				"name": "v1", "served": true, "storage": true, "subresources": object{"status": object{}},
				"schema": object{"openAPIV3Schema": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		}})}
	}
	first := definition("Namespaced")
	create(t, first.Object)
	h := serve(t, func(http.ResponseWriter, *request) any {
		return object{"children": []any{named("later.example.com/v1", "Later", "", "x")}, "status": object{"good": true}}
	})
	name := testkit.Namespace(t, admin)
	create(t, composite(name, object{"sync": at(h.URL)}, "", object{
		"parentResource": object{"apiVersion": "gone.example.com/v1", "resource": "gones"},
		"childResources": []any{object{"apiVersion": "later.example.com/v1", "resource": "laters", "optional": true}},
	}))
	condition(t, "CompositeController", name, "Ready", metav1.ConditionTrue, "")
	condition(t, "CompositeController", name, "Honored", metav1.ConditionFalse, "IgnoredFields", "laters", "optional")
	if err := admin.Delete(t.Context(), definition("Namespaced")); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, time.Minute, "that it has gone is a condition", func(context.Context) bool {
		u := get(t, "metacontroller.k8s.io/v1alpha1", "CompositeController", "", name)
		text, _ := json.Marshal(u.Object["status"])
		return strings.Contains(string(text), "NoSuchKind")
	})
	testkit.Succeeds(t, time.Minute, "the kind is made anew, for the cluster", func(ctx context.Context) error { return admin.Create(ctx, definition("Cluster")) })
	testkit.Succeeds(t, time.Minute, "a parent can be made", func(ctx context.Context) error {
		return admin.Create(ctx, &unstructured.Unstructured{Object: named("gone.example.com/v1", "Gone", "", "a")})
	})
	testkit.Within(t, time.Minute, "its hook is called", func(context.Context) bool {
		good, _, _ := unstructured.NestedBool(get(t, "gone.example.com/v1", "Gone", "", "a").Object, "status", "good")
		return good
	})
}
