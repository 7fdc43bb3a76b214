package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Get reads an object; the result is nil if there is none.
func Get[T client.Object](ctx context.Context, reader client.Reader, key types.NamespacedName, into T) (T, error) {
	err := reader.Get(ctx, key, into)
	if err == nil {
		return into, nil
	}
	var none T
	return none, client.IgnoreNotFound(err)
}

// LivePod returns the metadata of a Pod as the API server has it, nil if it does not
// exist.
func (c *Connection) LivePod(ctx context.Context, key types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	found := &metav1.PartialObjectMetadata{}
	found.APIVersion, found.Kind = "v1", "Pod"
	return Get(ctx, c.Live, key, found)
}

// RoleOf returns the role that a template names, as the API server has it now. A missing
// role is a NotFound error.
func (c *Connection) RoleOf(ctx context.Context, t v1alpha1.Template) (grant.Choice, error) {
	ref := t.(*v1alpha1.RoleAccessTemplate).Spec.RoleRef
	uid, err := cluster.RoleUID(ctx, c.Live, ref.RoleRef(), t.GetNamespace())
	return grant.Choice{Role: ref.Kind, Name: ref.Name, UID: uid}, err
}

// MayNotGive says why the author of a template cannot give the role that it names: they must
// hold the right to bind it now, as when they wrote the template.
func (c *Connection) MayNotGive(ctx context.Context, t *v1alpha1.RoleAccessTemplate) (*rules.Refusal, error) {
	if refused := c.Roles.Refuses(t.Namespace, t.Spec.RoleRef); refused != nil {
		return refused, nil
	}
	author := t.Spec.Author
	if author == nil || author.Username == "" {
		return rules.Refuse(v1alpha1.ReasonRoleNotAllowed, "template %q: spec.author is empty: the template did not pass admission; make it again", t.Name), nil
	}
	allowed, why, err := cluster.MayBind(ctx, c.Writer, author.UserInfo(), t.Spec.RoleRef.RoleRef(), t.Namespace)
	if err != nil || allowed {
		return nil, err
	}
	return rules.Refuse(v1alpha1.ReasonRoleNotAllowed, "template %q: its author must hold the right to bind the role, or it would give what they cannot: %s", t.Name, why), nil
}
