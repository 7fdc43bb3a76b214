package act

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/kubelet"
)

// Unseen returns the act that a request is whose object cannot be read.
func Unseen(req *extension.Request) *Act {
	a := begin(nil, req)
	if a.Record.Way == v1alpha1.WayServiceProxy || a.Record.Way == v1alpha1.WayNodeProxy {
		return a
	}
	a.Record.Pod = req.Name
	return a
}

// begin returns the act of a request without what its object says.
func begin(obj runtime.Object, req *extension.Request) *Act {
	return &Act{Request: req, Object: obj, Record: v1alpha1.AuditRecord{
		ID: string(req.UID), Way: wayOf(req), Verb: strings.ToLower(string(req.Operation)),
		DryRun: req.DryRun(), Namespace: req.Namespace,
		User: UserOf(req.User()),
	}}
}

// UserOf returns a user as a record has them.
func UserOf(user authenticationv1.UserInfo) v1alpha1.AuditUser {
	of := v1alpha1.AuditUser{Username: user.Username, UID: user.UID, Groups: user.Groups}
	for key, values := range user.Extra {
		if of.Extra == nil {
			of.Extra = map[string][]string{}
		}
		of.Extra[key] = values
	}
	return of
}

// Read returns the act that a request is, or nil when it is not an act. The command of an
// exec is the one that the user gave, of which commands may know more than the request.
func Read(obj runtime.Object, req *extension.Request, commands extension.Unwrapper) (*Act, error) {
	a := begin(obj, req)
	if pod, ok := obj.(*corev1.Pod); ok && req.Operation == admissionv1.Update && (a.Record.Way == v1alpha1.WayDebug || a.Record.Way == v1alpha1.WayPod) {
		isAct, err := a.update(pod, commands)
		if err != nil || !isAct {
			return nil, err
		}
		return a, nil
	}
	if way := a.describe(); way != a.Record.Way {
		return nil, fmt.Errorf("audit: %s of %s with a %T is not a known way in", req.Operation, a.Record.Way, obj)
	}
	if options, ok := obj.(*corev1.PodExecOptions); ok {
		a.Record.Command = a.unwrap(options.Container, options.Command, commands)
	}
	return a, nil
}

// unwrap returns the command that the user gave, and notes the session in which it runs.
func (a *Act) unwrap(container string, command []string, commands extension.Unwrapper) []string {
	if commands == nil {
		return command
	}
	unwrapped := commands.Unwrap(&corev1.PodExecOptions{Container: container, Command: command}, a.Request)
	if unwrapped == nil {
		return command
	}
	a.Record.Session = unwrapped.Session
	// So whoever knows the session knows the record, without a search.
	if len(validation.IsDNS1123Label(unwrapped.Session)) == 0 {
		a.Record.ID = unwrapped.Session
	}
	return unwrapped.Command
}

func wayOf(req *extension.Request) v1alpha1.AuditWay {
	if req.SubResource == "" {
		return v1alpha1.AuditWay(req.Resource.Resource)
	}
	return v1alpha1.AuditWay(req.Resource.Resource + "/" + req.SubResource)
}

// describe fills the record from the request's object, and returns the way in
// that such an object belongs to.
func (a *Act) describe() v1alpha1.AuditWay {
	r, req := &a.Record, a.Request
	switch o := a.Object.(type) {
	case *corev1.PodExecOptions:
		r.Pod, r.Container, r.Command, r.TTY, r.Stdin = req.Name, o.Container, o.Command, o.TTY, o.Stdin
		return v1alpha1.WayExec
	case *corev1.PodAttachOptions:
		r.Pod, r.Container, r.TTY, r.Stdin = req.Name, o.Container, o.TTY, o.Stdin
		return v1alpha1.WayAttach
	case *corev1.PodPortForwardOptions:
		r.Pod = req.Name
		for _, port := range o.Ports {
			r.Ports = append(r.Ports, strconv.Itoa(int(port)))
		}
		return v1alpha1.WayPortForward
	case *corev1.PodProxyOptions:
		r.Pod = a.proxied(o.Path)
		return v1alpha1.WayPodProxy
	case *corev1.ServiceProxyOptions:
		r.Service = a.proxied(o.Path)
		return v1alpha1.WayServiceProxy
	case *corev1.NodeProxyOptions:
		r.Node = a.proxied(o.Path)
		a.kubelet(o.Path)
		return v1alpha1.WayNodeProxy
	case *corev1.Pod:
		if req.Operation == admissionv1.Create {
			a.create(o)
			return v1alpha1.WayPod
		}
	}
	return ""
}

// proxied returns the name within the name of a proxy, which can be
// scheme:name:port.
func (a *Act) proxied(path string) string {
	a.Record.Path = path
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(a.Request.Name)
	if !valid {
		return a.Request.Name // the API server refuses it
	}
	if port != "" {
		a.Record.Ports = []string{port}
	}
	if scheme != "" {
		a.Record.Path = scheme + ":" + path
	}
	return name
}

// kubelet reads the container from a path of the kubelet's API.
func (a *Act) kubelet(path string) {
	r := &a.Record
	of, ok := kubelet.SessionOf(path)
	if !ok {
		return
	}
	flag(r, v1alpha1.FlagKubelet)
	if of.Pod != "" {
		r.Namespace, r.Pod, r.Container = of.Namespace, of.Pod, of.Container
	}
}

// update finds the containers that an update of a Pod adds, or gives another image,
// and reports whether there are any.
func (a *Act) update(pod *corev1.Pod, commands extension.Unwrapper) (bool, error) {
	var old corev1.Pod
	if err := a.Request.Old(&old); err != nil {
		return false, fmt.Errorf("audit: %w", err)
	}
	a.Pod = pod
	r := &a.Record
	r.Pod = a.Request.Name
	if r.Way == v1alpha1.WayDebug {
		a.debug(pod, &old, commands)
	} else {
		a.newImages(pod.Spec.InitContainers, old.Spec.InitContainers)
		a.newImages(pod.Spec.Containers, old.Spec.Containers)
	}
	if len(r.Containers) == 1 {
		only := &r.Containers[0]
		r.Container, r.Image, r.Command, r.TTY, r.Stdin = only.Name, only.Image, only.Command, only.TTY, only.Stdin
	}
	return len(r.Containers) > 0, nil
}

// debug finds new ephemeral containers. Existing ones cannot be changed.
func (a *Act) debug(pod, old *corev1.Pod, commands extension.Unwrapper) {
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		if slices.ContainsFunc(old.Spec.EphemeralContainers, func(o corev1.EphemeralContainer) bool { return o.Name == c.Name }) {
			continue
		}
		added := container((*corev1.Container)(&c.EphemeralContainerCommon))
		added.Target = c.TargetContainerName
		added.Command = a.unwrap(c.Name, added.Command, commands)
		a.Record.Containers = append(a.Record.Containers, added)
	}
}

// newImages finds the containers that have another image than before.
func (a *Act) newImages(containers, old []corev1.Container) {
	for i := range containers {
		c := &containers[i]
		if i < len(old) && old[i].Name == c.Name && old[i].Image == c.Image {
			continue
		}
		a.Record.Containers = append(a.Record.Containers, container(c))
	}
}

// create describes a Pod that is a way in by itself.
func (a *Act) create(pod *corev1.Pod) {
	a.Pod, a.Record.Pod = pod, a.Request.Name
	for i := range pod.Spec.Containers {
		c := container(&pod.Spec.Containers[i])
		if c.Stdin {
			flag(&a.Record, v1alpha1.FlagInteractive)
		}
		a.Record.Containers = append(a.Record.Containers, c)
	}
}

func container(c *corev1.Container) v1alpha1.AuditContainer {
	return v1alpha1.AuditContainer{
		Name: c.Name, Image: c.Image, Command: slices.Concat(c.Command, c.Args), TTY: c.TTY, Stdin: c.Stdin,
		Privileged: isPrivileged(c.SecurityContext),
	}
}
