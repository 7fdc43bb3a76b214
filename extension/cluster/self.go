package cluster

import (
	"context"
	"fmt"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Self is who the manager is to the API server. The zero value is ready to use,
// by any number of goroutines.
type Self struct {
	mu       sync.Mutex
	username string
}

// Username returns the name of the user that c authenticates as, such as
// system:serviceaccount:my-system:my-ext. It asks the API server until there is an
// answer, and then remembers it. Every authenticated user may ask.
func (s *Self) Username(ctx context.Context, c client.Client) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.username != "" {
		return s.username, nil
	}
	var review authenticationv1.SelfSubjectReview
	if err := c.Create(ctx, &review); err != nil {
		return "", fmt.Errorf("asking the API server who the manager is: %w", err)
	}
	s.username = review.Status.UserInfo.Username
	return s.username, nil
}
