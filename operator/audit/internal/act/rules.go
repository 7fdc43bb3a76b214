package act

import (
	"encoding/json"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Sessions are the admissions of sessions, of debugging, and of new images in a Pod
// that runs. Of all other updates of Pods the API server sends none: the kubelets and
// controllers make them all the time, and must not depend on a webhook. Nor does it
// send those of imageUpdaters.
func Sessions(imageUpdaters []string) ([]admissionregistrationv1.RuleWithOperations, []admissionregistrationv1.MatchCondition) {
	rules := slices.Concat(
		extension.Connect(
			string(v1alpha1.WayExec), string(v1alpha1.WayAttach), string(v1alpha1.WayPortForward),
			string(v1alpha1.WayPodProxy), string(v1alpha1.WayServiceProxy), string(v1alpha1.WayNodeProxy),
		),
		// A PATCH is an UPDATE at admission.
		extension.Resources("", "v1", []string{string(v1alpha1.WayDebug), string(v1alpha1.WayPod)}, admissionregistrationv1.Update),
	)
	// Of these rules only that of Pods has no subresource.
	return rules, []admissionregistrationv1.MatchCondition{{
		Name: "image-update",
		Expression: "has(request.subResource) || (!(request.userInfo.username in " + List(imageUpdaters) + ") && " +
			"(" + newImages("containers") + " || (has(object.spec.initContainers) && " + newImages("initContainers") + ")))",
	}}
}

// newImages is the CEL expression that compares the images of two Pods by position:
// the API server lets nobody add, remove or move a container. Its cost is linear; one
// that looked each container up could exceed the budget of expressions in a large Pod,
// and an expression that fails is not a match where the failure policy is Ignore.
func newImages(containers string) string {
	images := ".spec." + containers + ".map(c, c.image)"
	return "object" + images + " != oldObject" + images
}

// List returns a list of strings as CEL.
func List(values []string) string {
	text, _ := json.Marshal(append([]string{}, values...)) // a JSON array of strings is valid CEL
	return string(text)
}

// Creations are the admissions of Pods whose creation is a way in: Pods that
// read standard input, so that their creator can attach to a command of their
// choice, and Pods with access to their node. Pods that kube-controller-manager
// and the kubelets create are left out: they must not depend on a webhook.
func Creations() ([]admissionregistrationv1.RuleWithOperations, []admissionregistrationv1.MatchCondition) {
	return extension.Pods(), []admissionregistrationv1.MatchCondition{
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
				"(has(object.spec.securityContext) && " + hostProcess("object.spec") + ") || " +
				wayInByContainers("object.spec.containers") + " || " +
				"(has(object.spec.initContainers) && " + wayInByContainers("object.spec.initContainers") + ")",
		},
	}
}

// usualCapabilities are those that Pod Security's policy baseline lets a container add.
// Container runtimes give most of them to every container.
var usualCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// wayInByContainers is the CEL expression that holds for containers of which one is a way
// in. It also holds for more of them, or more capabilities, than anybody needs: the API
// server ends an expression that takes too long, and then passes over the webhook.
func wayInByContainers(list string) string {
	return "(size(" + list + ") > 100 || " + list + ".exists(c, (has(c.stdin) && c.stdin) || (has(c.securityContext) && (" +
		"(has(c.securityContext.privileged) && c.securityContext.privileged) || " +
		"(has(c.securityContext.capabilities) && has(c.securityContext.capabilities.add) && (size(c.securityContext.capabilities.add) > 50 || " +
		"c.securityContext.capabilities.add.exists(a, !(a in ['" + strings.Join(usualCapabilities, "', '") + "'])))) || " +
		hostProcess("c") + "))))"
}

func hostProcess(of string) string {
	options := of + ".securityContext.windowsOptions"
	return "(has(" + options + ") && has(" + options + ".hostProcess) && " + options + ".hostProcess)"
}
