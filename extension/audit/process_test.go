package audit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/extension/audit/sink"
	"github.com/admitkit/admitkit/extension/audit/sink/auditevent"
	"github.com/admitkit/admitkit/manager"
)

// A manager as a process of its own can be killed.

// managerVariable has the processOptions of a test binary that is to be a
// manager.
const managerVariable = "AUDIT_TEST_MANAGER"

type processOptions struct {
	KubeConfig, Namespace, File string
	Port                        int32
}

// closed are the options of a manager process: each sink is Closed, and nothing
// is folded, so that each act has an AuditEvent of its own.
func (o processOptions) closed() audit.Options {
	return audit.Options{Sinks: []audit.SinkOptions{
		{Sink: auditevent.New(auditevent.Options{FoldAfter: -1}), FailurePolicy: audit.Closed},
		{Sink: sink.NewFile(sink.FileOptions{Path: o.File}), FailurePolicy: audit.Closed},
	}}
}

// runProcess is a manager that ends when its standard input does.
func runProcess(text string) int {
	var options processOptions
	if err := json.Unmarshal([]byte(text), &options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	mgr, err := manager.New(manager.Options{
		Namespace: options.Namespace, Host: "127.0.0.1", Port: options.Port, KubeConfig: options.KubeConfig,
		RegisterWebHook: new(bool), Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
	})
	if err == nil {
		err = mgr.AddExtension(audit.New(options.closed()))
	}
	if err == nil {
		go func() {
			<-mgr.Ready()
			fmt.Println("ready")
		}()
		err = mgr.Start(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a running manager process.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended bool
}

// startProcess runs a manager process and returns when it is ready.
func startProcess(t *testing.T, options processOptions) *process {
	t.Helper()
	options.KubeConfig = managerUser.KubeConfig
	text, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(binary)}
	p.cmd.Env = append(os.Environ(), managerVariable+"="+string(text))
	log, err := os.CreateTemp(t.TempDir(), "manager-*.log")
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = log
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the manager's log ends with:\n%s", text[max(0, len(text)-4000):])
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "ready" {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("the manager process says %q, %v: %s", line, err, text)
	}
	return p
}

// kill ends the process as the kernel does when memory runs out.
func (p *process) kill() {
	if p.ended {
		return
	}
	p.ended = true
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
