package fakes

import (
	"context"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/webhook"
)

// NewManager returns a fake whose context, logger, clock and PatchFromPod work: the context
// does not end, and the logger keeps nothing. The test sets what else its extension asks for.
func NewManager() *Manager {
	mgr := &Manager{}
	mgr.PatchFromPodCalls(func(req admission.Request, pod *corev1.Pod) admission.Response { return webhook.PatchFrom(req, pod) })
	mgr.GetContextReturns(context.Background())
	mgr.GetLoggerReturns(zap.NewNop().Sugar())
	mgr.GetClockReturns(clock.RealClock{})
	return mgr
}
