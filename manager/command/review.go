package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/manager"
)

// review runs the extensions on manifests without a cluster.
type review struct {
	flags *flags
	build Build

	files, old      []string
	recursive       bool
	output          string
	operation       string
	user            string
	groups          []string
	namespaceLabels map[string]string
	conditions      map[string]string
	dryRun          bool
}

// defaultNamespace is the namespace of objects that name none, nowhere that of a
// manager outside of any cluster.
const (
	defaultNamespace = "default"
	nowhere          = "review-system"
)

func newReview(name string, f *flags, build Build) *cobra.Command {
	r := &review{flags: f, build: build}
	cmd := &cobra.Command{
		Use:   "review -f FILE",
		Short: "Run the extensions on manifests, without a cluster",
		Long: `Run the extensions on manifests as an API server would call them, without a cluster,
and print what each of them changes, warns of and denies. With -o yaml or json, print
the objects as they would be stored, and everything else to standard error.

A manifest of kind PodExecOptions, PodAttachOptions, PodPortForwardOptions or
PodProxyOptions stands for a connection to the Pod of its metadata.name.

Where it depends on the cluster whether an API server calls an extension, review says so
and exits with 2: give the labels of the namespace by --namespace-labels or as a Namespace
among the manifests, the results of match conditions by --match-conditions, and the
CustomResourceDefinition of a custom kind among the manifests.

No defaults of an API server and no other admission plugins apply here. An extension that
reads or writes something in the cluster fails.

Exit codes: 0 everything is admitted; 1 something is denied, or an extension with failure
policy Fail failed; 2 a flag or manifest is wrong or missing.`,
		Example: strings.ReplaceAll(`  NAME review -f pod.yaml
  kubectl get deployment web -o yaml | NAME review -f - --operation UPDATE --user alice --groups developers
  NAME review -f manifests/ -R -o yaml`, "NAME", name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd) },
	}
	set := cmd.Flags()
	set.StringSliceVarP(&r.files, "filename", "f", nil, "manifests: a file, a folder, or - for standard input; YAML or JSON, any number of documents (required)")
	set.BoolVarP(&r.recursive, "recursive", "R", false, "read subfolders too")
	set.StringSliceVar(&r.old, "old", nil, "UPDATE: manifests of the old objects (default: the same as the new ones)")
	set.StringVarP(&r.output, "output", "o", "diff", "diff, yaml or json")
	set.StringVar(&r.operation, "operation", string(admissionv1.Create), "CREATE, UPDATE or DELETE")
	set.StringVar(&r.user, "user", "", "user who makes the request (default: admin, in the group system:masters)")
	set.StringSliceVar(&r.groups, "groups", nil, "groups of the user, in addition to system:authenticated")
	set.StringToStringVar(&r.namespaceLabels, "namespace-labels", nil, "labels of the namespace, for scopes that select by them (default: those of the Namespace among the manifests)")
	set.StringToStringVar(&r.conditions, "match-conditions", nil, "what match conditions evaluate to: NAME=true or NAME=false; they are not evaluated")
	set.BoolVar(&r.dryRun, "dry-run", false, "make the request a dry run")
	return cmd
}

func (r *review) run(cmd *cobra.Command) error {
	requests, err := r.requests(cmd)
	if err != nil {
		return wrong(err)
	}
	engine, err := r.engine(cmd)
	if err != nil {
		return err
	}
	denied, printed := 0, 0
	var undecided []error
	for _, req := range requests {
		out, err := engine.Admit(cmd.Context(), req)
		var unknown *offline.Unknown
		switch {
		case errors.As(err, &unknown):
			undecided = append(undecided, fmt.Errorf("%s: %w: %s", nameOf(req), err, remedies[unknown.Fact]))
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", nameOf(req), err)
		case !out.Allowed:
			denied++
		}
		if err := r.print(cmd, printed, req, out); err != nil {
			return err
		}
		printed++
	}
	if len(undecided) > 0 {
		return wrong(errors.Join(undecided...))
	}
	if denied > 0 {
		return fmt.Errorf("%d of %d denied", denied, len(requests))
	}
	return nil
}

// remedies say how the user gives what the engine does not know.
var remedies = map[offline.Fact]string{
	offline.TheKind:       "add its CustomResourceDefinition to --filename",
	offline.TheVersion:    "give the manifest in a version that the rules name",
	offline.TheNamespace:  "set --namespace-labels, or add the Namespace to --filename",
	offline.TheConditions: "set --match-conditions",
}

// requests reads the manifests.
func (r *review) requests(cmd *cobra.Command) ([]*offline.Request, error) {
	if err := readEnvironment(cmd.Flags()); err != nil {
		return nil, err
	}
	operation := admissionv1.Operation(strings.ToUpper(r.operation))
	switch {
	case len(r.files) == 0:
		return nil, errors.New("--filename: required: a file, a folder, or - for standard input")
	case r.output != "diff" && r.output != "yaml" && r.output != "json":
		return nil, fmt.Errorf("--output: %q: must be diff, yaml or json", r.output)
	case len(r.old) > 0 && operation != admissionv1.Update:
		return nil, fmt.Errorf("--old: only an UPDATE has old objects, not a %s; set --operation UPDATE", operation)
	case len(r.groups) > 0 && r.user == "":
		return nil, errors.New("--groups: set --user too")
	}
	objects, err := readManifests(cmd.InOrStdin(), r.files, r.recursive)
	if err != nil {
		return nil, err
	}
	old, err := readManifests(cmd.InOrStdin(), r.old, r.recursive)
	if err != nil {
		return nil, fmt.Errorf("--old: %w", err)
	}
	user := authenticationv1.UserInfo{Username: r.user, Groups: append(r.groups, "system:authenticated")}
	if r.user == "" {
		user = authenticationv1.UserInfo{Username: "admin", Groups: []string{"system:masters", "system:authenticated"}}
	}
	conditions, err := r.results()
	if err != nil {
		return nil, err
	}
	kinds, err := objects.kinds()
	if err != nil {
		return nil, err
	}
	requests := make([]*offline.Request, len(objects))
	for i, object := range objects {
		req, err := kinds.NewRequest(operation, object.Unstructured, old.find(object), cmp.Or(r.flags.options.Namespace, defaultNamespace))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", object.source, err)
		}
		req.User, req.DryRun, req.MatchConditions = user, r.dryRun, conditions
		if req.NamespaceLabels = r.namespaceLabels; req.NamespaceLabels == nil {
			req.NamespaceLabels = objects.namespaceLabels(req.Namespace)
		}
		requests[i] = req
	}
	return requests, nil
}

// results returns what --match-conditions says.
func (r *review) results() (map[string]bool, error) {
	results := map[string]bool{}
	for name, text := range r.conditions {
		result, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("--match-conditions: %s=%s: must be true or false", name, text)
		}
		results[name] = result
	}
	return results, nil
}

// engine makes the manager, with no cluster behind it.
func (r *review) engine(cmd *cobra.Command) (*offline.Engine, error) {
	if cmd.Flags().Lookup("zap-log-level").Value.String() == "" {
		// The log would hide what the extensions do.
		if err := cmd.Flags().Set("zap-log-level", "error"); err != nil {
			return nil, err
		}
	}
	options, err := r.flags.complete(cmd)
	if err != nil {
		return nil, wrong(err)
	}
	options = withoutCluster(options)
	options.WebhookNamespace = cmp.Or(options.WebhookNamespace, options.Namespace, nowhere)
	if options.ServiceName == "" {
		options.Serving.AdvertiseHost = cmp.Or(options.Serving.AdvertiseHost, "review.invalid")
	}
	options.Serving.HealthAddress, options.Serving.MetricsAddress = "", ""
	mgr, err := newManager(options, r.build)
	if err != nil {
		return nil, err
	}
	webhooks, err := mgr.Webhooks(cmd.Context())
	if err != nil {
		return nil, wrong(err)
	}
	return offline.New(webhooks, offline.Options{}), nil
}

// withoutCluster returns the options of a manager that has no API server.
func withoutCluster(options manager.Options) manager.Options {
	options.Scheme = clientgoscheme.Scheme
	options.KubeConfig = ""
	options.RESTConfig = &rest.Config{Host: "http://offline.invalid", Transport: offline.NoCluster{Scheme: options.Scheme, Kinds: &offline.Kinds{}}}
	return options
}

func nameOf(req *offline.Request) string {
	name := req.Name
	if name == "" { // the API server generates one
		var object struct {
			Metadata struct {
				GenerateName string `json:"generateName"`
			} `json:"metadata"`
		}
		if json.Unmarshal(req.Object, &object) == nil {
			name = object.Metadata.GenerateName + "*"
		}
	}
	if req.Namespace != "" {
		name = req.Namespace + "/" + name
	}
	return req.Kind.Kind + " " + name
}

// print prints the outcome of a request: with -o diff all of it on standard output,
// otherwise the object there and the messages on standard error.
func (r *review) print(cmd *cobra.Command, i int, req *offline.Request, out *offline.Outcome) error {
	if r.output == "diff" {
		text := report(req, out)
		if i > 0 {
			text = "\n" + text
		}
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	if _, err := io.WriteString(cmd.ErrOrStderr(), messages(req, out)); err != nil {
		return err
	}
	if !out.Allowed || len(out.Object) == 0 || req.Operation == admissionv1.Connect {
		return nil
	}
	return r.printObject(cmd.OutOrStdout(), i, out.Object)
}

// report describes what each extension did.
func report(req *offline.Request, out *offline.Outcome) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s\n", nameOf(req), summary(out))
	for _, step := range out.Steps {
		fmt.Fprintf(&text, "# %s, %s: %s", step.Webhook.Name, step.Extension, step.Result)
		switch {
		case step.Err != nil:
			fmt.Fprintf(&text, ": %v", step.Err)
		case step.Reason != "":
			fmt.Fprintf(&text, ": %s", step.Reason)
		}
		if len(step.Webhook.Scope.MatchConditions) > 0 {
			text.WriteString(" (match conditions as given)")
		}
		text.WriteString("\n")
		if step.Result == "mutated" {
			diff, err := offline.Diff(step.Before, step.Object)
			if err != nil {
				diff = err.Error() + "\n"
			}
			text.WriteString(diff)
		}
	}
	return text.String() + messages(req, out)
}

func messages(req *offline.Request, out *offline.Outcome) string {
	var text strings.Builder
	for _, warning := range out.Warnings {
		fmt.Fprintf(&text, "%s: warning: %s\n", nameOf(req), warning)
	}
	if !out.Allowed {
		fmt.Fprintf(&text, "%s: denied: %s\n", nameOf(req), out.Status.Message)
	}
	return text.String()
}

// summary describes the outcome of a request in a few words.
func summary(out *offline.Outcome) string {
	switch {
	case len(out.Steps) == 0 && out.Allowed:
		return "allowed, no extension applies"
	case !out.Allowed:
		return "denied"
	}
	changed := 0
	for _, step := range out.Steps {
		if step.Result == "mutated" {
			changed++
		}
	}
	if changed == 0 {
		return "allowed, unchanged"
	}
	return fmt.Sprintf("allowed, changed by %d of %d extensions", changed, len(out.Steps))
}

func (r *review) printObject(w io.Writer, i int, object []byte) error {
	if r.output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(json.RawMessage(object))
	}
	text, err := yaml.JSONToYAML(object)
	if err != nil {
		return err
	}
	separator := ""
	if i > 0 {
		separator = "---\n"
	}
	_, err = io.WriteString(w, separator+string(text))
	return err
}
