package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook/internal/failure"
)

// header is what a converter does not decide.
type header struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   json.RawMessage `json:"metadata,omitempty"`
}

// versionOf returns the version of a Converter in an apiVersion.
func versionOf(c *host.Converter, apiVersion string) (*host.ConverterVersion, error) {
	group, name, _ := strings.Cut(apiVersion, "/")
	if group != c.Group {
		return nil, fmt.Errorf("apiVersion %q: the converter of %s has the group %s", apiVersion, c.CRD, c.Group)
	}
	if v := c.Version(name); v != nil {
		return v, nil
	}
	return nil, fmt.Errorf("version %q: the converter of %s has %s: the program is older than the CustomResourceDefinition, or lacks an extension.Between",
		name, c.CRD, strings.Join(c.Names(), ", "))
}

// Object converts the JSON of one object. It also returns the version that it had.
func Object(c *host.Converter, raw []byte, desired string) (object []byte, version string, err error) {
	var had header
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &had); err != nil {
		return nil, "", fmt.Errorf("decoding it: %w", err)
	}
	from, err := versionOf(c, had.APIVersion)
	if err != nil {
		return nil, "", err
	}
	to, err := versionOf(c, desired)
	if err != nil {
		return nil, "", err
	}
	if from == to {
		return raw, from.Name, nil
	}
	object, err = convertFrom(c, raw, had, from, to)
	return object, from.Name, err
}

func convertFrom(c *host.Converter, raw []byte, had header, from, to *host.ConverterVersion) ([]byte, error) {
	source := from.New()
	unknown, err := kjson.UnmarshalStrict(raw, source)
	if err != nil {
		return nil, fmt.Errorf("decoding it as %T: %w", source, err)
	}
	target, err := through(c, had, source, from, to)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(target)
	if err != nil {
		return nil, fmt.Errorf("encoding the %T: %w", target, err)
	}
	if len(unknown) > 0 {
		if text, err = keepUnknown(raw, text, from.Type, to.Type); err != nil {
			return nil, err
		}
	}
	had.APIVersion = c.Group + "/" + to.Name
	return withHeader(text, had, target)
}

// through converts an object by way of the hub.
func through(c *host.Converter, had header, source ctrlclient.Object, from, to *host.ConverterVersion) (ctrlclient.Object, error) {
	at := source
	for _, next := range []struct {
		call    func(from, to ctrlclient.Object) error
		version *host.ConverterVersion
	}{{from.ToHub, c.Versions[0]}, {to.FromHub, to}} {
		if next.call == nil {
			continue // it is the hub
		}
		into := next.version.New()
		if err := prepare(into, had, c.Group+"/"+next.version.Name, at); err != nil {
			return nil, err
		}
		if err := next.call(at, into); err != nil {
			return nil, failure.OfHandler(err)
		}
		if err := sameObject(source, into); err != nil {
			return nil, err
		}
		at = into
	}
	return at, nil
}

// prepare gives an object its kind and the metadata that it has in another version.
func prepare(into ctrlclient.Object, had header, apiVersion string, from ctrlclient.Object) error {
	had.APIVersion = apiVersion
	text, err := json.Marshal(had)
	if err == nil {
		err = kjson.UnmarshalCaseSensitivePreserveInts(text, into)
	}
	if err != nil {
		return fmt.Errorf("beginning a %T: %w", into, err)
	}
	// Labels and annotations may have changed on the way.
	into.SetLabels(maps.Clone(from.GetLabels()))
	into.SetAnnotations(maps.Clone(from.GetAnnotations()))
	return nil
}

// identity are the fields of the metadata that a conversion must not change. The API
// server refuses some changes and drops the others without a word
// (k8s.io/apiextensions-apiserver, pkg/apiserver/conversion/webhook_converter.go).
var identity = []struct {
	field string
	of    func(ctrlclient.Object) any
}{
	{"name", func(o ctrlclient.Object) any { return o.GetName() }},
	{"namespace", func(o ctrlclient.Object) any { return o.GetNamespace() }},
	{"uid", func(o ctrlclient.Object) any { return o.GetUID() }},
	{"generateName", func(o ctrlclient.Object) any { return o.GetGenerateName() }},
	{"resourceVersion", func(o ctrlclient.Object) any { return o.GetResourceVersion() }},
	{"generation", func(o ctrlclient.Object) any { return o.GetGeneration() }},
	{"creationTimestamp", func(o ctrlclient.Object) any { return o.GetCreationTimestamp() }},
	{"deletionTimestamp", func(o ctrlclient.Object) any { return o.GetDeletionTimestamp() }},
	{"finalizers", func(o ctrlclient.Object) any { return o.GetFinalizers() }},
	{"ownerReferences", func(o ctrlclient.Object) any { return o.GetOwnerReferences() }},
}

func sameObject(source, converted ctrlclient.Object) error {
	for _, i := range identity {
		if was, is := i.of(source), i.of(converted); !equality.Semantic.DeepEqual(was, is) {
			return fmt.Errorf("the converter changes metadata.%s from %v to %v: only labels and annotations may change", i.field, was, is)
		}
	}
	return nil
}

// withHeader returns the JSON of an object with the apiVersion and kind that it should have,
// and with the metadata that it had, but for labels and annotations.
func withHeader(text []byte, had header, target ctrlclient.Object) ([]byte, error) {
	var members map[string]json.RawMessage
	metadata := map[string]json.RawMessage{}
	err := json.Unmarshal(text, &members)
	if err == nil && len(had.Metadata) > 0 {
		err = json.Unmarshal(had.Metadata, &metadata)
	}
	if err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	if metadata == nil { // it was null
		metadata = map[string]json.RawMessage{}
	}
	err = errors.Join(
		setMap(metadata, "labels", target.GetLabels()), setMap(metadata, "annotations", target.GetAnnotations()),
		set(members, "apiVersion", had.APIVersion), set(members, "kind", had.Kind), set(members, "metadata", metadata))
	if err != nil {
		return nil, err
	}
	return json.Marshal(members)
}

func set(members map[string]json.RawMessage, name string, value any) error {
	text, err := json.Marshal(value)
	members[name] = text
	return err
}

func setMap(members map[string]json.RawMessage, name string, value map[string]string) error {
	if len(value) == 0 {
		delete(members, name)
		return nil
	}
	return set(members, name, value)
}

// NameIn returns the namespace and name of an object, for messages.
func NameIn(raw []byte) string {
	var object struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &object); err != nil || object.Metadata.Name == "" {
		return "an object without a name"
	}
	if object.Metadata.Namespace == "" {
		return failure.Cut(object.Metadata.Name)
	}
	return failure.Cut(object.Metadata.Namespace + "/" + object.Metadata.Name)
}

// decodeTree decodes JSON without a Go type, and keeps integers.
func decodeTree(raw []byte) (map[string]any, error) {
	var tree map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(bytes.TrimSpace(raw), &tree); err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	return tree, nil
}
