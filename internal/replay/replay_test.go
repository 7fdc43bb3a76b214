package replay_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/internal/recording"
	"github.com/admitkit/admitkit/internal/replay"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/webhook"
)

// review returns the i-th request, as fields of it, and the webhooks that get it.
func review(i int) (fields string, webhooks []string) {
	namespace, user := fmt.Sprintf("team-%d", i%40), fmt.Sprintf("user-%d@example.com", i%7)
	kind := func(group, version, kind, resource string) string {
		return fmt.Sprintf(`"kind":{"group":%q,"version":%q,"kind":%q},"resource":{"group":%q,"version":%q,"resource":%q}`, group, version, kind, group, version, resource)
	}
	about := fmt.Sprintf(`"uid":"%d","name":"x-%d","namespace":%q,"userInfo":{"username":%q,"groups":["developers","system:authenticated"],"extra":{"token":["s3cr3t-extra-%d"]}}`, i, i, namespace, user, i)
	switch i % 10 {
	case 0:
		data := func(n int) string { return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "s3cr3t-data-%d", n)) }
		object := `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"},"data":{"a":"%s","b":"%s"}}`
		return about + `,"operation":"UPDATE",` + kind("", "v1", "Secret", "secrets") + `,"object":` + fmt.Sprintf(object, data(i), data(i+1)) + `,"oldObject":` + fmt.Sprintf(object, data(i), data(i+i/10%2+1)), []string{"secrets"}
	case 1:
		return about + `,"operation":"CONNECT","subResource":"exec",` + kind("", "v1", "PodExecOptions", "pods") + fmt.Sprintf(`,"object":{"apiVersion":"v1","kind":"PodExecOptions","command":["mysql","--password","s3cr3t-exec-%d","db"]}`, i), []string{"exec"}
	case 2:
		return about + `,"operation":"CREATE",` + kind("apps", "v1", "Deployment", "deployments") + fmt.Sprintf(`,"object":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{%s"selector":{},"template":{"spec":{"containers":[{"name":"c"}]}}}}`, []string{"", `"replicas":3,`}[i/10%2]), []string{"replicas"}
	case 3:
		return about + `,"operation":"CREATE",` + kind("example.com", "v1", "Widget", "widgets") + fmt.Sprintf(`,"object":{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"x"},"spec":{"size":%d,"password":"s3cr3t-widget"}}`, i/10%10), []string{"widgets"}
	}
	labels := []string{`"labels":{"app":"shop","tier":"web"},`, `"labels":{"tier":"forbidden"},`, ""}[i%3]
	tag := []string{"latest", "v1", "v2"}[i/3%3]
	object := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","namespace":%q,%s"annotations":{"note":"n-%d","token":"s3cr3t-token-%d","password":"s3cr3t-pass"}},"spec":{"hostNetwork":%t,"newField":%d,"containers":[{"name":"c","image":"registry.example.com/shop-%d:%s","env":[{"name":"A","value":"b"},{"name":"DB_PASSWORD","value":"s3cr3t-env-%d"}],"args":["--token","s3cr3t-args-%d"]}]}}`,
		namespace, labels, i, i, i%4 == 0, i, i%5, tag, i, i)
	pod := kind("", "v1", "Pod", "pods")
	if i%10 == 4 {
		return about + `,"operation":"DELETE",` + pod + `,"oldObject":` + object, []string{"images"}
	}
	return about + `,"operation":"CREATE",` + pod + `,"object":` + object, []string{"stamp", "sidecar", "images", "coded"}
}

// record records so many reviews of the build without faults in a folder.
func record(t *testing.T, dir string, reviews int) {
	t.Helper()
	recorder, err := recording.NewRecorder(recording.Options{Dir: dir, Share: 1, LimitBytes: 8 << 30, Build: "v1", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	answer(t, recorder, reviews)
}

// answer has the build without faults answer so many reviews, which are recorded.
func answer(t *testing.T, recorder *recording.Recorder, reviews int) {
	t.Helper()
	webhooks, err := build("")
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	handlers := map[string]http.Handler{}
	for _, w := range webhooks {
		handlers[w.Name] = w.Handler(webhook.HandlerOptions{Recorder: recorder})
	}
	sent := 0
	for i := 0; sent < reviews; i++ {
		fields, names := review(i)
		for _, name := range names {
			body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{` + fields + `}}`
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/"+name+"?timeout=10s", strings.NewReader(body))
			request.Header.Set("Content-Type", "application/json")
			answer := httptest.NewRecorder()
			handlers[name].ServeHTTP(answer, request)
			if answer.Code != http.StatusOK {
				t.Fatalf("%d: %s: %s", answer.Code, answer.Body, body)
			}
			if sent++; sent%500 == 0 || sent >= reviews {
				recorder.Run(ended) // so that nothing is dropped
			}
			if sent >= reviews {
				return
			}
		}
	}
}

// replayed replays folders by a build.
func replayed(t *testing.T, fault string, update bool, dirs ...string) *replay.Report {
	t.Helper()
	webhooks, err := build(fault)
	if err != nil {
		t.Fatal(err)
	}
	report, err := replay.Run(t.Context(), dirs, replay.Options{Webhooks: webhooks, Update: update, Build: "v2"})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestAReplayFindsWhatABuildAnswersDifferently(t *testing.T) {
	reviews, dir := testkit.Long(50_000, 500), t.TempDir()
	record(t, dir, reviews)
	testkit.Figure("replay.reviews", float64(reviews), "reviews")
	report := replayed(t, "", false, dir)
	testkit.Figure("replay.differences_of_same_build", float64(report.Differing), "reviews")
	if report.Reviews != reviews || report.Differing != 0 || len(report.Unreadable) > 0 {
		t.Errorf("the same build: %s", report.Text())
	}
	if len(faults) != 20 {
		t.Errorf("there are %d faults", len(faults))
	}
	found := 0
	for fault, kind := range faults {
		t.Run(fault, func(t *testing.T) {
			report := replayed(t, fault, false, dir)
			if !slices.ContainsFunc(report.Differences, func(g *replay.Group) bool { return g.Kind == kind }) || report.Differing == report.Reviews {
				t.Fatalf("no difference in the %s is found:\n%s", kind, report.Text())
			}
			found++
		})
	}
	testkit.Figure("replay.faults_found", float64(found), "faults")
	secrets := 0
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		secrets += bytes.Count(unpacked(t, file), []byte("s3cr3t"))
	}
	testkit.Figure("replay.secrets_recorded", float64(secrets), "secrets")
	if secrets > 0 {
		t.Errorf("%d secrets are recorded", secrets)
	}
}

// unpacked returns the content of a recording.
func unpacked(t *testing.T, file string) []byte {
	t.Helper()
	packed, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	reader, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
