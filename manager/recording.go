package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/admitkit/admitkit/internal/recording"
	"github.com/admitkit/admitkit/manager/buildinfo"
)

// DefaultRecordLimitBytes is the default of ServingOptions.RecordLimitBytes.
const DefaultRecordLimitBytes = 1 << 30

// leastRecordLimit is what a useful recording needs: a segment is an eighth of it, and an entry
// must fit into one.
const leastRecordLimit = 1 << 20

// completeRecording checks the options of recordings.
func (s *ServingOptions) completeRecording() error {
	switch {
	case s.RecordDir == "" && (s.RecordShare != 0 || s.RecordLimitBytes != 0):
		return errors.New("Serving.RecordShare, Serving.RecordLimitBytes: set without Serving.RecordDir, which names the folder")
	case !(s.RecordShare >= 0 && s.RecordShare <= 1): // not a number, too
		return fmt.Errorf("Serving.RecordShare: %v: must be more than 0, and 1 at most", s.RecordShare)
	case s.RecordLimitBytes != 0 && s.RecordLimitBytes < leastRecordLimit:
		return fmt.Errorf("Serving.RecordLimitBytes: %d: must be at least %d", s.RecordLimitBytes, leastRecordLimit)
	}
	if s.RecordDir == "" {
		return nil
	}
	s.RecordShare = cmp.Or(s.RecordShare, 1)
	s.RecordLimitBytes = cmp.Or(s.RecordLimitBytes, DefaultRecordLimitBytes)
	return nil
}

// newRecorder returns the recorder of admissions; nil for none.
func (m *Manager) newRecorder() (*recording.Recorder, error) {
	o := &m.options.Serving
	if o.RecordDir == "" {
		return nil, nil
	}
	build := buildinfo.Get()
	recorder, err := recording.NewRecorder(recording.Options{
		Dir: o.RecordDir, Share: o.RecordShare, LimitBytes: o.RecordLimitBytes,
		Build: strings.TrimSpace(build.Short() + " " + build.Commit), Logger: m.options.Logger.Desugar(),
	})
	if err != nil {
		return nil, fmt.Errorf("Serving.RecordDir: %w: name a folder that this process may write to", err)
	}
	m.options.Logger.Infow("admissions are recorded, without the secrets that can be recognized", "folder", o.RecordDir, "share", o.RecordShare, "limitBytes", o.RecordLimitBytes)
	return recorder, nil
}

// record writes recordings until stop is called, which returns when all are written.
func (s *serving) record() (stop func()) {
	if s.recorder == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.recorder.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}
