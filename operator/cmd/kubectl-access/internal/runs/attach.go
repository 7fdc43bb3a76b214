package runs

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// shellOfWork is what attach runs: bash where the image has it, and else sh.
var shellOfWork = []string{"/bin/sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh"}

func attachCommand(c *cli.Base) *cobra.Command {
	return &cobra.Command{
		Use: "attach NAME [-- COMMAND]", Short: "Open a shell in a sandboxed run",
		Long: `Run a command in the container of a SandboxRun that runs, by default a shell, with your own
right to exec. Only an Interactive run waits for you; a Batch run ends when its work does.`,
		Example: `  kubectl access runs attach pair-x7k2p
  kubectl access runs attach pair-x7k2p -- git status`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args = args[:dash]
			}
			return cli.Exactly("NAME")(cmd, args)
		},
		ValidArgsFunction: completeRuns(c, func(run *v1alpha1.SandboxRun) bool { return run.Status.Phase == v1alpha1.SandboxRunning }),
		RunE:              func(cmd *cobra.Command, args []string) error { return attach(cmd.Context(), c, args[0], args[1:]) },
	}
}

func attach(ctx context.Context, c *cli.Base, name string, command []string) error {
	cl, run, err := namedRun(ctx, c, name)
	if err != nil {
		return err
	}
	if run.Status.Phase != v1alpha1.SandboxRunning || run.Status.PodName == "" {
		return cli.Exitf(cli.CodeRefused, "nobody can enter it: %s", howFar(run))
	}
	if err := mayExec(ctx, cl, run.Namespace, run.Status.PodName); err != nil {
		return err
	}
	if i := run.Status.Interactive; i != nil && i.EndsTime != nil {
		c.Sayf("sandboxrun/%s ends at %s if nobody uses it until then (%s)", run.Name, cli.Moment(i.EndsTime), i.EndsReason)
	}
	args := []string{"exec", "--namespace=" + run.Namespace, "--stdin=true"}
	if in, ok := c.In.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		args = append(args, "--tty=true")
	}
	if len(command) == 0 {
		command = shellOfWork
	}
	args = append(args, "--container="+workContainer, "pod/"+run.Status.PodName, "--")
	return c.Kubectl(ctx, append(args, command...))
}

// mayExec says which right is missing to exec into a Pod.
func mayExec(ctx context.Context, cl client.Client, namespace, pod string) error {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: "create", Version: "v1", Resource: "pods", Subresource: "exec", Name: pod,
	}}}
	if err := cl.Create(ctx, review); err != nil {
		return cli.Explained(err)
	}
	if !review.Status.Allowed {
		return cli.Exitf(cli.CodeRefused, "you have not the right to create pods/exec for pod/%s in namespace %s: let somebody grant it to you, together with get on pods", pod, namespace)
	}
	return nil
}
