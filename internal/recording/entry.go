package recording

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/jsonpatch"
	"github.com/admitkit/admitkit/webhook"
)

// Entry is an admission of one webhook, one line of a recording.
type Entry struct {
	Time time.Time `json:"time"`
	// Build is what the process was built from, see manager/buildinfo.
	Build   string  `json:"build"`
	Webhook Webhook `json:"webhook"`
	// Request is the AdmissionReview's.
	Request json.RawMessage `json:"request"`
	Answer  Answer          `json:"answer"`
	// Took is in microseconds.
	Took int64 `json:"tookMicros"`
	// Replaced are the paths of the values that are not the original ones.
	Replaced []string `json:"replaced,omitempty"`
}

// Webhook identifies a webhook over builds.
type Webhook struct {
	Name string `json:"name"`
	// Mutates reports whether its extensions change objects, were they in force.
	Mutates    bool           `json:"mutates,omitempty"`
	Mode       extension.Mode `json:"mode"`
	Extensions []string       `json:"extensions"`
}

// WebhookOf returns how a webhook is recorded.
func WebhookOf(w *webhook.Webhook) Webhook {
	of := Webhook{Name: w.Name, Mutates: w.Mutates(), Mode: w.Mode}
	for _, h := range w.Handlers {
		of.Extensions = append(of.Extensions, host.Open(h).Name)
	}
	return of
}

// The outcomes of an admission.
const (
	Allowed = "allowed"
	Denied  = "denied"
	// Failed means that there was no decision: the failure policy decided.
	Failed = "failed"
	// Unfinished means that there was none, because time was over or the client gone.
	Unfinished = "unfinished"
)

// Answer is what a webhook answered.
type Answer struct {
	Outcome string `json:"outcome"`
	// Code, Reason and Message say why, unless it is allowed.
	Code    int32  `json:"code,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Object is the object after the patch. It is empty if the patch changes nothing.
	Object           json.RawMessage   `json:"object,omitempty"`
	Warnings         []string          `json:"warnings,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
}

// answerOf returns the answer that a decision about an object is. A patch that cannot be applied is
// a failure, as it is for an API server.
func answerOf(object []byte, response *admissionv1.AdmissionResponse) Answer {
	answer := Answer{Outcome: Allowed, Warnings: response.Warnings, AuditAnnotations: response.AuditAnnotations}
	if result := response.Result; !response.Allowed {
		answer.Outcome = Denied
		if result != nil {
			answer.Code, answer.Reason, answer.Message = result.Code, string(result.Reason), result.Message
		}
	}
	if len(response.Patch) == 0 || len(object) == 0 {
		return answer
	}
	var after []byte
	var same bool
	patch, err := jsonpatch.Decode(response.Patch)
	if err == nil {
		after, err = patch.Apply(object)
	}
	if err == nil {
		after, err = withoutMark(object, after)
	}
	if err == nil {
		same, err = Same(object, after)
	}
	if err != nil {
		return failureOf(http.StatusInternalServerError, fmt.Sprintf("the patch cannot be applied: %v", err))
	}
	if !same {
		answer.Object = after
	}
	return answer
}

// withoutMark returns an object with the annotation that says what changed it as it was before: it
// has the revision in it, and so would differ between any two builds.
func withoutMark(before, after []byte) ([]byte, error) {
	if !bytes.Contains(after, []byte(webhook.ChangedBy)) {
		return after, nil
	}
	var was, is unstructured.Unstructured
	if err := errors.Join(decode(before, &was.Object), decode(after, &is.Object)); err != nil {
		return nil, err
	}
	annotations := is.GetAnnotations()
	if annotations == nil {
		return after, nil
	}
	if value, marked := was.GetAnnotations()[webhook.ChangedBy]; marked {
		annotations[webhook.ChangedBy] = value
	} else {
		delete(annotations, webhook.ChangedBy)
	}
	if len(annotations) == 0 && was.GetAnnotations() == nil {
		annotations = nil // SetAnnotations removes the field then
	}
	is.SetAnnotations(annotations)
	return encode(is.Object)
}

// failureOf returns the answer that a failure is.
func failureOf(code int, message string) Answer {
	answer := Answer{Outcome: Failed, Code: int32(code), Message: message} //nolint:gosec // an HTTP status
	if code == http.StatusGatewayTimeout {
		answer.Outcome = Unfinished
	}
	return answer
}

// newEntry returns the entry of what was recorded, with its secrets.
func newEntry(recorded *webhook.Recorded, build string) (*Entry, error) {
	var review struct {
		Request json.RawMessage `json:"request"`
	}
	if err := json.Unmarshal(recorded.Body, &review); err != nil {
		return nil, err
	}
	entry := &Entry{Time: recorded.Began.UTC(), Build: build, Webhook: WebhookOf(recorded.Webhook), Request: review.Request, Took: recorded.Took.Microseconds()}
	if recorded.Response == nil {
		message := ""
		if recorded.Err != nil {
			message = recorded.Err.Error()
		}
		entry.Answer = failureOf(recorded.Code, message)
		if recorded.Unfinished() {
			entry.Answer.Outcome = Unfinished
		}
		return entry, nil
	}
	object, err := entry.object()
	entry.Answer = answerOf(object, recorded.Response)
	return entry, err
}

// object returns the object of the request.
func (e *Entry) object() ([]byte, error) {
	var request struct {
		Object json.RawMessage `json:"object"`
	}
	err := json.Unmarshal(e.Request, &request)
	if string(request.Object) == "null" {
		return nil, err
	}
	return request.Object, err
}

// Answered returns the answer of another build to the request of the entry, given by the decision
// or, if that is nil, by what failed.
func (e *Entry) Answered(response *admissionv1.AdmissionResponse, code int, message string) (Answer, error) {
	if response == nil {
		return failureOf(code, message), nil
	}
	object, err := e.object()
	return answerOf(object, response), err
}

// Same reports whether two JSON documents, which may be missing, have the same content.
func Same(a, b []byte) (bool, error) {
	if bytes.Equal(a, b) || len(a) == 0 || len(b) == 0 {
		return bytes.Equal(a, b), nil
	}
	trees := [2]any{}
	for i, text := range [][]byte{a, b} {
		if err := decode(text, &trees[i]); err != nil {
			return false, err
		}
	}
	return reflect.DeepEqual(trees[0], trees[1]), nil
}

// decode decodes JSON, and keeps numbers as they are written.
func decode(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if decoder.More() {
		return errors.New("something follows the JSON value")
	}
	return nil
}

// encode returns the JSON of a value on one line.
func encode(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}
