package session

import (
	"context"

	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/session/internal/recorded"
)

// guard sees what runs in the end. It refuses a command that looks wrapped and is not, and
// by policy what is not recorded. That may be because the container has no recorder, because
// another webhook has changed the command, because this API server calls no mutating
// webhooks for connections, or because nothing could record it: ports and proxies.
type guard struct{ *shared }

var (
	_ extension.Validator[runtime.Object] = (*guard)(nil)
	_ extension.Witness                   = (*guard)(nil)
	_ extension.Hosted                    = (*guard)(nil)
)

func (g *guard) scope() extension.Scope {
	scope := g.options.scope("sessions-guard", "pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy")
	scope.SideEffects = new(admissionregistrationv1.SideEffectClassNoneOnDryRun) // an Event
	return scope
}

// Unseen implements [extension.Witness]: nothing passes because it is too large.
func (*guard) Unseen(context.Context, *extension.Request, string) {}

// Validate lets through what is recorded. A Service's proxy leads into Pods of its own
// namespace only: the API server passes over all other endpoints.
func (g *guard) Validate(ctx context.Context, obj runtime.Object, req *extension.Request) error {
	const instead = ". Use kubectl exec, and run a client in the container"
	switch options := obj.(type) {
	case *corev1.PodExecOptions:
		return g.exec(ctx, options, req)
	case *corev1.PodAttachOptions:
		return g.attach(ctx, options, req)
	case *corev1.PodPortForwardOptions:
		return g.unrecorded(ctx, req, objectOf(req), "portforward", "what goes through a forwarded port cannot be recorded"+instead)
	case *corev1.PodProxyOptions:
		return g.unrecorded(ctx, req, objectOf(req), "pod-proxy", "what goes through the proxy of a Pod cannot be recorded"+instead)
	case *corev1.ServiceProxyOptions:
		return g.unrecorded(ctx, req, objectOf(req), "service-proxy", "the proxy of a Service leads into a Pod, and what goes through it cannot be recorded"+instead)
	}
	return extension.Denyf("%s of %s/%s is no way into a Pod that is known here", req.Operation, req.Resource.Resource, req.SubResource)
}

// attach lets through attaching to what begins with the recorder.
func (g *guard) attach(ctx context.Context, options *corev1.PodAttachOptions, req *extension.Request) error {
	pod, err := g.pod(ctx, req)
	if err != nil || pod == nil {
		return err
	}
	if recorded, err := g.isRecorded(pod, options.Container); err != nil || recorded {
		return err
	}
	return g.unrecorded(ctx, req, objectOf(req), "attach", "attach cannot be recorded. Use kubectl exec")
}

// exec lets through a command behind the recorder.
func (g *guard) exec(ctx context.Context, options *corev1.PodExecOptions, req *extension.Request) error {
	ticket, _, wrapped, err := g.verify(options.Command, options.Container, req)
	switch {
	case err != nil:
		return extension.Denyf("the session is refused: %w", err)
	case wrapped:
		g.given.add(ticket)
		return nil
	case recorded.NamesRecorder(options.Command):
		return extension.Deny("the recorder is started by a webhook, and by nobody else")
	}
	pod, err := g.pod(ctx, req)
	if err != nil || pod == nil {
		return err
	}
	cause, why := "bypassed", "the command was not put behind the recorder: another webhook has changed it, or the API server calls no mutating webhooks for connections"
	if container := recorded.ContainerOf(pod, options.Container); !recorded.HasRecorder(pod, container) {
		cause, why = "no-recorder", "container "+container+" has no recorder, because "+whyNone(pod)
	}
	return g.unrecorded(ctx, req, objectOf(req), cause, why)
}

// whyNone says why a Pod has no recorder, and what to do.
func whyNone(pod *corev1.Pod) string {
	if !recorded.CanHaveRecorder(pod) {
		return "there is none for static Pods and Pods of Windows. Run it in another namespace, or have the operator allow what is not recorded"
	}
	return "its Pod was made before sessions were recorded here. Replace the Pod, for example by kubectl rollout restart"
}

// objectOf returns what a connection leads to. The name within that of a proxy can be
// scheme:name:port.
func objectOf(req *extension.Request) corev1.ObjectReference {
	of := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: req.Namespace, Name: req.Name}
	if req.SubResource != "proxy" {
		return of
	}
	if _, name, _, valid := utilnet.SplitSchemeNamePort(req.Name); valid {
		of.Name = name
	}
	switch req.Resource.Resource {
	case "services":
		of.Kind = "Service"
	case "nodes":
		of.Kind = "Node"
	}
	return of
}

// unrecorded decides about a session that nothing records.
func (s *shared) unrecorded(ctx context.Context, req *extension.Request, of corev1.ObjectReference, cause, why string) error {
	if s.options.Unrecorded == Closed {
		unrecordedTotal.WithLabelValues(cause, "denied").Inc()
		return extension.Deny("sessions are recorded here, and this one cannot be: " + why)
	}
	if !req.DryRun() {
		if err := s.recordUnrecorded(ctx, req, of, why); err != nil {
			unrecordedTotal.WithLabelValues(cause, "denied").Inc()
			return extension.Denyf("this session cannot be recorded, and that cannot be put on record: %w", err)
		}
		if err := s.reportUnrecorded(ctx, req, of, why); err != nil {
			s.log.Error("there is no Event about a session that is not recorded", zap.String("object", of.Kind+" "+of.Namespace+"/"+of.Name), zap.Error(err))
		}
	}
	unrecordedTotal.WithLabelValues(cause, "allowed").Inc()
	req.Warnf("this session is not recorded: %s", why)
	req.AddAuditAnnotation("unrecorded", why)
	return nil
}
