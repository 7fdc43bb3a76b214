package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/admitkit/admitkit/internal/recording"
	"github.com/admitkit/admitkit/webhook"
)

// The metrics of a candidate.
var (
	compared = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_candidate_compared_total",
		Help: "Admissions that the build in force has sent to this candidate, by its webhook.",
	}, []string{"webhook"})
	differs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_candidate_differs_total",
		Help: "Differences between the answers of the build in force and those of this candidate. difference is webhook, mode, decision, code, reason, effect, warnings or audit annotations.",
	}, []string{"webhook", "difference"})
)

// Collectors are the metrics of a [Candidate].
func Collectors() []prometheus.Collector { return []prometheus.Collector{compared, differs} }

// maxMirrored is the largest body that a mirror sends: a batch, and one admission beyond it.
const maxMirrored = 16 << 20

// Candidate is a build that answers nobody. It gets the admissions that the build in force has
// answered (recording.NewMirror), as they come, sends each to its own webhooks as a dry run, and
// counts the differences. It logs a few examples of each, without secrets.
type Candidate struct {
	mu  sync.Mutex // of the report and the redactor
	run *run
}

// NewCandidate returns a Candidate with webhooks.
func NewCandidate(webhooks []*webhook.Webhook, handling webhook.HandlerOptions) (*Candidate, error) {
	r, err := newRun(Options{Webhooks: webhooks, Handling: handling})
	if err != nil {
		return nil, err
	}
	r.comparable = r.withoutSecrets
	r.report.tell = func(group *Group, example Example) {
		handling.Logger.Warn("the candidate answers differently", zap.String("webhook", group.Webhook), zap.String("difference", group.Kind), zap.String("change", group.Change),
			zap.String("request", example.Request), zap.String("diff", example.Diff))
	}
	return &Candidate{run: r}, nil
}

// maxAtOnce is how many admissions of a batch are answered at a time.
const maxAtOnce = 16

// ServeHTTP compares the admissions in a body.
func (c *Candidate) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		http.Error(w, "POST admissions, as a mirror does", http.StatusMethodNotAllowed)
		return
	}
	group, ctx := errgroup.WithContext(req.Context())
	group.SetLimit(maxAtOnce)
	damages, err := recording.ReadLines("body", http.MaxBytesReader(w, req.Body, maxMirrored), func(e *recording.Entry) error {
		group.Go(func() error { return c.compare(ctx, e) })
		return nil
	})
	err = errors.Join(err, group.Wait())
	for _, damage := range damages {
		err = errors.Join(err, errors.New(damage.String()))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// compare compares an admission.
func (c *Candidate) compare(ctx context.Context, e *recording.Entry) error {
	if err := asDryRun(e); err != nil {
		return err
	}
	now, why, err := c.run.ask(ctx, e)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	differences, err := c.run.judge(e, now, why)
	compared.WithLabelValues(nameOf(e.Webhook)).Inc()
	for _, d := range differences {
		differs.WithLabelValues(nameOf(e.Webhook), d.Kind).Inc()
	}
	return err
}

// asDryRun has extensions leave out their effects.
func asDryRun(e *recording.Entry) error {
	var request map[string]json.RawMessage
	if err := json.Unmarshal(e.Request, &request); err != nil {
		return fmt.Errorf("the request: %w", err)
	}
	request["dryRun"] = json.RawMessage("true")
	var err error
	e.Request, err = json.Marshal(request)
	return err
}
