package session

import (
	"context"

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
	_ extension.Entitled                  = (*guard)(nil)
)

func (g *guard) scope() extension.Scope {
	return g.options.scope("sessions-guard", "pods/exec", "pods/attach")
}

// Unseen implements [extension.Witness]: nothing passes because it is too large.
func (*guard) Unseen(context.Context, *extension.Request, string) {}

// Validate lets through what is recorded.
func (g *guard) Validate(ctx context.Context, obj runtime.Object, req *extension.Request) error {
	options, isExec := obj.(*corev1.PodExecOptions)
	if !isExec {
		return g.unrecorded(req, "attach cannot be recorded. Use kubectl exec")
	}
	_, _, wrapped, err := g.verify(options.Command, options.Container, req)
	switch {
	case err != nil:
		return extension.Denyf("the session is refused: %w", err)
	case wrapped:
		return nil
	case namesRecorder(options.Command):
		return extension.Deny("the recorder is started by a webhook, and by nobody else")
	}
	pod, err := g.pod(ctx, req)
	if err != nil || pod == nil {
		return err
	}
	if container := containerOf(pod, options.Container); !hasRecorder(pod, container) {
		return g.unrecorded(req, "container "+container+" has no recorder, because its Pod was made before sessions were recorded here. Replace the Pod, for example by kubectl rollout restart")
	}
	return g.unrecorded(req, "the command was not put behind the recorder: another webhook has changed it, or the API server calls no mutating webhooks for connections")
}

// unrecorded decides about a session that nothing records.
func (g *guard) unrecorded(req *extension.Request, why string) error {
	if g.options.Unrecorded == Closed {
		return extension.Deny("sessions are recorded here, and this one cannot be: " + why)
	}
	req.Warnf("this session is not recorded: %s", why)
	req.AddAuditAnnotation("unrecorded", why)
	return nil
}
