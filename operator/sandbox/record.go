package sandbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/truncate"
)

const (
	maxNote = 1024
	// recordTimeout bounds how long a run waits for its record.
	recordTimeout = 5 * time.Second
)

// recordOf is a record of what happened to a run, by nobody that is known.
func recordOf(run *v1alpha1.SandboxRun, action, reason string) extension.Record {
	return extension.Record{
		ID: strings.ToLower(string(run.UID)) + "-" + action, Action: action, Reason: truncate.Text(reason, maxNote),
		Object: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "SandboxRun", Namespace: run.Namespace, Name: run.Name, UID: run.UID},
	}
}

// tell records. It fails open: the status is what counts, and a run does not wait for those who
// keep records. The ID of a record says what it is about, so that the same twice is once.
func (r *runs) tell(ctx context.Context, record *extension.Record) {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	if err := r.recorder.Record(ctx, *record); err != nil {
		unrecordedTotal.WithLabelValues(record.Action).Inc()
		r.log.Error("not recorded", zap.String("run", record.Object.Namespace+"/"+record.Object.Name), zap.String("action", record.Action), zap.Error(err))
	}
}

// tellTransition records what is new in a status that was written.
func (r *runs) tellTransition(ctx context.Context, run *v1alpha1.SandboxRun, before, after *v1alpha1.SandboxRunStatus) {
	if before.JobUID == "" && after.JobUID != "" {
		record := recordOf(run, actionStarted, fmt.Sprintf("Job %s runs template %s", after.JobName, run.Spec.TemplateRef.Name)+credentialsOf(after))
		if run.Spec.Author != nil {
			record.User = run.Spec.Author.UserInfo()
		}
		r.tell(ctx, &record)
	}
	for of, reason := range map[string]string{
		v1alpha1.ConditionJobCreated: v1alpha1.SandboxRefused, v1alpha1.ConditionPodReady: v1alpha1.SandboxRefused, v1alpha1.ConditionRecorderConnects: v1alpha1.CollectorRefused,
	} {
		was, is := meta.FindStatusCondition(before.Conditions, of), meta.FindStatusCondition(after.Conditions, of)
		if is != nil && is.Reason == reason && (was == nil || was.Reason != is.Reason) {
			r.event(run, corev1.EventTypeWarning, reason, "Start", is.Message)
		}
	}
	if !after.Phase.Terminal() || before.Phase.Terminal() {
		return
	}
	reason, message := "", ""
	for _, c := range after.Conditions {
		if c.Type == v1alpha1.ConditionCompleted {
			reason, message = c.Reason, c.Message
		}
	}
	endedTotal.WithLabelValues(string(after.Phase)).Inc()
	if strings.HasPrefix(reason, "InteractiveTerminated") {
		watchdogTotal.WithLabelValues(reason).Inc()
	}
	if after.StartTime != nil {
		runSeconds.WithLabelValues(string(after.Phase)).Observe(after.CompletionTime.Sub(after.StartTime.Time).Seconds())
	}
	record := recordOf(run, actionOf(after.Phase), reason+": "+message)
	if run.Spec.Author != nil && after.Phase != v1alpha1.SandboxCancelled { // which anybody may have done
		record.User = run.Spec.Author.UserInfo()
	}
	r.tell(ctx, &record)
	kind := corev1.EventTypeNormal
	if after.Phase == v1alpha1.SandboxFailed {
		kind = corev1.EventTypeWarning
	}
	r.event(run, kind, string(after.Phase), "Run", record.Reason)
}

// tellOrphan records that a Pod of a run was deleted whose Job is gone.
func (r *runs) tellOrphan(ctx context.Context, run *v1alpha1.SandboxRun, pod *corev1.Pod) {
	record := recordOf(run, actionOrphanDeleted, orphaned(pod))
	record.ID += "-" + strings.ToLower(string(pod.UID))
	record.Pod = corev1.ObjectReference{Name: pod.Name, UID: pod.UID}
	r.tell(ctx, &record)
	r.event(run, corev1.EventTypeWarning, "OrphanDeleted", "End", record.Reason)
}

// credentialsOf says which credentials the container has, "" for none. It has names, and no values.
func credentialsOf(status *v1alpha1.SandboxRunStatus) string {
	if len(status.Credentials) == 0 {
		return ""
	}
	names := make([]string, 0, len(status.Credentials))
	for _, c := range status.Credentials {
		names = append(names, c.Name+" (lease "+c.Lease+")")
	}
	return fmt.Sprintf(", with %d credentials in its container: %s", len(names), strings.Join(names, ", "))
}

func (r *runs) event(run *v1alpha1.SandboxRun, kind, reason, action, note string) {
	r.events.Eventf(&corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "SandboxRun", Namespace: run.Namespace, Name: run.Name, UID: run.UID, ResourceVersion: run.ResourceVersion,
	}, nil, kind, reason, action, "%s", truncate.Text(note, maxNote))
}
