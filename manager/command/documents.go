package command

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/extension/manifest"
	"github.com/admitkit/admitkit/internal/kinds"
)

// sourced is an object and the place where it was read.
type sourced struct {
	*unstructured.Unstructured
	source string
}

type manifests []sourced

// find returns the earlier version of an object, or nil if there is none.
func (all manifests) find(object sourced) *unstructured.Unstructured {
	i := slices.IndexFunc(all, func(m sourced) bool {
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
	all, unread, err := readAll(stdin, paths, recursive)
	if err == nil {
		err = unread
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}

// readAll reads as readManifests does, but goes on past files of folders that it cannot read: unread says which.
func readAll(stdin io.Reader, paths []string, recursive bool) (all manifests, unread, err error) {
	for _, path := range paths {
		read, left, err := readPath(stdin, path, recursive)
		if err != nil {
			return nil, nil, err
		}
		if len(read) == 0 && left == nil {
			return nil, nil, fmt.Errorf("%s: contains no objects", path)
		}
		all, unread = append(all, read...), errors.Join(unread, left)
	}
	return all, unread, nil
}

func readPath(stdin io.Reader, path string, recursive bool) (all manifests, unread, err error) {
	if path == "-" {
		all, err = readDocuments("standard input", stdin)
		return all, nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.IsDir() {
		all, err = readFile(path)
		return all, nil, err
	}
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
		all, unread = append(all, read...), errors.Join(unread, err)
		return nil
	})
	return all, unread, err
}

func readFile(path string) (manifests, error) {
	file, err := os.Open(path) //nolint:gosec // the user's choice
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	return readDocuments(path, file)
}

// readDocuments reads the objects of a stream of YAML or JSON documents.
func readDocuments(source string, from io.Reader) (manifests, error) {
	objects, err := manifest.Objects(from)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	all := make(manifests, len(objects))
	for i, object := range objects {
		all[i] = sourced{object.Unstructured, fmt.Sprintf("%s: document %d", source, object.Document)}
	}
	return all, nil
}
