package offline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/jsonpatch"
	"github.com/admitkit/admitkit/webhook"
)

// Engine is an API server as webhooks see it.
type Engine struct {
	mu      sync.Mutex
	hooks   []*hook
	options Options
	// conversions has the webhooks of the converters by the names of their CRDs.
	conversions map[string]http.Handler
	steps       []webhook.Step
	traces      []trace  // of the steps
	lost        string   // what the running extension changed in vain
	status      []string // what it changed in the status
	wrote       bool     // whether it changed the object of its request alone
}

// trace is what an extension did besides its answer.
type trace struct {
	effects, forbidden []string
	lost               string
	status             []string
	wrote              bool
}

type hook struct {
	*webhook.Webhook
	handler http.Handler
}

// Options are the options of New.
type Options struct {
	// Webhook has the options for the handler of every webhook. The engine sets its
	// OnStep.
	Webhook webhook.HandlerOptions
	// Effects returns the side effects since its last call, that is, everything that
	// extensions did outside the object. If it is nil, Check does not check side
	// effects.
	Effects func() []string
	// Converters convert objects for webhooks whose rules name another version only.
	Converters []*host.Converter
	// Forbidden returns the calls without the right since its last call. It may be nil.
	Forbidden func() []string
	// Lean leaves out what costs more than the admission itself: why a webhook is not
	// called, and what the extensions do in vain. Check needs it. And it goes on if it cannot
	// determine whether a webhook is called: see Outcome.Unknown.
	Lean bool
}

// New returns an engine that calls the webhooks.
func New(webhooks []*webhook.Webhook, options Options) *Engine {
	e := &Engine{options: options, conversions: map[string]http.Handler{}}
	for _, c := range options.Converters {
		e.conversions[c.CRD] = webhook.ConversionHandler(c, options.Webhook)
	}
	options.Webhook.OnStep = e.note
	for _, w := range webhooks {
		called := w
		if !options.Lean {
			called = e.observed(w)
		}
		e.hooks = append(e.hooks, &hook{Webhook: w, handler: called.Handler(options.Webhook)})
	}
	return e
}

// observed returns the webhook with its handlers observed, whose changes to their object
// may be lost.
func (e *Engine) observed(w *webhook.Webhook) *webhook.Webhook {
	observed := *w
	observed.Handlers = slices.Clone(w.Handlers)
	for i, h := range observed.Handlers {
		saw := e.saw
		if opened := host.Open(h); opened.Mutates && opened.Respond == nil {
			saw = e.sawPatched
		}
		observed.Handlers[i] = host.Observed(h, saw)
	}
	return &observed
}

// sawPatched records what a handler changed in the status, which a patch may leave out, and
// whether it wrote to its request in place of the object.
func (e *Engine) sawPatched(before, after runtime.Object, wrote bool, _ *admission.Response) {
	changes := statusChanges(before, after)
	wrote = wrote && reflect.DeepEqual(before, after)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status, e.wrote = changes, wrote
}

// saw records what a handler changed in vain.
func (e *Engine) saw(before, after runtime.Object, wrote bool, response *admission.Response) {
	// A response that is not allowed and has no result allows; see extension.Extension.
	// PatchFromPod sets Patches even if there is nothing to patch.
	if response != nil && (!response.Allowed && response.Result != nil || response.Patches != nil || len(response.Patch) > 0) {
		e.sawPatched(before, after, wrote, response)
		return
	}
	var texts [2][]byte
	for i, object := range []runtime.Object{before, after} {
		text, err := json.Marshal(object)
		if err != nil {
			return // it has no JSON, so it has no changes that count
		}
		texts[i] = text
	}
	diff, err := Diff(texts[0], texts[1])
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = diff
}

// note records a step and its trace.
func (e *Engine) note(step webhook.Step) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.steps = append(e.steps, step)
	e.traces = append(e.traces, e.trace())
}

// trace returns what was done since its last call. The caller holds the mutex.
func (e *Engine) trace() trace {
	recent := trace{lost: e.lost, status: e.status, wrote: e.wrote}
	e.lost, e.status, e.wrote = "", nil, false
	if e.options.Effects != nil {
		recent.effects = e.options.Effects()
	}
	if e.options.Forbidden != nil {
		recent.forbidden = e.options.Forbidden()
	}
	return recent
}

// forget drops what happened before a call.
func (e *Engine) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.steps, e.traces = nil, nil
	e.trace()
}

// take returns the steps since its last call, and their traces.
func (e *Engine) take() ([]webhook.Step, []trace) {
	e.mu.Lock()
	defer e.mu.Unlock()
	steps, traces := e.steps, e.traces
	e.steps, e.traces = nil, nil
	return steps, traces
}

// Step is one extension's part in an admission.
type Step struct {
	webhook.Step
	// Webhook is the webhook of the extension.
	Webhook *webhook.Webhook
	// seen is the request as the webhook got it.
	seen *Request
	// Before is the JSON of the object before the extension was called.
	Before []byte
	// Effects are the side effects, as Options.Effects returns them.
	Effects []string
	// Forbidden are the calls without the right, as Options.Forbidden returns them.
	Forbidden []string
	// Lost is the difference that the extension made to its object in vain: a Validator,
	// or an Extension that returned no patch.
	Lost string
	// Refused and Vain are the changes that the API server refuses, and those that it ignores.
	Refused, Vain []string
	// Invalid says what in the metadata no object can have.
	Invalid []string
	// Wrote says that a Mutator changed the object of its request, and not its own.
	Wrote bool
}

// Outcome is the result of a request.
type Outcome struct {
	Allowed bool
	// Status says why the request was refused. It is nil if the request is allowed.
	Status *metav1.Status
	// Object is the JSON of the object after all changes.
	Object []byte
	// Steps has one entry for each call of an extension, in order.
	Steps    []Step
	Warnings []string
	// AuditAnnotations have keys of the form WEBHOOK/KEY.
	AuditAnnotations map[string]string
	// NotCalled are the webhooks that were not called, in order.
	NotCalled []NotCalled
	// Unknown has those of which a lean engine cannot determine whether they are called.
	Unknown []*Unknown
}

// NotCalled is a webhook that an API server does not call for a request.
type NotCalled struct {
	Webhook *webhook.Webhook
	// Reason says why, after the webhook's name and a colon.
	Reason string
}

// notCalled notes that a webhook is not called, and why.
func (e *Engine) notCalled(h *hook, req *Request, out *Outcome) {
	if e.options.Lean {
		return
	}
	current := *req
	current.Object = out.Object
	out.NotCalled = append(out.NotCalled, NotCalled{h.Webhook, current.Why(h.Scope)})
}

// Admit sends a request through the webhooks. Denials and failures of webhooks are
// part of the outcome. An error means that Admit could not send the request or
// understand an answer. It is an *[Unknown] if Admit cannot determine whether a
// webhook is called.
func (e *Engine) Admit(ctx context.Context, req *Request) (*Outcome, error) {
	for _, h := range e.hooks {
		req = req.namedBy(h.Scope.Rules)
	}
	out := &Outcome{Allowed: true, Object: req.Object, AuditAnnotations: map[string]string{}}
	if err := e.mutate(ctx, req, out); err != nil || !out.Allowed {
		return out, err
	}
	// An API server decides first which validating webhooks to call, then calls every one,
	// and reports one denial.
	called := map[*hook]*Request{}
	for _, h := range e.hooks {
		if h.Mutating {
			continue
		}
		seen, matches, err := e.decide(h, req, out)
		if err != nil {
			return out, err
		}
		if matches {
			called[h] = seen
			continue
		}
		if e.notCalled(h, req, out); !out.Allowed {
			return out, nil
		}
	}
	for _, h := range e.hooks {
		if seen, is := called[h]; is {
			if _, err := e.call(ctx, h, req, seen, out); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// decide is seenBy, and refuses the request if a match condition says so by its failure. A
// lean engine goes on without a webhook of which it cannot determine whether it is called.
func (e *Engine) decide(h *hook, req *Request, out *Outcome) (seen *Request, matches bool, err error) {
	seen, matches, err = e.seenBy(h, req, out)
	if unknown, is := errors.AsType[*Unknown](err); is && e.options.Lean {
		out.Unknown = append(out.Unknown, unknown)
		return seen, false, nil
	}
	failed, fails := errors.AsType[*Failed](err)
	if !fails {
		return seen, matches, err
	}
	status := apierrors.NewForbidden(req.Resource.GroupResource(), req.Name, failed).Status()
	out.Allowed, out.Status = false, &status
	return seen, false, nil
}

// mutate calls the mutating webhooks, and once more those that ask for it and after
// whose call the object changed. It follows mutatingDispatcher and
// webhookReinvokeContext of k8s.io/apiserver.
func (e *Engine) mutate(ctx context.Context, req *Request, out *Outcome) error {
	var called, again []*hook
	for round := range 2 {
		for _, h := range e.hooks {
			if !h.Mutating || round > 0 && len(again) == 0 {
				continue
			}
			// The match conditions of all may refuse the changed object.
			seen, matches, err := e.decide(h, req, out)
			if err != nil {
				return err
			}
			if !matches && round == 0 {
				e.notCalled(h, req, out)
			}
			if !out.Allowed {
				return nil
			}
			if !matches || round > 0 && !slices.Contains(again, h) {
				continue
			}
			changed, err := e.call(ctx, h, req, seen, out)
			if err != nil || !out.Allowed {
				return err
			}
			if changed {
				again, called = append(again, called...), nil
			}
			if *h.Scope.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy {
				called = append(called, h)
			}
		}
	}
	return nil
}

// call sends the request to one webhook, as it sees it, and adds the answer to the outcome.
func (e *Engine) call(ctx context.Context, h *hook, req, seen *Request, out *Outcome) (changed bool, err error) {
	e.forget()
	response, failure, err := send(ctx, h, seen.review(seen.Object))
	if err != nil {
		return false, err
	}
	if err := e.addSteps(h, seen, out); err != nil {
		return false, err
	}
	if failure != nil {
		out.fail(h, failure)
		return false, nil
	}
	out.Warnings = append(out.Warnings, response.Warnings...)
	for key, value := range response.AuditAnnotations {
		out.AuditAnnotations[h.RegisteredName()+"/"+key] = value
	}
	if !response.Allowed {
		if out.Allowed {
			out.Allowed, out.Status = false, response.Result
		}
		return false, nil
	}
	if len(response.Patch) == 0 {
		return false, nil
	}
	object, err := applyPatch(seen.Object, response.Patch)
	if err == nil {
		changed = !bytes.Equal(seen.Object, object)
		out.Object, err = e.taken(req, seen, object)
	}
	if err != nil {
		return false, fmt.Errorf("webhook %s: %w", h.Name, err)
	}
	return changed, nil
}

// addSteps adds the steps of a call to the outcome.
func (e *Engine) addSteps(h *hook, seen *Request, out *Outcome) error {
	before := seen.Object
	if seen.Operation == admissionv1.Delete {
		before = seen.OldObject
	}
	steps, traces := e.take()
	for i, step := range steps {
		if step.Object == nil { // it was cut off
			step.Object = before
		}
		added := Step{
			Step: step, Webhook: h.Webhook, seen: seen, Before: before, Effects: traces[i].effects, Forbidden: traces[i].forbidden, Lost: traces[i].lost, Wrote: traces[i].wrote,
		}
		if !e.options.Lean && h.Mutates() && len(before) > 0 && len(step.Object) > 0 {
			var err error
			if added.Refused, added.Vain, err = seen.Lost(before, step.Object); err != nil {
				return fmt.Errorf("extension %s: %w", step.Extension, err)
			}
			added.Invalid = invalidMetadata(before, step.Object)
			if step.Err == nil && step.Result != "denied" && seen.dropsStatus(before, step.Object) {
				added.Vain = append(added.Vain, traces[i].status...)
			}
		}
		out.Steps = append(out.Steps, added)
		if !h.Observes() {
			before = step.Object
		}
	}
	return nil
}

// fail applies the failure policy.
func (o *Outcome) fail(h *hook, failure *metav1.Status) {
	if *h.Scope.FailurePolicy == admissionregistrationv1.Ignore || !o.Allowed {
		return
	}
	status := *failure
	status.Message = fmt.Sprintf("webhook %s failed, and its failure policy is Fail: %s", h.Name, failure.Message)
	o.Allowed, o.Status = false, &status
}

// send posts a review to a webhook. It returns the webhook's decision or, if the
// webhook made none, its failure.
func send(ctx context.Context, h *hook, review *admissionv1.AdmissionReview) (response *admissionv1.AdmissionResponse, failure *metav1.Status, err error) {
	body, err := json.Marshal(review)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the AdmissionReview: %w", err)
	}
	response, failure, err = Post(ctx, h.Webhook, h.handler, body)
	if response != nil && response.UID != review.Request.UID {
		return nil, nil, fmt.Errorf("webhook %s: the answer is for the UID %q, and not for that of the request", h.Name, response.UID)
	}
	return response, failure, err
}

// Post sends the JSON of an AdmissionReview to the handler of a webhook, as an API server does.
// It returns the webhook's decision or, if it made none, its failure, whose Code is the HTTP
// status.
func Post(ctx context.Context, w *webhook.Webhook, handler http.Handler, body []byte) (response *admissionv1.AdmissionResponse, failure *metav1.Status, err error) {
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s?timeout=%s", w.Path(), w.Scope.Timeout), bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	answered := make(chan struct{})
	go func() { // which an extension may end
		defer close(answered)
		handler.ServeHTTP(recorder, request)
	}()
	<-answered
	if recorder.Code != http.StatusOK {
		failure = &metav1.Status{}
		if err := json.Unmarshal(recorder.Body.Bytes(), failure); err != nil {
			return nil, nil, fmt.Errorf("webhook %s: HTTP status %d with %q", w.Name, recorder.Code, recorder.Body)
		}
		failure.Code = int32(recorder.Code) //nolint:gosec // an HTTP status
		return nil, failure, nil
	}
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
		return nil, nil, fmt.Errorf("webhook %s: decoding the answer: %w", w.Name, err)
	}
	if answer.Response == nil {
		return nil, nil, fmt.Errorf("webhook %s: the answer has no response: %s", w.Name, recorder.Body)
	}
	return answer.Response, nil, nil
}

func applyPatch(object, patch []byte) ([]byte, error) {
	decoded, err := jsonpatch.Decode(patch)
	if err != nil {
		return nil, err
	}
	return decoded.Apply(object)
}
