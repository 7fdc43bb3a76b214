package command

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/kinds"
)

// manifest is an object and the place where it was read.
type manifest struct {
	*unstructured.Unstructured
	source string
}

type manifests []manifest

// find returns the earlier version of an object, or nil if there is none.
func (all manifests) find(object manifest) *unstructured.Unstructured {
	i := slices.IndexFunc(all, func(m manifest) bool {
		return m.GroupVersionKind() == object.GroupVersionKind() && m.GetNamespace() == object.GetNamespace() && m.GetName() == object.GetName()
	})
	if i < 0 {
		return nil
	}
	return all[i].Unstructured
}

// addKinds adds the kinds that CustomResourceDefinitions among the manifests define.
func (all manifests) addKinds(known *kinds.Table) error {
	for _, m := range all {
		if !kinds.IsCRD(m.Unstructured) {
			continue
		}
		if err := known.Add(m.Unstructured); err != nil {
			return fmt.Errorf("%s: %w", m.source, err)
		}
	}
	return nil
}

// namespaceLabels returns the labels of a Namespace among the manifests, or nil if it
// is not there.
func (all manifests) namespaceLabels(name string) map[string]string {
	for _, m := range all {
		if m.GetAPIVersion() == "v1" && m.GetKind() == "Namespace" && m.GetName() == name {
			labels := map[string]string{}
			maps.Copy(labels, m.GetLabels())
			return labels
		}
	}
	return nil
}

// readManifests reads files, folders, and standard input for "-". A path without
// objects is an error.
func readManifests(stdin io.Reader, paths []string, recursive bool) (manifests, error) {
	var all manifests
	for _, path := range paths {
		read, err := readPath(stdin, path, recursive)
		if err != nil {
			return nil, err
		}
		if len(read) == 0 {
			return nil, fmt.Errorf("%s: contains no objects", path)
		}
		all = append(all, read...)
	}
	return all, nil
}

func readPath(stdin io.Reader, path string, recursive bool) (manifests, error) {
	if path == "-" {
		return readDocuments("standard input", stdin)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return readFile(path)
	}
	var all manifests
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if file != path && !recursive {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)) {
			return nil
		}
		read, err := readFile(file)
		all = append(all, read...)
		return err
	})
	return all, err
}

func readFile(path string) (manifests, error) {
	file, err := os.Open(path) //nolint:gosec // the user's choice
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	return readDocuments(path, file)
}

// readDocuments reads the objects of a stream of YAML or JSON documents. It splits
// Lists into their items.
func readDocuments(source string, from io.Reader) (manifests, error) {
	var all manifests
	documents := utilyaml.NewYAMLReader(bufio.NewReader(from))
	for i := 1; ; i++ {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		where := fmt.Sprintf("%s: document %d", source, i)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		// Strict, because otherwise one of two equal keys would be lost silently.
		content, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		if bytes.Equal(content, []byte("null")) {
			continue // comments only
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(content); err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		if !object.IsList() {
			all = append(all, manifest{object, where})
			continue
		}
		if err := object.EachListItem(func(item runtime.Object) error {
			all = append(all, manifest{item.(*unstructured.Unstructured), where})
			return nil
		}); err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
	}
}
