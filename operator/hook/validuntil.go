package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/hook/apply"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// mark labels children with the time until which the last answer of the hook is valid, so
// that each replica, and the next process, knows it without the hook. A child that is
// made, or made anew, has it from its first moment. The label alone makes no child anew,
// and calls no hook.
func (p *parents) mark(ctx context.Context, v *view, these []*compose.Object) error {
	if !v.state.answered {
		return nil
	}
	wanted, want := idsOf(these), compose.UntilLabel(v.state.validUntil)
	var label any // nil takes it away
	if want != "" {
		label = want
	}
	var errs []error
	for i, child := range v.children {
		if child.GetLabels()[compose.LabelValidUntil] == want || !wanted[compose.IDOf(child)] || child.GetDeletionTimestamp() != nil {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": child.GetUID(), "labels": map[string]any{compose.LabelValidUntil: label}}})
		if err != nil {
			return err
		}
		id := compose.IDOf(child)
		after, err := p.client(child).Patch(ctx, child.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: apply.FieldManager})
		if err != nil {
			errs = append(errs, fmt.Errorf("labeling %s: %w", id, ignoreGone(err)))
			continue
		}
		p.wrote(v, id, child, "update")
		after.SetManagedFields(nil)
		v.relabeled(child, after)
		v.children[i] = after
	}
	return errors.Join(errs...)
}

// relabeled reports whether a child differs from what it was by its label alone, and notes
// it: that calls no hook.
func (v *view) relabeled(before, after *compose.Object) bool {
	if writtenBut(before) != writtenBut(after) {
		return false
	}
	id, version := compose.IDOf(after), v.state.version(before)
	last := v.state.marked[id]
	if last.version != version {
		last = marked{version: version}
	}
	// Two: this sync may label a child, and then apply what it has already.
	last.since = append(last.since[max(0, len(last.since)-1):], after.GetResourceVersion())
	v.state.marked[id] = last
	return true
}

// version is the version of a child, or, if it differs from that by its label alone, the one
// that the hook was asked about.
func (s *state) version(child *compose.Object) string {
	now := child.GetResourceVersion()
	if m := s.marked[compose.IDOf(child)]; slices.Contains(m.since, now) {
		return m.version
	}
	return now
}

// writtenBut tells an object from what it was, but for the label, and for what the API server
// counts and dates.
func writtenBut(o *compose.Object) string {
	o = o.DeepCopy()
	compose.SetUntil(o, time.Time{})
	rest := maps.Clone(o.Object)
	delete(rest, "metadata")
	return digest(rest, o.GetLabels(), o.GetAnnotations(), o.GetOwnerReferences(), o.GetFinalizers(), o.GetDeletionTimestamp())
}

// unmarked are the children whose own write has not the label: an apply has it.
func (p *parents) unmarked(v *view, wanted []*compose.Object) []*compose.Object {
	if v.validUntil.IsZero() {
		return wanted
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(w *compose.Object) bool {
		return slices.ContainsFunc(p.children, func(k childKind) bool {
			return k.GroupVersionKind == w.GroupVersionKind() && k.Method == v1alpha1.InPlace
		})
	})
}
