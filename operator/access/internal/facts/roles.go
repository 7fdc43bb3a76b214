package facts

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// readNewRole finds out whether a request can get the role of its template, and which that is.
func (r *Reader) readNewRole(ctx context.Context, f *Facts) error {
	t := f.Template.(*v1alpha1.RoleAccessTemplate)
	if rules.Allows(t, f.Request.GetRequestSpec()) != nil || f.WaitsForApproval() {
		return nil //nolint:nilerr // the role does not matter yet
	}
	refused, err := r.MayNotGive(ctx, t)
	if err != nil {
		return err
	}
	if refused == nil {
		f.NewRole, err = r.RoleOf(ctx, t)
		refused, err = f.missesRole(f.NewRole, err)
	}
	if refused != nil {
		f.NoRole = refused.ForNow()
	}
	return err
}

// missesRole says that the role does not exist, or is not the one that the request had.
func (f *Facts) missesRole(found grant.Choice, err error) (*rules.Refusal, error) {
	settled := f.Settled()
	if f.Role != nil {
		settled = grant.ChoiceOf(f.Role)
	}
	switch {
	case apierrors.IsNotFound(err) && settled == grant.Choice{}:
		return rules.Refuse(v1alpha1.ReasonTargetMissing, "%s %s does not exist", found.Role, found.Name), nil
	case apierrors.IsNotFound(err):
		return rules.LostRole(settled, "is gone"), nil
	case err != nil:
		return nil, err
	case settled != grant.Choice{} && settled != found:
		return rules.LostRole(settled, "was replaced by another of the same name"), nil
	}
	return nil, nil
}

// readGrantedRole finds out whether the role of a grant is still the one that was granted,
// and may be. The author of the template is asked about again where a RoleBinding is
// missing: to make it is to grant.
func (r *Reader) readGrantedRole(ctx context.Context, f *Facts) error {
	was := grant.ChoiceOf(f.Role)
	if settled := f.Settled(); settled != (grant.Choice{}) && settled != was {
		f.NoRole = rules.LostRole(was, "is not the one that status.grantedRole names")
		return nil
	}
	ref := v1alpha1.AccessRoleRef{Kind: was.Role, Name: was.Name}
	if f.NoRole = r.Roles.Refuses(f.Key.Namespace, ref); f.NoRole != nil {
		return nil //nolint:nilerr // decide tells
	}
	uid, err := cluster.RoleUID(ctx, r.Live, ref.RoleRef(), f.Key.Namespace)
	if f.NoRole, err = f.missesRole(grant.Choice{Role: was.Role, Name: was.Name, UID: uid}, err); err != nil || f.NoRole != nil || f.Binding != nil {
		return err
	}
	t := &v1alpha1.RoleAccessTemplate{}
	err = r.Cached.Get(ctx, types.NamespacedName{Namespace: f.Key.Namespace, Name: f.Request.GetRequestSpec().TemplateName}, t)
	if apierrors.IsNotFound(err) {
		return nil // missTemplate has the last word
	}
	if err != nil {
		return err
	}
	if f.NoRole, err = r.MayNotGive(ctx, t); f.NoRole != nil {
		f.NoRole.Waits = true
	}
	return err
}
