package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// examine checks the files of a release: that none is missing, and that each is what it
// is said to be.
func examine(ctx context.Context, r *release, temp string) error {
	files := map[string][]byte{}
	sums, err := sumsOf(r.out())
	if err != nil {
		return err
	}
	for _, s := range sums {
		if files[s.name], err = os.ReadFile(r.out(s.name)); err != nil {
			return err
		}
	}
	errs := []error{
		expect(r.version(), files), checkSums(files["checksums.txt"], sums), r.checkKrew(ctx, files, sums), r.checkChartFile(ctx),
	}
	for _, program := range images {
		errs = append(errs, r.checkImage(ctx, program, files, temp))
	}
	places, err := r.places(ctx)
	if err != nil {
		return err
	}
	for name, content := range files {
		errs = append(errs, r.examineFile(ctx, name, content, files, places, temp))
	}
	return errors.Join(errs...)
}

// expect compares the names with those that docs/releasing.md promises.
func expect(version string, files map[string][]byte) error {
	want := []string{"checksums.txt", "timed-access.yaml", "admitkit-" + version + ".tgz"}
	for _, program := range images {
		want = append(want, program+"-image_"+version+".tar")
		for _, arch := range architectures {
			want = append(want, program+"-image_"+version+"_linux_"+arch+".spdx.json")
		}
	}
	for _, platform := range []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64", "windows_amd64", "windows_arm64"} {
		ending := ".tar.gz"
		if strings.HasPrefix(platform, "windows") {
			ending = ".zip"
		}
		programs := []string{"kubectl-access", "hooks"}
		if strings.HasPrefix(platform, "linux") {
			programs = append(programs, "admitkit")
		}
		for _, program := range programs {
			name := program + "_" + version + "_" + platform + ending
			want = append(want, name, name+".spdx.json")
		}
	}
	var errs []error
	for _, name := range want {
		if len(files[name]) == 0 {
			errs = append(errs, fmt.Errorf("%s is missing, or empty", name))
		}
	}
	for name := range files {
		if !slices.Contains(want, name) {
			errs = append(errs, fmt.Errorf("%s is not expected", name))
		}
	}
	return errors.Join(errs...)
}

func checkSums(list []byte, sums []sum) error {
	var errs []error
	for _, s := range sums {
		if s.name != "checksums.txt" && !bytes.Contains(list, []byte(s.sum+"  "+s.name+"\n")) {
			errs = append(errs, fmt.Errorf("checksums.txt does not have %s of %s", s.sum, s.name))
		}
	}
	return errors.Join(errs...)
}

// places are the paths of this machine, which nobody else should see.
func (r *release) places(ctx context.Context) ([]string, error) {
	env, err := r.output(ctx, "go", "env", "GOMODCACHE", "GOCACHE")
	if err != nil {
		return nil, err
	}
	return append(strings.Fields(env), r.root, filepath.Dir(filepath.Dir(r.root))), nil
}

// examineFile looks for paths in a file and in what is packed into it, and compares the
// binary of an archive with its SBOM.
func (r *release) examineFile(ctx context.Context, name string, content []byte, all map[string][]byte, places []string, temp string) error {
	inside := map[string][]byte{"": content}
	archive := strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".zip")
	if archive || strings.HasSuffix(name, ".tgz") {
		unpacked, err := unpack(name, content)
		if err != nil {
			return err
		}
		inside = unpacked
	}
	var errs []error
	for inner, content := range inside {
		errs = append(errs, withoutPlaces(name+" "+inner, content, places))
	}
	if !archive {
		return errors.Join(errs...)
	}
	if len(inside["LICENSE"]) == 0 {
		errs = append(errs, fmt.Errorf("%s has no LICENSE", name))
	}
	program, _, _ := strings.Cut(name, "_")
	binary := inside[program]
	if strings.HasSuffix(name, ".zip") {
		binary = inside[program+".exe"]
	}
	errs = append(errs, named(all[name+".spdx.json"], name, binary))
	if arch, ok := strings.CutPrefix(strings.TrimSuffix(name, ".tar.gz"), program+"_"+r.version()+"_linux_"); ok {
		root := filepath.Join(temp, program+"-"+arch)
		errs = append(errs, r.runs(ctx, name, arch, root, program, binary))
	}
	return errors.Join(errs...)
}

func withoutPlaces(name string, content []byte, places []string) error {
	for _, place := range places {
		if bytes.Contains(content, []byte(place)) {
			return fmt.Errorf("%s contains %s, a path of the machine that built it", name, place)
		}
	}
	return nil
}

// named checks that the SBOM has every module that Go recorded in the binary.
func named(sbom []byte, name string, binary []byte) error {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	absent, err := missing(sbom, info)
	if err == nil && len(absent) > 0 {
		err = fmt.Errorf("its SBOM does not name %s", strings.Join(absent, ", "))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Printf("%s: the SBOM names all %d modules\n", name, len(info.Deps)+1)
	return nil
}

// checkKrew compares the manifest with the archives, and has krew's own validation judge it.
func (r *release) checkKrew(ctx context.Context, files map[string][]byte, sums []sum) error {
	if err := krewOf(files["timed-access.yaml"], r.tag, sums); err != nil {
		return err
	}
	return r.run(ctx, r.tool("validate-krew-manifest"), "-manifest", r.out("timed-access.yaml"), "-skip-install")
}

func krewOf(manifest []byte, tag string, sums []sum) error {
	var plugin struct {
		Spec struct {
			Version   string
			Platforms []struct{ URI, SHA256, Bin string }
		}
	}
	if err := yaml.Unmarshal(manifest, &plugin); err != nil {
		return err
	}
	if plugin.Spec.Version != tag || len(plugin.Spec.Platforms) != 6 {
		return fmt.Errorf("timed-access.yaml has version %s and %d platforms, want %s and 6", plugin.Spec.Version, len(plugin.Spec.Platforms), tag)
	}
	var errs []error
	for _, p := range plugin.Spec.Platforms {
		name, ok := strings.CutPrefix(p.URI, source+"/releases/download/"+tag+"/")
		if !ok || !slices.ContainsFunc(sums, func(s sum) bool { return s.name == name && s.sum == p.SHA256 }) {
			errs = append(errs, fmt.Errorf("timed-access.yaml: there is no artifact with the URI %s and the SHA-256 %s", p.URI, p.SHA256))
		}
	}
	return errors.Join(errs...)
}

// checkChartFile lints the chart that was packaged, and checks that it installs the images of this release.
func (r *release) checkChartFile(ctx context.Context) error {
	chart := r.out(r.chartFile())
	if err := r.run(ctx, r.tool("helm"), "lint", "--strict", chart); err != nil {
		return err
	}
	manifests, err := r.output(ctx, r.tool("helm"), "template", "admitkit", chart, "--set", "replicas=1,hooks.enabled=true,sessions.enabled=true,sessions.namespaces={apps},sandbox.enabled=true,sandbox.namespaces={agents}")
	if err != nil {
		return err
	}
	for _, program := range installed {
		if want := registry + program + ":" + r.version(); !strings.Contains(strings.ReplaceAll(manifests, `"`, ""), want) {
			return fmt.Errorf("the chart does not install %s", want)
		}
	}
	return nil
}

// saysVersion compares what `version -o json` prints with the release.
func (r *release) saysVersion(name string, output []byte) error {
	var got struct{ Version, Admitkit, Commit, Platform string }
	if err := json.Unmarshal(output, &got); err != nil {
		return fmt.Errorf("%s: version -o json prints %q: %w", name, output, err)
	}
	if got.Version != r.tag || got.Admitkit != r.tag || got.Commit != r.commit {
		return fmt.Errorf("%s: version says %+v, want %s of %s", name, got, r.tag, r.commit)
	}
	fmt.Printf("%s: version says %s on %s\n", name, got.Version, got.Platform)
	return nil
}
