package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/permission"
)

// requestRules refuses requests that the template does not allow.
type requestRules[T v1alpha1.Request] struct {
	*kube.Connection
	kind grant.Kind
}

// Register connects to the cluster.
func (v *requestRules[T]) Register(mgr extension.Manager) error { return v.Setup(mgr) }

// Validate decides about a request.
func (v *requestRules[T]) Validate(ctx context.Context, obj T, req *extension.Request) error {
	var err error
	if req.Operation == admissionv1.Update {
		err = v.validateUpdate(ctx, obj, req)
	} else {
		err = v.validateCreate(ctx, obj, req)
	}
	if refused, ok := errors.AsType[*rules.Refusal](err); ok {
		deniedTotal.WithLabelValues(v.kind.Name, refused.Reason).Inc()
		return extension.Deny(refused.Message)
	}
	return err
}

func (v *requestRules[T]) validateCreate(ctx context.Context, obj T, req *extension.Request) error {
	if refused := cmp.Or(v.Places.Closed(req.Namespace), v.Roles.Off(v.kind)); refused != nil {
		return refused
	}
	spec, user := obj.GetRequestSpec(), req.User()
	for field, name := range map[string]string{"spec.templateName": spec.TemplateName, "spec.targetPod": obj.GetTargetPod()} {
		if refused := noName(field, name); refused != nil {
			return refused
		}
	}
	// A webhook after ours may have changed it.
	if want := (&v1alpha1.Requester{Username: user.Username, UID: user.UID, Groups: user.Groups}); !apiequality.Semantic.DeepEqual(spec.Requester, want) {
		return rules.Refuse(v1alpha1.ReasonRequesterUnknown, "spec.requester does not name the user who makes the request, %q: leave it out; requests of others cannot be made, nor restored from a backup", user.Username)
	}
	if refused := rules.CanBeAskedFor(spec); refused != nil {
		return refused
	}
	if spec.Revoked != nil {
		return rules.Refuse(rules.ReasonChanged, "spec.revoked: a request cannot be revoked before it is made; leave it out")
	}
	if spec.SingleUse && !v.SingleUse {
		return rules.RefuseSingleUse()
	}
	if err := v.validateOwners(ctx, nil, obj.GetOwnerReferences(), req); err != nil {
		return err
	}
	t, err := v.template(ctx, req.Namespace, spec.TemplateName)
	if refused, ok := errors.AsType[*rules.Refusal](err); ok {
		return v.validateWait(ctx, obj, refused, req)
	}
	if err != nil {
		return err
	}
	if refused := rules.Allows(t, spec); refused != nil {
		return refused
	}
	if !apiequality.Semantic.DeepEqual(spec.Approval, rules.TermsOf(t, spec)) {
		return rules.Refuse(rules.ReasonChanged, "spec.approval is not what template %q says: leave it out", t.GetName())
	}
	open, err := v.OthersOpen(ctx, v.kind, obj, func(v1alpha1.Request) bool { return true })
	if err != nil {
		return err
	}
	if refused := rules.TooMany(t, spec, open); refused != nil {
		return refused
	}
	if obj.GetTargetPod() == "" {
		return nil
	}
	return v.validateTarget(ctx, req.Namespace, *t.GetTargetRef(), obj.GetTargetPod())
}

// maxWaiting is how many requests of a user in a namespace may wait for templates that do
// not exist: no template says it.
const maxWaiting = 5

// validateWait lets a request wait for its template. When that comes, the request is
// decided like any other: for the user and the groups that were stamped now.
func (v *requestRules[T]) validateWait(ctx context.Context, obj T, missing *rules.Refusal, req *extension.Request) error {
	spec := obj.GetRequestSpec()
	if problems := validation.IsDNS1123Subdomain(spec.TemplateName); len(problems) > 0 {
		return rules.Refuse(rules.ReasonInvalidName, "spec.templateName: %q is not the name of a template: %s", spec.TemplateName, strings.Join(problems, ", "))
	}
	if spec.Duration != "" {
		if _, refused := rules.DurationOf(spec); refused != nil {
			return refused
		}
	}
	waiting, err := v.OthersWaiting(ctx, v.kind, obj)
	if err != nil {
		return err
	}
	if len(waiting) >= maxWaiting {
		return rules.Refuse(v1alpha1.ReasonTooMany, "%s, and user %q has %d requests already that wait for their templates: %s; "+
			"make the template first, or end one with kubectl access revoke NAME, which sets its spec.revoked",
			missing.Message, req.User().Username, len(waiting), strings.Join(waiting, ", "))
	}
	req.Warnf("%s%s", missing.Message, v.kind.Waits(v.Clock.Now()))
	return nil
}

// noName refuses what cannot be the name of an object: the API server would take it for
// another path.
func noName(field, name string) *rules.Refusal {
	if problems := content.IsPathSegmentName(name); len(problems) > 0 {
		return rules.Refuse(rules.ReasonInvalidName, "%s: %q is not the name of an object: %s", field, name, strings.Join(problems, ", "))
	}
	return nil
}

// validateTarget refuses a Pod that is not one of the target's.
func (v *requestRules[T]) validateTarget(ctx context.Context, namespace string, ref v1alpha1.ControllerTargetRef, pod string) error {
	target, err := workload.Find(ctx, v.Live, namespace, ref)
	if err == nil {
		_, err = target.Owned(ctx, v.Live, pod)
	}
	var unknown workload.UnknownPodError
	switch {
	case errors.As(err, &unknown):
		return rules.Refuse(v1alpha1.ReasonUnknownPod, "%v", err)
	case workload.Missing(err):
		return rules.Refuse(v1alpha1.ReasonUnknownPod, "cannot find Pod %s/%s: %v", namespace, pod, err)
	}
	return err
}

func (v *requestRules[T]) template(ctx context.Context, namespace, name string) (v1alpha1.Template, error) {
	t := v.kind.NewTemplate()
	err := v.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, t)
	if apierrors.IsNotFound(err) {
		return nil, rules.MissingTemplate(v.kind, namespace, name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the template: %w", err)
	}
	return t, nil
}

// validateUpdate lets the requester, and the user who was asked for, shorten, extend and
// narrow the request, and revoke it, which those who may delete it may do too. Nothing else changes.
func (v *requestRules[T]) validateUpdate(ctx context.Context, obj T, req *extension.Request) error {
	old := v.kind.NewRequest()
	if err := req.Old(old); err != nil {
		return err
	}
	if err := v.validateMetadata(ctx, old, obj, req); err != nil {
		return err
	}
	if err := v.validateOwners(ctx, old.GetOwnerReferences(), obj.GetOwnerReferences(), req); err != nil {
		return err
	}
	spec, before := obj.GetRequestSpec(), old.GetRequestSpec()
	switch {
	case obj.GetTargetPod() != old.GetTargetPod():
		return rules.Refuse(rules.ReasonChanged, "spec.targetPod cannot be changed; make another request")
	case apiequality.Semantic.DeepEqual(spec, before):
		if v1alpha1.Over(old, v.Clock.Now()) {
			req.Warnf("%s", refuseOver(old).Message)
		}
		return nil
	case spec.TemplateName != before.TemplateName:
		return rules.Refuse(rules.ReasonChanged, "spec.templateName cannot be changed; make another request")
	case !apiequality.Semantic.DeepEqual(spec.Requester, before.Requester):
		return rules.Refuse(rules.ReasonChanged, "spec.requester cannot be changed")
	case spec.OnBehalfOf != before.OnBehalfOf:
		return rules.Refuse(rules.ReasonChanged, "spec.onBehalfOf cannot be changed; make another request")
	case spec.Reason != before.Reason:
		return rules.Refuse(rules.ReasonChanged, "spec.reason cannot be changed; make another request")
	case before.Approval != nil && !apiequality.Semantic.DeepEqual(spec.Approval, before.Approval):
		return rules.Refuse(rules.ReasonChanged, "spec.approval cannot be changed; make another request")
	case v1alpha1.Over(old, v.Clock.Now()):
		return refuseLate(old, spec)
	}
	if err := v.validateRevocation(ctx, old, spec.Revoked, req); err != nil {
		return err
	}
	if spec.Duration == before.Duration && spec.SingleUse == before.SingleUse && apiequality.Semantic.DeepEqual(spec.Approval, before.Approval) {
		return nil
	}
	return v.validateTerms(ctx, old, spec, req)
}

// validateTerms validates another duration, or that a request is for a single use.
func (v *requestRules[T]) validateTerms(ctx context.Context, old v1alpha1.Request, spec *v1alpha1.RequestSpec, req *extension.Request) error {
	before := old.GetRequestSpec()
	if user := req.User(); !grant.IsParty(before, user) {
		if me, err := v.Self.Reconciler(ctx); err != nil || user.Username == me {
			return errors.Join(err, v.validateCompletion(ctx, spec, before, req))
		}
		return rules.Refuse(v1alpha1.ReasonNotAllowed, "spec.duration and spec.singleUse can be changed by the requester only, not by %q; "+
			"to end the access set spec.revoked, if you may delete the request", user.Username)
	}
	if !apiequality.Semantic.DeepEqual(spec.Approval, before.Approval) {
		return rules.Refuse(rules.ReasonChanged, "spec.approval is written by admitkit only; leave it out")
	}
	if spec.SingleUse && !before.SingleUse && !v.SingleUse {
		return rules.RefuseSingleUse()
	}
	return v.validateDuration(ctx, old, spec, req)
}

// validateCompletion lets the manager write what the template says into a request that
// was made before it, and nothing else.
func (v *requestRules[T]) validateCompletion(ctx context.Context, spec, before *v1alpha1.RequestSpec, req *extension.Request) error {
	t, err := v.template(ctx, req.Namespace, spec.TemplateName)
	if err != nil {
		return err
	}
	config := t.GetAccessConfig()
	if spec.Duration != before.Duration && (before.Duration != "" || spec.Duration != config.DefaultDuration) {
		return rules.Refuse(rules.ReasonChanged, "spec.duration can be changed by the requester only; admitkit writes the default of template %q, where there was none", t.GetName())
	}
	if spec.SingleUse && !before.SingleUse && !config.SingleUse {
		return rules.Refuse(rules.ReasonChanged, "spec.singleUse can be changed by the requester only, because template %q does not require it", t.GetName())
	}
	if !apiequality.Semantic.DeepEqual(spec.Approval, before.Approval) && !apiequality.Semantic.DeepEqual(spec.Approval, rules.TermsOf(t, spec)) {
		return rules.Refuse(rules.ReasonChanged, "spec.approval is not what template %q says", t.GetName())
	}
	return nil
}

// validateMetadata keeps the metadata of a request from those who are no party to it, unless they may delete it:
// a finalizer keeps a request, and its access, from going, and by labels others find it.
func (v *requestRules[T]) validateMetadata(ctx context.Context, old v1alpha1.Request, obj T, req *extension.Request) error {
	field := changedMetadata(old, obj)
	if field == "" || grant.IsParty(old.GetRequestSpec(), req.User()) {
		return nil
	}
	if me, err := v.Self.Reconciler(ctx); err != nil || req.User().Username == me {
		return err
	}
	may, err := v.mayDelete(ctx, req)
	if err != nil || may {
		return err
	}
	return rules.Refuse(v1alpha1.ReasonNotAllowed, "metadata.%s: the request is that of another, and user %q may not delete %s in namespace %s; leave it as it is",
		field, req.User().Username, req.Resource.Resource, req.Namespace)
}

// changedMetadata returns the field of the metadata that an update changes, "" if it changes none that somebody sets.
func changedMetadata(before, after metav1.Object) string {
	for _, field := range []struct {
		name      string
		was, will any
	}{
		{"labels", before.GetLabels(), after.GetLabels()},
		{"annotations", before.GetAnnotations(), after.GetAnnotations()},
		{"finalizers", before.GetFinalizers(), after.GetFinalizers()},
		{"ownerReferences", before.GetOwnerReferences(), after.GetOwnerReferences()},
	} {
		if !apiequality.Semantic.DeepEqual(field.was, field.will) {
			return field.name
		}
	}
	return ""
}

// validateOwners lets only those who may delete a request give it an owner: the garbage
// collector deletes it with its owner, and at once if there is none, and with it the
// access and the record.
func (v *requestRules[T]) validateOwners(ctx context.Context, before, after []metav1.OwnerReference, req *extension.Request) error {
	owner := addedOwner(before, after)
	if owner == nil {
		return nil
	}
	may, err := v.mayDelete(ctx, req)
	if err != nil || may {
		return err
	}
	return rules.Refuse(v1alpha1.ReasonNotAllowed, "metadata.ownerReferences: the request would be deleted with its owner, %s %s, and user %q may not delete %s in namespace %s; leave the owner out",
		owner.Kind, owner.Name, req.User().Username, req.Resource.Resource, req.Namespace)
}

// addedOwner returns an owner that was not there before, nil if there is none.
func addedOwner(before, after []metav1.OwnerReference) *metav1.OwnerReference {
	for i := range after {
		if !slices.ContainsFunc(before, func(o metav1.OwnerReference) bool { return apiequality.Semantic.DeepEqual(o, after[i]) }) {
			return &after[i]
		}
	}
	return nil
}

// refuseOver refuses to change a request whose access is over: it is a record.
func refuseOver(old v1alpha1.Request) *rules.Refusal {
	end, err := v1alpha1.EndOf(old)
	if err != nil {
		return rules.Refuse(v1alpha1.ReasonDurationInvalid, "%v, so that the request cannot be changed; make another request", err)
	}
	return rules.Refuse(rules.ReasonEnded, "access ended at %s: it cannot be extended, nor the request changed; make another request", end.UTC().Format(time.RFC3339))
}

// refuseLate refuses a change of what has ended. To revoke it would put on record that it was revoked.
func refuseLate(old v1alpha1.Request, spec *v1alpha1.RequestSpec) *rules.Refusal {
	end, err := v1alpha1.EndOf(old)
	if err != nil || spec.Revoked == nil || old.GetRequestSpec().Revoked != nil {
		return refuseOver(old)
	}
	return rules.Refuse(rules.ReasonEnded, "access ended at %s already: there is nothing to revoke", end.UTC().Format(time.RFC3339))
}

// validateRevocation lets the requester revoke a request, and those who may delete
// it: deletion ends access too, but leaves no record.
func (v *requestRules[T]) validateRevocation(ctx context.Context, old v1alpha1.Request, revoked *v1alpha1.Revocation, req *extension.Request) error {
	if revoked == nil {
		return nil
	}
	user := req.User()
	if revoked.By != user.Username || revoked.At == nil { // a webhook after ours may have changed it
		return rules.Refuse(rules.ReasonChanged, "spec.revoked does not say that it is user %q who revokes the request now", user.Username)
	}
	if grant.IsParty(old.GetRequestSpec(), user) {
		return nil
	}
	may, err := v.mayDelete(ctx, req)
	switch {
	case err != nil:
		return err
	case !may:
		return rules.Refuse(v1alpha1.ReasonNotAllowed, "spec.revoked: user %q neither made the request nor may delete %s in namespace %s", user.Username, req.Resource.Resource, req.Namespace)
	case strings.TrimSpace(revoked.Reason) == "":
		return rules.Refuse(v1alpha1.ReasonMissing, "spec.revoked.reason: say why you end another user's access")
	}
	return nil
}

// mayDelete asks the API server whether RBAC lets the user delete the request.
func (v *requestRules[T]) mayDelete(ctx context.Context, req *extension.Request) (bool, error) {
	return permission.May(ctx, v.Writer, req.User(), authorizationv1.ResourceAttributes{
		Namespace: req.Namespace, Name: req.Name, Verb: "delete",
		Group: req.Resource.Group, Version: req.Resource.Version, Resource: req.Resource.Resource,
	})
}

// validateDuration lets access be shortened, which needs no template, and extended.
func (v *requestRules[T]) validateDuration(ctx context.Context, old v1alpha1.Request, spec *v1alpha1.RequestSpec, req *extension.Request) error {
	var was time.Duration
	if before := old.GetRequestSpec().Duration; before != "" {
		var err error
		if was, err = time.ParseDuration(before); err != nil {
			return refuseOver(old)
		}
	}
	duration, err := time.ParseDuration(spec.Duration)
	if err != nil || duration < 0 {
		return rules.Refuse(v1alpha1.ReasonDurationInvalid, "spec.duration: %q is not a duration such as 90m or 1h30m; hours are the largest unit", spec.Duration)
	}
	if duration <= was {
		return nil
	}
	if result := old.GetRequestStatus().Check; result != nil {
		return rules.Refuse(v1alpha1.ReasonDurationTooLong, "spec.duration: %s is longer than what the check %s was asked about, %s; make another request", spec.Duration, result.Name, old.GetRequestSpec().Duration)
	}
	if spec.Approval.Needed() {
		return rules.Refuse(v1alpha1.ReasonDurationTooLong, "spec.duration: %s is longer than what is approved, %s; make another request", spec.Duration, old.GetRequestSpec().Duration)
	}
	return v.validateExtension(ctx, spec, req)
}

// validateExtension allows what a new request would be allowed.
func (v *requestRules[T]) validateExtension(ctx context.Context, spec *v1alpha1.RequestSpec, req *extension.Request) error {
	t, err := v.template(ctx, req.Namespace, spec.TemplateName)
	if err != nil {
		return err
	}
	// The requester may have left the group since they asked.
	now := spec.DeepCopy()
	if grant.IsRequester(now.Requester, req.User()) {
		now.Requester.Groups = req.User().Groups
	}
	if refused := rules.Allows(t, now); refused != nil {
		return refused
	}
	if rules.TermsOf(t, now).Needed() { // since then, or for who left the group that needs none
		return rules.Refuse(v1alpha1.ReasonDurationTooLong, "spec.duration: template %q needs approval for what you ask, which this request has not; make another request", t.GetName())
	}
	return nil
}
