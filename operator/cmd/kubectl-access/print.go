package main

import (
	"cmp"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

func ofRequest(f func(request) string) func(client.Object) string {
	return func(object client.Object) string { return f(object.(request)) }
}

var requestColumns = []cli.Column{
	{Name: "NAMESPACE", Of: client.Object.GetNamespace},
	{Name: "NAME", Of: client.Object.GetName},
	{Name: "KIND", Of: func(o client.Object) string { return kindOf(o).name }},
	{Name: "TEMPLATE", Of: ofRequest(func(r request) string { return r.GetRequestSpec().TemplateName })},
	{Name: "POD", Of: ofRequest(func(r request) string { return cmp.Or(roleOf(r), r.GetRequestStatus().PodName) })},
	{Name: "REQUESTER", Of: ofRequest(requester)},
	{Name: "STATUS", Of: ofRequest(standing)},
	{Name: "LEFT", Of: ofRequest(left)},
	{Name: "EXPIRES", Wide: true, Of: ofRequest(func(r request) string { return cli.Moment(r.GetRequestStatus().ExpiresAt) })},
	{Name: "DURATION", Wide: true, Of: ofRequest(func(r request) string { return r.GetRequestSpec().Duration })},
	{Name: "REASON", Wide: true, Of: ofRequest(func(r request) string { return r.GetRequestSpec().Reason })},
	{Name: "AGE", Wide: true, Of: cli.Age},
}

func ofTemplate(f func(v1alpha1.Template) string) func(client.Object) string {
	return func(object client.Object) string { return f(object.(v1alpha1.Template)) }
}

func ofConfig(f func(*v1alpha1.AccessConfig) string) func(client.Object) string {
	return ofTemplate(func(t v1alpha1.Template) string { return f(t.GetAccessConfig()) })
}

var templateColumns = []cli.Column{
	{Name: "NAMESPACE", Of: client.Object.GetNamespace},
	{Name: "NAME", Of: client.Object.GetName},
	{Name: "KIND", Of: func(o client.Object) string { return kindOf(o).name }},
	{Name: "TARGET", Of: ofTemplate(func(t v1alpha1.Template) string {
		if target := t.GetTargetRef(); target != nil {
			return target.String()
		}
		return ""
	})},
	{Name: "GROUPS", Of: ofConfig(func(c *v1alpha1.AccessConfig) string { return strings.Join(c.AllowedGroups, ",") })},
	{Name: "DEFAULT", Of: ofConfig(func(c *v1alpha1.AccessConfig) string { return c.DefaultDuration })},
	{Name: "MAX", Of: ofConfig(func(c *v1alpha1.AccessConfig) string { return c.MaxDuration })},
	{Name: "NEEDS", Of: ofConfig(needs)},
	{Name: "USERS", Wide: true, Of: ofConfig(func(c *v1alpha1.AccessConfig) string { return strings.Join(c.AllowedUsers, ",") })},
	{Name: "VERBS", Wide: true, Of: ofTemplate(func(t v1alpha1.Template) string {
		if _, role := t.(*v1alpha1.RoleAccessTemplate); role {
			return "" // those of the role; the ones in accessConfig are about Pods
		}
		if len(t.GetAccessConfig().Verbs) == 0 {
			return "exec,log"
		}
		var verbs []string
		for _, verb := range t.GetAccessConfig().Verbs {
			verbs = append(verbs, string(verb))
		}
		return strings.Join(verbs, ",")
	})},
	{Name: "ON EXPIRY", Wide: true, Of: ofTemplate(func(t v1alpha1.Template) string {
		if _, exec := t.(*v1alpha1.ExecAccessTemplate); exec {
			return string(cmp.Or(t.GetAccessConfig().OnExpiry, v1alpha1.ExpiryKeep))
		}
		return "" // the Pod of a PodAccessTemplate goes, and a role has none
	})},
	{Name: "SESSIONS", Wide: true, Of: ofConfig(limits)},
	{Name: "REASON", Wide: true, Of: ofConfig(func(c *v1alpha1.AccessConfig) string {
		if c.RequireReason {
			return "required"
		}
		return "optional"
	})},
	{Name: "AGE", Wide: true, Of: cli.Age},
}

// needs says what a request must get before it is granted.
func needs(c *v1alpha1.AccessConfig) string {
	var all []string
	switch a := c.Approval; {
	case a == nil || a.Required == 0:
	case a.Required == 1:
		all = append(all, "1 approval")
	default:
		all = append(all, fmt.Sprintf("%d approvals", a.Required))
	}
	if c.Check != "" {
		all = append(all, "check "+c.Check)
	}
	return strings.Join(all, ", ")
}

// limits says when a recorded session ends before access does.
func limits(c *v1alpha1.AccessConfig) string {
	if c.Session == nil {
		return ""
	}
	var all []string
	if c.Session.IdleTimeout != "" {
		all = append(all, "idle "+c.Session.IdleTimeout)
	}
	if c.Session.MaxLength != "" {
		all = append(all, "max "+c.Session.MaxLength)
	}
	return strings.Join(all, ", ")
}

func requester(req request) string {
	spec := req.GetRequestSpec()
	switch {
	case spec.Requester == nil:
		return ""
	case spec.OnBehalfOf != "":
		return spec.Requester.Username + " for " + spec.OnBehalfOf
	}
	return spec.Requester.Username
}
