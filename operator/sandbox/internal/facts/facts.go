package facts

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
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// Facts are what a decision depends on.
type Facts struct {
	Run *v1alpha1.SandboxRun
	// Job is the run's, nil if there is none, and pods are those of the run, the newest last.
	Job  *batchv1.Job
	Pods []*corev1.Pod
	// Unproven says that the Job names the run as its owner, and is not in its status: an attempt that did not get to the
	// status has made it, or somebody else has.
	Unproven bool
	// Lost says that the Job that the run had is gone, and left names a Pod of that which has not ended, "" for none.
	Lost bool
	Left string
	// Orphans are Pods of the run whose Job somebody deleted without them.
	Orphans []*corev1.Pod
	// Policy is the one that holds the Pods, nil if there is none.
	Policy *unstructured.Unstructured
	// StartTimeout is how long the work has to begin.
	StartTimeout time.Duration
	// Refusal is why the controller of Jobs cannot make the Pod, "" if nothing is known of that.
	Refusal string
	// Activity is what is known of the people in an Interactive run that has its Job, and unwatched why that is nothing.
	Activity  *Activity
	Unwatched error
	// Options and apiServer are what policies are composed of.
	Options   *egress.Options
	APIServer []netip.AddrPort

	// The following are read only for a run that is to be started.

	// Plan is what the template and the run make together, and unresolved why there is none.
	Plan       *workload.Plan
	Unresolved *conditions.Obstacle
	// Proxied is what names and BrokerPolicies make of the run, nil if it has neither, and Unproxied why they cannot.
	Proxied   *Proxied
	Unproxied *conditions.Obstacle
	// Held is how the Pods are to be held, and unheld why they cannot be.
	Held   *v1alpha1.EgressDecision
	Unheld *conditions.Obstacle
	// Claimed says that the run has its Workspace, and unclaimed why it does not yet.
	Claimed   bool
	Unclaimed *conditions.Obstacle
}

// Startable reports whether a run has no Job, and is to get one.
func Startable(run *v1alpha1.SandboxRun) bool {
	return !run.Status.Phase.Terminal() && run.DeletionTimestamp.IsZero() && !run.Spec.Cancelled && run.Status.JobUID == ""
}

// Reader reads the facts about runs.
type Reader struct {
	// Cached reads what is ours from memory, and Live by name from the API server.
	Cached, Live client.Reader
	// Holder holds Pods to their egress.
	Holder *egress.Holder
	Egress *egress.Options
	Clock  clock.PassiveClock
	// StartTimeout is how long the work of a run has to begin.
	StartTimeout time.Duration
	// Proxies says that there are proxies, and Broker is where these reach the broker, nil for none.
	Proxies bool
	Broker  *v1alpha1.EgressBroker
	// Collector is where recorders in Pods send what they record, nil for nowhere.
	Collector *v1alpha1.EgressCollector
}

// PollAfter is when to look again for what is not watched.
const PollAfter = 5 * time.Second

// Read gathers the facts about a run.
func (r *Reader) Read(ctx context.Context, run *v1alpha1.SandboxRun) (*Facts, error) {
	f := &Facts{Run: run, Options: r.Egress, StartTimeout: r.StartTimeout}
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
	if !Startable(run) || f.Job != nil && !f.Unproven {
		r.readActivity(ctx, f)
		return f, nil
	}
	ws, err := r.readClaim(ctx, f)
	if err != nil {
		return nil, err
	}
	if err := r.readPlan(ctx, f); err != nil || f.Plan == nil {
		return f, err
	}
	if err := r.readProxied(ctx, f); err != nil || f.Unproxied != nil {
		return f, err
	}
	if err := r.readHold(ctx, f); err != nil {
		return f, err
	}
	return f, r.readQueue(ctx, f, ws)
}

// readPods finds the Pods of the run's Job, and those that somebody keeps of an earlier one.
func (r *Reader) readPods(ctx context.Context, f *Facts) error {
	run, job := f.Run, f.Job
	var pods corev1.PodList
	if err := r.Cached.List(ctx, &pods, client.InNamespace(run.Namespace), client.MatchingLabels{v1alpha1.LabelSandboxRun: run.Name}); err != nil {
		return err
	}
	if job == nil {
		job = &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: owned.Name(run).Name, UID: types.UID(run.Status.JobUID)}}
	}
	for i := range pods.Items {
		switch pod := &pods.Items[i]; {
		case owned.Is(pod, owned.ByJob(job)):
			f.Pods = append(f.Pods, pod)
		case owned.IsOrphan(pod) && pod.Labels[v1alpha1.LabelEgress] == string(run.UID):
			f.Orphans = append(f.Orphans, pod)
		}
	}
	slices.SortFunc(f.Pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	if !f.Lost || run.Status.Phase.Terminal() {
		return nil
	}
	var err error
	f.Left, err = r.podThatRuns(ctx, owned.PodsOfRun(run))
	return err
}

// readJob reads the Job. The cache has what carries our label, and may be behind: before a Job
// counts as lost the API server is asked.
func (r *Reader) readJob(ctx context.Context, f *Facts) error {
	job := &batchv1.Job{}
	err := r.Cached.Get(ctx, owned.Name(f.Run), job)
	if apierrors.IsNotFound(err) && f.Run.Status.JobUID != "" {
		job = &batchv1.Job{}
		err = r.Live.Get(ctx, owned.Name(f.Run), job)
	}
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("reading Job %s: %w", owned.Name(f.Run), err)
	case owned.Is(job, owned.ByRun(f.Run)) && (f.Run.Status.JobUID == "" || f.Run.Status.JobUID == string(job.UID)):
		f.Job, f.Unproven = job, f.Run.Status.JobUID == ""
		return nil
	}
	f.Lost = f.Run.Status.JobUID != ""
	return nil
}

// readRefusal reads why the controller of Jobs cannot make the Pod, for example for a quota. It says so by Events alone.
func (r *Reader) readRefusal(ctx context.Context, f *Facts) error {
	if f.Job == nil || f.Unproven || len(f.Pods) > 0 || owned.IsFinished(f.Job) || f.Run.Status.Phase.Terminal() || r.Clock.Since(f.Job.CreationTimestamp.Time) < PollAfter {
		return nil
	}
	var list corev1.EventList
	if err := r.Live.List(ctx, &list, client.InNamespace(f.Run.Namespace), client.Limit(maxRefusals), client.MatchingFields{"involvedObject.uid": string(f.Job.UID), "reason": "FailedCreate"}); err != nil {
		return fmt.Errorf("reading the Events of Job %s: %w", owned.Name(f.Run), err)
	}
	if len(list.Items) > 0 {
		f.Refusal = slices.MaxFunc(list.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) }).Message
	}
	return nil
}

// maxRefusals bounds the Events that are read of a Job.
const maxRefusals = 50

// readPlan resolves the template.
func (r *Reader) readPlan(ctx context.Context, f *Facts) error {
	obstacle := func(reason, message string) *conditions.Obstacle {
		return &conditions.Obstacle{Condition: v1alpha1.ConditionTemplateResolved, Reason: reason, Message: message}
	}
	template, missing, err := workload.Find(ctx, r.Cached, f.Run.Namespace, f.Run.Spec.TemplateRef)
	var unfit *workload.UnfitError
	switch {
	case errors.As(err, &unfit):
		f.Unresolved = obstacle(v1alpha1.SandboxRunTemplateForbids, unfit.Error())
		return nil
	case err != nil:
		return err
	case missing != "":
		f.Unresolved = obstacle(v1alpha1.SandboxRunTemplateMissing, missing)
		return nil
	}
	if f.Plan, err = template.With(&f.Run.Spec); err != nil {
		f.Plan, f.Unresolved = nil, obstacle(v1alpha1.SandboxRunTemplateForbids, fmt.Sprintf("spec.%v", err))
		return nil
	}
	if decided := f.Run.Status.Interactive; decided != nil && f.Plan.Interactive != nil {
		f.Plan.Live(decided.Limits.DeepCopy())
	}
	return nil
}

// readPolicy reads the policy that holds the Pods, and the addresses of the API server.
func (r *Reader) readPolicy(ctx context.Context, f *Facts) error {
	if len(r.Holder.Kinds) == 0 {
		return nil
	}
	for _, kind := range r.Holder.Kinds {
		if e := f.Run.Status.Egress; e != nil && e.Policy != kind.Kind {
			continue
		}
		policy := egress.NewPolicy(kind)
		err := r.Cached.Get(ctx, owned.Name(f.Run), policy)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading %s %s: %w", kind.Kind, owned.Name(f.Run), err)
		}
		if err == nil && owned.Is(policy, owned.ByRun(f.Run)) {
			f.Policy = policy
			break
		}
	}
	var err error
	f.APIServer, err = r.Holder.APIServer(ctx, r.Cached)
	return err
}

// readHold decides how the Pods of a run are to be held. An earlier decision stays.
func (r *Reader) readHold(ctx context.Context, f *Facts) error {
	unheld := func(reason, format string, args ...any) {
		f.Unheld = &conditions.Obstacle{Condition: v1alpha1.ConditionEgressHeld, Reason: reason, Message: fmt.Sprintf(format, args...), Poll: true}
	}
	if err := egress.Check(&f.Plan.Egress, f.Options); err != nil {
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
func (r *Reader) checkHold(ctx context.Context, f *Facts) (err error) {
	f.Held = f.Run.Status.Egress
	if f.Held == nil {
		if f.Held, err = r.Holder.Decide(ctx, &f.Plan.Egress, f.APIServer); err != nil {
			return err
		}
		f.Held.Collector = r.Collector
		if f.Proxied != nil {
			f.Held.Hosts, f.Held.Broker = f.Proxied.Hosts, f.Proxied.Broker
		}
	} else if err := egress.CheckAPIServer(f.Held, f.APIServer); err != nil {
		return err
	}
	if f.Held.Policy == "" {
		return nil
	}
	return r.Holder.CheckOthers(ctx, owned.Name(f.Run), owned.PodLabelsOfRun(f.Run), owned.Whose)
}

// PolicyOf returns what the policy of a run is made of.
func (f *Facts) PolicyOf() *egress.Held {
	return &egress.Held{ObjectMeta: owned.Meta(f.Run), Label: f.Run.UID, Decision: f.Run.Status.Egress, Options: f.Options}
}

// HasRecorder reports whether a webhook has put the recorder of sessions into a Pod.
func HasRecorder(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1alpha1.RecorderContainer })
}

// TrimPod is [cluster.TrimPod], with the states of the containers, and whether it has the recorder of sessions.
func TrimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	trimmed, err := cluster.TrimPod(pod)
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == workload.Container {
			of := trimmed.(*corev1.Pod)
			of.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: c.Name, State: c.State}}
		}
	}
	if HasRecorder(pod) {
		of := trimmed.(*corev1.Pod)
		of.Spec.InitContainers = []corev1.Container{{Name: v1alpha1.RecorderContainer}}
	}
	for _, c := range pod.Status.InitContainerStatuses { // those of the proxy
		of := trimmed.(*corev1.Pod)
		of.Status.InitContainerStatuses = append(of.Status.InitContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: c.State})
	}
	return trimmed, err
}
