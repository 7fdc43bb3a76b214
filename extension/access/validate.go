package access

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/access/internal/workload"
)

// requestRules refuses requests that the template does not allow.
type requestRules[T v1alpha1.Request] struct {
	*shared
	kind kind
}

// Register connects to the cluster.
func (v *requestRules[T]) Register(mgr extension.Manager) error { return v.setup(mgr) }

// Validate decides about a request.
func (v *requestRules[T]) Validate(ctx context.Context, obj T, req *extension.Request) error {
	var err error
	if req.Operation == admissionv1.Update {
		err = v.validateUpdate(ctx, obj, req)
	} else {
		err = v.validateCreate(ctx, obj, req)
	}
	if refused, ok := errors.AsType[*refusal](err); ok {
		deniedTotal.WithLabelValues(v.kind.name, refused.reason).Inc()
		return extension.Deny(refused.message)
	}
	return err
}

func (v *requestRules[T]) validateCreate(ctx context.Context, obj T, req *extension.Request) error {
	spec, user := obj.GetRequestSpec(), req.User()
	// A webhook after ours may have changed it.
	if want := (&v1alpha1.Requester{Username: user.Username, UID: user.UID, Groups: user.Groups}); !apiequality.Semantic.DeepEqual(spec.Requester, want) {
		return refuse(v1alpha1.ReasonRequesterUnknown, "spec.requester does not name the user who makes the request, %q", user.Username)
	}
	if spec.SingleUse && !v.options.SingleUse {
		return refuse(v1alpha1.ReasonSingleUse, "spec.singleUse needs the enforcement of the audit extension, which does not run here: "+
			"use a template that does not require it")
	}
	t, err := v.template(ctx, req.Namespace, spec.TemplateName)
	if err != nil {
		return err
	}
	if refused := allows(t, spec); refused != nil {
		return refused
	}
	if obj.GetTargetPod() == "" {
		return nil
	}
	return v.validateTarget(ctx, req.Namespace, *t.GetTargetRef(), obj.GetTargetPod())
}

// validateTarget refuses a Pod that is not one of the target's.
func (v *requestRules[T]) validateTarget(ctx context.Context, namespace string, ref v1alpha1.ControllerTargetRef, pod string) error {
	target, err := workload.Find(ctx, v.live, namespace, ref)
	if err == nil {
		_, err = target.Owned(ctx, v.live, pod)
	}
	var unknown workload.UnknownPodError
	switch {
	case errors.As(err, &unknown):
		return refuse(v1alpha1.ReasonUnknownPod, "%v", err)
	case workload.Missing(err):
		return refuse(v1alpha1.ReasonUnknownPod, "cannot find Pod %s/%s: %v", namespace, pod, err)
	}
	return err
}

func (v *requestRules[T]) template(ctx context.Context, namespace, name string) (v1alpha1.Template, error) {
	t := v.kind.newTemplate()
	err := v.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, t)
	if apierrors.IsNotFound(err) {
		return nil, v.kind.noTemplate(namespace, name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the template: %w", err)
	}
	return t, nil
}

// validateUpdate lets the requester change the duration, and nobody anything else.
func (v *requestRules[T]) validateUpdate(ctx context.Context, obj T, req *extension.Request) error {
	old := v.kind.newRequest()
	if err := req.Old(old); err != nil {
		return err
	}
	spec, before := obj.GetRequestSpec(), old.GetRequestSpec()
	switch {
	case spec.TemplateName != before.TemplateName:
		return refuse(reasonChanged, "spec.templateName cannot be changed; make another request")
	case obj.GetTargetPod() != old.GetTargetPod():
		return refuse(reasonChanged, "spec.targetPod cannot be changed; make another request")
	case !apiequality.Semantic.DeepEqual(spec.Requester, before.Requester):
		return refuse(reasonChanged, "spec.requester cannot be changed")
	case spec.Duration == before.Duration:
		return nil
	}
	if user := req.User().Username; before.Requester == nil || user != before.Requester.Username {
		return refuse(v1alpha1.ReasonNotAllowed, "spec.duration can be changed by the requester only, not by %q", user)
	}
	was, err := time.ParseDuration(before.Duration)
	if err != nil {
		return refuse(v1alpha1.ReasonDurationInvalid, "spec.duration: the present value %q is not a duration; make another request", before.Duration)
	}
	duration, err := time.ParseDuration(spec.Duration)
	if err != nil || duration < 0 {
		return refuse(v1alpha1.ReasonDurationInvalid, "spec.duration: %q is not a duration such as 90m or 1h30m", spec.Duration)
	}
	// Shortening needs no template, which may be gone.
	if duration <= was {
		return nil
	}
	return v.validateExtension(ctx, old, spec, req)
}

// validateExtension allows what a new request would be allowed, until access ends.
func (v *requestRules[T]) validateExtension(ctx context.Context, old v1alpha1.Request, spec *v1alpha1.RequestSpec, req *extension.Request) error {
	if v1alpha1.Over(old, v.options.Clock.Now()) {
		end, _ := v1alpha1.EndOf(old)
		return refuse(reasonEnded, "access ended at %s and cannot be extended; make another request", end.UTC().Format(time.RFC3339))
	}
	t, err := v.template(ctx, req.Namespace, spec.TemplateName)
	if err != nil {
		return err
	}
	// The requester may have left the group since they asked.
	now := spec.DeepCopy()
	now.Requester.Groups = req.User().Groups
	if refused := allows(t, now); refused != nil {
		return refused
	}
	return nil
}
