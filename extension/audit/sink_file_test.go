package audit_test

import (
	"context"
	"encoding/json"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit"
)

// recordOf returns a record of an exec.
func recordOf(id string, at time.Time) *v1alpha1.AuditRecord {
	return &v1alpha1.AuditRecord{
		ID: id, Time: metav1.NewMicroTime(at), Way: v1alpha1.WayExec, Verb: "connect", Namespace: "shop", Pod: "web",
		User: v1alpha1.AuditUser{Username: "alice"}, Command: []string{"ls", "-la"}, Decision: v1alpha1.AuditAllowed,
	}
}

// ids are those of the records in a file; every line must be a record.
func ids(t *testing.T, fs afero.Fs, path string) []string {
	t.Helper()
	text, err := afero.ReadFile(fs, path)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		var r v1alpha1.AuditRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			continue // an unfinished line of a crash
		}
		found = append(found, r.ID)
	}
	return found
}

func TestAFileHasARecordOnEachLineAndIsForItsOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "audit.jsonl")
	sink := audit.NewFileSink(audit.FileSinkOptions{Path: path})
	for i := range 3 {
		if err := sink.Write(t.Context(), recordOf(fmt.Sprint(i), time.Now())); err != nil {
			t.Fatal(err)
		}
	}
	if got := ids(t, afero.NewOsFs(), path); strings.Join(got, "") != "012" {
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
	options := audit.FileSinkOptions{Path: "/logs/audit.jsonl", Fs: fs, Clock: clock, MaxSize: 400, MaxAge: time.Hour, Retention: 3 * time.Hour}
	sink := audit.NewFileSink(options)
	write := func(id string) {
		t.Helper()
		if err := sink.Write(t.Context(), recordOf(id, clock.Now())); err != nil {
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
	if got := rotated(); len(got) != 1 || strings.Join(ids(t, fs, got[0]), "") != "ab" {
		t.Fatalf("got %v, want one file with a and b", got)
	}
	// A new process goes on where the old one stopped: the age is that of the
	// first record.
	clock.SetTime(start.Add(time.Hour))
	sink = audit.NewFileSink(options)
	write("d")
	if got := rotated(); len(got) != 2 || strings.Join(ids(t, fs, got[1]), "") != "c" {
		t.Fatalf("got %v, want another file with c", got)
	}
	clock.SetTime(start.Add(3 * time.Hour))
	write("e")
	if got := rotated(); len(got) != 2 || strings.Join(ids(t, fs, got[0]), "") != "c" {
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
	sink := audit.NewFileSink(audit.FileSinkOptions{Path: path, Fs: disk})
	if err := sink.Write(t.Context(), recordOf("1", time.Now())); err != nil {
		t.Fatal(err)
	}
	disk.full.Store(true)
	for range 2 {
		if err := sink.Write(t.Context(), recordOf("2", time.Now())); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("got %v, want that the disk is full", err)
		}
	}
	disk.full.Store(false)
	if err := sink.Write(t.Context(), recordOf("3", time.Now())); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("%v: the file is %q, want two whole lines", err, text)
	}
	if got := ids(t, disk, path); strings.Join(got, "") != "13" {
		t.Errorf("the file has %v", got)
	}
}

func TestALineThatACrashLeftUnfinishedSpoilsNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte(`{"id":"1"}`+"\n"+`{"id":"2","ti`), 0o600); err != nil {
		t.Fatal(err)
	}
	sink := audit.NewFileSink(audit.FileSinkOptions{Path: path})
	if err := sink.Write(t.Context(), recordOf("3", time.Now())); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, afero.NewOsFs(), path); strings.Join(got, "") != "13" {
		t.Errorf("the file has %v", got)
	}
}

func TestADiskThatHangsHoldsNobodyUpPastTheDeadline(t *testing.T) {
	disk := &flakyFs{Fs: afero.NewOsFs(), hang: make(chan struct{})}
	sink := audit.NewFileSink(audit.FileSinkOptions{Path: filepath.Join(t.TempDir(), "audit.jsonl"), Fs: disk})
	for range 2 { // the second waits for the first
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := sink.Write(ctx, recordOf("1", time.Now())); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want that the deadline is over", err)
		}
		cancel()
	}
	close(disk.hang)
	if err := sink.Write(t.Context(), recordOf("2", time.Now())); err != nil {
		t.Errorf("got %v when the disk is back", err)
	}
}

func TestARealDiskThatIsFullIsAnError(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("needs /dev/full, which Linux has:", err)
	}
	err := audit.NewFileSink(audit.FileSinkOptions{Path: "/dev/full"}).Write(t.Context(), recordOf("1", time.Now()))
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want that the disk is full", err)
	}
}
