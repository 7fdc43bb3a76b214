package sink

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/afero"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// FileOptions are the options of [NewFile].
type FileOptions struct {
	// Path is the file, for example /var/log/audit.jsonl. Its folder is created.
	// There is no default.
	Path string
	// MaxSize is the size in bytes at which the file is rotated. Default: 100 MiB.
	MaxSize int64
	// MaxAge is the age at which the file is rotated. Default: 24 h.
	MaxAge time.Duration
	// Retention is how long rotated files are kept. Default: 30 days; -1 keeps
	// them all.
	Retention time.Duration
	// Fs is the file system. Default: the real one.
	Fs afero.Fs
	// Clock tells the time. Default: the real clock.
	Clock clock.PassiveClock
}

// Defaults of FileOptions.
const (
	DefaultMaxSize   = 100 << 20
	DefaultMaxAge    = 24 * time.Hour
	DefaultRetention = 30 * 24 * time.Hour
)

// fileSink appends JSON Lines to a file. It rotates the file itself: the
// libraries for that (lumberjack, file-rotatelogs) bypass afero, and none of them
// syncs: a "written" line would be lost when the node loses power.
type fileSink struct {
	options FileOptions
	log     *zap.Logger

	// disk is held by the goroutine that writes, for as long as the disk takes.
	disk *semaphore.Weighted
	file afero.File
	// size is the size of the complete lines; born is when the first was written.
	size int64
	born time.Time
}

// NewFile returns the sink "file": each record is a line of JSON (JSON Lines),
// on disk (fsync) before Write returns. Rotation renames the file to Path-TIME.
// Dry runs are written too.
func NewFile(options FileOptions) Sink {
	if options.MaxSize == 0 {
		options.MaxSize = DefaultMaxSize
	}
	if options.MaxAge == 0 {
		options.MaxAge = DefaultMaxAge
	}
	if options.Retention == 0 {
		options.Retention = DefaultRetention
	}
	if options.Fs == nil {
		options.Fs = afero.NewOsFs()
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &fileSink{options: options, log: zap.NewNop(), disk: semaphore.NewWeighted(1)}
}

// Name is "file".
func (*fileSink) Name() string { return "file" }

// Validate implements [Validated].
func (s *fileSink) Validate() error {
	switch {
	case s.options.Path == "":
		return errors.New("Path is missing")
	case s.options.MaxSize < 0 || s.options.MaxAge < 0:
		return fmt.Errorf("MaxSize %d and MaxAge %s must be positive", s.options.MaxSize, s.options.MaxAge)
	case s.options.Retention < 0 && s.options.Retention != -1:
		return fmt.Errorf("Retention %s must be positive, or -1", s.options.Retention)
	}
	return nil
}

// Register takes the manager's logger.
func (s *fileSink) Register(mgr extension.Manager) error {
	s.log = mgr.GetLogger().Desugar().Named("audit")
	return nil
}

// Write appends a line. While the disk hangs, Write returns when ctx ends, and
// the writes after it wait for the disk as long as their own contexts allow.
func (s *fileSink) Write(ctx context.Context, r *v1alpha1.AuditRecord) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := s.disk.Acquire(ctx, 1); err != nil {
		return err
	}
	written := make(chan error, 1)
	go func() {
		defer s.disk.Release(1)
		written <- s.append(append(line, '\n'))
	}()
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *fileSink) append(line []byte) error {
	if err := s.open(); err != nil {
		return err
	}
	if s.size > 0 && (s.size+int64(len(line)) > s.options.MaxSize || s.options.Clock.Since(s.born) >= s.options.MaxAge) {
		if err := s.rotate(); err != nil {
			// Better a file that is too large than no record.
			s.log.Error("file not rotated", zap.String("path", s.options.Path), zap.Error(err))
		}
		if err := s.open(); err != nil {
			return err
		}
	}
	_, err := s.file.Write(line)
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		// Remove the incomplete line, or the next one would be appended to it. If
		// that fails too, open repairs the file.
		_ = s.file.Truncate(s.size)
		s.close()
		return fmt.Errorf("writing %s: %w", s.options.Path, err)
	}
	if s.size == 0 {
		s.born = s.options.Clock.Now()
	}
	s.size += int64(len(line))
	return nil
}

// open opens the file unless it is open, and ends a line that a crash left
// incomplete.
func (s *fileSink) open() error {
	if s.file != nil {
		return nil
	}
	fs, path := s.options.Fs, s.options.Path
	if err := fs.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := fs.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil && info.Size() > 0 {
		err = s.resume(file, info)
	} else {
		s.size = 0
	}
	if err != nil {
		return errors.Join(fmt.Errorf("opening %s: %w", path, err), file.Close())
	}
	s.file = file
	return nil
}

// resume continues an existing file.
func (s *fileSink) resume(file afero.File, info os.FileInfo) error {
	s.size, s.born = info.Size(), info.ModTime()
	if first, err := bufio.NewReader(io.NewSectionReader(file, 0, info.Size())).ReadBytes('\n'); err == nil {
		var record v1alpha1.AuditRecord
		if json.Unmarshal(first, &record) == nil && !record.Time.IsZero() {
			s.born = record.Time.Time
		}
	}
	last := make([]byte, 1)
	if _, err := file.ReadAt(last, info.Size()-1); err != nil {
		return err
	}
	if last[0] == '\n' {
		return nil
	}
	if _, err := file.Write([]byte("\n")); err != nil {
		return err
	}
	s.size++
	return nil
}

func (s *fileSink) close() {
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}

// rotatedAt is the format of the time in the name of a rotated file.
const rotatedAt = "20060102T150405.000000000Z"

var rotatedName = regexp.MustCompile(`-(\d{8}T\d{6}\.\d{9}Z)$`)

func (s *fileSink) rotate() error {
	now := s.options.Clock.Now().UTC()
	s.close()
	if err := s.options.Fs.Rename(s.options.Path, s.options.Path+"-"+now.Format(rotatedAt)); err != nil {
		return err
	}
	if s.options.Retention == -1 {
		return nil
	}
	return s.expire(now)
}

// expire removes the rotated files whose retention is over.
func (s *fileSink) expire(now time.Time) error {
	rotated, err := afero.Glob(s.options.Fs, s.options.Path+"-*")
	if err != nil {
		return err
	}
	for _, path := range rotated {
		match := rotatedName.FindStringSubmatch(path)
		if match == nil {
			continue
		}
		// The name is no older than the file's last record.
		at, err := time.Parse(rotatedAt, match[1])
		if err != nil || now.Sub(at) < s.options.Retention {
			continue
		}
		if err := s.options.Fs.Remove(path); err != nil {
			return err
		}
	}
	return nil
}
