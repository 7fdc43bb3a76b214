package facts

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// readEnding finds out whether sessions in the Pod that was chosen can be ended, if the
// template wants that. An access Pod, which is yet to be made, gets the recorder where
// sessions are recorded.
func (r *Reader) readEnding(ctx context.Context, f *Facts) error {
	config, pod := f.Template.GetAccessConfig(), f.Chosen
	if !config.NeedsRecording() {
		return nil
	}
	if r.Sessions == nil {
		f.Unended = rules.CannotEnd(f.Template.GetName(), rules.NoSessions(config.OnExpiry))
		return nil
	}
	if pod == nil {
		pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.Key.Namespace}}
	}
	why, err := r.Sessions.CannotEnd(ctx, r.Live, pod)
	if err != nil {
		return fmt.Errorf("finding out whether sessions in namespace %s are recorded: %w", f.Key.Namespace, err)
	}
	if why != "" {
		f.Unended = rules.CannotEnd(f.Template.GetName(), why)
	}
	return nil
}

// endless says why a grant whose sessions have to end cannot stay: nothing records sessions
// any more. It comes back when something does.
func (r *Reader) endless(f *Facts) *rules.Refusal {
	if r.Sessions != nil || f.Role == nil {
		return nil
	}
	of := f.Role.Annotations
	onExpiry := v1alpha1.ExpiryAction(of[grant.AnnotationOnExpiry])
	if onExpiry != v1alpha1.ExpiryEndSession && of[v1alpha1.AnnotationIdleTimeout] == "" && of[v1alpha1.AnnotationMaxLength] == "" {
		return nil
	}
	return rules.CannotEnd(f.Request.GetRequestSpec().TemplateName, rules.NoSessions(onExpiry))
}
