package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// runFlags are the flags of `kubectl access run`.
type runFlags struct {
	*cli.Base
	name, prompt, file, model, workspace string
	clusterTemplate                      bool
	env                                  map[string]string
	timeout                              time.Duration
	retries                              int32
	ttl                                  time.Duration
	interactive                          bool
	idle, lifetime                       time.Duration
	watch                                bool
	output                               *cli.Output
}

// RunCommand returns the command that makes a SandboxRun.
func RunCommand(c *cli.Base) *cobra.Command {
	r := &runFlags{Base: c}
	cmd := &cobra.Command{
		Use: "run TEMPLATE", Short: "Run work that nobody trusts, in a sandbox",
		Long: `Make a SandboxRun by a template, and print its name. With --watch, wait for its end and
print what it writes, as it comes: exit code 0 if it succeeded, and 1 if not. An interrupt
leaves it running.

TEMPLATE is the name of a SandboxRunTemplate, or else of a ClusterSandboxRunTemplate.`,
		Example: `  kubectl access run agent --prompt "Mend the build." --watch
  kubectl access run agent -f task.md --env TASK=7 --timeout 10m`,
		Args: cli.Exactly("TEMPLATE"),
		ValidArgsFunction: cli.FirstArgument(c.Completion(func(ctx context.Context, cl client.Client, namespace string, _ []string) ([]string, error) {
			if r.clusterTemplate {
				templates, err := cli.List(ctx, cl, &v1alpha1.ClusterSandboxRunTemplateList{}, "")
				return cli.Names(templates), err
			}
			templates, err := cli.List(ctx, cl, &v1alpha1.SandboxRunTemplateList{}, namespace)
			return cli.Names(templates), err
		})),
		RunE: func(cmd *cobra.Command, args []string) error { return r.run(cmd.Context(), args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&r.prompt, "prompt", "p", "", "what the work is to do")
	flags.StringVarP(&r.file, "filename", "f", "", "file with what the work is to do, - for standard input")
	flags.StringVar(&r.name, "name", "", "name of the run (default: the template's name and a suffix)")
	flags.BoolVar(&r.clusterTemplate, "cluster-template", false, "take the ClusterSandboxRunTemplate, even if the namespace has a SandboxRunTemplate of the name")
	flags.StringVar(&r.model, "model", "", "model for the work, which has it as $ADMITKIT_MODEL")
	flags.StringVar(&r.workspace, "workspace", "", "Workspace to work in; runs have it one at a time (default: a folder that is gone with the Pod)")
	flags.StringToStringVar(&r.env, "env", nil, "variable for the work, NAME=VALUE; repeatable")
	flags.Var(cli.NewDuration(&r.timeout, cli.MoreThanZero), "timeout", "how long all attempts may take, in whole seconds (default: the template's)")
	flags.Int32Var(&r.retries, "retries", 0, "how often the work is tried again after it failed")
	flags.Var(cli.NewDuration(&r.ttl, someTime), "ttl", "how long the run is kept after its end, in whole seconds (default: until somebody deletes it)")
	flags.BoolVarP(&r.interactive, "interactive", "i", false, "make an Interactive run, which 'kubectl access runs attach' enters, and which ends when nobody uses it")
	flags.Var(cli.NewDuration(&r.idle, cli.MoreThanZero), "idle", "how long nobody may use an Interactive run, in whole seconds (default: the template's)")
	flags.Var(cli.NewDuration(&r.lifetime, cli.MoreThanZero), "lifetime", "how long an Interactive run lives at most, in whole seconds (default: the template's)")
	flags.BoolVarP(&r.watch, "watch", "w", false, "print what the work writes, until its end")
	r.output = c.AddOutputFlags(cmd, runColumns)
	r.completeFlags(cmd)
	for _, other := range []string{"output", "template"} {
		cmd.MarkFlagsMutuallyExclusive("watch", other)
	}
	return cmd
}

// completeFlags completes the name of a Workspace, and no file where none is meant.
func (r *runFlags) completeFlags(cmd *cobra.Command) {
	_ = cmd.RegisterFlagCompletionFunc("workspace", r.Completion(func(ctx context.Context, cl client.Client, namespace string, _ []string) ([]string, error) {
		workspaces, err := cli.List(ctx, cl, &v1alpha1.WorkspaceList{}, namespace)
		return cli.Names(workspaces), err
	}))
	for _, flag := range []string{"prompt", "name", "model", "env", "timeout", "retries", "ttl", "idle", "lifetime"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions)
	}
}

func (r *runFlags) run(ctx context.Context, template string) error {
	run, err := r.asked(template)
	if err != nil {
		return err
	}
	show, err := r.output.Printer(false)
	if err != nil {
		return err
	}
	cl, namespace, err := r.Connect()
	if err != nil {
		return err
	}
	run.Namespace = namespace
	if err := cl.Create(ctx, run); err != nil {
		return cli.Explained(err)
	}
	r.Sayf("sandboxrun/%s created in namespace %s", run.Name, namespace)
	switch {
	case r.watch:
		f, err := newFollower(r.Base)
		if err != nil {
			return err
		}
		return r.watchRun(ctx, cl, run, f)
	case r.output.Asked():
		return show(run)
	}
	_, err = fmt.Fprintln(r.Out, run.Name)
	return err
}

// asked returns the run that the flags ask for.
func (r *runFlags) asked(template string) (*v1alpha1.SandboxRun, error) {
	prompt, err := r.readPrompt()
	if err != nil {
		return nil, err
	}
	run := &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Name: r.name}, Spec: v1alpha1.SandboxRunSpec{
		TemplateRef: v1alpha1.SandboxRunTemplateRef{Name: template}, Prompt: prompt, Model: r.model, Retries: r.retries,
	}}
	if r.name == "" {
		run.GenerateName = strings.TrimRight(template[:min(len(template), 46)], "-.") + "-"
	}
	if r.workspace != "" {
		run.Spec.WorkspaceRef = &v1alpha1.SandboxWorkspaceRef{Name: r.workspace}
	}
	if r.clusterTemplate {
		run.Spec.TemplateRef.Kind = "ClusterSandboxRunTemplate"
	}
	if run.Spec.TimeoutSeconds, err = seconds(r.timeout, "--timeout"); err != nil {
		return nil, err
	}
	ttl, err := seconds(r.ttl, "--ttl")
	if err != nil {
		return nil, err
	}
	if ttl != nil {
		run.Spec.TTLSecondsAfterFinished = new(int32(min(*ttl, 1<<31-1))) //nolint:gosec // it is bounded here
	}
	for name, value := range r.env {
		run.Spec.ExtraEnv = append(run.Spec.ExtraEnv, v1alpha1.SandboxEnv{Name: name, Value: value})
	}
	slices.SortFunc(run.Spec.ExtraEnv, func(a, b v1alpha1.SandboxEnv) int { return strings.Compare(a.Name, b.Name) })
	return run, r.setInteractive(&run.Spec)
}

func someTime(d time.Duration) error {
	if d <= 0 {
		return errors.New("must be more than 0; leave it out for a run that stays")
	}
	return nil
}

// setInteractive makes a run Interactive, if the flags say so.
func (r *runFlags) setInteractive(spec *v1alpha1.SandboxRunSpec) error {
	if !r.interactive {
		if r.idle > 0 || r.lifetime > 0 {
			return cli.Exitf(cli.CodeUsage, "--idle and --lifetime are for an Interactive run: add --interactive")
		}
		return nil
	}
	if r.timeout > 0 || r.retries != 0 {
		return cli.Exitf(cli.CodeUsage, "--timeout and --retries are for Batch runs: with --interactive, --lifetime says how long the run lives")
	}
	spec.Mode = v1alpha1.SandboxInteractive
	idle, err := seconds(r.idle, "--idle")
	if err != nil {
		return err
	}
	lifetime, err := seconds(r.lifetime, "--lifetime")
	if err == nil && (idle != nil || lifetime != nil) {
		spec.Interactive = &v1alpha1.InteractiveLimits{IdleSeconds: idle, MaxLifetimeSeconds: lifetime}
	}
	return err
}

// readPrompt reads what the work is to do, no further than a run may have it.
func (r *runFlags) readPrompt() (string, error) {
	if r.file != "" && r.prompt != "" {
		return "", cli.Exitf(cli.CodeUsage, "--prompt and -f: give one of them")
	}
	switch r.file {
	case "":
		if r.prompt == "" {
			return "", cli.Exitf(cli.CodeUsage, "--prompt or -f: say what the work is to do")
		}
		return r.prompt, nil
	case "-":
		return r.readFrom(r.In)
	}
	file, err := os.Open(r.file)
	if err != nil {
		return "", cli.Exitf(cli.CodeUsage, "-f: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	return r.readFrom(file)
}

func (r *runFlags) readFrom(in io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(in, v1alpha1.MaxPromptBytes+1))
	switch {
	case err != nil:
		return "", cli.Exitf(cli.CodeUsage, "-f: %w", err)
	case len(text) > v1alpha1.MaxPromptBytes:
		return "", cli.Exitf(cli.CodeUsage, "-f: more than %d bytes: put it into a ConfigMap, and make a SandboxRun with spec.promptFrom", v1alpha1.MaxPromptBytes)
	case len(text) == 0:
		return "", cli.Exitf(cli.CodeUsage, "-f: it is empty")
	}
	return string(text), nil
}

// seconds returns whole seconds, nil for none.
func seconds(d time.Duration, flag string) (*int64, error) {
	switch {
	case d == 0:
		return nil, nil //nolint:nilnil // none is the default
	case d%time.Second != 0:
		return nil, cli.Exitf(cli.CodeUsage, "%s: %s is not in whole seconds", flag, d)
	}
	return new(int64(d / time.Second)), nil
}

// watchRun waits for the end of a run, says what it waits for, and prints what it writes.
func (r *runFlags) watchRun(ctx context.Context, cl client.WithWatch, run *v1alpha1.SandboxRun, f *follower) error {
	said, uid := "", run.UID
	for {
		watcher, err := cl.Watch(ctx, &v1alpha1.SandboxRunList{}, client.InNamespace(run.Namespace), client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", run.Name)})
		if err != nil {
			return r.left(ctx, run, cli.Explained(err))
		}
		for event := range watcher.ResultChan() {
			seen, ok := event.Object.(*v1alpha1.SandboxRun)
			if !ok {
				break // an error of the watch: begin anew
			}
			if event.Type == watch.Deleted || seen.UID != uid {
				watcher.Stop()
				return cli.Exitf(cli.CodeNotFound, "sandboxrun/%s was deleted", run.Name)
			}
			if now := howFar(seen); now != said {
				said = now
				r.Sayf("%s", cli.Escape(now))
			}
			f.see(ctx, seen)
			if seen.Status.Phase.Terminal() {
				watcher.Stop()
				return r.ended(r.rest(ctx, cl, seen, f), f)
			}
		}
		watcher.Stop()
		if ctx.Err() != nil {
			return r.left(ctx, run, cli.Explained(ctx.Err()))
		}
	}
}

// left says what becomes of a run that nobody waits for any more.
func (r *runFlags) left(ctx context.Context, run *v1alpha1.SandboxRun, err error) error {
	if ctx.Err() != nil {
		r.Sayf("sandboxrun/%s goes on; 'kubectl access runs cancel %s' ends it", run.Name, run.Name)
		return cli.Exitf(cli.CodeInterrupted, "interrupted")
	}
	return err
}

// restPatience is how long the last lines of a run may take to come.
const restPatience = 10 * time.Second

// rest prints the last lines of a run that has ended. The status has them a moment later.
func (r *runFlags) rest(ctx context.Context, cl client.Client, run *v1alpha1.SandboxRun, f *follower) *v1alpha1.SandboxRun {
	f.finish(run, restPatience)
	for until := time.Now().Add(restPatience); f.ofState && !run.Status.OutputClosed && time.Now().Before(until); {
		select {
		case <-ctx.Done():
			return run
		case <-time.After(200 * time.Millisecond):
		}
		now := &v1alpha1.SandboxRun{}
		if err := cl.Get(ctx, client.ObjectKeyFromObject(run), now); err != nil || now.UID != run.UID {
			return run
		}
		run = now
		f.showEvents(run)
	}
	return run
}

// ended prints what a run wrote last, unless that is printed already.
func (r *runFlags) ended(run *v1alpha1.SandboxRun, f *follower) error {
	if output := strings.TrimSuffix(run.Status.Output, "\n"); output != "" && !f.has(output) {
		if _, err := fmt.Fprintln(r.Out, cli.Escape(output)); err != nil {
			return err
		}
	}
	if run.Status.Phase == v1alpha1.SandboxSucceeded {
		return nil
	}
	return cli.Exitf(cli.CodeError, "%s", howFar(run))
}

// howFar says how far a run is, and what it waits for.
func howFar(run *v1alpha1.SandboxRun) string {
	parts := []string{"sandboxrun/" + run.Name + " is " + strings.ToLower(phaseOf(run))}
	for _, condition := range run.Status.Conditions {
		waits := condition.Status == metav1.ConditionFalse && condition.Message != "" && !run.Status.Phase.Terminal()
		if waits || condition.Type == v1alpha1.ConditionCompleted && run.Status.Phase.Terminal() && run.Status.Phase != v1alpha1.SandboxSucceeded {
			parts = append(parts, condition.Reason+": "+condition.Message)
		}
	}
	return strings.Join(parts, "; ")
}

func phaseOf(run *v1alpha1.SandboxRun) string {
	if run.Status.Phase == "" {
		return "New"
	}
	return string(run.Status.Phase)
}

func authorOf(run *v1alpha1.SandboxRun) string {
	if run.Spec.Author == nil {
		return ""
	}
	return run.Spec.Author.Username
}

// endsIn says when an Interactive run ends if nobody uses it, and how many are in it as far as that is known.
func endsIn(run *v1alpha1.SandboxRun) string {
	i := run.Status.Interactive
	if i == nil || i.EndsTime == nil || run.Status.Phase.Terminal() {
		return ""
	}
	left := duration.HumanDuration(max(time.Until(i.EndsTime.Time), 0))
	if i.AttachedSessions > 0 {
		return fmt.Sprintf("%s (%d attached)", left, i.AttachedSessions)
	}
	return left
}

func ofRun(f func(*v1alpha1.SandboxRun) string) func(client.Object) string {
	return func(object client.Object) string { return f(object.(*v1alpha1.SandboxRun)) }
}

var runColumns = []cli.Column{
	{Name: "NAMESPACE", Of: client.Object.GetNamespace},
	{Name: "NAME", Of: client.Object.GetName},
	{Name: "TEMPLATE", Of: ofRun(func(r *v1alpha1.SandboxRun) string { return r.Spec.TemplateRef.Name })},
	{Name: "PHASE", Of: ofRun(phaseOf)},
	{Name: "AUTHOR", Of: ofRun(authorOf)},
	{Name: "ENDS IN", Of: ofRun(endsIn)},
	{Name: "AGE", Of: cli.Age},
	{Name: "MODE", Wide: true, Of: ofRun(func(r *v1alpha1.SandboxRun) string { return string(r.Spec.Mode) })},
	{Name: "POD", Wide: true, Of: ofRun(func(r *v1alpha1.SandboxRun) string { return r.Status.PodName })},
	{Name: "EXIT", Wide: true, Of: ofRun(func(r *v1alpha1.SandboxRun) string {
		if r.Status.ExitCode == nil {
			return ""
		}
		return strconv.Itoa(int(*r.Status.ExitCode))
	})},
}
