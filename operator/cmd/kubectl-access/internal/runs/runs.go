package runs

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// Command returns the commands about SandboxRuns.
func Command(c *cli.Base) *cobra.Command {
	return cli.Group(&cobra.Command{Use: "runs", Short: "List, describe, follow, enter and cancel sandboxed runs"},
		listCommand(c), describeCommand(c), logsCommand(c), attachCommand(c), cancelCommand(c))
}

func listCommand(c *cli.Base) *cobra.Command {
	var mine bool
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls", "get"}, Short: "List sandboxed runs, and how far they are"}
	cmd.Flags().BoolVar(&mine, "mine", false, "only those that you made")
	return c.Listing(cmd, "runs", runColumns, func(ctx context.Context, cl client.Client, scope client.InNamespace) ([]client.Object, error) {
		objects, err := cli.List(ctx, cl, &v1alpha1.SandboxRunList{}, string(scope))
		if err != nil || !mine {
			return objects, cli.Explained(err)
		}
		me, err := cli.WhoAmI(ctx, cl)
		return slices.DeleteFunc(objects, func(object client.Object) bool { return authorOf(object.(*v1alpha1.SandboxRun)) != me.Username }), err
	})
}

func describeCommand(c *cli.Base) *cobra.Command {
	return &cobra.Command{
		Use: "describe NAME", Short: "Show what a sandboxed run asks for, and what became of it",
		Example:           "  kubectl access runs describe agent-x7k2p",
		Args:              cli.Exactly("NAME"),
		ValidArgsFunction: completeRuns(c, func(*v1alpha1.SandboxRun) bool { return true }),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, run, err := namedRun(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return describeRun(cmd.Context(), c, cl, run)
		},
	}
}

func describeRun(ctx context.Context, c *cli.Base, cl client.Client, run *v1alpha1.SandboxRun) error {
	spec, status := &run.Spec, &run.Status
	var workspace, exitCode string
	if spec.WorkspaceRef != nil {
		workspace = spec.WorkspaceRef.Name
	}
	if status.ExitCode != nil {
		exitCode = fmt.Sprint(*status.ExitCode)
	}
	if err := cli.Lines(c.Out,
		"Name", run.Name, "Namespace", run.Namespace, "Template", cmp.Or(spec.TemplateRef.Kind, "SandboxRunTemplate")+"/"+spec.TemplateRef.Name,
		"Author", authorOf(run), "Mode", string(spec.Mode), "Model", spec.Model, "Workspace", workspace, "Phase", phaseOf(run), "Pod", status.PodName,
		"Started", cli.Moment(status.StartTime), "Completed", cli.Moment(status.CompletionTime), "Ends in", endsIn(run), "Exit code", exitCode,
	); err != nil {
		return err
	}
	credentials := []string{"Credentials", " "}
	for _, credential := range status.Credentials {
		credentials = append(credentials, "  "+credential.Name, "until "+cli.Moment(&credential.ExpiresAt))
	}
	if err := cli.Lines(c.Out, credentials...); err != nil {
		return err
	}
	if err := cli.Lines(c.Out, cli.Conditions(status.Conditions)...); err != nil {
		return err
	}
	return c.DescribeEvents(ctx, cl, run)
}

func cancelCommand(c *cli.Base) *cobra.Command {
	return &cobra.Command{
		Use: "cancel NAME", Short: "End a sandboxed run before its time",
		Long:              "End a SandboxRun: its Pod is stopped, within the grace of its template. The run stays as a\nrecord. It cannot be taken back.",
		Example:           "  kubectl access runs cancel agent-x7k2p",
		Args:              cli.Exactly("NAME"),
		ValidArgsFunction: completeRuns(c, func(run *v1alpha1.SandboxRun) bool { return !run.Status.Phase.Terminal() }),
		RunE:              func(cmd *cobra.Command, args []string) error { return cancel(cmd.Context(), c, args[0]) },
	}
}

func cancel(ctx context.Context, c *cli.Base, name string) error {
	cl, run, err := namedRun(ctx, c, name)
	if err != nil {
		return err
	}
	switch {
	case run.Status.Phase.Terminal():
		return cli.Exitf(cli.CodeRefused, "nothing to cancel: %s", howFar(run))
	case run.Spec.Cancelled:
		c.Sayf("sandboxrun/%s is cancelled already", run.Name)
		return nil
	}
	patch := fmt.Sprintf(`{"metadata": {"uid": %q}, "spec": {"cancelled": true}}`, run.UID)
	if err := cl.Patch(ctx, run, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return cli.Explained(err)
	}
	c.Sayf("sandboxrun/%s: cancelled", run.Name)
	return nil
}
