package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
)

// ask holds the flags of a request.
type ask struct {
	*cli
	kind     *kind
	name     string
	duration time.Duration
	reason   string
	pod      string
	timeout  time.Duration
	shell    bool
	output   *output
}

// requestCommand returns the command exec or pod.
func (c *cli) requestCommand(k *kind) *cobra.Command {
	a := &ask{cli: c, kind: k, timeout: 5 * time.Minute}
	cmd := &cobra.Command{
		Use: k.name + " TEMPLATE", Short: k.short, Long: k.long, Example: k.example,
		Args:              exactly("TEMPLATE"),
		ValidArgsFunction: c.completeTemplates(k),
		RunE:              func(cmd *cobra.Command, args []string) error { return a.run(cmd.Context(), args[0]) },
	}
	flags := cmd.Flags()
	flags.VarP(durationFlag{&a.duration, moreThanZero}, "duration", "d", "duration of the access, such as 30m, 1h30m or 1d (default: the template's)")
	flags.StringVarP(&a.reason, "reason", "r", "", "reason for the access")
	flags.StringVar(&a.name, "name", "", "name of the request (default: the template's name and a suffix)")
	flags.Var(durationFlag{&a.timeout, notBelowZero}, "timeout", "how long to wait until access is ready; 0 does not wait")
	flags.BoolVar(&a.shell, "shell", false, "run the access command once access is ready")
	if k == execRequests {
		flags.StringVar(&a.pod, "pod", "", "name of the Pod (default: a ready Pod of the workload)")
	}
	a.output = c.addOutputFlags(cmd)
	cmd.MarkFlagsMutuallyExclusive("shell", "output")
	cmd.MarkFlagsMutuallyExclusive("shell", "template")
	return cmd
}

func moreThanZero(d time.Duration) error {
	if d <= 0 {
		return errors.New("must be more than 0; leave it out for the template's default")
	}
	return nil
}

func notBelowZero(d time.Duration) error {
	if d < 0 {
		return errors.New("must not be less than 0; 0 does not wait")
	}
	return nil
}

func (a *ask) run(ctx context.Context, template string) error {
	if a.shell && a.timeout == 0 {
		return exitf(codeUsage, "--shell has to wait: --timeout must be more than 0")
	}
	show, err := a.output.printer(false)
	if err != nil {
		return err
	}
	cl, namespace, err := a.connect()
	if err != nil {
		return err
	}
	if err := a.templateExists(ctx, cl, namespace, template); err != nil {
		return err
	}
	req, err := a.create(ctx, cl, namespace, template)
	if err != nil {
		return err
	}
	if a.timeout == 0 {
		a.sayf("%s created in namespace %s", named(req), namespace)
	} else if err := a.wait(ctx, cl, req); err != nil {
		return err
	}
	switch {
	case a.shell:
		return a.runShell(ctx, req)
	case a.output.asked():
		return show(req)
	case req.GetRequestStatus().AccessMessage != "":
		_, err := fmt.Fprintln(a.Out, printers.EscapeTerminal(req.GetRequestStatus().AccessMessage)) // a template's author wrote it
		return err
	}
	return nil
}

// create makes the request.
func (a *ask) create(ctx context.Context, cl client.Client, namespace, template string) (request, error) {
	req := a.kind.newRequest()
	req.SetNamespace(namespace)
	if req.SetName(a.name); a.name == "" {
		req.SetGenerateName(template + "-")
	}
	spec := req.GetRequestSpec()
	spec.TemplateName, spec.Reason = template, a.reason
	if a.duration > 0 {
		spec.Duration = short(a.duration)
	}
	if r, ok := req.(*v1alpha1.ExecAccessRequest); ok {
		r.Spec.TargetPod = a.pod
	}
	err := cl.Create(ctx, req)
	if apierrors.IsAlreadyExists(err) {
		return nil, exitf(codeError, "there is a request %q in namespace %s already; leave out --name, or revoke it", a.name, namespace)
	}
	return req, explained(err)
}

// templateExists lists the templates if this one is not among them. If the user
// may not list templates, the server decides.
func (a *ask) templateExists(ctx context.Context, cl client.Client, namespace, template string) error {
	err := cl.Get(ctx, types.NamespacedName{Namespace: namespace, Name: template}, a.kind.newTemplate())
	if apierrors.IsForbidden(err) {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return explained(err)
	}
	names, err := templateNames(ctx, cl, a.kind, namespace)
	if err != nil || len(names) == 0 {
		return exitf(codeNotFound, "there is no %s %q in namespace %s; 'kubectl access templates -A' shows those that are", a.kind.template, template, namespace)
	}
	return exitf(codeNotFound, "there is no %s %q in namespace %s; there are: %s", a.kind.template, template, namespace, strings.Join(names, ", "))
}

func templateNames(ctx context.Context, cl client.Client, k *kind, namespace string) ([]string, error) {
	list := k.templates()
	if err := cl.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var names []string
	each(list, func(t client.Object) { names = append(names, t.GetName()) })
	slices.Sort(names)
	return names, nil
}

// completeTemplates completes the name of a template.
func (c *cli) completeTemplates(k *kind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		cl, namespace, err := c.connect()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, err := templateNames(cmd.Context(), cl, k, namespace)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// left returns the remaining time of the access.
func left(req request) string {
	end := req.GetRequestStatus().ExpiresAt
	if end == nil {
		return ""
	}
	if remaining := time.Until(end.Time); remaining > 0 {
		return duration.HumanDuration(remaining)
	}
	return "ended"
}
