package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// checkImage runs the program of an image on each architecture and compares it with the SBOM.
func (r *release) checkImage(ctx context.Context, program string, files map[string][]byte, temp string) error {
	file := r.imageFile(program)
	blobs, err := unpack(file, files[file])
	if err != nil {
		return err
	}
	of, err := imagesIn(blobs)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	places, err := r.places(ctx)
	if err != nil {
		return err
	}
	var errs []error
	var largest int
	for _, arch := range architectures {
		image, ok := of[arch]
		if !ok {
			errs = append(errs, fmt.Errorf("%s has no image for %s", file, arch))
			continue
		}
		name := "image of " + program + " " + arch
		largest = max(largest, image.size)
		binary := image.files[program]
		errs = append(errs, named(files[r.imageSBOM(program, arch)+".spdx.json"], name, binary), withoutPlaces(name, binary, places),
			r.runs(ctx, name, arch, filepath.Join(temp, program+"-image-"+arch), program, binary))
		if image.user != "65532:65532" || image.entrypoint != "/"+program {
			errs = append(errs, fmt.Errorf("%s runs %q as %q", name, image.entrypoint, image.user))
		}
	}
	figure := "image." + program + "_mb"
	if program == images[0] {
		figure = "image.mb"
	}
	fmt.Printf("FIGURE %s=%.1f MB\n", figure, float64(largest)/1e6)
	return errors.Join(errs...)
}

// oneImage is that of one architecture.
type oneImage struct {
	entrypoint, user string
	files            map[string][]byte
	size             int // of the layer, as it is pulled
}

type descriptor struct{ Digest string }

// imagesIn returns the images of an OCI layout by architecture.
func imagesIn(blobs map[string][]byte) (map[string]oneImage, error) {
	read := func(path string, into any) error {
		content, ok := blobs[path]
		if !ok {
			return fmt.Errorf("%s is missing", path)
		}
		return json.Unmarshal(content, into)
	}
	blob := func(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }
	var layout, index struct{ Manifests []descriptor }
	if err := read("index.json", &layout); err != nil {
		return nil, err
	}
	if len(layout.Manifests) != 1 {
		return nil, fmt.Errorf("index.json names %d images, want one index", len(layout.Manifests))
	}
	if err := read(blob(layout.Manifests[0]), &index); err != nil {
		return nil, err
	}
	images := map[string]oneImage{}
	for _, d := range index.Manifests {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		var config struct {
			Architecture string
			Config       struct {
				Entrypoint []string
				User       string
			}
		}
		if err := read(blob(d), &manifest); err != nil {
			return nil, err
		}
		if err := read(blob(manifest.Config), &config); err != nil {
			return nil, err
		}
		if len(manifest.Layers) != 1 || len(config.Config.Entrypoint) != 1 {
			return nil, fmt.Errorf("the image of %s has %d layers and the entrypoint %q, want one of each", config.Architecture, len(manifest.Layers), config.Config.Entrypoint)
		}
		layer := blobs[blob(manifest.Layers[0])]
		files, err := unpack("layer.tar.gz", layer)
		if err != nil {
			return nil, err
		}
		images[config.Architecture] = oneImage{config.Config.Entrypoint[0], config.Config.User, files, len(layer)}
	}
	return images, nil
}

// runs runs `version` of a program, alone in a root without any library if this process
// may make one, and as the user that the image names. A program of another architecture
// needs qemu.
func (r *release) runs(ctx context.Context, name, arch, root, program string, binary []byte) error {
	if runtime.GOOS != "linux" {
		fmt.Printf("%s: not run, which needs Linux\n", name)
		return nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	args := []string{"/" + program, "version", "-o", "json"}
	contents := map[string][]byte{program: binary}
	if arch != runtime.GOARCH {
		qemu := filepath.Join(r.tools, "qemu-"+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]+"-static")
		emulator, err := os.ReadFile(qemu)
		if errors.Is(err, os.ErrNotExist) {
			fmt.Printf("%s: not run, because there is no %s\n", name, qemu)
			return nil
		}
		if err != nil {
			return err
		}
		contents["qemu"] = emulator
		args = slices.Insert(args, 0, "/qemu")
	}
	for file, content := range contents {
		if err := os.WriteFile(filepath.Join(root, file), content, 0o755); err != nil {
			return err
		}
	}
	command := &exec.Cmd{Path: args[0], Args: args, Dir: "/", Env: []string{"PATH=/bin"}}
	if os.Geteuid() == 0 {
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	} else {
		for i, arg := range args {
			if strings.HasPrefix(arg, "/") {
				args[i] = filepath.Join(root, arg)
			}
		}
		command.Path = args[0]
	}
	return r.ranVersion(ctx, name, command)
}

func (r *release) ranVersion(ctx context.Context, name string, command *exec.Cmd) error {
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Start(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	defer stop()
	if err := command.Wait(); err != nil {
		return fmt.Errorf("%s: %s: %w: %s", name, command, err, stderr.Bytes())
	}
	return r.saysVersion(name, stdout.Bytes())
}
