package apply

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/openapi"

	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// How long it takes until the schema of a CustomResourceDefinition is read that has changed,
// or that is new.
const (
	schemasLast = time.Minute
	newSchema   = time.Second
)

// Schemas has the schemas of kinds, as the API server says them, to users with the role
// system:discovery. The zero value with a Client is ready to use.
type Schemas struct {
	Client openapi.ClientWithContext

	mu    sync.Mutex
	read  time.Time
	paths map[string]openapi.GroupVersionWithContext
	known map[string]document // by path
}

// document is what the API server says of a group and version.
type document struct {
	url   string // which has its digest
	kinds map[schema.GroupVersionKind]*compose.Schema
}

// Of returns the schema of a kind, or nil if the API server has none.
func (s *Schemas) Of(ctx context.Context, kind schema.GroupVersionKind) (*compose.Schema, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := "apis/" + kind.Group + "/" + kind.Version
	if kind.Group == "" {
		path = "api/" + kind.Version
	}
	if _, ok := s.paths[path]; time.Since(s.read) > schemasLast || !ok && time.Since(s.read) > newSchema {
		paths, err := s.Client.PathsWithContext(ctx)
		if err != nil {
			return nil, fmt.Errorf("reading which schemas there are: %w", err)
		}
		s.paths, s.read = paths, time.Now()
	}
	at, ok := s.paths[path]
	if !ok {
		return nil, nil
	}
	if known, ok := s.known[path]; ok && known.url == at.ServerRelativeURL() {
		return known.kinds[kind], nil
	}
	data, err := at.SchemaWithContext(ctx, "application/json")
	if err == nil {
		var kinds map[schema.GroupVersionKind]*compose.Schema
		if kinds, err = compose.ReadSchemas(data); err == nil {
			if s.known == nil {
				s.known = map[string]document{}
			}
			s.known[path] = document{at.ServerRelativeURL(), kinds}
			return kinds[kind], nil
		}
	}
	return nil, fmt.Errorf("reading the schema of %s: %w", kind, err)
}
