package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// static builds a program without libraries for an architecture.
func static(t *testing.T, arch string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() { println(\""+arch+"\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(dir, "program"), filepath.Join(dir, "main.go"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return filepath.Join(dir, "program")
}

func TestAnImageOfTwoArchitecturesIsOneIndexWithTheSameBytesEachTime(t *testing.T) {
	binaries, archs := []string{static(t, "amd64"), static(t, "arm64")}, []string{"amd64", "arm64"}
	labels := []string{"org.opencontainers.image.version=1.2.3"}
	var archives [][]byte
	for _, dir := range []string{t.TempDir(), t.TempDir()} {
		out := filepath.Join(dir, "image.tar")
		if err := run(binaries, "", "", archs, labels, "example.com/program:1.2.3", out, gzip.BestSpeed); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, content)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same binaries differ")
	}
	dir := t.TempDir()
	untar := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir)
	untar.Stdin = bytes.NewReader(archives[0])
	if output, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "example.com/program:1.2.3" {
		t.Fatalf("%v: %+v", err, manifest)
	}
	all, err := index.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	checkPlatforms(t, all, archs)
}

func checkPlatforms(t *testing.T, all v1.ImageIndex, archs []string) {
	t.Helper()
	manifest, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range manifest.Manifests {
		image, err := all.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if m.Platform.Architecture != config.Architecture || config.Config.Labels["org.opencontainers.image.version"] != "1.2.3" || !slices.Equal(config.Config.Entrypoint, []string{"/program"}) {
			t.Errorf("%+v: %+v", m.Platform, config)
		}
		got = append(got, m.Platform.Architecture)
	}
	if !slices.Equal(got, archs) {
		t.Errorf("platforms %v, want %v", got, archs)
	}
}

func TestAnImageThatCannotBeMadeSaysWhy(t *testing.T) {
	binary := static(t, "amd64")
	for name, c := range map[string]struct {
		binaries, archs, labels []string
		want                    string
	}{
		"a binary for two architectures": {[]string{binary}, []string{"amd64", "arm64"}, nil, "1 -binary and 2 -arch: give one binary for each architecture"},
		"a label without a value":        {[]string{binary}, nil, []string{"version"}, "-label version: want KEY=VALUE"},
		"no file":                        {[]string{"/none"}, nil, nil, "/none"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(c.binaries, "", "", c.archs, c.labels, "a:b", filepath.Join(t.TempDir(), "out"), gzip.BestSpeed)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
