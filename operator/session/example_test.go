package session_test

import (
	"time"

	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/session"
)

// A program that records sessions, for at most 8 hours each, and lets none begin whose
// command is not on record. The recorder's image, the Secret with the key and the volume of
// the recordings are in operator/docs/sessions.md.
func Example() {
	command.Main(command.New("sessions", func(mgr *manager.Manager) error {
		sessions := session.New(session.Options{
			Image: "ghcr.io/admitkit/recorder:v1", KeyFolder: "/session-key",
			Folder: "/sessions", Claim: "sessions", ServiceName: mgr.GetManagerOptions().ServiceName,
			Max: 8 * time.Hour,
		})
		// The command that audit records is the user's, once it knows of the recorder.
		if err := mgr.AddExtension(sessions); err != nil {
			return err
		}
		return mgr.AddExtension(audit.New(audit.Options{Required: true}))
	}))
}
