package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// runsCommand returns the commands about SandboxRuns.
func runsCommand(c *cli) *cobra.Command {
	return group(&cobra.Command{Use: "runs", Short: "List, describe, follow, enter and cancel sandboxed runs"},
		runsList(c), runsDescribe(c), runsLogs(c), runsAttach(c), runsCancel(c))
}

func runsList(c *cli) *cobra.Command {
	var mine bool
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls", "get"}, Short: "List sandboxed runs, and how far they are"}
	cmd.Flags().BoolVar(&mine, "mine", false, "only those that you made")
	return c.listing(cmd, "runs", runColumns, func(ctx context.Context, cl client.Client, scope client.InNamespace) ([]client.Object, error) {
		objects, err := listOf(ctx, cl, &v1alpha1.SandboxRunList{}, string(scope))
		if err != nil || !mine {
			return objects, explained(err)
		}
		me, err := whoAmI(ctx, cl)
		return slices.DeleteFunc(objects, func(object client.Object) bool { return authorOf(object.(*v1alpha1.SandboxRun)) != me.Username }), err
	})
}

func runsDescribe(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "describe NAME", Short: "Show what a sandboxed run asks for, and what became of it",
		Example:           "  kubectl access runs describe agent-x7k2p",
		Args:              exactly("NAME"),
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

func describeRun(ctx context.Context, c *cli, cl client.Client, run *v1alpha1.SandboxRun) error {
	spec, status := &run.Spec, &run.Status
	var workspace, exitCode string
	if spec.WorkspaceRef != nil {
		workspace = spec.WorkspaceRef.Name
	}
	if status.ExitCode != nil {
		exitCode = fmt.Sprint(*status.ExitCode)
	}
	if err := lines(c.Out,
		"Name", run.Name, "Namespace", run.Namespace, "Template", cmp.Or(spec.TemplateRef.Kind, "SandboxRunTemplate")+"/"+spec.TemplateRef.Name,
		"Author", authorOf(run), "Mode", string(spec.Mode), "Model", spec.Model, "Workspace", workspace, "Phase", phaseOf(run), "Pod", status.PodName,
		"Started", moment(status.StartTime), "Completed", moment(status.CompletionTime), "Ends in", endsIn(run), "Exit code", exitCode,
	); err != nil {
		return err
	}
	credentials := []string{"Credentials", " "}
	for _, credential := range status.Credentials {
		credentials = append(credentials, "  "+credential.Name, "until "+moment(&credential.ExpiresAt))
	}
	if err := lines(c.Out, credentials...); err != nil {
		return err
	}
	if err := lines(c.Out, conditionsOf(status.Conditions)...); err != nil {
		return err
	}
	return c.describeEvents(ctx, cl, run)
}

func runsCancel(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "cancel NAME", Short: "End a sandboxed run before its time",
		Long:              "End a SandboxRun: its Pod is stopped, within the grace of its template. The run stays as a\nrecord. It cannot be taken back.",
		Example:           "  kubectl access runs cancel agent-x7k2p",
		Args:              exactly("NAME"),
		ValidArgsFunction: completeRuns(c, func(run *v1alpha1.SandboxRun) bool { return !run.Status.Phase.Terminal() }),
		RunE:              func(cmd *cobra.Command, args []string) error { return cancel(cmd.Context(), c, args[0]) },
	}
}

func cancel(ctx context.Context, c *cli, name string) error {
	cl, run, err := namedRun(ctx, c, name)
	if err != nil {
		return err
	}
	switch {
	case run.Status.Phase.Terminal():
		return exitf(codeRefused, "nothing to cancel: %s", howFar(run))
	case run.Spec.Cancelled:
		c.sayf("sandboxrun/%s is cancelled already", run.Name)
		return nil
	}
	patch := fmt.Sprintf(`{"metadata": {"uid": %q}, "spec": {"cancelled": true}}`, run.UID)
	if err := cl.Patch(ctx, run, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return explained(err)
	}
	c.sayf("sandboxrun/%s: cancelled", run.Name)
	return nil
}
