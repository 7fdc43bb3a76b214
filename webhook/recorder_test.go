package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

// kept is a Recorder that keeps everything, or nothing.
type kept struct {
	nothing bool
	all     []*webhook.Recorded
}

func (k *kept) Take(_ string, body []byte) []byte {
	if k.nothing {
		return nil
	}
	return bytes.Clone(body)
}

func (k *kept) Keep(recorded *webhook.Recorded) { k.all = append(k.all, recorded) }

// recordingOf returns what is recorded of a request for a handler.
func recordingOf(t *testing.T, recorder *kept, mode extension.Mode, handler *extension.Handler) []*webhook.Recorded {
	t.Helper()
	webhooks, err := webhook.Group([]*extension.Handler{handler}, webhook.Defaults{Modes: []webhook.ModeRule{{Extensions: []string{"*"}, Mode: mode}}})
	if err != nil {
		t.Fatal(err)
	}
	send(t, podRequest(admissionv1.Create), webhooks[0].Handler(webhook.HandlerOptions{Recorder: recorder}), webhooks[0].Path())
	others := webhook.OtherRevisions(webhooks, webhook.HandlerOptions{Recorder: recorder})
	send(t, podRequest(admissionv1.Create), others, webhooks[0].Path())
	return recorder.all
}

func TestARecorderGetsEachRequestOfAWebhookWithItsAnswer(t *testing.T) {
	spoil := everyPod(unique("recorded"), func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
		pod.Labels = map[string]string{"seen": "yes"}
		for i := range req.Object.Raw {
			req.Object.Raw[i] = ' '
		}
		return nil
	})
	failing := named("test", func(context.Context, *extension.Request) error { return errors.New("broken") })
	late := named("test", func(context.Context, *extension.Request) error { return context.DeadlineExceeded })
	for name, test := range map[string]struct {
		mode    extension.Mode
		handler *extension.Handler
		right   func(*webhook.Recorded) bool
	}{
		"a patch, and the object as it came": {extension.Enforce, spoil, func(r *webhook.Recorded) bool { return len(r.Response.Patch) > 0 }},
		"what a mode would change":           {extension.Observe, spoil, func(r *webhook.Recorded) bool { return len(r.Response.AuditAnnotations) > 0 }},
		"a denial": {extension.Enforce, named("test", func(context.Context, *extension.Request) error { return extension.Deny("no") }), func(r *webhook.Recorded) bool {
			return !r.Response.Allowed && r.Response.Result.Message == "no"
		}},
		"a failure": {extension.Enforce, failing, func(r *webhook.Recorded) bool {
			return r.Response == nil && r.Code == http.StatusInternalServerError && r.Err != nil && !r.Unfinished()
		}},
		"an error that only looks late": {extension.Enforce, late, func(r *webhook.Recorded) bool { return r.Response == nil && !r.Unfinished() }},
	} {
		t.Run(name, func(t *testing.T) {
			all := recordingOf(t, &kept{}, test.mode, test.handler)
			if len(all) != 1 {
				t.Fatalf("%d admissions are recorded, of one by its own webhook and one by that of another revision", len(all))
			}
			var review admissionv1.AdmissionReview
			if err := json.Unmarshal(all[0].Body, &review); err != nil || !bytes.Contains(review.Request.Object.Raw, []byte(`"Pod"`)) {
				t.Errorf("%v: the body is %s", err, all[0].Body)
			}
			if !test.right(all[0]) || all[0].Took <= 0 || all[0].Began.IsZero() || all[0].Webhook.Mode != test.mode {
				t.Errorf("got %+v", all[0])
			}
		})
	}
	t.Run("none that it does not take", func(t *testing.T) {
		if all := recordingOf(t, &kept{nothing: true}, extension.Enforce, failing); len(all) > 0 {
			t.Errorf("got %+v", all[0])
		}
	})
}
