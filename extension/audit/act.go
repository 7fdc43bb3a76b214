package audit

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// act is one way in that somebody is about to take.
type act struct {
	req    *extension.Request
	object runtime.Object
	// record is the act as it came, with its secrets, until keep redacts a copy.
	record v1alpha1.AuditRecord
	// enforced says that enforcement is on where the act came from.
	enforced bool
	// pod is the Pod that the act is in, nil when there is none or it could not
	// be read.
	pod *corev1.Pod
}

// decision is what the enforcement says about an act. The zero value allows it.
type decision struct {
	denied bool
	// rule names the rule that decided; reason is for the person who is denied.
	rule, reason string
	// accessRequest is the live request that covers the act, whether or not one
	// was needed.
	accessRequest *v1alpha1.AuditAccessRequest
	// breakGlass says that the act was let through only because its user is
	// exempt.
	breakGlass bool
}

// identifyTimeout leaves time for the sinks when the API server is slow.
const identifyTimeout = time.Second

// identify adds what the request does not carry: which Pod that is, where it
// runs, and what is in it. Without that the record is still worth having.
func (a *auditor) identify(ctx context.Context, act *act) {
	r := &act.record
	if act.pod == nil && r.Pod != "" && r.Way != v1alpha1.WayPod {
		ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
		defer cancel()
		pod, err := a.pods.Pods(r.Namespace).Get(ctx, r.Pod, metav1.GetOptions{})
		if err != nil {
			a.log.Debug("the Pod of a record cannot be read", zap.String("record", r.ID), zap.Error(err))
			return
		}
		act.pod = pod
	}
	if act.pod == nil {
		return
	}
	r.PodUID, r.Node = act.pod.UID, act.pod.Spec.NodeName
	act.flag(hostAccess(act.pod)...)
	if r.Way == v1alpha1.WayExec || r.Way == v1alpha1.WayAttach {
		act.findContainer()
	}
}

// findContainer finds the container of a session, and its image. The API server
// takes the first one when the client names none.
func (a *act) findContainer() {
	r, spec := &a.record, &a.pod.Spec
	if r.Container == "" && len(spec.Containers) > 0 {
		r.Container = spec.Containers[0].Name
	}
	for _, c := range slices.Concat(spec.Containers, spec.InitContainers) {
		if c.Name == r.Container {
			r.Image = c.Image
			return
		}
	}
	for i := range spec.EphemeralContainers {
		if c := &spec.EphemeralContainers[i]; c.Name == r.Container {
			r.Image = c.Image
			a.flag(v1alpha1.FlagEphemeral)
			return
		}
	}
}

// judge asks the enforcement and writes what it says into the record.
func (a *auditor) judge(ctx context.Context, act *act) {
	r := &act.record
	r.Decision = v1alpha1.AuditAllowed
	if a.decide == nil {
		return
	}
	said := a.decide(ctx, act)
	r.Rule, r.Reason, r.AccessRequest = said.rule, said.reason, said.accessRequest
	if said.denied {
		r.Decision = v1alpha1.AuditDenied
	}
	if said.breakGlass {
		act.flag(v1alpha1.FlagBreakGlass)
	}
}

// flag marks the record, once with each flag.
func (a *act) flag(flags ...v1alpha1.AuditFlag) { addFlags(&a.record, flags...) }

func addFlags(r *v1alpha1.AuditRecord, flags ...v1alpha1.AuditFlag) {
	for _, flag := range flags {
		if !slices.Contains(r.Flags, flag) {
			r.Flags = append(r.Flags, flag)
		}
	}
}

// hostAccess returns what of the node a Pod gives access to.
func hostAccess(pod *corev1.Pod) []v1alpha1.AuditFlag {
	var flags []v1alpha1.AuditFlag
	spec := &pod.Spec
	if spec.HostPID || spec.HostNetwork || spec.HostIPC {
		flags = append(flags, v1alpha1.FlagHostNamespace)
	}
	if slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil }) {
		flags = append(flags, v1alpha1.FlagHostPath)
	}
	privileged := func(c *corev1.SecurityContext) bool { return c != nil && c.Privileged != nil && *c.Privileged }
	for _, c := range slices.Concat(spec.Containers, spec.InitContainers) {
		if privileged(c.SecurityContext) {
			return append(flags, v1alpha1.FlagPrivileged)
		}
	}
	for i := range spec.EphemeralContainers {
		if privileged(spec.EphemeralContainers[i].SecurityContext) {
			return append(flags, v1alpha1.FlagPrivileged)
		}
	}
	return flags
}
