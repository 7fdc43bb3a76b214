package testkit

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// collectorVariable has the path of a real collector, which make otlp builds.
const collectorVariable = "ADMITKIT_COLLECTOR"

// Collector is a real OpenTelemetry collector that writes what it receives to files.
type Collector struct {
	// Address is where it receives OTLP over HTTP.
	Address string

	program, dir string
	process      *Process
}

// NewCollector returns a collector that does not run yet, or skips the test where none
// has been built.
func NewCollector(t testing.TB, address string) *Collector {
	t.Helper()
	c := &Collector{Address: address, program: os.Getenv(collectorVariable), dir: t.TempDir()}
	if c.program == "" {
		t.Skip("it needs a real collector: run make otlp")
	}
	config := fmt.Sprintf(`
receivers:
  otlp: {protocols: {http: {endpoint: %q}}}
exporters:
  file/logs: {path: %q, append: true}
  file/traces: {path: %q, append: true}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    logs: {receivers: [otlp], exporters: [file/logs]}
    traces: {receivers: [otlp], exporters: [file/traces]}
`, address, c.file("logs"), c.file("traces"))
	if err := os.WriteFile(filepath.Join(c.dir, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *Collector) file(signal string) string { return filepath.Join(c.dir, signal+".jsonl") }

// Start returns when the collector listens.
func (c *Collector) Start(t testing.TB) {
	t.Helper()
	c.process = Run(t, exec.Command(c.program, "--config="+filepath.Join(c.dir, "config.yaml")))
	Eventually(t, "the collector listens", func(ctx context.Context) bool {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.Address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// Stop ends the collector, which first writes what it has acknowledged.
func (c *Collector) Stop(t testing.TB) {
	t.Helper()
	c.process.Stop(t)
}

// Received returns the requests of a signal in the order of their arrival, in JSON.
// Stop the collector first.
func (c *Collector) Received(t testing.TB, signal string) []string {
	t.Helper()
	text, err := os.ReadFile(c.file(signal))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}
