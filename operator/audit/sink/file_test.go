package sink_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/afero"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
)

func TestAFileHasARecordOnEachLineAndIsForItsOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "audit.jsonl")
	file := sink.NewFile(sink.FileOptions{Path: path})
	for i := range 3 {
		if err := file.Write(t.Context(), audittest.Record(fmt.Sprint(i), time.Now())); err != nil {
			t.Fatal(err)
		}
	}
	if got := audittest.IDs(t, afero.NewOsFs(), path); strings.Join(got, "") != "012" {
		t.Errorf("the file has %v", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
}

func TestAFileIsRotatedBySizeAndAgeAndGoesAfterItsRetention(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := clocktesting.NewFakePassiveClock(start)
	fs := afero.NewMemMapFs()
	options := sink.FileOptions{Path: "/logs/audit.jsonl", Fs: fs, Clock: clock, MaxSize: 400, MaxAge: time.Hour, Retention: 3 * time.Hour}
	file := sink.NewFile(options)
	write := func(id string) {
		t.Helper()
		if err := file.Write(t.Context(), audittest.Record(id, clock.Now())); err != nil {
			t.Fatal(err)
		}
	}
	rotated := func() []string {
		found, err := afero.Glob(fs, "/logs/audit.jsonl-*")
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	write("a")
	write("b")
	if len(rotated()) != 0 {
		t.Fatalf("rotated too soon: %v", rotated())
	}
	write("c") // more than 400 bytes together
	if got := rotated(); len(got) != 1 || strings.Join(audittest.IDs(t, fs, got[0]), "") != "ab" {
		t.Fatalf("got %v, want one file with a and b", got)
	}
	// A new process goes on where the old one stopped: the age is that of the
	// first record.
	clock.SetTime(start.Add(time.Hour))
	file = sink.NewFile(options)
	write("d")
	if got := rotated(); len(got) != 2 || strings.Join(audittest.IDs(t, fs, got[1]), "") != "c" {
		t.Fatalf("got %v, want another file with c", got)
	}
	clock.SetTime(start.Add(3 * time.Hour))
	write("e")
	if got := rotated(); len(got) != 2 || strings.Join(audittest.IDs(t, fs, got[0]), "") != "c" {
		t.Errorf("got %v: the first file should be gone, and no other", got)
	}
}

// flakyFs is a disk that fills up, or hangs.
type flakyFs struct {
	afero.Fs
	full atomic.Bool
	hang chan struct{}
}

func (f *flakyFs) OpenFile(name string, flag int, perm os.FileMode) (afero.File, error) {
	file, err := f.Fs.OpenFile(name, flag, perm)
	return &flakyFile{file, f}, err
}

type flakyFile struct {
	afero.File
	fs *flakyFs
}

// Write writes a part of it when the disk is full, as write(2) does.
func (f *flakyFile) Write(p []byte) (int, error) {
	if f.fs.hang != nil {
		<-f.fs.hang
	}
	if f.fs.full.Load() {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, syscall.ENOSPC
	}
	return f.File.Write(p)
}

func TestADiskThatWasFullHasNoBrokenLines(t *testing.T) {
	disk := &flakyFs{Fs: afero.NewOsFs()}
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	file := sink.NewFile(sink.FileOptions{Path: path, Fs: disk})
	if err := file.Write(t.Context(), audittest.Record("1", time.Now())); err != nil {
		t.Fatal(err)
	}
	disk.full.Store(true)
	for range 2 {
		if err := file.Write(t.Context(), audittest.Record("2", time.Now())); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("got %v, want that the disk is full", err)
		}
	}
	disk.full.Store(false)
	if err := file.Write(t.Context(), audittest.Record("3", time.Now())); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("%v: the file is %q, want two whole lines", err, text)
	}
	if got := audittest.IDs(t, disk, path); strings.Join(got, "") != "13" {
		t.Errorf("the file has %v", got)
	}
}

func TestALineThatACrashLeftUnfinishedSpoilsNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte(`{"id":"1"}`+"\n"+`{"id":"2","ti`), 0o600); err != nil {
		t.Fatal(err)
	}
	file := sink.NewFile(sink.FileOptions{Path: path})
	if err := file.Write(t.Context(), audittest.Record("3", time.Now())); err != nil {
		t.Fatal(err)
	}
	if got := audittest.IDs(t, afero.NewOsFs(), path); strings.Join(got, "") != "13" {
		t.Errorf("the file has %v", got)
	}
}

func TestADiskThatHangsHoldsNobodyUpPastTheDeadline(t *testing.T) {
	disk := &flakyFs{Fs: afero.NewOsFs(), hang: make(chan struct{})}
	file := sink.NewFile(sink.FileOptions{Path: filepath.Join(t.TempDir(), "audit.jsonl"), Fs: disk})
	for range 2 { // the second waits for the first
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := file.Write(ctx, audittest.Record("1", time.Now())); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want that the deadline is over", err)
		}
		cancel()
	}
	close(disk.hang)
	if err := file.Write(t.Context(), audittest.Record("2", time.Now())); err != nil {
		t.Errorf("got %v when the disk is back", err)
	}
}

func TestARealDiskThatIsFullIsAnError(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("needs /dev/full, which Linux has:", err)
	}
	err := sink.NewFile(sink.FileOptions{Path: "/dev/full"}).Write(t.Context(), audittest.Record("1", time.Now()))
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want that the disk is full", err)
	}
}
