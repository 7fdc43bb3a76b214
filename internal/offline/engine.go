package offline

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/webhook"
)

// Engine is an API server as webhooks see it.
type Engine struct {
	mu    sync.Mutex
	hooks []*hook
	// effects, if it is set, returns what was done outside the object since it was
	// last called.
	effects func() []string
	steps   []webhook.Step
	done    [][]string // effects of each of steps
}

type hook struct {
	*webhook.Webhook
	handler http.Handler
}

// Options are the options of New.
type Options struct {
	// Webhook are the options of every webhook's handler; OnStep is taken.
	Webhook webhook.HandlerOptions
	// Effects returns what was done outside the object since it was last called,
	// for the laws about side effects. Default: nothing is known of it.
	Effects func() []string
}

// New returns an engine that calls the webhooks.
func New(webhooks []*webhook.Webhook, options Options) *Engine {
	e := &Engine{effects: options.Effects}
	options.Webhook.OnStep = e.note
	for _, w := range webhooks {
		e.hooks = append(e.hooks, &hook{Webhook: w, handler: w.Handler(options.Webhook)})
	}
	return e
}

// note keeps a step, and what was done in it.
func (e *Engine) note(step webhook.Step) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.steps = append(e.steps, step)
	e.done = append(e.done, e.recentEffects())
}

func (e *Engine) recentEffects() []string {
	if e.effects == nil {
		return nil
	}
	return e.effects()
}

// forget drops what was done before a call.
func (e *Engine) forget() {
	e.take()
	e.recentEffects()
}

// take returns the steps since it was last called.
func (e *Engine) take() ([]webhook.Step, [][]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	steps, done := e.steps, e.done
	e.steps, e.done = nil, nil
	return steps, done
}

// Step is one extension's part in an admission.
type Step struct {
	webhook.Step
	// Webhook is the one that the extension belongs to.
	Webhook *webhook.Webhook
	// Before is the JSON of the object as the extension found it.
	Before []byte
	// Effects are what it did outside the object, where that is known.
	Effects []string
	// Reason is that of a denial.
	Reason string
}

// Outcome is what became of a request.
type Outcome struct {
	Allowed bool
	// Status says why the request is refused.
	Status *metav1.Status
	// Object is the JSON of the object after all changes.
	Object []byte
	// Steps are those of the extensions that were called, in order.
	Steps            []Step
	Warnings         []string
	AuditAnnotations map[string]string
}

// Admit sends a request through the webhooks.
func (e *Engine) Admit(ctx context.Context, req *Request) (*Outcome, error) {
	out := &Outcome{Allowed: true, Object: req.Object, AuditAnnotations: map[string]string{}}
	matching, err := e.matching(req)
	if err != nil {
		return nil, err
	}
	last := -1 // the last webhook that changed the object
	for i, h := range matching {
		if !h.Mutating {
			continue
		}
		changed, err := e.call(ctx, h, req, out)
		if err != nil || !out.Allowed {
			return out, err
		}
		if changed {
			last = i
		}
	}
	for i, h := range matching {
		if !h.Mutating || *h.Scope.ReinvocationPolicy != admissionregistrationv1.IfNeededReinvocationPolicy || i >= last {
			continue
		}
		if _, err := e.call(ctx, h, req, out); err != nil || !out.Allowed {
			return out, err
		}
	}
	for _, h := range matching {
		if h.Mutating {
			continue
		}
		// An API server calls every validating webhook, and reports one denial.
		if _, err := e.call(ctx, h, req, out); err != nil {
			return out, err
		}
	}
	return out, nil
}

// matching returns the webhooks that an API server would call. It goes by the
// object as it came, as long as nobody changes its labels.
func (e *Engine) matching(req *Request) ([]*hook, error) {
	var matching []*hook
	for _, h := range e.hooks {
		matches, err := req.matches(h.Scope)
		if err != nil {
			return nil, fmt.Errorf("webhook %s: %w", h.Name, err)
		}
		if matches {
			matching = append(matching, h)
		}
	}
	return matching, nil
}

// call sends the request, with the object as it is now, to one webhook, and adds
// what comes of it to the outcome.
func (e *Engine) call(ctx context.Context, h *hook, req *Request, out *Outcome) (changed bool, err error) {
	before := out.Object
	e.forget()
	response, failure, err := send(ctx, h, req.review(before))
	if err != nil {
		return false, err
	}
	steps, done := e.take()
	for i, step := range steps {
		object := before
		if req.Operation == admissionv1.Delete {
			object = req.OldObject
		}
		if i > 0 {
			object = steps[i-1].Object
		}
		out.Steps = append(out.Steps, Step{Step: step, Webhook: h.Webhook, Before: object, Effects: done[i]})
	}
	if failure != nil {
		out.fail(h, failure)
		return false, nil
	}
	out.Warnings = append(out.Warnings, response.Warnings...)
	for key, value := range response.AuditAnnotations {
		out.AuditAnnotations[h.Name+"/"+key] = value
	}
	if !response.Allowed {
		if out.Allowed {
			out.Allowed, out.Status = false, response.Result
		}
		if n := len(out.Steps); n > 0 && response.Result != nil {
			out.Steps[n-1].Reason = response.Result.Message
		}
		return false, nil
	}
	if len(response.Patch) == 0 {
		return false, nil
	}
	out.Object, err = applyPatch(before, response.Patch)
	if err != nil {
		return false, fmt.Errorf("webhook %s: %w", h.Name, err)
	}
	return !bytes.Equal(before, out.Object), nil
}

// fail does what the failure policy says.
func (o *Outcome) fail(h *hook, failure *metav1.Status) {
	if *h.Scope.FailurePolicy == admissionregistrationv1.Ignore || !o.Allowed {
		return
	}
	status := *failure
	status.Message = fmt.Sprintf("webhook %s failed, and its failure policy is Fail: %s", h.Name, failure.Message)
	o.Allowed, o.Status = false, &status
}

// send posts a review to a webhook. What is not a decision is a failure.
func send(ctx context.Context, h *hook, review *admissionv1.AdmissionReview) (response *admissionv1.AdmissionResponse, failure *metav1.Status, err error) {
	body, err := json.Marshal(review)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the AdmissionReview: %w", err)
	}
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s?timeout=%s", h.Path(), h.Scope.Timeout), bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	h.handler.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusOK {
		failure = &metav1.Status{}
		if err := json.Unmarshal(recorder.Body.Bytes(), failure); err != nil {
			return nil, nil, fmt.Errorf("webhook %s: HTTP status %d with %q", h.Name, recorder.Code, recorder.Body)
		}
		return nil, failure, nil
	}
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
		return nil, nil, fmt.Errorf("webhook %s: decoding the answer: %w", h.Name, err)
	}
	if answer.Response == nil || answer.Response.UID != review.Request.UID {
		return nil, nil, fmt.Errorf("webhook %s: the answer is not one to this request: %s", h.Name, recorder.Body)
	}
	return answer.Response, nil, nil
}

func applyPatch(object, patch []byte) ([]byte, error) {
	decoded, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, fmt.Errorf("decoding the patch: %w", err)
	}
	patched, err := decoded.Apply(object)
	if err != nil {
		return nil, fmt.Errorf("applying the patch: %w", err)
	}
	return patched, nil
}
