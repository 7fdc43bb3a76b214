// Package compose decides what becomes of a parent's children. It is pure: it reads and
// writes nothing.
//
//   - [Claim] says which objects are a parent's children, and which are to be adopted or
//     released.
//   - [Group] is how hooks see them.
//   - [Prepare] makes what a hook returned complete, or says why it cannot be.
//   - [Plan] says what is to be created, updated and deleted.
//   - [Merge] says what becomes of a child that is updated.
//   - [Roll] says which child moves to the latest revision of the parent now.
package compose

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/hook/protocol"
)

// LabelControllerUID is the label that generateSelector gives children: the parent's UID.
const LabelControllerUID = "controller-uid"

// AnnotationDecorator names on an attachment the DecoratorController that made it.
const AnnotationDecorator = "metacontroller.k8s.io/decorator-controller"

// AnnotationLastApplied is what Metacontroller keeps on a child of what it applied.
const AnnotationLastApplied = "metacontroller.k8s.io/last-applied-configuration"

// Object is any object.
type Object = unstructured.Unstructured

// Kind is a kind of children.
type Kind struct {
	schema.GroupVersionKind
	Namespaced bool
	Method     v1alpha1.UpdateMethod
	Checks     []v1alpha1.ConditionCheck
}

// Key is the kind's key in a request.
func (k Kind) Key() string { return protocol.Key(k.GroupVersion().String(), k.Kind) }

// ID tells an object from others of one parent.
type ID struct {
	schema.GroupVersionKind
	Namespace, Name string
}

func (i ID) String() string {
	if i.Namespace == "" {
		return i.Kind + " " + i.Name
	}
	return i.Kind + " " + i.Namespace + "/" + i.Name
}

// IDOf returns an object's.
func IDOf(o *Object) ID { return ID{o.GroupVersionKind(), o.GetNamespace(), o.GetName()} }

// Selector returns what selects a parent's children.
func Selector(parent *Object, generate bool) (labels.Selector, error) {
	if generate {
		return labels.SelectorFromSet(labels.Set{LabelControllerUID: string(parent.GetUID())}), nil
	}
	raw, ok, err := unstructured.NestedMap(parent.Object, "spec", "selector")
	if err != nil || !ok {
		return nil, fmt.Errorf("the parent has no spec.selector: give it one, or set generateSelector in the controller")
	}
	var of metav1.LabelSelector
	if err := convert(raw, &of); err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	selector, err := metav1.LabelSelectorAsSelector(&of)
	if err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	if selector.Matches(labels.Set{}) {
		return nil, fmt.Errorf("spec.selector: selects objects without any label, and so what others have made: use matchLabels, or the operators In and Exists")
	}
	return selector, nil
}

// Claimed is what [Claim] decided.
type Claimed struct {
	// Owned are the parent's. Adopt are to become so, and Release to be so no more.
	Owned, Adopt, Release []*Object
}

// Claim decides which objects are a parent's: those that it owns and that the selector
// selects, and those that the selector selects and nobody owns. A parent that is being
// deleted adopts nothing.
func Claim(parent *Object, selector labels.Selector, objects []*Object) Claimed {
	var c Claimed
	for _, object := range objects {
		matches := selector == nil || selector.Matches(labels.Set(object.GetLabels()))
		switch owner := metav1.GetControllerOfNoCopy(object); {
		case owner != nil && owner.UID != parent.GetUID():
		case owner != nil && matches:
			c.Owned = append(c.Owned, object)
		case owner != nil:
			c.Release = append(c.Release, object)
		case matches && selector != nil && parent.GetDeletionTimestamp() == nil && object.GetDeletionTimestamp() == nil:
			c.Adopt = append(c.Adopt, object)
		}
	}
	return c
}

// Group returns objects as a hook sees them. Each kind has a key, even without objects.
func Group(version protocol.Version, parent *Object, kinds []Kind, objects []*Object) protocol.Objects {
	all := make(protocol.Objects, len(kinds))
	for _, kind := range kinds {
		all[kind.Key()] = map[string]map[string]any{}
	}
	for _, object := range objects {
		key := protocol.Key(object.GetAPIVersion(), object.GetKind())
		if all[key] == nil {
			all[key] = map[string]map[string]any{}
		}
		all[key][version.Name(parent.GetNamespace(), object)] = object.Object
	}
	return all
}

// OwnerReference returns the reference that makes an object the parent's.
func OwnerReference(parent *Object) metav1.OwnerReference {
	return *metav1.NewControllerRef(parent, parent.GroupVersionKind())
}

// Rules are what [Prepare] has to keep.
type Rules struct {
	Kinds []Kind
	// Absent are the versions of kinds that the API server need not have. Children of such
	// a version and of no kind above are left out.
	Absent []string
	// Selector has to select each child; nil for attachments.
	Selector labels.Selector
	// Labels and Annotations are given to each child that has no such label.
	Labels, Annotations map[string]string
}

// Prepare completes what a hook returned: the namespace, labels, and the owner. An error
// says which child cannot be, and why; then nothing of the response should be done.
func Prepare(parent *Object, rules Rules, children []*Object) ([]*Object, error) {
	seen := make(map[ID]bool, len(children))
	prepared := make([]*Object, 0, len(children))
	for _, child := range children {
		i := slices.IndexFunc(rules.Kinds, func(k Kind) bool { return k.GroupVersionKind == child.GroupVersionKind() })
		if i < 0 && slices.Contains(rules.Absent, child.GetAPIVersion()) {
			continue
		}
		if i < 0 {
			return nil, fmt.Errorf("the hook returned a %s of %s, which the controller does not list: add it to childResources, or attachments", child.GetKind(), child.GetAPIVersion())
		}
		child = child.DeepCopy()
		if err := place(parent, rules.Kinds[i], child); err != nil {
			return nil, err
		}
		strip(child)
		encode(child)
		merge(child, rules)
		id := IDOf(child)
		if seen[id] {
			return nil, fmt.Errorf("the hook returned two of %s", id)
		}
		seen[id] = true
		if id == IDOf(parent) {
			return nil, fmt.Errorf("the hook returned the parent itself, %s, as a child", id)
		}
		if rules.Selector != nil && !rules.Selector.Matches(labels.Set(child.GetLabels())) {
			return nil, fmt.Errorf("the labels of %s do not match the parent's selector, %s: it would be released at once", id, rules.Selector)
		}
		child.SetOwnerReferences([]metav1.OwnerReference{OwnerReference(parent)})
		prepared = append(prepared, child)
	}
	return prepared, nil
}

// place gives a child its namespace. The API server's garbage collector would delete a
// child in another namespace than its parent's.
func place(parent *Object, kind Kind, child *Object) error {
	home := parent.GetNamespace()
	switch {
	case !kind.Namespaced && home != "":
		return fmt.Errorf("%s belongs to no namespace, and its parent to one: such a child cannot be owned", IDOf(child))
	case !kind.Namespaced:
		child.SetNamespace("")
	case child.GetNamespace() == "" && home == "":
		return fmt.Errorf("%s has no metadata.namespace, and neither has its parent", IDOf(child))
	case child.GetNamespace() == "":
		child.SetNamespace(home)
	case home != "" && child.GetNamespace() != home:
		return fmt.Errorf("%s is not in its parent's namespace %s", IDOf(child), home)
	}
	return nil
}

// strip removes what only the API server sets, and nulls where they mean nothing.
func strip(child *Object) {
	meta, _ := child.Object["metadata"].(map[string]any)
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink", "generateName", "ownerReferences"} {
		delete(meta, field)
	}
	delete(child.Object, "status")
	dropNulls(meta) // first: a null annotation is read as an empty one
	annotations := child.GetAnnotations()
	delete(annotations, AnnotationLastApplied)
	delete(annotations, AnnotationApplied)
	if len(annotations) == 0 {
		delete(meta, "annotations")
	} else {
		child.SetAnnotations(annotations)
	}
}

// encode writes stringData of a Secret as data, as the API server does: what is no longer
// wanted of it could else not be removed.
func encode(child *Object) {
	texts, ok := child.Object["stringData"].(map[string]any)
	if !ok || child.GroupVersionKind() != corev1.SchemeGroupVersion.WithKind("Secret") {
		return
	}
	data, _ := child.Object["data"].(map[string]any)
	data = maps.Clone(data)
	if data == nil {
		data = map[string]any{}
	}
	for key, value := range texts {
		text, ok := value.(string)
		if !ok && value != nil {
			return // the API server says what is wrong
		}
		data[key] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	child.Object["data"] = data
	delete(child.Object, "stringData")
}

func dropNulls(of any) {
	switch of := of.(type) {
	case map[string]any:
		for key, value := range of {
			if value == nil {
				delete(of, key)
				continue
			}
			dropNulls(value)
		}
	case []any:
		for _, value := range of {
			dropNulls(value)
		}
	}
}

func merge(child *Object, rules Rules) {
	if len(rules.Labels) > 0 {
		all := maps.Clone(rules.Labels)
		maps.Copy(all, child.GetLabels())
		child.SetLabels(all)
	}
	if len(rules.Annotations) > 0 {
		all := child.GetAnnotations()
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, rules.Annotations)
		child.SetAnnotations(all)
	}
}

// Update is a child that exists, and what it should be.
type Update struct {
	Kind             Kind
	Observed, Wanted *Object
}

// Planned is what [Plan] decided.
type Planned struct {
	Create []*Object
	Update []Update
	Delete []*Object
}

// Plan decides what becomes of children. Those that are being deleted are left alone. The
// order is that of the kinds' names, then of the children's.
func Plan(kinds []Kind, observed, wanted []*Object) Planned {
	var p Planned
	have := make(map[ID]*Object, len(observed))
	for _, o := range observed {
		have[IDOf(o)] = o
	}
	want := make(map[ID]bool, len(wanted))
	for _, w := range wanted {
		id := IDOf(w)
		want[id] = true
		switch o := have[id]; {
		case o == nil:
			p.Create = append(p.Create, w)
		case o.GetDeletionTimestamp() == nil:
			i := slices.IndexFunc(kinds, func(k Kind) bool { return k.GroupVersionKind == id.GroupVersionKind })
			if i < 0 || kinds[i].Method == "" || kinds[i].Method == v1alpha1.OnDelete {
				continue
			}
			p.Update = append(p.Update, Update{kinds[i], o, w})
		}
	}
	for _, o := range observed {
		if !want[IDOf(o)] && o.GetDeletionTimestamp() == nil {
			p.Delete = append(p.Delete, o)
		}
	}
	byID := func(a, b *Object) int { return strings.Compare(sortKey(a), sortKey(b)) }
	slices.SortStableFunc(p.Create, byID)
	slices.SortStableFunc(p.Delete, byID)
	slices.SortStableFunc(p.Update, func(a, b Update) int { return byID(a.Wanted, b.Wanted) })
	return p
}

func sortKey(o *Object) string {
	return o.GetAPIVersion() + "\x00" + o.GetKind() + "\x00" + o.GetNamespace() + "\x00" + o.GetName()
}

// Rolls says whether the method updates one child at a time.
func Rolls(method v1alpha1.UpdateMethod) bool {
	return method == v1alpha1.RollingRecreate || method == v1alpha1.RollingInPlace
}

// Recreates says whether the method deletes a child to update it.
func Recreates(method v1alpha1.UpdateMethod) bool {
	return method == v1alpha1.Recreate || method == v1alpha1.RollingRecreate
}

func holds(check v1alpha1.ConditionCheck, child *Object) bool {
	conditions, _, _ := unstructured.NestedSlice(child.Object, "status", "conditions")
	for _, each := range conditions {
		c, _ := each.(map[string]any)
		if c["type"] != check.Type {
			continue
		}
		return (check.Status == nil || c["status"] == *check.Status) && (check.Reason == nil || c["reason"] == *check.Reason)
	}
	return false
}
