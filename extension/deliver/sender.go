package deliver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/afero"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/remote"
)

// encoding is what [Events], [Logs] and [Spans] do not have in common.
type encoding struct {
	// name is the logger's. Errors call the server receiver, and what it gets item.
	name, receiver, item string
	mediaType            string
	// maxBatch bounds a request with several items, in bytes.
	maxBatch int
	// otherwise is the reason of a failure that says nothing by itself.
	otherwise reason
	// notFound explains the status 404, before the path.
	notFound string
	metrics
	// request encodes a batch.
	request func(items [][]byte) ([]byte, error)
	// describe says in the log which item it is.
	describe func(item []byte) (id, text string)
	// read reads an answer of the mediaType. It is nil if nothing counts but the status.
	read func(body []byte, taken bool) answer
}

// answer is what a server says about a request.
type answer struct {
	// rejected is how many items it rejects of a request that it takes. OTLP forbids to
	// send any of the request again.
	rejected int64
	// message is its reason, or its warning.
	message string
}

// Sender is what [Events] and [Logs] have in common.
type Sender struct {
	options  Options
	address  string
	encoding encoding
	remote   *remote.Client
	log      *zap.Logger
	queue    *queue // nil without Dir and Memory
}

var _ extension.Hosted = (*Sender)(nil)

func newSender(o Options, address string, e encoding) *Sender {
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.MaxQueued = cmp.Or(o.MaxQueued, DefaultMaxQueued)
	o.BatchSize = cmp.Or(o.BatchSize, DefaultBatchSize)
	o.Backoff = cmp.Or(o.Backoff, DefaultBackoff)
	o.MaxBackoff = cmp.Or(o.MaxBackoff, max(DefaultMaxBackoff, o.Backoff))
	o.Fs = cmp.Or(o.Fs, afero.NewOsFs())
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.RealClock{})
	if o.Rejected == nil {
		o.Rejected = func([]byte) {}
	}
	client := http.Client{}
	if o.Client != nil {
		client = *o.Client
	}
	client.Timeout = o.Timeout
	s := &Sender{options: o, address: address, encoding: e, log: zap.NewNop(), remote: remote.New(remote.Options{
		TokenFile: o.TokenFile, CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile, Client: client, Fs: o.Fs,
	})}
	if o.Dir != "" {
		s.queue = newQueue(o.Fs, o.Dir, o.MaxQueued)
	} else if o.Memory {
		s.queue = newQueue(afero.NewMemMapFs(), "queue", o.MaxQueued)
	}
	return s
}

// Register reads the files of the credentials, opens the queue and has the manager deliver
// it, in every replica. A sender without a queue needs it for its logger only.
func (s *Sender) Register(mgr extension.Manager) error {
	s.log = mgr.GetLogger().Desugar().Named(s.encoding.name).With(zap.String("sender", s.options.Name))
	if err := s.open(); err != nil || s.queue == nil {
		return err
	}
	if err := s.queue.open(); err != nil {
		return fmt.Errorf("the queue in %s: %w", s.options.Dir, err)
	}
	return mgr.GetKubeManager().Add(delivery{s})
}

// open begins the counters that alerts watch at zero, and reads the files of the
// credentials.
func (s *Sender) open() error {
	s.countRejected(0)
	for _, r := range reasons {
		s.encoding.failures.WithLabelValues(s.options.Name, string(r))
	}
	_, err := s.remote.Connect()
	return err
}

// send sends an item, or puts it into the queue.
func (s *Sender) send(ctx context.Context, id string, item []byte) error {
	if s.queue != nil {
		err := s.queue.push(ctx, id, item)
		s.countQueued()
		return err
	}
	said, err := s.sendBatch(ctx, [][]byte{item})
	if err == nil && said.rejected > 0 {
		s.countRejected(1)
		err = fmt.Errorf("the %s rejected the %s: %s", s.encoding.receiver, s.encoding.item, said.message)
	}
	return err
}

func (s *Sender) sendBatch(ctx context.Context, items [][]byte) (answer, error) {
	body, err := s.encoding.request(items)
	if err != nil {
		return answer{}, err
	}
	return s.post(ctx, body)
}

// delivery sends what a queue holds: in order, in batches, and at least once.
type delivery struct{ *Sender }

var _ manager.LeaderElectionRunnable = delivery{}

// NeedLeaderElection is false: each replica has a queue of its own.
func (delivery) NeedLeaderElection() bool { return false }

// lastAttempt bounds the delivery at the end. The rest stays on disk.
const lastAttempt = 5 * time.Second

// Start sends until ctx ends, and then once more.
func (d delivery) Start(ctx context.Context) error {
	d.countQueued()
	for d.next(ctx) {
		backoff := wait.Backoff{Duration: d.options.Backoff, Factor: 2, Jitter: 0.2, Steps: 1 << 30, Cap: d.options.MaxBackoff}
		for err := d.sendFirst(ctx); err != nil; err = d.sendFirst(ctx) {
			if ctx.Err() != nil || !d.pause(ctx, err, backoff.Step()) {
				break
			}
		}
	}
	d.finish(ctx)
	return nil
}

// next waits until the queue has an item, and reports false when ctx ends first.
func (d delivery) next(ctx context.Context) bool {
	select {
	case <-d.queue.wake:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// pause waits after a failure, as long as the server asks for if it does, and
// reports false when ctx ends first.
func (d delivery) pause(ctx context.Context, err error, pause time.Duration) bool {
	log := d.log.Warn
	if f, ok := errors.AsType[*failure](err); ok {
		pause = max(pause, min(f.after, d.options.MaxBackoff))
		if !f.passes() {
			log = d.log.Error
		}
	}
	log("batch not delivered", zap.Error(err), zap.Duration("retryIn", pause), zap.Int("undelivered", d.queue.len()))
	timer := d.options.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// finish empties the queue when the manager stops, as far as time allows.
func (d delivery) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAttempt)
	defer cancel()
	for d.queue.len() > 0 {
		if err := d.sendFirst(ctx); err != nil {
			d.log.Warn("what is undelivered stays in the queue", zap.Int("undelivered", d.queue.len()), zap.Error(err))
			return
		}
	}
}

// sendFirst sends the first batch of the queue.
func (d delivery) sendFirst(ctx context.Context) error {
	names, items, err := d.queue.first(d.options.BatchSize, d.encoding.maxBatch)
	if err != nil || len(names) == 0 {
		return err
	}
	err = d.deliver(ctx, items)
	if reasonOf(err) == rejected {
		return d.sendOneByOne(ctx, names, items)
	}
	if err != nil {
		return err
	}
	return d.done(names)
}

// sendOneByOne finds the items of a batch that the server rejects, so that they do
// not hold up the others.
func (d delivery) sendOneByOne(ctx context.Context, names []string, items [][]byte) error {
	for i := range names {
		err := d.deliver(ctx, items[i:i+1])
		if reasonOf(err) == rejected {
			d.lose(items[i], err)
		} else if err != nil {
			return err
		}
		if err := d.done(names[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

// deliver sends a batch. The server may reject items while it takes others, and then says
// only how many.
func (d delivery) deliver(ctx context.Context, items [][]byte) error {
	said, err := d.sendBatch(ctx, items)
	if err != nil || said == (answer{}) {
		return err
	}
	ids := make([]string, 0, len(items))
	for _, item := range items {
		id, _ := d.encoding.describe(item)
		ids = append(ids, id)
	}
	lost := min(said.rejected, int64(len(items)))
	if lost == 0 {
		d.log.Warn("the "+d.encoding.receiver+" warns", zap.String("message", said.message), zap.Strings("ids", ids))
		return nil
	}
	d.countRejected(lost)
	d.log.Error(d.encoding.item+"s lost: the "+d.encoding.receiver+" rejects them",
		zap.Int64("lost", lost), zap.String("message", said.message), zap.Strings("among", ids))
	for range lost {
		d.options.Rejected(nil)
	}
	return nil
}

// lose is called for an item that the server takes neither with others nor alone.
func (d delivery) lose(item []byte, err error) {
	d.countRejected(1)
	id, text := d.encoding.describe(item)
	d.log.Error(d.encoding.item+" lost: the "+d.encoding.receiver+" rejects it", zap.Error(err), zap.String("id", id), zap.String(d.encoding.item, text))
	d.options.Rejected(item)
}

func (d delivery) done(names []string) error {
	err := d.queue.remove(names)
	d.countQueued()
	return err
}
