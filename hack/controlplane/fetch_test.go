package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/tools/setup-envtest/versions"
)

// mirror serves an index and archives as envtest publishes them.
type mirror struct {
	*httptest.Server
	index    strings.Builder
	archives map[string][]byte
	// slow answers for an archive only when the client has gone.
	slow bool
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{archives: map[string][]byte{}}
	m.index.WriteString("releases:\n")
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/index.yaml" {
			_, _ = io.WriteString(w, m.index.String())
			return
		}
		archive, ok := m.archives[strings.TrimPrefix(r.URL.Path, "/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if m.slow {
			<-r.Context().Done()
			return
		}
		_, _ = w.Write(archive)
	}))
	t.Cleanup(m.Close)
	return m
}

// publish adds a version for this machine. A sum of "" means the right one.
func (m *mirror) publish(version, sum string, archive []byte) {
	if sum == "" {
		digest := sha512.Sum512(archive)
		sum = hex.EncodeToString(digest[:])
	}
	name := fmt.Sprintf("envtest-%s-%s-%s.tar.gz", version, runtime.GOOS, runtime.GOARCH)
	m.archives[name] = archive
	fmt.Fprintf(&m.index, "  %s:\n    %s:\n      hash: %s\n      selfLink: %s/%s\n", version, name, sum, m.URL, name)
}

// publishKwok adds kwok for this machine, and returns its sums.
func (m *mirror) publishKwok(content string) map[string]string {
	m.archives["kwok-"+runtime.GOOS+"-"+runtime.GOARCH] = []byte(content)
	sum := sha256.Sum256([]byte(content))
	return map[string]string{runtime.GOOS + "/" + runtime.GOARCH: hex.EncodeToString(sum[:])}
}

// packed is a .tar.gz as envtest packs it, with binaries that say what they are.
func packed(t *testing.T, contents map[string]string) []byte {
	t.Helper()
	var buffer bytes.Buffer
	zip := gzip.NewWriter(&buffer)
	archive := tar.NewWriter(zip)
	for name, content := range contents {
		header := &tar.Header{Name: "controller-tools/envtest/" + name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func binariesOf(version string) map[string]string {
	contents := map[string]string{}
	for _, name := range published {
		contents[name] = "#!/bin/sh\necho " + name + " " + version + "\n"
	}
	return contents
}

func testLimits() limits {
	l := defaultLimits
	l.index, l.archive = 30*time.Second, 30*time.Second
	return l
}

func TestWhatEnvtestPublishesIsTakenWhenItsChecksumIsRight(t *testing.T) {
	for name, test := range map[string]struct {
		published []string
		want      string
	}{
		"the pinned version itself":                          {[]string{"v1.37.0", "v1.37.2", "v1.37.3", "v1.38.0"}, "v1.37.2"},
		"the nearest patch, if the pinned one is absent":     {[]string{"v1.37.0", "v1.37.1", "v1.38.0"}, "v1.37.1"},
		"the newer of two patches that are equally far away": {[]string{"v1.37.1", "v1.37.3"}, "v1.37.3"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirror(t)
			for _, version := range test.published {
				m.publish(version, "", packed(t, binariesOf(version)))
			}
			dir := t.TempDir()
			taken, err := newFetcher(m.URL+"/index.yaml", testLimits()).fetch(t.Context(), dir, "v1.37.2", published)
			if err != nil || taken != test.want {
				t.Fatalf("version %q, %v", taken, err)
			}
			for name, want := range binariesOf(test.want) {
				path := filepath.Join(dir, name)
				if content, err := os.ReadFile(path); err != nil || string(content) != want || !executable(path) {
					t.Errorf("%s: %q, %v", name, content, err)
				}
			}
			if left := entries(t, dir); len(left) != len(published) {
				t.Errorf("the folder has %q", left)
			}
		})
	}
}

func TestADownloadThatFailsSaysWhyAndLeavesNothing(t *testing.T) {
	good := packed(t, binariesOf("v1.37.2"))
	for name, test := range map[string]struct {
		prepare func(*mirror, *limits)
		want    string
	}{
		"the checksum is another one": {func(m *mirror, _ *limits) {
			m.publish("v1.37.2", strings.Repeat("f", 128), good)
		}, "checksum mismatch"},
		"the index has no checksum": {func(m *mirror, _ *limits) {
			m.publish("v1.37.2", `""`, good)
		}, "checksum mismatch"},
		"the archive is cut short": {func(m *mirror, _ *limits) {
			m.publish("v1.37.2", "", good[:len(good)/2])
		}, "unexpected EOF"},
		"a binary is absent": {func(m *mirror, _ *limits) {
			m.publish("v1.37.2", "", packed(t, map[string]string{"etcd": "x", "kubectl": "x"}))
		}, `does not hold ["kube-apiserver"]`},
		"the minor is not published": {func(m *mirror, _ *limits) {
			m.publish("v1.36.4", "", good)
		}, "envtest publishes no Kubernetes 1.37 for " + runtime.GOOS + "/" + runtime.GOARCH},
		"the index is down":     {func(m *mirror, _ *limits) { m.Close() }, "unable to perform request to get index"},
		"the index is not YAML": {func(m *mirror, _ *limits) { m.index.WriteString("\t{") }, "unable to unmarshal index"},
		"the index is too long": {func(m *mirror, l *limits) {
			m.publish("v1.37.2", "", good)
			l.indexBytes = 10
		}, "request body too large"},
		"the archive is too long": {func(m *mirror, l *limits) {
			m.publish("v1.37.2", "", good)
			l.archiveBytes = 10
		}, "request body too large"},
		"a binary is too long": {func(m *mirror, l *limits) {
			m.publish("v1.37.2", "", good)
			l.binaryBytes = 10
		}, "bytes, more than 10"},
		"the archive never arrives": {func(m *mirror, l *limits) {
			m.publish("v1.37.2", "", good)
			m.slow, l.archive = true, 10*time.Millisecond
		}, context.DeadlineExceeded.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			m, l := newMirror(t), testLimits()
			test.prepare(m, &l)
			dir := t.TempDir()
			_, err := newFetcher(m.URL+"/index.yaml", l).fetch(t.Context(), dir, "v1.37.2", published)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want an error with %q, got: %v", test.want, err)
			}
			if left := entries(t, dir); len(left) > 0 {
				t.Errorf("it leaves %q", left)
			}
		})
	}
}

func TestKwokIsTakenFromItsReleaseWhenItsChecksumIsRight(t *testing.T) {
	m := newMirror(t)
	dir := t.TempDir()
	sums := m.publishKwok("#!/bin/sh\n")
	if err := newFetcher("", testLimits()).fetchKwok(t.Context(), dir, m.URL, sums); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, kwok)
	if content, err := os.ReadFile(path); err != nil || string(content) != "#!/bin/sh\n" || !executable(path) {
		t.Errorf("%q, %v", content, err)
	}
	if left := entries(t, dir); len(left) != 1 {
		t.Errorf("the folder has %q", left)
	}
}

func TestADownloadOfKwokThatFailsSaysWhyAndLeavesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*mirror, *limits, map[string]string)
		want    string
	}{
		"the checksum is another one": {func(m *mirror, _ *limits, _ map[string]string) {
			m.publishKwok("another")
		}, "has the SHA-256 sum"},
		"no checksum is known": {func(_ *mirror, _ *limits, sums map[string]string) {
			clear(sums)
		}, "no checksum of kwok " + kwokVersion + " is known for " + runtime.GOOS + "/" + runtime.GOARCH},
		"the release is absent": {func(m *mirror, _ *limits, _ map[string]string) { clear(m.archives) }, "404 Not Found"},
		"the server is down":    {func(m *mirror, _ *limits, _ map[string]string) { m.Close() }, "connection refused"},
		"it is too long":        {func(_ *mirror, l *limits, _ map[string]string) { l.archiveBytes = 2 }, "request body too large"},
		"the server is silent": {func(m *mirror, l *limits, _ map[string]string) {
			m.slow, l.index = true, 10*time.Millisecond
		}, "timeout awaiting response headers"},
		"it never arrives": {func(m *mirror, l *limits, _ map[string]string) {
			m.slow, l.archive = true, 10*time.Millisecond
		}, context.DeadlineExceeded.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			m, l := newMirror(t), testLimits()
			sums := m.publishKwok("kwok")
			test.prepare(m, &l, sums)
			dir := t.TempDir()
			err := newFetcher("", l).fetchKwok(t.Context(), dir, m.URL, sums)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want an error with %q, got: %v", test.want, err)
			}
			if left := entries(t, dir); len(left) > 0 {
				t.Errorf("it leaves %q", left)
			}
		})
	}
}

// A server that accepts a connection and then is silent is what many firewalls look like.
func TestASilentIndexCountsAsOfflineSoon(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	l := testLimits()
	l.index = 10 * time.Millisecond
	_, err := newFetcher(silent.URL, l).fetch(t.Context(), t.TempDir(), "v1.37.2", published)
	var timeout interface{ Timeout() bool }
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("got: %v", err)
	}
	if defaultLimits.index > 10*time.Second {
		t.Errorf("a newcomer without a network waits %s", defaultLimits.index)
	}
}

func TestAnIndexOfAnotherPlatformIsOfNoUse(t *testing.T) {
	other := versions.Platform{OS: "plan9", Arch: "amd64"}
	available := []versions.Set{{Version: versions.Concrete{Major: 1, Minor: 37, Patch: 2}, Platforms: []versions.PlatformItem{{Platform: other, Hash: &versions.Hash{}}}}}
	if _, _, err := nearest(available, "v1.37.2", versions.Platform{OS: "linux", Arch: "amd64"}); err == nil {
		t.Error("no error")
	}
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range list {
		names = append(names, entry.Name())
	}
	return names
}
