// Package review shows what the hook of a CompositeController would make of a parent, from
// manifests, without a cluster.
//
// It asks what an engine would ask, and prints as a diff what would become of the parent's status
// and of its children. What an API server adds is not there: defaults, admission,
// labels and owners that the engine sets.
package review

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/operator/hook/rego"
)

// Options say how hooks are asked.
type Options struct {
	// Now is the clock of policies. Default: [time.Now].
	Now time.Time
	// Finalize asks the hook finalize, as if the parent were being deleted.
	Finalize bool
}

// Errors of [Run] and [Read]. With any other one, a policy was asked and its answer is wrong.
var (
	// ErrNothing means that there is nothing to review, which is no success.
	ErrNothing = errors.New("nothing to review")
	// ErrManifests means that the manifests are wrong, or that something is missing in them.
	ErrManifests = errors.New("wrong manifests")
)

// Run asks the hooks of all CompositeControllers among the objects about all of their parents among them.
// The objects also have the policies' ConfigMaps, the children that exist already, and the
// CustomResourceDefinitions of kinds whose plural is no ordinary one. Hooks that are web servers are
// not called: a review sends nothing.
func Run(ctx context.Context, out io.Writer, objects []*unstructured.Unstructured, options Options) error {
	if options.Now.IsZero() {
		options.Now = time.Now()
	}
	reviewed := 0
	for _, object := range objects {
		if object.GetKind() != "CompositeController" {
			continue
		}
		c, err := newController(object, objects, options)
		if err != nil {
			return fmt.Errorf("%w: CompositeController %s: %w", ErrManifests, object.GetName(), err)
		}
		for _, parent := range objects {
			if !c.isParent(parent) {
				continue
			}
			reviewed++
			if err := c.review(ctx, out, parent, objects, options); err != nil {
				return fmt.Errorf("CompositeController %s: %s: %w", object.GetName(), name(parent), err)
			}
		}
	}
	if reviewed == 0 {
		return fmt.Errorf("%w: the manifests have no CompositeController with a parent of its kind", ErrNothing)
	}
	return nil
}

// controller is a CompositeController, as far as a review needs it.
type controller struct {
	object *unstructured.Unstructured
	Spec   spec `json:"spec"`
	policy *rego.Policy
	// v2 is the version of the protocol.
	v2    bool
	kinds plurals
}

type spec struct {
	ParentResource resource         `json:"parentResource"`
	ChildResources []childResource  `json:"childResources"`
	Hooks          map[string]*hook `json:"hooks"`
}

type resource struct {
	APIVersion string `json:"apiVersion"`
	Resource   string `json:"resource"`
}

type childResource struct {
	resource
	UpdateStrategy struct {
		Method string `json:"method"`
	} `json:"updateStrategy"`
}

type hook struct {
	Version string `json:"version"`
	Rego    *struct {
		ConfigMap *struct{ Name, Namespace, Key string } `json:"configMap"`
		Inline    string                                 `json:"inline"`
		Query     string                                 `json:"query"`
		Version   string                                 `json:"version"`
	} `json:"rego"`
}

func newController(object *unstructured.Unstructured, objects []*unstructured.Unstructured, options Options) (*controller, error) {
	c := &controller{object: object, kinds: pluralsOf(objects)}
	data, err := json.Marshal(object.Object)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, err
	}
	which := "sync"
	if options.Finalize {
		which = "finalize"
	}
	asked := c.Spec.Hooks[which]
	if asked == nil || asked.Rego == nil {
		return nil, fmt.Errorf("spec.hooks.%s.rego is not set: only hooks that are policies can be reviewed without sending a request", which)
	}
	c.v2 = asked.Version == "v2"
	module := rego.Module{Name: "inline", Text: asked.Rego.Inline}
	if from := asked.Rego.ConfigMap; from != nil {
		if module, err = inConfigMap(objects, from.Namespace, from.Name, from.Key); err != nil {
			return nil, err
		}
	}
	c.policy, err = rego.Compile(rego.Source{
		Modules: []rego.Module{module}, Query: asked.Rego.Query, Version: asked.Rego.Version,
	}, rego.Options{})
	return c, err
}

func inConfigMap(objects []*unstructured.Unstructured, namespace, name, key string) (rego.Module, error) {
	place := strings.Join([]string{"configmap", namespace, name, key}, "/")
	for _, object := range objects {
		if object.GetKind() != "ConfigMap" || object.GetName() != name || object.GetNamespace() != namespace {
			continue
		}
		text, found, err := unstructured.NestedString(object.Object, "data", key)
		if err != nil || !found {
			return rego.Module{}, fmt.Errorf("%s: the ConfigMap has no such key", place)
		}
		return rego.Module{Name: place, Text: text}, nil
	}
	return rego.Module{}, fmt.Errorf("%s: the manifests do not have the ConfigMap", place)
}

func (c *controller) isParent(object *unstructured.Unstructured) bool {
	return c.kinds.is(object, c.Spec.ParentResource)
}

// childType returns the entry of childResources that an object is of.
func (c *controller) childType(object *unstructured.Unstructured) (childResource, bool) {
	for _, child := range c.Spec.ChildResources {
		if c.kinds.is(object, child.resource) {
			return child, true
		}
	}
	return childResource{}, false
}

func (c *controller) review(ctx context.Context, out io.Writer, parent *unstructured.Unstructured, objects []*unstructured.Unstructured, options Options) error {
	observed, err := c.observe(parent, objects)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrManifests, err)
	}
	request, err := json.Marshal(map[string]any{
		"controller": c.object.Object, "parent": parent.Object, "children": observed.byKind,
		"related": map[string]any{}, "finalizing": options.Finalize,
	})
	if err != nil {
		return err
	}
	response, err := c.policy.Evaluate(ctx, request, options.Now)
	if err != nil {
		return err
	}
	var answer struct {
		Status   map[string]any   `json:"status"`
		Children []map[string]any `json:"children"`
		Resync   float64          `json:"resyncAfterSeconds"`
		Until    *time.Time       `json:"validUntil"`
	}
	if err := json.Unmarshal(response, &answer); err != nil {
		return fmt.Errorf("the response: %w", err)
	}
	desired, err := c.desired(parent, answer.Children)
	if err != nil {
		return err
	}
	end := ""
	switch {
	case answer.Until == nil:
	case answer.Until.After(options.Now):
		end = fmt.Sprintf("the children go at %s\n", answer.Until.Format(time.RFC3339))
	default:
		end, desired = fmt.Sprintf("no children: the answer was valid until %s\n", answer.Until.Format(time.RFC3339)), nil
	}
	if err := c.print(out, parent, answer.Status, observed.objects, desired, answer.Resync); err != nil {
		return err
	}
	_, err = io.WriteString(out, end)
	return err
}

type observed struct {
	byKind  map[string]map[string]any
	objects map[string]*unstructured.Unstructured
}

// observe collects the parent's children, under the keys that a hook sees them by.
func (c *controller) observe(parent *unstructured.Unstructured, objects []*unstructured.Unstructured) (observed, error) {
	o := observed{byKind: map[string]map[string]any{}, objects: map[string]*unstructured.Unstructured{}}
	for _, child := range c.Spec.ChildResources {
		kind, known := c.kinds.kind(child.resource)
		if !known {
			return o, fmt.Errorf("the kind of %s of %s is unknown: add its CustomResourceDefinition", child.Resource, child.APIVersion)
		}
		o.byKind[kind+"."+child.APIVersion] = map[string]any{}
	}
	for _, object := range objects {
		if _, isChild := c.childType(object); !isChild || object == parent || !mayOwn(parent, object) {
			continue
		}
		key := object.GetName()
		if object.GetNamespace() != "" && (c.v2 || parent.GetNamespace() == "") {
			key = object.GetNamespace() + "/" + key
		}
		o.byKind[object.GetKind()+"."+object.GetAPIVersion()][key] = object.Object
		o.objects[name(object)] = object
	}
	return o, nil
}

// mayOwn tells whether a parent would see an object as its child: not that of another owner,
// nor one in another namespace.
func mayOwn(parent, object *unstructured.Unstructured) bool {
	for _, owner := range object.GetOwnerReferences() {
		if owner.Controller != nil && *owner.Controller {
			return owner.UID == parent.GetUID() && owner.Name == parent.GetName()
		}
	}
	return parent.GetNamespace() == "" || parent.GetNamespace() == object.GetNamespace()
}

func (c *controller) desired(parent *unstructured.Unstructured, children []map[string]any) (map[string]*unstructured.Unstructured, error) {
	desired := map[string]*unstructured.Unstructured{}
	for i, child := range children {
		object := &unstructured.Unstructured{Object: child}
		if object.GetNamespace() == "" && parent.GetNamespace() != "" {
			object.SetNamespace(parent.GetNamespace())
		}
		switch _, isChild := c.childType(object); {
		case object.GetKind() == "" || object.GetAPIVersion() == "" || object.GetName() == "":
			return nil, fmt.Errorf("children[%d] has no apiVersion, no kind or no metadata.name", i)
		case !isChild:
			return nil, fmt.Errorf("children[%d], %s, is of no kind in spec.childResources", i, name(object))
		case desired[name(object)] != nil:
			return nil, fmt.Errorf("children has %s twice", name(object))
		}
		desired[name(object)] = object
	}
	return desired, nil
}

func (c *controller) print(out io.Writer, parent *unstructured.Unstructured, status map[string]any, before, after map[string]*unstructured.Unstructured, resync float64) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, by CompositeController %s\n", name(parent), c.object.GetName())
	old, _, err := unstructured.NestedMap(parent.Object, "status")
	if err != nil {
		return err
	}
	// The engine writes this one itself.
	if generation, found := old["observedGeneration"]; found && status["observedGeneration"] == nil {
		status = maps.Clone(status)
		if status == nil {
			status = map[string]any{}
		}
		status["observedGeneration"] = generation
	}
	if err := change(&text, "status", orNil(old), orNil(status), ""); err != nil {
		return err
	}
	names := maps.Clone(before)
	maps.Copy(names, after)
	for _, key := range slices.Sorted(maps.Keys(names)) {
		note := ""
		from, to := content(before[key]), content(after[key])
		if from != nil && to != nil {
			to = merge(from, to).(map[string]any)
			child, _ := c.childType(after[key])
			method := cmp.Or(child.UpdateStrategy.Method, "OnDelete")
			note = " by " + method
			if method == "OnDelete" {
				note = " only once it is deleted (OnDelete)"
			}
		}
		if err := change(&text, key, from, to, note); err != nil {
			return err
		}
	}
	if resync > 0 {
		fmt.Fprintf(&text, "asked again after %s\n", time.Duration(resync*float64(time.Second)))
	}
	_, err = io.WriteString(out, text.String())
	return err
}

// change prints what becomes of one thing; nil is that it is not there.
func change(text *strings.Builder, what string, from, to map[string]any, note string) error {
	before, err := written(from)
	if err != nil {
		return err
	}
	after, err := written(to)
	if err != nil {
		return err
	}
	verb := "update"
	switch {
	case before == after:
		fmt.Fprintf(text, "unchanged: %s\n", what)
		return nil
	case what == "status":
	case from == nil:
		verb = "create"
	case to == nil:
		verb = "delete"
	}
	fmt.Fprintf(text, "%s: %s%s\n", verb, what, note)
	text.WriteString(udiff.Unified("is", "would be", before, after))
	return nil
}

func written(object map[string]any) (string, error) {
	if object == nil {
		return "", nil
	}
	data, err := yaml.Marshal(object)
	return string(data), err
}

func content(object *unstructured.Unstructured) map[string]any {
	if object == nil {
		return nil
	}
	return object.Object
}

func orNil(object map[string]any) map[string]any {
	if len(object) == 0 {
		return nil
	}
	return object
}

// merge lays what a hook wants over what is there: maps are merged, and all else is replaced.
func merge(from, to any) any {
	old, isMap := from.(map[string]any)
	wanted, isMap2 := to.(map[string]any)
	if !isMap || !isMap2 {
		return to
	}
	merged := maps.Clone(old)
	for key, value := range wanted {
		if value == nil {
			delete(merged, key)
			continue
		}
		merged[key] = merge(old[key], value)
	}
	return merged
}

// name is how messages call an object.
func name(object *unstructured.Unstructured) string {
	name := object.GetName()
	if object.GetNamespace() != "" {
		name = object.GetNamespace() + "/" + name
	}
	return object.GetKind() + " " + name
}
