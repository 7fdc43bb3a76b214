package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

func TestMain(m *testing.M) {
	// A developer's own settings decide about no test.
	for _, variable := range []string{"K8S", "K8S_DOWNLOAD", "K8S_INDEX", "K8S_KWOK", "KUBEBUILDER_ASSETS"} {
		_ = os.Unsetenv(variable)
	}
	os.Exit(m.Run())
}

// with puts executables into a folder.
func with(t *testing.T, dir string, names ...string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho Kubernetes v1.33.1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func linkIn(t *testing.T, dir, name string) string {
	t.Helper()
	target, err := os.Readlink(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return target
}

func TestAnOlderVersionSharesEtcdAndKwokAndLeavesCurrentAlone(t *testing.T) {
	out := t.TempDir()
	with(t, filepath.Join(out, supported[0].version), "etcd", "kwok", "kubectl", "kube-apiserver", "kube-controller-manager")
	with(t, filepath.Join(out, "v1.35.8"), "kubectl", "kube-apiserver", "kube-controller-manager")
	if err := run(t.Context(), options{out: out, download: "no"}); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), options{out: out, k8s: "1.35", download: "no"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		current: supported[0].version, supported[0].minor: supported[0].version, "1.35": "v1.35.8",
		"v1.35.8/etcd": "../" + supported[0].version + "/etcd", "v1.35.8/kwok": "../" + supported[0].version + "/kwok",
	} {
		if got := linkIn(t, out, name); got != want {
			t.Errorf("%s is a link to %q, want %q", name, got, want)
		}
	}
	if !executable(filepath.Join(out, "1.35", "etcd")) {
		t.Error("K8S=1.35 finds no etcd")
	}
}

func TestTheFirstRunDownloadsAndTheSecondDoesNothing(t *testing.T) {
	m := newMirror(t)
	version := supported[0].version
	m.publish(version, "", packed(t, binariesOf(version)))
	out := t.TempDir()
	o := options{
		out: out, index: m.URL + "/index.yaml", kwok: m.URL, kwokSums: m.publishKwok("#!/bin/sh\n"), limits: testLimits(),
		only: "etcd,kube-apiserver,kubectl,kwok",
	}
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(slices.Clone(published), kwok) {
		if !executable(filepath.Join(out, current, name)) {
			t.Errorf("%s is missing", name)
		}
	}
	m.Close()
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// There is nothing to build from in this module's folder: the error shows that it
// is the build that was tried.
func TestWhatCannotBeDownloadedIsBuilt(t *testing.T) {
	version := supported[0].version
	for name, test := range map[string]struct {
		binary string
		change func(*mirror, *options)
	}{
		"the index is down":     {"etcd", func(m *mirror, _ *options) { m.Close() }},
		"the version is absent": {"etcd", func(*mirror, *options) {}},
		"the checksum is wrong": {"etcd", func(m *mirror, _ *options) { m.publish(version, strings.Repeat("f", 128), []byte("x")) }},
		"downloads are turned off": {"etcd", func(m *mirror, o *options) {
			m.publish(version, "", packed(t, binariesOf(version)))
			o.download = "no"
		}},
		"kwok's release is absent": {kwok, func(_ *mirror, o *options) { o.kwokSums = kwokSums }},
		"kwok's checksum is wrong": {kwok, func(m *mirror, o *options) { m.publishKwok("x"); o.kwokSums = kwokSums }},
		"kwok's download is turned off": {kwok, func(m *mirror, o *options) {
			o.kwokSums, o.download = m.publishKwok("x"), "no"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMirror(t)
			out := t.TempDir()
			o := options{module: t.TempDir(), out: out, index: m.URL + "/index.yaml", kwok: m.URL, limits: testLimits(), only: test.binary}
			test.change(m, &o)
			err := run(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), "building "+test.binary) {
				t.Errorf("got: %v", err)
			}
			if left := entries(t, filepath.Join(out, version)); !slices.Equal(left, []string{".lock"}) {
				t.Errorf("it leaves %q", left)
			}
		})
	}
}

func TestTheBinariesOfOthersAreLinked(t *testing.T) {
	assets, out := t.TempDir(), t.TempDir()
	names := []string{"etcd", "kwok", "kubectl", "kube-apiserver", "kube-controller-manager"}
	with(t, assets, names...)
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	if err := run(t.Context(), options{out: out, download: "no"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if got := linkIn(t, out, "v1.33.1/"+name); got != filepath.Join(assets, name) {
			t.Errorf("%s is a link to %q", name, got)
		}
	}
	if got := linkIn(t, out, current); got != "v1.33.1" {
		t.Errorf("current is a link to %q", got)
	}
	if got := linkIn(t, out, supported[0].minor); got != "" {
		t.Errorf("%s is a link to %q", supported[0].minor, got)
	}
}

func TestAWrongOptionIsNamedWithItsRemedy(t *testing.T) {
	for name, test := range map[string]struct {
		o    options
		want []string
	}{
		"no folder":               {options{}, []string{"-out", "bin/k8s"}},
		"an unknown version":      {options{out: t.TempDir(), k8s: "1.21"}, []string{"K8S", `"1.21"`, "1.34 (v1.34.10)", supported[0].version}},
		"another patch":           {options{out: t.TempDir(), k8s: "v1.35.1"}, []string{`"v1.35.1"`, "1.35 (v1.35.8)"}},
		"neither yes nor no":      {options{out: t.TempDir(), download: "false"}, []string{"K8S_DOWNLOAD", `"false"`, "yes or no"}},
		"no binary of ours":       {options{out: t.TempDir(), only: "etcd,docker"}, []string{"-only", `"docker"`}},
		"arguments left over":     {options{module: t.TempDir(), out: t.TempDir(), only: "etcd", download: "no", args: []string{"1.35", "-node"}}, []string{`["1.35" "-node"]`, "left over", "-k8s 1.35"}},
		"a node's, without -node": {options{out: t.TempDir(), only: "kubelet"}, []string{"-only", `"kubelet"`}},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), test.o)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want an error with %q, got: %v", want, err)
				}
			}
		})
	}
}

func TestAWrongFolderOfAssetsIsAnErrorAndNotIgnored(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	with(t, filepath.Join(dir, "assets"), "etcd", "kube-apiserver")
	with(t, filepath.Join(dir, "parent", "v1.33.1"), "etcd", "kube-apiserver")
	for name, assets := range map[string]string{
		"a folder that does not exist":  filepath.Join(dir, "absent"),
		"a file":                        filepath.Join(dir, "assets", "etcd"),
		"a relative path":               "assets",
		"a folder without any binaries": filepath.Join(dir, "parent"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBEBUILDER_ASSETS", assets)
			out := t.TempDir()
			with(t, filepath.Join(out, supported[0].version), "etcd")
			err := run(t.Context(), options{out: out, only: "etcd", download: "no"})
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("KUBEBUILDER_ASSETS is %q", assets)) || !strings.Contains(err.Error(), "unset KUBEBUILDER_ASSETS") {
				t.Errorf("got: %v", err)
			}
			if got := linkIn(t, out, current); got != "" {
				t.Errorf("current is a link to %q", got)
			}
		})
	}
}

func TestADownloadThatTheDiskRefusesIsNotBuilt(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		stops bool
	}{
		"a full disk":          {&os.PathError{Op: "write", Path: "archive.tar.gz", Err: syscall.ENOSPC}, true},
		"a full quota":         {&os.PathError{Op: "write", Path: "archive.tar.gz", Err: syscall.EDQUOT}, true},
		"a read-only disk":     {&os.LinkError{Op: "rename", Old: "a", New: "b", Err: syscall.EROFS}, true},
		"an unreachable index": {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := &plan{dir: t.TempDir(), binaries: binaries}
			err := p.fetchFrom(t.Context(), []string{"etcd"}, func([]string) (string, error) { return "", fmt.Errorf("unable write next chunk: %w", test.err) })
			if test.stops != (err != nil) || test.stops && (!errors.Is(err, test.err) || !strings.Contains(err.Error(), "downloading etcd")) {
				t.Errorf("got: %v", err)
			}
		})
	}
}

// A link that is made anew has another inode. root may write where others may not, so that no mode tells.
func TestALinkThatIsRightIsLeftAlone(t *testing.T) {
	out, version := t.TempDir(), supported[0].version
	with(t, filepath.Join(out, version), "etcd")
	o := options{out: out, only: "etcd", download: "no"}
	var before []os.FileInfo
	for n := range 2 {
		if err := run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{current, supported[0].minor} {
			info, err := os.Lstat(filepath.Join(out, name))
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				before = append(before, info)
			} else if !os.SameFile(before[i], info) || !before[i].ModTime().Equal(info.ModTime()) {
				t.Errorf("%s is replaced", name)
			}
		}
	}
	// One that is wrong is not.
	if err := replaceLink("elsewhere", filepath.Join(out, current)); err != nil || linkIn(t, out, current) != "elsewhere" {
		t.Errorf("%q, %v", linkIn(t, out, current), err)
	}
}

func TestTwoChoicesOfAVersionAreRefused(t *testing.T) {
	out := t.TempDir()
	t.Setenv("KUBEBUILDER_ASSETS", "/elsewhere")
	err := run(t.Context(), options{out: out, k8s: "1.35"})
	if err == nil || !strings.Contains(err.Error(), "K8S (-k8s) is 1.35 and KUBEBUILDER_ASSETS is /elsewhere") {
		t.Errorf("got: %v", err)
	}
	// This is how make test is told where what it asked for is.
	with(t, filepath.Join(out, supported[0].version), "etcd")
	t.Setenv("KUBEBUILDER_ASSETS", filepath.Join(out, supported[0].minor))
	if err := run(t.Context(), options{out: out, k8s: supported[0].minor, only: "etcd"}); err != nil {
		t.Error(err)
	}
}

func TestAVersionIsNamedByItsMinorOrInFull(t *testing.T) {
	for _, name := range []string{"1.35", "v1.35.8"} {
		if r, err := find(name); err != nil || r.version != "v1.35.8" {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
}

func TestThePinnedVersionsAreThoseOfThisModule(t *testing.T) {
	own := requirements(t, "go.mod")
	for path, want := range map[string]string{"k8s.io/kubernetes": supported[0].version, "sigs.k8s.io/kwok": kwokVersion} {
		if own[path] != want {
			t.Errorf("go.mod requires %s %s, want %s", path, own[path], want)
		}
	}
}

// requirements returns the versions that a go.mod requires.
func requirements(t *testing.T, path string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.Parse(path, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	required := map[string]string{}
	for _, require := range file.Require {
		required[require.Mod.Path] = require.Mod.Version
	}
	return required
}

// What the library and Kubernetes both import is compiled once only if its version is
// one. Kubernetes may need a newer one than the library.
func TestNoVersionIsOlderThanThatOfOurModules(t *testing.T) {
	own := requirements(t, "go.mod")
	for _, module := range []string{"../../go.mod", "../../operator/go.mod"} {
		for path, version := range requirements(t, module) {
			if own[path] != "" && semver.Compare(own[path], version) < 0 {
				t.Errorf("%s is required in %s, and in %s by %s: go -C hack/controlplane get %[1]s@%[3]s", path, own[path], version, module)
			}
		}
	}
}

// A module that the library and the operator both require is compiled once only if they
// require the same version.
func TestTheLibraryAndTheOperatorRequireTheSameVersions(t *testing.T) {
	library := requirements(t, "../../go.mod")
	for path, version := range requirements(t, "../../operator/go.mod") {
		if library[path] != "" && library[path] != version {
			t.Errorf("%s is required in %s by the operator, and in %s by the library", path, version, library[path])
		}
	}
}

func TestTheModuleOfAnOlderVersionIsUpstreams(t *testing.T) {
	upstream := `module k8s.io/kubernetes

go 1.25.0

godebug default=go1.25

require (
	example.com/pinned v1.2.3
	k8s.io/api v0.0.0
	k8s.io/klog/v2 v2.130.1
)

replace (
	example.com/pinned => example.com/fork v1.2.4
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/sample-controller => ./staging/src/k8s.io/sample-controller
)
`
	text, err := moduleFor("v1.35.8", []byte(upstream))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"module controlplane\n", "go 1.25.0\n", "godebug default=go1.25\n", "k8s.io/kubernetes v1.35.8\n", "k8s.io/klog/v2 v2.130.1\n", "example.com/pinned => example.com/fork v1.2.4\n",
		"k8s.io/api => k8s.io/api v0.35.8\n", "k8s.io/sample-controller => k8s.io/sample-controller v0.35.8\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no line %q in:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "./staging") {
		t.Errorf("a folder that the module's zip does not hold is left:\n%s", text)
	}
	for what, upstream := range map[string]string{
		"another module":            "module example.com/other\n",
		"a module without a source": "module k8s.io/kubernetes\nrequire k8s.io/new v0.0.0\n",
		"no go.mod":                 "<html>",
	} {
		if _, err := moduleFor("v1.35.8", []byte(upstream)); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
