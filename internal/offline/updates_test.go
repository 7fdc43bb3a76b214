package offline_test

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/extension/manifest"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// updates has objects and other values for their fields.
//
//go:embed testdata/updates.yaml
var updates []byte

// changing is an object with changes: overlays, of which each field that differs is a case
// of its own, and whole ones.
type changing struct {
	object, changes map[string]any
	more            []any
}

func allChanging(t *testing.T) []changing {
	t.Helper()
	var all []changing
	for document, err := range manifest.Documents(bytes.NewReader(updates)) {
		var fields map[string]any
		if err == nil {
			err = utiljson.Unmarshal(document, &fields)
		}
		if err != nil {
			t.Fatal(err)
		}
		next := changing{}
		next.object, _ = fields["object"].(map[string]any)
		next.changes, _ = fields["changes"].(map[string]any)
		next.more, _ = fields["more"].([]any)
		all = append(all, next)
	}
	return all
}

// overlay returns the object with the fields of another. A list is replaced, but the
// elements of one of the same length are merged.
func overlay(object, with any) any {
	switch with := with.(type) {
	case map[string]any:
		result := map[string]any{}
		if object, ok := object.(map[string]any); ok {
			maps.Copy(result, object)
		}
		for key, value := range with {
			result[key] = overlay(result[key], value)
		}
		return result
	case []any:
		if object, ok := object.([]any); ok && len(object) == len(with) {
			result := slices.Clone(with)
			for i := range with {
				result[i] = overlay(object[i], with[i])
			}
			return result
		}
	}
	return with
}

// each calls do with the object that has one difference of the two at a time: each field,
// and each field with all below it.
func each(from, to any, do func(any)) {
	if reflect.DeepEqual(from, to) {
		return
	}
	do(to)
	switch to := to.(type) {
	case map[string]any:
		old, _ := from.(map[string]any)
		for key := range to {
			each(old[key], to[key], func(value any) {
				changed := map[string]any{}
				maps.Copy(changed, old)
				changed[key] = value
				do(changed)
			})
		}
	case []any:
		old, _ := from.([]any)
		if len(old) != len(to) {
			return
		}
		for i := range to {
			each(old[i], to[i], func(value any) {
				changed := slices.Clone(old)
				changed[i] = value
				do(changed)
			})
		}
	}
}

// without calls do with the object that lacks one of the fields of another at a time.
func without(object, fields any, do func(any)) {
	switch fields := fields.(type) {
	case map[string]any:
		object, ok := object.(map[string]any)
		if !ok {
			return
		}
		for key := range fields {
			if key != "metadata" {
				rest := maps.Clone(object)
				delete(rest, key)
				do(rest)
			}
			without(object[key], fields[key], func(value any) {
				changed := maps.Clone(object)
				changed[key] = value
				do(changed)
			})
		}
	case []any:
		object, ok := object.([]any)
		if !ok || len(object) != len(fields) {
			return
		}
		for i := range fields {
			do(slices.Delete(slices.Clone(object), i, i+1))
			without(object[i], fields[i], func(value any) {
				changed := slices.Clone(object)
				changed[i] = value
				do(changed)
			})
		}
	}
}

// cases returns what the changes make of the stored object, and what is left of it if each
// of its fields is removed.
func (c changing) cases(stored map[string]any, removed bool) []map[string]any {
	found := map[string]map[string]any{}
	add := func(object any) {
		text, _ := json.Marshal(object) // it was decoded from JSON
		found[string(text)] = object.(map[string]any)
	}
	each(stored, overlay(stored, c.changes), add)
	if removed {
		written := runtime.DeepCopyJSON(c.object)
		unstructured.RemoveNestedField(written, "metadata", "name")
		for _, key := range []string{"apiVersion", "kind", "status"} {
			delete(written, key)
		}
		without(stored, written, add)
	}
	for _, more := range c.more {
		add(overlay(stored, more))
	}
	whole, _ := json.Marshal(stored)
	delete(found, string(whole))
	var all []map[string]any
	for _, text := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[text])
	}
	return all
}

type verdicts struct {
	*testing.T
	client       dynamic.Interface
	kinds        *offline.Kinds
	tried, wrong int
}

func TestAnUpdateIsLawfulIfTheAPIServerTakesIt(t *testing.T) {
	quiet := rest.CopyConfig(controlplane.Run(t, controlplane.Options{}).Config())
	quiet.WarningHandler = rest.NoWarnings{}
	version, err := discovery.NewDiscoveryClientForConfigOrDie(quiet).ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if minor, err := strconv.Atoi(version.Minor); err != nil || minor < 37 {
		t.Skipf("the laws are those of Kubernetes 1.37, and this is %s (%v)", version, err)
	}
	v := &verdicts{T: t, client: dynamic.NewForConfigOrDie(quiet), kinds: offline.KindsOf(&kinds.Table{})}
	for _, next := range allChanging(t) {
		v.try(next)
	}
	t.Logf("FIGURE laws.cases=%d cases", v.tried)
	t.Logf("FIGURE laws.wrong=%d cases", v.wrong)
}

func (v *verdicts) wrongf(stored, changed *unstructured.Unstructured, sub, format string, args ...any) {
	v.Helper()
	v.wrong++
	from, errFrom := stored.MarshalJSON()
	to, errTo := changed.MarshalJSON()
	diff, errDiff := offline.Diff(from, to)
	if err := errors.Join(errFrom, errTo, errDiff); err != nil {
		v.Error(err)
	}
	v.Errorf("%s %s %s:\n%s\n%s", stored.GetKind(), stored.GetName(), sub, diff, fmt.Sprintf(format, args...))
}

func (v *verdicts) resource(object *unstructured.Unstructured) dynamic.ResourceInterface {
	kind := object.GroupVersionKind()
	resource := v.client.Resource(v.kinds.Resource(kind))
	if v.kinds.Namespaced(kind.GroupKind()) {
		return resource.Namespace("default")
	}
	return resource
}

// create makes the object, with its status.
func (v *verdicts) create(object map[string]any) *unstructured.Unstructured {
	v.Helper()
	wanted := &unstructured.Unstructured{Object: object}
	resource := v.resource(wanted)
	made, err := resource.Create(v.Context(), wanted, metav1.CreateOptions{})
	if err != nil {
		v.Fatalf("%s %s: %v", wanted.GetKind(), wanted.GetName(), err)
	}
	if status, has := object["status"]; has {
		made.Object["status"] = status
		if made, err = resource.UpdateStatus(v.Context(), made, metav1.UpdateOptions{}); err != nil {
			v.Fatalf("%s %s: %v", wanted.GetKind(), wanted.GetName(), err)
		}
	}
	return made
}

func (v *verdicts) try(next changing) {
	stored := v.create(next.object)
	if stored.GetKind() == "CustomResourceDefinition" {
		v.establish(stored)
	}
	stored.SetManagedFields(nil)
	for _, sub := range append(v.kinds.Subresources(stored.GroupVersionKind().GroupKind()), "") {
		if !slices.Contains([]string{"", "status", "resize", "ephemeralcontainers", "finalize", "approval"}, sub) {
			continue // its objects are of another kind
		}
		for _, changed := range next.cases(stored.Object, sub == "") {
			v.compare(stored, &unstructured.Unstructured{Object: changed}, sub)
		}
	}
}

// establish waits until the API server serves the kind of a CRD.
func (v *verdicts) establish(crd *unstructured.Unstructured) {
	if err := v.kinds.Add(crd); err != nil {
		v.Fatal(err)
	}
	until(v.T, "the CRD to be served", func(ctx context.Context) bool {
		for kind := range v.kinds.Custom() {
			if _, err := v.client.Resource(v.kinds.Resource(kind.WithVersion("v1"))).List(ctx, metav1.ListOptions{}); err != nil {
				return false
			}
		}
		return true
	})
}

// compare compares what the API server says to an update with what the laws say if a
// webhook makes it.
func (v *verdicts) compare(stored, changed *unstructured.Unstructured, sub string) {
	v.Helper()
	got, err := v.update(changed, sub)
	if err != nil && !v.valid(changed) {
		return // it is refused for what it is, not because it differs
	}
	refusals, vain := v.laws(stored, changed, sub)
	v.tried++
	switch {
	case err != nil && len(refusals) == 0:
		v.wrongf(stored, changed, sub, "is lawful, and refused: %v", err)
	case err == nil && len(settings("", got.Object, changed.Object)) == 0 && len(settings("", changed.Object, got.Object)) > 0:
		// A field that was taken away has its default again, and the laws know no defaults.
	case err == nil && len(refusals) > 0:
		v.wrongf(stored, changed, sub, "is unlawful: %v, and taken", refusals)
	case err == nil:
		asked, given := settings("", stored.Object, changed.Object), settings("", stored.Object, got.Object)
		for path := range asked {
			said := slices.ContainsFunc(vain, func(s string) bool { return strings.HasPrefix(s, path+": ") })
			if _, changes := given[path]; changes == said {
				v.wrongf(stored, changed, sub, "%s changes: %t, and is said to be in vain: %t", path, changes, said)
			}
		}
	}
}

// update sends the object as a dry run, as it is, and by a subresource.
func (v *verdicts) update(changed *unstructured.Unstructured, sub string) (*unstructured.Unstructured, error) {
	var subresources []string
	if sub != "" {
		subresources = []string{sub}
	}
	resource := v.resource(changed)
	for {
		got, err := resource.Update(v.Context(), changed, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}, subresources...)
		if !apierrors.IsConflict(err) {
			return got, err
		}
		current, err := resource.Get(v.Context(), changed.GetName(), metav1.GetOptions{})
		if err != nil {
			v.Fatal(err)
		}
		changed.SetResourceVersion(current.GetResourceVersion())
	}
}

// valid reports whether the API server would take the object as a new one.
func (v *verdicts) valid(object *unstructured.Unstructured) bool {
	fresh := object.DeepCopy()
	fresh.SetResourceVersion("")
	fresh.SetUID("")
	if fresh.GetKind() != "CustomResourceDefinition" && fresh.GetKind() != "IPAddress" {
		fresh.SetName("fresh")
	}
	_, err := v.resource(fresh).Create(v.Context(), fresh, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err == nil || apierrors.IsAlreadyExists(err)
}

// laws returns the changes that are refused and those that are ignored, by the laws.
func (v *verdicts) laws(stored, changed *unstructured.Unstructured, sub string) (refusals, vain []string) {
	v.Helper()
	newRequest := v.kinds.NewRequest
	if sub != "" {
		newRequest = func(operation admissionv1.Operation, object, old *unstructured.Unstructured, namespace string) (*offline.Request, error) {
			return v.kinds.NewSubresourceRequest(operation, sub, object, old, namespace)
		}
	}
	req, err := newRequest(admissionv1.Update, stored, stored, "default")
	if err != nil {
		v.Fatal(err)
	}
	to, err := changed.MarshalJSON()
	if err == nil {
		refusals, vain, err = req.Lost(req.Object, to)
	}
	if err != nil {
		v.Fatal(err)
	}
	return refusals, vain
}

// settings returns the values that an object has and another has not, by their paths.
func settings(path string, from, to any) map[string]any {
	set := map[string]any{}
	if text := fmt.Sprint(to); reflect.DeepEqual(from, to) || text == "<nil>" || text == "" || text == "[]" || text == "map[]" {
		return set // what is empty may get a default
	}
	switch to := to.(type) {
	case map[string]any:
		old, _ := from.(map[string]any)
		for key := range to {
			maps.Copy(set, settings(strings.TrimPrefix(path+"."+key, "."), old[key], to[key]))
		}
		return set
	case []any:
		if old, _ := from.([]any); len(old) == len(to) {
			for i := range to {
				maps.Copy(set, settings(path+"."+strconv.Itoa(i), old[i], to[i]))
			}
			return set
		}
	}
	set[path] = to
	return set
}
