package hook_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/hook"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

func decorator(namespace string, spec object) object {
	return named("metacontroller.k8s.io/v1alpha1", "DecoratorController", "", namespace, object{"spec": spec})
}

func TestADecoratorAttachesAndMarksWhatItsSelectorsSelect(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "decorator: labels", "decorator: annotations", "decorator: status", "decorator: attachments", "decorator: finalize", "decorator: labelSelector", "decorator: annotationSelector")
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		if r.Finalizing {
			return object{"labels": object{"mark": nil}, "attachments": []any{}, "finalized": len(r.Attachments["ConfigMap.v1"]) == 0}
		}
		return object{
			"labels": object{"mark": "yes", "old": nil}, "annotations": object{"note": "seen"}, "status": object{"attached": len(r.Attachments["ConfigMap.v1"])},
			"attachments": []any{configMap("x-"+r.Object["metadata"].(object)["name"].(string), object{"a": "b"})},
		}
	})
	hook := object{"webhook": object{"url": h.URL}}
	create(t, decorator(namespace, object{
		"resources": []any{object{
			"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}},
			"annotationSelector": object{"matchExpressions": []any{object{"key": "decorate", "operator": "Exists"}}},
		}},
		"attachments": []any{object{"apiVersion": "v1", "resource": "configmaps", "updateStrategy": object{"method": "InPlace"}}},
		"hooks":       object{"sync": hook, "finalize": hook},
	}))
	o := thing(namespace, "a")
	o["metadata"].(object)["labels"].(object)["old"] = "1"
	o["metadata"].(object)["annotations"] = object{"decorate": ""}
	create(t, o)
	create(t, thing(namespace, "b"))
	testkit.Eventually(t, "it is decorated", func(context.Context) bool {
		p := get(t, "example.com/v1", "Thing", namespace, "a")
		n, _, _ := unstructured.NestedInt64(p.Object, "status", "attached")
		_, old := p.GetLabels()["old"]
		return n == 1 && p.GetLabels()["mark"] == "yes" && !old && p.GetAnnotations()["note"] == "seen"
	})
	child := get(t, "v1", "ConfigMap", namespace, "x-a")
	if child.GetAnnotations()[compose.AnnotationDecorator] != namespace || metav1.GetControllerOf(child) == nil {
		t.Errorf("the attachment is %v", child.Object["metadata"])
	}
	if get(t, "v1", "ConfigMap", namespace, "x-b") != nil {
		t.Error("an object that the annotation selector does not select is decorated")
	}
	// What is selected no more is finalized.
	p := get(t, "example.com/v1", "Thing", namespace, "a")
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"decorate":null}}}`))
	if err := admin.Patch(t.Context(), p, patch); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is finalized", func(context.Context) bool {
		p := get(t, "example.com/v1", "Thing", namespace, "a")
		_, mark := p.GetLabels()["mark"]
		return !mark && len(p.GetFinalizers()) == 0 && get(t, "v1", "ConfigMap", namespace, "x-a") == nil
	})
}

func TestADecoratorReplacesTheStatusOfAKindWithoutTheSubresource(t *testing.T) {
	t.Parallel()
	running(t)
	for name, each := range map[string]struct {
		parent    object
		first     object
		want      any
		converged metav1.ConditionStatus
		reason    string
	}{
		"a status":                       {named("example.com/v1", "Bare", "", "a"), object{"first": "yes"}, object{"second": "yes"}, metav1.ConditionTrue, "AsWanted"},
		"null leaves it":                 {named("example.com/v1", "Bare", "", "a", object{"status": object{"kept": "yes"}}), nil, object{"kept": "yes"}, metav1.ConditionTrue, "AsWanted"},
		"none, of a kind without status": {named("v1", "ConfigMap", "", "a"), nil, nil, metav1.ConditionTrue, "AsWanted"},
		"one, of a kind without status":  {named("v1", "ConfigMap", "", "a"), object{"first": "yes"}, nil, metav1.ConditionFalse, "NoStatus"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			covers(t, "decorator: status without subresource: "+name)
			namespace := testkit.Namespace(t, admin)
			h := serve(t, func(_ http.ResponseWriter, r *request) any {
				switch {
				case each.first == nil && r.Object["status"] != nil:
					return object{"status": nil}
				case each.first == nil:
					return object{"status": object{}}
				case r.Object["status"] == nil:
					return object{"status": each.first}
				}
				return object{"status": object{"second": "yes"}}
			})
			metadata := each.parent["metadata"].(object)
			metadata["namespace"], metadata["labels"] = namespace, object{"test": namespace}
			resource := map[string]string{"Bare": "bares", "ConfigMap": "configmaps"}[each.parent["kind"].(string)]
			create(t, decorator(namespace, object{
				"resources": []any{object{"apiVersion": each.parent["apiVersion"], "resource": resource, "labelSelector": object{"matchLabels": object{"test": namespace}}}},
				"hooks":     object{"sync": at(h.URL)},
			}))
			parent := create(t, each.parent)
			testkit.Eventually(t, "the hook is called", func(context.Context) bool { return len(h.asked("")) > 0 })
			condition(t, "DecoratorController", namespace, "Converged", each.converged, each.reason)
			testkit.Eventually(t, "the status is as wanted", func(context.Context) bool {
				now := get(t, parent.GetAPIVersion(), parent.GetKind(), namespace, "a")
				return fmt.Sprint(now.Object["status"]) == fmt.Sprint(each.want)
			})
		})
	}
}

func TestAnObjectOfAnotherNamespaceIsNoAttachmentWhateverItSays(t *testing.T) {
	t.Parallel()
	running(t)
	namespace, other := testkit.Namespace(t, admin), testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		return object{"status": object{"spec": r.Object["spec"]}, "attachments": []any{configMap("x", nil)}}
	})
	create(t, decorator(namespace, object{
		"resources":   []any{object{"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}}}},
		"attachments": []any{object{"apiVersion": "v1", "resource": "configmaps"}},
		"hooks":       object{"sync": at(h.URL)},
	}))
	parent := create(t, thing(namespace, "a", object{"spec": "1"}))
	status(t, namespace, "a", "spec", "1")
	forged := named("v1", "ConfigMap", other, "forged")
	metadata := forged["metadata"].(object)
	metadata["annotations"] = object{compose.AnnotationDecorator: namespace}
	metadata["ownerReferences"] = []any{object{"apiVersion": "example.com/v1", "kind": "Thing", "name": "a", "uid": string(parent.GetUID()), "controller": true}}
	create(t, forged)
	patchThing(t, namespace, "a", `{"spec":"2"}`)
	status(t, namespace, "a", "spec", "2")
	for _, r := range h.asked("") {
		if all := r.Attachments["ConfigMap.v1"]; all["forged"] != nil {
			t.Fatalf("the hook sees an object of %s as the parent's: %v", other, all)
		}
	}
}

func TestWhatIsWrongWithAControllerIsACondition(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "hooks.preUpdateChild", "hooks.postUpdateChild")
	h := serve(t, func(http.ResponseWriter, *request) any { return object{} })
	resource := func(apiVersion, resource string) object {
		return object{"childResources": []any{object{"apiVersion": apiVersion, "resource": resource}}}
	}
	history := func(paths ...any) object {
		return object{"parentResource": object{"apiVersion": "example.com/v1", "resource": "things", "revisionHistory": object{"fieldPaths": paths}}}
	}
	for name, each := range map[string]struct {
		hook   object
		with   object
		reason string
		has    []string
	}{
		"no-right":     {at(h.URL), resource("v1", "services"), "MissingRight", []string{"list", "services", "admitkit.dev/aggregate-to-hooks"}},
		"not-allowed":  {at(h.URL), resource("v1", "pods"), "KindNotAllowed", []string{"pods", "--hooks-kinds"}},
		"no-kind":      {at(h.URL), resource("example.com/v1", "bares/x"), "KindNotAllowed", nil},
		"no-status":    {at(h.URL), object{"parentResource": object{"apiVersion": "example.com/v1", "resource": "bares"}}, "NoStatus", []string{"status subresource"}},
		"no-hook":      {object{}, nil, "Invalid", []string{"hooks.sync", "neither webhook nor rego"}},
		"no-url":       {object{"webhook": object{}}, nil, "Invalid", []string{"url"}},
		"no-namespace": {at("https://x", object{"caBundle": object{"secretRef": object{"name": "a", "namespace": "kube-system"}}}), nil, "NamespaceNotAllowed", []string{"kube-system/a", "--hooks-namespaces"}},
		"no-path":      {at(h.URL), history("spec..template"), "Invalid", []string{"fieldPaths[0]", "spec.template"}},
		"a-list":       {at(h.URL), history("spec", "spec.items[0]"), "Invalid", []string{"fieldPaths[1]", "lists"}},
		"own-status":   {at(h.URL), history("status.phase"), "Invalid", []string{"fieldPaths[0]", "status.phase"}},
		"no-home": {at(h.URL), object{"parentResource": object{"apiVersion": "example.com/v1", "resource": "clusterthings"}, "childResources": []any{
			object{"apiVersion": "v1", "resource": "configmaps", "updateStrategy": object{"method": "RollingInPlace"}},
		}}, "Invalid", []string{"rolling", "clusterthings"}},
		"two-versions": {at(h.URL), object{"childResources": []any{object{"apiVersion": "v1", "resource": "configmaps"}, object{"apiVersion": "v1", "resource": "configmaps"}}}, "Invalid", []string{"twice"}},
		"two-ways":     {at("https://x", object{"authorization": secretOf("a"), "basicAuth": secretOf("a")}), nil, "Invalid", []string{"authorization and basicAuth"}},
		"basic":        {at("https://x", object{"authorization": object{"type": "basic", "secretRef": secretOf("a")["secretRef"]}}), nil, "Invalid", []string{"basicAuth"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := "wrong-" + name
			create(t, composite(name, object{"sync": each.hook}, "InPlace", each.with))
			reason := map[string]string{"NoStatus": "SyncError", "MissingRight": "SyncError"}[each.reason]
			event(t, "CompositeController", "", name, cmp.Or(reason, "CreateError"), append(each.has, each.reason)...)
			condition(t, "CompositeController", name, "Ready", metav1.ConditionFalse, each.reason, each.has...)
			if each.reason == "MissingRight" || each.reason == "NoStatus" {
				return // they are tried again
			}
			told := func() int { return logged.FilterField(zap.String("controller", name)).Len() }
			testkit.Eventually(t, "it is logged", func(context.Context) bool { return told() > 0 })
			time.Sleep(200 * time.Millisecond) // the event of its own status is none to wait for
			if told() != 1 {
				t.Errorf("it is logged %d times", told())
			}
		})
	}
	t.Run("fields without effect", func(t *testing.T) {
		t.Parallel()
		hook := at(h.URL, object{"path": "/x", "newer": true})
		create(t, composite("wrong-fields", object{"sync": hook, "preUpdateChild": hook}, "RollingInPlace", object{
			"alsoNewer":       1,
			"endpointConfigs": []any{object{"name": "x"}},
		}))
		condition(t, "CompositeController", "wrong-fields", "Honored", metav1.ConditionFalse, "IgnoredFields",
			"alsoNewer", "newer", "preUpdateChild", "endpointConfigs[0]", "path have no effect")
		condition(t, "CompositeController", "wrong-fields", "Ready", metav1.ConditionTrue, "")
	})
}

func TestTheStatusOfAControllerIsWrittenASecondAfterItsChange(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(http.ResponseWriter, *request) any { return object{} })
	u := create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	changed := u.GetCreationTimestamp().Time
	for generation := int64(1); generation <= 2; generation++ {
		var now *unstructured.Unstructured
		testkit.Eventually(t, "the status is of this generation", func(context.Context) bool {
			now = get(t, "metacontroller.k8s.io/v1alpha1", "CompositeController", "", namespace)
			observed, _, _ := unstructured.NestedInt64(now.Object, "status", "observedGeneration")
			return observed == generation
		})
		for _, fields := range now.GetManagedFields() {
			if after := fields.Time.Sub(changed); fields.Subresource == "status" && after < time.Second {
				t.Errorf("the status of generation %d came after %s: a client that changed the object again, with the version that it knows, would have a conflict", generation, after)
			}
		}
		_ = unstructured.SetNestedField(now.Object, int64(60), "spec", "resyncPeriodSeconds")
		if err := admin.Update(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		for _, fields := range now.GetManagedFields() {
			if fields.Subresource == "" && fields.Time.After(changed) {
				changed = fields.Time.Time
			}
		}
	}
}

// This test runs while the others wait: it changes a kind that they use.
func TestConditionsThatTheirDefinitionDropsAreSaid(t *testing.T) {
	running(t)
	name := testkit.Namespace(t, admin)
	h := serve(t, func(http.ResponseWriter, *request) any { return object{"status": object{"called": true}} })
	probe := create(t, composite(name+"-probe", object{}, ""))
	kept := func(want bool) {
		t.Helper()
		testkit.Within(t, time.Minute, fmt.Sprint("conditions are kept: ", want), func(ctx context.Context) bool {
			u := probe.DeepCopy()
			patch := `{"status":{"conditions":[{"type":"Probe","status":"True","reason":"A","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
			err := admin.Status().Patch(ctx, u, client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
			_, has, _ := unstructured.NestedFieldNoCopy(u.Object, "status", "conditions")
			return err == nil && has == want
		})
	}
	kept(true)
	status := func(schema any) any {
		t.Helper()
		definition := get(t, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "compositecontrollers.metacontroller.k8s.io")
		versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
		properties, _, _ := unstructured.NestedMap(versions[0].(object), "schema", "openAPIV3Schema", "properties")
		was := properties["status"]
		properties["status"] = schema
		_ = unstructured.SetNestedMap(versions[0].(object), properties, "schema", "openAPIV3Schema", "properties")
		_ = unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions")
		if err := admin.Update(t.Context(), definition); err != nil {
			t.Fatal(err)
		}
		return was
	}
	ours := status(object{"type": "object"}) // as in Metacontroller's definition
	defer func() {
		status(ours)
		kept(true)
	}()
	kept(false)
	create(t, composite(name, object{"sync": at(h.URL)}, ""))
	event(t, "CompositeController", "", name, "ConditionsLost", "compositecontrollers.metacontroller.k8s.io", "apply")
	if told := logged.FilterField(zap.String("controller", name)).FilterMessageSnippet("conditions"); told.Len() != 1 {
		t.Errorf("it is logged %d times", told.Len())
	}
	create(t, thing(name, "a"))
	testkit.Eventually(t, "the hook is called all the same", func(context.Context) bool { return len(h.asked("")) > 0 })
}

// The API server names each rule of the role admin that the operator does not have: 20 KiB.
func TestAMissingRightToWriteIsNamedOnceAndShortlyAndItsGrantNoticed(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(http.ResponseWriter, *request) any {
		return object{"children": []any{roleBinding("x", "admin"), configMap("y", nil)}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "", object{
		"childResources": []any{object{"apiVersion": "rbac.authorization.k8s.io/v1", "resource": "rolebindings"}, object{"apiVersion": "v1", "resource": "configmaps"}},
	}))
	create(t, thing(namespace, "a"))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "MissingRight", "rolebindings", "x", "Grant the verb bind on the role", hook.LabelAggregate)
	testkit.Eventually(t, "it is tried again", func(context.Context) bool { return len(h.asked("")) >= 5 })
	if get(t, "rbac.authorization.k8s.io/v1", "RoleBinding", namespace, "x") != nil {
		t.Error("the hook got more than the operator has")
	}
	told := logged.FilterField(zap.String("parent", namespace+"/a")).All()
	if len(told) != 1 || len(fmt.Sprint(told[0].ContextMap())) > 2048 {
		t.Errorf("logged %d times: %.3000v", len(told), told)
	}
	var events eventsv1.EventList
	if err := admin.List(t.Context(), &events, client.InNamespace(namespace)); err != nil || len(events.Items) != 1 || events.Items[0].Reason != "SyncError" || !strings.Contains(events.Items[0].Note, "MissingRight") {
		t.Errorf("Events %v, %v", events.Items, err)
	}
	if err := testkit.Apply(t.Context(), cluster, strings.ReplaceAll(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NAMESPACE}
rules: [{apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], resourceNames: [admin], verbs: [bind]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: bind, namespace: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NAMESPACE}
subjects: [{kind: ServiceAccount, namespace: hooks-system, name: hooks}]
`, "NAMESPACE", namespace)); err != nil {
		t.Fatal(err)
	}
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionTrue, "")
}

func TestCredentialsAreReadAgainWhenTheyAreRotated(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "authorization: rotation")
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		return object{"status": object{"as": r.header.Get("Authorization")}}
	})
	secret := named("v1", "Secret", "credentials", namespace, object{"data": object{"token": base64.StdEncoding.EncodeToString([]byte("one"))}})
	create(t, secret)
	create(t, composite(namespace, object{"sync": at(h.URL, object{"authorization": object{"secretRef": object{"name": namespace, "namespace": "credentials"}}})}, "InPlace"))
	create(t, thing(namespace, "a"))
	for _, token := range []string{"one", "two"} {
		if token == "two" {
			u := get(t, "v1", "Secret", "credentials", namespace)
			u.Object["data"] = object{"token": base64.StdEncoding.EncodeToString([]byte(token))}
			if err := admin.Update(t.Context(), u); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Eventually(t, "the hook is called with "+token, func(context.Context) bool {
			as, _, _ := unstructured.NestedString(get(t, "example.com/v1", "Thing", namespace, "a").Object, "status", "as")
			return as == "Bearer "+token
		})
	}
}

func TestAPolicyThatDoesNotCompileIsAConditionWithItsLine(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "rego.inline")
	namespace := testkit.Namespace(t, admin)
	create(t, composite(namespace, object{"sync": object{"rego": object{"inline": "broken"}}}, "InPlace"))
	create(t, thing(namespace, "a"))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "PolicyInvalid", "inline:1: it is broken")
	u := get(t, "metacontroller.k8s.io/v1alpha1", "CompositeController", "", namespace)
	_ = unstructured.SetNestedField(u.Object, `{"status":{"by":"policy"}}`, "spec", "hooks", "sync", "rego", "inline")
	if err := admin.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the policy answers", func(context.Context) bool {
		by, _, _ := unstructured.NestedString(get(t, "example.com/v1", "Thing", namespace, "a").Object, "status", "by")
		return by == "policy"
	})
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionTrue, "")
}

func TestAnUpgradeFromMetacontrollerTakesItsChildrenOver(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "upgrade: children")
	for _, method := range []string{"InPlace", "Recreate", "OnDelete"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			namespace := testkit.Namespace(t, admin)
			parent := create(t, thing(namespace, "a"))
			isTrue := true
			child := &unstructured.Unstructured{Object: named("v1", "ConfigMap", namespace, "x", object{"data": object{"kept": "1", "dropped": "1"}})}
			child.SetLabels(map[string]string{compose.LabelControllerUID: string(parent.GetUID())})
			child.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Thing", Name: "a", UID: parent.GetUID(), Controller: &isTrue, BlockOwnerDeletion: &isTrue}})
			child.SetAnnotations(map[string]string{compose.AnnotationLastApplied: `{"data":{"kept":"1","dropped":"1"}}`})
			if err := admin.Create(t.Context(), child, client.FieldOwner("metacontroller")); err != nil {
				t.Fatal(err)
			}
			want := object{"kept": "1"}
			if method != "InPlace" {
				want["dropped"] = "1" // or it would have to be made anew
			}
			h := serve(t, func(_ http.ResponseWriter, r *request) any {
				return object{"children": []any{configMap("x", want)}, "status": object{"children": len(r.Children["ConfigMap.v1"])}}
			})
			create(t, composite(namespace, object{"sync": at(h.URL)}, method))
			testkit.Eventually(t, "it is taken over", func(context.Context) bool {
				now := get(t, "v1", "ConfigMap", namespace, "x")
				n, _, _ := unstructured.NestedInt64(get(t, "example.com/v1", "Thing", namespace, "a").Object, "status", "children")
				_, annotated := now.GetAnnotations()[compose.AnnotationLastApplied]
				_, dropped := data(t, namespace, "x")["dropped"]
				return n == 1 && (method == "OnDelete" || !annotated) && dropped == (method != "InPlace")
			})
			if now := get(t, "v1", "ConfigMap", namespace, "x"); now.GetUID() != child.GetUID() {
				t.Error("the child was made anew")
			}
		})
	}
}

func TestAClusterScopedParentHasChildrenInManyNamespaces(t *testing.T) {
	t.Parallel()
	running(t)
	for _, version := range []string{"v1", "v2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			covers(t, "children: keys of a cluster-scoped parent in "+version)
			namespace := testkit.Namespace(t, admin)
			h := serve(t, func(_ http.ResponseWriter, r *request) any {
				a, b := configMap("x", nil), named("example.com/v1", "ClusterThing", "", namespace+"-child")
				a["metadata"].(object)["namespace"] = namespace
				return object{"children": []any{a, b}, "status": object{"seen": r.Children["ConfigMap.v1"][namespace+"/x"] != nil && r.Children["ClusterThing.example.com/v1"][namespace+"-child"] != nil}}
			})
			create(t, composite(namespace, object{"sync": at(h.URL, object{"version": version})}, "", object{
				"parentResource": object{"apiVersion": "example.com/v1", "resource": "clusterthings", "labelSelector": object{"matchLabels": object{"test": namespace}}},
				"childResources": []any{object{"apiVersion": "v1", "resource": "configmaps"}, object{"apiVersion": "example.com/v1", "resource": "clusterthings"}},
			}))
			p := named("example.com/v1", "ClusterThing", "", namespace)
			p["metadata"].(object)["labels"] = object{"test": namespace}
			create(t, p)
			testkit.Eventually(t, "the hook sees both", func(context.Context) bool {
				seen, _, _ := unstructured.NestedBool(get(t, "example.com/v1", "ClusterThing", "", namespace).Object, "status", "seen")
				return seen
			})
		})
	}
}

func TestABusyHookIsCalledWhenItSaid(t *testing.T) {
	t.Parallel()
	running(t)
	covers(t, "429: Retry-After")
	namespace := testkit.Namespace(t, admin)
	var first time.Time
	h := serve(t, func(w http.ResponseWriter, _ *request) any {
		if first.IsZero() {
			first = time.Now()
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusTooManyRequests)
			return nil
		}
		return object{"status": object{"after": fmt.Sprint(time.Since(first).Milliseconds())}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	create(t, thing(namespace, "a"))
	testkit.Eventually(t, "it is called again", func(context.Context) bool {
		after, ok, _ := unstructured.NestedString(get(t, "example.com/v1", "Thing", namespace, "a").Object, "status", "after")
		if waited, err := strconv.Atoi(after); ok && (err != nil || waited < 1900) {
			t.Fatalf("the next call came after %s ms", after)
		}
		return ok
	})
}
