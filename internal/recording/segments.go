package recording

import (
	"compress/gzip"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Recordings are files of these names: PREFIX, the time at which their process began, a random
// part, and a number. So their order is that of time.
const (
	segmentPrefix = "admissions-"
	plainSuffix   = ".jsonl"
	gzipSuffix    = plainSuffix + ".gz"
)

// segmentsPerLimit is into how many segments the limit is divided. The oldest is removed as a whole.
const segmentsPerLimit = 8

// maxSegment is the size of the largest segment.
const maxSegment = 64 << 20

// overhead bounds what gzip adds to data that it cannot compress.
const overhead = 4 << 10

// errTooLarge is the error of an entry that no segment has room for, or whose object became too large.
var errTooLarge = errors.New("the entry is too large")

// segments are the files of one process in a folder. They are not safe for concurrent use.
type segments struct {
	dir, name   string
	limit, size int64
	number      int
	file        *os.File // nil if none is open
	compressed  *gzip.Writer
	written     int64 // to the file
	unflushed   int64 // in gzip, before compression
}

// newSegments returns the segments of a process in a folder, which it makes. An error means that
// it cannot write there.
func newSegments(dir string, limit int64, now time.Time) (*segments, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	s := &segments{
		dir: dir, name: segmentPrefix + now.UTC().Format("20060102T150405.000Z") + "-" + hex.EncodeToString(random),
		limit: limit, size: min(limit/segmentsPerLimit, maxSegment),
	}
	return s, s.open()
}

// open begins a segment, after it has made room for it.
func (s *segments) open() error {
	if err := s.makeRoom(); err != nil {
		return err
	}
	s.number++
	file, err := os.OpenFile(filepath.Join(s.dir, fmt.Sprintf("%s-%06d%s", s.name, s.number, gzipSuffix)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	compressed, err := gzip.NewWriterLevel(counting{s}, gzip.BestSpeed)
	if err != nil {
		return err
	}
	s.file, s.compressed, s.written, s.unflushed = file, compressed, 0, 0
	return nil
}

// counting writes to the file of the segments.
type counting struct{ *segments }

func (c counting) Write(data []byte) (int, error) {
	n, err := c.file.Write(data)
	c.written += int64(n)
	return n, err
}

// makeRoom removes the oldest segments, of whichever process, until there is room for one more.
func (s *segments) makeRoom() error {
	files, err := filesOf(s.dir)
	if err != nil {
		return err
	}
	var total int64
	sizes := make([]int64, len(files))
	for i, file := range files {
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) { // another process removed it
			continue
		}
		if err != nil {
			return err
		}
		sizes[i] = info.Size()
		total += sizes[i]
	}
	for i, file := range files {
		if total+s.size <= s.limit {
			break
		}
		if !strings.HasPrefix(filepath.Base(file), segmentPrefix) {
			continue // somebody else put it there
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		total -= sizes[i]
	}
	return nil
}

// write adds a line. Without it the segments are as they were, unless the error is one of the disk.
func (s *segments) write(line []byte) error {
	size := int64(len(line)) + overhead
	if size > s.size {
		return errTooLarge
	}
	if s.file != nil && s.written+s.unflushed+size > s.size {
		if err := s.flush(); err != nil {
			return err
		}
		if s.written+size > s.size {
			if err := s.close(); err != nil {
				return err
			}
		}
	}
	if s.file == nil {
		if err := s.open(); err != nil {
			return err
		}
	}
	s.unflushed += int64(len(line))
	if _, err := s.compressed.Write(line); err != nil {
		return err
	}
	return nil
}

// flush writes to the file what was added, so that it can be read if the process crashes.
func (s *segments) flush() error {
	if s.file == nil || s.unflushed == 0 {
		return nil
	}
	s.unflushed = 0
	return s.compressed.Flush()
}

// close ends the segment.
func (s *segments) close() error {
	if s.file == nil {
		return nil
	}
	err := errors.Join(s.compressed.Close(), s.file.Close())
	s.file = nil
	return err
}

// abandon ends a segment that could not be written, and removes it if it is empty.
func (s *segments) abandon() {
	if s.file == nil {
		return
	}
	_ = s.file.Close() // there is nothing left to lose
	if s.written == 0 {
		_ = os.Remove(s.file.Name())
	}
	s.file = nil
}

// filesOf returns the recordings in a folder, the oldest first.
func filesOf(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		if entry.Type().IsRegular() && isRecording(entry.Name()) {
			files = append(files, filepath.Join(dir, entry.Name()))
		}
	}
	slices.Sort(files)
	return files, nil
}

func isRecording(name string) bool {
	return strings.HasSuffix(name, plainSuffix) || strings.HasSuffix(name, gzipSuffix)
}

// opened is a recording that is read.
type opened struct {
	io.Reader
	close func() error
}

// openFile opens a recording to read its lines.
func openFile(name string) (*opened, error) {
	file, err := os.Open(name) //nolint:gosec // the user names the folder
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(name, gzipSuffix) {
		return &opened{file, file.Close}, nil
	}
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &opened{unpacked, func() error { return errors.Join(unpacked.Close(), file.Close()) }}, nil
}
