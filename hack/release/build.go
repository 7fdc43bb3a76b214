package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	registry = "ghcr.io/admitkit/"
	source   = "https://github.com/admitkit/admitkit"
)

// images are the programs that have one, of their names, and installed those that the chart
// installs.
var (
	images    = []string{"admitkit", "hooks", "sandbox", "recorder"}
	installed = []string{"admitkit", "hooks", "sandbox", "recorder"}
)

// architectures are those of the images.
var architectures = []string{"amd64", "arm64"}

// release is one that is being built.
type release struct {
	root, tools string
	tag         string // v0.2.0
	commit      string
	date        time.Time // the commit's: what a release is made of has no other
}

// version is the tag without its v: the chart's version, and the tag of the image.
func (r *release) version() string { return strings.TrimPrefix(r.tag, "v") }

// out is the folder with all that is uploaded, and nothing else.
func (r *release) out(elements ...string) string {
	return filepath.Join(append([]string{r.root, "bin", "release"}, elements...)...)
}

// dist is goreleaser's folder.
func (r *release) dist(elements ...string) string {
	return filepath.Join(append([]string{r.root, "bin", "dist"}, elements...)...)
}

// build builds the release of the tag at HEAD.
func build(ctx context.Context, root, tools string) (*release, error) {
	r := &release{root: root, tools: tools}
	if err := r.readTag(ctx); err != nil {
		return nil, err
	}
	if err := errors.Join(r.checkChart(), r.checkLibrary(), os.RemoveAll(r.out()), os.MkdirAll(r.out(), 0o755)); err != nil {
		return nil, err
	}
	changelog, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	text, err := notes(string(changelog), r.tag)
	if err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{r.binaries, r.images, r.chart, r.checksums} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return r, os.WriteFile(filepath.Join(root, "bin", "release-notes.md"), []byte(text), 0o644)
}

func (r *release) readTag(ctx context.Context) error {
	if changed, err := r.output(ctx, "git", "status", "--porcelain"); err != nil {
		return err
	} else if changed != "" {
		return fmt.Errorf("a release is built from a commit, and these files are not in one:\n%s", changed)
	}
	tag, err := r.output(ctx, "git", "describe", "--tags", "--exact-match", "--match", "v*", "HEAD")
	if err != nil {
		return fmt.Errorf("HEAD has no tag such as v0.2.0: set one (git tag -a), or run make release-check, which needs none: %w", err)
	}
	commit, err := r.output(ctx, "git", "log", "-1", "--format=%H %cI")
	if err != nil {
		return err
	}
	hash, date, _ := strings.Cut(commit, " ")
	if r.date, err = time.Parse(time.RFC3339, date); err != nil {
		return err
	}
	r.tag, r.commit, r.date = tag, hash, r.date.UTC()
	return nil
}

// checkChart rejects a tag that is not the version that the chart in it has.
func (r *release) checkChart() error {
	content, err := os.ReadFile(filepath.Join(r.root, "operator/charts/admitkit/Chart.yaml"))
	if err != nil {
		return err
	}
	var chart struct{ Version, AppVersion string }
	if err := yaml.Unmarshal(content, &chart); err != nil {
		return err
	}
	if strings.HasSuffix(r.tag, snapshot) {
		return nil
	}
	if chart.Version != r.version() || chart.AppVersion != r.version() {
		return fmt.Errorf("operator/charts/admitkit/Chart.yaml: version %s and appVersion %s, but the tag is %s: set both to %s, and the images in the annotations, before you tag", chart.Version, chart.AppVersion, r.tag, r.version())
	}
	return nil
}

// checkLibrary rejects a tag that is not the version of the library that the operator requires.
func (r *release) checkLibrary() error {
	if strings.HasSuffix(r.tag, snapshot) {
		return nil
	}
	for file, want := range map[string]string{
		"operator/go.mod": "github.com/admitkit/admitkit " + r.tag + "\n", "operator/go.work": "github.com/admitkit/admitkit " + r.tag + " => ..\n",
	} {
		content, err := os.ReadFile(filepath.Join(r.root, file))
		if err != nil {
			return err
		}
		if !strings.Contains(string(content), want) {
			return fmt.Errorf("%s does not have %q: the operator must require the library of its own release; see docs/releasing.md", file, strings.TrimSpace(want))
		}
	}
	return nil
}

// built is what goreleaser says that it has made.
type built struct {
	Name, Path, Goos, Goarch, Type string
	Extra                          struct{ ID string }
}

func (r *release) artifacts() (artifacts []built, err error) {
	content, err := os.ReadFile(r.dist("artifacts.json"))
	if err != nil {
		return nil, err
	}
	return artifacts, json.Unmarshal(content, &artifacts)
}

// binaries has goreleaser build the archives and krew's manifest, and adds an SBOM for each archive.
func (r *release) binaries(ctx context.Context) error {
	if err := r.run(ctx, r.tool("goreleaser"), "release", "--clean", "--skip=publish,announce"); err != nil {
		return err
	}
	artifacts, err := r.artifacts()
	if err != nil {
		return err
	}
	for _, a := range artifacts {
		path := filepath.Join(r.root, filepath.FromSlash(a.Path))
		switch a.Type {
		case "Archive":
			if err := r.sbom(ctx, "file:"+path, a.Name); err != nil {
				return err
			}
		case "Krew Plugin Manifest":
		default:
			continue
		}
		if err := os.Rename(path, r.out(a.Name)); err != nil {
			return err
		}
	}
	return nil
}

// sbom writes NAME.spdx.json of what syft calls a source.
func (r *release) sbom(ctx context.Context, source, name string) error {
	file := r.out(name + ".spdx.json")
	if err := r.run(ctx, r.tool("syft"), "scan", source, "--quiet", "--output", "spdx-json="+file, "--source-name", name, "--source-version", r.tag); err != nil {
		return err
	}
	syft, err := versionOf(r.tool("syft"))
	if err != nil {
		return err
	}
	return normalize(file, name, r.date.Format(time.RFC3339), syft)
}

// images writes the image of each program.
func (r *release) images(ctx context.Context) error {
	artifacts, err := r.artifacts()
	if err != nil {
		return err
	}
	for _, program := range images {
		binaries := map[string]string{}
		for _, a := range artifacts {
			if a.Type == "Binary" && a.Extra.ID == program && a.Goos == "linux" {
				binaries[a.Goarch] = filepath.Join(r.root, filepath.FromSlash(a.Path))
			}
		}
		if err := r.image(ctx, program, binaries); err != nil {
			return err
		}
	}
	return nil
}

// image writes one OCI archive for all architectures, and an SBOM for each.
func (r *release) image(ctx context.Context, program string, binaries map[string]string) error {
	label := []string{
		"-label", "org.opencontainers.image.version=" + r.version(), "-label", "org.opencontainers.image.revision=" + r.commit,
		"-label", "org.opencontainers.image.source=" + source, "-label", "org.opencontainers.image.licenses=Apache-2.0",
		"-label", "org.opencontainers.image.title=" + program,
	}
	archive := func(file string, architectures ...string) error {
		args := []string{"run", "-C", "hack/image", ".", "-name", registry + program + ":" + r.version(), "-out", file}
		for _, arch := range architectures {
			args = append(args, "-binary", binaries[arch], "-arch", arch)
		}
		return r.run(ctx, "go", append(args, label...)...)
	}
	for _, arch := range architectures {
		alone := r.dist(program + "-image-" + arch + ".tar")
		if err := archive(alone, arch); err != nil {
			return err
		}
		if err := r.sbom(ctx, "oci-archive:"+alone, r.imageSBOM(program, arch)); err != nil {
			return err
		}
	}
	return archive(r.out(r.imageFile(program)), architectures...)
}

func (r *release) imageFile(program string) string { return program + "-image_" + r.version() + ".tar" }

// imageSBOM is the name of what an SBOM is of.
func (r *release) imageSBOM(program, arch string) string {
	return fmt.Sprintf("%s-image_%s_linux_%s", program, r.version(), arch)
}

func (r *release) chartFile() string { return "admitkit-" + r.version() + ".tgz" }

// chart packages it. Helm writes the time of the run into the archive.
func (r *release) chart(ctx context.Context) error {
	if err := r.run(ctx, r.tool("helm"), "package", "operator/charts/admitkit", "--version", r.version(), "--app-version", r.version(), "--destination", r.out()); err != nil {
		return err
	}
	return repack(r.out(r.chartFile()), r.date)
}

// checksums writes the SHA-256 of every file, which one signature then covers.
func (r *release) checksums(context.Context) error {
	sums, err := sumsOf(r.out())
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, s := range sums {
		fmt.Fprintf(&lines, "%s  %s\n", s.sum, s.name)
	}
	return os.WriteFile(r.out("checksums.txt"), []byte(lines.String()), 0o644)
}

type sum struct {
	name, sum string
	size      int64
}

// sumsOf returns the files of a folder by name.
func sumsOf(dir string) (sums []sum, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		sums = append(sums, sum{entry.Name(), fmt.Sprintf("%x", sha256.Sum256(content)), int64(len(content))})
	}
	slices.SortFunc(sums, func(a, b sum) int { return strings.Compare(a.name, b.name) })
	return sums, nil
}

func (r *release) tool(name string) string { return filepath.Join(r.tools, name) }

func (r *release) run(ctx context.Context, name string, args ...string) error {
	_, err := r.output(ctx, name, args...)
	return err
}

// output runs a program in the repository. What it says is told if it fails.
func (r *release) output(ctx context.Context, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Dir = r.root
	command.Env = append(os.Environ(), "SYFT_CHECK_FOR_APP_UPDATE=false", "SOURCE_DATE_EPOCH="+fmt.Sprint(r.date.Unix()))
	var stderr bytes.Buffer
	command.Stderr = &stderr
	stdout, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(name), strings.Join(args, " "), err, stdout, stderr.Bytes())
	}
	return strings.TrimSpace(string(stdout)), nil
}
