package command

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admission/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/internal/offline/memcluster"
	"github.com/admitkit/admitkit/internal/scan"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/webhook"
)

// review runs the extensions on manifests without a cluster.
type review struct {
	flags *flags
	build Build

	files, old      []string
	with            []string
	recursive       bool
	strict, explain bool
	output          string
	operation       string
	subresource     string
	as              asUser
	namespaceLabels map[string]string
	conditions      map[string]string
	dryRun          bool

	// unread are the errors of files of folders, and of objects of no kind.
	unread error
}

// defaultNamespace is the namespace of objects that name none, nowhere that of a
// manager outside of any cluster.
const (
	defaultNamespace = "default"
	nowhere          = "review-system"
)

const aboutReview = `Run the extensions on manifests as an API server would call them, without a cluster,
and print what each of them changes, warns of and denies, and its audit annotations. If
an object reaches no extension, print why each webhook is not called. With -o yaml or
json, print the objects as they would be stored, and everything else to standard error.

A manifest of kind PodExecOptions, PodAttachOptions, PodPortForwardOptions or
PodProxyOptions stands for a connection to the Pod of its metadata.name. With
--subresource, an object stands for a request to its subresource: extensions get the
Scale of a Deployment, for example. For a manifest of kind Scale, --subresource names
what it scales: deployments.apps/scale.

Where it depends on the cluster whether an API server calls an extension, review says so
and exits with 2: give the labels of the namespace by --namespace-labels or as a Namespace
among the manifests, the result of a match condition that asks the authorizer by
--match-conditions, and the CustomResourceDefinition of a custom kind whose plural no rule
names. Objects given by --with count for this, too.

An extension that reads or writes something in the cluster fails, unless --with gives the
objects that are there. It has the rights that the command manifests would grant: a call
without the right fails as an API server's does. No defaults of an API server, no schemas of
CustomResourceDefinitions and no other admission plugins apply here.

The flags of the other subcommands are accepted, and those that are not listed here change
nothing.

A file of a folder that has something else than objects is named at the end, and so is an
object of a kind that no API server has; the others are reviewed.

Exit codes: 0 everything is admitted; 1 something is denied or not converted, an extension
with failure policy Fail failed, an extension changed an object in vain or changed a field
that must not change, lacks a right or reads what it does not declare, or with --strict an
object reached no extension or has an unknown field; 2 a flag, a manifest or a scope is
wrong, or something is missing.`

func newReview(name string, f *flags, build Build) *cobra.Command {
	r := &review{flags: f, build: build}
	cmd := &cobra.Command{
		Use:   "review -f FILE",
		Short: "Run the extensions on manifests, without a cluster",
		Long:  aboutReview,
		Example: strings.ReplaceAll(`  NAME review -f pod.yaml
  kubectl get deployment web -o yaml | NAME review -f - --operation UPDATE --user alice --groups developers
  NAME review -f manifests/ -R -o yaml --strict --with crds/
  NAME review -f deployment.yaml --subresource scale
  NAME review -f pod.yaml --subresource ephemeralcontainers`, "NAME", name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd) },
	}
	set := cmd.Flags()
	set.StringSliceVarP(&r.files, "filename", "f", nil, "manifests: a file, a folder, or - for standard input; YAML or JSON, any number of documents (required)")
	set.BoolVarP(&r.recursive, "recursive", "R", false, "read subfolders too")
	set.StringSliceVar(&r.old, "old", nil, "UPDATE: manifests of the old objects (default: the same as the new ones)")
	set.StringSliceVar(&r.with, "with", nil, "manifests of the objects that are in the cluster, for extensions that read or write; and of CustomResourceDefinitions and Namespaces")
	set.BoolVar(&r.strict, "strict", false, "exit with 1 if an object reaches no extension, or has a field that its kind has not")
	set.BoolVar(&r.explain, "explain", false, "with -o diff: say of each webhook that is not called why")
	set.StringVarP(&r.output, "output", "o", "diff", "diff, yaml or json")
	set.StringVar(&r.operation, "operation", string(admissionv1.Create), "CREATE, UPDATE or DELETE (default with --subresource: the one that it has)")
	set.StringVar(&r.subresource, "subresource", "", "subresource that the requests are for, such as status, scale, ephemeralcontainers, eviction or deployments.apps/scale")
	r.as.bind(set)
	set.StringToStringVar(&r.namespaceLabels, "namespace-labels", nil, "labels of the namespace, for scopes that select by them (default: those of the Namespace among the manifests)")
	set.StringToStringVar(&r.conditions, "match-conditions", nil, "results of match conditions that only a cluster can evaluate, such as those that ask the authorizer: NAME=true or NAME=false")
	set.BoolVar(&r.dryRun, "dry-run", false, "make the request a dry run")
	f.hideInHelp(cmd, ofReview)
	return cmd
}

func (r *review) run(cmd *cobra.Command) error {
	cluster, err := r.cluster(cmd)
	if err != nil {
		return wrong(err)
	}
	requests, err := r.requests(cmd, cluster)
	if err != nil {
		return wrong(err)
	}
	engine, stop, err := r.engine(cmd, cluster)
	if err != nil {
		return err
	}
	defer stop()
	if unknown := engine.UnknownConditions(slices.Sorted(maps.Keys(r.conditions))); len(unknown) > 0 {
		return wrong(fmt.Errorf("--match-conditions: no scope has the match condition %s", strings.Join(unknown, ", ")))
	}
	var totals totals
	var undecided, failed []error
	for _, req := range requests {
		out, err := engine.Admit(cmd.Context(), req)
		if unknown, ok := errors.AsType[*offline.Unknown](err); ok {
			undecided = append(undecided, fmt.Errorf("%s: %w: %s", nameOf(req), err, remedies[unknown.Fact]))
			continue
		}
		if err != nil { // an API server refuses what cannot be converted
			failed = append(failed, fmt.Errorf("%s: %w", nameOf(req), err))
			totals.failed++
			continue
		}
		if err := r.print(cmd, totals.requests, req, out); err != nil {
			return err
		}
		totals.add(out)
		if err := totals.addUnknown(cmd.ErrOrStderr(), req); err != nil {
			return err
		}
	}
	if len(undecided) > 0 || r.unread != nil {
		return wrong(errors.Join(slices.Concat(failed, undecided, []error{r.unread})...))
	}
	return errors.Join(append(failed, totals.problem(r.strict))...)
}

// totals count what came of the requests, and those that failed.
type totals struct{ requests, denied, faulty, uncalled, failed, unknown int }

func (t *totals) add(out *offline.Outcome) {
	t.requests++
	if !out.Allowed {
		t.denied++
	}
	if slices.ContainsFunc(out.Steps, func(s offline.Step) bool { return len(s.Faults()) > 0 }) {
		t.faulty++
	}
	if len(out.Steps) == 0 {
		t.uncalled++
	}
}

// addUnknown warns of fields that the kind of an object has not, which an API server drops, or
// refuses if the client wishes, as kubectl does. The kinds of a newer one may have them.
func (t *totals) addUnknown(w io.Writer, req *offline.Request) error {
	if req.Operation == admissionv1.Connect || len(req.Object) == 0 {
		return nil
	}
	unknown := offline.UnknownFields(clientgoscheme.Scheme, req.Kind, req.Object)
	if len(unknown) == 0 {
		return nil
	}
	t.unknown++
	_, err := fmt.Fprintf(w, "warning: %s: %s: kubectl refuses it, unless Kubernetes is newer than this program's k8s.io/api\n", nameOf(req), strings.Join(unknown, ", "))
	return err
}

// problem returns why the review fails, nil if it does not.
func (t *totals) problem(strict bool) error {
	var problems []string
	all := t.requests + t.failed
	for _, p := range []struct {
		count int
		text  string
	}{
		{t.denied, "denied"},
		{t.faulty, "with an extension that does something in vain, without the right, or reads what it does not declare"},
	} {
		if p.count > 0 {
			problems = append(problems, fmt.Sprintf("%d of %d %s", p.count, all, p.text))
		}
	}
	if strict && t.uncalled > 0 {
		problems = append(problems, fmt.Sprintf("--strict: %d of %d reached no extension", t.uncalled, all))
	}
	if strict && t.unknown > 0 {
		problems = append(problems, fmt.Sprintf("--strict: %d of %d with unknown fields", t.unknown, all))
	}
	if len(problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(problems, "; "))
}

// cluster returns the cluster with the objects of --with.
func (r *review) cluster(cmd *cobra.Command) (*memcluster.Cluster, error) {
	if err := readEnvironment(cmd.Flags()); err != nil {
		return nil, err
	}
	cluster := memcluster.New(clientgoscheme.Scheme)
	var install manager.InstallOptions
	for _, change := range r.flags.changeInstall {
		change(&install)
	}
	if _, err := place(cluster.Kinds, install.Objects, r.namespace()); err != nil {
		return nil, err
	}
	objects, err := readManifests(cmd.InOrStdin(), r.with, r.recursive)
	if err != nil {
		return nil, fmt.Errorf("--with: %w", err)
	}
	// The kinds first: they say which resources the other objects are.
	for _, ofKinds := range []bool{true, false} {
		for _, object := range objects {
			if kinds.IsCRD(object.Unstructured) != ofKinds {
				continue
			}
			if err := cluster.Add(r.placed(cluster, object)); err != nil {
				return nil, fmt.Errorf("--with: %s: %w", object.source, err)
			}
		}
	}
	return cluster, nil
}

// placed returns an object in the namespace that it has in a cluster.
func (r *review) placed(cluster *memcluster.Cluster, object sourced) *unstructured.Unstructured {
	placed := object.DeepCopy()
	switch {
	case !cluster.Kinds.Namespaced(object.GroupVersionKind().GroupKind()):
		placed.SetNamespace("")
	case placed.GetNamespace() == "":
		placed.SetNamespace(r.namespace())
	}
	return placed
}

// namespace is the one of objects that name none.
func (r *review) namespace() string {
	if watched := r.flags.options.Namespaces; len(watched) > 0 {
		return watched[0]
	}
	return defaultNamespace
}

// remedies say how the user gives what the engine does not know.
var remedies = map[offline.Fact]string{
	offline.TheKind:       "add its CustomResourceDefinition to --with or --filename",
	offline.TheVersion:    "give the manifest in a version that the rules name",
	offline.TheNamespace:  "set --namespace-labels, or add the Namespace to --with or --filename",
	offline.TheConditions: "set --match-conditions NAME=true, or false",
}

// check returns what is wrong with the flags. The operation is empty if it is the one of
// the subresource.
func (r *review) check(operation admissionv1.Operation) error {
	switch {
	case len(r.files) == 0:
		return errors.New("--filename: required: a file, a folder, or - for standard input")
	case r.output != "diff" && r.output != "yaml" && r.output != "json":
		return fmt.Errorf("--output: %q: must be diff, yaml or json", r.output)
	case len(r.old) > 0 && operation != "" && operation != admissionv1.Update:
		return fmt.Errorf("--old: only an UPDATE has old objects, not a %s; set --operation UPDATE", operation)
	}
	return r.as.check()
}

// requests reads the manifests.
func (r *review) requests(cmd *cobra.Command, cluster *memcluster.Cluster) ([]*offline.Request, error) {
	operation := admissionv1.Operation(strings.ToUpper(r.operation))
	if r.subresource != "" && !cmd.Flags().Changed("operation") {
		operation = ""
	}
	if err := r.check(operation); err != nil {
		return nil, err
	}
	objects, unread, err := readAll(cmd.InOrStdin(), r.files, r.recursive)
	if err != nil {
		return nil, err
	}
	r.unread = unread
	old, err := readManifests(cmd.InOrStdin(), r.old, r.recursive)
	if err != nil {
		return nil, fmt.Errorf("--old: %w", err)
	}
	conditions, err := r.results()
	if err != nil {
		return nil, err
	}
	if err := objects.addKinds(cluster.Kinds); err != nil {
		return nil, err
	}
	user := scan.UserOf(r.as.info())
	requests, known := make([]*offline.Request, 0, len(objects)), offline.KindsOf(cluster.Kinds)
	for _, object := range objects {
		req, err := r.request(known, operation, object, old.find(object))
		if _, none := errors.AsType[*offline.NoKind](err); none {
			r.unread = errors.Join(r.unread, fmt.Errorf("%s: %w", object.source, err))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", object.source, err)
		}
		req.User, req.DryRun, req.MatchConditions = user, r.dryRun, conditions
		if req.NamespaceLabels = r.namespaceLabels; req.NamespaceLabels == nil {
			req.NamespaceLabels = objects.namespaceLabels(req.Namespace)
		}
		if req.NamespaceLabels == nil {
			req.NamespaceLabels = cluster.NamespaceLabels(req.Namespace)
		}
		requests = append(requests, req)
	}
	return requests, nil
}

// request returns the request for an object, or for its subresource.
func (r *review) request(kinds *offline.Kinds, operation admissionv1.Operation, object sourced, old *unstructured.Unstructured) (*offline.Request, error) {
	if r.subresource != "" {
		return kinds.NewSubresourceRequest(operation, r.subresource, object.Unstructured, old, r.namespace())
	}
	return kinds.NewRequest(operation, object.Unstructured, old, r.namespace())
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

// engine makes the engine of the manager's webhooks. Call stop in the end.
func (r *review) engine(cmd *cobra.Command, cluster *memcluster.Cluster) (engine *offline.Engine, stop func(), err error) {
	mgr, webhooks, stop, err := r.manage(cmd, cluster)
	if err != nil {
		return nil, nil, err
	}
	with := offline.Options{Forbidden: cluster.TakeForbidden, Converters: mgr.Converters()}
	with.Webhook.Exemptions = mgr.Exemptions()
	return offline.New(webhooks, with), stop, nil
}

// there returns an error for flags that manifests takes, and a review cannot: a file that is not
// on this machine, and labels that no namespace has.
func (r *review) there(options manager.Options) error {
	for _, file := range []struct{ flag, path string }{{"modes-file", options.Registration.ModesFile}, {"exemptions-file", options.Serving.ExemptionsFile}} {
		if _, err := os.Stat(file.path); file.path != "" && err != nil {
			return fmt.Errorf("--%s: %w: leave it out to review without it", file.flag, err)
		}
	}
	return validation.ValidateLabels(r.namespaceLabels, field.NewPath("--namespace-labels")).ToAggregate()
}

// manage makes the manager, with the cluster in memory behind it. Call stop in the end.
func (r *review) manage(cmd *cobra.Command, cluster *memcluster.Cluster) (mgr *manager.Manager, webhooks []*webhook.Webhook, stop func(), err error) {
	if err := quiet(cmd); err != nil {
		return nil, nil, nil, err
	}
	options, err := r.flags.complete(cmd)
	if err != nil {
		return nil, nil, nil, wrong(err)
	}
	if err := r.there(options); err != nil {
		return nil, nil, nil, wrong(err)
	}
	account := cluster.NewAccount()
	if len(r.with) == 0 {
		account.Refuse("no cluster: give the objects that the extensions read by --with")
	}
	options = withCluster(options, account)
	cluster.SetScheme(options.Scheme)
	if mgr, err = newManager(unserved(options), r.build); err != nil {
		return nil, nil, nil, err
	}
	if err := restrict(account, mgr, cluster.Kinds); err != nil {
		return nil, nil, nil, wrong(err)
	}
	webhooks, err = mgr.Webhooks(cmd.Context())
	if err == nil {
		err = offline.KindsOf(cluster.Kinds).Check(webhooks)
	}
	if err != nil {
		return nil, nil, nil, wrong(err)
	}
	stop = func() {}
	if len(r.with) > 0 {
		stop, _ = mgr.StartCaches(cmd.Context()) // a kind that --with does not have matters to those who read it
	}
	return mgr, webhooks, stop, nil
}

// quiet logs errors alone, unless the user wants more: the log would hide what the
// extensions do.
func quiet(cmd *cobra.Command) error {
	if cmd.Flags().Lookup("zap-log-level").Value.String() != "" {
		return nil
	}
	return cmd.Flags().Set("zap-log-level", "error")
}

// unserved returns the options of a manager whose webhooks nobody calls. The way to them
// does not matter then, and manifests would refuse some of it.
func unserved(options manager.Options) manager.Options {
	if len(options.Namespaces) != 1 {
		options.WebhookNamespace = cmp.Or(options.WebhookNamespace, nowhere)
	}
	options.OperatorFingerprint = cmp.Or(options.OperatorFingerprint, options.ServiceName)
	options.ServiceName, options.Certificates.Dir, options.Registration.ForeignCABundle = "", "", false
	options.Serving.AdvertiseHost = cmp.Or(options.Serving.AdvertiseHost, "review.invalid")
	options.Serving.HealthAddress, options.Serving.MetricsAddress, options.Serving.MetricsSecure = "", "", false
	return options
}

// restrict gives an account the rights of the replicas that serve.
func restrict(account *memcluster.Account, mgr *manager.Manager, known *kinds.Table) error {
	const name = "review"
	install := manager.InstallOptions{Name: name, Image: name}
	for _, crd := range known.Definitions() {
		install.CRDs = append(install.CRDs, crd)
	}
	installation, err := mgr.Manifests(install)
	if err != nil {
		return err
	}
	rules := map[string][]rbacv1.PolicyRule{} // by the role
	rights := &memcluster.Rights{}
	for _, object := range installation.Objects {
		// A role comes before its binding.
		switch o := object.(type) {
		case *rbacv1.Role:
			rules[o.Namespace+"/"+o.Name] = o.Rules
		case *rbacv1.ClusterRole:
			rules["/"+o.Name] = o.Rules
		case *rbacv1.RoleBinding:
			if o.Subjects[0].Name == name {
				rights.Grant(o.Namespace, rules[o.Namespace+"/"+o.RoleRef.Name]...)
			}
		case *rbacv1.ClusterRoleBinding:
			if o.Subjects[0].Name == name {
				rights.Grant("", rules["/"+o.RoleRef.Name]...)
			}
		}
	}
	account.Restrict(rights)
	return nil
}

// withoutCluster returns the options of a manager that has no API server.
func withoutCluster(options manager.Options) manager.Options {
	account := memcluster.New(schemeOf(options)).NewAccount()
	account.Refuse("no cluster")
	return withCluster(options, account)
}

// schemeOf returns the author's scheme, or that of Kubernetes.
func schemeOf(options manager.Options) *runtime.Scheme {
	return cmp.Or(options.Scheme, clientgoscheme.Scheme)
}

// withCluster returns the options of a manager whose API server is this transport.
func withCluster(options manager.Options, transport http.RoundTripper) manager.Options {
	options.Scheme = schemeOf(options)
	options.KubeConfig = ""
	options.RESTConfig = memcluster.Config(transport)
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
	if req.Namespace != "" && !kinds.IsNamespace(req.Kind) {
		name = req.Namespace + "/" + name
	}
	name = req.Kind.Kind + " " + name
	if req.SubResource != "" && req.Operation != admissionv1.Connect {
		name += " (" + req.Resource.Resource + "/" + req.SubResource + ")"
	}
	return name
}

// print prints the outcome of a request: with -o diff all of it on standard output,
// otherwise the object there and the messages on standard error.
func (r *review) print(cmd *cobra.Command, i int, req *offline.Request, out *offline.Outcome) error {
	if r.output == "diff" {
		text := report(req, out, r.explain)
		if i > 0 {
			text = "\n" + text
		}
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	text := messages(req, out)
	if len(out.Steps) == 0 {
		text = fmt.Sprintf("%s: %s\n%s", nameOf(req), summary(out), whyNot(out)) + text
	}
	if _, err := io.WriteString(cmd.ErrOrStderr(), text); err != nil {
		return err
	}
	if !out.Allowed || len(out.Object) == 0 || req.Operation == admissionv1.Connect {
		return nil
	}
	return r.printObject(cmd.OutOrStdout(), i, out.Object)
}

// report describes what each extension did and, if explain is set or nobody was called, why
// others were not called.
func report(req *offline.Request, out *offline.Outcome, explain bool) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s\n", nameOf(req), summary(out))
	if len(out.Steps) == 0 {
		text.WriteString(whyNot(out))
	}
	for _, step := range out.Steps {
		fmt.Fprintf(&text, "# %s, %s: %s", step.Webhook.Name, step.Extension, resultOf(&step))
		switch {
		case step.Err != nil:
			fmt.Fprintf(&text, ": %v", step.Err)
		case step.Reason != "":
			fmt.Fprintf(&text, ": %s", step.Reason)
		}
		if req.HasGiven(step.Webhook.Scope) {
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
	if explain && len(out.Steps) > 0 && len(out.NotCalled) > 0 {
		text.WriteString(whyNot(out))
	}
	return offline.Printable(text.String() + messages(req, out))
}

// resultOf says what an extension did, or would do if its mode were Enforce.
func resultOf(step *offline.Step) string {
	if !step.Observes() {
		return step.Result
	}
	verb := map[string]string{"denied": "deny", "mutated": "change"}[step.Result]
	if verb == "" {
		return fmt.Sprintf("%s (%s)", step.Result, step.Webhook.Mode)
	}
	return fmt.Sprintf("would %s this (%s)", verb, step.Webhook.Mode)
}

// whyNot says why no webhook was called.
func whyNot(out *offline.Outcome) string {
	if len(out.NotCalled) == 0 {
		return "# the program has no extension that answers admissions\n"
	}
	var text strings.Builder
	for _, not := range out.NotCalled {
		fmt.Fprintf(&text, "# %s (%s) is not called: %s\n", not.Webhook.RegisteredName(), strings.Join(not.Webhook.Extensions(), ", "), not.Reason)
	}
	return text.String()
}

func messages(req *offline.Request, out *offline.Outcome) string {
	var text strings.Builder
	for _, step := range out.Steps {
		for _, fault := range step.Faults() {
			fmt.Fprintf(&text, "%s: extension %s\n", nameOf(req), fault)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(out.AuditAnnotations)) {
		fmt.Fprintf(&text, "%s: audit annotation: %s=%s\n", nameOf(req), key, out.AuditAnnotations[key])
	}
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
		if step.Result == "mutated" && !step.Observes() {
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
