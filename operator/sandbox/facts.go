package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// facts are what a decision depends on.
type facts struct {
	run *v1alpha1.SandboxRun
	// job is the run's, nil if there is none, and pods are those of the run, the newest last.
	job  *batchv1.Job
	pods []*corev1.Pod
	// unproven says that the Job names the run as its owner, and is not in its status: an attempt that did not get to the
	// status has made it, or somebody else has.
	unproven bool
	// lost says that the Job that the run had is gone, and left names a Pod of that which has not ended, "" for none.
	lost bool
	left string
	// orphans are Pods of the run whose Job somebody deleted without them.
	orphans []*corev1.Pod
	// policy is the one that holds the Pods, nil if there is none.
	policy *unstructured.Unstructured
	// startTimeout is how long the work has to begin.
	startTimeout time.Duration
	// refusal is why the controller of Jobs cannot make the Pod, "" if nothing is known of that.
	refusal string
	// activity is what is known of the people in an Interactive run that has its Job, and unwatched why that is nothing.
	activity  *activity
	unwatched error
	// options and apiServer are what policies are composed of.
	options   *egress.Options
	apiServer []netip.AddrPort

	// The following are read only for a run that is to be started.

	// plan is what the template and the run make together, and unresolved why there is none.
	plan       *workload.Plan
	unresolved *conditions.Obstacle
	// brokered is what BrokerPolicies make of the run, nil if none applies, and unbrokered why they cannot.
	brokered   *brokered
	unbrokered *conditions.Obstacle
	// held is how the Pods are to be held, and unheld why they cannot be.
	held   *v1alpha1.EgressDecision
	unheld *conditions.Obstacle
	// claimed says that the run has its Workspace, and unclaimed why it does not yet.
	claimed   bool
	unclaimed *conditions.Obstacle
}

// startable reports whether a run has no Job, and is to get one.
func startable(run *v1alpha1.SandboxRun) bool {
	return !run.Status.Phase.Terminal() && run.DeletionTimestamp.IsZero() && !run.Spec.Cancelled && run.Status.JobUID == ""
}

// read gathers the facts about a run.
func (r *runs) read(ctx context.Context, run *v1alpha1.SandboxRun) (*facts, error) {
	f := &facts{run: run, options: &r.options.Egress, startTimeout: r.options.StartTimeout}
	if err := r.readJob(ctx, f); err != nil {
		return nil, err
	}
	if err := r.readPods(ctx, f); err != nil {
		return nil, err
	}
	if err := r.readPolicy(ctx, f); err != nil {
		return nil, err
	}
	if err := r.readRefusal(ctx, f); err != nil {
		return nil, err
	}
	if !startable(run) || f.job != nil && !f.unproven {
		r.readActivity(ctx, f)
		return f, nil
	}
	ws, err := r.readClaim(ctx, f)
	if err != nil {
		return nil, err
	}
	if err := r.readPlan(ctx, f); err != nil || f.plan == nil {
		return f, err
	}
	if err := r.readBrokered(ctx, f); err != nil || f.unbrokered != nil {
		return f, err
	}
	if err := r.readHold(ctx, f); err != nil {
		return f, err
	}
	return f, r.readQueue(ctx, f, ws)
}

// readPods finds the Pods of the run's Job, and those that somebody keeps of an earlier one.
func (r *runs) readPods(ctx context.Context, f *facts) error {
	run, job := f.run, f.job
	var pods corev1.PodList
	if err := r.cached.List(ctx, &pods, client.InNamespace(run.Namespace), client.MatchingLabels{v1alpha1.LabelSandboxRun: run.Name}); err != nil {
		return err
	}
	if job == nil {
		job = &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: owned.Name(run).Name, UID: types.UID(run.Status.JobUID)}}
	}
	for i := range pods.Items {
		switch pod := &pods.Items[i]; {
		case owned.Is(pod, owned.ByJob(job)):
			f.pods = append(f.pods, pod)
		case owned.IsOrphan(pod) && pod.Labels[v1alpha1.LabelEgress] == string(run.UID):
			f.orphans = append(f.orphans, pod)
		}
	}
	slices.SortFunc(f.pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	if !f.lost || run.Status.Phase.Terminal() {
		return nil
	}
	var err error
	f.left, err = r.podThatRuns(ctx, owned.PodsOfRun(run))
	return err
}

// readJob reads the Job. The cache has what carries our label, and may be behind: before a Job
// counts as lost the API server is asked.
func (r *runs) readJob(ctx context.Context, f *facts) error {
	job := &batchv1.Job{}
	err := r.cached.Get(ctx, owned.Name(f.run), job)
	if apierrors.IsNotFound(err) && f.run.Status.JobUID != "" {
		job = &batchv1.Job{}
		err = r.live.Get(ctx, owned.Name(f.run), job)
	}
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("reading Job %s: %w", owned.Name(f.run), err)
	case owned.Is(job, owned.ByRun(f.run)) && (f.run.Status.JobUID == "" || f.run.Status.JobUID == string(job.UID)):
		f.job, f.unproven = job, f.run.Status.JobUID == ""
		return nil
	}
	f.lost = f.run.Status.JobUID != ""
	return nil
}

// readRefusal reads why the controller of Jobs cannot make the Pod, for example for a quota. It says so by Events alone.
func (r *runs) readRefusal(ctx context.Context, f *facts) error {
	if f.job == nil || f.unproven || len(f.pods) > 0 || owned.IsFinished(f.job) || f.run.Status.Phase.Terminal() || r.options.Clock.Since(f.job.CreationTimestamp.Time) < pollAfter {
		return nil
	}
	var list corev1.EventList
	if err := r.live.List(ctx, &list, client.InNamespace(f.run.Namespace), client.Limit(maxRefusals), client.MatchingFields{"involvedObject.uid": string(f.job.UID), "reason": "FailedCreate"}); err != nil {
		return fmt.Errorf("reading the Events of Job %s: %w", owned.Name(f.run), err)
	}
	if len(list.Items) > 0 {
		f.refusal = slices.MaxFunc(list.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) }).Message
	}
	return nil
}

// maxRefusals bounds the Events that are read of a Job.
const maxRefusals = 50

// readPlan resolves the template.
func (r *runs) readPlan(ctx context.Context, f *facts) error {
	obstacle := func(reason, message string) *conditions.Obstacle {
		return &conditions.Obstacle{Condition: v1alpha1.ConditionTemplateResolved, Reason: reason, Message: message}
	}
	template, missing, err := workload.Find(ctx, r.cached, f.run.Namespace, f.run.Spec.TemplateRef)
	var unfit *workload.UnfitError
	switch {
	case errors.As(err, &unfit):
		f.unresolved = obstacle(v1alpha1.SandboxRunTemplateForbids, unfit.Error())
		return nil
	case err != nil:
		return err
	case missing != "":
		f.unresolved = obstacle(v1alpha1.SandboxRunTemplateMissing, missing)
		return nil
	}
	if f.plan, err = template.With(&f.run.Spec); err != nil {
		f.plan, f.unresolved = nil, obstacle(v1alpha1.SandboxRunTemplateForbids, fmt.Sprintf("spec.%v", err))
		return nil
	}
	if decided := f.run.Status.Interactive; decided != nil && f.plan.Interactive != nil {
		f.plan.Live(decided.Limits.DeepCopy())
	}
	return nil
}

// readPolicy reads the policy that holds the Pods, and the addresses of the API server.
func (r *runs) readPolicy(ctx context.Context, f *facts) error {
	if len(r.holder.Kinds) == 0 {
		return nil
	}
	for _, kind := range r.holder.Kinds {
		if e := f.run.Status.Egress; e != nil && e.Policy != kind.Kind {
			continue
		}
		policy := egress.NewPolicy(kind)
		err := r.cached.Get(ctx, owned.Name(f.run), policy)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading %s %s: %w", kind.Kind, owned.Name(f.run), err)
		}
		if err == nil && owned.Is(policy, owned.ByRun(f.run)) {
			f.policy = policy
			break
		}
	}
	var err error
	f.apiServer, err = r.holder.APIServer(ctx, r.cached)
	return err
}

// readHold decides how the Pods of a run are to be held. What was decided before stays.
func (r *runs) readHold(ctx context.Context, f *facts) error {
	unheld := func(reason, format string, args ...any) {
		f.unheld = &conditions.Obstacle{Condition: v1alpha1.ConditionEgressHeld, Reason: reason, Message: fmt.Sprintf(format, args...), Poll: true}
	}
	if err := egress.Check(&f.plan.Egress, f.options); err != nil {
		unheld(v1alpha1.ReasonEgressInvalid, "the template's egress.%v", err)
		return nil
	}
	err := r.checkHold(ctx, f)
	if u, ok := errors.AsType[*egress.Unheld](err); ok {
		unheld(u.Reason, "%s", u.Message)
		return nil
	}
	return err
}

// checkHold decides how the Pods of a run are to be held, once, and each time whether the policy would hold them.
func (r *runs) checkHold(ctx context.Context, f *facts) (err error) {
	f.held = f.run.Status.Egress
	if f.held == nil {
		if f.held, err = r.holder.Decide(ctx, &f.plan.Egress, f.apiServer); err != nil {
			return err
		}
		f.held.Broker, f.held.Collector = f.brokerOf(&r.options.Broker), r.options.collector()
	} else if err := egress.CheckAPIServer(f.held, f.apiServer); err != nil {
		return err
	}
	if f.held.Policy == "" {
		return nil
	}
	return r.holder.CheckOthers(ctx, owned.Name(f.run), owned.PodLabelsOfRun(f.run), owned.Whose)
}
