package audit_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
)

// A manager as a process of its own can be killed.

// managerVariable has the processOptions of a test binary that runs as a manager.
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
	mgr, err := manager.New(manager.Options{
		OperatorFingerprint: "admitkit", Namespaces: []string{options.Namespace}, Host: "127.0.0.1", Port: options.Port, KubeConfig: options.KubeConfig,
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
		err = mgr.Start(testkit.UntilParentEnds())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// startProcess runs a manager process and returns when it is ready.
func startProcess(t *testing.T, options processOptions) *testkit.Process {
	t.Helper()
	options.KubeConfig = managerUser.KubeConfig
	p := testkit.RunAgain(t, managerVariable, options)
	p.Await(t, "ready")
	return p
}
