package registration

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/admitkit/admitkit/extension"
)

// The probe is a ConfigMap that is created as a dry run, so it is never stored. Only
// ConfigMaps with the label reach the webhook. Its failure policy is Fail, so that
// the API server's error says what is wrong.
const (
	// ProbePath is the path at which to serve [ProbeHandler].
	ProbePath  = "/probe"
	probeName  = "probe"
	probeLabel = "admitkit.dev/probe"
	// probeQuestion and probeAnswer are annotations of the ConfigMap. The webhook
	// copies the question to the answer.
	probeQuestion = "admitkit.dev/probe-question"
	probeAnswer   = "admitkit.dev/probe-answer"
)

func isProbe(name string) bool { return strings.HasPrefix(name, probeName+".") }

func (r *Registration) probeEntry() entry {
	namespaced, none := admissionregistrationv1.NamespacedScope, admissionregistrationv1.SideEffectClassNone
	fail, exact := admissionregistrationv1.Fail, admissionregistrationv1.Exact
	e := r.entry(probeName, ProbePath, extension.Scope{
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}, Scope: &namespaced},
		}},
		FailurePolicy: &fail, MatchPolicy: &exact, SideEffects: &none, Timeout: 5 * time.Second,
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.ProbeNamespace}},
		ObjectSelector:    &metav1.LabelSelector{MatchLabels: map[string]string{probeLabel: r.fingerprint()}},
	})
	never := admissionregistrationv1.NeverReinvocationPolicy
	e.ReinvocationPolicy = &never
	return e
}

// fingerprint is the part of the name before the first dot.
func (r *Registration) fingerprint() string {
	fingerprint, _, _ := strings.Cut(r.Name, ".")
	return fingerprint
}

// ErrNoAnswer is the error of a probe that the API server accepted without calling
// the webhook, because it does not know of it yet.
var ErrNoAnswer = errors.New("the API server does not call the webhook yet")

// Probe sends a request to the API server, and returns nil if the API server called
// this installation's webhook. It needs the right to create ConfigMaps in the
// namespace, but creates none.
func (r *Registration) Probe(ctx context.Context, client corev1client.ConfigMapInterface) error {
	question := rand.Text()
	answer, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:        "admitkit-probe-" + strings.ToLower(question[:8]),
		Labels:      map[string]string{probeLabel: r.fingerprint()},
		Annotations: map[string]string{probeQuestion: question},
	}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return fmt.Errorf("probing %s: %w", r.Name, err)
	}
	if answer.Annotations[probeAnswer] != question {
		return fmt.Errorf("probing %s: %w", r.Name, ErrNoAnswer)
	}
	return nil
}

// ProbeHandler answers probes.
func ProbeHandler() http.Handler {
	const limit = 64 << 10
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, limit)).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "not an AdmissionReview with a request", http.StatusBadRequest)
			return
		}
		response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		var asked metav1.PartialObjectMetadata
		if err := json.Unmarshal(review.Request.Object.Raw, &asked); err == nil && asked.Annotations[probeQuestion] != "" {
			patch, err := json.Marshal([]map[string]string{{
				"op": "add", "path": "/metadata/annotations/" + strings.ReplaceAll(probeAnswer, "/", "~1"), "value": asked.Annotations[probeQuestion],
			}})
			if err == nil {
				kind := admissionv1.PatchTypeJSONPatch
				response.Patch, response.PatchType = patch, &kind
			}
		}
		review.Request, review.Response = nil, response
		w.Header().Set("Content-Type", "application/json")
		// An error here means that the API server went away.
		_ = json.NewEncoder(w).Encode(review)
	})
}
