package sessionsapi

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// authorize asks the API server whether a user may do it. It has authorized the request
// before it passed it on: so one path that one of the two reads otherwise opens nothing.
func (s *Server) authorize(ctx context.Context, user *authenticationv1.UserInfo, verb, namespace, subresource, name string) error {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review, err := s.options.Reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: GroupVersion.Group, Version: GroupVersion.Version, Resource: Resource, Subresource: subresource, Verb: verb, Namespace: namespace, Name: name,
		},
	}}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return apierrors.NewServiceUnavailable(fmt.Sprintf("asking the API server what %s may do: %v", user.Username, err))
	case review.Status.Allowed && !review.Status.Denied:
		return nil
	}
	resource := Resource
	if subresource != "" {
		resource += "/" + subresource
	}
	where := "in all namespaces"
	if namespace != "" {
		where = fmt.Sprintf("in the namespace %q", namespace)
	}
	return apierrors.NewForbidden(groupResource, name,
		fmt.Errorf("User %q cannot %s resource %q in API group %q %s", user.Username, verb, resource, GroupVersion.Group, where))
}
