// Package permission asks the API server what a user may.
package permission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// GroupsLast is for how long an author is taken to be in the groups that they had: nobody says when somebody leaves one.
const GroupsLast = 24 * time.Hour

// Former returns a user with only the groups that nobody leaves.
func Former(user authenticationv1.UserInfo) authenticationv1.UserInfo {
	user.Groups = slices.DeleteFunc(slices.Clone(user.Groups), func(group string) bool {
		return group != "system:authenticated" && group != "system:serviceaccounts" && !strings.HasPrefix(group, "system:serviceaccounts:")
	})
	return user
}

// May reports whether a user may do something in the namespace of the attributes. The asker needs the right to create
// localsubjectaccessreviews there.
func May(ctx context.Context, asker client.Writer, user authenticationv1.UserInfo, what authorizationv1.ResourceAttributes) (bool, error) {
	review := &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: what.Namespace}, Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{}, ResourceAttributes: &what,
	}}
	for key, values := range user.Extra {
		review.Spec.Extra[key] = authorizationv1.ExtraValue(values)
	}
	if err := asker.Create(ctx, review); err != nil {
		return false, fmt.Errorf("asking whether user %q may %s %s %s/%s: %w", user.Username, what.Verb, what.Resource, what.Namespace, what.Name, err)
	}
	return review.Status.Allowed && !review.Status.Denied, nil
}
