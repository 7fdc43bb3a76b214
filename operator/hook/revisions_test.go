package hook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// rollout is a parent whose children are Things that have what the parent has.
type rollout struct {
	*testing.T
	*hooks
	namespace string
	names     []string
}

func newRollout(t *testing.T, method string, names []string, fieldPaths ...any) *rollout {
	t.Helper()
	namespace := testkit.Namespace(t, admin)
	r := &rollout{T: t, namespace: namespace, names: names}
	r.hooks = serve(t, func(_ http.ResponseWriter, asked *request) any {
		spec, _ := asked.Parent["spec"].(object)
		children := []any{}
		for _, name := range names {
			children = append(children, named("example.com/v1", "Thing", "", name, object{"spec": object{"version": spec["version"], "all": spec["all"]}}))
		}
		return object{"children": children, "status": object{"version": spec["version"]}}
	})
	create(t, composite(namespace, object{"sync": at(r.URL)}, "", object{
		"parentResource": object{
			"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}},
			"revisionHistory": object{"fieldPaths": append([]any{}, fieldPaths...)},
		},
		"childResources": []any{object{"apiVersion": "example.com/v1", "resource": "things", "updateStrategy": object{
			"method": method, "statusChecks": object{"conditions": []any{object{"type": "Good", "status": "True"}}},
		}}},
	}))
	return r
}

// begin makes the parent, and waits for its children.
func (r *rollout) begin() *unstructured.Unstructured {
	r.Helper()
	parent := create(r.T, thing(r.namespace, "a", object{"spec": object{"version": "1", "all": "1"}}))
	r.await(strings.Repeat("1", len(r.names)))
	r.condition("True", "OnLatestRevision")
	return parent
}

func (r *rollout) set(field, value string) {
	r.Helper()
	patch, err := json.Marshal(object{"spec": object{field: value}})
	if err == nil {
		err = admin.Patch(r.Context(), get(r.T, "example.com/v1", "Thing", r.namespace, "a"), client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rollout) child(name string) *unstructured.Unstructured {
	return get(r.T, "example.com/v1", "Thing", r.namespace, name)
}

// fields returns what the children have in a field, - where there is none.
func (r *rollout) fields(field string) (all string) {
	for _, name := range r.names {
		value := "-"
		if c := r.child(name); c != nil && c.GetDeletionTimestamp() == nil {
			value, _, _ = unstructured.NestedString(c.Object, "spec", field)
		}
		all += value
	}
	return all
}

func (r *rollout) await(versions string) {
	r.Helper()
	var last string
	testkit.Eventually(r.T, "the versions are "+versions, func(context.Context) bool { last = r.fields("version"); return last == versions })
}

// good says that a child is good, and that its controller has seen its spec.
func (r *rollout) good(name string) {
	r.Helper()
	testkit.Succeeds(r.T, waitABit, name+" becomes good", func(ctx context.Context) error {
		u := r.child(name)
		if u == nil {
			return fmt.Errorf("%s is missing", name)
		}
		u.Object["status"] = object{"observedGeneration": u.GetGeneration(), "conditions": []any{object{"type": "Good", "status": "True"}}}
		return admin.Status().Update(ctx, u)
	})
}

// condition waits for the condition Updated of the parent.
func (r *rollout) condition(status, reason string) {
	r.Helper()
	testkit.Eventually(r.T, "Updated is "+status+" "+reason, func(context.Context) bool {
		conditions, _, _ := unstructured.NestedSlice(get(r.T, "example.com/v1", "Thing", r.namespace, "a").Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(each any) bool {
			c := each.(object)
			return c["type"] == "Updated" && c["status"] == status && c["reason"] == reason && c["lastTransitionTime"] != ""
		})
	})
}

// revisions returns the ControllerRevisions, as version: children.
func (r *rollout) revisions() map[string]string {
	r.Helper()
	var list v1alpha1.ControllerRevisionList
	if err := admin.List(r.Context(), &list, client.InNamespace(r.namespace)); err != nil {
		r.Fatal(err)
	}
	all := map[string]string{}
	for _, revision := range list.Items {
		var patch struct{ Spec struct{ Version string } }
		if err := json.Unmarshal(revision.ParentPatch.Raw, &patch); err != nil {
			r.Fatal(err)
		}
		if metav1.GetControllerOf(&revision) == nil {
			r.Errorf("nobody owns the revision %s", revision.Name)
		}
		for _, of := range revision.Children {
			all[patch.Spec.Version] += strings.Join(of.Names, "")
		}
	}
	return all
}

func (r *rollout) awaitRevisions(want map[string]string) {
	r.Helper()
	testkit.Eventually(r.T, fmt.Sprint("the revisions are ", want), func(context.Context) bool { return fmt.Sprint(r.revisions()) == fmt.Sprint(want) })
}

func TestRollingUpdatesOneChildAtATimeAndWaitsUntilItIsGood(t *testing.T) {
	t.Parallel()
	running(t)
	for _, method := range []string{"RollingInPlace", "RollingRecreate"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			covers(t, "updateStrategy.method "+method, "updateStrategy.statusChecks", "condition Updated")
			r := newRollout(t, method, []string{"x", "y", "z"})
			r.begin()
			first := r.child("x").GetUID()
			r.set("version", "2")
			for i, want := range []string{"211", "221", "222"} {
				r.await(want)
				if i < 2 {
					r.condition("False", "RolloutWaiting")
				}
				if got := r.fields("version"); got != want {
					t.Fatalf("%s, although the last one is not good: want %s", got, want)
				}
				r.good(r.names[i])
			}
			r.condition("True", "OnLatestRevision")
			r.awaitRevisions(map[string]string{"2": "xyz"})
			if again := r.child("x").GetUID() != first; again != (method == "RollingRecreate") {
				t.Errorf("made anew: %v", again)
			}
		})
	}
}

func TestAChildThatVanishesDuringARolloutComesBackAsItWas(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "ControllerRevision", "revisionHistory.fieldPaths []")
	r := newRollout(t, "RollingInPlace", []string{"x", "y", "z"})
	r.begin()
	r.set("version", "2")
	r.await("211")
	r.awaitRevisions(map[string]string{"1": "yz", "2": "x"})
	gone := r.child("y")
	if err := admin.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "y is back", func(context.Context) bool { c := r.child("y"); return c != nil && c.GetUID() != gone.GetUID() })
	if got := r.fields("version"); got != "211" {
		t.Errorf("y came back as it is to be, not as it was: %s", got)
	}
	// What the hook does not want of the parent as it is goes at once.
	r.good("x")
	r.await("221")
}

func TestFieldPathsSayWhichChangesRoll(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "revisionHistory.fieldPaths")
	r := newRollout(t, "RollingInPlace", []string{"x", "y", "z"}, "spec.version")
	r.begin()
	r.set("all", "2")
	testkit.Eventually(t, "all children have what does not roll", func(context.Context) bool { return r.fields("all") == "222" })
	r.awaitRevisions(map[string]string{"1": "xyz"})
	r.set("version", "2")
	r.await("211")
	r.set("all", "3")
	testkit.Eventually(t, "so have those of the old revision", func(context.Context) bool { return r.fields("all") == "333" })
	if got := r.fields("version"); got != "211" {
		t.Errorf("the versions are %s", got)
	}
}

func TestTheRevisionsOfAParentAreBounded(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "ControllerRevision: bounds")
	names := strings.Split("bcdefghijklmn", "")
	r := newRollout(t, "RollingInPlace", names)
	parent := &unstructured.Unstructured{Object: thing(r.namespace, "a", object{"spec": object{"version": "2", "all": "1"}})}
	labels := parent.GetLabels()
	parent.SetLabels(nil) // until all is there
	parent = create(t, parent.Object)
	for _, name := range names {
		child := &unstructured.Unstructured{Object: named("example.com/v1", "Thing", r.namespace, name, object{"spec": object{"version": name, "all": "1"}})}
		revision := &unstructured.Unstructured{Object: named("metacontroller.k8s.io/v1alpha1", "ControllerRevision", r.namespace, "revision-"+name, object{
			"parentPatch": object{"spec": object{"version": name, "all": "1"}}, "children": []any{object{"apiGroup": "example.com", "kind": "Thing", "names": []any{name}}},
		})}
		for _, o := range []*unstructured.Unstructured{child, revision} {
			o.SetLabels(map[string]string{compose.LabelControllerUID: string(parent.GetUID())})
			o.SetOwnerReferences([]metav1.OwnerReference{compose.OwnerReference(parent)})
			testkit.Create(t, admin, o)
		}
	}
	patch, err := json.Marshal(object{"metadata": object{"labels": labels}})
	if err == nil {
		err = admin.Patch(t.Context(), parent, client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil {
		t.Fatal(err)
	}
	r.condition("False", "RolloutWaiting")
	// The one that moved may have been among them.
	if n := len(r.revisions()); n < 10 || n > 11 {
		t.Errorf("there are %d revisions, want the latest and 10 older ones at most", n)
	}
	if got := r.fields("version"); got != "2cdefghijklmn" {
		t.Errorf("more than one child moved: %s", got)
	}
}

func TestARevisionInTheWayIsACondition(t *testing.T) {
	t.Parallel()
	running(t)
	r := newRollout(t, "RollingInPlace", []string{"x"})
	r.begin()
	var list v1alpha1.ControllerRevisionList
	if err := admin.List(t.Context(), &list, client.InNamespace(r.namespace)); err != nil || len(list.Items) != 1 {
		t.Fatal(len(list.Items), err)
	}
	taken := list.Items[0]
	taken.OwnerReferences = nil
	if err := admin.Update(t.Context(), &taken); err != nil {
		t.Fatal(err)
	}
	condition(t, "CompositeController", r.namespace, "Converged", metav1.ConditionFalse, "Foreign", taken.Name)
	if err := admin.Delete(t.Context(), &taken); err != nil {
		t.Fatal(err)
	}
	r.awaitRevisions(map[string]string{"1": "x"})
	condition(t, "CompositeController", r.namespace, "Converged", metav1.ConditionTrue, "")
}

// What Metacontroller left in the middle of a rollout: revisions, children with its
// annotation, and a parent with its finalizer.
func TestAnUpgradeFromMetacontrollerGoesOnWithItsRollout(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "upgrade: ControllerRevisions")
	namespace := testkit.Namespace(t, admin)
	o := thing(namespace, "a", object{"spec": object{"version": "2", "all": "1"}})
	o["metadata"].(object)["finalizers"] = []any{"metacontroller.io/compositecontroller-" + namespace}
	parent := create(t, o)
	owner := compose.OwnerReference(parent)
	made := map[string]types.UID{}
	for name, version := range map[string]string{"x": "2", "y": "1", "z": "1"} {
		c := &unstructured.Unstructured{Object: named("example.com/v1", "Thing", namespace, name, object{"spec": object{"version": version, "all": "1"}})}
		c.SetLabels(map[string]string{compose.LabelControllerUID: string(parent.GetUID())})
		c.SetOwnerReferences([]metav1.OwnerReference{owner})
		c.SetAnnotations(map[string]string{compose.AnnotationLastApplied: fmt.Sprintf(`{"spec":{"version":%q,"all":"1"}}`, version)})
		if err := admin.Create(t.Context(), c, client.FieldOwner("metacontroller")); err != nil {
			t.Fatal(err)
		}
		made[name] = c.GetUID()
	}
	for version, names := range map[string][]any{"1": {"y", "z"}, "2": {"x"}} {
		revision := &unstructured.Unstructured{Object: named("metacontroller.k8s.io/v1alpha1", "ControllerRevision", namespace, "things.example.com-"+version, object{
			"parentPatch": object{"spec": object{"version": version, "all": "1"}}, "children": []any{object{"apiGroup": "example.com", "kind": "Thing", "names": names}},
		})}
		revision.SetLabels(map[string]string{"controller-uid": string(parent.GetUID()), "metacontroller.k8s.io/apiGroup": "example.com", "metacontroller.k8s.io/resource": "things"})
		revision.SetOwnerReferences([]metav1.OwnerReference{owner})
		testkit.Create(t, admin, revision)
	}
	r := &rollout{T: t, namespace: namespace, names: []string{"x", "y", "z"}}
	r.hooks = serve(t, func(_ http.ResponseWriter, asked *request) any {
		spec, _ := asked.Parent["spec"].(object)
		children := []any{}
		for _, name := range r.names {
			children = append(children, named("example.com/v1", "Thing", "", name, object{"spec": object{"version": spec["version"], "all": spec["all"]}}))
		}
		return object{"children": children, "finalized": asked.Finalizing}
	})
	create(t, composite(namespace, object{"sync": at(r.URL), "finalize": at(r.URL)}, "", object{
		"childResources": []any{object{"apiVersion": "example.com/v1", "resource": "things", "updateStrategy": object{
			"method": "RollingInPlace", "statusChecks": object{"conditions": []any{object{"type": "Good", "status": "True"}}},
		}}},
	}))
	r.condition("False", "RolloutWaiting")
	if got, revisions := r.fields("version"), fmt.Sprint(r.revisions()); got != "211" || revisions != "map[1:yz 2:x]" {
		t.Errorf("the rollout began anew: %s, %s", got, revisions)
	}
	for i, want := range []string{"211", "221", "222"} {
		r.await(want)
		r.good(r.names[i])
	}
	r.awaitRevisions(map[string]string{"2": "xyz"})
	for name, uid := range made {
		c := r.child(name)
		if _, annotated := c.GetAnnotations()[compose.AnnotationLastApplied]; c.GetUID() != uid || annotated {
			t.Errorf("%s was made anew, or has still the annotation: %v", name, c.Object["metadata"])
		}
	}
	if got := get(t, "example.com/v1", "Thing", namespace, "a").GetFinalizers(); len(got) != 1 {
		t.Errorf("the finalizers are %v", got)
	}
	if err := admin.Delete(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the hook finalizes, and the parent and its revisions go", func(context.Context) bool {
		return get(t, "example.com/v1", "Thing", namespace, "a") == nil && len(r.revisions()) == 0
	})
}
