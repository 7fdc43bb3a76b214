package auditevent

import (
	"context"
	"fmt"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
)

// self is who the manager is, as the API server authenticates it.
type self struct {
	reviews authenticationv1client.SelfSubjectReviewsGetter

	mu   sync.Mutex
	name string // once it is known
}

func (s *self) connect(config *rest.Config) (err error) {
	s.reviews, err = authenticationv1client.NewForConfig(config)
	return err
}

// is reports whether a user is the manager itself.
func (s *self) is(ctx context.Context, user string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name == "" {
		review, err := s.reviews.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return false, fmt.Errorf("asking the API server who the manager is: %w", err)
		}
		s.name = review.Status.UserInfo.Username
	}
	return user == s.name, nil
}
