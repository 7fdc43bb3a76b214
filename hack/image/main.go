// Command image makes a container image of a static binary, without a container
// engine and without a registry: an OCI archive, which
// `ctr -n k8s.io images import` and `skopeo copy oci-archive:...` read.
//
//	FIGURE image.mb=16.4 MB
//
// With several binaries and architectures it is an image for all of them, an index.
//
// The same files give the same digest: nothing in the image says when or where it
// was made. With -busybox it is an image with a shell, for tests: of busybox and
// links for its commands.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// maxSize is what the image may have, compressed, in bytes.
const maxSize = 25e6

func main() {
	var binaries, archs, labels list
	flag.Var(&binaries, "binary", "a static binary, which the image runs; once for each -arch")
	busybox := flag.String("busybox", "", "a static busybox, which the image runs as sleep if there is no -binary")
	flag.Var(&archs, "arch", "the architecture that it is for; several make an image of several (default amd64)")
	name := flag.String("name", "", "the image's name, such as admitkit.dev/admitkit:dev")
	flag.Var(&labels, "label", "a label, KEY=VALUE; also an annotation of the manifest; once for each")
	roots := flag.String("roots", "", "authorities of servers, in PEM, which programs in the image trust in place of those that they bring")
	out := flag.String("out", "", "file for the OCI archive")
	fast := flag.Bool("fast", false, "compress little, for an image that goes no further than this machine")
	flag.Parse()
	level := gzip.BestCompression
	if *fast {
		level = gzip.BestSpeed
	}
	if err := run(binaries, *busybox, *roots, archs, labels, *name, *out, level); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

func run(binaries []string, busybox, roots string, archs, labels []string, name, out string, level int) error {
	if len(archs) == 0 {
		archs = []string{"amd64"}
	}
	if len(binaries) == 0 {
		binaries = make([]string, len(archs))
	}
	if len(binaries) != len(archs) {
		return fmt.Errorf("%d -binary and %d -arch: give one binary for each architecture, in the same order", len(binaries), len(archs))
	}
	annotations := map[string]string{}
	for _, label := range labels {
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			return fmt.Errorf("-label %s: want KEY=VALUE", label)
		}
		annotations[key] = value
	}
	var images []mutate.IndexAddendum
	var largest int64
	for i, arch := range archs {
		image, size, err := build(binaries[i], busybox, roots, arch, annotations, level)
		if err != nil {
			return err
		}
		largest = max(largest, size)
		images = append(images, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	if largest > maxSize {
		return fmt.Errorf("the image has %.1f MB, more than %.0f MB", float64(largest)/1e6, maxSize/1e6)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	digest, err := archive(images, annotations, name, out)
	if err != nil {
		return err
	}
	figure := "image.mb"
	switch program := filepath.Base(binaries[0]); program {
	case "admitkit":
	case ".": // there is none
		figure = "image.busybox_mb"
	default:
		figure = "image." + program + "_mb"
	}
	fmt.Printf("%s@%s\n", name, digest)
	if level == gzip.BestCompression {
		fmt.Printf("FIGURE %s=%.1f MB\n", figure, float64(largest)/1e6)
	}
	return nil
}

// build returns an image for one architecture and the compressed size of its layer.
func build(binary, busybox, roots, arch string, labels map[string]string, level int) (v1.Image, int64, error) {
	layer, err := layerOf(binary, busybox, roots, level)
	if err != nil {
		return nil, 0, err
	}
	entrypoint := []string{"/" + filepath.Base(binary)}
	if binary == "" {
		entrypoint = []string{"/bin/sleep", "2147483647"}
	}
	image, err := imageOf(layer, arch, entrypoint, labels)
	if err != nil {
		return nil, 0, err
	}
	size, err := layer.Size()
	return image, size, err
}

// layerOf returns a layer with the binaries alone, which anyone may run and nobody
// change, and the authorities of servers. Any may be missing.
func layerOf(binary, busybox, roots string, level int) (v1.Layer, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	if binary != "" {
		if err := addBinary(w, filepath.Base(binary), binary); err != nil {
			return nil, err
		}
	}
	if busybox != "" {
		if err := addBusybox(w, busybox); err != nil {
			return nil, err
		}
	}
	if roots != "" {
		if err := addRoots(w, roots); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(level), tarball.WithMediaType(types.OCILayer))
}

func addBinary(w *tar.Writer, name, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	// The image has no libraries.
	program, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, header := range program.Progs {
		if header.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not static; Debian's package busybox-static has a busybox that is", file)
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o555, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

// addRoots adds the authorities of servers, where Go's crypto/x509 looks for them.
func addRoots(w *tar.Writer, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o444, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

// addBusybox adds it and a link for each command that it says it has.
func addBusybox(w *tar.Writer, file string) error {
	if err := addBinary(w, "bin/busybox", file); err != nil {
		return err
	}
	commands, err := exec.Command(file, "--list").Output()
	if err != nil {
		return fmt.Errorf("%s --list: %w", file, err)
	}
	for name := range strings.FieldsSeq(string(commands)) {
		if name == "busybox" {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Name: "bin/" + name, Linkname: "busybox", Mode: 0o777, Typeflag: tar.TypeSymlink}); err != nil {
			return err
		}
	}
	return nil
}

func imageOf(layer v1.Layer, arch string, entrypoint []string, labels map[string]string) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(image, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	config.Config.Entrypoint = entrypoint
	config.Config.Env = []string{"PATH=/bin"}
	config.Config.User = "65532:65532" // as in the distroless images: nonroot
	config.Config.Labels = labels
	if image, err = mutate.ConfigFile(image, config); err != nil || len(labels) == 0 {
		return image, err
	}
	return mutate.Annotations(image, labels).(v1.Image), nil
}

// archive writes the images as the tar of an OCI image layout, several as an index, and
// returns the digest by which the name is pulled.
func archive(images []mutate.IndexAddendum, annotations map[string]string, name, out string) (digest v1.Hash, err error) {
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return digest, err
	}
	defer func() {
		if removed := os.RemoveAll(dir); err == nil {
			err = removed
		}
	}()
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return digest, err
	}
	named := layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          name, // which ctr goes by
		"org.opencontainers.image.ref.name": name,
	})
	if len(images) == 1 {
		image := images[0].Add.(v1.Image)
		if digest, err = image.Digest(); err != nil {
			return digest, err
		}
		err = index.AppendImage(image, named)
	} else {
		all := mutate.IndexMediaType(mutate.AppendManifests(empty.Index, images...), types.OCIImageIndex)
		if len(annotations) > 0 {
			all = mutate.Annotations(all, annotations).(v1.ImageIndex)
		}
		if digest, err = all.Digest(); err != nil {
			return digest, err
		}
		err = index.AppendIndex(all, named)
	}
	if err != nil {
		return digest, err
	}
	return digest, tarOf(dir, out)
}

// tarOf writes the files of a folder, by name and without their times.
func tarOf(dir, out string) error {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: filepath.ToSlash(relative), Mode: 0o444, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	}); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(out, buffer.Bytes(), 0o600)
}
