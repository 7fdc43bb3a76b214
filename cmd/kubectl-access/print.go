package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

var formats = []string{"table", "wide", "json", "yaml", "name"}

func (c *cli) addOutputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", strings.Join(formats, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// printer prints objects of one kind to standard output.
type printer func(objects ...client.Object) error

// listPrinter is the printer of a command that lists: JSON and YAML are always a
// List, so that scripts need not distinguish one object from several.
func (c *cli) listPrinter(format string, everywhere bool) (printer, error) {
	switch format {
	case "json":
		return c.asList(&printers.JSONPrinter{}), nil
	case "yaml":
		return c.asList(&printers.YAMLPrinter{}), nil
	}
	return c.printer(format, everywhere)
}

// printer returns the printer of a format, by default table. A table of all
// namespaces has a column for the namespace.
func (c *cli) printer(format string, everywhere bool) (printer, error) {
	switch format {
	case "", "table", "wide":
		return c.table(format == "wide", everywhere), nil
	case "json":
		return c.whole(&printers.JSONPrinter{}), nil
	case "yaml":
		return c.whole(&printers.YAMLPrinter{}), nil
	case "name":
		return func(objects ...client.Object) error {
			for _, object := range objects {
				gvk, err := apiutil.GVKForObject(object, scheme)
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintf(c.Out, "%s.%s/%s\n", strings.ToLower(gvk.Kind), gvk.Group, object.GetName()); err != nil {
					return err
				}
			}
			return nil
		}, nil
	}
	return nil, exitf(codeUsage, "--output %q: must be one of %s", format, strings.Join(formats, ", "))
}

// whole prints complete objects, one after the other.
func (c *cli) whole(p printers.ResourcePrinter) printer {
	return func(objects ...client.Object) error {
		for _, object := range objects {
			if err := complete(object); err != nil {
				return err
			}
			if err := p.PrintObj(object, c.Out); err != nil {
				return err
			}
		}
		return nil
	}
}

// asList prints objects as a List.
func (c *cli) asList(p printers.ResourcePrinter) printer {
	return func(objects ...client.Object) error {
		list := &metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: []runtime.RawExtension{}}
		for _, object := range objects {
			if err := complete(object); err != nil {
				return err
			}
			list.Items = append(list.Items, runtime.RawExtension{Object: object})
		}
		return p.PrintObj(list, c.Out)
	}
}

// complete adds kind and version to an object and removes managedFields, as kubectl does.
func complete(object client.Object) error {
	gvk, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return err
	}
	object.GetObjectKind().SetGroupVersionKind(gvk)
	object.SetManagedFields(nil)
	return nil
}

// table prints objects as a table of kubectl. The next call adds rows to the same
// table.
func (c *cli) table(wide, everywhere bool) printer {
	out := printers.GetNewTabWriter(c.Out)
	begun := false
	return func(objects ...client.Object) error {
		if len(objects) == 0 {
			return nil
		}
		columns := columnsOf(objects[0])
		row := func(cell func(column) string) {
			var cells []string
			for _, col := range columns {
				if (!col.wide || wide) && (col.name != "NAMESPACE" || everywhere) {
					// Names and reasons are text of other users, which must not control
					// the terminal.
					cells = append(cells, printers.EscapeTerminal(cell(col)))
				}
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

func columnsOf(object client.Object) []column {
	switch object.(type) {
	case request:
		return requestColumns
	case *v1alpha1.AuditEvent:
		return auditColumns
	}
	return templateColumns
}

func ofRequest(f func(request) string) func(client.Object) string {
	return func(object client.Object) string { return f(object.(request)) }
}

var requestColumns = []column{
	{name: "NAMESPACE", of: client.Object.GetNamespace},
	{name: "NAME", of: client.Object.GetName},
	{name: "KIND", of: ofRequest(func(r request) string { return kindOf(r).name })},
	{name: "TEMPLATE", of: ofRequest(func(r request) string { return r.GetRequestSpec().TemplateName })},
	{name: "POD", of: ofRequest(func(r request) string { return r.GetRequestStatus().PodName })},
	{name: "REQUESTER", of: ofRequest(requester)},
	{name: "READY", of: ofRequest(func(r request) string { return fmt.Sprint(r.GetRequestStatus().Ready) })},
	{name: "LEFT", of: ofRequest(left)},
	{name: "EXPIRES", wide: true, of: ofRequest(func(r request) string { return moment(r.GetRequestStatus().ExpiresAt) })},
	{name: "DURATION", wide: true, of: ofRequest(func(r request) string { return r.GetRequestSpec().Duration })},
	{name: "REASON", wide: true, of: ofRequest(func(r request) string { return r.GetRequestSpec().Reason })},
	{name: "AGE", wide: true, of: age},
}

var templateColumns = []column{
	{name: "NAMESPACE", of: client.Object.GetNamespace},
	{name: "NAME", of: client.Object.GetName},
	{name: "KIND", of: func(o client.Object) string { k, _, _ := template(o); return k }},
	{name: "TARGET", of: func(o client.Object) string { _, _, target := template(o); return target }},
	{name: "GROUPS", of: func(o client.Object) string {
		_, config, _ := template(o)
		return strings.Join(config.AllowedGroups, ",")
	}},
	{name: "DEFAULT", of: func(o client.Object) string { _, config, _ := template(o); return config.DefaultDuration }},
	{name: "MAX", of: func(o client.Object) string { _, config, _ := template(o); return config.MaxDuration }},
	{name: "USERS", wide: true, of: func(o client.Object) string {
		_, config, _ := template(o)
		return strings.Join(config.AllowedUsers, ",")
	}},
	{name: "VERBS", wide: true, of: func(o client.Object) string {
		_, config, _ := template(o)
		verbs := make([]string, len(config.Verbs))
		for i, verb := range config.Verbs {
			verbs[i] = string(verb)
		}
		return strings.Join(verbs, ",")
	}},
	{name: "REASON", wide: true, of: func(o client.Object) string {
		if _, config, _ := template(o); config.RequireReason {
			return "required"
		}
		return "optional"
	}},
	{name: "AGE", wide: true, of: age},
}

// template returns what the two kinds of template share: the command that
// requests access, the config and the target.
func template(object client.Object) (command string, config *v1alpha1.AccessConfig, target string) {
	switch t := object.(type) {
	case *v1alpha1.PodAccessTemplate:
		if t.Spec.ControllerTargetRef != nil {
			target = t.Spec.ControllerTargetRef.String()
		}
		return podRequests.name, &t.Spec.AccessConfig, target
	case *v1alpha1.ExecAccessTemplate:
		return execRequests.name, &t.Spec.AccessConfig, t.Spec.ControllerTargetRef.String()
	}
	return "", &v1alpha1.AccessConfig{}, ""
}

func requester(req request) string {
	if by := req.GetRequestSpec().Requester; by != nil {
		return by.Username
	}
	return ""
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

// lines prints names and values in two columns, and omits empty values.
func lines(out io.Writer, pairs ...string) error {
	w := printers.GetNewTabWriter(out)
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			_, _ = fmt.Fprintf(w, "%s:\t%s\n", pair[0], printers.EscapeTerminal(pair[1])) // Flush returns the error
		}
	}
	return w.Flush()
}
