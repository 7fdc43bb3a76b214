package hook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/hook/apply"
)

// update writes spec and annotations, whatever the engine has written since p was read.
func update(ctx context.Context, p *unstructured.Unstructured) error {
	operations := []object{{"op": "add", "path": "/spec", "value": p.Object["spec"]}}
	if annotations := p.GetAnnotations(); len(annotations) > 0 {
		operations = append(operations, object{"op": "add", "path": "/metadata/annotations", "value": annotations})
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	return admin.Patch(ctx, p, client.RawPatch(types.JSONPatchType, patch))
}

func TestAHookMakesChangesAndDeletesChildrenAndWritesTheStatus(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "children", "status", "status.observedGeneration", "generateSelector", "updateStrategy.method InPlace", "parentResource.labelSelector")
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		spec, _ := r.Parent["spec"].(object)
		children := []any{}
		for name, value := range spec {
			children = append(children, configMap(name, object{"value": value}))
		}
		return object{"status": object{"seen": len(r.Children["ConfigMap.v1"])}, "children": children}
	})
	create(t, composite(namespace, object{"sync": at(h.URL + "/sync")}, "InPlace"))
	parent := create(t, thing(namespace, "a", object{"spec": object{"one": "1", "two": "2"}}))
	testkit.Eventually(t, "the children and the status are there", func(context.Context) bool {
		p := get(t, "example.com/v1", "Thing", namespace, "a")
		seen, _, _ := unstructured.NestedInt64(p.Object, "status", "seen")
		observed, _, _ := unstructured.NestedInt64(p.Object, "status", "observedGeneration")
		return seen == 2 && observed == p.GetGeneration() && data(t, namespace, "one")["value"] == "1" && data(t, namespace, "two")["value"] == "2"
	})
	child := get(t, "v1", "ConfigMap", namespace, "one")
	owner := metav1.GetControllerOf(child)
	if owner == nil || owner.UID != parent.GetUID() || owner.BlockOwnerDeletion == nil || !*owner.BlockOwnerDeletion {
		t.Errorf("the owner is %v", owner)
	}
	if child.GetLabels()["controller-uid"] != string(parent.GetUID()) {
		t.Errorf("the labels are %v", child.GetLabels())
	}
	if fields := child.GetManagedFields(); len(fields) != 1 || fields[0].Manager != apply.FieldManager {
		t.Errorf("the managers are %v", fields)
	}
	p := get(t, "example.com/v1", "Thing", namespace, "a")
	p.Object["spec"] = object{"one": "uno"}
	if err := update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "one is changed, two is gone", func(context.Context) bool {
		return data(t, namespace, "one")["value"] == "uno" && get(t, "v1", "ConfigMap", namespace, "two") == nil
	})
	if get(t, "v1", "ConfigMap", namespace, "one").GetUID() != child.GetUID() {
		t.Error("InPlace made the child anew")
	}
	if err := admin.Delete(t.Context(), get(t, "v1", "ConfigMap", namespace, "one")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "one is back", func(context.Context) bool { return data(t, namespace, "one")["value"] == "uno" })
	condition(t, "CompositeController", namespace, "Ready", metav1.ConditionTrue, "Running")
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionTrue, "AsWanted")
	condition(t, "CompositeController", namespace, "Honored", metav1.ConditionTrue, "AllFields")
}

func TestAHookThatFailsChangesNothingAndHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	running(t)
	release := make(chan struct{})
	fails := map[string]func(http.ResponseWriter, *request) any{
		"a 500": func(w http.ResponseWriter, _ *request) any {
			http.Error(w, "no", http.StatusInternalServerError)
			return nil
		},
		"garbage": func(w http.ResponseWriter, _ *request) any { _, _ = w.Write([]byte("<html>")); return nil },
		"a list":  func(http.ResponseWriter, *request) any { return []any{} },
		"10 MiB": func(http.ResponseWriter, *request) any {
			return object{"status": object{"much": strings.Repeat("x", 10<<20)}}
		},
		"no namespace": func(http.ResponseWriter, *request) any {
			return object{"children": []any{named("v1", "ConfigMap", "other", "x")}}
		},
		"not listed": func(http.ResponseWriter, *request) any {
			return object{"children": []any{named("v1", "Secret", "", "x")}}
		},
		"a response that ends in its middle": func(w http.ResponseWriter, _ *request) any {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"children":[`))
			panic(http.ErrAbortHandler)
		},
		"itself": func(_ http.ResponseWriter, r *request) any { return object{"children": []any{r.Parent}} },
		"of the cluster": func(http.ResponseWriter, *request) any {
			return object{"children": []any{named("example.com/v1", "ClusterThing", "", "x")}}
		},
		"too many": func(http.ResponseWriter, *request) any {
			children := make([]any, 10_001)
			for i := range children {
				children[i] = configMap(fmt.Sprint("x", i), nil)
			}
			return object{"children": children}
		},
		"a twin": func(http.ResponseWriter, *request) any {
			return object{"children": []any{configMap("x", nil), configMap("x", nil)}}
		},
		"a redirect": func(w http.ResponseWriter, _ *request) any {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusTemporaryRedirect)
			return nil
		},
	}
	hanging := testkit.Namespace(t, admin)
	hangs := serve(t, func(http.ResponseWriter, *request) any { <-release; return nil })
	t.Cleanup(func() { close(release) }) // before the server waits for its end
	create(t, composite(hanging, object{"sync": at(hangs.URL)}, "InPlace"))
	for i := range 20 {
		create(t, thing(hanging, fmt.Sprint("a", i)))
	}
	testkit.Eventually(t, "it hangs", func(context.Context) bool { return len(hangs.asked("")) > 0 })
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := testkit.Namespace(t, admin)
			good := func(http.ResponseWriter, *request) any {
				return object{"status": object{"good": true}, "children": []any{configMap("x", object{"a": "b"})}}
			}
			h := serve(t, good)
			create(t, composite(namespace, object{"sync": at(h.URL)}, "", object{"childResources": []any{
				object{"apiVersion": "v1", "resource": "configmaps", "updateStrategy": object{"method": "InPlace"}},
				object{"apiVersion": "example.com/v1", "resource": "clusterthings"},
				object{"apiVersion": "example.com/v1", "resource": "things"},
			}}))
			parent := create(t, thing(namespace, "a", object{"spec": object{}}))
			testkit.Eventually(t, "the child is there", func(context.Context) bool {
				p := get(t, "example.com/v1", "Thing", namespace, "a")
				ok, _, _ := unstructured.NestedBool(p.Object, "status", "good")
				return ok && data(t, namespace, "x")["a"] == "b"
			})
			before := get(t, "v1", "ConfigMap", namespace, "x").GetResourceVersion()
			h.change(fail)
			p := get(t, "example.com/v1", "Thing", namespace, parent.GetName())
			p.Object["spec"] = object{"now": "fail"}
			if err := update(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "HookFailed", namespace+"/a")
			event(t, "Thing", namespace, "a", "SyncError", "HookFailed")
			if after := get(t, "v1", "ConfigMap", namespace, "x"); after == nil || after.GetResourceVersion() != before {
				t.Errorf("the child was changed: %v", after)
			}
			p = get(t, "example.com/v1", "Thing", namespace, "a")
			if ok, _, _ := unstructured.NestedBool(p.Object, "status", "good"); !ok {
				t.Errorf("the status was changed: %v", p.Object["status"])
			}
			h.change(good)
			condition(t, "CompositeController", namespace, "Converged", metav1.ConditionTrue, "")
		})
	}
}

func TestAResponseWithoutChildrenMeansNone(t *testing.T) {
	t.Parallel()
	running(t)
	for _, version := range []string{"v1", "v2"} {
		for _, kind := range []string{"CompositeController", "DecoratorController"} {
			t.Run(kind+" "+version, func(t *testing.T) {
				t.Parallel()
				covers(t, "no children: "+kind+" "+version)
				namespace := testkit.Namespace(t, admin)
				h := serve(t, func(_ http.ResponseWriter, r *request) any {
					seen := len(r.Children["ConfigMap.v1"]) + len(r.Attachments["ConfigMap.v1"])
					if r.Parent["spec"] != nil || r.Object["spec"] != nil {
						return object{"status": object{"left": seen}}
					}
					children := []any{configMap("x", object{"a": "b"})}
					if kind == "DecoratorController" {
						return object{"status": object{"seen": seen}, "attachments": children}
					}
					return object{"status": object{"seen": seen}, "children": children}
				})
				hooks := object{"sync": at(h.URL, object{"version": version})}
				if kind == "CompositeController" {
					create(t, composite(namespace, hooks, "InPlace"))
				} else {
					create(t, decorator(namespace, object{
						"resources":   []any{object{"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}}}},
						"attachments": []any{object{"apiVersion": "v1", "resource": "configmaps"}},
						"hooks":       hooks,
					}))
				}
				create(t, thing(namespace, "a"))
				status(t, namespace, "a", "seen", 1)
				patchThing(t, namespace, "a", `{"spec":{}}`)
				status(t, namespace, "a", "left", 0)
				if get(t, "v1", "ConfigMap", namespace, "x") != nil {
					t.Error("the child is there")
				}
				condition(t, kind, namespace, "Converged", metav1.ConditionTrue, "AsWanted")
			})
		}
	}
}

// roleBinding has subjects of the same name, whose merge by name made Metacontroller
// delete and create it for ever.
func roleBinding(name, role string) object {
	return named("rbac.authorization.k8s.io/v1", "RoleBinding", "", name, object{
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
		"subjects": []any{object{"kind": "ServiceAccount", "name": "default", "namespace": "a"}, object{"kind": "ServiceAccount", "name": "default", "namespace": "b"}, object{"kind": "User", "name": "jane"}, object{"kind": "Group", "name": "jane"}},
	})
}

func TestRecreateMakesAChildAnewIfItDiffersAndOnlyThen(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "updateStrategy.method Recreate", "resyncPeriodSeconds")
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		role, _, _ := unstructured.NestedString(r.Parent, "spec", "role")
		return object{"children": []any{roleBinding("x", role)}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "", object{
		"childResources":      []any{object{"apiVersion": "rbac.authorization.k8s.io/v1", "resource": "rolebindings", "updateStrategy": object{"method": "Recreate"}}},
		"resyncPeriodSeconds": 0, // the least is 1
	}))
	create(t, thing(namespace, "a", object{"spec": object{"role": "view"}}))
	binding := func() *unstructured.Unstructured {
		return get(t, "rbac.authorization.k8s.io/v1", "RoleBinding", namespace, "x")
	}
	testkit.Eventually(t, "it is there", func(context.Context) bool { return binding() != nil })
	first := binding()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(len(h.asked("")), get(t, "metacontroller.k8s.io/v1alpha1", "CompositeController", "", namespace))
		}
	})
	// A call between two periods begins another, and ends none.
	annotate := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))
	calls := len(h.asked(""))
	if err := admin.Patch(t.Context(), get(t, "example.com/v1", "Thing", namespace, "a"), annotate); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the hook is called", func(context.Context) bool { return len(h.asked("")) > calls })
	calls = len(h.asked(""))
	rest := testkit.Long(10*time.Minute, 4*time.Second)
	testkit.Within(t, rest+time.Minute, "the hook is called again and again", func(context.Context) bool { return len(h.asked("")) >= calls+int(rest/time.Second)*9/10 })
	writes := 0
	if now := binding(); now.GetUID() != first.GetUID() || now.GetResourceVersion() != first.GetResourceVersion() {
		writes++
		t.Error("same-named subjects made it be written again")
	}
	testkit.Figure("hook.same_name_writes", float64(writes), "writes")
	p := get(t, "example.com/v1", "Thing", namespace, "a")
	p.Object["spec"] = object{"role": "edit"}
	if err := update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is made anew", func(context.Context) bool {
		now := binding()
		if now == nil {
			return false
		}
		role, _, _ := unstructured.NestedString(now.Object, "roleRef", "name")
		return role == "edit" && now.GetUID() != first.GetUID()
	})
}

func TestOnDeleteLeavesAChildAsItIs(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "updateStrategy.method OnDelete")
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		return object{"children": []any{configMap("x", object{"generation": fmt.Sprint(r.Parent["spec"])})}, "status": object{"spec": fmt.Sprint(r.Parent["spec"])}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, ""))
	create(t, thing(namespace, "a", object{"spec": "1"}))
	testkit.Eventually(t, "it is there", func(context.Context) bool { return data(t, namespace, "x")["generation"] == "1" })
	p := get(t, "example.com/v1", "Thing", namespace, "a")
	p.Object["spec"] = "2"
	if err := update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the hook has been called", func(context.Context) bool {
		now := get(t, "example.com/v1", "Thing", namespace, "a")
		spec, _, _ := unstructured.NestedString(now.Object, "status", "spec")
		return spec == "2"
	})
	if got := data(t, namespace, "x")["generation"]; got != "1" {
		t.Errorf("the child was updated to %s", got)
	}
}

func TestChildrenAreAdoptedAndReleasedBySelector(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "spec.selector: adoption", "spec.selector: release")
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		children := []any{}
		for name, c := range r.Children["ConfigMap.v1"] {
			child := configMap(name, nil)
			child["metadata"].(object)["labels"] = c["metadata"].(object)["labels"]
			children = append(children, child)
		}
		return object{"children": children}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace", object{"generateSelector": false}))
	labelled := func(name, app string) object {
		c := named("v1", "ConfigMap", namespace, name)
		c["metadata"].(object)["labels"] = object{"app": app}
		return c
	}
	orphan := create(t, labelled("orphan", "a"))
	create(t, labelled("stranger", "b"))
	parent := create(t, thing(namespace, "a", object{"spec": object{"selector": object{"matchLabels": object{"app": "a"}}}}))
	owner := func(name string) *metav1.OwnerReference {
		return metav1.GetControllerOf(get(t, "v1", "ConfigMap", namespace, name))
	}
	testkit.Eventually(t, "the orphan is adopted", func(context.Context) bool { return owner("orphan") != nil && owner("orphan").UID == parent.GetUID() })
	late := create(t, labelled("late", "a"))
	testkit.Eventually(t, "so is a late one", func(context.Context) bool { return owner(late.GetName()) != nil })
	if owner("stranger") != nil {
		t.Error("an object that the selector does not select was adopted")
	}
	u := get(t, "v1", "ConfigMap", namespace, orphan.GetName())
	u.SetLabels(map[string]string{"app": "free"})
	if err := admin.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is released", func(context.Context) bool {
		return get(t, "v1", "ConfigMap", namespace, "orphan") != nil && owner("orphan") == nil
	})
}

func TestAnObjectOfSomebodyElseStaysAsItIsAndIsACondition(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	mine := configMap("x", object{"mine": "yes"})
	mine["metadata"].(object)["namespace"] = namespace
	create(t, mine)
	h := serve(t, func(http.ResponseWriter, *request) any {
		return object{"children": []any{configMap("x", object{"mine": "no"}), configMap("y", nil)}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	create(t, thing(namespace, "a"))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "Foreign", "ConfigMap "+namespace+"/x", "somebody else")
	if got := data(t, namespace, "x")["mine"]; got != "yes" {
		t.Errorf("the object was overwritten: %s", got)
	}
	if get(t, "v1", "ConfigMap", namespace, "y") == nil {
		t.Error("the other child was not made")
	}
}

func TestTwoWhoWantDifferentThingsDoNotFightForEver(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(http.ResponseWriter, *request) any {
		return object{"children": []any{configMap("x", object{"who": "hook"})}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	create(t, thing(namespace, "a"))
	reverts := 0
	testkit.Eventually(t, "the other is left alone", func(ctx context.Context) bool {
		if data(t, namespace, "x")["who"] == "hook" {
			u := get(t, "v1", "ConfigMap", namespace, "x")
			u.Object["data"] = object{"who": "other"}
			if admin.Update(ctx, u) == nil {
				reverts++
			}
		}
		return reverts > apply.MaxTries
	})
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "DoesNotConverge", "data.who", "x")
	if reverts != apply.MaxTries+1 || data(t, namespace, "x")["who"] != "other" {
		t.Errorf("%d reverts, and it says %v", reverts, data(t, namespace, "x"))
	}
}

func TestTimesInTheParentAndResyncAfterSecondsAreKeptToTheMoment(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "resyncAfterSeconds", "wakeUpAtTimes")
	namespace := testkit.Namespace(t, admin)
	var mu sync.Mutex
	late := map[string][]time.Time{}
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		now := time.Now()
		name := r.Parent["metadata"].(object)["name"].(string)
		mu.Lock()
		late[name] = append(late[name], now)
		first := late[name][0]
		mu.Unlock()
		if name == "after" && now.Sub(first) < 1500*time.Millisecond {
			return object{"resyncAfterSeconds": 1.5}
		}
		return object{}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	count := testkit.Long(200, 20)
	end := time.Now().Add(time.Duration(count)*40*time.Millisecond + 3*time.Second).Truncate(time.Second)
	for i := range count {
		create(t, thing(namespace, fmt.Sprint("a", i), object{"validUntil": end.UTC().Format(time.RFC3339)}))
	}
	create(t, thing(namespace, "after"))
	create(t, thing(namespace, "far", object{"spec": object{"times": []any{time.Now().Add(100 * 365 * 24 * time.Hour).Format(time.RFC3339)}}}))
	var lateness []time.Duration
	testkit.Within(t, time.Until(end)+time.Minute, "each is woken up", func(context.Context) bool {
		mu.Lock()
		defer mu.Unlock()
		lateness = nil
		for i := range count {
			calls := late[fmt.Sprint("a", i)]
			if len(calls) == 0 || calls[len(calls)-1].Before(end) {
				return false
			}
			j := 0
			for calls[j].Before(end) {
				j++
			}
			lateness = append(lateness, calls[j].Sub(end))
		}
		return len(late["after"]) >= 3
	})
	mu.Lock()
	defer mu.Unlock()
	testkit.Figure("hook.wake_p99_ms", testkit.Milliseconds(testkit.Percentile(lateness, .99)), "ms")
	// The second call is the one that sees the status.
	if gap := late["after"][2].Sub(late["after"][1]); gap < 1500*time.Millisecond {
		t.Errorf("resyncAfterSeconds: the call came after %s", gap)
	}
	if len(late["far"]) != 2 {
		t.Errorf("a parent whose time is far off was asked about %d times", len(late["far"]))
	}
}

func TestTheHookFinalizesBeforeTheParentGoes(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "hooks.finalize", "finalizing", "finalized")
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		if r.path == "/finalize" {
			if len(r.Children["ConfigMap.v1"]) > 0 {
				return object{"children": []any{}, "finalized": false}
			}
			return object{"children": []any{}, "finalized": true}
		}
		return object{"children": []any{configMap("x", nil)}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL + "/sync"), "finalize": at(h.URL + "/finalize")}, "InPlace"))
	create(t, thing(namespace, "a"))
	testkit.Eventually(t, "the child is there", func(context.Context) bool { return get(t, "v1", "ConfigMap", namespace, "x") != nil })
	p := get(t, "example.com/v1", "Thing", namespace, "a")
	if want := "metacontroller.io/compositecontroller-" + namespace; len(p.GetFinalizers()) != 1 || p.GetFinalizers()[0] != want {
		t.Fatalf("the finalizers are %v, want %s", p.GetFinalizers(), want)
	}
	if err := admin.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "child and parent are gone", func(context.Context) bool {
		return get(t, "v1", "ConfigMap", namespace, "x") == nil && get(t, "example.com/v1", "Thing", namespace, "a") == nil
	})
	last := h.asked("/finalize")
	if len(last) < 2 || !last[len(last)-1].Finalizing || len(last[len(last)-1].Children["ConfigMap.v1"]) != 0 {
		t.Errorf("%d calls of finalize", len(last))
	}
}

func TestParentsAreToldThatTheFinalizerOfADeletedControllerStays(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(http.ResponseWriter, *request) any { return object{"finalized": true} })
	controller := create(t, composite(namespace, object{"sync": at(h.URL), "finalize": at(h.URL + "/finalize")}, ""))
	create(t, thing(namespace, "a"))
	parent := func() *unstructured.Unstructured { return get(t, "example.com/v1", "Thing", namespace, "a") }
	testkit.Eventually(t, "the parent has the finalizer", func(context.Context) bool { return len(parent().GetFinalizers()) == 1 })
	if err := admin.Delete(t.Context(), controller); err != nil {
		t.Fatal(err)
	}
	event(t, "CompositeController", "", namespace, "Started")
	event(t, "CompositeController", "", namespace, "Stopped")
	event(t, "Thing", namespace, "a", "FinalizerLeft", "metacontroller.io/compositecontroller-"+namespace)
	if err := admin.Delete(t.Context(), parent()); err != nil {
		t.Fatal(err)
	}
	if p := parent(); p == nil || p.GetDeletionTimestamp() == nil || len(h.asked("/finalize")) > 0 {
		t.Fatalf("nobody could finalize: %v", p)
	}
	create(t, composite(namespace, object{"sync": at(h.URL)}, ""))
	testkit.Eventually(t, "the controller without the hook removes it", func(context.Context) bool { return parent() == nil })
}

func TestRelatedObjectsAreSeenAndTheirChangesToo(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	config := configMap("config", object{"color": "red"})
	config["metadata"].(object)["namespace"] = namespace
	create(t, config)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		if r.path == "/customize" {
			return object{"relatedResources": []any{object{"apiVersion": "v1", "resource": "configmaps", "namespace": namespace, "names": []any{"config"}}}}
		}
		color, _, _ := unstructured.NestedString(r.Related["ConfigMap.v1"]["config"], "data", "color")
		return object{"status": object{"color": color}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL), "customize": at(h.URL + "/customize")}, "InPlace"))
	create(t, thing(namespace, "a"))
	for _, color := range []string{"red", "blue"} {
		if color == "blue" {
			u := get(t, "v1", "ConfigMap", namespace, "config")
			u.Object["data"] = object{"color": color}
			if err := admin.Update(t.Context(), u); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Eventually(t, "the hook sees "+color, func(context.Context) bool {
			p := get(t, "example.com/v1", "Thing", namespace, "a")
			seen, _, _ := unstructured.NestedString(p.Object, "status", "color")
			return seen == color
		})
	}
	if calls := len(h.asked("/customize")); calls != 1 {
		t.Errorf("customize was called %d times for one generation", calls)
	}
}

func TestAChangeCallsTheHookUntilNothingChangesAndAtRestNothingHappens(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	var parents atomic.Int64
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		name := r.Parent["metadata"].(object)["name"].(string)
		var children []any
		for i := range 3 {
			children = append(children, configMap(fmt.Sprint(name, "-", i), object{"v": "1"}))
		}
		parents.Add(1)
		return object{"children": children, "status": object{"children": len(r.Children["ConfigMap.v1"]), "spec": r.Parent["spec"]}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	count := testkit.Long(1000, 30)
	began := time.Now()
	for i := range count {
		testkit.Create(t, admin, &unstructured.Unstructured{Object: thing(namespace, fmt.Sprint("a", i), object{"spec": "1"})})
	}
	converged := func(spec string) func(ctx context.Context) bool {
		return func(ctx context.Context) bool {
			list := &unstructured.UnstructuredList{Object: object{"apiVersion": "example.com/v1", "kind": "ThingList"}}
			if admin.List(ctx, list, client.InNamespace(namespace)) != nil {
				return false
			}
			for _, p := range list.Items {
				n, _, _ := unstructured.NestedInt64(p.Object, "status", "children")
				got, _, _ := unstructured.NestedString(p.Object, "status", "spec")
				if n != 3 || got != spec {
					return false
				}
			}
			return len(list.Items) == count
		}
	}
	testkit.Within(t, 10*time.Minute, "all have converged", converged("1"))
	testkit.Figure("hook.converge_s", time.Since(began).Seconds(), "s")
	// A call needs an event: wait until there is none on its way.
	quiet := func(rest time.Duration) int64 {
		last, since := parents.Load(), time.Now()
		testkit.Within(t, rest+10*time.Minute, "it is quiet", func(context.Context) bool {
			if now := parents.Load(); now != last {
				last, since = now, time.Now()
			}
			return time.Since(since) > rest
		})
		return last
	}
	before := quiet(2 * time.Second)
	for i := range count {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":"2"}`))
		if err := admin.Patch(t.Context(), &unstructured.Unstructured{Object: named("example.com/v1", "Thing", namespace, fmt.Sprint("a", i))}, patch); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Within(t, 10*time.Minute, "all have followed", converged("2"))
	after := quiet(3 * time.Second)
	per := float64(after-before) / float64(count)
	testkit.Figure("hook.calls_per_change", per, "calls")
	if per > 2.2 {
		t.Errorf("%.2f calls of the hook for a change, want one, and one that sees the status", per)
	}
	version := get(t, "v1", "ConfigMap", namespace, "a0-0").GetResourceVersion()
	status := get(t, "example.com/v1", "Thing", namespace, "a0").GetResourceVersion()
	rest := quiet(testkit.Long(5*time.Minute, 2*time.Second)) - after
	writes := 0
	if get(t, "v1", "ConfigMap", namespace, "a0-0").GetResourceVersion() != version || get(t, "example.com/v1", "Thing", namespace, "a0").GetResourceVersion() != status {
		writes++
	}
	testkit.Figure("hook.rest_calls", float64(rest), "calls")
	testkit.Figure("hook.rest_writes", float64(writes), "writes")
	if rest != 0 || writes != 0 {
		t.Errorf("at rest there were %d calls and %d writes", rest, writes)
	}
}
