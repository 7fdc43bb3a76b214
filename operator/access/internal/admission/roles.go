package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// roleTemplates stamps templates for roles with their authors, and admits those whose author
// may bind the role.
type roleTemplates struct{ *templateRules }

// Register connects to the cluster.
func (v *roleTemplates) Register(mgr extension.Manager) error { return v.Setup(mgr) }

// Mutate writes who answers for the template: who makes it, or changes its spec, with which
// they could let others have the role.
func (v *roleTemplates) Mutate(_ context.Context, t *v1alpha1.RoleAccessTemplate, req *extension.Request) error {
	old, err := v.unchanged(t, req)
	if err != nil {
		return err
	}
	if old != nil {
		t.Spec.Author = old.Spec.Author
		return nil
	}
	t.Spec.Author = v1alpha1.AuthorOf(req.User())
	return nil
}

// unchanged returns the template before an update that leaves its spec as it was, but for
// the author, which a manifest that is applied again lacks.
func (v *roleTemplates) unchanged(t *v1alpha1.RoleAccessTemplate, req *extension.Request) (*v1alpha1.RoleAccessTemplate, error) {
	if req.Operation != admissionv1.Update {
		return nil, nil
	}
	old := &v1alpha1.RoleAccessTemplate{}
	if err := req.Old(old); err != nil {
		return nil, err
	}
	before, after := old.Spec.DeepCopy(), t.Spec.DeepCopy()
	before.Author, after.Author = nil, nil
	if apiequality.Semantic.DeepEqual(before, after) {
		return old, nil
	}
	return nil, nil
}

// Validate refuses templates that could give nobody access, or more than their authors have.
func (v *roleTemplates) Validate(ctx context.Context, t *v1alpha1.RoleAccessTemplate, req *extension.Request) error {
	err := v.validate(ctx, t, req)
	if refused, ok := errors.AsType[*rules.Refusal](err); ok {
		deniedTotal.WithLabelValues("template", refused.Reason).Inc()
		return extension.Deny(refused.Message)
	}
	return err
}

func (v *roleTemplates) validate(ctx context.Context, t *v1alpha1.RoleAccessTemplate, req *extension.Request) error {
	old, err := v.unchanged(t, req)
	if err != nil {
		return err
	}
	if old != nil {
		if !apiequality.Semantic.DeepEqual(t.Spec.Author, old.Spec.Author) { // a webhook after ours did it
			return rules.Refuse(rules.ReasonChanged, "spec.author cannot be changed; leave it out")
		}
		return nil
	}
	if refused := cmp.Or(v.Places.Closed(req.Namespace), v.Roles.Off(grant.RoleAccess)); refused != nil {
		return refused
	}
	if _, err := v.validateConfig(&t.Spec.AccessConfig); err != nil {
		return err
	}
	if !t.Spec.Author.Is(req.User()) {
		return rules.Refuse(rules.ReasonChanged, "spec.author does not name the user who writes the template, %q: leave it out", req.User().Username)
	}
	named := t.DeepCopy() // a name that is yet to be generated
	named.Namespace = req.Namespace
	refused, err := v.MayNotGive(ctx, named)
	if refused != nil {
		return rules.Refuse(refused.Reason, "spec.roleRef: %s", strings.TrimPrefix(refused.Message, fmt.Sprintf("template %q: ", named.Name)))
	}
	return err
}
