package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/internal/hook/apply"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// manage makes the children what the hook wants: deletes first, then creates and updates.
// What fails holds up no other child.
func (p *parents) manage(ctx context.Context, v *view, wanted []*compose.Object) error {
	plan := compose.Plan(p.kinds(), v.children, wanted)
	var errs []error
	for _, child := range plan.Delete {
		id := compose.IDOf(child)
		if err := apply.Delete(ctx, p.client(child), child); err != nil {
			errs = append(errs, fmt.Errorf("deleting %s: %w", id, err))
			continue
		}
		delete(v.state.applied, id)
		p.wrote(v, id, child, "delete")
	}
	for _, child := range plan.Create {
		errs = append(errs, p.create(ctx, v, child))
	}
	for _, update := range plan.Update {
		if v.left[compose.IDOf(update.Wanted)] {
			continue
		}
		_, err := p.update(ctx, v, update, true)
		errs = append(errs, err)
	}
	for _, w := range wanted {
		if there := p.cached(compose.IDOf(w)); there != nil && metav1.IsControlledBy(there, v.parent) {
			errs = append(errs, terminating(there))
		}
	}
	p.prune(v, wanted)
	return errors.Join(errs...)
}

// prune forgets what nobody wants any more.
func (p *parents) prune(v *view, wanted []*compose.Object) {
	ids := idsOf(wanted)
	maps.DeleteFunc(v.state.tries, func(id compose.ID, _ *apply.Tries) bool { return !ids[id] })
	maps.DeleteFunc(v.state.applied, func(id compose.ID, _ applied) bool { return !ids[id] })
	maps.DeleteFunc(v.state.marked, func(id compose.ID, _ marked) bool { return !ids[id] })
}

func idsOf(objects []*compose.Object) map[compose.ID]bool {
	ids := make(map[compose.ID]bool, len(objects))
	for _, o := range objects {
		ids[compose.IDOf(o)] = true
	}
	return ids
}

func (p *parents) create(ctx context.Context, v *view, wanted *compose.Object) error {
	id := compose.IDOf(wanted)
	foreign := fault("Foreign", fmt.Sprintf("%s: %s; delete it, or have the hook use another name", id, apply.ErrForeign))
	if there := p.cached(id); there != nil {
		if owner := metav1.GetControllerOfNoCopy(there); owner != nil && owner.UID == v.parent.GetUID() && there.GetDeletionTimestamp() == nil {
			return nil // released or adopted just now
		}
		if there.GetDeletionTimestamp() == nil {
			return foreign
		}
		return terminating(there)
	}
	schema, err := p.engine.schemas.Of(ctx, id.GroupVersionKind)
	if err != nil {
		return err
	}
	made, err := apply.Create(ctx, p.client(wanted), schema, wanted)
	switch {
	case errors.Is(err, apply.ErrForeign):
		return foreign
	case err != nil:
		return fmt.Errorf("creating %s: %w", id, err)
	}
	p.wrote(v, id, nil, "create")
	v.made = true
	v.state.applied[id] = applied{digest(wanted.Object), contentOf(made)}
	return nil
}

// terminating says that a child that is wanted is being deleted, if it has finalizers that
// keep it. Otherwise its end is an event.
func terminating(child *compose.Object) error {
	finalizers := child.GetFinalizers()
	if child.GetDeletionTimestamp() == nil || len(finalizers) == 0 {
		return nil
	}
	return fault("Terminating", fmt.Sprintf("%s is being deleted, and cannot be made anew before its finalizers are gone: %s", compose.IDOf(child), strings.Join(finalizers, ", ")), errLeftAlone)
}

// try counts a write of a child, or says why there is to be none.
func (p *parents) try(v *view, wanted *compose.Object, field string) error {
	id, wish := compose.IDOf(wanted), digest(wanted.Object)
	tries := v.state.tries[id]
	if tries == nil {
		tries = &apply.Tries{}
		v.state.tries[id] = tries
	}
	now := time.Now()
	if wait := tries.Wait(wish, now); wait > 0 {
		return fault("DoesNotConverge", fmt.Sprintf("%s: the field %s has been written %d times for the same wish of the hook, and somebody else changes it each time; it is left alone for %s",
			id, tries.Field, apply.MaxTries, wait.Round(time.Second)), errLeftAlone)
	}
	tries.Wrote(wish, field, now)
	return nil
}

var errLeftAlone = errors.New("left alone")

// contentOf tells what of a child a hook can want: not its status, nor what is counted.
func contentOf(o *compose.Object) string {
	rest := maps.Clone(o.Object)
	delete(rest, "status")
	delete(rest, "metadata")
	return digest(rest, o.GetLabels(), o.GetAnnotations(), o.GetOwnerReferences(), o.GetFinalizers())
}

// update makes a child what it should be, if it is not. If may is false it only says
// whether it is.
func (p *parents) update(ctx context.Context, v *view, u compose.Update, may bool) (done bool, err error) {
	id := compose.IDOf(u.Wanted)
	is := applied{digest(u.Wanted.Object), contentOf(u.Observed)}
	if v.state.applied[id] == is {
		return true, nil
	}
	schema, err := p.engine.schemas.Of(ctx, id.GroupVersionKind)
	if err != nil {
		return false, err
	}
	tries, was := v.state.tries[id], v.state.applied[id]
	tired := tries != nil && tries.Wait(is.wish, time.Now()) > 0
	// The hook wants what it wanted, or nobody remembers: defaults may be all that differs, or
	// how the API server writes a value.
	same := was.wish == "" || was.wish == is.wish
	if tired || same || compose.Recreates(u.Kind.Method) || !may {
		field, err := apply.WouldChange(ctx, p.client(u.Wanted), schema, u.Observed, u.Wanted)
		recorded := err == nil && field == "" && compose.Applied(u.Observed, u.Wanted, schema)
		switch {
		case tired && !recorded:
			return false, p.try(v, u.Wanted, "")
		case err != nil:
			return false, fmt.Errorf("comparing %s: %w", id, ignoreGone(err))
		case recorded:
			v.state.applied[id] = is
			return true, nil
		case !may:
			return field == "", nil
		case field != "" && compose.Recreates(u.Kind.Method):
			return false, p.recreate(ctx, v, u, field)
		}
	}
	return p.inPlace(ctx, v, u, schema)
}

func (p *parents) inPlace(ctx context.Context, v *view, u compose.Update, schema *compose.Schema) (done bool, err error) {
	id := compose.IDOf(u.Wanted)
	before, after, err := apply.InPlace(ctx, p.client(u.Wanted), schema, u.Observed, u.Wanted)
	if err != nil {
		return false, fmt.Errorf("updating %s: %w", id, ignoreGone(err))
	}
	if after.GetResourceVersion() != before.GetResourceVersion() {
		p.wrote(v, id, u.Observed, "update")
		if !v.relabeled(before, after) {
			v.updated = true
			if err := p.try(v, u.Wanted, cmp.Or(compose.Difference(before, after), "metadata.annotations")); err != nil {
				return false, err
			}
		}
	}
	v.state.applied[id] = applied{digest(u.Wanted.Object), contentOf(after)}
	return true, nil
}

// recreate deletes a child. It is made anew when it is gone.
func (p *parents) recreate(ctx context.Context, v *view, u compose.Update, field string) error {
	if err := p.try(v, u.Wanted, field); err != nil {
		return err
	}
	id := compose.IDOf(u.Observed)
	if err := apply.Delete(ctx, p.client(u.Observed), u.Observed); err != nil {
		return fmt.Errorf("deleting %s to make it anew: %w", id, err)
	}
	delete(v.state.applied, id)
	p.wrote(v, id, u.Observed, "recreate")
	v.updated = true
	return nil
}

// ignoreGone hides that a child has gone or changed since it was seen: that is an event.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("it has gone meanwhile: %w", err)
	}
	return err
}
