package cli

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Output is how a command prints its result: as a table, or in one of kubectl's
// formats.
type Output struct {
	*Base
	*genericclioptions.PrintFlags
	columns []Column
}

const customColumns = "custom-columns"

// AddOutputFlags adds the flags for the format. A table has these columns.
func (c *Base) AddOutputFlags(cmd *cobra.Command, columns []Column) *Output {
	o := &Output{Base: c, columns: columns, PrintFlags: genericclioptions.NewPrintFlags("").WithTypeSetter(Scheme)}
	o.PrintFlags.AddFlags(cmd)
	cmd.Flags().Lookup("output").Usage = strings.Join(o.formats(), ", ")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(o.formats(), cobra.ShellCompDirectiveNoFileComp))
	return o
}

func (o *Output) formats() []string {
	return append(append([]string{"table", "wide"}, o.AllowedFormats()...), customColumns)
}

// Asked reports whether the command line says how to print.
func (o *Output) Asked() bool {
	return *o.OutputFormat != "" || *o.TemplatePrinterFlags.TemplateArgument != ""
}

// Printer prints objects of one kind to standard output.
type Printer func(objects ...client.Object) error

// ListPrinter is the printer of a command that lists: what is no table gets a List,
// so that scripts need not distinguish one object from several.
func (o *Output) ListPrinter(everywhere bool) (Printer, error) {
	p, err := o.resourcePrinter()
	switch {
	case err != nil:
		return nil, err
	case p == nil, *o.OutputFormat == "name":
		return o.Printer(everywhere)
	}
	return func(objects ...client.Object) error {
		list := &metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: []runtime.RawExtension{}}
		for _, object := range objects {
			if err := complete(object); err != nil {
				return err
			}
			list.Items = append(list.Items, runtime.RawExtension{Object: object})
		}
		return p.PrintObj(list, o.Out)
	}, nil
}

// Printer prints objects one by one, by default as a table. A table of all namespaces
// has a column for the namespace.
func (o *Output) Printer(everywhere bool) (Printer, error) {
	if isCustom(*o.OutputFormat) {
		columns, err := parseColumns(strings.TrimPrefix(*o.OutputFormat, customColumns+"="))
		return o.Table(columns), err
	}
	p, err := o.resourcePrinter()
	if p == nil || err != nil {
		return o.Table(Visible(o.columns, *o.OutputFormat == "wide", everywhere)), err
	}
	return func(objects ...client.Object) error {
		for _, object := range objects {
			if err := complete(object); err != nil {
				return err
			}
			if err := p.PrintObj(object, o.Out); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// resourcePrinter returns kubectl's printer of a format, or nil for a table.
func (o *Output) resourcePrinter() (printers.ResourcePrinter, error) {
	switch format := *o.OutputFormat; {
	case !o.Asked(), format == "table", format == "wide", isCustom(format):
		return nil, nil
	}
	p, err := o.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		return nil, Exitf(CodeUsage, "--output %q: must be one of %s", *o.OutputFormat, strings.Join(o.formats(), ", "))
	}
	if err != nil {
		return nil, Exitf(CodeUsage, "--output: %w", err)
	}
	return p, nil
}

func isCustom(format string) bool {
	return format == customColumns || strings.HasPrefix(format, customColumns+"=")
}

// complete adds kind and version to an object.
func complete(object client.Object) error {
	gvk, err := apiutil.GVKForObject(object, Scheme)
	if err == nil {
		object.GetObjectKind().SetGroupVersionKind(gvk)
	}
	return err
}

// parseColumns parses columns as kubectl writes them, such as
// NAME:.metadata.name,POD:.status.podName. kubectl's own parser is in no library that
// is made for others.
func parseColumns(spec string) ([]Column, error) {
	var columns []Column
	for part := range strings.SplitSeq(spec, ",") {
		name, path, found := strings.Cut(part, ":")
		path = strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(path, "{"), "}"), ".")
		if !found || name == "" || path == "" {
			return nil, Exitf(CodeUsage, "--output %s: %q must be NAME:.path, such as POD:.status.podName", customColumns, part)
		}
		parsed := jsonpath.New(name).AllowMissingKeys(true)
		if err := parsed.Parse("{." + path + "}"); err != nil {
			return nil, Exitf(CodeUsage, "--output %s: %q: %w", customColumns, part, err)
		}
		columns = append(columns, Column{Name: name, Of: func(object client.Object) string { return values(parsed, object) }})
	}
	return columns, nil
}

// values returns what a path finds in an object.
func values(path *jsonpath.JSONPath, object client.Object) string {
	if err := complete(object); err != nil {
		return ""
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return ""
	}
	results, err := path.FindResults(fields)
	if err != nil {
		return ""
	}
	var found []string
	for _, result := range results {
		for _, value := range result {
			if value.Kind() != reflect.Interface || !value.IsNil() {
				found = append(found, fmt.Sprint(value.Interface()))
			}
		}
	}
	return strings.Join(found, ",")
}
