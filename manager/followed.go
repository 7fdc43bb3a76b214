package manager

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// followed is a file of the operator that is read again when it changes.
type followed struct {
	// option is the field of the options with the path, and about is the field of the file
	// with its entries.
	option, path, about string
	text                []byte // as it is followed
}

const (
	// maxFollowed is the most that such a file may have.
	maxFollowed = 1 << 20
	// followInterval is how often it is read.
	followInterval = time.Second
)

// read returns the content, nil without a path.
func (f *followed) read() ([]byte, error) {
	if f.path == "" {
		return nil, nil
	}
	// To open a named pipe waits for a writer.
	if info, err := os.Stat(f.path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %s is no regular file", f.option, f.path)
	}
	file, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.option, err)
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, maxFollowed+1))
	if err == nil && len(text) > maxFollowed {
		err = fmt.Errorf("%s has more than %d bytes", f.path, maxFollowed)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.option, err)
	}
	return text, nil
}

// ignoreMissing has files that do not exist count as empty, and warns of them.
func (m *Manager) ignoreMissing() (warnings []string) {
	for _, f := range []*followed{&m.modes.file, &m.exemptionsFile} {
		if _, err := os.Stat(f.path); f.path != "" && errors.Is(err, fs.ErrNotExist) {
			warnings = append(warnings, fmt.Sprintf("%s is not on this machine: the %s in it are not checked, and the webhook configurations are those without them", f.path, f.about))
			f.path = ""
		}
	}
	return warnings
}

// entries returns those of an option, and after them those of the content of a file. An
// error of check begins with the index of the entry.
func entries[T any](f *followed, text []byte, option string, own []T, check func([]T) error) ([]T, error) {
	if err := check(own); err != nil {
		return nil, fmt.Errorf("%s%w", option, err)
	}
	if f.path == "" {
		return own, nil
	}
	more, err := decode[T](text, f.about)
	if err == nil {
		if err = check(more); err != nil {
			err = fmt.Errorf("%s%w", f.about, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", f.option, f.path, err)
	}
	return slices.Concat(own, more), nil
}

// decode returns the entries of a document that has one field.
func decode[T any](text []byte, field string) ([]T, error) {
	document, err := theDocument(text)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(document)) {
		if name != field {
			return nil, fmt.Errorf("unknown field %q: the entries are in %q", name, field)
		}
	}
	if document[field] == nil { // a file that is being written may be empty
		return nil, fmt.Errorf("it has no field %q: write \"%s: []\" if there are to be none", field, field)
	}
	var entries []json.RawMessage
	if err := yaml.UnmarshalStrict(document[field], &entries); err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	all := make([]T, len(entries))
	var errs []error
	for i, entry := range entries {
		if err := yaml.UnmarshalStrict(entry, &all[i]); err != nil {
			if strings.Contains(err.Error(), "parsing time") {
				err = fmt.Errorf("%w: a time is such as 2027-01-31T00:00:00Z", err)
			}
			errs = append(errs, fmt.Errorf("%s[%d]: %w", field, i, err))
		}
	}
	return all, errors.Join(errs...)
}

// theDocument returns the fields of the one document of a text that is not empty.
func theDocument(text []byte) (document map[string]json.RawMessage, err error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		part, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return document, nil
		}
		var fields map[string]json.RawMessage
		if err == nil {
			err = yaml.UnmarshalStrict(part, &fields)
		}
		switch {
		case err != nil:
			return nil, err
		case fields != nil && document != nil:
			return nil, errors.New("it has several documents: put all entries into one")
		case fields != nil:
			document = fields
		}
	}
}

// follow reads a file again until ctx ends. When it has changed, it calls take with the
// content. If that is wrong, what was before stays in force, and that is told once.
func (m *Manager) follow(ctx context.Context, f *followed, take func(text []byte) error) {
	if f.path == "" {
		return
	}
	ticker := time.NewTicker(followInterval)
	defer ticker.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		text, err := f.read()
		if err == nil && !bytes.Equal(text, f.text) {
			if err = take(text); err == nil {
				f.text = text
			}
		}
		switch {
		case err == nil:
			told = ""
			fileRead.WithLabelValues(f.about).Set(1)
		case err.Error() != told:
			told = err.Error()
			fileRead.WithLabelValues(f.about).Set(0)
			m.options.Logger.Errorw("the "+f.about+" stay as they were: their file is wrong", "error", err)
			m.event("FileNotRead", told)
		}
	}
}
