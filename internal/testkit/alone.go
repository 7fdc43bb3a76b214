package testkit

import (
	"context"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Alone returns a manager for what needs no API server. start runs what was added to it, until the test ends or calls stop.
func Alone(t testing.TB) (kube ctrlmanager.Manager, start func() (stop func())) {
	t.Helper()
	kube, err := ctrlmanager.New(&rest.Config{Host: "https://127.0.0.1:1"}, ctrlmanager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	return kube, func() (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- kube.Start(ctx) }()
		stop = sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(stop)
		return stop
	}
}
