package memcluster

import (
	"fmt"
	"maps"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/admitkit/admitkit/internal/kinds"
)

// delete answers a DELETE of one object, or of a collection.
func (c *Cluster) delete(p *call, path string, live *unstructured.Unstructured) (any, error) {
	if p.name != "" {
		return success(p, live), c.deleteOne(p, path, live)
	}
	if kind, known := c.Kinds.Of(p.resource.GroupResource()); known && c.Kinds.Namespaced(kind.GroupKind()) == (p.namespace == "") || kinds.IsNamespace(kind) {
		return nil, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "delete", schema.GroupResource{}, "", "", 0, false)
	}
	for _, path := range slices.Sorted(maps.Keys(c.objects)) {
		object := c.objects[path]
		if !c.isIn(p, path, object) {
			continue
		}
		if err := c.deleteOne(p, path, object); err != nil {
			return nil, err
		}
	}
	return success(p, nil), nil
}

// deleteOne deletes an object, or marks it as deleted if it has finalizers.
func (c *Cluster) deleteOne(p *call, path string, live *unstructured.Unstructured) error {
	kind := p.resource.GroupResource()
	kind.Resource = live.GetKind() // as in BeforeDelete of k8s.io/apiserver
	if only := p.deletion.Preconditions; only != nil {
		if only.UID != nil && *only.UID != live.GetUID() {
			return apierrors.NewConflict(kind, live.GetName(), fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *only.UID, live.GetUID()))
		}
		if only.ResourceVersion != nil && *only.ResourceVersion != live.GetResourceVersion() {
			return apierrors.NewConflict(kind, live.GetName(), fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *only.ResourceVersion, live.GetResourceVersion()))
		}
	}
	switch {
	case p.dryRun:
	case len(live.GetFinalizers()) == 0:
		c.remove(path)
	case live.GetDeletionTimestamp() == nil:
		marked := live.DeepCopy()
		marked.SetDeletionTimestamp(new(metav1.Now().Rfc3339Copy()))
		marked.SetDeletionGracePeriodSeconds(new(int64))
		if marked.GetGeneration() > 0 {
			marked.SetGeneration(marked.GetGeneration() + 1)
		}
		c.put(path, marked)
	}
	return nil
}

// remove removes an object.
func (c *Cluster) remove(path string) {
	before := c.objects[path]
	delete(c.objects, path)
	c.note(watch.Deleted, path, before, before.DeepCopy())
}

// isReleased reports whether an update takes the last finalizer from a deleted object. A
// Pod that a test gives as terminating has none.
func isReleased(live, object *unstructured.Unstructured) bool {
	grace := live.GetDeletionGracePeriodSeconds()
	return live.GetDeletionTimestamp() != nil && (grace == nil || *grace == 0) && len(live.GetFinalizers()) > 0 && len(object.GetFinalizers()) == 0
}

// success is the answer to a DELETE. The API server returns the object of some kinds, which
// clients ignore.
func success(p *call, object *unstructured.Unstructured) metav1.Status {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess, Code: http.StatusOK,
		Details: &metav1.StatusDetails{Name: p.name, Group: p.resource.Group, Kind: p.resource.Resource},
	}
	if object != nil {
		status.Details.UID = object.GetUID()
	}
	return status
}
