package recording_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/recording"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/webhook"
)

// recorder is a Recorder with its folder and its log.
type recorder struct {
	*recording.Recorder
	dir  string
	logs *observer.ObservedLogs
}

func newRecorder(t *testing.T, change func(*recording.Options)) *recorder {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	options := recording.Options{Dir: filepath.Join(t.TempDir(), "recordings"), Share: 1, LimitBytes: 64 << 20, Build: "v1", Logger: zap.New(core)}
	if change != nil {
		change(&options)
	}
	r, err := recording.NewRecorder(options)
	if err != nil {
		t.Fatal(err)
	}
	return &recorder{r, options.Dir, logs}
}

// finish writes what waits.
func (r *recorder) finish(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.Run(ctx)
}

// content returns all that is on disk, decompressed.
func (r *recorder) content(t *testing.T) []byte {
	t.Helper()
	var all bytes.Buffer
	for _, file := range r.files(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		unpacked, err := gzip.NewReader(bytes.NewReader(text))
		if err == nil {
			_, err = io.Copy(&all, unpacked)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.Bytes()
}

func (r *recorder) files(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// counted returns how many admissions were recorded or dropped.
func counted(t *testing.T, result string) int {
	t.Helper()
	return countedOf(t, "admitkit_recordings_total", result)
}

func countedOf(t *testing.T, name, result string) int {
	t.Helper()
	count := 0
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name && metric.GetLabel()[0].GetValue() == result {
				count = int(metric.GetCounter().GetValue())
			}
		}
	}
	return count
}

// repeating is a handler that puts everything it sees into its answer.
func repeating(mutate bool) *extension.Handler {
	scope := extension.Scope{Name: "repeating"}
	if mutate {
		return extension.MutatingFunc(func(_ context.Context, object *unstructured.Unstructured, req *extension.Request) error {
			text, err := json.Marshal(object)
			object.SetAnnotations(map[string]string{"copied": string(text), "plain": strings.ReplaceAll(string(text), `\"`, `"`)})
			req.Warnf("%s", text[:min(len(text), 200)])
			req.AddAuditAnnotation("saw", string(text))
			return err
		}, scope)
	}
	return extension.ValidatingFunc(func(_ context.Context, object *unstructured.Unstructured, _ *extension.Request) error {
		text, err := json.Marshal(object)
		return errors.Join(err, extension.Denyf("no: %s", text))
	}, scope)
}

// admit sends an object through handlers that are recorded.
func (r *recorder) admit(t *testing.T, handler *extension.Handler, object string) {
	t.Helper()
	var kind metav1.TypeMeta
	if err := json.Unmarshal([]byte(object), &kind); err != nil {
		t.Fatalf("%v: %s", err, object)
	}
	group, version, _ := strings.Cut(kind.APIVersion, "/")
	if version == "" {
		group, version = "", group
	}
	webhooks, err := webhook.Group([]*extension.Handler{handler}, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":%q,"operation":"UPDATE","name":"a","namespace":"apps",
		"kind":{"group":%q,"version":%q,"kind":%q},"resource":{"group":%q,"version":%q,"resource":"x"},"object":%s,"oldObject":%s,
		"userInfo":{"username":"bob","extra":{"token":["s3cr3tXtra"],"note":["Bearer s3cr3tXtra2"]}},"options":{"kind":"UpdateOptions","apiVersion":"meta.k8s.io/v1"}}}`,
		fmt.Sprint(len(object)), group, version, kind.Kind, group, version, object, object)
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, webhooks[0].Path(), strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	webhooks[0].Handler(webhook.HandlerOptions{Recorder: r}).ServeHTTP(answer, request)
	if answer.Code != http.StatusOK && answer.Code != http.StatusInternalServerError {
		t.Fatalf("%d: %s", answer.Code, answer.Body)
	}
}

func TestNothingSecretIsRecorded(t *testing.T) {
	r := newRecorder(t, nil)
	objects, secrets := planted()
	secrets = append(secrets, "s3cr3tXtra")
	for _, object := range objects {
		for _, mutate := range []bool{true, false} {
			r.admit(t, repeating(mutate), object)
		}
	}
	r.finish(t)
	content := r.content(t)
	if lines := bytes.Count(content, []byte("\n")); lines != 2*len(objects) {
		t.Errorf("%d of %d admissions are recorded: %v", lines, 2*len(objects), r.logs.All())
	}
	found := 0
	for _, secret := range secrets {
		for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))} {
			if at := bytes.Index(content, []byte(form)); at >= 0 {
				found++
				t.Errorf("%s is recorded: ...%s", form, content[max(0, at-200):at+20])
			}
		}
	}
	if len(secrets) < 200 {
		t.Errorf("only %d secrets are planted", len(secrets))
	}
	testkit.Figure("replay.secrets_planted", float64(len(secrets)), "secrets")
	testkit.Figure("replay.secrets_found", float64(found), "secrets")
}

// recordedOf returns an admission of so many bytes for the recorder.
func (r *recorder) recordedOf(t *testing.T, size int) *webhook.Recorded {
	t.Helper()
	webhooks, err := webhook.Group([]*extension.Handler{repeating(false)}, webhook.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	noise := base64.StdEncoding.EncodeToString([]byte(testkit.Noise(size)))
	body := fmt.Appendf(nil, `{"request":{"uid":"1","object":{"note":%q}}}`, noise)
	taken := r.Take("1", body)
	if taken == nil {
		return nil
	}
	return &webhook.Recorded{Webhook: webhooks[0], Body: taken, Response: &admissionv1.AdmissionResponse{Allowed: true}}
}

func TestARecordingIsBounded(t *testing.T) {
	t.Run("on disk, over restarts, and the oldest goes first", func(t *testing.T) {
		const limit = 1 << 20
		dir := t.TempDir()
		for range 2 { // processes
			r := newRecorder(t, func(o *recording.Options) { o.Dir, o.LimitBytes = dir, limit })
			for range 20 {
				r.Keep(r.recordedOf(t, 64<<10))
			}
			r.finish(t)
			var size int64
			files := r.files(t)
			for _, file := range files {
				info, err := os.Stat(file)
				if err != nil {
					t.Fatal(err)
				}
				size += info.Size()
				if info.Mode().Perm() != 0o600 {
					t.Errorf("%s has the mode %s", file, info.Mode())
				}
			}
			if size > limit || size < limit/2 {
				t.Errorf("%d files have %d bytes", len(files), size)
			}
			if damages, err := recording.Read([]string{dir}, func(*recording.Entry) error { return nil }); err != nil || len(damages) > 0 {
				t.Errorf("%v: %v", err, damages)
			}
		}
	})
	t.Run("by the size of an entry", func(t *testing.T) {
		r := newRecorder(t, func(o *recording.Options) { o.LimitBytes = 1 << 20 })
		before := counted(t, "dropped")
		r.Keep(r.recordedOf(t, 200<<10))
		r.Keep(r.recordedOf(t, 1<<10))
		if r.Take("1", make([]byte, 1<<20+1)) != nil {
			t.Error("a body of more than 1 MiB is taken")
		}
		r.finish(t)
		if counted(t, "dropped") != before+2 || bytes.Count(r.content(t), []byte("\n")) != 1 {
			t.Errorf("%d are dropped, the log is %v", counted(t, "dropped")-before, r.logs.All())
		}
	})
	t.Run("in memory, while nothing is written", func(t *testing.T) {
		r := newRecorder(t, nil)
		before := counted(t, "dropped")
		var waiting []*webhook.Recorded
		one := *r.recordedOf(t, 10)
		for range 16 {
			if body := r.Take("1", make([]byte, 1<<20)); body != nil { // no JSON, so it is not kept
				recorded := one
				recorded.Body = body
				waiting = append(waiting, &recorded)
			}
		}
		taken := len(waiting)
		if taken != 7 || counted(t, "dropped") != before+16-taken || r.logs.Len() != 1 {
			t.Errorf("%d of 16 MiB are taken, %d are counted as dropped, the log is %v", taken, counted(t, "dropped")-before, r.logs.All())
		}
		for _, recorded := range waiting {
			r.Keep(recorded)
		}
		r.finish(t)
		if r.Take("1", make([]byte, 1<<20)) == nil {
			t.Error("there is no room when everything is written")
		}
	})
	t.Run("in number, while nothing is written", func(t *testing.T) {
		r := newRecorder(t, nil)
		before := counted(t, "dropped")
		for range 1500 {
			r.Keep(r.recordedOf(t, 10))
		}
		if dropped := counted(t, "dropped") - before; dropped != 1500-1024 || r.logs.Len() != 1 {
			t.Errorf("%d are dropped, the log is %v", dropped, r.logs.All())
		}
		r.finish(t)
		if lines := bytes.Count(r.content(t), []byte("\n")); lines != 1024 {
			t.Errorf("%d are recorded", lines)
		}
	})
	t.Run("to a share", func(t *testing.T) {
		r := newRecorder(t, func(o *recording.Options) { o.Share = 0.25 })
		taken := 0
		for i := range 10_000 {
			if r.Take(fmt.Sprint("uid-", i), []byte("x")) != nil {
				taken++
			}
		}
		if taken < 2200 || taken > 2800 {
			t.Errorf("%d of 10000 are taken", taken)
		}
	})
}

func TestAFolderThatCannotBeWritten(t *testing.T) {
	t.Run("is an error at the start", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := recording.NewRecorder(recording.Options{Dir: file, Share: 1, LimitBytes: 1 << 20, Logger: zap.NewNop()}); err == nil {
			t.Error("there is no error")
		}
	})
	t.Run("is logged once later, and recording goes on when it can be", func(t *testing.T) {
		r := newRecorder(t, func(o *recording.Options) { o.LimitBytes = 1 << 20 })
		if err := os.RemoveAll(r.dir); err != nil {
			t.Fatal(err)
		}
		before := counted(t, "dropped")
		for range 8 { // beyond the segment that is open
			r.Keep(r.recordedOf(t, 64<<10))
		}
		r.finish(t)
		if dropped := counted(t, "dropped") - before; dropped < 6 || r.logs.FilterMessageSnippet("the disk fails").Len() != 1 {
			t.Errorf("%d are dropped, the log is %v", dropped, r.logs.All())
		}
		if err := os.Mkdir(r.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		r.Keep(r.recordedOf(t, 10))
		r.finish(t)
		if bytes.Count(r.content(t), []byte("\n")) != 1 {
			t.Error("it is not recorded again")
		}
	})
}

func TestManyGoroutinesMayRecord(t *testing.T) {
	r := newRecorder(t, nil)
	before := counted(t, "kept") + counted(t, "dropped")
	ctx, stop := context.WithCancel(t.Context())
	written := make(chan struct{})
	go func() {
		defer close(written)
		r.Run(ctx)
	}()
	object := container(`"env":[{"name":"TOKEN","value":"s3cr3t"}]`)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				r.admit(t, repeating(true), object)
			}
		})
	}
	all.Wait()
	stop()
	<-written
	if lines := bytes.Count(r.content(t), []byte("\n")); lines == 0 || counted(t, "kept")+counted(t, "dropped") != before+400 {
		t.Errorf("%d of 400 are recorded, and %d counted", lines, counted(t, "kept")+counted(t, "dropped")-before)
	}
}

func TestAFailureIsRecordedAndWhetherTimeWasOver(t *testing.T) {
	r := newRecorder(t, nil)
	for _, failure := range []struct {
		code int
		err  error
	}{
		{http.StatusInternalServerError, errors.New("token: s3cr3t")},
		{http.StatusGatewayTimeout, context.DeadlineExceeded},
		{http.StatusInternalServerError, fmt.Errorf("the client is gone: %w", context.Canceled)},
	} {
		recorded := r.recordedOf(t, 10)
		recorded.Response, recorded.Code, recorded.Err = nil, failure.code, failure.err
		r.Keep(recorded)
	}
	r.finish(t)
	var outcomes []string
	if _, err := recording.Read([]string{r.dir}, func(e *recording.Entry) error {
		outcomes = append(outcomes, e.Answer.Outcome)
		if strings.Contains(e.Answer.Message, "s3cr3t") {
			t.Errorf("the message is %q", e.Answer.Message)
		}
		return nil
	}); err != nil || !slices.Equal(outcomes, []string{recording.Failed, recording.Unfinished, recording.Unfinished}) {
		t.Errorf("%v: the outcomes are %v", err, outcomes)
	}
}
