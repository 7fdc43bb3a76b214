package collector

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"
	"time"
)

func TestRecordingsAreDeletedAfterTheirRetention(t *testing.T) {
	folder, old := record(t)
	_, young := recordIn(t, folder)
	clock := time.Now()
	entries, err := folder.List(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.Chtimes(folder.path(old, entry.Name), clock.Add(-25*time.Hour), clock.Add(-25*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	c := New(Options{Storage: folder, Retention: 26 * time.Hour, Now: func() time.Time { return clock }})
	for _, want := range [][]string{nil, {old}, nil} {
		if deleted, err := c.Prune(t.Context()); err != nil || !slices.Equal(deleted, want) {
			t.Errorf("deleted %v instead of %v: %v", deleted, want, err)
		}
		c.options.Retention = 24 * time.Hour
	}
	if _, err := os.Stat(folder.path(old, "")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of an old recording: %v", err)
	}
	if _, err := folder.Verify(young, key); err != nil {
		t.Error(err)
	}
}
