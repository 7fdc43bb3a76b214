package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsjson "sigs.k8s.io/json"
)

// Version is the version of the protocol that a hook speaks.
type Version string

// The versions. In V2, objects with a namespace always have it in their key.
const (
	V1 Version = "v1"
	V2 Version = "v2"
)

// Objects are objects by kind, as Pod.v1 or Deployment.apps/v1, and by name.
type Objects map[string]map[string]map[string]any

// SyncRequest is what the hooks sync and finalize of a CompositeController are asked.
type SyncRequest struct {
	Controller map[string]any `json:"controller"`
	Parent     map[string]any `json:"parent"`
	Children   Objects        `json:"children"`
	Related    Objects        `json:"related"`
	Finalizing bool           `json:"finalizing"`
}

// DecorateRequest is what the hooks sync and finalize of a DecoratorController are asked.
type DecorateRequest struct {
	Controller  map[string]any `json:"controller"`
	Object      map[string]any `json:"object"`
	Attachments Objects        `json:"attachments"`
	Related     Objects        `json:"related"`
	Finalizing  bool           `json:"finalizing"`
}

// CustomizeRequest is what the hook customize is asked.
type CustomizeRequest struct {
	Controller map[string]any `json:"controller"`
	Parent     map[string]any `json:"parent"`
}

// Key is the key of a kind in [Objects]: Pod.v1, or Deployment.apps/v1.
func Key(apiVersion, kind string) string { return kind + "." + apiVersion }

// Name is the name of an object in [Objects].
func (v Version) Name(parentNamespace string, object metav1.Object) string {
	if object.GetNamespace() == "" || v != V2 && parentNamespace != "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

// Answer is what a hook returned.
type Answer struct {
	// Status replaces the parent's; nil is null, or none.
	Status map[string]any
	// Labels and Annotations are those of a decorator; nil removes one.
	Labels, Annotations map[string]*string
	// Children are the children, or attachments, that the parent should have. A response
	// without any is one with none, in each version, as in Metacontroller.
	Children []*unstructured.Unstructured
	// ResyncAfter is when the hook wants to be called again; 0 is never.
	ResyncAfter time.Duration
	// ValidUntil is when the children go, unless the hook has answered anew before; zero is
	// never.
	ValidUntil time.Time
	// Finalized says that the parent may go.
	Finalized bool
}

type common struct {
	Status             map[string]any `json:"status"`
	ResyncAfterSeconds float64        `json:"resyncAfterSeconds"`
	ValidUntil         *string        `json:"validUntil"`
	Finalized          bool           `json:"finalized"`
}

type syncResponse struct {
	common
	Children []*unstructuredObject `json:"children"`
}

type decorateResponse struct {
	common
	Labels      map[string]*string    `json:"labels"`
	Annotations map[string]*string    `json:"annotations"`
	Attachments []*unstructuredObject `json:"attachments"`
}

// unstructuredObject is any JSON object. Unstructured itself would need a kind to decode.
type unstructuredObject map[string]any

// MaxChildren is how many children a response can have.
const MaxChildren = 10_000

// ReadSync reads the response of the hooks sync and finalize of a CompositeController.
func ReadSync(response []byte, strict bool) (*Answer, error) {
	var r syncResponse
	if err := decode(response, &r, strict); err != nil {
		return nil, err
	}
	return r.answer("children", r.Children)
}

// ReadDecorate reads the response of the hooks sync and finalize of a DecoratorController.
func ReadDecorate(response []byte, strict bool) (*Answer, error) {
	var r decorateResponse
	if err := decode(response, &r, strict); err != nil {
		return nil, err
	}
	answer, err := r.answer("attachments", r.Attachments)
	if err == nil {
		answer.Labels, answer.Annotations = r.Labels, r.Annotations
	}
	return answer, err
}

func (c *common) answer(field string, objects []*unstructuredObject) (*Answer, error) {
	answer := &Answer{Status: c.Status, Finalized: c.Finalized}
	// The longest Duration is 292 years. What is left until a time in the past is negative: a
	// refusal would keep a child from being removed when its time is over.
	answer.ResyncAfter = time.Duration(max(0, min(c.ResyncAfterSeconds, 1e9)) * float64(time.Second))
	if c.ValidUntil != nil {
		var err error
		if answer.ValidUntil, err = time.Parse(time.RFC3339, *c.ValidUntil); err != nil {
			return nil, fmt.Errorf("validUntil: %.40q is no time in RFC 3339, such as 2030-01-01T22:00:00Z", *c.ValidUntil)
		}
	}
	if len(objects) > MaxChildren {
		return nil, fmt.Errorf("the response has %d %s, more than %d", len(objects), field, MaxChildren)
	}
	for i, object := range objects {
		if object == nil {
			return nil, fmt.Errorf("%s[%d] is null", field, i)
		}
		child := &unstructured.Unstructured{Object: *object}
		switch {
		case child.GetAPIVersion() == "" || child.GetKind() == "":
			return nil, fmt.Errorf("%s[%d] has no apiVersion or no kind", field, i)
		case child.GetName() == "":
			return nil, fmt.Errorf("%s[%d], a %s, has no metadata.name", field, i, child.GetKind())
		}
		if err := checkStrings(child); err != nil {
			return nil, fmt.Errorf("%s[%d], the %s %s: %w", field, i, child.GetKind(), child.GetName(), err)
		}
		answer.Children = append(answer.Children, child)
	}
	return answer, nil
}

// checkStrings refuses labels and annotations that are no strings: whoever reads them as such
// reads none at all, and an object without them would be written.
func checkStrings(child *unstructured.Unstructured) error {
	metadata, _ := child.Object["metadata"].(map[string]any)
	for _, field := range []string{"labels", "annotations"} {
		all, ok := metadata[field].(map[string]any)
		if metadata[field] != nil && !ok {
			return fmt.Errorf("metadata.%s is no object", field)
		}
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if _, ok := all[key].(string); !ok && all[key] != nil {
				return fmt.Errorf("metadata.%s: the value of %s must be a string: put it in quotes", field, key)
			}
		}
	}
	return nil
}

// RelatedRule says which objects hooks want to see: by names, or by selectors.
type RelatedRule struct {
	APIVersion        string                `json:"apiVersion"`
	Resource          string                `json:"resource"`
	LabelSelector     *metav1.LabelSelector `json:"labelSelector"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
	Namespace         string                `json:"namespace"`
	Names             []string              `json:"names"`
}

// MaxRelatedRules is how many rules the hook customize can return.
const MaxRelatedRules = 64

// ReadCustomize reads the response of the hook customize.
func ReadCustomize(response []byte, strict bool) ([]RelatedRule, error) {
	var r struct {
		RelatedResources []RelatedRule `json:"relatedResources"`
	}
	if err := decode(response, &r, strict); err != nil {
		return nil, err
	}
	if len(r.RelatedResources) > MaxRelatedRules {
		return nil, fmt.Errorf("the response has %d relatedResources, more than %d", len(r.RelatedResources), MaxRelatedRules)
	}
	for i, rule := range r.RelatedResources {
		switch {
		case rule.APIVersion == "" || rule.Resource == "":
			return nil, fmt.Errorf("relatedResources[%d] has no apiVersion or no resource", i)
		case len(rule.Names) > 0 && (rule.LabelSelector != nil || rule.NamespaceSelector != nil):
			return nil, fmt.Errorf("relatedResources[%d] has names and a selector: choose one", i)
		case rule.Namespace != "" && rule.NamespaceSelector != nil:
			return nil, fmt.Errorf("relatedResources[%d] has namespace and namespaceSelector: choose one", i)
		}
	}
	return r.RelatedResources, nil
}

// decode reads JSON as the API server does: integers stay integers, and names of fields
// mind case.
func decode(response []byte, into any, strict bool) error {
	if len(response) > MaxResponseBytes {
		return errTooLong
	}
	switch depth, values := measure(response); {
	case depth > MaxDepth:
		return fmt.Errorf("the response is nested deeper than %d levels", MaxDepth)
	case values > maxValues:
		return fmt.Errorf("the response has more than %d values", maxValues)
	}
	if !bytes.HasPrefix(bytes.TrimSpace(response), []byte("{")) {
		return fmt.Errorf("the response is no JSON object: %.60q", response)
	}
	if !strict {
		if err := sigsjson.UnmarshalCaseSensitivePreserveInts(response, into); err != nil {
			return fmt.Errorf("the response is not what the protocol wants: %w", err)
		}
		return nil
	}
	faults, err := sigsjson.UnmarshalStrict(response, into)
	if err = errors.Join(append(faults, err)...); err != nil {
		return fmt.Errorf("the response is not what the protocol wants (strict): %w", err)
	}
	return nil
}

var errTooLong = fmt.Errorf("the response is longer than %d bytes", MaxResponseBytes)

// Marshal returns the body of a request.
func Marshal(request any) ([]byte, error) {
	body, err := json.Marshal(request)
	if depth, _ := measure(body); depth > MaxDepth {
		err = fmt.Errorf("the parent, a child or a related object is nested deeper than %d levels", MaxDepth)
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the request: %w", err)
	}
	return body, nil
}

// MaxDepth is how deep requests and responses are nested. The API server stores objects of
// almost 10,000 levels. Of some of them, it or its clients then cannot read the list, and with
// it no other object of the kind: no parent may become such a child, status or revision.
const MaxDepth = 500

// maxValues is how many values a response has: 10 MiB of empty objects would be hundreds in
// memory. It is 50 for each of MaxChildren.
const maxValues = 500_000

// measure returns how deep JSON is nested, and about how many values it has.
func measure(text []byte) (deepest, values int) {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
			values++
		case c == '}' || c == ']':
			depth--
		case c == ',':
			values++
		}
	}
	return deepest, values
}
