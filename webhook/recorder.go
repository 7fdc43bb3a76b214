package webhook

import (
	"context"
	"errors"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
)

// Recorder keeps admissions with their answers. Its methods are called while a request is
// answered, by many goroutines, and must not block.
type Recorder interface {
	// Take is called before the handlers run. It returns a copy of the body, which is the
	// AdmissionReview, or nil if the admission is not to be kept.
	Take(uid string, body []byte) []byte
	// Keep gets each admission that was taken, once it is answered.
	Keep(*Recorded)
}

// Recorded is an admission that was answered.
type Recorded struct {
	Webhook *Webhook
	// Body is what Take returned.
	Body []byte
	// Response is the decision. It is nil if there is none; then Code is the HTTP status of
	// the answer, and Err says why.
	Response *admissionv1.AdmissionResponse
	Code     int
	Err      error
	// Began is when the request arrived, and Took the time until it was answered.
	Began time.Time
	Took  time.Duration
}

// Unfinished reports whether there is no decision because time was over, or the client gone.
func (r *Recorded) Unfinished() bool {
	return r.Response == nil && (r.Code == http.StatusGatewayTimeout || errors.Is(r.Err, context.Canceled))
}

// record gives the recorder an admission that it took.
func (e *exchange) record(response *admissionv1.AdmissionResponse, code int, err error) {
	if e.taken == nil {
		return
	}
	recorded := &Recorded{Webhook: e.webhook, Body: e.taken, Code: code, Err: err, Began: e.began, Took: time.Since(e.began)}
	if response != nil {
		recorded.Response = new(*response) // else it would occupy what the request did
	}
	e.taken = nil
	e.recorder.Keep(recorded)
}
