package sandbox

import (
	"context"

	"go.uber.org/zap"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// WriteStatus writes the status of a run as the reconciler does, and records what is new in it.
func WriteStatus(ctx context.Context, c client.Client, recorder extension.Recorder, run *v1alpha1.SandboxRun, status *v1alpha1.SandboxRunStatus) error {
	r := &runs{shared: &shared{}, writer: c, recorder: recorder, log: zap.NewNop(), events: &events.FakeRecorder{}}
	return r.write(ctx, run, status)
}

// EndLeases has the broker revoke the leases of runs in a namespace, as an uninstall does.
func EndLeases(ctx context.Context, c client.Client, namespace, broker string) error {
	r := &runs{shared: &shared{namespaces: []string{namespace}, options: Options{Broker: BrokerOptions{Namespace: broker}}}, live: c, writer: c}
	return r.endLeases(ctx, v1alpha1.LeaseOfRun)
}
