// Package s3gateway runs a real S3 server for tests: versitygw over a folder.
package s3gateway

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// What the server knows.
const (
	Bucket    = "recordings"
	AccessKey = "key"
	SecretKey = "secret"
)

// Start runs the server until the test ends. root is the path of this repository. If the
// program is not built yet, the short form of a test is skipped, since that takes minutes.
func Start(t *testing.T, root string) (endpoint string) {
	t.Helper()
	program, err := filepath.Abs(filepath.Join(root, "bin", "versitygw"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		if testing.Short() {
			t.Skip("bin/versitygw is not built: make versitygw")
		}
		build := exec.CommandContext(t.Context(), "go", "build", "-C", filepath.Join(root, "hack", "versitygw"), "-trimpath",
			"-ldflags=-s -w", "-o", program, "github.com/versity/versitygw/cmd/versitygw")
		if text, err := build.CombinedOutput(); err != nil {
			t.Fatalf("building versitygw: %v: %s", err, text)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// Without metadata the server ignores If-None-Match, and not every file system has
	// extended attributes.
	endpoint, folder, metadata := listener.Addr().String(), t.TempDir(), t.TempDir()
	if err := errors.Join(listener.Close(), os.Mkdir(filepath.Join(folder, Bucket), 0o700)); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "--access", AccessKey, "--secret", SecretKey, "--port", endpoint, "posix", "--sidecar", metadata, folder)
	var output bytes.Buffer
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = server.Wait(); close(ended) }()
	t.Cleanup(func() { _ = server.Process.Kill(); <-ended })
	for deadline := time.After(20 * time.Second); ; {
		if conn, err := net.Dial("tcp", endpoint); err == nil {
			_ = conn.Close()
			return endpoint
		}
		select {
		case <-ended:
			t.Fatalf("versitygw has ended: %s", output.String())
		case <-deadline:
			t.Fatal("versitygw does not listen")
		case <-time.After(20 * time.Millisecond):
		}
	}
}
