// Package apply makes children what hooks want: it writes what package compose decides.
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"

	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// FieldManager is the field manager of all writes to children.
const FieldManager = "admitkit-hooks"

// ErrForeign says that an object of the name of a child belongs to somebody else.
var ErrForeign = errors.New("an object of this name exists and belongs to somebody else")

// Object is any object.
type Object = compose.Object

// errBehind says that the cache does not have a child yet.
var errBehind = errors.New("it is there, and the cache does not have it yet")

// Create makes a child that the cache does not have, by a POST. If somebody has made an
// object of this name meanwhile, that is [ErrForeign], and the object stays as it is.
func Create(ctx context.Context, c dynamic.ResourceInterface, s *compose.Schema, wanted *Object) (*Object, error) {
	made, err := c.Create(ctx, compose.New(wanted, s), metav1.CreateOptions{FieldManager: FieldManager})
	if !apierrors.IsAlreadyExists(err) {
		return made, err
	}
	there, getErr := c.Get(ctx, wanted.GetName(), metav1.GetOptions{})
	if getErr != nil {
		return nil, getErr
	}
	if is, want := metav1.GetControllerOfNoCopy(there), metav1.GetControllerOfNoCopy(wanted); is != nil && want != nil && is.UID == want.UID {
		return nil, errBehind
	}
	return nil, fmt.Errorf("%w: %w", ErrForeign, err)
}

// maxConflicts is how often a child is merged anew because somebody else has written it.
const maxConflicts = 5

// InPlace makes a child what is wanted, by a JSON merge patch of the difference, and returns
// it as it was then, and as it is. If there is no difference, nothing is sent; if the API
// server sees none, it writes nothing, and the resource version stays the same.
func InPlace(ctx context.Context, c dynamic.ResourceInterface, s *compose.Schema, observed, wanted *Object) (before, after *Object, err error) {
	return patch(ctx, c, s, observed, wanted, nil)
}

// WouldChange returns the path of the first field that [InPlace] would change, or "". Where
// an update is invalid, as of an immutable field, the path is that of the field at fault.
func WouldChange(ctx context.Context, c dynamic.ResourceInterface, s *compose.Schema, observed, wanted *Object) (path string, err error) {
	before, after, err := patch(ctx, c, s, observed, wanted, []string{metav1.DryRunAll})
	if status := apierrors.APIStatus(nil); apierrors.IsInvalid(err) && errors.As(err, &status) {
		if d := status.Status().Details; d != nil && len(d.Causes) > 0 && d.Causes[0].Field != "" {
			return d.Causes[0].Field, nil
		}
		return "spec", nil
	}
	if err != nil {
		return "", err
	}
	return compose.Difference(before, after), nil
}

func patch(ctx context.Context, c dynamic.ResourceInterface, s *compose.Schema, observed, wanted *Object, dryRun []string) (before, after *Object, err error) {
	before = observed
	for range maxConflicts {
		merged := compose.Merge(before, wanted, s)
		after, err = send(ctx, c, before, merged, dryRun)
		if rest := withoutForbidden(merged, wanted, err); rest != nil {
			after, err = send(ctx, c, before, rest, dryRun)
		}
		if !apierrors.IsConflict(err) {
			return before, after, err
		}
		if before, err = c.Get(ctx, wanted.GetName(), metav1.GetOptions{}); err != nil {
			return nil, nil, err
		}
		if before.GetUID() != observed.GetUID() {
			return nil, nil, fmt.Errorf("%s has been made anew", compose.IDOf(observed))
		}
	}
	return nil, nil, errors.New("somebody else writes it all the time")
}

// send patches an object, if there is anything to change.
func send(ctx context.Context, c dynamic.ResourceInterface, before, after *Object, dryRun []string) (*Object, error) {
	change := compose.Patch(before.Object, after.Object)
	if len(change) == 0 {
		return before, nil
	}
	meta, _ := change["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		change["metadata"] = meta
	}
	// An object of the same name that took its place meanwhile is another.
	meta["uid"], meta["resourceVersion"] = before.GetUID(), before.GetResourceVersion()
	body, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return c.Patch(ctx, before.GetName(), types.MergePatchType, body, metav1.PatchOptions{FieldManager: FieldManager, DryRun: dryRun})
}

// withoutForbidden returns an object without the fields that the API server forbids beside
// what is wanted, and nobody wants, such as the defaults of the strategy that a Deployment
// had; nil if these are not what is wrong.
func withoutForbidden(merged, wanted *Object, err error) *Object {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	rest := (*Object)(nil)
	for _, cause := range status.Status().Details.Causes {
		path := strings.Split(cause.Field, ".")
		_, want, _ := unstructured.NestedFieldNoCopy(wanted.Object, path...)
		_, has, _ := unstructured.NestedFieldNoCopy(merged.Object, path...)
		if string(cause.Type) != string(field.ErrorTypeForbidden) || path[0] == "metadata" || want || !has {
			continue
		}
		if rest == nil {
			rest = merged.DeepCopy()
		}
		unstructured.RemoveNestedField(rest.Object, path...)
	}
	return rest
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
