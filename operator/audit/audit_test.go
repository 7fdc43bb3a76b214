package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/offline/memcluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/audit/sink/deliver"
	"github.com/admitkit/admitkit/testing/fakes"
)

// These tests need no cluster: the auditor's host has no API server.

func TestAnExecThatMustBeRecordedIsDeniedWhenItCannotBe(t *testing.T) {
	// Nobody answers there, so no Event can be written.
	required := newAlone(t, audit.Options{Required: true})
	err := required.exec(t, "1", "shop", "sh")
	if reason, denied := host.DenialReason(err); !denied || !strings.Contains(reason, "pods/exec of Pod default/shop is only allowed when it is recorded") {
		t.Errorf("got %v, want a denial with the reason", err)
	}
}

func TestAnExecIsAllowedWhenItsEventCannotBeWritten(t *testing.T) {
	optional := newAlone(t, audit.Options{Sinks: []audit.SinkOptions{{Sink: sink.NewEvent(), QueueLength: 2}}})
	before := audittest.Metric(t, "admitkit_audit_lost_total", "event")
	for i := range 5 { // more than the queue holds, in different Pods
		if err := optional.exec(t, "1", fmt.Sprint("shop-", i), "sh"); err != nil {
			t.Errorf("got %v, want the session allowed", err)
		}
	}
	if got := audittest.Metric(t, "admitkit_audit_lost_total", "event") - before; got != 3 {
		t.Errorf("%v are counted as lost, want 3", got)
	}
}

func TestTheLogHasEveryRecordThatIsLostAndAllOfIt(t *testing.T) {
	failing := sinkFunc{name: "failing", do: func(context.Context, *v1alpha1.AuditRecord) error { return errors.New("broken") }}
	core, logs := observer.New(zap.InfoLevel)
	// As in production: of equal lines zap leaves out most.
	log := zap.New(zapcore.NewSamplerWithOptions(core, time.Hour, 1, 0))
	a := newAloneWith(t, audit.Options{Sinks: []audit.SinkOptions{{Sink: failing}}}, log)
	stop := a.run(t)
	for i := range 3 {
		if err := a.exec(t, fmt.Sprint(i), "shop", "sh", "-c", strings.Repeat("x", 40<<10)); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	lost := logs.FilterMessage("record lost").All()
	if len(lost) != 3 {
		t.Fatalf("%d lines of 3 losses", len(lost))
	}
	for _, line := range lost {
		if r, ok := line.ContextMap()["record"].(*v1alpha1.AuditRecord); !ok || r.CommandSHA256 == "" || r.Time.IsZero() {
			t.Errorf("the line has %v", line.ContextMap())
		}
	}
}

func TestARecordThatWasWrittenBeforeTheRefusalIsAmended(t *testing.T) {
	good := &memory{}
	failing := sinkFunc{name: "failing", do: func(context.Context, *v1alpha1.AuditRecord) error { return errors.New("broken") }}
	a := newAlone(t, audit.Options{Sinks: []audit.SinkOptions{
		{Sink: good, FailurePolicy: audit.Closed}, {Sink: failing, FailurePolicy: audit.Closed},
	}})
	if err := a.exec(t, "1", "shop", "true"); err == nil {
		t.Fatal("the exec was let through")
	}
	a.run(t)()
	got := good.of("alice")
	if len(got) != 2 {
		t.Fatalf("got %d records, want the first and its amendment", len(got))
	}
	first, second := got[0], got[1]
	if first.Decision != "Allowed" || second.Decision != "Denied" || second.Amends != first.ID || second.ID == first.ID || !strings.Contains(second.Reason, "broken") {
		t.Errorf("got %+v and %+v", first, second)
	}
}

func TestTheRecordsOfAPodComeInOrderInEverySink(t *testing.T) {
	closed, open := &memory{}, &memory{}
	a := newAlone(t, audit.Options{Sinks: []audit.SinkOptions{
		{Sink: closed, FailurePolicy: audit.Closed},
		{Sink: sinkFunc{name: "open", do: open.Write}},
	}})
	stop := a.run(t)
	var wait sync.WaitGroup
	for i := range 200 {
		wait.Go(func() {
			if err := a.exec(t, fmt.Sprint(i), fmt.Sprintf("pod-%d", i%3), "true"); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	stop()
	want := map[string][]string{}
	for _, r := range closed.of("alice") {
		want[r.Pod] = append(want[r.Pod], r.ID)
	}
	got := map[string][]string{}
	for _, r := range open.of("alice") {
		got[r.Pod] = append(got[r.Pod], r.ID)
	}
	if len(want) != 3 || fmt.Sprint(want) != fmt.Sprint(got) {
		t.Errorf("the Closed sink has the order %v, the Open one %v", want, got)
	}
}

func TestWhatIsLeftInTheQueueIsWrittenWhenTheManagerStops(t *testing.T) {
	kept := &memory{}
	a := newAlone(t, audit.Options{Sinks: []audit.SinkOptions{{Sink: kept}}})
	for i := range 10 {
		if err := a.exec(t, fmt.Sprint(i), "shop", "true"); err != nil {
			t.Fatal(err)
		}
	}
	a.run(t)()
	// While the server drains, the queue has no reader any more.
	if err := a.exec(t, "late", "shop", "true"); err != nil {
		t.Fatal(err)
	}
	if got := len(kept.of("alice")); got != 11 {
		t.Errorf("%d records, want 11", got)
	}
}

func TestNothingRunsOnWhenTheManagerHasStopped(t *testing.T) {
	before := goleak.IgnoreCurrent()
	var ids sync.Map
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var batch []struct{ ID string }
		if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
			t.Error(err)
		}
		for _, event := range batch {
			ids.Store(event.ID, true)
		}
	}))
	t.Cleanup(endpoint.Close)
	a := newAlone(t, audit.Options{Sinks: []audit.SinkOptions{
		{Sink: &memory{}},
		{Sink: sink.NewFile(sink.FileOptions{Path: filepath.Join(t.TempDir(), "audit.jsonl")}), FailurePolicy: audit.Closed},
		{Sink: deliver.NewCloudEvents(deliver.EventOptions{Options: deliver.Options{URL: endpoint.URL, Dir: t.TempDir(), Client: endpoint.Client()}}), FailurePolicy: audit.Closed},
	}})
	stop := a.run(t)
	if err := a.exec(t, "1", "shop", "true"); err != nil {
		t.Fatal(err)
	}
	stop()
	// At least once: a request that the stop cut short is repeated.
	if got := slices.Collect(maps.Keys(maps.Collect(ids.Range))); len(got) != 1 {
		t.Errorf("the endpoint has %v: what is in the queue should go out at the end", got)
	}
	endpoint.Client().CloseIdleConnections()
	endpoint.Close()
	goleak.VerifyNone(t, before)
}

func TestAnExecDoesNotWaitForTheRateLimitOfTheManagersConnection(t *testing.T) {
	config := memcluster.Config(inMemory(t))
	config.QPS, config.Burst = .001, 1 // a quarter of an hour for each request
	a := newAloneAt(t, config, audit.Options{Sinks: []audit.SinkOptions{
		{Sink: auditevent.New(auditevent.Options{}), FailurePolicy: audit.Closed}, {Sink: sink.NewEvent(), FailurePolicy: audit.Closed},
	}}, zap.NewNop())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 5 { // each reads the Pod and writes two records
		if err := a.sessions.Admit(ctx, &corev1.PodExecOptions{Command: []string{"true"}}, a.request(fmt.Sprint(i), "shop")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestADryRunIsLoggedAndHasNoEffect(t *testing.T) {
	server, kept := inMemory(t), &memory{}
	core, logs := observer.New(zap.InfoLevel)
	var sinks []audit.SinkOptions
	for _, each := range []sink.Sink{sink.NewLog(), auditevent.New(auditevent.Options{}), sink.NewEvent(), kept} {
		sinks = append(sinks, audit.SinkOptions{Sink: each, FailurePolicy: audit.Closed})
	}
	a := newAloneAt(t, memcluster.Config(server), audit.Options{Sinks: sinks}, zap.New(core))
	for _, dryRun := range []bool{true, false} {
		server.TakeWrites()
		req := a.request(fmt.Sprintf("dry-run-%t", dryRun), "shop")
		req.AdmissionRequest.DryRun = &dryRun
		if err := a.sessions.Admit(t.Context(), &corev1.PodExecOptions{Command: []string{"true"}}, req); err != nil {
			t.Fatal(err)
		}
		if writes := server.TakeWrites(); (len(writes) == 0) != dryRun {
			t.Errorf("dry run %t: it writes %q", dryRun, writes)
		}
	}
	if got := kept.of("alice"); len(got) != 2 || !got[0].DryRun || got[1].DryRun {
		t.Errorf("recorded %+v", got)
	}
	if logs.FilterMessage("session").FilterFieldKey("dryRun").Len() != 1 {
		t.Error("it is not logged")
	}
}

func TestASinkThatPanicsFailsAndEndsNothing(t *testing.T) {
	panics := sinkFunc{name: "panics", do: func(context.Context, *v1alpha1.AuditRecord) error { panic("oh") }}
	for _, policy := range []audit.FailurePolicy{audit.Open, audit.Closed} {
		a := newAlone(t, audit.Options{Sinks: []audit.SinkOptions{{Sink: panics, FailurePolicy: policy}}})
		stop := a.run(t)
		err := a.exec(t, "1", "shop", "true")
		stop()
		if denied := err != nil; denied != (policy == audit.Closed) {
			t.Errorf("%s: got %v", policy, err)
		}
	}
}

func TestACommandTooLongForARecordIsCutAndSaysSo(t *testing.T) {
	kept := &memory{}
	a := newAlone(t, audit.Options{Sinks: []audit.SinkOptions{{Sink: kept, FailurePolicy: audit.Closed}}})
	if err := a.exec(t, "1", "shop", "sh", "-c", strings.Repeat("\x00", 1<<20)+"evil"); err != nil {
		t.Fatal(err)
	}
	r := kept.of("alice")[0]
	text := strings.Join(r.Command, "")
	if size := len(text); size > 33<<10 || !strings.HasSuffix(text, "evil") || len(r.Flags) != 1 || r.Flags[0] != v1alpha1.FlagTruncated {
		t.Errorf("the command has %d bytes and the flags %v", size, r.Flags)
	}
}

// TestNobodyMakesARecordLong asks for a container whose name has 900 KiB.
func TestNobodyMakesARecordLong(t *testing.T) {
	server := inMemory(t)
	a := newAloneAt(t, memcluster.Config(server), objectsOnly(auditevent.Options{}), zap.NewNop())
	options := &corev1.PodExecOptions{Command: []string{"true"}, Container: strings.Repeat("c", 900<<10)}
	if err := a.sessions.Admit(t.Context(), options, a.request("long", "shop")); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(memcluster.Config(server), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	var event v1alpha1.AuditEvent
	if err := c.Get(t.Context(), client.ObjectKey{Name: "long"}, &event); err != nil {
		t.Fatal(err)
	}
	if r := event.Spec; len(r.Container) > 1<<10 || !strings.Contains(r.Container, "SHA-256") || len(r.Flags) != 1 || r.Flags[0] != v1alpha1.FlagTruncated {
		t.Errorf("the container has %d bytes, %v", len(r.Container), r.Flags)
	}
	if text, err := json.Marshal(&event); err != nil || len(text) > 4<<10 {
		t.Errorf("the AuditEvent has %d bytes: %v", len(text), err)
	}
}

func TestWhatIsNoKnownWayInIsAnErrorAndNotPassedOver(t *testing.T) {
	a := newAlone(t, audit.Options{})
	req := a.request("1", "shop")
	req.SubResource = "log"
	if err := a.sessions.Admit(t.Context(), &corev1.PodExecOptions{}, req); err == nil || !strings.Contains(err.Error(), "pods/log") {
		t.Errorf("got %v, want an error that names the way", err)
	}
}

// alone is an auditor whose host has no API server.
type alone struct {
	sessions *host.Handler
	kube     ctrlmanager.Manager
}

func newAlone(t *testing.T, options audit.Options) *alone {
	t.Helper()
	return newAloneWith(t, options, zap.NewNop())
}

func newAloneWith(t *testing.T, options audit.Options, log *zap.Logger) *alone {
	t.Helper()
	return newAloneAt(t, &rest.Config{Host: "https://127.0.0.1:1"}, options, log)
}

// newAloneAt makes an auditor whose host has this connection.
func newAloneAt(t *testing.T, config *rest.Config, options audit.Options, log *zap.Logger) *alone {
	t.Helper()
	kube, err := ctrlmanager.New(config, ctrlmanager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	mgr := fakes.NewManager()
	mgr.GetKubeConnectionCalls(func() (*rest.Config, error) { return rest.CopyConfig(config), nil })
	mgr.GetKubeClientReturns(kubernetes.NewForConfigOrDie(config).CoreV1(), nil)
	mgr.GetLoggerReturns(log.Sugar())
	mgr.GetKubeManagerReturns(kube)
	added, err := host.PartsOf(audit.New(options), mgr)
	if err != nil {
		t.Fatal(err)
	}
	a := &alone{sessions: host.Open(added.Handlers[0]), kube: kube}
	if err := added.Register(mgr); err != nil {
		t.Fatal(err)
	}
	return a
}

// inMemory is an API server that has no objects but the CRD of AuditEvents.
func inMemory(t *testing.T) *memcluster.Cluster {
	t.Helper()
	text, err := os.ReadFile("../config/crd/admitkit.dev_auditevents.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		t.Fatal(err)
	}
	server := memcluster.New(scheme)
	if err := server.Add(crd); err != nil {
		t.Fatal(err)
	}
	return server
}

// run runs what the sinks run in the background, until stop has returned.
func (a *alone) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.kube.Start(ctx) }()
	return func() {
		<-a.kube.Elected()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (a *alone) request(id, pod string) *extension.Request {
	req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: types.UID(id), Operation: admissionv1.Connect, Namespace: metav1.NamespaceDefault, Name: pod,
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, SubResource: "exec",
	}}
	req.UserInfo.Username = "alice"
	return &extension.Request{Request: req}
}

func (a *alone) exec(t *testing.T, id, pod string, command ...string) error {
	t.Helper()
	return a.sessions.Admit(t.Context(), &corev1.PodExecOptions{Command: command}, a.request(id, pod))
}
