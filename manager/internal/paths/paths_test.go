package paths_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager/internal/paths"
)

const (
	delay = time.Minute
	plain = "/mutate/pods/stamp"
)

// secrets are those of a namespace with one Secret, as an API server keeps it.
type secrets struct {
	corev1client.SecretInterface
	mu      sync.Mutex
	stored  *corev1.Secret
	version int
	down    bool
}

var resource = schema.GroupResource{Resource: "secrets"}

func (s *secrets) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down:
		return nil, errors.New("the API server is down")
	case s.stored == nil:
		return nil, apierrors.NewNotFound(resource, name)
	}
	return s.stored.DeepCopy(), nil
}

func (s *secrets) Create(_ context.Context, secret *corev1.Secret, _ metav1.CreateOptions) (*corev1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored != nil {
		return nil, apierrors.NewAlreadyExists(resource, secret.Name)
	}
	return s.store(secret), nil
}

func (s *secrets) Update(_ context.Context, secret *corev1.Secret, _ metav1.UpdateOptions) (*corev1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stored == nil:
		return nil, apierrors.NewNotFound(resource, secret.Name)
	case s.stored.ResourceVersion != secret.ResourceVersion:
		return nil, apierrors.NewConflict(resource, secret.Name, errors.New("it has changed"))
	}
	return s.store(secret), nil
}

func (s *secrets) store(secret *corev1.Secret) *corev1.Secret {
	s.version++
	s.stored = secret.DeepCopy()
	s.stored.ResourceVersion = strconv.Itoa(s.version)
	return s.stored.DeepCopy()
}

// cluster is one installation.
type cluster struct {
	t       *testing.T
	secrets secrets
	clock   *clocktesting.FakeClock
	log     *zap.Logger
	lines   *observer.ObservedLogs
	// registered is the path of a webhook in its configuration.
	registered string
}

func newCluster(t *testing.T) *cluster {
	core, lines := observer.New(zap.DebugLevel)
	return &cluster{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), log: zap.New(core), lines: lines}
}

func (c *cluster) process(registers bool) *paths.Paths {
	c.t.Helper()
	p := paths.New(paths.Options{
		Secrets: &c.secrets, Namespace: "ns", Name: "x-paths", Registers: registers, Delay: delay, Clock: c.clock, Logger: c.log,
	})
	if err := p.Wait(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// reconcile is what a registration does.
func (c *cluster) reconcile(p *paths.Paths) {
	c.t.Helper()
	seen := c.registered
	if err := p.Saw(c.t.Context(), seen); err != nil {
		c.t.Fatal(err)
	}
	if want := p.Sign(plain); want != seen {
		c.registered = want
		return
	}
	if err := p.Settled(c.t.Context(), []string{seen}); err != nil {
		c.t.Fatal(err)
	}
}

// turn has a process that registers take each step that is due.
func (c *cluster) turn(p *paths.Paths) {
	c.t.Helper()
	if err := errors.Join(p.Look(c.t.Context()), p.Begin(c.t.Context())); err != nil {
		c.t.Fatal(err)
	}
	c.reconcile(p)
	c.reconcile(p)
}

func (c *cluster) opens(server *paths.Paths, path string) bool {
	got, ok := server.Open(c.t.Context(), path)
	if ok && got != plain {
		c.t.Errorf("%s opens as %s", path, got)
	}
	return ok
}

// Whatever order things happen in, a call of an API server that learns of configurations
// within the delay is answered.
func TestNoCallIsLost(t *testing.T) {
	for seed := range testkit.Long[uint64](2000, 40) {
		random := rand.New(rand.NewPCG(seed, 0))
		c := newCluster(t)
		registrars := []*paths.Paths{c.process(true), c.process(true)}
		c.turn(registrars[0])
		servers := []*paths.Paths{c.process(false), c.process(false), c.process(false)}
		type view struct {
			path string
			at   time.Time
		}
		history := []view{{c.registered, c.clock.Now()}}
		for range 400 {
			c.clock.Step(time.Duration(random.IntN(30)) * time.Second)
			switch random.IntN(12) {
			case 0: // the registrars are away for days
				c.clock.Step(time.Duration(random.IntN(72)) * time.Hour)
			case 1: // one is killed, and starts
				registrars[random.IntN(2)] = c.process(true)
			case 2:
				servers[random.IntN(3)] = c.process(false)
			case 3: // an hour passes
				c.clock.Step(paths.Period)
				fallthrough
			case 4, 5:
				c.turn(registrars[random.IntN(2)])
			case 6: // one that has heard nothing of the other
				c.reconcile(registrars[random.IntN(2)])
			case 7, 8:
				if err := servers[random.IntN(3)].Look(t.Context()); err != nil {
					t.Fatal(err)
				}

			}
			now := c.clock.Now()
			if last := history[len(history)-1]; last.path != c.registered {
				history = append(history, view{c.registered, now})
			}
			// An API server may still have whatever was registered within the delay.
			for _, seen := range slices.Backward(history) {
				for n, server := range servers {
					if !c.opens(server, seen.path) {
						t.Fatalf("seed %d: server %d refuses %s, registered at %s; now it is %s at %s", seed, n, seen.path, seen.at, c.registered, now)
					}
				}
				if now.Sub(seen.at) >= delay-time.Second {
					break
				}
			}
		}
	}
}

func TestAPathEndsWithItsPeriod(t *testing.T) {
	c := newCluster(t)
	registrar, server := c.process(true), c.process(false)
	c.turn(registrar)
	first := c.registered
	c.clock.Step(paths.Period)
	c.turn(registrar)
	if c.registered == first {
		t.Fatal("the path is the same after an hour")
	}
	if !c.opens(server, first) || !c.opens(server, c.registered) {
		t.Error("within the delay, the former path or the new one is refused")
	}
	c.clock.Step(delay)
	if err := server.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.opens(server, first) {
		t.Error("the former path is still good after the delay")
	}
	if !c.opens(server, c.registered) {
		t.Error("the path is refused")
	}
	c.clock.Step(48 * time.Hour) // nobody registers
	if !c.opens(server, c.registered) {
		t.Error("the path is refused while the registrar is away")
	}
}

func TestAPathThatIsNotPublishedEverywhereEndsNothing(t *testing.T) {
	c := newCluster(t)
	registrar, server := c.process(true), c.process(false)
	c.turn(registrar)
	first := c.registered
	for range 5 {
		c.clock.Step(paths.Period)
		// It begins a period, and then the write of the configuration fails.
		if err := errors.Join(registrar.Look(t.Context()), registrar.Begin(t.Context()), server.Look(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if !c.opens(server, first) {
		t.Error("what is registered is refused")
	}
	if next := registrar.Sign(plain); !strings.HasPrefix(next, "/2-") {
		t.Errorf("a period began before the one before was published: %s", next)
	}
}

func TestTheKeyOutlivesItsSecret(t *testing.T) {
	for name, c := range map[string]struct {
		restart bool
		spoil   func(*secrets)
	}{
		"that somebody deletes":                             {false, func(s *secrets) { s.stored = nil }},
		"that somebody empties":                             {false, func(s *secrets) { s.stored.Data = nil; s.store(s.stored) }},
		"that somebody deletes before the registrar starts": {true, func(s *secrets) { s.stored = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			in := newCluster(t)
			registrar, server := in.process(true), in.process(false)
			in.turn(registrar)
			before := in.registered
			c.spoil(&in.secrets)
			if err := server.Look(t.Context()); err == nil {
				t.Error("a server takes a Secret without a key")
			}
			if c.restart {
				registrar = in.process(true)
			}
			in.turn(registrar)
			if in.registered == before == c.restart {
				t.Errorf("the path was %s, and is %s", before, in.registered)
			}
			for range 2 { // it learns of the key by the call
				if !in.opens(server, in.registered) || !in.opens(server, before) {
					t.Error("a call is lost")
				}
			}
			in.clock.Step(delay)
			if err := server.Look(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c.restart && in.opens(server, before) {
				t.Error("the former key opens paths for ever")
			}
		})
	}
}

// A backup of the Secret has another key, and nobody registers.
func TestWhatIsRegisteredIsGoodUntilOtherPathsAre(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	c.turn(c.process(true))
	other.turn(other.process(true))
	server := c.process(false)
	c.clock.Step(24 * time.Hour)
	c.secrets.stored = other.secrets.stored
	if err := server.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.clock.Step(100 * time.Hour)
	if !c.opens(server, c.registered) {
		t.Error("what is registered is refused, although nothing else is")
	}
}

func TestForgedPathsCostOneLookASecond(t *testing.T) {
	c := newCluster(t)
	registrar, server := c.process(true), c.process(false)
	c.turn(registrar)
	c.secrets.down = true
	for range 1000 {
		if c.opens(server, "/1-00000000000000000000000000000000"+plain) || c.opens(server, plain) {
			t.Fatal("a forged path opens")
		}
	}
	if failed := c.lines.FilterMessage("looking at the paths of the webhooks failed").Len(); failed != 1 {
		t.Errorf("%d looks at the Secret, want 1", failed)
	}
	if !c.opens(server, c.registered) {
		t.Error("the path is refused while the API server cannot be asked")
	}
}

func TestNoLineShowsAPath(t *testing.T) {
	c := newCluster(t)
	registrar := c.process(true)
	c.turn(registrar)
	_, secret, _ := strings.Cut(strings.TrimSuffix(c.registered, plain), "-")
	for _, line := range c.lines.All() {
		for _, field := range line.Context {
			if strings.Contains(line.Message+field.String, secret) {
				t.Errorf("%s %v", line.Message, line.ContextMap())
			}
		}
	}
	if c.lines.Len() == 0 {
		t.Error("nothing is logged")
	}
}

func TestASecretOfSomebodyElseIsLeftAlone(t *testing.T) {
	c := newCluster(t)
	c.secrets.stored = &corev1.Secret{Type: corev1.SecretTypeServiceAccountToken}
	p := paths.New(paths.Options{Secrets: &c.secrets, Namespace: "ns", Name: "x-paths", Registers: true, Delay: delay, Clock: c.clock, Logger: c.log})
	if err := p.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "somebody else's") {
		t.Errorf("got %v", err)
	}
}
