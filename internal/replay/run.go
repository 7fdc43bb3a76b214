package replay

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/internal/recording"
	"github.com/admitkit/admitkit/webhook"
)

// maxBodyBytes is the largest review that is sent: whatever the limit of the process was that
// recorded it.
const maxBodyBytes = 64 << 20

// observedWait is how long a webhook that only observes waits for its handlers before it answers
// without what they found.
const observedWait = 500 * time.Millisecond

// Options are the options of [Run].
type Options struct {
	// Webhooks are those of today's build.
	Webhooks []*webhook.Webhook
	// Handling has the options of their handlers. Run sets those about limits.
	Handling webhook.HandlerOptions
	// Build says what today's build is, for Update.
	Build string
	// Update writes today's answers into the recordings where they differ. Admissions of
	// webhooks that no longer exist are left out.
	Update bool
}

// ErrNothing is the error of [Run] if a folder has no recordings, or all of them no admission.
var ErrNothing = recording.ErrNothing

// Run replays the recordings in folders.
func Run(ctx context.Context, dirs []string, options Options) (*Report, error) {
	r, err := newRun(options)
	if err != nil {
		return nil, err
	}
	var damages []recording.Damage
	if options.Update {
		damages, err = recording.Rewrite(dirs, func(e *recording.Entry) (recording.Change, error) { return r.update(ctx, e) })
	} else {
		damages, err = recording.Read(dirs, func(e *recording.Entry) error {
			_, _, err := r.entry(ctx, e)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	for _, damage := range damages {
		r.report.Unreadable = append(r.report.Unreadable, damage.String())
	}
	if r.report.Reviews == 0 {
		return nil, fmt.Errorf("%s: %w", strings.Join(slices.Concat(dirs, r.report.Unreadable), "; "), ErrNothing)
	}
	r.report.finish()
	return r.report, nil
}

type run struct {
	options  Options
	redactor *recording.Redactor
	handlers map[*webhook.Webhook]http.Handler
	report   *Report
	// comparable returns the entry and today's answer to it as they are compared and shown.
	comparable func(*recording.Entry, recording.Answer) (*recording.Entry, recording.Answer, error)
}

func newRun(options Options) (*run, error) {
	redactor, err := recording.NewRedactor()
	if err != nil {
		return nil, err
	}
	options.Handling.MaxBodyBytes, options.Handling.Memory, options.Handling.Recorder = maxBodyBytes, webhook.NewMemory(0), nil
	r := &run{options: options, redactor: redactor, handlers: map[*webhook.Webhook]http.Handler{}, report: newReport()}
	r.comparable = r.asRecorded
	for _, w := range options.Webhooks {
		r.handlers[w] = w.Handler(options.Handling)
	}
	return r, nil
}

// entry replays an admission. It returns today's answer, nil if no webhook gives one, and whether
// it differs.
func (r *run) entry(ctx context.Context, e *recording.Entry) (now *answered, differs bool, err error) {
	now, why, err := r.ask(ctx, e)
	if err != nil {
		return nil, false, err
	}
	differences, err := r.judge(e, now, why)
	return now, len(differences) > 0, err
}

// ask has today's webhook answer an admission. why is a difference of the webhook itself; if there
// is none, now is nil. It may be called by several goroutines.
func (r *run) ask(ctx context.Context, e *recording.Entry) (now *answered, why *difference, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	w, why := r.find(e.Webhook)
	if w == nil {
		return nil, why, nil
	}
	now, err = r.send(ctx, w, e)
	return now, why, err
}

// judge reports how today's answer differs from the recorded one.
func (r *run) judge(e *recording.Entry, now *answered, why *difference) (differences []difference, err error) {
	r.report.Reviews++
	switch {
	case why != nil:
		differences = []difference{*why}
	case e.Answer.Outcome == recording.Unfinished || now.by.Observes() && now.took >= observedWait:
		r.report.Unfinished++
	default:
		r.report.time(e, now.took)
		differences, err = r.compare(e, now.answer)
	}
	r.report.add(e, differences)
	return differences, err
}

// update replays an admission, and puts today's answer into it if that differs.
func (r *run) update(ctx context.Context, e *recording.Entry) (recording.Change, error) {
	now, differs, err := r.entry(ctx, e)
	if err != nil || !differs {
		return recording.Keep, err
	}
	r.report.Updated++
	if now == nil {
		return recording.Remove, nil
	}
	e.Answer, e.Build, e.Webhook = now.answer, r.options.Build, recording.WebhookOf(now.by)
	return recording.Replace, r.redactor.Entry(e)
}

// find returns the webhook of a recorded one, and what is different about it. It is found by its
// name or, since a scope without one is named by what is in it, by its extensions.
func (r *run) find(recorded recording.Webhook) (*webhook.Webhook, *difference) {
	candidates := r.having(func(w recording.Webhook) bool { return w.Mutates == recorded.Mutates && w.Name == recorded.Name })
	if len(candidates) == 0 {
		candidates = r.having(func(w recording.Webhook) bool {
			return w.Mutates == recorded.Mutates && slices.Equal(w.Extensions, recorded.Extensions)
		})
	}
	if len(candidates) == 0 {
		return nil, &difference{Kind: "webhook", Change: "it no longer exists"}
	}
	// The webhooks of one name and mode are for different namespaces, which is not recorded.
	of := func(w *webhook.Webhook) bool { return w.Mode == recorded.Mode }
	if same := slices.IndexFunc(candidates, func(w *webhook.Webhook) bool {
		return of(w) && slices.Equal(recording.WebhookOf(w).Extensions, recorded.Extensions)
	}); same >= 0 {
		return candidates[same], nil
	}
	if i := slices.IndexFunc(candidates, of); i >= 0 {
		return candidates[i], nil
	}
	return candidates[0], &difference{Kind: "mode", Change: fmt.Sprintf("%s → %s", recorded.Mode, candidates[0].Mode)}
}

func (r *run) having(is func(recording.Webhook) bool) (found []*webhook.Webhook) {
	for _, w := range r.options.Webhooks {
		if is(recording.WebhookOf(w)) {
			found = append(found, w)
		}
	}
	return found
}

// answered is what a webhook answers today.
type answered struct {
	by     *webhook.Webhook
	answer recording.Answer
	took   time.Duration
}

// send sends a recorded request to a webhook.
func (r *run) send(ctx context.Context, w *webhook.Webhook, e *recording.Entry) (*answered, error) {
	body := slices.Concat([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":`), e.Request, []byte("}"))
	var took time.Duration
	timed := http.HandlerFunc(func(to http.ResponseWriter, request *http.Request) {
		began := time.Now()
		r.handlers[w].ServeHTTP(to, request)
		took = time.Since(began)
	})
	response, failure, err := offline.Post(ctx, w, timed, body)
	if err != nil {
		return nil, err
	}
	code, message := http.StatusOK, ""
	if failure != nil {
		code, message = int(failure.Code), failure.Message
	}
	answer, err := e.Answered(response, code, message)
	if err != nil {
		return nil, fmt.Errorf("webhook %s: %w", w.Name, err)
	}
	return &answered{w, answer, took}, nil
}
