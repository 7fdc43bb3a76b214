package act

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// identifyTimeout leaves time for the sinks when the API server is slow.
const identifyTimeout = time.Second

// Identify adds what the request does not carry: the Pod's UID, its node, and
// what runs in it. A record without them is still worth having, so the act goes
// on when the Pod cannot be read.
func (a *Act) Identify(ctx context.Context, pods corev1client.PodsGetter) error {
	r := &a.Record
	if a.Pod == nil && r.Pod != "" && r.Way != v1alpha1.WayPod {
		ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
		defer cancel()
		pod, err := pods.Pods(r.Namespace).Get(ctx, r.Pod, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading Pod %s/%s: %w", r.Namespace, r.Pod, err)
		}
		a.Pod = pod
	}
	if a.Pod == nil {
		return nil
	}
	r.PodUID, r.Node = a.Pod.UID, a.Pod.Spec.NodeName
	flag(r, hostAccess(a.Pod)...)
	if r.Way == v1alpha1.WayExec || r.Way == v1alpha1.WayAttach {
		a.findContainer()
	}
	return nil
}

// findContainer finds the container of a session, and its image. The API server
// takes the first container when the client names none. Who attaches with standard
// input to a container that has a terminal gets that, whatever they ask for.
func (a *Act) findContainer() {
	r, spec := &a.Record, &a.Pod.Spec
	if r.Container == "" && len(spec.Containers) > 0 {
		r.Container = spec.Containers[0].Name
	}
	for _, c := range slices.Concat(spec.Containers, spec.InitContainers) {
		if c.Name == r.Container {
			r.Image, r.TTY = c.Image, r.TTY || r.Way == v1alpha1.WayAttach && r.Stdin && c.TTY
			return
		}
	}
	for i := range spec.EphemeralContainers {
		if c := &spec.EphemeralContainers[i]; c.Name == r.Container {
			r.Image, r.TTY = c.Image, r.TTY || r.Way == v1alpha1.WayAttach && r.Stdin && c.TTY
			flag(r, v1alpha1.FlagEphemeral)
			return
		}
	}
}

// hostAccess returns which parts of its node a Pod can reach.
func hostAccess(pod *corev1.Pod) []v1alpha1.AuditFlag {
	var flags []v1alpha1.AuditFlag
	spec := &pod.Spec
	if spec.HostPID || spec.HostNetwork || spec.HostIPC {
		flags = append(flags, v1alpha1.FlagHostNamespace)
	}
	if slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil }) {
		flags = append(flags, v1alpha1.FlagHostPath)
	}
	if isHostProcess(spec) {
		flags = append(flags, v1alpha1.FlagHostProcess)
	}
	if slices.ContainsFunc(securityContexts(spec), addsCapability) {
		flags = append(flags, v1alpha1.FlagCapabilities)
	}
	if slices.ContainsFunc(securityContexts(spec), isPrivileged) {
		flags = append(flags, v1alpha1.FlagPrivileged)
	}
	return flags
}

// securityContexts are those of all containers.
func securityContexts(spec *corev1.PodSpec) []*corev1.SecurityContext {
	var all []*corev1.SecurityContext
	for _, c := range slices.Concat(spec.Containers, spec.InitContainers) {
		all = append(all, c.SecurityContext)
	}
	for i := range spec.EphemeralContainers {
		all = append(all, spec.EphemeralContainers[i].SecurityContext)
	}
	return all
}

// isHostProcess reports whether a container is a process of a Windows node.
func isHostProcess(spec *corev1.PodSpec) bool {
	is := func(w *corev1.WindowsSecurityContextOptions) bool {
		return w != nil && w.HostProcess != nil && *w.HostProcess
	}
	return spec.SecurityContext != nil && is(spec.SecurityContext.WindowsOptions) ||
		slices.ContainsFunc(securityContexts(spec), func(c *corev1.SecurityContext) bool { return c != nil && is(c.WindowsOptions) })
}

// addsCapability reports whether a container has a capability that containers do not
// have anyway.
func addsCapability(c *corev1.SecurityContext) bool {
	return c != nil && c.Capabilities != nil && slices.ContainsFunc(c.Capabilities.Add, func(added corev1.Capability) bool {
		return !slices.Contains(usualCapabilities, string(added))
	})
}

func isPrivileged(c *corev1.SecurityContext) bool {
	return c != nil && c.Privileged != nil && *c.Privileged
}
