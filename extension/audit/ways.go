package audit

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// scopes are the admissions that are acts. Sessions and debugging share one
// webhook; the creation of Pods has another, which the API server calls only for
// Pods that are a way in by themselves.
func (a *Audit) scopes() []extension.Scope {
	failurePolicy := a.failurePolicy()
	sideEffects := admissionregistrationv1.SideEffectClassNoneOnDryRun
	scope := func(name string, rules ...admissionregistrationv1.RuleWithOperations) extension.Scope {
		return extension.Scope{
			Name: name, Rules: rules, NamespaceSelector: a.options.NamespaceSelector,
			FailurePolicy: &failurePolicy, SideEffects: &sideEffects,
		}
	}
	sessions := scope(scopeSessions, slices.Concat(
		extension.Connect(
			string(v1alpha1.WayExec), string(v1alpha1.WayAttach), string(v1alpha1.WayPortForward),
			string(v1alpha1.WayPodProxy), string(v1alpha1.WayServiceProxy), string(v1alpha1.WayNodeProxy),
		),
		// A PATCH is an UPDATE at admission.
		extension.Resources("", "v1", []string{string(v1alpha1.WayDebug)}, admissionregistrationv1.Update),
	)...)
	pods := scope("audit-pods", extension.Pods()...)
	pods.MatchConditions = waysInByCreation()
	return []extension.Scope{sessions, pods}
}

// waysInByCreation are the conditions of a Pod whose creation is a way in: one
// that reads standard input, so that its creator can attach to what they chose
// to run, or has access to its node. What kube-controller-manager and the
// kubelets create is none, and must not depend on a webhook.
func waysInByCreation() []admissionregistrationv1.MatchCondition {
	return []admissionregistrationv1.MatchCondition{
		{
			Name: "not-by-a-controller",
			Expression: "!(request.userInfo.username == 'system:kube-controller-manager' || " +
				"request.userInfo.username.startsWith('system:serviceaccount:kube-system:') || " +
				"(has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups))",
		},
		{
			Name: "a-way-in",
			Expression: "(has(object.spec.hostPID) && object.spec.hostPID) || (has(object.spec.hostNetwork) && object.spec.hostNetwork) || " +
				"(has(object.spec.hostIPC) && object.spec.hostIPC) || " +
				"(has(object.spec.volumes) && object.spec.volumes.exists(v, has(v.hostPath))) || " +
				"object.spec.containers.exists(c, " + wayInByContainer + ") || " +
				"(has(object.spec.initContainers) && object.spec.initContainers.exists(c, " + wayInByContainer + "))",
		},
	}
}

const wayInByContainer = "(has(c.stdin) && c.stdin) || " +
	"(has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged)"

// parse returns the act that a request is, or nil if it is none.
func parse(obj runtime.Object, req *extension.Request) (*act, error) {
	user := req.User()
	r := v1alpha1.AuditRecord{
		ID: string(req.UID), Way: wayOf(req), Verb: strings.ToLower(string(req.Operation)),
		DryRun: req.DryRun(), Namespace: req.Namespace,
		User: v1alpha1.AuditUser{Username: user.Username, UID: user.UID, Groups: user.Groups},
	}
	for key, values := range user.Extra {
		if r.User.Extra == nil {
			r.User.Extra = map[string][]string{}
		}
		r.User.Extra[key] = values
	}
	a := &act{req: req, object: obj, record: r}
	var known bool
	var err error
	switch o := obj.(type) {
	case *corev1.PodExecOptions:
		known = r.Way == v1alpha1.WayExec
		a.record.Pod, a.record.Container, a.record.Command, a.record.TTY, a.record.Stdin = req.Name, o.Container, o.Command, o.TTY, o.Stdin
	case *corev1.PodAttachOptions:
		known = r.Way == v1alpha1.WayAttach
		a.record.Pod, a.record.Container, a.record.TTY, a.record.Stdin = req.Name, o.Container, o.TTY, o.Stdin
	case *corev1.PodPortForwardOptions:
		known = r.Way == v1alpha1.WayPortForward
		a.record.Pod = req.Name
		for _, port := range o.Ports {
			a.record.Ports = append(a.record.Ports, strconv.Itoa(int(port)))
		}
	case *corev1.PodProxyOptions:
		known = r.Way == v1alpha1.WayPodProxy
		a.record.Pod = a.proxied(o.Path)
	case *corev1.ServiceProxyOptions:
		known = r.Way == v1alpha1.WayServiceProxy
		a.record.Service = a.proxied(o.Path)
	case *corev1.NodeProxyOptions:
		known = r.Way == v1alpha1.WayNodeProxy
		a.record.Node = a.proxied(o.Path)
		a.kubelet()
	case *corev1.Pod:
		a.record.Pod = req.Name
		switch {
		case r.Way == v1alpha1.WayDebug && req.Operation == admissionv1.Update:
			known = true
			var added bool
			if added, err = a.debug(o); err == nil && !added {
				return nil, nil
			}
		case r.Way == v1alpha1.WayPod && req.Operation == admissionv1.Create:
			known = true
			a.create(o)
		}
	}
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, fmt.Errorf("audit: %s of %s with a %T is no way in that is known", req.Operation, r.Way, obj)
	}
	return a, nil
}

func wayOf(req *extension.Request) v1alpha1.AuditWay {
	if req.SubResource == "" {
		return v1alpha1.AuditWay(req.Resource.Resource)
	}
	return v1alpha1.AuditWay(req.Resource.Resource + "/" + req.SubResource)
}

// proxied returns the name within the name of a proxy, which can be
// scheme:name:port.
func (a *act) proxied(path string) string {
	a.record.Path = path
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(a.req.Name)
	if !valid {
		return a.req.Name // the API server refuses it
	}
	if port != "" {
		a.record.Ports = []string{port}
	}
	if scheme != "" {
		a.record.Path = scheme + ":" + path
	}
	return name
}

// kubeletSessions are the paths of the kubelet's API by which one gets into a
// container (k8s.io/kubernetes/pkg/kubelet/server).
var kubeletSessions = []string{"exec", "attach", "portForward", "run", "cri"}

// kubelet reads which container a path of the kubelet's API leads into:
// /exec/NAMESPACE/POD/CONTAINER or /exec/NAMESPACE/POD/UID/CONTAINER. The
// command is in the query, which admission is not given.
func (a *act) kubelet() {
	parts := strings.Split(strings.Trim(path.Clean("/"+a.record.Path), "/"), "/")
	if !slices.ContainsFunc(kubeletSessions, func(s string) bool { return strings.EqualFold(s, parts[0]) }) {
		return
	}
	a.flag(v1alpha1.FlagKubelet)
	if len(parts) < 3 || strings.EqualFold(parts[0], "cri") {
		return
	}
	a.record.Namespace, a.record.Pod = parts[1], parts[2]
	if len(parts) > 3 && !strings.EqualFold(parts[0], "portForward") {
		a.record.Container = parts[len(parts)-1]
	}
}

// debug finds the ephemeral containers that are added. There is no act if there
// are none; those that are there cannot be changed.
func (a *act) debug(pod *corev1.Pod) (bool, error) {
	var old corev1.Pod
	if err := a.req.Old(&old); err != nil {
		return false, fmt.Errorf("audit: %w", err)
	}
	a.pod = pod
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		if slices.ContainsFunc(old.Spec.EphemeralContainers, func(o corev1.EphemeralContainer) bool { return o.Name == c.Name }) {
			continue
		}
		added := container((*corev1.Container)(&c.EphemeralContainerCommon))
		added.Target = c.TargetContainerName
		a.record.Containers = append(a.record.Containers, added)
	}
	if len(a.record.Containers) == 1 {
		only := &a.record.Containers[0]
		a.record.Container, a.record.Image, a.record.Command = only.Name, only.Image, only.Command
		a.record.TTY, a.record.Stdin = only.TTY, only.Stdin
	}
	return len(a.record.Containers) > 0, nil
}

// create tells of a Pod that is a way in by itself.
func (a *act) create(pod *corev1.Pod) {
	a.pod = pod
	for i := range pod.Spec.Containers {
		c := container(&pod.Spec.Containers[i])
		if c.Stdin {
			a.flag(v1alpha1.FlagInteractive)
		}
		a.record.Containers = append(a.record.Containers, c)
	}
}

func container(c *corev1.Container) v1alpha1.AuditContainer {
	return v1alpha1.AuditContainer{
		Name: c.Name, Image: c.Image, Command: slices.Concat(c.Command, c.Args), TTY: c.TTY, Stdin: c.Stdin,
		Privileged: c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged,
	}
}
