package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// ask holds the flags of a request.
type ask struct {
	*commands
	kind     *kind
	name     string
	duration time.Duration
	reason   string
	pod      string
	onBehalf string
	timeout  time.Duration
	shell    bool
	// warnBefore is how long before the end --shell says so.
	warnBefore time.Duration
	output     *cli.Output
	// waitApproval waits for approval, however long that takes.
	waitApproval bool
}

// requestCommand returns the command exec, pod or role.
func (c *commands) requestCommand(k *kind) *cobra.Command {
	a := &ask{commands: c, kind: k, timeout: 5 * time.Minute, warnBefore: 5 * time.Minute}
	cmd := &cobra.Command{
		Use: k.name + " TEMPLATE", Short: k.short, Long: k.long, Example: k.example,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil // run says which there are
			}
			return cli.Exactly("TEMPLATE")(cmd, args)
		},
		ValidArgsFunction: c.completeTemplates(k),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("for") && a.onBehalf == "" { // as of a variable that is not set: a bot would ask for itself
				return cli.Exitf(cli.CodeUsage, "--for: must name a user; leave it out to ask for yourself")
			}
			return a.run(cmd.Context(), args)
		},
	}
	flags := cmd.Flags()
	flags.VarP(cli.NewDuration(&a.duration, cli.MoreThanZero), "duration", "d", "duration of the access, such as 30m, 1h30m or 1d (default: the template's)")
	flags.StringVarP(&a.reason, "reason", "r", "", "reason for the access")
	flags.StringVar(&a.name, "name", "", "name of the request (default: the template's name and a suffix)")
	flags.StringVar(&a.onBehalf, "for", "", "user who gets access instead of you, if the template lets you ask for others (askFor)")
	flags.Var(cli.NewDuration(&a.timeout, cli.NotBelowZero), "timeout", "how long to wait until access is ready; 0 does not wait")
	flags.BoolVar(&a.waitApproval, "wait-approval", false, "wait for approval as long as the request does, and only then for --timeout")
	if k != roleRequests {
		flags.BoolVar(&a.shell, "shell", false, "run the access command once access is ready")
		flags.Var(cli.NewDuration(&a.warnBefore, cli.NotBelowZero), "warn-before", "with --shell, how long before its end to say that access ends, but not sooner than in the last quarter of its time; 0 for never")
	}
	if k == execRequests {
		flags.StringVar(&a.pod, "pod", "", "name of the Pod (default: a Pod of the workload)")
		_ = cmd.RegisterFlagCompletionFunc("pod", a.completeTargetPods)
	}
	a.output = c.AddOutputFlags(cmd, requestColumns)
	if k != roleRequests {
		for _, other := range []string{"output", "for", "template"} {
			cmd.MarkFlagsMutuallyExclusive("shell", other)
		}
	}
	return cmd
}

func (a *ask) run(ctx context.Context, args []string) error {
	if a.shell && a.timeout == 0 {
		return cli.Exitf(cli.CodeUsage, "--shell has to wait: --timeout must be more than 0")
	}
	if a.waitApproval && a.timeout == 0 {
		return cli.Exitf(cli.CodeUsage, "--wait-approval has to wait: --timeout must be more than 0")
	}
	show, err := a.output.Printer(false)
	if err != nil {
		return err
	}
	cl, namespace, err := a.Connect()
	if err != nil {
		return err
	}
	template, err := a.template(ctx, cl, namespace, args)
	if err != nil {
		return err
	}
	req, err := a.create(ctx, cl, namespace, template)
	if err != nil {
		return err
	}
	a.Sayf("%s created in namespace %s", named(req), namespace)
	if req.GetRequestSpec().Approval.Needed() {
		a.askApprovers(req)
	}
	if a.timeout > 0 {
		if err := a.wait(ctx, cl, req); err != nil {
			return err
		}
	}
	switch {
	case a.shell:
		return a.runShell(ctx, cl, req)
	case a.output.Asked():
		return show(req)
	case req.GetRequestStatus().GrantedRole != nil && req.GetRequestStatus().Ready:
		_, err := fmt.Fprintln(a.Out, cli.Escape(granted(req)))
		return err
	case req.GetRequestStatus().AccessMessage != "":
		_, err := fmt.Fprintln(a.Out, cli.Escape(req.GetRequestStatus().AccessMessage)) // a template's author wrote it
		return err
	}
	return nil
}

// granted says which role a request gives, where, and until when.
func granted(req request) string {
	status := req.GetRequestStatus()
	return fmt.Sprintf("%s in namespace %s until %s, for %s", status.GrantedRole, req.GetNamespace(), cli.Moment(status.ExpiresAt), req.GetRequestSpec().Grantee())
}

// maxName is the length of a request's name that the API accepts.
const maxName = 52

// generateName returns the beginning of a request's name, to which the API server
// appends five characters.
func generateName(template string) string {
	return strings.TrimRight(template[:min(len(template), maxName-len("-12345"))], "-.") + "-"
}

// createTime is how long the API server may take to make a request.
const createTime = 30 * time.Second

// create makes the request.
func (a *ask) create(ctx context.Context, cl client.Client, namespace, template string) (request, error) {
	req := a.kind.newRequest()
	req.SetNamespace(namespace)
	if req.SetName(a.name); a.name == "" {
		req.SetGenerateName(generateName(template))
	}
	spec := req.GetRequestSpec()
	spec.TemplateName, spec.Reason, spec.OnBehalfOf = template, a.reason, a.onBehalf
	if a.duration > 0 {
		spec.Duration = cli.Short(a.duration)
	}
	if r, ok := req.(*v1alpha1.ExecAccessRequest); ok {
		r.Spec.TargetPod = a.pod
	}
	err := ctx.Err()
	if err == nil { // an interrupt meanwhile would leave a request whose name nobody hears
		creating, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTime)
		defer cancel()
		err = cl.Create(creating, req)
	}
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil, a.taken(ctx, cl, req)
	// The webhook has no other way to say so.
	case a.pod != "" && apierrors.IsForbidden(err) && strings.Contains(err.Error(), fmt.Sprintf("Pod %s/%s does not exist", namespace, a.pod)):
		return nil, cli.Exitf(cli.CodeNotFound, "there is no Pod %q in namespace %s; without --pod you get a Pod of the workload", a.pod, namespace)
	}
	return req, cli.Explained(err)
}

// taken says that the name of a request is taken, and whether by one that has ended.
func (a *ask) taken(ctx context.Context, cl client.Client, req request) error {
	if err := cl.Get(ctx, client.ObjectKeyFromObject(req), req); err == nil && v1alpha1.Over(req, time.Now()) {
		return cli.Exitf(cli.CodeError, "there is a request %q in namespace %s already, whose access has ended; it stays as a record, so leave out --name, or choose another", a.name, req.GetNamespace())
	}
	return cli.Exitf(cli.CodeError, "there is a request %q in namespace %s already; leave out --name, or revoke it", a.name, req.GetNamespace())
}

// template returns the name of the template that an argument means: a template's own,
// or a workload's, such as Deployment/web, that one template fits.
func (a *ask) template(ctx context.Context, cl client.Client, namespace string, args []string) (string, error) {
	switch {
	case len(args) == 0:
		all, err := cli.List(ctx, cl, a.kind.templates(), namespace)
		if err == nil {
			all, err = usable(ctx, cl, all, a.onBehalf)
		}
		if err != nil || len(all) == 0 {
			return "", cli.Exitf(cli.CodeUsage, "TEMPLATE is missing\nSee 'kubectl access %s --help'", a.kind.name)
		}
		return "", cli.Exitf(cli.CodeUsage, "TEMPLATE is missing; those that you may use in namespace %s: %s", namespace, strings.Join(cli.Names(all), ", "))
	case strings.Contains(args[0], "/"):
		return a.templateFor(ctx, cl, namespace, args[0])
	}
	return args[0], a.templateExists(ctx, cl, namespace, args[0])
}

// templateFor returns the template for a workload, of those that the user may use.
func (a *ask) templateFor(ctx context.Context, cl client.Client, namespace, workload string) (string, error) {
	word, name, _ := strings.Cut(workload, "/")
	mapper, err := a.Flags.ToRESTMapper()
	if err != nil {
		return "", err
	}
	gvk, err := mapper.KindFor(schema.ParseGroupResource(word).WithVersion(""))
	if meta.IsNoMatchError(err) {
		return "", cli.Exitf(cli.CodeUsage, "%q: this cluster has no kind %q; name a template, or a workload such as deployment/web", workload, word)
	}
	if err != nil {
		return "", cli.Explained(err)
	}
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	target := v1alpha1.ControllerTargetRef{APIVersion: apiVersion, Kind: kind, Name: name}
	all, err := cli.List(ctx, cl, a.kind.templates(), namespace)
	if err != nil {
		return "", cli.Explained(err)
	}
	fitting := slices.DeleteFunc(all, func(t client.Object) bool {
		ref := t.(v1alpha1.Template).GetTargetRef()
		return ref == nil || *ref != target
	})
	if len(fitting) == 0 {
		return "", cli.Exitf(cli.CodeNotFound, "there is no %s for %s in namespace %s; 'kubectl access templates' shows those that are", a.kind.template, target, namespace)
	}
	yours, err := usable(ctx, cl, fitting, a.onBehalf)
	switch {
	case err != nil:
		return "", err
	case len(yours) == 0:
		return "", cli.Exitf(cli.CodeRefused, "you may use none of the templates for %s: %s", target, strings.Join(cli.Names(fitting), ", "))
	case len(yours) > 1:
		return "", cli.Exitf(cli.CodeUsage, "several templates fit %s; name one of them: %s", target, strings.Join(cli.Names(yours), ", "))
	}
	return yours[0].GetName(), nil
}

// templateExists lists the templates if this one is not among them. If the user
// may not list templates, the server decides.
func (a *ask) templateExists(ctx context.Context, cl client.Client, namespace, template string) error {
	err := cl.Get(ctx, types.NamespacedName{Namespace: namespace, Name: template}, a.kind.newTemplate())
	if apierrors.IsForbidden(err) {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return cli.Explained(err)
	}
	all, err := cli.List(ctx, cl, a.kind.templates(), namespace)
	if err != nil || len(all) == 0 {
		return cli.Exitf(cli.CodeNotFound, "there is no %s %q in namespace %s; 'kubectl access templates -A' shows those that are", a.kind.template, template, namespace)
	}
	return cli.Exitf(cli.CodeNotFound, "there is no %s %q in namespace %s; there are: %s", a.kind.template, template, namespace, strings.Join(cli.Names(all), ", "))
}

// left returns the remaining time of the access.
func left(req request) string {
	end := req.GetRequestStatus().ExpiresAt
	if end == nil {
		return ""
	}
	if remaining := time.Until(end.Time); remaining > 0 && !lost(req) {
		return duration.HumanDuration(remaining)
	}
	return "ended"
}

// lost reports whether what the request gave is gone for good, before its end.
func lost(req request) bool {
	c := meta.FindStatusCondition(req.GetRequestStatus().Conditions, v1alpha1.ConditionAccessResourcesCreated)
	return c != nil && c.Status == metav1.ConditionFalse && (c.Reason == v1alpha1.ReasonRoleLost || c.Reason == v1alpha1.ReasonPodGone)
}
