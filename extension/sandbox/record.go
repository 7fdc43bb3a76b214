package sandbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

const (
	maxReason = 512
	maxOutput = 4096
	maxNote   = 1024
	// recordTimeout bounds how long a run waits for its record.
	recordTimeout = 5 * time.Second
)

// recordOf is a record of what happened to a run, by nobody that is known.
func recordOf(run *v1alpha1.HarnessRun, action, reason string) extension.Record {
	return extension.Record{
		ID: strings.ToLower(string(run.UID)) + "-" + action, Action: action, Reason: cut(reason, maxNote),
		Object: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "HarnessRun", Namespace: run.Namespace, Name: run.Name, UID: run.UID},
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
func (r *runs) tellTransition(ctx context.Context, run *v1alpha1.HarnessRun, before, after *v1alpha1.HarnessRunStatus) {
	if before.JobUID == "" && after.JobUID != "" {
		record := recordOf(run, "started", fmt.Sprintf("Job %s runs template %s", after.JobName, run.Spec.TemplateRef.Name))
		if run.Spec.Author != nil {
			record.User = run.Spec.Author.UserInfo()
		}
		r.tell(ctx, &record)
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
	if after.StartTime != nil {
		runSeconds.WithLabelValues(string(after.Phase)).Observe(after.CompletionTime.Sub(after.StartTime.Time).Seconds())
	}
	record := recordOf(run, strings.ToLower(string(after.Phase)), reason+": "+message)
	if run.Spec.Author != nil && after.Phase != v1alpha1.HarnessCancelled { // which anybody may have done
		record.User = run.Spec.Author.UserInfo()
	}
	r.tell(ctx, &record)
	kind := corev1.EventTypeNormal
	if after.Phase == v1alpha1.HarnessFailed {
		kind = corev1.EventTypeWarning
	}
	r.event(run, kind, string(after.Phase), "Run", record.Reason)
}

func (r *runs) event(run *v1alpha1.HarnessRun, kind, reason, action, note string) {
	r.events.Eventf(&corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "HarnessRun", Namespace: run.Namespace, Name: run.Name, UID: run.UID, ResourceVersion: run.ResourceVersion,
	}, nil, kind, reason, action, "%s", cut(note, maxNote))
}

// cut bounds a text.
func cut(text string, length int) string {
	return strings.ToValidUTF8(text[:min(len(text), length)], "")
}
