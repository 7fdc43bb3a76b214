package session

import (
	"context"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session/internal/recorded"
)

// debugLife is how long the ticket of an ephemeral container can be redeemed: its image may
// have to be pulled before.
const debugLife = 10 * time.Minute

// ephemeral is the subresource by which ephemeral containers are added.
const ephemeral = "ephemeralcontainers"

// debugger makes the recorder the first process of ephemeral containers that are added to
// Pods with the recorder: they may mount all of the Pod's volumes, and who attaches to one
// is then recorded.
type debugger struct{ *shared }

var _ extension.Mutator[*corev1.Pod] = (*debugger)(nil)

func (d *debugger) scope() extension.Scope {
	scope := d.options.podScope("sessions-debug", extension.Resources("", "v1", []string{"pods/" + ephemeral}, admissionregistrationv1.Update))
	scope.ReinvocationPolicy = new(admissionregistrationv1.NeverReinvocationPolicy)
	return scope
}

// Mutate wraps the commands of new ephemeral containers. What cannot be wrapped is left to
// podGuard.
func (d *debugger) Mutate(ctx context.Context, pod *corev1.Pod, req *extension.Request) error {
	added, err := newEphemeral(pod, req)
	if err != nil || !recorded.HasVolume(pod) {
		return err
	}
	for _, c := range added {
		if recorded.NamesRecorder(c.Command) {
			return extension.Denyf("%s records sessions: it is started by a webhook, and by nobody else", protocol.Program)
		}
		if len(c.Command) == 0 || recorded.Expands(c) {
			continue
		}
		given := recorded.Plainly(slices.Concat(c.Command, c.Args))
		ticket, text, err := d.sign(ctx, pod, c.Name, given, debugLife, req)
		if err != nil {
			return err
		}
		req.AddAuditAnnotation("session", ticket.ID)
		c.Command, c.Args = recorded.Escaped(protocol.Wrap(text, given)), nil
		for _, m := range recorded.Mounts() {
			if !slices.ContainsFunc(c.VolumeMounts, func(other corev1.VolumeMount) bool { return other.Name == m.Name }) {
				c.VolumeMounts = append(c.VolumeMounts, m)
			}
		}
	}
	return nil
}

// newEphemeral returns the ephemeral containers that a request adds.
func newEphemeral(pod *corev1.Pod, req *extension.Request) (added []*corev1.EphemeralContainer, err error) {
	old, err := extension.Old[*corev1.Pod](req)
	if err != nil {
		return nil, err
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		if !slices.ContainsFunc(old.Spec.EphemeralContainers, func(o corev1.EphemeralContainer) bool { return o.Name == c.Name }) {
			added = append(added, c)
		}
	}
	return added, nil
}

// checkEphemeral decides about a new ephemeral container of a Pod with the recorder.
func (k *podGuard) checkEphemeral(ctx context.Context, c *corev1.EphemeralContainer, req *extension.Request) error {
	_, _, wrapped, err := k.verify(slices.Concat(c.Command, c.Args), c.Name, req)
	switch {
	case err != nil:
		return extension.Denyf("ephemeral container %s is refused: %w", c.Name, err)
	case wrapped:
		return checkMounts((*corev1.Container)(&c.EphemeralContainerCommon), true)
	case recorded.NamesRecorder(c.Command):
		return extension.Deny("the recorder is started by a webhook, and by nobody else")
	}
	if err := checkMounts((*corev1.Container)(&c.EphemeralContainerCommon), false); err != nil {
		return err
	}
	why := "ephemeral container " + c.Name + " was not put behind the recorder: another webhook has changed it, or it was added where no mutating webhook looks"
	switch {
	case len(c.Command) == 0:
		why = "ephemeral container " + c.Name + " runs what its image says. Name the command: " + named(c, req)
	case recorded.Expands(c):
		why = "the command of ephemeral container " + c.Name + " has a variable that the kubelet replaces, $(NAME). Have a shell replace it: sh -c 'echo $NAME'"
	}
	return k.unrecorded(ctx, req, objectOf(req), "ephemeral", why)
}

// withoutRecorder decides about what is added to a Pod that has no recorder.
func (k *podGuard) withoutRecorder(ctx context.Context, pod *corev1.Pod, req *extension.Request) error {
	added, err := newEphemeral(pod, req)
	if err != nil || len(added) == 0 {
		return err
	}
	return k.unrecorded(ctx, req, objectOf(req), "no-recorder", "ephemeral container "+added[0].Name+" has no recorder, because "+whyNone(pod))
}

// named returns how to add the same container with a command.
func named(c *corev1.EphemeralContainer, req *extension.Request) string {
	text := "kubectl debug -it " + req.Name + " -n " + req.Namespace + " --image=" + c.Image
	if c.TargetContainerName != "" {
		text += " --target=" + c.TargetContainerName
	}
	if s := c.SecurityContext; s != nil && s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation && s.RunAsNonRoot != nil && *s.RunAsNonRoot {
		text += " --profile=restricted" // which Pod Security may ask for
	}
	return text + " -- sh"
}

// isRecorded reports whether the first process of an ephemeral container is the recorder.
func (s *shared) isRecorded(pod *corev1.Pod, container string) (bool, error) {
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		text, given, ok := protocol.Split(recorded.Plainly(slices.Concat(c.Command, c.Args)))
		if c.Name != container || !ok {
			continue
		}
		key, err := s.options.key()
		if err != nil {
			return false, err
		}
		ticket, err := key.VerifyExpired(text)
		return err == nil && ticket.PodUID == string(pod.UID) && ticket.Container == container && ticket.Command == protocol.Sum(given), nil
	}
	return false, nil
}
