package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// decisions stamps and admits decisions. Their CRD keeps them from being changed.
type decisions struct {
	*kube.Connection
	claims pendingDecisions
}

// Register connects to the cluster.
func (v *decisions) Register(mgr extension.Manager) error { return v.Setup(mgr) }

// Mutate writes who decides, and makes the request the owner, with which the decision goes.
func (v *decisions) Mutate(_ context.Context, d *v1alpha1.AccessDecision, req *extension.Request) error {
	if req.Operation == admissionv1.Update {
		old := &v1alpha1.AccessDecision{}
		if err := req.Old(old); err != nil {
			return err
		}
		if d.Spec.Decider == nil { // a manifest that is applied again lacks it
			d.Spec.Decider = old.Spec.Decider
		}
		return nil
	}
	if who := d.Spec.Decider; who != nil && who.Username != "" && who.Username != req.User().Username {
		return nil // Validate refuses it
	}
	d.Spec.Decider = deciderOf(req)
	if k, found := grant.KindOf(d.Spec.Request.Kind); found {
		d.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: k.RequestKind, Name: d.Spec.Request.Name, UID: types.UID(d.Spec.Request.UID),
		}}
	}
	return nil
}

func deciderOf(req *extension.Request) *v1alpha1.Requester {
	user := req.User()
	return &v1alpha1.Requester{Username: user.Username, UID: user.UID, Groups: user.Groups}
}

// Validate refuses decisions that would not count, and says why.
func (v *decisions) Validate(ctx context.Context, d *v1alpha1.AccessDecision, req *extension.Request) error {
	if req.Operation == admissionv1.Update {
		return nil // the spec cannot change, and nothing else matters
	}
	err := v.validate(ctx, d, req)
	if refused, ok := errors.AsType[*rules.Refusal](err); ok {
		deniedTotal.WithLabelValues("decision", refused.Reason).Inc()
		return extension.Deny(refused.Message)
	}
	return err
}

func (v *decisions) validate(ctx context.Context, d *v1alpha1.AccessDecision, req *extension.Request) error {
	if refused := v.Places.Closed(req.Namespace); refused != nil {
		return refused
	}
	if !apiequality.Semantic.DeepEqual(d.Spec.Decider, deciderOf(req)) { // or a webhook after ours changed it
		return rules.Refuse(v1alpha1.ReasonNotAllowed, "spec.decider does not name the user who decides, %q: leave it out; nobody decides for another", req.User().Username)
	}
	request, err := v.decided(ctx, d)
	if err != nil {
		return err
	}
	if err := request.GetRequestSpec().May(d.Spec.Decider); err != nil {
		return rules.Refuse(v1alpha1.ReasonNotAllowed, "%s %q: %v", d.Spec.Request.Kind, d.Spec.Request.Name, err)
	}
	before, err := v.DecisionsAbout(ctx, req.Namespace, d.Spec.Request.UID)
	if err != nil {
		return err
	}
	for i := range before {
		if by := before[i].Spec.Decider; by != nil && strings.EqualFold(by.Username, d.Spec.Decider.Username) {
			return rules.Refuse(rules.ReasonChanged, "user %q has decided about %s %q before, by AccessDecision %s: each person decides once",
				by.Username, d.Spec.Request.Kind, d.Spec.Request.Name, before[i].Name)
		}
	}
	if !req.DryRun() && !v.claims.take(pendingDecision{d.Spec.Request.UID, strings.ToLower(d.Spec.Decider.Username)}, v.Clock.Now()) {
		return rules.Refuse(rules.ReasonChanged, "user %q is deciding about %s %q at this moment: each person decides once; if that decision was not stored, try again in %s",
			d.Spec.Decider.Username, d.Spec.Request.Kind, d.Spec.Request.Name, pendingFor)
	}
	return nil
}

// decided returns the request that a decision is about, if it waits for decisions.
func (v *decisions) decided(ctx context.Context, d *v1alpha1.AccessDecision) (v1alpha1.Request, error) {
	about := d.Spec.Request
	k, found := grant.KindOf(about.Kind)
	if !found {
		return nil, rules.Refuse(rules.ReasonInvalidName, "spec.request.kind: %q is not PodAccessRequest, ExecAccessRequest or RoleAccessRequest", about.Kind)
	}
	if refused := noName("spec.request.name", about.Name); refused != nil {
		return nil, refused
	}
	request := k.NewRequest()
	err := v.Live.Get(ctx, types.NamespacedName{Namespace: d.Namespace, Name: about.Name}, request)
	switch {
	case apierrors.IsNotFound(err):
		return nil, rules.Refuse(rules.ReasonInvalidName, "spec.request: %s %s/%s does not exist", about.Kind, d.Namespace, about.Name)
	case err != nil:
		return nil, fmt.Errorf("reading the request: %w", err)
	case string(request.GetUID()) != about.UID:
		return nil, rules.Refuse(rules.ReasonChanged, "spec.request.uid: %s %s/%s has the UID %s, and not %s: look at the request that you decide about", about.Kind, d.Namespace, about.Name, request.GetUID(), about.UID)
	}
	status := request.GetRequestStatus()
	switch {
	case request.GetRequestSpec().Approval == nil:
		return nil, rules.Refuse(rules.ReasonEnded, "%s %s/%s needs no approval; to end access set its spec.revoked", about.Kind, d.Namespace, about.Name)
	case status.ApprovedAt != nil:
		return nil, rules.Refuse(rules.ReasonEnded, "%s %s/%s has been approved already, at %s; to end access set its spec.revoked",
			about.Kind, d.Namespace, about.Name, status.ApprovedAt.UTC().Format(time.RFC3339))
	case v1alpha1.Over(request, v.Clock.Now()):
		return nil, rules.Refuse(rules.ReasonEnded, "%s %s/%s no longer waits for decisions", about.Kind, d.Namespace, about.Name)
	}
	return request, nil
}
