package main

import (
	"cmp"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func ofRequest(f func(request) string) func(client.Object) string {
	return func(object client.Object) string { return f(object.(request)) }
}

var requestColumns = []column{
	{name: "NAMESPACE", of: client.Object.GetNamespace},
	{name: "NAME", of: client.Object.GetName},
	{name: "KIND", of: func(o client.Object) string { return kindOf(o).name }},
	{name: "TEMPLATE", of: ofRequest(func(r request) string { return r.GetRequestSpec().TemplateName })},
	{name: "POD", of: ofRequest(func(r request) string { return cmp.Or(roleOf(r), r.GetRequestStatus().PodName) })},
	{name: "REQUESTER", of: ofRequest(requester)},
	{name: "STATUS", of: ofRequest(standing)},
	{name: "LEFT", of: ofRequest(left)},
	{name: "EXPIRES", wide: true, of: ofRequest(func(r request) string { return moment(r.GetRequestStatus().ExpiresAt) })},
	{name: "DURATION", wide: true, of: ofRequest(func(r request) string { return r.GetRequestSpec().Duration })},
	{name: "REASON", wide: true, of: ofRequest(func(r request) string { return r.GetRequestSpec().Reason })},
	{name: "AGE", wide: true, of: age},
}

func ofTemplate(f func(v1alpha1.Template) string) func(client.Object) string {
	return func(object client.Object) string { return f(object.(v1alpha1.Template)) }
}

func ofConfig(f func(*v1alpha1.AccessConfig) string) func(client.Object) string {
	return ofTemplate(func(t v1alpha1.Template) string { return f(t.GetAccessConfig()) })
}

var templateColumns = []column{
	{name: "NAMESPACE", of: client.Object.GetNamespace},
	{name: "NAME", of: client.Object.GetName},
	{name: "KIND", of: func(o client.Object) string { return kindOf(o).name }},
	{name: "TARGET", of: ofTemplate(func(t v1alpha1.Template) string {
		if target := t.GetTargetRef(); target != nil {
			return target.String()
		}
		return ""
	})},
	{name: "GROUPS", of: ofConfig(func(c *v1alpha1.AccessConfig) string { return strings.Join(c.AllowedGroups, ",") })},
	{name: "DEFAULT", of: ofConfig(func(c *v1alpha1.AccessConfig) string { return c.DefaultDuration })},
	{name: "MAX", of: ofConfig(func(c *v1alpha1.AccessConfig) string { return c.MaxDuration })},
	{name: "NEEDS", of: ofConfig(needs)},
	{name: "USERS", wide: true, of: ofConfig(func(c *v1alpha1.AccessConfig) string { return strings.Join(c.AllowedUsers, ",") })},
	{name: "VERBS", wide: true, of: ofTemplate(func(t v1alpha1.Template) string {
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
	{name: "ON EXPIRY", wide: true, of: ofTemplate(func(t v1alpha1.Template) string {
		if _, exec := t.(*v1alpha1.ExecAccessTemplate); exec {
			return string(cmp.Or(t.GetAccessConfig().OnExpiry, v1alpha1.ExpiryKeep))
		}
		return "" // the Pod of a PodAccessTemplate goes, and a role has none
	})},
	{name: "SESSIONS", wide: true, of: ofConfig(limits)},
	{name: "REASON", wide: true, of: ofConfig(func(c *v1alpha1.AccessConfig) string {
		if c.RequireReason {
			return "required"
		}
		return "optional"
	})},
	{name: "AGE", wide: true, of: age},
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
