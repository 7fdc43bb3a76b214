package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/admitkit/admitkit/internal/recording"
	"github.com/admitkit/admitkit/webhook"
)

// StartCandidate is [Manager.Start] for a build that is not in force yet. No API server calls it,
// and it registers nothing, and reconciles nothing. A manager of the same installation sends it
// what it has answered (Serving.Mirror), and compare returns what handles that. The command `serve --candidate` does. Extensions must change nothing: give the manager a
// RESTConfig that only reads, and send them dry runs.
func (m *Manager) StartCandidate(ctx context.Context, compare func([]*webhook.Webhook, webhook.HandlerOptions) (http.Handler, error)) error {
	switch {
	case *m.options.RegisterWebHook:
		return errors.New("manager: RegisterWebHook: a candidate registers nothing: set it to false")
	case m.options.Serving.PlainPaths || m.options.Serving.ClientCAFile != "":
		return errors.New("manager: Serving.PlainPaths and Serving.ClientCAFile: a candidate knows by a signed path who calls: leave them out")
	case m.options.Serving.Mirror != "":
		m.options.Serving.Mirror = "" // the flags are those of the build in force
	}
	m.compare = compare
	return m.run(ctx, func(ctx context.Context) error {
		webhooks, err := m.webhooks()
		if err == nil && len(webhooks) == 0 {
			err = errors.New("no extension answers admissions: there is nothing to compare")
		}
		if err != nil {
			return err
		}
		return m.start(ctx)
	})
}

// registerCandidate adds the handler that compares.
func (s *serving) registerCandidate() error {
	handler, err := s.compare(s.webhooks, s.handling)
	if err != nil {
		return fmt.Errorf("candidate: %w", err)
	}
	s.server.Register(recording.MirrorPath, s.afterReads(handler))
	return nil
}
