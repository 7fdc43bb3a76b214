package sessionsapi

import (
	"context"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sessions returns those of a namespace, or of all, that a user may see, the newest first, and
// what is not among them. The user has the verb of the request, on the subresources, too.
func (s *Server) sessions(ctx context.Context, user *authenticationv1.UserInfo, to request, subresources ...string) (found []*entry, unread string, err error) {
	found, unread, err = s.index.of(ctx, to.namespace)
	if err != nil {
		return nil, "", apierrors.NewServiceUnavailable("reading the recordings: " + err.Error())
	}
	found, err = s.ofNamespace(ctx, user, to, found, subresources...)
	return found, unread, err
}

// ofNamespace leaves out the sessions of earlier namespaces of the name, unless the user has
// the right in all namespaces: who may read in a namespace may read nothing of those who had
// its name before.
func (s *Server) ofNamespace(ctx context.Context, user *authenticationv1.UserInfo, to request, all []*entry, subresources ...string) ([]*entry, error) {
	if to.namespace == "" || len(all) == 0 {
		return all, nil
	}
	now, unknown := s.namespaceNow(ctx, to.namespace)
	own := slices.DeleteFunc(slices.Clone(all), func(e *entry) bool { return unknown != nil || !isOf(e, now) })
	if len(own) == len(all) {
		return all, nil
	}
	err := s.authorize(ctx, user, to.verb, "", to.subresource, to.name)
	for _, subresource := range subresources {
		if err == nil {
			err = s.authorize(ctx, user, "get", "", subresource, "")
		}
	}
	switch {
	case err == nil:
		return all, nil
	case !apierrors.IsForbidden(err):
		return nil, err
	case unknown != nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("cannot find out whether the sessions are of the namespace %s that there is now, or of an earlier one; with the right in all namespaces, that makes no difference: %v", to.namespace, unknown))
	}
	return own, nil
}

// namespaceNow returns the namespace of a name, nil if there is none.
func (s *Server) namespaceNow(ctx context.Context, name string) (*corev1.Namespace, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	now, err := s.options.Namespaces.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return now, err
}

// isOf reports whether a session was in this namespace, and not in an earlier one of its name.
// A recording without the UID was made before it was kept: it is not older than its namespace.
func isOf(e *entry, namespace *corev1.Namespace) bool {
	switch {
	case namespace == nil:
		return false
	case e.namespaceUID != "":
		return e.namespaceUID == string(namespace.UID)
	}
	return !e.began.Before(namespace.CreationTimestamp.Time)
}
