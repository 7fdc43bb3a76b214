package access

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
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

const noSessions = "EndSession needs recorded sessions, and here none are, or some may go on without being recorded; " +
	"start admitkit with --sessions and --sessions-unrecorded=Closed, or use Evict"

// readEnding finds out whether sessions in the Pod that was chosen can be ended, if the
// template wants that.
func (r *requests) readEnding(ctx context.Context, f *facts) error {
	if f.template.GetAccessConfig().OnExpiry != v1alpha1.ExpiryEndSession {
		return nil
	}
	if r.options.Sessions == nil {
		f.unended = cannotEnd(f.template.GetName(), noSessions)
		return nil
	}
	why, err := r.options.Sessions.CannotEnd(ctx, r.live, f.chosen)
	if err != nil {
		return fmt.Errorf("finding out whether sessions in Pod %s/%s are recorded: %w", f.chosen.Namespace, f.chosen.Name, err)
	}
	if why != "" {
		f.unended = cannotEnd(f.template.GetName(), why)
	}
	return nil
}

// endless says why a grant whose sessions have to end cannot stay: nothing records sessions
// any more. It comes back when something does.
func (r *requests) endless(f *facts) *refusal {
	if r.options.Sessions != nil || f.role == nil || f.role.Annotations[AnnotationOnExpiry] != string(v1alpha1.ExpiryEndSession) {
		return nil
	}
	return cannotEnd(f.request.GetRequestSpec().TemplateName, noSessions)
}

func cannotEnd(template, why string) *refusal {
	return refuse(v1alpha1.ReasonNotRecorded, "template %q ends sessions with access: %s", template, why).forNow()
}
