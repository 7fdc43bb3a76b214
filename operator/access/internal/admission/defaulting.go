package admission

import (
	"context"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// defaulter writes into a request who made it, and how long it lasts.
type defaulter[T v1alpha1.Request] struct {
	*kube.Connection
	kind grant.Kind
}

// Register connects to the cluster.
func (s *defaulter[T]) Register(mgr extension.Manager) error { return s.Setup(mgr) }

// Mutate writes who the requester is. A client that names somebody else is refused: a
// backup that is restored would otherwise make requests of whoever restores it. The
// template's default duration, that it wants a single use, and who must approve become part
// of the request, so that no later change of the template prolongs or eases it.
func (s *defaulter[T]) Mutate(ctx context.Context, obj T, req *extension.Request) error {
	if req.Operation == admissionv1.Update {
		return s.keep(obj.GetRequestSpec(), req)
	}
	spec, user := obj.GetRequestSpec(), req.User()
	if who := spec.Requester; who != nil && who.Username != "" && who.Username != user.Username {
		return nil // requestRules refuses it
	}
	spec.Requester = &v1alpha1.Requester{Username: user.Username, UID: user.UID, Groups: user.Groups}
	spec.Approval = nil
	if noName("spec.templateName", spec.TemplateName) != nil {
		return nil //nolint:nilerr // requestRules refuses it
	}
	t := s.kind.NewTemplate()
	err := s.Live.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: spec.TemplateName}, t)
	if apierrors.IsNotFound(err) || spec.TemplateName == "" {
		return nil // the request waits for it
	}
	if err != nil {
		return fmt.Errorf("reading the template: %w", err)
	}
	if spec.Duration == "" {
		spec.Duration = t.GetAccessConfig().DefaultDuration
	}
	spec.SingleUse = spec.SingleUse || t.GetAccessConfig().SingleUse
	spec.Approval = rules.TermsOf(t, spec)
	return nil
}

// keep puts back what was stamped: a manifest that is applied again lacks it. It
// stamps a revocation in its turn.
func (s *defaulter[T]) keep(spec *v1alpha1.RequestSpec, req *extension.Request) error {
	old := s.kind.NewRequest()
	if err := req.Old(old); err != nil {
		return err
	}
	before, now := old.GetRequestSpec(), s.Clock.Now()
	if spec.Requester == nil {
		spec.Requester = before.Requester
	}
	if spec.Duration == "" {
		spec.Duration = before.Duration
	}
	if spec.Duration != before.Duration && before.Duration != "" {
		endsNotInThePast(spec, old, now)
	}
	spec.SingleUse = spec.SingleUse || before.SingleUse
	if spec.Approval == nil {
		spec.Approval = before.Approval
	}
	switch {
	case spec.Revoked == nil:
		spec.Revoked = before.Revoked
	case before.Revoked == nil:
		spec.Revoked.By, spec.Revoked.At = req.User().Username, &metav1.Time{Time: now}
	}
	return nil
}

// endsNotInThePast makes access that is shortened to what has passed already end now:
// the record must not say that it ended before it did, nor go the sooner for it.
func endsNotInThePast(spec *v1alpha1.RequestSpec, old v1alpha1.Request, now time.Time) {
	begin, waits := v1alpha1.BeginOf(old)
	passed := now.Sub(begin).Truncate(time.Second)
	if duration, err := time.ParseDuration(spec.Duration); err == nil && !waits && duration < passed {
		spec.Duration = passed.String()
	}
}
