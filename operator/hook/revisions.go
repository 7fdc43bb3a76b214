package hook

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/hook/protocol"
	"github.com/admitkit/admitkit/operator/internal/hook/apply"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// maxRevisions is how many old revisions of a parent are kept: each is a call of the hook
// more. What is at an older one stays as it is until its turn comes.
const maxRevisions = 10

var (
	revisionKind     = v1alpha1.GroupVersion.WithKind("ControllerRevision")
	revisionResource = v1alpha1.GroupVersion.WithResource("controllerrevisions")
)

// The labels of a ControllerRevision, which are Metacontroller's.
const (
	labelRevisionGroup    = "metacontroller.k8s.io/apiGroup"
	labelRevisionResource = "metacontroller.k8s.io/resource"
)

// revision is a revision of a parent; object is nil until it has been made.
type revision struct {
	compose.Revision
	object *v1alpha1.ControllerRevision
	patch  map[string]any
}

// revisions returns the client of the ControllerRevisions beside a parent.
func (p *parents) revisions(v *view) dynamic.ResourceInterface {
	return p.engine.dynamic.Resource(revisionResource).Namespace(v.parent.GetNamespace())
}

// roll decides which children become what the hook wants of the parent as it is, and which
// stay what it wants of an older revision, and returns all of them. nil means that nothing
// may be done. What is decided is written first, so that another process goes on with it.
func (p *parents) roll(ctx context.Context, v *view, answer *protocol.Answer, wanted []*compose.Object) ([]*compose.Object, error) {
	all, err := p.revisionsOf(ctx, v, answer)
	if err != nil {
		return nil, err
	}
	latest := all[0]
	for _, w := range wanted {
		latest.Wanted[compose.IDOf(w)] = w
	}
	of := make([]*compose.Revision, len(all))
	for i := range all {
		of[i] = &all[i].Revision
	}
	rolled, problems := compose.Roll(p.kinds(), of, v.children, wanted, func(u compose.Update) (bool, error) { return p.update(ctx, v, u, false) })
	if err := p.keepRevisions(ctx, v, all); err != nil {
		return nil, err
	}
	v.left = rolled.Left
	composed := slices.Clone(wanted)
	for i, w := range composed {
		for _, old := range all[1:] {
			if then := old.Wanted[compose.IDOf(w)]; then != nil && old.Children[compose.IDOf(w)] {
				composed[i] = then
			}
		}
	}
	condition := metav1.Condition{Type: "Updated", Status: metav1.ConditionFalse, Reason: "RolloutProgressing", Message: "updating " + rolled.Moving}
	switch {
	case rolled.Waiting != "":
		condition.Reason, condition.Message = "RolloutWaiting", rolled.Waiting
	case rolled.Moving == "":
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, "OnLatestRevision", "all children are at the latest revision"
	}
	return composed, errors.Join(problems, setCondition(answer, v.parent, condition))
}

// revisionsOf returns the revisions of a parent, the latest first, with what the hook wants
// of each older one.
func (p *parents) revisionsOf(ctx context.Context, v *view, answer *protocol.Answer) ([]*revision, error) {
	patch, err := compose.PatchOf(v.parent, p.fieldPaths)
	if err != nil {
		return nil, fault("Invalid", err.Error())
	}
	latest := &revision{patch: patch, Revision: compose.Revision{Wanted: map[compose.ID]*compose.Object{}, Children: map[compose.ID]bool{}}}
	all := []*revision{latest}
	for _, object := range v.revisions {
		old, err := p.readRevision(v, object)
		if err != nil {
			return nil, err
		}
		switch {
		case digest(old.patch) == digest(patch):
			if latest.object == nil {
				latest.object = old.object
			}
			maps.Copy(latest.Children, old.Children)
		case len(old.Children) > 0 && len(old.patch) > 0: // a patch without fields says nothing
			all = append(all, old)
		}
	}
	slices.SortStableFunc(all[1:], func(a, b *revision) int {
		return cmp.Or(b.object.CreationTimestamp.Compare(a.object.CreationTimestamp.Time), cmp.Compare(a.object.Name, b.object.Name))
	})
	all = all[:min(len(all), 1+maxRevisions)]
	for _, old := range all[1:] {
		if err := p.askAt(ctx, v, answer, old); err != nil {
			return nil, fmt.Errorf("revision %s: %w", old.object.Name, err)
		}
	}
	return all, nil
}

func (p *parents) readRevision(v *view, object *compose.Object) (*revision, error) {
	r := &revision{object: &v1alpha1.ControllerRevision{}, Revision: compose.Revision{Wanted: map[compose.ID]*compose.Object{}, Children: map[compose.ID]bool{}}}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, r.object)
	if err == nil {
		r.patch, _, err = unstructured.NestedMap(object.Object, "parentPatch")
	}
	if err != nil {
		return nil, fmt.Errorf("ControllerRevision %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	for _, of := range r.object.Children {
		i := slices.IndexFunc(p.children, func(k childKind) bool { return k.Group == of.APIGroup && k.Kind.Kind == of.Kind })
		if i < 0 {
			continue
		}
		for _, name := range of.Names {
			r.Children[compose.ID{GroupVersionKind: p.children[i].GroupVersionKind, Namespace: v.parent.GetNamespace(), Name: name}] = true
		}
	}
	return r, nil
}

// askAt asks the hook about the parent as it was. The status is that of the parent as it is.
func (p *parents) askAt(ctx context.Context, v *view, answer *protocol.Answer, old *revision) error {
	parent, err := compose.At(v.parent, p.fieldPaths, old.patch)
	if err != nil {
		return err
	}
	then, err := p.ask(ctx, v, parent, "/"+old.object.Name)
	if err != nil {
		return err
	}
	wanted, err := p.prepare(v, then)
	if err != nil {
		return err
	}
	for _, w := range wanted {
		old.Wanted[compose.IDOf(w)] = w
	}
	if then.ResyncAfter > 0 && (answer.ResyncAfter == 0 || then.ResyncAfter < answer.ResyncAfter) {
		answer.ResyncAfter = then.ResyncAfter
	}
	return nil
}

// keepRevisions writes the revisions, and deletes those at which no child is.
func (p *parents) keepRevisions(ctx context.Context, v *view, all []*revision) error {
	kept := map[string]bool{}
	var objects []*compose.Object
	for i, r := range all {
		if i > 0 && len(r.Children) == 0 {
			continue
		}
		object, err := p.keepRevision(ctx, v, r)
		if err != nil {
			return fmt.Errorf("ControllerRevision of the parent: %w", err)
		}
		objects = append(objects, object)
		kept[object.GetName()] = true
	}
	for _, object := range v.revisions {
		if kept[object.GetName()] || object.GetDeletionTimestamp() != nil {
			continue
		}
		if err := apply.Delete(ctx, p.revisions(v), object); err != nil {
			return fmt.Errorf("ControllerRevision %s: %w", object.GetName(), err)
		}
		p.wrote(v, compose.IDOf(object), object, "revision")
	}
	v.revisions = objects
	return nil
}

func (p *parents) keepRevision(ctx context.Context, v *view, r *revision) (*compose.Object, error) {
	children := childrenOf(r.Children)
	i := slices.IndexFunc(v.revisions, func(o *compose.Object) bool { return r.object != nil && o.GetName() == r.object.Name })
	if i < 0 {
		return p.makeRevision(ctx, v, r, children)
	}
	before := v.revisions[i]
	if digest(r.object.Children) == digest(children) {
		return before, nil
	}
	after := before.DeepCopy()
	after.Object["children"] = children
	made, err := p.revisions(v).Update(ctx, after, metav1.UpdateOptions{FieldManager: apply.FieldManager})
	if err != nil {
		return nil, err
	}
	p.wrote(v, compose.IDOf(before), before, "revision")
	return made, nil
}

func (p *parents) makeRevision(ctx context.Context, v *view, r *revision, children []any) (*compose.Object, error) {
	object := &compose.Object{Object: map[string]any{"parentPatch": r.patch, "children": children}}
	object.SetGroupVersionKind(revisionKind)
	kind := v.kind.resource
	text, err := json.Marshal(r.patch)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(append([]byte(v.parent.GetUID()), text...))
	prefix := kind.Resource + "." + cmp.Or(kind.Group, "core")
	object.SetName(fmt.Sprintf("%.200s-%s", prefix, hex.EncodeToString(sum[:20])))
	object.SetNamespace(v.parent.GetNamespace())
	object.SetOwnerReferences([]metav1.OwnerReference{compose.OwnerReference(v.parent)})
	labels := map[string]string{compose.LabelControllerUID: string(v.parent.GetUID())}
	if !p.generate {
		// By these Metacontroller finds it, should somebody go back there.
		labels, _, _ = unstructured.NestedStringMap(v.parent.Object, "spec", "selector", "matchLabels")
	}
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for label, value := range map[string]string{labelRevisionGroup: kind.Group, labelRevisionResource: kind.Resource} {
		if len(value) <= maxLabel {
			labels[label] = value
		}
	}
	object.SetLabels(labels)
	made, err := p.revisions(v).Create(ctx, object, metav1.CreateOptions{FieldManager: apply.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		return nil, p.revisionInTheWay(ctx, v, object.GetName(), err)
	}
	if err != nil {
		return nil, err
	}
	p.wrote(v, compose.IDOf(made), nil, "revision")
	return made, nil
}

// maxLabel is how long the value of a label can be.
const maxLabel = 63

// revisionInTheWay says whose the object is that has the name of a revision. Its name is a
// digest of the parent's UID: nobody has it by chance.
func (p *parents) revisionInTheWay(ctx context.Context, v *view, name string, err error) error {
	there, getErr := p.revisions(v).Get(ctx, name, metav1.GetOptions{})
	if getErr == nil && !metav1.IsControlledBy(there, v.parent) {
		return fault("Foreign", fmt.Sprintf("ControllerRevision %s/%s belongs to somebody else; delete it", v.parent.GetNamespace(), name))
	}
	return err // the cache is behind
}

// childrenOf is the field children of a revision, in a stable order.
func childrenOf(ids map[compose.ID]bool) []any {
	names := map[[2]string][]any{}
	for _, id := range slices.SortedFunc(maps.Keys(ids), func(a, b compose.ID) int { return cmp.Compare(a.Name, b.Name) }) {
		key := [2]string{id.Group, id.Kind}
		names[key] = append(names[key], id.Name)
	}
	children := []any{}
	for _, key := range slices.SortedFunc(maps.Keys(names), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		children = append(children, map[string]any{"apiGroup": key[0], "kind": key[1], "names": names[key]})
	}
	return children
}

// setCondition puts a condition among those of the status that the hook returned. Its time
// is that of the parent's, if it is as it was.
func setCondition(answer *protocol.Answer, parent *compose.Object, condition metav1.Condition) error {
	condition.LastTransitionTime = metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	last, _, _ := unstructured.NestedSlice(parent.Object, "status", "conditions")
	for _, each := range last {
		if c, ok := each.(map[string]any); ok && c["type"] == condition.Type && c["status"] == string(condition.Status) {
			if at, err := time.Parse(time.RFC3339, fmt.Sprint(c["lastTransitionTime"])); err == nil {
				condition.LastTransitionTime = metav1.NewTime(at)
			}
		}
	}
	status := maps.Clone(answer.Status)
	if status == nil {
		status = map[string]any{}
	}
	conditions, ok := status["conditions"].([]any)
	if !ok && status["conditions"] != nil {
		return fault("HookFailed", "the hook returned status.conditions that is no list: the condition Updated has no place")
	}
	conditions = slices.DeleteFunc(slices.Clone(conditions), func(each any) bool {
		c, ok := each.(map[string]any)
		return ok && c["type"] == condition.Type
	})
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&condition)
	if err != nil {
		return err
	}
	status["conditions"] = append(conditions, object)
	answer.Status = status
	return nil
}
