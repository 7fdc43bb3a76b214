package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// MayBind reports whether a user holds the right to bind the very role of ref: in a
// RoleBinding of the namespace, or, if that is "", in a ClusterRoleBinding. If not, the
// reason is for people. An extension that binds roles on behalf of somebody asks this first:
// otherwise they would get, by way of the manager, a right that they do not have.
//
// It is one question to the API server's authorizers, with the user's groups, UID and extra
// as they are in user. Kubernetes itself also lets those bind a role who hold everything
// that is in it. That does not count here: what they hold may be for another purpose, and
// a role can change until somebody looks.
//
// It needs the right to create localsubjectaccessreviews in the namespace, or
// subjectaccessreviews in the cluster.
func MayBind(ctx context.Context, c client.Client, user authenticationv1.UserInfo, ref rbacv1.RoleRef, namespace string) (allowed bool, reason string, err error) {
	resource, err := resourceOf(ref, namespace)
	if err != nil {
		return false, err.Error(), nil //nolint:nilerr // the answer is no, and that is why
	}
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: make(map[string]authorizationv1.ExtraValue, len(user.Extra)),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: "bind", Group: rbacv1.GroupName, Version: "v1", Resource: resource, Name: ref.Name,
		},
	}
	for key, value := range user.Extra {
		spec.Extra[key] = authorizationv1.ExtraValue(value)
	}
	status, err := review(ctx, c, spec, namespace)
	switch {
	case err != nil:
		return false, "", fmt.Errorf("asking whether user %q may bind %s: %w", user.Username, Role(ref, namespace), err)
	case status.Denied || !status.Allowed:
		return false, fmt.Sprintf("user %q has not the right to bind %s%s: grant them the verb bind on %s of group %s with resourceNames [%q]",
			user.Username, Role(ref, namespace), where(ref, namespace), resource, rbacv1.GroupName, ref.Name), nil
	}
	return true, "", nil
}

// review asks with the right that the namespace gives, if there is one.
func review(ctx context.Context, c client.Client, spec authorizationv1.SubjectAccessReviewSpec, namespace string) (authorizationv1.SubjectAccessReviewStatus, error) {
	if namespace == "" {
		question := &authorizationv1.SubjectAccessReview{Spec: spec}
		err := c.Create(ctx, question)
		return question.Status, err
	}
	question := &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: spec}
	err := c.Create(ctx, question)
	return question.Status, err
}

// RoleUID returns the UID of the role of ref, as a RoleBinding of the namespace refers to
// it. A role that was deleted and made again has another UID. The error is NotFound of
// apierrors if there is no such role. Only the role's metadata is read, which needs the
// right get.
func RoleUID(ctx context.Context, reader client.Reader, ref rbacv1.RoleRef, namespace string) (types.UID, error) {
	if _, err := resourceOf(ref, namespace); err != nil {
		return "", err
	}
	role := &metav1.PartialObjectMetadata{}
	role.SetGroupVersionKind(schema.GroupVersionKind{Group: rbacv1.GroupName, Version: "v1", Kind: ref.Kind})
	key := client.ObjectKey{Namespace: namespace, Name: ref.Name}
	if ref.Kind == clusterRole {
		key.Namespace = ""
	}
	if err := reader.Get(ctx, key, role); err != nil {
		return "", fmt.Errorf("reading %s: %w", Role(ref, namespace), err)
	}
	return role.UID, nil
}

// The kinds of a reference to a role.
const (
	namespacedRole = "Role"
	clusterRole    = "ClusterRole"
)

// Role names the role of ref for people: Role shop/deployer, or ClusterRole view.
func Role(ref rbacv1.RoleRef, namespace string) string {
	if ref.Kind == namespacedRole {
		return fmt.Sprintf("%s %s/%s", ref.Kind, namespace, ref.Name)
	}
	return fmt.Sprintf("%s %s", ref.Kind, ref.Name)
}

// where says for which bindings of a ClusterRole the right is.
func where(ref rbacv1.RoleRef, namespace string) string {
	switch {
	case ref.Kind == namespacedRole:
		return ""
	case namespace == "":
		return " in the whole cluster"
	}
	return " in namespace " + namespace
}

// resourceOf returns the resource of the role that ref names.
func resourceOf(ref rbacv1.RoleRef, namespace string) (string, error) {
	switch {
	case ref.APIGroup != rbacv1.GroupName:
		return "", fmt.Errorf("roleRef.apiGroup: %q is not %s", ref.APIGroup, rbacv1.GroupName)
	case ref.Kind == namespacedRole && namespace == "":
		return "", fmt.Errorf("roleRef.kind: a ClusterRoleBinding refers to a ClusterRole, not to Role %q", ref.Name)
	case ref.Kind != namespacedRole && ref.Kind != clusterRole:
		return "", fmt.Errorf("roleRef.kind: %q is neither Role nor ClusterRole", ref.Kind)
	}
	if err := checkRoleName(ref.Name); err != nil {
		return "", fmt.Errorf("roleRef.name: %w", err)
	}
	return strings.ToLower(ref.Kind) + "s", nil
}

// ParseRole parses the namespace and the name of a Role, NAMESPACE/NAME.
func ParseRole(text string) (types.NamespacedName, error) {
	namespace, name, found := strings.Cut(text, "/")
	if !found {
		return types.NamespacedName{}, fmt.Errorf("%q: write NAMESPACE/NAME, such as shop/deployer", text)
	}
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return types.NamespacedName{}, fmt.Errorf("%q: the namespace %q: %s", text, namespace, strings.Join(problems, ", "))
	}
	if err := checkRoleName(name); err != nil {
		return types.NamespacedName{}, fmt.Errorf("%q: %w", text, err)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// CheckClusterRole reports what is wrong with the name of a ClusterRole.
func CheckClusterRole(name string) error {
	if err := checkRoleName(name); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	return nil
}

// checkRoleName refuses what cannot be, or would be more than, one resourceNames entry.
func checkRoleName(name string) error {
	if name == "" {
		return errors.New("the name of the role is empty: name each role that may be bound")
	}
	if strings.Contains(name, "*") {
		return errors.New("a pattern is not a role's name: name each role that may be bound")
	}
	if len(name) > maxRoleName {
		return fmt.Errorf("a role's name has at most %d characters", maxRoleName)
	}
	if problems := content.IsPathSegmentName(name); len(problems) > 0 {
		return fmt.Errorf("the name %q %s", name, strings.Join(problems, ", "))
	}
	if strings.TrimSpace(name) != name {
		return fmt.Errorf("the name %q begins or ends with a space", name)
	}
	return nil
}

// maxRoleName bounds what fits a key of the API server's storage.
const maxRoleName = 253
