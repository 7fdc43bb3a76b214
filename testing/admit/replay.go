package admit

import (
	"github.com/admitkit/admitkit/internal/replay"
	"github.com/admitkit/admitkit/webhook"
)

// Replay sends the admissions in folders to the extensions, and fails the test with what they
// answer differently. The folders have what a server kept with --record, or what the command
// replay --update wrote. Each request goes to the webhook that it was recorded of, and the user,
// the namespace and the match conditions of the client do not matter. It also fails if a part of
// them cannot be read. A folder without recordings ends the test.
func (c *Client) Replay(dirs ...string) {
	c.t.Helper()
	c.used.Store(true)
	c.start()
	report, err := replay.Run(c.t.Context(), dirs, replay.Options{Webhooks: c.webhooks, Handling: webhook.HandlerOptions{Scheme: c.scheme}})
	if err != nil {
		c.t.Fatalf("admit: Replay: %v", err)
	}
	tell := c.t.Logf
	if report.Differing+len(report.Unreadable) > 0 {
		tell = c.t.Errorf
	}
	tell("admit: Replay:\n%s", report.Text())
}
