package runs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// workContainer is the container in the Pod of a run that does the work.
const workContainer = "sandbox"

// follower prints what the work of a run writes, as it comes: its log, with the rights of the user, or else the lines that
// the status of the run has.
type follower struct {
	*cli.Base
	logs func(ctx context.Context, namespace, pod string, follow bool) (io.ReadCloser, error)

	pod     string           // whose log is printed
	printed chan error       // when that has ended
	shown   metav1.MicroTime // the time of the newest line of the status that was printed
	ofState bool             // whether the lines are those of the status

	mu   sync.Mutex
	tail string // the end of what was printed
}

// maxTail is how much output is remembered, so that the same is not printed again: as much as a status has.
const maxTail = 8 << 10

func newFollower(c *cli.Base) (*follower, error) {
	config, err := c.Flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config.WarningHandler = c.WarningHandler()
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &follower{Base: c, logs: func(ctx context.Context, namespace, pod string, follow bool) (io.ReadCloser, error) {
		return clients.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: workContainer, Follow: follow}).Stream(ctx)
	}}, nil
}

// see prints what is new of a run.
func (f *follower) see(ctx context.Context, run *v1alpha1.SandboxRun) {
	if f.printed != nil {
		select {
		case err := <-f.printed:
			f.ended(run, err)
		default:
		}
	}
	if begun := run.Status.Phase == v1alpha1.SandboxRunning || run.Status.Phase.Terminal(); begun && !f.ofState && f.printed == nil && run.Status.PodName != "" && run.Status.PodName != f.pod {
		f.pod, f.printed = run.Status.PodName, make(chan error, 1)
		go func(pod string) { f.printed <- f.print(ctx, run.Namespace, pod, true) }(f.pod)
	}
	if f.ofState {
		f.showEvents(run)
	}
}

// finish waits for the rest of the log of a run that has ended.
func (f *follower) finish(run *v1alpha1.SandboxRun, within time.Duration) {
	if f.printed != nil {
		select {
		case err := <-f.printed:
			f.ended(run, err)
		case <-time.After(within):
			f.Sayf("the rest of the log does not come; 'kubectl access runs logs %s' shows it", run.Name)
		}
	}
	if f.ofState {
		f.showEvents(run)
	}
}

// ended says why a log cannot be read, and goes on with the status.
func (f *follower) ended(run *v1alpha1.SandboxRun, err error) {
	f.printed = nil
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return
	case apierrors.IsForbidden(err):
		f.Sayf("you have not the right to get pods/log in namespace %s: every ten seconds, the last lines follow that sandboxrun/%s has", run.Namespace, run.Name)
	default:
		f.Sayf("the log of pod/%s cannot be read: %s: the last lines follow that sandboxrun/%s has", f.pod, cli.Escape(err.Error()), run.Name)
	}
	f.ofState = true
}

// print prints the log of a Pod.
func (f *follower) print(ctx context.Context, namespace, pod string, follow bool) error {
	log, err := f.logs(ctx, namespace, pod, follow)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // it was only read
	lines := bufio.NewReaderSize(log, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			f.put(string(line))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// showEvents prints the lines of the status that are new.
func (f *follower) showEvents(run *v1alpha1.SandboxRun) {
	for _, event := range run.Status.RecentEvents {
		if event.Time.After(f.shown.Time) {
			f.shown = event.Time
			f.put(strings.TrimPrefix(event.Type+": "+event.Message, ": ") + "\n")
		}
	}
}

// put prints what the work wrote.
func (f *follower) put(text string) {
	_, _ = fmt.Fprint(f.Out, cli.Escape(text)) // nobody reads it any more
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tail += text
	f.tail = f.tail[max(len(f.tail)-maxTail, 0):]
}

// has reports whether a text was printed a moment ago.
func (f *follower) has(text string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Contains(f.tail, text)
}

func logsCommand(c *cli.Base) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Print what a sandboxed run writes",
		Long: `Print the log of a SandboxRun, with your own right to get pods/log. Without it, or when the
Pod is gone, print the last lines, which the run itself has: at most 50.`,
		Example:           "  kubectl access runs logs agent-x7k2p --follow",
		Args:              cli.Exactly("NAME"),
		ValidArgsFunction: completeRuns(c, func(*v1alpha1.SandboxRun) bool { return true }),
		RunE:              func(cmd *cobra.Command, args []string) error { return printLogs(cmd.Context(), c, args[0], follow) },
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print what it writes until it has ended")
	return cmd
}

func printLogs(ctx context.Context, c *cli.Base, name string, follow bool) error {
	cl, run, err := namedRun(ctx, c, name)
	if err != nil {
		return err
	}
	f, err := newFollower(c)
	if err != nil {
		return err
	}
	if follow && !run.Status.Phase.Terminal() {
		return (&runFlags{Base: c}).watchRun(ctx, cl, run, f)
	}
	if run.Status.PodName == "" {
		return cli.Exitf(cli.CodeError, "it has written nothing: %s", howFar(run))
	}
	f.pod = run.Status.PodName
	err = f.print(ctx, run.Namespace, f.pod, false)
	if ctx.Err() != nil {
		return cli.Explained(ctx.Err())
	}
	f.ended(run, err)
	f.finish(run, 0)
	return nil
}

// namedRun connects, and reads the run that somebody names.
func namedRun(ctx context.Context, c *cli.Base, name string) (client.WithWatch, *v1alpha1.SandboxRun, error) {
	cl, namespace, err := c.Connect()
	if err != nil {
		return nil, nil, err
	}
	name = strings.TrimPrefix(strings.TrimPrefix(name, "sandboxruns.admitkit.dev/"), "sandboxrun/")
	run := &v1alpha1.SandboxRun{}
	err = cl.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, run)
	if apierrors.IsNotFound(err) {
		return nil, nil, cli.Exitf(cli.CodeNotFound, "there is no run %q in namespace %s; 'kubectl access runs list' shows those that are", name, namespace)
	}
	return cl, run, cli.Explained(err)
}

// completeRuns completes the name of a run.
func completeRuns(c *cli.Base, which func(*v1alpha1.SandboxRun) bool) cobra.CompletionFunc {
	return cli.FirstArgument(c.Completion(func(ctx context.Context, cl client.Client, namespace string, _ []string) (found []string, err error) {
		runs, err := cli.List(ctx, cl, &v1alpha1.SandboxRunList{}, namespace)
		for _, object := range runs {
			if which(object.(*v1alpha1.SandboxRun)) {
				found = append(found, object.GetName())
			}
		}
		return found, err
	}))
}
