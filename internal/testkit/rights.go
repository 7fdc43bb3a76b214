package testkit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Grant gives users a role of this name in a namespace, or with "" everywhere, and waits until
// the API server knows.
func Grant(t testing.TB, admin client.Client, namespace, name string, rules []rbacv1.PolicyRule, users ...string) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	var subjects []rbacv1.Subject
	for _, user := range users {
		subjects = append(subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
	}
	if namespace == "" {
		Create(t, admin, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules},
			&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}, Subjects: subjects})
	} else {
		Create(t, admin, &rbacv1.Role{ObjectMeta: meta, Rules: rules},
			&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: subjects})
	}
	for _, rule := range rules {
		AwaitRight(t, admin, Question(users[0], namespace, rule), true)
	}
}

// Question asks whether a user has the first right of a rule in a namespace, or with "" everywhere.
func Question(user, namespace string, rule rbacv1.PolicyRule) authorizationv1.SubjectAccessReviewSpec {
	question := authorizationv1.SubjectAccessReviewSpec{User: user}
	if len(rule.NonResourceURLs) > 0 {
		question.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: rule.NonResourceURLs[0], Verb: rule.Verbs[0]}
		return question
	}
	resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
	question.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: subresource,
	}
	if len(rule.ResourceNames) > 0 {
		question.ResourceAttributes.Name = rule.ResourceNames[0]
	}
	return question
}

// May asks the API server's authorizers, as a user who may ask them.
func May(ctx context.Context, asker client.Client, question authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: question}
	err := asker.Create(ctx, review)
	return review.Status.Allowed, err
}

// AwaitRight waits until a user may do something, or may not: the API server learns of roles
// by a watch.
func AwaitRight(t testing.TB, asker client.Client, question authorizationv1.SubjectAccessReviewSpec, want bool) {
	t.Helper()
	Succeeds(t, patience, fmt.Sprintf("the API server says %t to %s", want, question.String()), func(ctx context.Context) error {
		may, err := May(ctx, asker, question)
		if err == nil && may != want {
			err = errors.New("it does not yet")
		}
		return err
	})
}
