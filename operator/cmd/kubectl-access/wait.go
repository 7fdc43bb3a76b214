package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apiwait "k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// wait waits until access is ready, and says how far it has come. It ends early
// when what is wrong cannot become right.
func (a *ask) wait(ctx context.Context, cl client.WithWatch, req request) error {
	progress := newProgress(a.ErrOut)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	timeout := &countdown{ask: a, timer: time.AfterFunc(a.timeout, cancel)}
	defer timeout.timer.Stop()
	var latest atomic.Pointer[request]
	show := func(req request) {
		text := cli.Escape(cmp.Or(aboutPod(waiting, cl, req), stage(req)))
		if waiting.Err() == nil { // else the Pod was perhaps not read
			progress.show(text)
		}
	}
	// Users may get the Pod of their request, and not always watch it.
	var polling sync.WaitGroup
	polling.Go(func() {
		apiwait.UntilWithContext(waiting, func(context.Context) {
			if req := latest.Load(); req != nil {
				show(*req)
			}
		}, podInterval)
	})
	err := follow(waiting, cl, req, func() (bool, error) {
		// What is hopeless is said once, by the error.
		err := hopeless(waiting, cl, req)
		if ready := req.GetRequestStatus().Ready; ready || err != nil {
			return ready, err
		}
		timeout.see(req)
		now := req.DeepCopyObject().(request)
		latest.Store(&now)
		show(now)
		return false, nil
	})
	cancelled := waiting.Err()
	cancel()
	polling.Wait()
	last := progress.done()
	switch {
	case err == nil:
		a.Sayf("%s: access until %s, for %s", req.GetName(), cli.Until(req.GetRequestStatus().ExpiresAt.Time), left(req))
		if why := troubled(ctx, cl, req.GetNamespace(), req.GetRequestStatus().PodName); why != "" {
			a.Sayf("the Pod is not ready: %s", cli.Escape(why))
		}
		return nil
	case ctx.Err() != nil:
		return a.interrupted(ctx, cl, req)
	case cancelled != nil:
		return cli.Exitf(cli.CodeTimeout, "not ready after %s: %s\n%s", cli.Short(a.timeout), last, kept(req))
	}
	return err
}

// countdown ends a wait. The time in which approval is awaited does not count, if it is to
// be awaited.
type countdown struct {
	*ask
	timer   *time.Timer
	stopped bool
}

func (c *countdown) see(req request) {
	switch waits := waitsForApproval(req); {
	case !c.waitApproval || waits == c.stopped:
	case waits:
		c.stopped = true
		c.timer.Stop()
	default:
		c.stopped = false
		c.timer.Reset(c.timeout)
	}
}

// podInterval is how often a Pod that is not ready is asked why.
const podInterval = time.Second

// follow calls done with each state of a request until it says so. It ends when
// the request may not be watched: trying again would not help.
func follow(ctx context.Context, cl client.WithWatch, req request, done func() (bool, error)) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	refused := func(err error) error {
		if apierrors.IsForbidden(err) {
			end(err)
		}
		return err
	}
	// The informer lists and watches in goroutines of its own, and req is written
	// in this one.
	k, namespace, name := kindOf(req), req.GetNamespace(), req.GetName()
	options := func(o metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{Namespace: namespace, FieldSelector: fields.OneTermEqualSelector("metadata.name", name), Raw: &o}
	}
	one := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := k.newList()
			return list, refused(cl.List(ctx, list, options(o)))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			watcher, err := cl.Watch(ctx, k.newList(), options(o))
			return watcher, refused(err)
		},
	}
	// The informer would log on the terminal what it tries again.
	_, err := watchtools.UntilWithSync(klog.NewContext(ctx, logr.Discard()), one, k.newRequest(), nil, func(event watch.Event) (bool, error) {
		if event.Type == watch.Deleted {
			return false, cli.Exitf(cli.CodeNotFound, "the request %s was deleted", name)
		}
		copyInto(req, event.Object)
		return done()
	})
	if cause := context.Cause(ctx); apierrors.IsForbidden(cause) {
		return cli.Exitf(cli.CodeRefused, "cannot tell when access is ready: %s\n%s", cli.Why(cause), kept(req))
	}
	return cli.Explained(err)
}

// kept says what may be done with a request that nobody waits for any more.
func kept(req request) string {
	return fmt.Sprintf("The request is kept: see 'kubectl access describe %[1]s -n %[2]s', or 'kubectl access revoke %[1]s -n %[2]s'", req.GetName(), req.GetNamespace())
}

func copyInto(req request, from runtime.Object) {
	switch into := req.(type) {
	case *v1alpha1.PodAccessRequest:
		from.(*v1alpha1.PodAccessRequest).DeepCopyInto(into)
	case *v1alpha1.ExecAccessRequest:
		from.(*v1alpha1.ExecAccessRequest).DeepCopyInto(into)
	case *v1alpha1.RoleAccessRequest:
		from.(*v1alpha1.RoleAccessRequest).DeepCopyInto(into)
	}
}

// stages are what a request goes through, in order, with words for each.
var stages = []struct{ condition, waiting string }{
	{v1alpha1.ConditionTargetTemplateExists, "waiting for admitkit"},
	{v1alpha1.ConditionAccessDurationsValid, "checking the duration"},
	{v1alpha1.ConditionApproved, "waiting for approval"},
	{v1alpha1.ConditionChecked, "waiting for the check"},
	{v1alpha1.ConditionAccessResourcesCreated, "granting access"},
	{v1alpha1.ConditionAccessMessage, "making the access command"},
	{v1alpha1.ConditionAccessResourcesReady, "waiting for the Pod"},
}

// stage says where a request is: the first of its conditions that is not known, or
// does not hold.
func stage(req request) string {
	if c := unmet(req); c != nil {
		return words(c)
	}
	for _, s := range stages {
		if s.condition == v1alpha1.ConditionChecked || s.condition == v1alpha1.ConditionApproved && req.GetRequestSpec().Approval == nil {
			continue // only some requests have it
		}
		if meta.FindStatusCondition(req.GetRequestStatus().Conditions, s.condition) == nil {
			return s.waiting
		}
	}
	return "ready"
}

// unmet returns the first condition of a request that does not hold, or nil.
func unmet(req request) *metav1.Condition {
	conditions := req.GetRequestStatus().Conditions
	if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionAccessStillValid); c != nil && c.Status == metav1.ConditionFalse {
		return c
	}
	for _, s := range stages {
		c := meta.FindStatusCondition(conditions, s.condition)
		if c != nil && c.Status != metav1.ConditionTrue {
			return c
		}
	}
	return nil
}

// standing says in a word how a request stands: Ready, or why it is not.
func standing(req request) string {
	c := unmet(req)
	switch {
	case c != nil:
		return c.Reason
	case req.GetRequestSpec().Revoked != nil:
		return v1alpha1.ReasonRevoked
	case v1alpha1.Over(req, time.Now()):
		return v1alpha1.ReasonExpired
	case req.GetRequestStatus().Ready:
		return "Ready"
	}
	return "Pending"
}

func words(c *metav1.Condition) string {
	if c.Message == "" {
		return c.Type + " is " + string(c.Status) + ": " + c.Reason
	}
	return cli.Plain(c.Message) + " (" + c.Reason + ")"
}

// hopeless returns an error if a request cannot become ready until somebody changes
// something else. That includes a Pod that the API server refuses, although a quota
// may be free again at some time: the user who waits wants to know why at once, and
// the request is tried again all the same.
func hopeless(ctx context.Context, cl client.Client, req request) error {
	c := unmet(req)
	switch {
	case c == nil:
		return nil
	case c.Type == v1alpha1.ConditionAccessStillValid:
		return cli.Exitf(cli.CodeRefused, "access has ended: %s", words(c))
	}
	switch c.Reason {
	case v1alpha1.ReasonNotAllowed, v1alpha1.ReasonTooMany, v1alpha1.ReasonDurationInvalid, v1alpha1.ReasonDurationTooLong, v1alpha1.ReasonMissing,
		v1alpha1.ReasonSingleUse, v1alpha1.ReasonRequesterUnknown, v1alpha1.ReasonPodGone, v1alpha1.ReasonPodEnded,
		v1alpha1.ReasonNameTaken, v1alpha1.ReasonPodRefused, v1alpha1.ReasonNotRecorded, v1alpha1.ReasonUnknownPod, v1alpha1.ReasonTemplateInvalid, v1alpha1.ReasonCheckReplaced,
		v1alpha1.ReasonRoleLost, v1alpha1.ReasonRoleNotAllowed:
		reason := words(c)
		if pod := aboutPod(ctx, cl, req); pod != "" {
			reason += "\n" + pod
		}
		return cli.Exitf(cli.CodeRefused, "refused: %s\n%s", reason, kept(req))
	}
	return nil
}

// interrupted offers to revoke a request that nobody waits for any more.
func (a *ask) interrupted(ctx context.Context, cl client.Client, req request) error {
	keep := func() error { return cli.Exitf(cli.CodeInterrupted, "interrupted\n%s", kept(req)) }
	if !isTerminal(a.In) || !isTerminal(a.ErrOut) {
		return keep()
	}
	_, _ = fmt.Fprintf(a.ErrOut, "Revoke %s? [Y/n] ", req.GetName())
	answer, err := bufio.NewReader(a.In).ReadString('\n')
	if err != nil || strings.HasPrefix(strings.ToLower(strings.TrimSpace(answer)), "n") {
		return keep()
	}
	revoking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := revoke(revoking, cl, req, "nobody waits for it"); err != nil {
		return cli.Exitf(cli.CodeInterrupted, "interrupted; revoking %s failed: %s\n%s", req.GetName(), cli.Why(err), kept(req))
	}
	return cli.Exitf(cli.CodeInterrupted, "interrupted; %s is revoked", req.GetName())
}

// progress shows what is being waited for: with a spinner on a terminal, else a
// line whenever it changes.
type progress struct {
	out      io.Writer
	terminal bool
	stages   chan string
	ended    chan struct{}
	current  string
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, terminal: isTerminal(out), stages: make(chan string), ended: make(chan struct{}), current: stages[0].waiting}
	go p.run()
	return p
}

func (p *progress) show(stage string) { p.stages <- stage }

// done takes the spinner away, and returns what was waited for last.
func (p *progress) done() string {
	close(p.stages)
	<-p.ended
	return p.current
}

func (p *progress) run() {
	defer close(p.ended)
	const frames, wipe = `|/-\`, "\r\x1b[K"
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		if p.terminal {
			p.print(fmt.Sprintf("%s%c %s", wipe, frames[i%len(frames)], p.current))
		}
		select {
		case next, ok := <-p.stages:
			if !ok {
				if p.terminal {
					p.print(wipe)
				}
				return
			}
			if next != p.current && !p.terminal {
				p.print(next + "\n")
			}
			p.current = next
		case <-tick.C:
		}
	}
}

// print does what it can: progress is not what was asked for.
func (p *progress) print(text string) { _, _ = io.WriteString(p.out, text) }

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
