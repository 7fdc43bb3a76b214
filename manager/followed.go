package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

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

// entries returns those of an option, and after them those of the content of a file. An
// error of check begins with the index of the entry.
func entries[T any](f *followed, text []byte, option string, own []T, check func([]T) error) ([]T, error) {
	if err := check(own); err != nil {
		return nil, fmt.Errorf("%s%w", option, err)
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
func decode[T any](text []byte, field string) (all []T, err error) {
	var document map[string]json.RawMessage
	if err := yaml.UnmarshalStrict(text, &document); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(document)) {
		if name != field {
			return nil, fmt.Errorf("unknown field %q: the entries are in %q", name, field)
		}
	}
	return all, yaml.UnmarshalStrict(document[field], &all)
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
