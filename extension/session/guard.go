package session

import (
	"context"

	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
)

// guard sees what runs in the end. It refuses a command that looks wrapped and is not, and
// by policy what is not recorded. That may be because the container has no recorder, because
// another webhook has changed the command, or because this API server calls no mutating
// webhooks for connections.
type guard struct{ *shared }

var (
	_ extension.Validator[runtime.Object] = (*guard)(nil)
	_ extension.Witness                   = (*guard)(nil)
	_ extension.Hosted                    = (*guard)(nil)
)

func (g *guard) scope() extension.Scope {
	scope := g.options.scope("sessions-guard", "pods/exec", "pods/attach")
	scope.SideEffects = new(admissionregistrationv1.SideEffectClassNoneOnDryRun) // an Event
	return scope
}

// Unseen implements [extension.Witness]: nothing passes because it is too large.
func (*guard) Unseen(context.Context, *extension.Request, string) {}

// Validate lets through what is recorded.
func (g *guard) Validate(ctx context.Context, obj runtime.Object, req *extension.Request) error {
	if attach, is := obj.(*corev1.PodAttachOptions); is {
		pod, err := g.pod(ctx, req)
		if err != nil || pod == nil {
			return err
		}
		if recorded, err := g.isRecorded(pod, attach.Container); err != nil || recorded {
			return err
		}
	}
	options, isExec := obj.(*corev1.PodExecOptions)
	if !isExec {
		return g.unrecorded(ctx, req, "attach", "attach cannot be recorded. Use kubectl exec")
	}
	ticket, _, wrapped, err := g.verify(options.Command, options.Container, req)
	switch {
	case err != nil:
		return extension.Denyf("the session is refused: %w", err)
	case wrapped:
		g.given.add(ticket)
		return nil
	case namesRecorder(options.Command):
		return extension.Deny("the recorder is started by a webhook, and by nobody else")
	}
	pod, err := g.pod(ctx, req)
	if err != nil || pod == nil {
		return err
	}
	if container := containerOf(pod, options.Container); !hasRecorder(pod, container) {
		return g.unrecorded(ctx, req, "no-recorder", "container "+container+" has no recorder, because its Pod was made before sessions were recorded here. Replace the Pod, for example by kubectl rollout restart")
	}
	return g.unrecorded(ctx, req, "bypassed", "the command was not put behind the recorder: another webhook has changed it, or the API server calls no mutating webhooks for connections")
}

// unrecorded decides about a session that nothing records.
func (s *shared) unrecorded(ctx context.Context, req *extension.Request, cause, why string) error {
	if s.options.Unrecorded == Closed {
		unrecordedTotal.WithLabelValues(cause, "denied").Inc()
		return extension.Deny("sessions are recorded here, and this one cannot be: " + why)
	}
	unrecordedTotal.WithLabelValues(cause, "allowed").Inc()
	req.Warnf("this session is not recorded: %s", why)
	req.AddAuditAnnotation("unrecorded", why)
	if req.DryRun() {
		return nil
	}
	if err := s.reportUnrecorded(ctx, req, why); err != nil {
		s.log.Error("there is no Event about a session that is not recorded", zap.String("pod", req.Namespace+"/"+req.Name), zap.Error(err))
	}
	return nil
}
