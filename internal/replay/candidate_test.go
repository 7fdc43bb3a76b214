package replay_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/admitkit/admitkit/internal/recording"
	"github.com/admitkit/admitkit/internal/replay"
	"github.com/admitkit/admitkit/webhook"
)

// mirrored has the build without faults answer reviews, and one with a fault compare. It returns
// the lines of the candidate's log.
func mirrored(t *testing.T, fault string, reviews int) []observer.LoggedEntry {
	t.Helper()
	webhooks, err := build(fault)
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zapcore.InfoLevel)
	candidate, err := replay.NewCandidate(webhooks, webhook.HandlerOptions{Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(candidate)
	defer server.Close()
	mirror := recording.NewMirror(recording.MirrorOptions{Client: server.Client(), URL: func() string { return server.URL + recording.MirrorPath }, Build: "v1", Logger: zap.New(core).Named("mirror")})
	answer(t, mirror, reviews)
	return logs.FilterMessage("the candidate answers differently").All()
}

// counted returns the sum of a metric of candidates.
func counted(t *testing.T, name string) (sum int) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(replay.Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name {
				sum += int(metric.GetCounter().GetValue())
			}
		}
	}
	return sum
}

func TestACandidateFindsWhatItAnswersDifferently(t *testing.T) {
	const reviews = 300
	t.Run("nothing, if it is the same build", func(t *testing.T) {
		compared, differs := counted(t, "admitkit_candidate_compared_total"), counted(t, "admitkit_candidate_differs_total")
		if lines := mirrored(t, "", reviews); len(lines) > 0 {
			t.Errorf("it says %v", lines[0].ContextMap())
		}
		if got := counted(t, "admitkit_candidate_compared_total") - compared; got != reviews || counted(t, "admitkit_candidate_differs_total") != differs {
			t.Errorf("%d of %d are compared", got, reviews)
		}
	})
	for fault, kind := range faults {
		t.Run(fault, func(t *testing.T) {
			differs := counted(t, "admitkit_candidate_differs_total")
			lines := mirrored(t, fault, reviews)
			if !slices.ContainsFunc(lines, func(line observer.LoggedEntry) bool { return line.ContextMap()["difference"] == kind }) {
				t.Errorf("no difference in the %s is told: %v", kind, lines)
			}
			if found := counted(t, "admitkit_candidate_differs_total") - differs; found < len(lines) || len(lines) > 3*20 {
				t.Errorf("%d differences are counted, and %d told", found, len(lines))
			}
			for _, line := range lines {
				if text := fmt.Sprint(line.ContextMap()); strings.Contains(text, "s3cr3t") {
					t.Errorf("a secret is told: %s", text)
				}
			}
		})
	}
}

func TestACandidateRefusesWhatIsNoAdmission(t *testing.T) {
	candidate, err := replay.NewCandidate(nil, webhook.HandlerOptions{Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, body string
		code         int
	}{
		{http.MethodGet, "", http.StatusMethodNotAllowed},
		{http.MethodPost, "no\n", http.StatusBadRequest},
		{http.MethodPost, "{}\n", http.StatusBadRequest},
		{http.MethodPost, strings.Repeat(" ", 17<<20), http.StatusBadRequest},
		{http.MethodPost, `{"webhook":{"name":"x"},"request":{"uid":"1"},"answer":{"outcome":"allowed"}}` + "\n", http.StatusOK}, // of a webhook that is gone
	} {
		answer := httptest.NewRecorder()
		candidate.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), c.method, recording.MirrorPath, strings.NewReader(c.body)))
		if answer.Code != c.code {
			t.Errorf("%s %.40s: %d %s", c.method, c.body, answer.Code, answer.Body)
		}
	}
}
