package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/controller"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/credentials"
	"github.com/admitkit/admitkit/operator/sandbox/internal/decision"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

var now = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func TestTheProxyConnectsNobodyToTheClusterOrItsAPIServer(t *testing.T) {
	of := New(Options{
		Egress: egress.Options{PodCIDRs: []string{"10.244.0.0/16"}, ServiceCIDRs: []string{"10.96.0.0/12"}},
		Proxy:  ProxyOptions{Image: pinnedImage}, Broker: BrokerOptions{Namespace: "broker"},
	})
	f := &facts.Facts{
		Proxied:   &facts.Proxied{Mode: v1alpha1.InterceptionTransparent, InContainer: []string{"MODEL"}, Broker: &v1alpha1.EgressBroker{Namespace: "broker", Port: 8443}},
		APIServer: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443"), netip.MustParseAddrPort("[2001:db8::1]:6443")},
	}
	want := &workload.Proxy{
		Mode: v1alpha1.InterceptionTransparent, InContainer: []string{"MODEL"}, Image: pinnedImage, BrokerURL: "https://sandbox-broker.broker.svc:8443", BrokerPort: 8443,
		Denied: []string{"10.244.0.0/16", "10.96.0.0/12", "10.0.0.1/32", "2001:db8::1/128"},
	}
	if got := newRuns(of.shared).proxyOf(f); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// Each time that the broker says no is on record, with what it leased before and took back.
func TestABrokerThatSaysNoIsAskedLaterAndLater(t *testing.T) {
	for sentence, test := range map[string]struct {
		err     error
		refused bool
	}{
		"nobody answers":    {errors.New("connection refused"), false},
		"the pool is empty": {&protocol.Error{Code: protocol.CodePoolExhausted}, true},
		"a key is wrong":    {fmt.Errorf("credential a: %w", &protocol.Error{Code: protocol.CodeProviderFailed}), true},
	} {
		of := (*conditions.Obstacle)(nil)
		if !errors.As(credentials.Obstacle(test.err), &of) || of.Refused != test.refused {
			t.Errorf("%s: %+v", sentence, of)
			continue
		}
		d := decision.Decision{}
		if d.Wait(&v1alpha1.SandboxRun{}, of, now); d.Refused != test.refused || !d.Poll {
			t.Errorf("%s: %+v", sentence, d)
		}
	}
	r, key := newRuns(&shared{}), types.NamespacedName{Namespace: "agents", Name: "a"}
	var after []time.Duration
	for range 6 {
		after = append(after, r.pollsAfter(key, true))
	}
	if want := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute}; !slices.Equal(after, want) {
		t.Errorf("it is asked again after %s, want %s", after, want)
	}
	if again := r.pollsAfter(key, false); again != facts.PollAfter {
		t.Errorf("a broker that does not answer is asked after %s", again)
	}
}

func TestARunGoesThoughItsLeasesAreNotRevokedAndSaysSo(t *testing.T) {
	options, told := Options{Broker: BrokerOptions{Namespace: "broker"}}, events.NewFakeRecorder(1)
	core, logs := observer.New(zap.ErrorLevel)
	r := &runs{shared: &shared{options: options}, events: told, log: zap.New(core)}
	r.lender = r.lends()
	r.lender.Broker = &credentials.Broker{Namespace: "broker", CAFile: "nowhere"}
	asks := &v1alpha1.EgressDecision{Broker: &v1alpha1.EgressBroker{Namespace: "broker"}}
	r.revoke(t.Context(), &v1alpha1.SandboxRun{Status: v1alpha1.SandboxRunStatus{Interception: v1alpha1.InterceptionTransparent, Egress: asks}})
	select {
	case event := <-told.Events:
		if !strings.HasPrefix(event, "Warning RevokeFailed ") {
			t.Error(event)
		}
	default:
		t.Error("there is no Event")
	}
	if logs.Len() != 1 {
		t.Errorf("%d lines in the log", logs.Len())
	}
}

// What probes may look at, and nothing else of the control plane.
func TestKubeSystemIsReadByTheProbeAlone(t *testing.T) {
	for mode, want := range map[egress.Mode]string{egress.ModeAuto: "pods list", egress.ModeOn: "", egress.ModeOff: ""} {
		s := &shared{options: Options{Egress: egress.Options{Mode: mode}}, namespaces: []string{"agents"}, own: "own"}
		var texts []string
		for _, rights := range []map[string][]string{textsOf(newRuns(s)), textsOf(newWorkspaces(newRuns(s)))} {
			texts = append(texts, rights[metav1.NamespaceSystem]...)
		}
		if got := strings.Join(texts, ", "); got != want {
			t.Errorf("%s: %q", mode, got)
		}
	}
}

func textsOf(of extension.NamespaceEntitled) map[string][]string {
	texts := map[string][]string{}
	for namespace, rules := range of.NamespaceRights() {
		for _, rule := range rules {
			texts[namespace] = append(texts[namespace], strings.Join(append(rule.Resources, rule.Verbs...), " "))
		}
	}
	return texts
}

func TestAConflictIsTriedAgainAndNoError(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	r := newRuns(&shared{})
	r.log = zap.New(core)
	key := types.NamespacedName{Name: "a"}
	conflict := fmt.Errorf("writing: %w", apierrors.NewConflict(corev1.Resource("runs"), "a", errors.New("it was changed")))
	if result := r.retry(key, zap.Skip(), conflict); result.RequeueAfter <= 0 || logs.Len() > 0 {
		t.Errorf("%+v, %d lines in the log", result, logs.Len())
	}
	if result := r.retry(key, zap.Skip(), errors.New("refused")); result.RequeueAfter <= 0 || logs.Len() != 1 {
		t.Errorf("%+v, %d lines in the log", result, logs.Len())
	}
}

const pinnedImage = "example.com/agent@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// unseeded is a Workspace that was just made.
func unseeded() *v1alpha1.Workspace {
	return &v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "w", UID: "v"}, Spec: v1alpha1.WorkspaceSpec{Seed: &v1alpha1.WorkspaceSeed{}}}
}

// noted keeps records.
type noted []extension.Record

func (n *noted) Record(_ context.Context, record extension.Record) error {
	*n = append(*n, record)
	return record.Validate()
}

func TestTheEndOfASeedIsOnRecordOnceAndOfTheWorkspace(t *testing.T) {
	kept := &noted{}
	a := &workspaceAttempt{ws: unseeded(), status: &v1alpha1.WorkspaceStatus{}, workspaces: newWorkspaces(newRuns(&shared{options: Options{Clock: clocktesting.NewFakePassiveClock(now)}}))}
	a.recorder, a.events, a.log = kept, &events.FakeRecorder{}, zap.NewNop()
	before := a.ws.DeepCopy()
	a.failed(v1alpha1.WorkspaceSeedFailed, "repository not found")
	a.tellWorkspace(t.Context(), before)
	before.Status.Phase = a.status.Phase
	a.tellWorkspace(t.Context(), before)
	if len(*kept) != 1 || (*kept)[0].Action != "workspace-failed" || (*kept)[0].Object.Kind != "Workspace" || (*kept)[0].Object.Name != "w" || !strings.Contains((*kept)[0].Reason, "repository not found") {
		t.Errorf("%+v", *kept)
	}
}

func TestTheRecordOfAStartNamesTheCredentialsOfAContainerThatHasAny(t *testing.T) {
	if got := credentialsOf(&v1alpha1.SandboxRunStatus{}); got != "" {
		t.Errorf("%q", got)
	}
	if got := credentialsOf(&v1alpha1.SandboxRunStatus{Credentials: []v1alpha1.SandboxCredential{{Name: "A", Lease: "x"}, {Name: "B", Lease: "y"}}}); got != ", with 2 credentials in its container: A (lease x), B (lease y)" {
		t.Errorf("%q", got)
	}
}

func TestASeedImageWithoutADigestIsSaidAtTheStart(t *testing.T) {
	for image, want := range map[string]int{"example.com/sandbox:1": 1, pinnedImage: 0, "": 0} {
		core, logs := observer.New(zap.WarnLevel)
		(&shared{options: Options{SeedImage: image}}).warnOfImages(zap.New(core))
		if logs.Len() != want {
			t.Errorf("%q: %d lines in the log", image, logs.Len())
		}
	}
}

// written is what a metric says.
func written(t *testing.T, of any) *dto.Metric {
	t.Helper()
	m := &dto.Metric{}
	if err := of.(prometheus.Metric).Write(m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWhatEndsIsCountedAndMeasured(t *testing.T) {
	r := &runs{shared: &shared{}, recorder: &noted{}, events: &events.FakeRecorder{}, log: zap.NewNop()}
	ended, took := endedTotal.WithLabelValues("Failed"), runSeconds.WithLabelValues("Failed")
	count, sum := written(t, ended).Counter.GetValue(), written(t, took).Histogram.GetSampleSum()
	began, end := metav1.NewTime(now), metav1.NewTime(now.Add(time.Minute))
	after := &v1alpha1.SandboxRunStatus{Phase: v1alpha1.SandboxFailed, StartTime: &began, CompletionTime: &end}
	run := &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{UID: "counted"}}
	r.tellTransition(t.Context(), run, &v1alpha1.SandboxRunStatus{Phase: v1alpha1.SandboxRunning}, after)
	r.tellTransition(t.Context(), run, after, after)
	if n, s := written(t, ended).Counter.GetValue()-count, written(t, took).Histogram.GetSampleSum()-sum; n != 1 || s != 60 {
		t.Errorf("it is counted %v times, and took %v s", n, s)
	}
}

// A Secret comes into the environment on lease alone.
func TestAVariableHasAValueAndNothingElse(t *testing.T) {
	of := reflect.TypeFor[v1alpha1.SandboxEnv]()
	if of.NumField() != 2 || of.Field(0).Name != "Name" || of.Field(1).Name != "Value" || of.Field(1).Type.Kind() != reflect.String {
		t.Errorf("%v", of)
	}
}

// The prober would fail: there is none.
func TestASeedIsHeldAsWasDecided(t *testing.T) {
	ws := unseeded()
	a := &workspaceAttempt{ws: ws, status: &v1alpha1.WorkspaceStatus{Egress: &v1alpha1.EgressDecision{Reason: "it was off"}}, workspaces: newWorkspaces(newRuns(&shared{options: Options{Egress: egress.Options{Mode: egress.ModeOn}}}))}
	if held, err := a.hold(t.Context(), false); !held || err != nil || a.status.Egress.Reason != "it was off" {
		t.Errorf("%t, %v, %+v", held, err, a.status.Egress)
	}
}

func TestAPromptIsThereBeforeTheStatusNamesIt(t *testing.T) {
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	r, of := newRuns(&shared{}), &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: "a", UID: "1"}}
	healthy := fake.NewClientBuilder().WithScheme(scheme).Build()
	r.writer = interceptor.NewClient(healthy, interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return refused }})
	var status v1alpha1.SandboxRunStatus
	if err := r.makePrompt(t.Context(), of, &status); !errors.Is(err, refused) || status.PromptSecret != "" {
		t.Errorf("%v, and the status names %q", err, status.PromptSecret)
	}
	r.writer = healthy
	if err := r.makePrompt(t.Context(), of, &status); err != nil || status.PromptSecret == "" {
		t.Fatalf("%v, and the status names %q", err, status.PromptSecret)
	}
	if again := (v1alpha1.SandboxRunStatus{}); r.makePrompt(t.Context(), of, &again) != nil || again.PromptSecret != status.PromptSecret {
		t.Errorf("an attempt whose write was lost made another: %q", again.PromptSecret)
	}
	others := newRuns(&shared{})
	others.writer = healthy
	if theirs := (v1alpha1.SandboxRunStatus{}); others.makePrompt(t.Context(), of, &theirs) != nil || theirs.PromptSecret == status.PromptSecret {
		t.Error("who has another key knows the name")
	}
}

// A cache of the namespaces of runs refuses to read the addresses of the API server: there is none to ask.
func TestASeedIsNotHeldWhereTheOperatorSaysSo(t *testing.T) {
	ws := unseeded()
	ws.Spec.Seed.Egress = &v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{Internet: true}}
	off := egress.Options{Mode: egress.ModeOff, PodCIDRs: []string{"10.0.0.0/8"}, ServiceCIDRs: []string{"10.1.0.0/16"}}
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	r := newRuns(&shared{options: Options{Egress: off}})
	r.holder = egress.Holder{Options: &off, Kinds: off.Kinds()}
	r.holder.Use(nil, nil, clock.RealClock{})
	r.writer = fake.NewClientBuilder().WithScheme(scheme).WithObjects(ws).WithStatusSubresource(ws).Build()
	r.cached = r.writer
	r.facts = r.reads()
	if err := r.writer.Get(t.Context(), client.ObjectKeyFromObject(ws), ws); err != nil {
		t.Fatal(err)
	}
	a := &workspaceAttempt{ws: ws, status: ws.Status.DeepCopy(), workspaces: newWorkspaces(r)}
	held, err := a.hold(t.Context(), false)
	if e := a.status.Egress; !held || err != nil || e == nil || e.Policy != "" {
		t.Errorf("%t, %v, %+v", held, err, e)
	}
}
