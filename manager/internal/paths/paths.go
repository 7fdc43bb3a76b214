// Package paths keeps the key by which the paths of webhooks are signed. It is in a Secret
// that the registrar and the servers share.
//
// An API server names the whole URL of a webhook that fails to the user whose request failed.
// So a path lives for a period only, an hour, or until an outage is over:
//
//	written     the Secret has the next period, for those who register
//	published   every webhook configuration, and every conversion, was seen to have it
//	over        the delay has passed since: paths of the period before are refused
//
// A server opens any path that is signed by the key, except those of periods that are over.
// It needs no news for a new period, and as long as nobody publishes one, the last one
// stays good: no server refuses calls because the registrar is away.
package paths

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"github.com/admitkit/admitkit/internal/webhookpath"
)

const (
	// Period is how long paths are registered before others take their place.
	Period = time.Hour
	// lookInterval is the pause between two looks at the Secret.
	lookInterval = 10 * time.Second
	// openInterval is the pause between two looks for the sake of a path that does not open.
	openInterval = time.Second
	// lookTimeout limits a look, and askTimeout one that a caller waits for.
	lookTimeout, askTimeout = 5 * time.Second, time.Second
	// secretKey is the only key of the Secret.
	secretKey = "paths.json"
)

// Options are the options of [New]. All but Probe are required.
type Options struct {
	// Secrets is the client for the Secret's namespace.
	Secrets corev1client.SecretInterface
	// Namespace and Name identify the Secret, and Labels are set when it is made.
	Namespace, Name string
	Labels          map[string]string
	// Registers means that this process makes the Secret, and begins periods.
	Registers bool
	// Delay is how long an API server may take to learn of a configuration.
	Delay time.Duration
	// Probe calls a webhook through the API server. When it succeeds after failures, a
	// period begins. Default: only the clock begins one.
	Probe  func(context.Context) error
	Clock  clock.WithTicker
	Logger *zap.Logger
}

// state is the content of the Secret.
type state struct {
	Key webhookpath.Key `json:"key"`
	// Period is the one to register, since when.
	Period int64     `json:"period"`
	Since  time.Time `json:"since"`
	// Published is the last one that was seen to be registered everywhere, since when, and
	// Before the one before it.
	Published   int64     `json:"published"`
	PublishedAt time.Time `json:"publishedAt,omitzero"`
	Before      int64     `json:"before"`
}

// Paths signs and opens the paths of webhooks.
type Paths struct {
	options Options

	mu    sync.Mutex
	state state
	// newest is the newest period that was seen to be registered.
	newest int64
	// former is the key before. It opens paths until the one that took its place has been
	// registered everywhere for the delay.
	former  webhookpath.Key
	adopted time.Time // when that was

	// asking has an entry of who looks for the sake of a path that does not open, the last time
	// then.
	asking chan struct{}
	asked  time.Time
}

// New returns Paths that hold nothing until Wait returns.
func New(options Options) *Paths { return &Paths{options: options, asking: make(chan struct{}, 1)} }

var errNone = errors.New("waiting for the registrar to write it")

// Wait returns when there is a key. A process that registers makes one.
func (p *Paths) Wait(ctx context.Context) error {
	for logged := false; ; logged = true {
		err := p.look(ctx)
		if err == nil && p.options.Registers {
			err = p.begin(ctx, p.options.Delay, "a process that registers has started")
		}
		if !errors.Is(err, errNone) {
			return err
		}
		if !logged {
			p.options.Logger.Info("no paths of webhooks yet", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		case <-p.options.Clock.After(time.Second):
		}
	}
}

// Run looks at the Secret until ctx ends, and in a process that registers begins periods
// and then calls begun. It logs failures: what is known stays in use.
func (p *Paths) Run(ctx context.Context, begun func()) {
	ticker := p.options.Clock.NewTicker(lookInterval)
	defer ticker.Stop()
	probe := p.outages()
	over := false // an outage, whose errors named the paths that are still registered
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		err := p.look(ctx)
		if err == nil && p.options.Registers {
			before := p.current()
			if over = probe(ctx) || over; over {
				err = p.begin(ctx, p.options.Delay, "an outage is over, whose errors named the paths")
			} else {
				err = p.begin(ctx, Period, "the period is over")
			}
			if p.current() != before {
				over = false
				begun()
			}
		}
		if err != nil && ctx.Err() == nil {
			p.options.Logger.Error("the paths of the webhooks stay as they are", zap.Error(err))
		}
	}
}

// probeEvery is how many looks there are for each probe.
const probeEvery = 3

// outages returns a function that reports, for each look, whether an outage is over.
func (p *Paths) outages() func(context.Context) bool {
	looks, out := 0, false
	return func(ctx context.Context) bool {
		looks++
		if p.options.Probe == nil || looks%probeEvery != 0 && !out {
			return false
		}
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		was := out
		out = p.options.Probe(ctx) != nil
		return was && !out
	}
}

// current returns the period to register.
func (p *Paths) current() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.state.Period, p.newest)
}

// Sign returns the path at which to register a webhook now.
func (p *Paths) Sign(plain string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Key.Sign(plain, max(p.state.Period, p.newest))
}

// Open returns the path that one stands for which somebody called. ok is false if it was
// not signed, or is of a period that is over. It looks at the Secret first if it knows
// neither: the key may be new.
func (p *Paths) Open(ctx context.Context, signed string) (plain string, ok bool) {
	plain, period, ok := p.open(signed)
	if !ok && webhookpath.Strip(signed) != signed {
		p.ask(ctx)
		plain, period, ok = p.open(signed)
	}
	return plain, ok && period >= p.oldest()
}

func (p *Paths) open(signed string) (plain string, period int64, ok bool) {
	p.mu.Lock()
	key, former := p.state.Key, p.former
	// A Secret that somebody restores says that it was published once, which it is not now.
	if at := p.state.PublishedAt; former != nil && at.After(p.adopted.Add(-p.options.Delay)) && !p.options.Clock.Now().Before(at.Add(p.options.Delay)) {
		former = nil
	}
	p.mu.Unlock()
	if plain, period, ok = key.Open(signed); ok || former == nil {
		return plain, period, ok && key.Valid()
	}
	plain, _, ok = former.Open(signed)
	return plain, math.MaxInt64, ok // of whichever period
}

// ask looks at the Secret, unless that was done a moment ago. Everybody who comes meanwhile
// waits for it; who goes does not end it for the others.
func (p *Paths) ask(ctx context.Context) {
	select {
	case p.asking <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-p.asking }()
	if p.options.Clock.Now().Sub(p.asked) < openInterval {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	if err := p.look(ctx); err != nil {
		p.options.Logger.Warn("looking at the paths of the webhooks failed", zap.Error(err))
	}
	p.asked = p.options.Clock.Now()
}

// oldest returns the oldest period that is not over.
func (p *Paths) oldest() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.options.Clock.Now().Before(p.state.PublishedAt.Add(p.options.Delay)) {
		return p.state.Before
	}
	return p.state.Published
}

// Saw learns of a path that is registered. It looks at the Secret if that is of a newer
// period, or of none: another process that registers may know better.
func (p *Paths) Saw(ctx context.Context, signed string) error {
	_, period, ok := p.open(signed)
	if ok && period <= p.current() {
		return nil // older ones are replaced
	}
	if err := p.look(ctx); err != nil {
		return err
	}
	if _, period, ok = p.open(signed); ok && period < math.MaxInt64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.newest = max(p.newest, period)
	}
	return nil
}

// Settled notes that what is registered is of the period of these paths, or a later one.
func (p *Paths) Settled(ctx context.Context, signed []string) error {
	period := int64(math.MaxInt64)
	for _, path := range signed {
		_, of, ok := p.open(path)
		if !ok {
			return nil
		}
		period = min(period, of)
	}
	p.mu.Lock()
	published := p.state.Published
	p.mu.Unlock()
	if period <= published || period == math.MaxInt64 {
		return nil
	}
	return p.change(ctx, func(s *state, now time.Time) string {
		if s.Published >= period {
			return ""
		}
		s.Period = max(s.Period, period)
		s.Before, s.Published, s.PublishedAt = s.Published, period, now
		return "it is registered everywhere"
	})
}

// begin begins a period if the last one has lasted so long, and is published.
func (p *Paths) begin(ctx context.Context, after time.Duration, reason string) error {
	due := func(s *state, now time.Time) bool {
		// A clock that was ahead once must not stop the periods.
		return s.Published >= s.Period && (!now.Before(s.Since.Add(after)) || s.Since.After(now.Add(p.options.Delay))) && !now.Before(s.PublishedAt.Add(p.options.Delay))
	}
	p.mu.Lock()
	known := p.state
	p.mu.Unlock()
	if !due(&known, p.options.Clock.Now()) {
		return nil
	}
	return p.change(ctx, func(s *state, now time.Time) string {
		if !due(s, now) {
			return ""
		}
		s.Period, s.Since = max(s.Period, p.current())+1, now
		return reason
	})
}

// change reads the state, and writes what change makes of it, unless the reason that this
// returns is empty or somebody else wrote in between.
func (p *Paths) change(ctx context.Context, change func(s *state, now time.Time) (reason string)) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	s, secret, err := p.read(ctx)
	if err != nil {
		return err
	}
	reason := change(&s, p.options.Clock.Now())
	if reason == "" {
		p.adopt(s)
		return nil
	}
	return p.write(ctx, s, secret, reason)
}

// look reads the Secret, and makes it if this process may.
func (p *Paths) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	s, secret, err := p.read(ctx)
	if !errors.Is(err, errNone) || !p.options.Registers {
		if err == nil {
			p.adopt(s)
		}
		return err
	}
	p.mu.Lock()
	s = p.state // so that no call fails
	p.mu.Unlock()
	if !s.Key.Valid() {
		s = state{Key: webhookpath.NewKey(), Period: 1, Since: p.options.Clock.Now()}
	}
	return p.write(ctx, s, secret, "there was none")
}

// read returns the state in the Secret, which is nil if it does not exist.
func (p *Paths) read(ctx context.Context) (s state, secret *corev1.Secret, err error) {
	secret, err = p.options.Secrets.Get(ctx, p.options.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return s, nil, fmt.Errorf("no key of paths in Secret %s/%s: %w", p.options.Namespace, p.options.Name, errNone)
	case err != nil:
		return s, nil, fmt.Errorf("reading the key of paths from Secret %s/%s: %w", p.options.Namespace, p.options.Name, err)
	case secret.Type != corev1.SecretTypeOpaque:
		return s, nil, fmt.Errorf("Secret %s/%s is of type %s, so somebody else's: delete it, or choose another OperatorFingerprint", p.options.Namespace, p.options.Name, secret.Type)
	}
	if err := json.Unmarshal(secret.Data[secretKey], &s); err != nil || !s.Key.Valid() || s.Period < 1 || s.Published > s.Period {
		return state{}, secret, fmt.Errorf("Secret %s/%s has no key of paths in %s: %w", p.options.Namespace, p.options.Name, secretKey, errNone)
	}
	return s, secret, nil
}

// write stores a state, unless another process was faster, which is just as good.
func (p *Paths) write(ctx context.Context, s state, secret *corev1.Secret, reason string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if secret == nil {
		_, err = p.options.Secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: p.options.Name, Namespace: p.options.Namespace, Labels: p.options.Labels},
			Type:       corev1.SecretTypeOpaque, Data: map[string][]byte{secretKey: text},
		}, metav1.CreateOptions{})
	} else {
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		secret.Data[secretKey] = text
		_, err = p.options.Secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	switch {
	case apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		s, _, err = p.read(ctx)
		if err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("writing the key of paths to Secret %s/%s: %w", p.options.Namespace, p.options.Name, err)
	default:
		p.options.Logger.Info("the paths of the webhooks have changed", zap.String("reason", reason), zap.Int64("period", s.Period), zap.Int64("published", s.Published))
	}
	p.adopt(s)
	return nil
}

func (p *Paths) adopt(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.state.Key; known.Valid() && !bytes.Equal(known, s.Key) {
		p.former, p.newest, p.adopted = known, 0, p.options.Clock.Now()
	}
	p.state = s
}
