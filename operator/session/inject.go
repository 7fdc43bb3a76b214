package session

import (
	"context"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/session/internal/recorded"
)

// Audience is that of the tokens which collectors take.
const Audience = recorded.Audience

// injector puts the recorder into new Pods.
type injector struct{ *shared }

var _ extension.Mutator[*corev1.Pod] = (*injector)(nil)

func (i *injector) scope() extension.Scope {
	scope := i.options.podScope("sessions-pods", extension.Pods())
	// Another webhook may add a container afterwards, which needs the recorder, too.
	scope.ReinvocationPolicy = new(admissionregistrationv1.IfNeededReinvocationPolicy)
	return scope
}

func (o *Options) podScope(name string, rules []admissionregistrationv1.RuleWithOperations) extension.Scope {
	scope := o.scope(name)
	scope.Rules = rules
	return scope
}

// Mutate puts the recorder into every container of a Pod. What has a reserved name already
// stays as it is, for podGuard to judge.
func (i *injector) Mutate(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	if !recorded.CanHaveRecorder(pod) {
		return nil
	}
	recorded.Inject(pod, i.options.Image)
	return nil
}
