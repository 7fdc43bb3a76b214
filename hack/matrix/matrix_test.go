package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// helper makes the test binary be the program.
const helper = "MATRIX_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helper) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// toolchain stands in for go: what a red run looks like, the real one shows only
// when something is broken, and it takes half an hour.
const toolchain = `#!/bin/sh
say() { printf '%s\n' "$1"; }
case "$*" in
*-list*) printf '1.37 v1.37.2\n1.36 v1.36.4\n1.34 v1.34.10\n' ;;
*hack/controlplane*)
	[ "$K8S_DOWNLOAD" = no ] || { echo "it may download"; exit 1; }
	for version in v1.37.2 v1.36.4 v1.34.10; do
		mkdir -p "bin/k8s/$version"
		printf '#!/bin/sh\necho Kubernetes %s\n' "$version" >"bin/k8s/$version/kube-apiserver"
		chmod +x "bin/k8s/$version/kube-apiserver"
	done ;;
*) . ./gotest ;;
esac
`

// start prepares the program in a folder of its own, with a script in place of go test.
func start(t *testing.T, gotest string, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"go": toolchain, "gotest": gotest} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), helper+"=1", "MATRIX=", "K8S=9.9", "PATH="+dir+":"+os.Getenv("PATH"))
	return c
}

const green = `
[ -z "$K8S" ] || exit 9
say '{"Action":"run","Package":"github.com/admitkit/admitkit/webhook","Test":"TestA"}'
say '{"Action":"output","Package":"github.com/admitkit/admitkit/webhook","Test":"TestA","Output":"hello of '$KUBEBUILDER_ASSETS'\n"}'
say '{"Action":"pass","Package":"github.com/admitkit/admitkit/webhook","Test":"TestA/sub"}'
say '{"Action":"pass","Package":"github.com/admitkit/admitkit/webhook","Test":"TestA"}'
say '{"Action":"skip","Package":"github.com/admitkit/admitkit/webhook","Test":"TestLong"}'
`

func TestACompleteRunWritesThePage(t *testing.T) {
	c := start(t, green+`
case "$KUBEBUILDER_ASSETS" in
*v1.34.10) say '{"Action":"skip","Package":"github.com/admitkit/admitkit/certs","Test":"TestNew"}' ;;
*) say '{"Action":"pass","Package":"github.com/admitkit/admitkit/certs","Test":"TestNew"}' ;;
esac
say '{"Action":"pass","Package":"github.com/admitkit/admitkit/webhook"}'
`, "-write", "support.md")
	output, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	contains(t, string(output), "FIGURE matrix.versions=3 ", "FIGURE matrix.failed=0 ",
		"matrix: Kubernetes 1.36: kube-apiserver v1.36.4, 2 tests passed, 0 failed, 1 skipped", "matrix: Kubernetes 1.34: kube-apiserver v1.34.10, 1 tests passed, 0 failed, 2 skipped")
	page, err := os.ReadFile(filepath.Join(c.Dir, "support.md"))
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(page), "1.34 to 1.37 today", "| 1.36 | v1.36.4 | 2 | 0 | 1 | passed |", "| 1.34 | v1.34.10 | 1 | 0 | 2 | passed |", "- 1.34 skips `certs.TestNew`\n")
	log, err := os.ReadFile(filepath.Join(c.Dir, "bin/matrix/v1.36.4.log"))
	if err != nil || string(log) != "hello of "+filepath.Join(c.Dir, "bin/k8s/v1.36.4")+"\n" {
		t.Errorf("the log is %q, %v", log, err)
	}
}

func TestAVersionThatFailsMakesTheRunFail(t *testing.T) {
	for name, test := range map[string]struct {
		gotest, want string
	}{
		"a test fails": {green + `
case "$KUBEBUILDER_ASSETS" in *v1.36.4)
	say '{"Action":"fail","Package":"github.com/admitkit/admitkit/certs","Test":"TestB"}'
	say '{"Action":"fail","Package":"github.com/admitkit/admitkit/certs"}'
	exit 1
esac`, "1 tests passed, 1 failed, 1 skipped, 0s: FAILED: failed: certs.TestB; see bin/matrix/v1.36.4.log"},
		"a package does not build": {green + `
case "$KUBEBUILDER_ASSETS" in *v1.36.4)
	say '{"Action":"build-fail","ImportPath":"github.com/admitkit/admitkit/certs"}'
	say '{"Action":"fail","Package":"github.com/admitkit/admitkit/certs"}'
	exit 1
esac`, "FAILED: failed: certs; see"},
		"go fails without a word": {green + `
case "$KUBEBUILDER_ASSETS" in *v1.36.4) exit 7
esac`, "FAILED: go test: exit status 7"},
		"nothing runs": {`
case "$KUBEBUILDER_ASSETS" in *v1.36.4) exit 0
esac` + green, "FAILED: no test ran"},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, test.gotest, "-write", "support.md")
			output, err := c.CombinedOutput()
			if c.ProcessState.ExitCode() != 1 {
				t.Errorf("it ends with %v: %s", err, output)
			}
			contains(t, string(output), "FIGURE matrix.versions=3 ", "FIGURE matrix.failed=1 ", test.want, "1 of 3 versions failed")
			page, err := os.ReadFile(filepath.Join(c.Dir, "support.md"))
			if err != nil {
				t.Fatal(err)
			}
			contains(t, string(page), " | **failed** |")
		})
	}
}

func TestAPartOfTheVersionsWritesNoPage(t *testing.T) {
	c := start(t, green, "-write", "support.md", "-versions", "1.34 v1.36.4")
	output, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	contains(t, string(output), "FIGURE matrix.versions=2 ", "support.md is left as it is")
	if _, err := os.Stat(filepath.Join(c.Dir, "support.md")); err == nil {
		t.Error("there is a page")
	}
}

func TestAVersionThatIsNotSupportedIsRefused(t *testing.T) {
	for versions, want := range map[string]string{
		"1.21":         `MATRIX (-versions): Kubernetes "1.21" is not supported: name some of 1.37, 1.36, 1.34`,
		"1.36 v1.36.4": "Kubernetes 1.36 is named twice",
	} {
		output, err := start(t, green, "-versions", versions).CombinedOutput()
		if err == nil {
			t.Errorf("%s: no error", versions)
		}
		contains(t, string(output), want)
	}
}

// A pipe ends when the last process that writes to it does.
func TestASignalEndsWhatItStarted(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		t.Run(fmt.Sprint(signal), func(t *testing.T) {
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			// The background process is what a test binary is to go test.
			c := start(t, `
sh -c 'echo started; exec sleep 100000' >fifo 3<&- &
wait
`)
			fifo := filepath.Join(c.Dir, "fifo")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			c.Stdout, c.Stderr = write, write
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if err := write.Close(); err != nil {
				t.Fatal(err)
			}
			started, err := os.Open(fifo) // returns when the other end is opened
			if err != nil {
				t.Fatal(err)
			}
			defer started.Close()
			if _, err := io.ReadFull(started, make([]byte, len("started\n"))); err != nil {
				t.Fatal(err)
			}
			if err := c.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(started); err != nil { // the process is gone
				t.Fatal(err)
			}
			output, err := io.ReadAll(read)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Wait(); err == nil {
				t.Error("it succeeds")
			}
			contains(t, string(output), "stopped during v1.37.2")
			if strings.Contains(string(output), "FIGURE") {
				t.Errorf("half a run has figures: %s", output)
			}
		})
	}
}

func contains(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}
