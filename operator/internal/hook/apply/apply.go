// Package apply makes children what hooks want, by server-side apply.
package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// FieldManager is the field manager of all writes to children.
const FieldManager = "admitkit-hooks"

// ErrForeign says that an object of the name of a child belongs to somebody else.
var ErrForeign = errors.New("an object of this name exists and belongs to somebody else")

// Object is any object.
type Object = compose.Object

// Create makes a child that the cache does not have. It does not force: if somebody has
// made an object of this name meanwhile, which says otherwise, that is [ErrForeign], and
// the object stays as it is.
func Create(ctx context.Context, c dynamic.ResourceInterface, wanted *Object) (*Object, error) {
	body, err := json.Marshal(wanted.Object)
	if err != nil {
		return nil, err
	}
	made, err := c.Patch(ctx, wanted.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: FieldManager})
	if apierrors.IsConflict(err) {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return made, err
}

// InPlace applies. If nothing changes, the API server writes nothing, and the resource
// version is that of observed.
func InPlace(ctx context.Context, c dynamic.ResourceInterface, observed, wanted *Object) (*Object, error) {
	if err := takeOver(ctx, c, observed); err != nil {
		return nil, err
	}
	return apply(ctx, c, observed, wanted, nil)
}

// WouldChange returns the object that an apply would make, and the path of the first field
// that it would change, or "". Where an apply is invalid, as of an immutable field, the
// path is that of the field at fault.
func WouldChange(ctx context.Context, c dynamic.ResourceInterface, observed, wanted *Object) (path string, err error) {
	if err := takeOver(ctx, c, observed); err != nil {
		return "", err
	}
	after, err := apply(ctx, c, observed, wanted, []string{metav1.DryRunAll})
	if status := apierrors.APIStatus(nil); apierrors.IsInvalid(err) && errors.As(err, &status) {
		if d := status.Status().Details; d != nil && len(d.Causes) > 0 && d.Causes[0].Field != "" {
			return d.Causes[0].Field, nil
		}
		return "spec", nil
	}
	if err != nil {
		return "", err
	}
	return compose.Difference(observed, after), nil
}

func apply(ctx context.Context, c dynamic.ResourceInterface, observed, wanted *Object, dryRun []string) (*Object, error) {
	wanted = wanted.DeepCopy()
	// An object of the same name that took its place meanwhile is another.
	wanted.SetUID(observed.GetUID())
	body, err := json.Marshal(wanted.Object)
	if err != nil {
		return nil, err
	}
	force := true
	return c.Patch(ctx, wanted.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: FieldManager, Force: &force, DryRun: dryRun})
}

// takeOver makes the fields ours that Metacontroller applied, and ends its annotation: a
// field that the hook returns no more goes, as it would have gone there. The managers are
// those who wrote the annotation.
func takeOver(ctx context.Context, c dynamic.ResourceInterface, observed *Object) error {
	if !annotated(observed) {
		return nil
	}
	live, err := c.Get(ctx, observed.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if live.GetUID() != observed.GetUID() {
		return fmt.Errorf("%s has been made anew", compose.IDOf(observed))
	}
	if !annotated(live) {
		return nil
	}
	annotation := fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "annotations", compose.AnnotationLastApplied))
	writers := csaupgrade.FindFieldsOwners(live.GetManagedFields(), metav1.ManagedFieldsOperationUpdate, annotation)
	names := sets.New[string]()
	for _, w := range writers {
		names.Insert(w.Manager)
	}
	if err := csaupgrade.UpgradeManagedFields(live, names, FieldManager); err != nil {
		return fmt.Errorf("taking over what Metacontroller applied: %w", err)
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": live.GetManagedFields()},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": live.GetResourceVersion()},
		{"op": "remove", "path": "/metadata/annotations/" + strings.ReplaceAll(compose.AnnotationLastApplied, "/", "~1")},
	})
	if err != nil {
		return err
	}
	_, err = c.Patch(ctx, live.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	return err
}

func annotated(o *Object) bool {
	_, has := o.GetAnnotations()[compose.AnnotationLastApplied]
	return has
}

// Delete deletes a child, and none that has taken its name since.
func Delete(ctx context.Context, c dynamic.ResourceInterface, child *Object) error {
	uid, background := child.GetUID(), metav1.DeletePropagationBackground
	err := c.Delete(ctx, child.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// Adopt makes an object the parent's, if nobody else has done so since it was seen.
func Adopt(ctx context.Context, c dynamic.ResourceInterface, parent, child *Object) (*Object, error) {
	refs := append(child.GetOwnerReferences(), compose.OwnerReference(parent))
	return owners(ctx, c, child, refs)
}

// Release makes an object the parent's no more.
func Release(ctx context.Context, c dynamic.ResourceInterface, parent, child *Object) (*Object, error) {
	var refs []metav1.OwnerReference
	for _, ref := range child.GetOwnerReferences() {
		if ref.UID != parent.GetUID() {
			refs = append(refs, ref)
		}
	}
	return owners(ctx, c, child, refs)
}

func owners(ctx context.Context, c dynamic.ResourceInterface, child *Object, refs []metav1.OwnerReference) (*Object, error) {
	if refs == nil {
		refs = []metav1.OwnerReference{}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": child.GetUID(), "resourceVersion": child.GetResourceVersion(), "ownerReferences": refs,
	}})
	if err != nil {
		return nil, err
	}
	return c.Patch(ctx, child.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
}

// Tries bounds how often a child is written for the same wish, so that two who want
// different things do not fight for ever. The zero value is ready to use.
type Tries struct {
	wish  string
	times []time.Time
	// Field is the field that the last write changed.
	Field string
}

// What bounds tries: three, each soon after the one before it, and then none for a while.
const (
	MaxTries = 3
	TrySoon  = 10 * time.Second
	TryPause = 10 * time.Minute
)

// Wait returns how long a child is left alone before it is written for a wish again.
func (t *Tries) Wait(wish string, now time.Time) time.Duration {
	if t.wish != wish || len(t.times) < MaxTries {
		return 0
	}
	return max(0, t.times[len(t.times)-1].Add(TryPause).Sub(now))
}

// Wrote counts a write for a wish, which changed a field. What has lasted for a while
// before somebody changed it is no fight.
func (t *Tries) Wrote(wish, field string, now time.Time) {
	if t.wish != wish || len(t.times) > 0 && now.Sub(t.times[len(t.times)-1]) > TrySoon {
		t.wish, t.times = wish, nil
	}
	t.times, t.Field = append(t.times, now), field
}
