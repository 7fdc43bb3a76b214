package access

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Sessions knows in which Pods sessions are recorded, and so can be ended. What ends them
// finds the grant by its record, and the end by the request.
type Sessions interface {
	// CannotEnd says why sessions in a Pod cannot be ended, and what to do; "" if they can.
	// It reads with the reader of the reconcilers.
	CannotEnd(ctx context.Context, reader client.Reader, pod *corev1.Pod) (why string, err error)
	// ReaderRights are the rights in the cluster that the reader needs for that.
	ReaderRights() []rbacv1.PolicyRule
}

// noSessions says what a template that ends or limits sessions lacks.
func noSessions(onExpiry v1alpha1.ExpiryAction) string {
	const lacks = "needs recorded sessions, and here none are, or some may go on without being recorded; start admitkit with --sessions and --sessions-unrecorded=Closed, or "
	if onExpiry == v1alpha1.ExpiryEndSession {
		return "EndSession " + lacks + "use Evict"
	}
	return "session " + lacks + "leave it out"
}

// readEnding finds out whether sessions in the Pod that was chosen can be ended, if the
// template wants that. An access Pod, which is yet to be made, gets the recorder where
// sessions are recorded.
func (r *requests) readEnding(ctx context.Context, f *facts) error {
	config, pod := f.template.GetAccessConfig(), f.chosen
	if !config.NeedsRecording() {
		return nil
	}
	if r.options.Sessions == nil {
		f.unended = cannotEnd(f.template.GetName(), noSessions(config.OnExpiry))
		return nil
	}
	if pod == nil {
		pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.key.Namespace}}
	}
	why, err := r.options.Sessions.CannotEnd(ctx, r.live, pod)
	if err != nil {
		return fmt.Errorf("finding out whether sessions in namespace %s are recorded: %w", f.key.Namespace, err)
	}
	if why != "" {
		f.unended = cannotEnd(f.template.GetName(), why)
	}
	return nil
}

// endless says why a grant whose sessions have to end cannot stay: nothing records sessions
// any more. It comes back when something does.
func (r *requests) endless(f *facts) *refusal {
	if r.options.Sessions != nil || f.role == nil {
		return nil
	}
	of := f.role.Annotations
	onExpiry := v1alpha1.ExpiryAction(of[AnnotationOnExpiry])
	if onExpiry != v1alpha1.ExpiryEndSession && of[v1alpha1.AnnotationIdleTimeout] == "" && of[v1alpha1.AnnotationMaxLength] == "" {
		return nil
	}
	return cannotEnd(f.request.GetRequestSpec().TemplateName, noSessions(onExpiry))
}

func cannotEnd(template, why string) *refusal {
	return refuse(v1alpha1.ReasonNotRecorded, "template %q ends or limits sessions: %s", template, why).forNow()
}
