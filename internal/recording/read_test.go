package recording_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/recording"
)

func TestAFolderIsReadWholeOrItIsSaidWhatIsNot(t *testing.T) {
	const entry = `{"webhook":{"name":"a","mode":"","extensions":["a"]},"request":{"uid":"1"},"answer":{"outcome":"allowed"}}` + "\n"
	dir, elsewhere := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		filepath.Join(dir, "a.jsonl"):               entry + "<<<<<<< ours\n" + entry + `{"webhook":`,
		filepath.Join(dir, "log.jsonl"):             strings.Repeat(`{"level":"info"}`+"\n", 30),
		filepath.Join(elsewhere, "b.jsonl"):         entry,
		filepath.Join(dir, "replica", "c.jsonl.gz"): "",
		filepath.Join(dir, "other", "README"):       "",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"b.jsonl": filepath.Join(elsewhere, "b.jsonl"), "gone.jsonl": filepath.Join(elsewhere, "gone"), "null.jsonl": os.DevNull} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	entries := 0
	damages, err := recording.Read([]string{dir}, func(*recording.Entry) error { entries++; return nil })
	var said strings.Builder
	for _, damage := range damages {
		said.WriteString(strings.TrimPrefix(damage.String(), dir+"/") + "\n")
	}
	if err != nil || entries != 3 {
		t.Errorf("%d entries, %v", entries, err)
	}
	for _, want := range []string{
		"a.jsonl, line 2: invalid character", "a.jsonl, line 4: the rest is missing", "log.jsonl, line 1: it is no admission that was recorded", "log.jsonl: and 10 more lines",
		"replica: its recordings are not read: name this folder, too", "gone.jsonl: stat ", "null.jsonl: it is no regular file",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("not said: %s, but %s", want, said.String())
		}
	}
	if strings.Contains(said.String(), "other") {
		t.Errorf("a folder without recordings is named: %s", said.String())
	}

	before := map[string]os.FileInfo{}
	for _, name := range []string{"a.jsonl", "b.jsonl", "log.jsonl"} {
		before[name] = must(t, os.Lstat, filepath.Join(dir, name))
	}
	if _, err := recording.Rewrite([]string{dir}, func(*recording.Entry) (recording.Change, error) { return recording.Keep, nil }); err != nil {
		t.Fatal(err)
	}
	for name, info := range before {
		if now := must(t, os.Lstat, filepath.Join(dir, name)); !os.SameFile(info, now) {
			t.Errorf("%s is another file, although nothing changes", name)
		}
	}
	if _, err := recording.Rewrite([]string{dir}, func(e *recording.Entry) (recording.Change, error) {
		e.Build = "next"
		return recording.Replace, nil
	}); err != nil {
		t.Fatal(err)
	}
	if text := string(must(t, os.ReadFile, filepath.Join(dir, "a.jsonl"))); strings.Count(text, `"build":"next"`) != 2 || !strings.Contains(text, "\n<<<<<<< ours\n") || !strings.HasSuffix(text, "\n"+`{"webhook":`) {
		t.Errorf("what cannot be read is gone: %s", text)
	}
	if text := string(must(t, os.ReadFile, filepath.Join(elsewhere, "b.jsonl"))); !strings.Contains(text, `"build":"next"`) {
		t.Errorf("the file of a link stays %s", text)
	}
	if text := string(must(t, os.ReadFile, filepath.Join(dir, "log.jsonl"))); strings.Count(text, "\n") != 30 {
		t.Errorf("another file becomes %s", text)
	}
}

func must[T any](t *testing.T, read func(string) (T, error), name string) T {
	t.Helper()
	value, err := read(name)
	if err != nil {
		t.Fatal(err)
	}
	return value
}
