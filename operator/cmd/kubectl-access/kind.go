package main

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// request is any kind of request.
type request = v1alpha1.Request

// kind has the differences between the kinds of request.
type kind struct {
	name        string // of the command
	resource    string
	request     string // the request's kind
	template    string // the template's kind
	short, long string
	example     string
	newRequest  func() request
	newList     func() client.ObjectList
	newTemplate func() v1alpha1.Template
	templates   func() client.ObjectList
}

var (
	execRequests = &kind{
		name: "exec", resource: "execaccessrequests", request: "ExecAccessRequest", template: "ExecAccessTemplate",
		short: "Ask for access to a Pod that runs",
		long: `Ask for access to a Pod that runs, wait until it is there, and print the command
that uses it, or with --shell run that command.

TEMPLATE is the name of a template, or a workload such as deployment/web, which
stands for the one template that fits it. Without it, those that you may use are
listed.`,
		example: `  # Access to a Pod of the template's workload, for as long as the template says
  kubectl access exec web

  # The same by the workload, if one template fits; if several do, it lists them
  kubectl access exec deployment/web

  # Half an hour in a certain Pod, with a shell at once
  kubectl access exec web --pod web-7c9d8f6b5d-x2x4q --duration 30m --reason "orders are stuck" --shell`,
		newRequest:  func() request { return &v1alpha1.ExecAccessRequest{} },
		newList:     func() client.ObjectList { return &v1alpha1.ExecAccessRequestList{} },
		newTemplate: func() v1alpha1.Template { return &v1alpha1.ExecAccessTemplate{} },
		templates:   func() client.ObjectList { return &v1alpha1.ExecAccessTemplateList{} },
	}
	podRequests = &kind{
		name: "pod", resource: "podaccessrequests", request: "PodAccessRequest", template: "PodAccessTemplate",
		short: "Ask for a Pod of your own",
		long: `Ask for a Pod of your own, made after the template's workload, wait until it is
ready, and print the command that uses it, or with --shell run that command. The
Pod is deleted when access ends.

TEMPLATE is the name of a template, or a workload such as deployment/web, which
stands for the one template that fits it. Without it, those that you may use are
listed.`,
		example: `  # A Pod of one's own, and a shell in it
  kubectl access pod debug --shell

  # For scripts: the name of the request, once it is ready
  kubectl access pod debug --duration 10m -o name`,
		newRequest:  func() request { return &v1alpha1.PodAccessRequest{} },
		newList:     func() client.ObjectList { return &v1alpha1.PodAccessRequestList{} },
		newTemplate: func() v1alpha1.Template { return &v1alpha1.PodAccessTemplate{} },
		templates:   func() client.ObjectList { return &v1alpha1.PodAccessTemplateList{} },
	}
	roleRequests = &kind{
		name: "role", resource: "roleaccessrequests", request: "RoleAccessRequest", template: "RoleAccessTemplate",
		short: "Ask for a role for a while",
		long: `Ask for a role in the namespace, wait until you have it, and print what you have
and until when. Watches that you open with it may go on for some minutes after its
end, until the API server ends them.

TEMPLATE is the name of a template, or a role such as clusterrole/view, which stands
for the one template that gives it. Without it, those that you may use are listed.`,
		example: `  # The role that the template gives, for as long as it says
  kubectl access role deployer --reason "roll back 1.4"

  # Ten minutes of it, for another, by a bot that may ask for others
  kubectl access role deployer --duration 10m --for alice`,
		newRequest:  func() request { return &v1alpha1.RoleAccessRequest{} },
		newList:     func() client.ObjectList { return &v1alpha1.RoleAccessRequestList{} },
		newTemplate: func() v1alpha1.Template { return &v1alpha1.RoleAccessTemplate{} },
		templates:   func() client.ObjectList { return &v1alpha1.RoleAccessTemplateList{} },
	}
	kinds = []*kind{execRequests, podRequests, roleRequests}
)

// kindOf returns the kind of a request, or of the requests that a template is for.
func kindOf(object client.Object) *kind {
	switch object.(type) {
	case *v1alpha1.PodAccessRequest, *v1alpha1.PodAccessTemplate:
		return podRequests
	case *v1alpha1.RoleAccessRequest, *v1alpha1.RoleAccessTemplate:
		return roleRequests
	}
	return execRequests
}

// named returns a request's name as kubectl and this command write it.
func named(req request) string { return kindOf(req).resource + "/" + req.GetName() }

// find returns the request with a name such as web-x7k2p, exec/web-x7k2p or
// execaccessrequests/web-x7k2p.
func find(ctx context.Context, cl client.Client, namespace, name string) (request, error) {
	prefix, rest, qualified := strings.Cut(name, "/")
	if qualified {
		name = rest
	}
	var found []request
	matched := false
	for _, k := range kinds {
		if qualified && !k.called(prefix) {
			continue
		}
		matched = true
		req := k.newRequest()
		err := cl.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, req)
		if apierrors.IsNotFound(err) || !qualified && k.mayLack(err) {
			continue
		}
		if err != nil {
			return nil, cli.Explained(err)
		}
		found = append(found, req)
	}
	switch {
	case !matched:
		return nil, cli.Exitf(cli.CodeUsage, "%q: must be NAME, exec/NAME, pod/NAME or role/NAME", prefix+"/"+name)
	case len(found) == 0:
		return nil, cli.Exitf(cli.CodeNotFound, "there is no request %q in namespace %s; 'kubectl access list' shows those that are", name, namespace)
	case len(found) > 1:
		var those []string
		for _, req := range found {
			those = append(those, kindOf(req).name+"/"+name)
		}
		return nil, cli.Exitf(cli.CodeUsage, "there are several requests %q in namespace %s: use %s", name, namespace, strings.Join(those, " or "))
	}
	return found[0], nil
}

// mayLack reports whether an error says no more than that the cluster, or what an engineer
// may do in it, is older than requests for roles.
func (k *kind) mayLack(err error) bool {
	return k == roleRequests && (meta.IsNoMatchError(err) || apierrors.IsForbidden(err))
}

// called reports whether a word names the kind.
func (k *kind) called(word string) bool {
	word = strings.ToLower(word)
	resource, _, _ := strings.Cut(word, ".") // as -o name prints it, with the group
	return word == k.name || resource == k.resource || resource+"s" == k.resource
}
