// Package deadlock lists what a webhook with failure policy Fail leaves out, so that a
// cluster, and the manager in it, can start while the webhook is down. Everything that
// leaves something out for this reason takes it from [Guards].
package deadlock

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Guard is one thing that is left out: a namespace, a user, or resources.
type Guard struct {
	// Namespace is left out unless the scope names it, by its NamespaceSelector or as
	// the watched one. [Own] stands for the manager's own.
	Namespace string
	// User is left out of rules whose resource is a wildcard.
	User string
	// Group and Resources are left out, with their subresources and but for CONNECT,
	// unless a rule names them. Namespaces cannot tell: most of them are in none.
	Group     string
	Resources []string
	// Breaks says what a webhook that is down would break.
	Breaks string
}

// Own stands for the manager's own namespace. It is no name of a namespace.
const Own = "."

// Guards are all of them. docs/concepts.md has the same list.
var Guards = []Guard{
	{Namespace: Own, Breaks: "once the last Pod of the manager is gone, no other could be created"},
	{Namespace: metav1.NamespaceSystem, Breaks: "the control plane could not elect its leaders, and the Pods of the node agents, DNS and many network plugins could not be created"},
	{Namespace: corev1.NamespaceNodeLease, Breaks: "no node could renew its Lease, so all would be taken for dead, and their Pods evicted"},
	{User: "system:apiserver", Breaks: "an API server could not write what it needs itself, such as the FlowSchemas of a new version, without which it does not start, " +
		"the EndpointSlice of the Service kubernetes, and the IPAddress of each new Service"},
	{Group: corev1.GroupName, Resources: []string{"nodes"}, Breaks: "no node could register, or become ready"},
	{Group: "certificates.k8s.io", Resources: []string{"certificatesigningrequests"}, Breaks: "no kubelet could get its first certificate, or renew it"},
	{Group: "storage.k8s.io", Resources: []string{"csinodes", "volumeattachments"}, Breaks: "no kubelet could register a CSI driver, and no volume could be attached to a node"},
	{Group: "authentication.k8s.io", Resources: []string{"tokenreviews", "selfsubjectreviews"}, Breaks: "kubelets and aggregated API servers could not find out who sends a request"},
	{
		Group: "authorization.k8s.io", Resources: []string{"subjectaccessreviews", "localsubjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"},
		Breaks: "kubelets and aggregated API servers could not find out what a user may do",
	},
	{Group: "crd.projectcalico.org", Resources: []string{"blockaffinities", "ipamblocks", "ipamhandles"}, Breaks: "Calico could give no Pod an address"},
	{Group: "cilium.io", Resources: []string{"ciliumidentities", "ciliumnodes"}, Breaks: "Cilium could not start on a node, or let a Pod start with new labels"},
}

// Namespaces returns the namespaces that are left out, given the manager's own.
func Namespaces(own string) []string {
	var names []string
	for _, g := range Guards {
		switch g.Namespace {
		case "":
		case Own:
			names = append(names, own)
		default:
			names = append(names, g.Namespace)
		}
	}
	return names
}

// ConditionName is the name of the match condition by which users and resources are left
// out.
const ConditionName = "admitkit.dev/cluster-can-start"

// Condition returns the match condition of a webhook with these rules, or false if it
// leaves nothing out: the rules name all that they match.
func Condition(rules []admissionregistrationv1.RuleWithOperations) (admissionregistrationv1.MatchCondition, bool) {
	if !slices.ContainsFunc(rules, anyResource) {
		return admissionregistrationv1.MatchCondition{}, false
	}
	terms := []string{"request.operation == 'CONNECT'"}
	var users, resources []string
	for _, g := range Guards {
		if g.User != "" {
			users = append(users, fmt.Sprintf("request.userInfo.username != '%s'", g.User))
		}
		for _, resource := range g.Resources {
			if leftOut(rules, schema.GroupResource{Group: g.Group, Resource: resource}) {
				resources = append(resources, fmt.Sprintf("'%s/%s'", g.Group, resource))
			}
		}
	}
	if len(resources) > 0 {
		users = append(users, "!((request.resource.group + '/' + request.resource.resource) in ["+strings.Join(resources, ", ")+"])")
	}
	return admissionregistrationv1.MatchCondition{Name: ConditionName, Expression: strings.Join(append(terms, strings.Join(users, " && ")), " || ")}, true
}

// Of returns the guard by which the condition of a webhook with these rules is false for a
// request, or nil.
func Of(rules []admissionregistrationv1.RuleWithOperations, operation admissionregistrationv1.OperationType, user string, resource schema.GroupResource) *Guard {
	if operation == admissionregistrationv1.Connect || !slices.ContainsFunc(rules, anyResource) {
		return nil
	}
	for i := range Guards {
		g := &Guards[i]
		if g.User != "" && g.User == user || g.Group == resource.Group && slices.Contains(g.Resources, resource.Resource) && leftOut(rules, resource) {
			return g
		}
	}
	return nil
}

// leftOut reports whether rules match a resource, but none names it.
func leftOut(rules []admissionregistrationv1.RuleWithOperations, resource schema.GroupResource) bool {
	matched := false
	for _, rule := range rules {
		if !slices.Contains(rule.APIGroups, "*") && !slices.Contains(rule.APIGroups, resource.Group) {
			continue
		}
		matched = matched || anyResource(rule)
		if slices.ContainsFunc(rule.Resources, func(pattern string) bool { return nameOf(pattern) == resource.Resource }) {
			return false
		}
	}
	return matched
}

// anyResource reports whether a rule has a wildcard for the resource, of operations that
// are left out.
func anyResource(rule admissionregistrationv1.RuleWithOperations) bool {
	onlyConnect := !slices.ContainsFunc(rule.Operations, func(o admissionregistrationv1.OperationType) bool { return o != admissionregistrationv1.Connect })
	return !onlyConnect && slices.ContainsFunc(rule.Resources, func(pattern string) bool { return nameOf(pattern) == "*" })
}

// nameOf returns the resource of a rule's pattern, without the subresource.
func nameOf(pattern string) string {
	name, _, _ := strings.Cut(pattern, "/")
	return name
}
