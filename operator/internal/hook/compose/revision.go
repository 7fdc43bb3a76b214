package compose

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
)

// maxPaths is how many fields can make a revision.
const maxPaths = 64

// Paths splits the paths of the fields that make a revision, by default spec. An error
// names the path that can be none.
func Paths(fieldPaths []string) ([][]string, error) {
	if len(fieldPaths) == 0 {
		fieldPaths = []string{"spec"}
	}
	if len(fieldPaths) > maxPaths {
		return nil, fmt.Errorf("has %d paths, more than %d", len(fieldPaths), maxPaths)
	}
	paths := make([][]string, len(fieldPaths))
	for i, path := range fieldPaths {
		parts := strings.Split(path, ".")
		switch {
		case slices.Contains(parts, ""):
			return nil, fmt.Errorf("[%d]: %q is no path: write one as spec.template", i, path)
		case strings.ContainsAny(path, "[]*'\" "):
			return nil, fmt.Errorf("[%d]: %q: a path names fields of objects, not items of lists, and has no wildcards", i, path)
		case parts[0] == "status" || parts[0] == "apiVersion" || parts[0] == "kind",
			parts[0] == "metadata" && (len(parts) < 2 || parts[1] != "labels" && parts[1] != "annotations"):
			return nil, fmt.Errorf("[%d]: %q changes without the user, or never: a revision is made of what users write", i, path)
		}
		paths[i] = parts
	}
	return paths, nil
}

// PatchOf returns those fields of a parent that make its revision.
func PatchOf(parent *Object, paths [][]string) (map[string]any, error) {
	patch := map[string]any{}
	for _, path := range paths {
		value, ok, err := unstructured.NestedFieldNoCopy(parent.Object, path...)
		if err == nil && ok {
			err = unstructured.SetNestedField(patch, value, path...)
		}
		if err != nil {
			return nil, fmt.Errorf("revisionHistory.fieldPaths: %s: %w", strings.Join(path, "."), err)
		}
	}
	return patch, nil
}

// At returns a parent as it was at a revision. A field that it did not have then, it does
// not have.
func At(parent *Object, paths [][]string, patch map[string]any) (*Object, error) {
	then := parent.DeepCopy()
	for _, path := range paths {
		value, ok, err := unstructured.NestedFieldCopy(patch, path...)
		switch {
		case err == nil && ok:
			err = unstructured.SetNestedField(then.Object, value, path...)
		case err == nil:
			unstructured.RemoveNestedField(then.Object, path...)
		}
		if err != nil {
			return nil, fmt.Errorf("the revision's field %s: %w", strings.Join(path, "."), err)
		}
	}
	return then, nil
}

// Revision is what a hook wants of a parent as it is, or as it was, and the children that
// are at this revision.
type Revision struct {
	Wanted   map[ID]*Object
	Children map[ID]bool
}

// Rolled is what [Roll] decided, besides the Children of the revisions.
type Rolled struct {
	// Left are children of which nobody knows the revision: they stay as they are until
	// their turn comes.
	Left map[ID]bool
	// Moving is the child that moves to the latest revision now. Waiting says why none
	// moves, although some have to.
	Moving, Waiting string
}

// Roll moves at most one child of the rolling methods to the latest revision, which is the
// first, if all that are there are good. wanted are the children that the hook wants at the
// latest revision, in the order in which they move. Those that are as it wants them
// already, or that nobody has made yet, move at once. same says whether an update would
// change nothing; its errors are returned, and hold up the rollout.
func Roll(kinds []Kind, revisions []*Revision, observed, wanted []*Object, same func(Update) (bool, error)) (Rolled, error) {
	r := rollout{kinds: kinds, revisions: revisions, have: map[ID]*Object{}, same: same}
	for _, o := range observed {
		r.have[IDOf(o)] = o
	}
	r.Left = map[ID]bool{}
	wanted = slices.DeleteFunc(slices.Clone(wanted), func(w *Object) bool { return r.kind(IDOf(w)) == nil })
	r.trim(wanted)
	var errs []error
	for _, w := range wanted {
		errs = append(errs, r.settle(w))
	}
	latest := revisions[0]
	for _, w := range wanted {
		id := IDOf(w)
		if latest.Children[id] {
			continue
		}
		if r.Waiting = r.waits(wanted); r.Waiting == "" {
			r.Moving = id.String()
			r.move(id)
		}
		break
	}
	return r.Rolled, errors.Join(errs...)
}

type rollout struct {
	Rolled
	kinds     []Kind
	revisions []*Revision
	have      map[ID]*Object
	same      func(Update) (bool, error)
}

// kind returns the kind of a child that has a rolling method, or nil.
func (r *rollout) kind(id ID) *Kind {
	i := slices.IndexFunc(r.kinds, func(k Kind) bool { return k.GroupVersionKind == id.GroupVersionKind && Rolls(k.Method) })
	if i < 0 {
		return nil
	}
	return &r.kinds[i]
}

// trim leaves each child that is still wanted at one revision, the first that has it.
func (r *rollout) trim(wanted []*Object) {
	free := make(map[ID]bool, len(wanted))
	for _, w := range wanted {
		free[IDOf(w)] = true
	}
	for _, revision := range r.revisions {
		for id := range revision.Children {
			if !free[id] {
				delete(revision.Children, id)
			}
			delete(free, id)
		}
	}
}

func (r *rollout) at(id ID) *Revision {
	for _, revision := range r.revisions {
		if revision.Children[id] {
			return revision
		}
	}
	return nil
}

func (r *rollout) move(id ID) {
	for _, revision := range r.revisions {
		delete(revision.Children, id)
	}
	delete(r.Left, id)
	r.revisions[0].Children[id] = true
}

// settle moves a child that need not wait for its turn.
func (r *rollout) settle(w *Object) error {
	id := IDOf(w)
	at, observed := r.at(id), r.have[id]
	switch {
	case at == r.revisions[0]:
		return nil
	case observed == nil || observed.GetDeletionTimestamp() != nil:
		// It is made as it was, or for the first time.
		if at == nil || at.Wanted[id] == nil {
			r.move(id)
		}
		return nil
	}
	same, err := r.same(Update{*r.kind(id), observed, w})
	if same {
		r.move(id)
	} else if at == nil || at.Wanted[id] == nil {
		r.Left[id] = true
	}
	return err
}

// waits says which child at the latest revision is not good yet.
func (r *rollout) waits(wanted []*Object) string {
	for _, w := range wanted {
		id := IDOf(w)
		if !r.revisions[0].Children[id] {
			continue
		}
		kind, child := r.kind(id), r.have[id]
		if child == nil {
			return id.String() + " is missing"
		}
		if child.GetDeletionTimestamp() != nil {
			return id.String() + " is being deleted"
		}
		if same, err := r.same(Update{*kind, child, w}); err != nil {
			return err.Error()
		} else if !same {
			return id.String() + " is not updated yet"
		}
		observed, ok, _ := unstructured.NestedInt64(child.Object, "status", "observedGeneration")
		if kind.Method == v1alpha1.RollingInPlace && ok && observed > 0 && observed < child.GetGeneration() {
			return fmt.Sprintf("%s: its controller has not seen the update yet", id)
		}
		for _, check := range kind.Checks {
			if !holds(check, child) {
				return fmt.Sprintf("%s does not have the condition %s", id, describe(check))
			}
		}
	}
	return ""
}

func describe(check v1alpha1.ConditionCheck) string {
	text := check.Type
	if check.Status != nil {
		text += "=" + *check.Status
	}
	if check.Reason != nil {
		text += " for the reason " + *check.Reason
	}
	return text
}
