package collector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// Folder is a [Storage] in a folder, with a folder for each session.
type Folder string

var _ Storage = Folder("")

func (f Folder) path(id string, name string) string { return filepath.Join(string(f), id, name) }

// Create implements [Storage].
func (f Folder) Create(_ context.Context, name string, content []byte) error {
	name = f.path("", name)
	folder := filepath.Dir(name)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(folder, ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Sync(), temporary.Close())
	if err != nil {
		return err
	}
	if err := os.Link(temporary.Name(), name); err != nil {
		return err
	}
	return syncFolder(folder)
}

// syncFolder makes the names of the files in a folder last.
func syncFolder(name string) error {
	dir, err := os.Open(name) //nolint:gosec // IDs have been checked
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Open implements [Storage].
func (f Folder) Open(_ context.Context, name string) (io.ReadCloser, error) {
	return os.Open(f.path("", name))
}

// Sessions implements [Storage].
func (f Folder) Sessions(context.Context) ([]string, error) {
	dir, err := os.Open(string(f))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	var ids []string
	for _, name := range names {
		if protocol.ValidID(name) {
			ids = append(ids, name)
		}
	}
	return ids, err
}

// List implements [Storage].
func (f Folder) List(_ context.Context, id string) ([]Entry, error) {
	files, err := os.ReadDir(f.path(id, ""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	entries := make([]Entry, 0, len(files))
	for _, file := range files {
		info, err := file.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, Entry{file.Name(), info.Size(), info.ModTime()})
	}
	return entries, err
}

// Remove implements [Storage]. The folder of a session goes with its last file.
func (f Folder) Remove(_ context.Context, name string) error {
	err := os.Remove(f.path("", name))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	_ = os.Remove(filepath.Dir(f.path("", name))) // fails as long as there is something in it
	return err
}

// Part implements [Storage].
func (f Folder) Part(_ context.Context, id string, number int) (Part, error) {
	name := f.path(id, fmt.Sprintf("%06d.part", number))
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600) //nolint:gosec // IDs have been checked
	if err != nil {
		return nil, err
	}
	if err := syncFolder(filepath.Dir(name)); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return folderPart{file}, nil
}

// Delay implements [Storage].
func (Folder) Delay() time.Duration { return 0 }

type folderPart struct{ *os.File }

// Append implements [Part].
func (p folderPart) Append(_ context.Context, frames []byte) error {
	if _, err := p.Write(frames); err != nil {
		return err
	}
	return p.Sync()
}

// Redeemed returns who runs or ran a session.
func (f Folder) Redeemed(id string) (*Redeemed, error) {
	return ReadRedeemed(context.Background(), f, id)
}

// Verify is [Verify] in this folder.
func (f Folder) Verify(id string, key protocol.Key) (*Seal, error) {
	return Verify(context.Background(), f, id, key)
}

// Frames is [Frames] in this folder.
func (f Folder) Frames(id string, each func(*protocol.Frame) error) error {
	return Frames(context.Background(), f, id, each)
}

// Cast is [Cast] in this folder.
func (f Folder) Cast(id string, to io.Writer) error {
	return Cast(context.Background(), f, id, to)
}
