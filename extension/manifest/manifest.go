// Package manifest reads the objects of files as `kubectl create -f` does, and loses none: YAML documents, streams of
// JSON, and lists. It returns an error for everything else, so that nothing is left out in silence.
package manifest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	goyaml "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// maxLists is how deep lists may be in lists.
const maxLists = 10

// Object is an object of a stream.
type Object struct {
	*unstructured.Unstructured
	// Document is the number of its document, from 1.
	Document int
}

// Objects returns all objects of a stream of YAML and JSON documents, those of lists one by one. Its error names the
// document.
func Objects(from io.Reader) (all []Object, err error) {
	number := 0
	for content, err := range Documents(from) {
		if err != nil {
			return nil, err
		}
		number++
		if bytes.Equal(content, []byte("null")) {
			continue
		}
		object := &unstructured.Unstructured{}
		var objects []*unstructured.Unstructured
		if err = utiljson.Unmarshal(content, &object.Object); err == nil {
			objects, err = flatten(object, maxLists)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", number, err)
		}
		for _, object := range objects {
			all = append(all, Object{object, number})
		}
	}
	return all, nil
}

// Documents returns the documents of a stream as JSON, null for one of comments alone, until there is an error, which
// names the document. A key that is there twice is one.
func Documents(from io.Reader) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		chunks := utilyaml.NewYAMLReader(bufio.NewReader(from))
		for number := 1; ; {
			chunk, err := chunks.Read()
			if errors.Is(err, io.EOF) {
				return
			}
			var documents []json.RawMessage
			if err == nil {
				documents, err = split(chunk)
			}
			for _, document := range documents {
				if !yield(document, nil) {
					return
				}
				number++
			}
			if err != nil {
				yield(nil, fmt.Errorf("document %d: %w", number, err))
				return
			}
		}
	}
}

// split returns the documents of what is between two separators of YAML, those before an error, too.
func split(chunk []byte) ([]json.RawMessage, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(chunk), []byte("{")) {
		return whole(chunk)
	}
	var all []json.RawMessage
	for decoder := json.NewDecoder(bytes.NewReader(chunk)); ; {
		var text json.RawMessage
		if err := decoder.Decode(&text); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil { // YAML may look alike
			if document, not := whole(chunk); not == nil || len(all) == 0 {
				return document, not
			}
			return all, err
		}
		document, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return all, err
		}
		all = append(all, document)
	}
}

// whole returns the only document of YAML, and an error if something follows its end mark: that would be left out.
func whole(chunk []byte) ([]json.RawMessage, error) {
	document, err := yaml.YAMLToJSONStrict(chunk)
	if err != nil {
		return nil, err
	}
	decoder := goyaml.NewDecoder(bytes.NewReader(chunk))
	for range 2 {
		if err = decoder.Decode(new(goyaml.Node)); err != nil {
			break
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows its end: begin each document with --- on a line of its own")
	}
	return []json.RawMessage{document}, nil
}

// flatten returns an object, or those of a list, whose kind says what its items leave out.
func flatten(object *unstructured.Unstructured, lists int) ([]*unstructured.Unstructured, error) {
	switch {
	case object.GetAPIVersion() == "" || object.GetKind() == "":
		return nil, errors.New("has no apiVersion or no kind")
	case !object.IsList():
		return []*unstructured.Unstructured{object}, nil
	case lists == 0:
		return nil, fmt.Errorf("more than %d lists are in one another", maxLists)
	}
	kind, _ := strings.CutSuffix(object.GetKind(), "List")
	var all []*unstructured.Unstructured
	for i, content := range object.Object["items"].([]any) {
		fields, ok := content.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("items[%d]: is no object", i)
		}
		item := &unstructured.Unstructured{Object: fields}
		if kind != "" && item.GetKind() == "" && item.GetAPIVersion() == "" {
			item.SetKind(kind)
			item.SetAPIVersion(object.GetAPIVersion())
		}
		items, err := flatten(item, lists-1)
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		all = append(all, items...)
	}
	return all, nil
}
