package compose_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/hook/protocol"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

var (
	pod  = compose.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Namespaced: true, Method: v1alpha1.InPlace}
	role = compose.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}}
)

func newObject(kind compose.Kind, namespace, name string, change ...func(*compose.Object)) *compose.Object {
	o := &compose.Object{Object: map[string]any{}}
	o.SetGroupVersionKind(kind.GroupVersionKind)
	o.SetNamespace(namespace)
	o.SetName(name)
	for _, c := range change {
		c(o)
	}
	return o
}

func parent(namespace string) *compose.Object {
	return newObject(compose.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"}}, namespace, "p", func(o *compose.Object) { o.SetUID("uid") })
}

func TestOnlyWhatNobodyElseOwnsIsClaimed(t *testing.T) {
	mine, other, isTrue := compose.OwnerReference(parent("a")), metav1.OwnerReference{UID: "other"}, true
	other.Controller = &isTrue
	owned := func(ref metav1.OwnerReference) func(*compose.Object) {
		return func(o *compose.Object) { o.SetOwnerReferences([]metav1.OwnerReference{ref}) }
	}
	app := func(o *compose.Object) { o.SetLabels(map[string]string{"app": "x"}) }
	going := func(o *compose.Object) { now := metav1.Now(); o.SetDeletionTimestamp(&now) }
	objects := []*compose.Object{
		newObject(pod, "a", "kept", owned(mine), app), newObject(pod, "a", "released", owned(mine)), newObject(pod, "a", "adopted", app),
		newObject(pod, "a", "foreign", owned(other), app), newObject(pod, "a", "stranger"), newObject(pod, "a", "going", app, going),
	}
	selector := labels.SelectorFromSet(labels.Set{"app": "x"})
	names := func(all []*compose.Object) (names string) {
		for _, o := range all {
			names += o.GetName() + " "
		}
		return names
	}
	c := compose.Claim(parent("a"), selector, objects)
	if got := names(c.Owned) + "/ " + names(c.Adopt) + "/ " + names(c.Release); got != "kept / adopted / released " {
		t.Error(got)
	}
	deleted := parent("a")
	going(deleted)
	if c := compose.Claim(deleted, selector, objects); len(c.Adopt) > 0 {
		t.Error("a parent that is being deleted adopts")
	}
	if c := compose.Claim(parent("a"), nil, objects); names(c.Owned) != "kept released " || len(c.Adopt) > 0 {
		t.Error("attachments are told by their owner alone")
	}
}

func TestASelectorThatSelectsWhatHasNoLabelIsRefused(t *testing.T) {
	expression := func(operator string, values ...any) map[string]any {
		return map[string]any{"matchExpressions": []any{map[string]any{"key": "app", "operator": operator, "values": values}}}
	}
	for name, each := range map[string]struct {
		selector map[string]any
		refused  bool
	}{
		"empty":        {map[string]any{}, true},
		"DoesNotExist": {expression("DoesNotExist"), true},
		"NotIn":        {expression("NotIn", "a"), true},
		"In":           {expression("In", "a"), false},
		"Exists":       {expression("Exists"), false},
		"matchLabels":  {map[string]any{"matchLabels": map[string]any{"app": "a"}}, false},
	} {
		p := parent("a")
		p.Object["spec"] = map[string]any{"selector": each.selector}
		if _, err := compose.Selector(p, false); (err != nil) != each.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGroupsHaveTheKeysOfTheirVersion(t *testing.T) {
	kinds := []compose.Kind{pod, role}
	for _, each := range []struct {
		version protocol.Version
		home    string
		want    string
	}{{protocol.V1, "a", "x"}, {protocol.V1, "", "a/x"}, {protocol.V2, "a", "a/x"}, {protocol.V2, "", "a/x"}} {
		g := compose.Group(each.version, parent(each.home), kinds, []*compose.Object{newObject(pod, "a", "x")})
		if g["Pod.v1"][each.want] == nil || g["ClusterRole.rbac.authorization.k8s.io/v1"] == nil {
			t.Errorf("%s of a parent in %q: %v", each.version, each.home, g)
		}
	}
}

func TestWhatAHookReturnsIsCompleteOrAnError(t *testing.T) {
	rules := compose.Rules{Kinds: []compose.Kind{pod, role}, Selector: labels.SelectorFromSet(labels.Set{"controller-uid": "uid"}), Labels: map[string]string{"controller-uid": "uid"}}
	for name, each := range map[string]struct {
		home     string
		children []*compose.Object
		want     string
	}{
		"the namespace is the parent's":     {"a", []*compose.Object{newObject(pod, "", "x")}, ""},
		"another namespace":                 {"a", []*compose.Object{newObject(pod, "b", "x")}, "namespace a"},
		"none at all":                       {"", []*compose.Object{newObject(pod, "", "x")}, "no metadata.namespace"},
		"any, of a parent without one":      {"", []*compose.Object{newObject(pod, "b", "x"), newObject(role, "", "x")}, ""},
		"a cluster's object in a namespace": {"a", []*compose.Object{newObject(role, "", "x")}, "cannot be owned"},
		"a kind that is not listed":         {"a", []*compose.Object{newObject(compose.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Secret"}}, "", "x")}, "does not list"},
		"twins":                             {"a", []*compose.Object{newObject(pod, "", "x"), newObject(pod, "a", "x")}, "two of"},
		"a label that the selector refuses": {"a", []*compose.Object{newObject(pod, "", "x", func(o *compose.Object) { o.SetLabels(map[string]string{"controller-uid": "b"}) })}, "do not match"},
	} {
		prepared, err := compose.Prepare(parent(each.home), rules, each.children)
		if (err == nil) != (each.want == "") || err != nil && !strings.Contains(err.Error(), each.want) {
			t.Errorf("%s: %v, want %q", name, err, each.want)
		}
		for _, child := range prepared {
			if child.GetLabels()["controller-uid"] != "uid" || metav1.GetControllerOf(child).UID != "uid" {
				t.Errorf("%s: %v", name, child)
			}
		}
	}
	full := newObject(pod, "", "x", func(o *compose.Object) {
		o.SetUID("1")
		o.SetResourceVersion("2")
		o.SetAnnotations(map[string]string{compose.AnnotationLastApplied: "{}", compose.AnnotationApplied: "{}"})
		o.Object["status"] = map[string]any{"phase": "Running"}
	})
	prepared, err := compose.Prepare(parent("a"), rules, []*compose.Object{full})
	if err != nil {
		t.Fatal(err)
	}
	p := prepared[0]
	if p.GetUID() != "" || p.GetResourceVersion() != "" || len(p.GetAnnotations()) > 0 || p.Object["status"] != nil {
		t.Errorf("what only the API server sets is still there: %v", p)
	}
	full.Object["metadata"].(map[string]any)["annotations"] = map[string]any{"null": nil, "kept": "yes"}
	full.Object["metadata"].(map[string]any)["labels"] = map[string]any{"null": nil, "kept": "yes"}
	if prepared, err = compose.Prepare(parent("a"), rules, []*compose.Object{full}); err != nil {
		t.Fatal(err)
	}
	if p := prepared[0]; p.GetAnnotations()["kept"] != "yes" || p.GetLabels()["kept"] != "yes" || len(p.GetAnnotations()) != 1 {
		t.Errorf("a null label or annotation is still there, or others are not: %v", p)
	}
	if full.GetUID() != "1" {
		t.Error("the response was changed")
	}
}

func TestThePlanFollowsTheMethod(t *testing.T) {
	going := func(o *compose.Object) { now := metav1.Now(); o.SetDeletionTimestamp(&now) }
	observed := []*compose.Object{newObject(pod, "a", "same"), newObject(pod, "a", "old"), newObject(pod, "a", "going", going), newObject(pod, "a", "leaving", going)}
	wanted := []*compose.Object{newObject(pod, "a", "same"), newObject(pod, "a", "new"), newObject(pod, "a", "going")}
	p := compose.Plan([]compose.Kind{pod}, observed, wanted)
	if len(p.Create) != 1 || p.Create[0].GetName() != "new" || len(p.Update) != 1 || p.Update[0].Wanted.GetName() != "same" || len(p.Delete) != 1 || p.Delete[0].GetName() != "old" {
		t.Errorf("%+v", p)
	}
	kind := pod
	kind.Method = v1alpha1.OnDelete
	if p := compose.Plan([]compose.Kind{kind}, observed, wanted); len(p.Update) > 0 {
		t.Error("OnDelete updates")
	}
}

func TestTheNextTimeIsTheFirstThatIsToCome(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	p := parent("a")
	p.Object["validUntil"] = "2031-01-01T00:00:00Z"
	p.Object["spec"] = map[string]any{"past": "2029-01-01T00:00:00Z", "all": []any{"2030-06-01T02:00:00+02:00", "2030-13-01T00:00:00Z"}}
	p.Object["status"] = map[string]any{"next": "2030-01-02T00:00:00Z"}
	if next, ok := compose.NextTime(p, now); !ok || !next.Equal(time.Date(2030, 6, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("%s, %v", next, ok)
	}
	if next, ok := compose.NextTime(p, now.AddDate(5, 0, 0)); ok {
		t.Errorf("after all of them it is %s", next)
	}
}

func TestADifferenceNamesItsField(t *testing.T) {
	a := newObject(pod, "a", "x", func(o *compose.Object) {
		o.Object["spec"] = map[string]any{"list": []any{map[string]any{"n": int64(1)}}}
		o.SetResourceVersion("1")
		o.SetAnnotations(map[string]string{compose.AnnotationLastApplied: "{}"})
	})
	b := a.DeepCopy()
	b.SetResourceVersion("2")
	b.SetAnnotations(map[string]string{compose.AnnotationApplied: "{}"})
	b.Object["status"] = "other"
	if field := compose.Difference(a, b); field != "" {
		t.Errorf("they differ in %s", field)
	}
	b.Object["spec"].(map[string]any)["list"].([]any)[0].(map[string]any)["n"] = int64(2)
	if field := compose.Difference(a, b); field != "spec.list[0].n" {
		t.Errorf("they differ in %q", field)
	}
}

func TestALabelSaysUntilWhenAChildIs(t *testing.T) {
	at := time.Date(2030, 1, 1, 23, 0, 0, 250e6, time.FixedZone("", 3600))
	for _, labels := range []map[string]string{nil, {compose.LabelValidUntil: ""}, {compose.LabelValidUntil: "20200101T000000Z"}} {
		child := &compose.Object{Object: map[string]any{}}
		child.SetLabels(labels)
		compose.SetUntil(child, at)
		if got := child.GetLabels()[compose.LabelValidUntil]; got != "20300101T220000.25Z" || len(validation.IsValidLabelValue(got)) > 0 {
			t.Errorf("%v: the label is %q", labels, got)
		}
		if got, ends := compose.Until(child); !ends || !got.Equal(at) {
			t.Errorf("%v: it ends at %s, %t", labels, got, ends)
		}
		compose.SetUntil(child, time.Time{})
		if _, ends := compose.Until(child); ends || child.GetLabels() != nil {
			t.Errorf("%v: without an end it has %v", labels, child.GetLabels())
		}
	}
	child := &compose.Object{Object: map[string]any{}}
	child.SetLabels(map[string]string{compose.LabelValidUntil: "never"})
	if got, ends := compose.Until(child); !ends || got.After(at) {
		t.Errorf("what is no time ends at %s, %t", got, ends)
	}
	compose.SetUntil(child, time.Time{})
	child.SetLabels(map[string]string{compose.LabelValidUntil: ""})
	compose.SetUntil(child, time.Time{})
	if labels := child.GetLabels(); labels != nil {
		t.Errorf("an empty label stays: %v", labels)
	}
}
