// Package session records what users do in containers by plain kubectl exec.
//
//   - wrapper.Mutate (wrapper.go) puts the recorder, cmd/session, before the command of an
//     exec, with a ticket for it;
//   - guard.Validate (guard.go) refuses an exec that is not recorded where it has to be;
//   - wrapper.Unwrap tells other extensions, such as audit, which command the user gave;
//   - injector.Mutate (inject.go) puts the recorder into new Pods, and keeper.Validate
//     (keep.go) refuses Pods in which something else could take its place.
//
// This package is under construction: see docs/sessions.md.
package session

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/extension/session/protocol"
)

// Policy says what happens where a session cannot be recorded.
type Policy string

// The policies.
const (
	// Open lets the session go on without being recorded.
	Open Policy = "Open"
	// Closed refuses it, or ends it.
	Closed Policy = "Closed"
)

// Options of [New].
type Options struct {
	// NamespaceSelector selects the namespaces in which sessions are recorded. Default: the
	// watched namespace, or every namespace if there is none.
	NamespaceSelector *metav1.LabelSelector
	// Image is that of the recorder. Required.
	Image string
	// KeyFolder has the key of tickets in the file `key`, and after a rotation the one before
	// in the file `previous`: at least 32 random bytes each. It is where the Secret with the
	// key is mounted. Both are read for each ticket. Required.
	KeyFolder string
	// Collectors are the addresses of the collectors, host:port. Required.
	Collectors []string
	// ServerName is the name in the collectors' certificates. Default: the host of each.
	ServerName string
	// CAFile has the certificates of the authorities that the collectors' certificates are
	// verified against, in PEM. It is read for each ticket. Required.
	CAFile string
	// Unrecorded says what happens in containers without the recorder, and to attach, which
	// cannot be recorded. Default: Closed.
	Unrecorded Policy
	// NoCollector says what happens to a session while no collector is reached. Default:
	// Closed.
	NoCollector Policy
	// Wait is how long a session waits for a collector: whole seconds, at most an hour.
	// Default: 10 s.
	Wait time.Duration
	// Input records what is typed, too, while the terminal echoes it.
	Input bool
	// Clock tells the time. Default: the API server's.
	Clock clock.PassiveClock
}

// DefaultWait is the default of [Options].Wait.
const DefaultWait = 10 * time.Second

// Session is the extension. Make one with [New].
type Session struct{ options Options }

var _ extension.Composite = (*Session)(nil)

// New returns the extension. AddExtension reports invalid options.
func New(options Options) *Session { return &Session{options} }

// Parts implements [extension.Composite].
func (s *Session) Parts(extension.Manager) ([]any, error) {
	options, err := s.options.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("session options: %w", err)
	}
	shared := &shared{options: options}
	w, g, i, k := &wrapper{shared}, &guard{shared}, &injector{shared}, &keeper{shared}
	return []any{
		extension.Mutating(w, w.scope()), extension.Validating(g, g.scope()), extension.Mutating(i, i.scope()), extension.Validating(k, k.scope()),
	}, nil
}

func (o Options) withDefaults() (Options, error) {
	for field, policy := range map[string]*Policy{"Unrecorded": &o.Unrecorded, "NoCollector": &o.NoCollector} {
		if *policy == "" {
			*policy = Closed
		}
		if *policy != Open && *policy != Closed {
			return o, fmt.Errorf("%s is %q: must be Open or Closed", field, *policy)
		}
	}
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	switch {
	case o.Image == "":
		return o, errors.New("Image is empty: name the image of the recorder")
	case !filepath.IsAbs(o.KeyFolder):
		return o, fmt.Errorf("KeyFolder %q: must be the absolute path of the folder where the Secret with the key is mounted", o.KeyFolder)
	case !filepath.IsAbs(o.CAFile):
		return o, fmt.Errorf("CAFile %q: must be the absolute path of a file with certificates", o.CAFile)
	case len(o.Collectors) == 0:
		return o, errors.New("Collectors is empty: name at least one, as host:port")
	case o.Wait < time.Second || o.Wait > time.Hour || o.Wait%time.Second != 0:
		return o, fmt.Errorf("Wait is %s: must be whole seconds, from 1s to 1h", o.Wait)
	}
	return o, nil
}

// shared is what the parts have in common.
type shared struct {
	options Options
	once    sync.Once
	failed  error

	log   *zap.Logger
	pods  corev1client.PodsGetter
	clock clock.PassiveClock
}

// Register implements [extension.Hosted]. Each part calls it.
func (s *shared) Register(mgr extension.Manager) error {
	s.once.Do(func() {
		s.log = mgr.GetLogger().Desugar().Named("session")
		if s.clock = s.options.Clock; s.clock == nil {
			s.clock = mgr.GetClock()
		}
		if _, s.failed = s.options.key(); s.failed != nil {
			return
		}
		if _, s.failed = s.options.terms(); s.failed != nil {
			return
		}
		config, err := cluster.Unthrottled(mgr)
		if err == nil {
			s.pods, err = corev1client.NewForConfig(config)
		}
		s.failed = err
	})
	if s.failed != nil {
		return fmt.Errorf("session: %w", s.failed)
	}
	return nil
}

// verify returns the ticket and the command of a wrapped one, if the ticket is for this
// very request. ok is false if the command is not wrapped at all.
func (s *shared) verify(command []string, container string, req *extension.Request) (ticket *protocol.Ticket, given []string, ok bool, err error) {
	text, given, ok := protocol.Split(command)
	if !ok {
		return nil, nil, false, nil
	}
	key, err := s.options.key()
	if err != nil {
		return nil, nil, true, err
	}
	if ticket, err = key.Verify(text, s.clock.Now()); err == nil {
		err = ticket.Covers(req.Namespace, req.Name, container, req.User().Username, given)
	}
	return ticket, given, true, err
}
