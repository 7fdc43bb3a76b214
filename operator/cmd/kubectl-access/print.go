package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// table prints objects as a table of kubectl. The next call adds rows to the same
// table.
func (c *cli) table(columnsOf func(client.Object) []column) printer {
	out := printers.GetNewTabWriter(c.Out)
	begun := false
	return func(objects ...client.Object) error {
		if len(objects) == 0 {
			return nil
		}
		columns := columnsOf(objects[0])
		row := func(cell func(column) string) {
			cells := make([]string, len(columns))
			for i, col := range columns {
				// Names and reasons are text of other users, which must not control the
				// terminal.
				cells[i] = escapeLine(cell(col))
			}
			_, _ = fmt.Fprintln(out, strings.Join(cells, "\t")) // Flush returns the error
		}
		if !begun {
			row(func(col column) string { return col.name })
			begun = true
		}
		for _, object := range objects {
			row(func(col column) string { return cmp.Or(col.of(object), "<none>") })
		}
		return out.Flush()
	}
}

type column struct {
	name string
	wide bool
	of   func(client.Object) string
}

// columnsOf returns the columns for a kind of object.
func columnsOf(object client.Object, wide, everywhere bool) []column {
	all := templateColumns
	switch object.(type) {
	case request:
		all = requestColumns
	case *v1alpha1.AuditEvent:
		all = auditColumns
	case *v1alpha1.SandboxRun:
		all = runColumns
	case *unstructured.Unstructured:
		all = sessionColumns
	}
	var columns []column
	for _, col := range all {
		if (!col.wide || wide) && (col.name != "NAMESPACE" || everywhere) {
			columns = append(columns, col)
		}
	}
	return columns
}

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

// escape keeps text of other users from controlling the terminal. printers.EscapeTerminal
// alone leaves the control characters of C1, such as U+009B, which begins a sequence too.
func escape(text string) string {
	var escaped strings.Builder
	for _, r := range printers.EscapeTerminal(text) {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			escaped.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			escaped.WriteRune(r)
		}
	}
	return escaped.String()
}

// escapeLine also keeps the text in its line, and in its column.
func escapeLine(text string) string {
	return escape(strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(text))
}

func moment(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return t.Local().Format(time.RFC3339)
}

func age(object client.Object) string {
	return duration.HumanDuration(time.Since(object.GetCreationTimestamp().Time))
}

// lines prints names and values in two columns, and omits empty values. A value stays in
// its line: a reason must not look like something else that is told.
func lines(out io.Writer, pairs ...string) error {
	w := printers.GetNewTabWriter(out)
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			_, _ = fmt.Fprintf(w, "%s:\t%s\n", pair[0], escapeLine(pair[1])) // Flush returns the error
		}
	}
	return w.Flush()
}
