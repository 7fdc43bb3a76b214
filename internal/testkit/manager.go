package testkit

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// deadline is for what ought to take a moment: the start and the end of a program.
const deadline = 2 * time.Minute

// Manager is a *manager.Manager.
type Manager interface {
	Start(context.Context) error
	Stop()
	Ready() <-chan struct{}
}

// Start starts a manager and returns when it is ready. It stops when the test
// ends, or before, when the test calls stop.
func Start(t testing.TB, mgr Manager) (stop func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- mgr.Start(context.WithoutCancel(t.Context())) }()
	stop = sync.OnceFunc(func() {
		mgr.Stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the manager stopped with an error: %v", err)
			}
		case <-time.After(deadline):
			t.Errorf("the manager has not stopped within %s", deadline)
		}
	})
	select {
	case <-mgr.Ready():
	case err := <-done:
		t.Fatalf("the manager stopped at start: %v", err)
	case <-time.After(deadline):
		t.Fatalf("the manager is not ready within %s", deadline)
	}
	t.Cleanup(stop)
	return stop
}

// Logger returns a logger and what it logs. If the test fails, it prints the
// warnings and errors.
func Logger(t testing.TB) (*zap.SugaredLogger, *observer.ObservedLogs) {
	core, logs := observer.New(zapcore.DebugLevel)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, entry := range logs.Filter(func(e observer.LoggedEntry) bool { return e.Level >= zapcore.WarnLevel }).All() {
			t.Log(entry.Message, entry.ContextMap())
		}
	})
	return zap.New(core).Sugar(), logs
}
