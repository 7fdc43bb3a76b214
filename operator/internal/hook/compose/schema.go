package compose

import (
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Schema is what the API server says of a value in OpenAPI v3, as far as a merge needs it.
// nil says nothing.
type Schema struct {
	Ref        string             `json:"$ref"`
	AllOf      []*Schema          `json:"allOf"`
	Properties map[string]*Schema `json:"properties"`
	Items      *Schema            `json:"items"`
	// Additional is a schema, or a boolean.
	Additional json.RawMessage `json:"additionalProperties"`
	Default    any             `json:"default"`
	ListType   string          `json:"x-kubernetes-list-type"`
	MapKeys    []string        `json:"x-kubernetes-list-map-keys"`
	MapType    string          `json:"x-kubernetes-map-type"`

	Kinds []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`

	additional *Schema
	// refs are the schemas that references are to.
	refs map[string]*Schema
}

// ReadSchemas reads the schemas of the kinds of a group and version.
func ReadSchemas(openAPI []byte) (map[schema.GroupVersionKind]*Schema, error) {
	var document struct {
		Components struct {
			Schemas map[string]*Schema `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(openAPI, &document); err != nil {
		return nil, err
	}
	kinds := map[schema.GroupVersionKind]*Schema{}
	for _, s := range document.Components.Schemas {
		s.link(document.Components.Schemas)
		for _, kind := range s.Kinds {
			kinds[kind] = s
		}
	}
	return kinds, nil
}

func (s *Schema) link(refs map[string]*Schema) {
	if s == nil {
		return
	}
	s.refs = refs
	s.Items.link(refs)
	for _, each := range s.AllOf {
		each.link(refs)
	}
	for _, each := range s.Properties {
		each.link(refs)
	}
	if len(s.Additional) > 0 && s.Additional[0] == '{' && json.Unmarshal(s.Additional, &s.additional) == nil {
		s.additional.link(refs)
	}
	s.Additional = nil
}

// maxRefs bounds how many references lead to a schema.
const maxRefs = 10

// deref follows references. The API server writes one as an allOf if it has a default.
func (s *Schema) deref() *Schema {
	for range maxRefs {
		switch {
		case s == nil:
			return nil
		case s.Ref != "":
			s = s.refs[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
		case len(s.AllOf) == 1 && s.Properties == nil:
			s = s.AllOf[0]
		default:
			return s
		}
	}
	return nil
}

func (s *Schema) field(name string) *Schema {
	if s = s.deref(); s == nil {
		return nil
	}
	if field := s.Properties[name]; field != nil {
		return field
	}
	return s.additional
}

func (s *Schema) items() *Schema {
	if s = s.deref(); s == nil {
		return nil
	}
	return s.Items
}

// atomic says that somebody who writes the object, or the list, writes all of it.
func (s *Schema) atomic() bool {
	s = s.deref()
	return s != nil && (s.MapType == "atomic" || s.ListType == "atomic")
}

// isMap says that the names of the fields are the users'.
func (s *Schema) isMap() bool {
	s = s.deref()
	return s != nil && s.additional != nil
}

// set says that the items of the list are values, of which each is there once.
func (s *Schema) set() bool {
	s = s.deref()
	return s != nil && s.ListType == "set"
}

func (s *Schema) mapKeys() []string {
	if s = s.deref(); s == nil {
		return nil
	}
	return s.MapKeys
}

func (s *Schema) defaultOf(field string) any {
	if s = s.field(field); s == nil {
		return nil
	}
	return s.Default
}
