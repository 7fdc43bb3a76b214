package manager

import (
	"context"
	"errors"

	"github.com/admitkit/admitkit/extension"
)

// GetRecorder returns what keeps the records of extensions: all extensions that are an
// extension.Recorder. Without one it keeps nothing.
func (m *Manager) GetRecorder() extension.Recorder { return recorders(m.parts.Recorders) }

type recorders []extension.Recorder

// Record hands the record to each.
func (r recorders) Record(ctx context.Context, record extension.Record) error {
	errs := []error{record.Validate()}
	if errs[0] == nil {
		for _, each := range r {
			errs = append(errs, each.Record(ctx, record))
		}
	}
	return errors.Join(errs...)
}
