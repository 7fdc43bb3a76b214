package broker_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/extension/audit/sink/auditevent"
	"github.com/admitkit/admitkit/extension/sandbox/broker"
	"github.com/admitkit/admitkit/extension/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/managertest"
)

// brokerVariable has the options of a test binary that runs as a broker.
const brokerVariable = "BROKER_TEST_PROCESS"

type processOptions struct {
	KubeConfig, Namespace, WebhookNamespace string
	Port                                    int32
	Broker                                  broker.Options
}

// runBroker is a broker that can be killed.
func runBroker(text string) int {
	var o processOptions
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		o.Broker.GitHubTransport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		var mgr *manager.Manager
		mgr, err = manager.New(manager.Options{
			OperatorFingerprint: "broker", Namespace: o.Namespace, WebhookNamespace: o.WebhookNamespace, Host: "127.0.0.1", Port: o.Port, KubeConfig: o.KubeConfig,
			RegisterWebHook: new(bool), Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)},
		})
		if err == nil {
			err = errors.Join(
				mgr.AddExtension(audit.New(audit.Options{Sinks: []audit.SinkOptions{{Sink: auditevent.New(auditevent.Options{FoldAfter: -1}), FailurePolicy: audit.Closed}}})),
				mgr.AddExtension(broker.New(o.Broker)))
		}
		if err == nil {
			err = mgr.Reconcile(context.Background())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// Nothing leaks while the broker and the API server are killed in turn, in the middle of issues
// and revokes.
func TestNoLeaseLeaksUnderFaults(t *testing.T) {
	serveHarnessRuns(t)
	hub := newGitHub(t)
	w := &world{Installation: &managertest.Installation{Namespace: testkit.Namespace(t, admin), WebhookNamespace: testkit.ManagerNamespace(t, admin)}}
	w.options = broker.Options{
		Address: fmt.Sprintf("127.0.0.1:%d", freeport.For(t)), Controllers: []string{"system:serviceaccount:default:" + controllerUser}, GitHubURL: hub.URL,
	}
	w.options.CertFile, w.options.KeyFile, w.ca = certificate(t)
	var err error
	if w.kube, err = kubernetes.NewForConfig(server.Config()); err != nil {
		t.Fatal(err)
	}
	_ = admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: controllerUser}})
	testkit.Create(t, admin, secret(w.Namespace, "app", map[string]string{"key": hub.pem()}), policy(w.Namespace, "agents", func(s *v1alpha1.BrokerPolicySpec) {
		s.Grants.Credentials = []v1alpha1.CredentialGrant{hub.grant("git")}
	}))
	faults := &faulty{t: t, w: w}
	faults.startBroker()
	many := testkit.Long(500, 16)
	workers := testkit.Long(8, 4)
	tokens, early := faults.load(hub, many, workers)
	w.settled(t, hub, tokens)
	leaked := 0
	for _, token := range tokens {
		if hub.isLive(token) {
			leaked++
		}
	}
	hub.mu.Lock()
	unanswered := len(hub.live) - leaked
	hub.mu.Unlock()
	// A token that nobody got is accounted for by the lease that waits for its end.
	if waiting := len(w.allLeases(t)); unanswered > waiting {
		leaked += unanswered - waiting
	}
	testkit.Figure("lease.issued", float64(len(tokens)), "leases")
	testkit.Figure("lease.leaked", float64(leaked), "leases")
	testkit.Figure("lease.used_after_revoke", float64(early), "leases")
	if leaked > 0 || early > 0 || len(tokens) < many {
		t.Errorf("of %d leases, %d leaked, and %d were live after the broker had said that they are revoked", len(tokens), leaked, early)
	}
}

// faulty kills.
type faulty struct {
	t      *testing.T
	w      *world
	broker *testkit.Process
}

func (f *faulty) startBroker() {
	f.t.Helper()
	text, err := json.Marshal(processOptions{Port: freeport.For(f.t), KubeConfig: server.Admin().KubeConfig, Namespace: f.w.Namespace, WebhookNamespace: f.w.WebhookNamespace, Broker: f.w.options})
	if err != nil {
		f.t.Fatal(err)
	}
	f.broker = testkit.Run(f.t, testkit.Again(f.t, brokerVariable, string(text)))
	f.w.awaitServer(f.t)
}

// load has workers start runs, issue, and revoke or delete, until so many tokens were
// given, and kills the broker and the API server meanwhile.
func (f *faulty) load(hub *github, many, workers int) (tokens []string, early int) {
	var mu sync.Mutex
	var group sync.WaitGroup
	next := make(chan int)
	for range workers {
		group.Go(func() {
			for n := range next {
				token, alive := f.one(hub, n)
				mu.Lock()
				tokens = append(tokens, token)
				if alive {
					early++
				}
				mu.Unlock()
			}
		})
	}
	every := max(many/testkit.Long(10, 3), 1)
	for n := range many {
		next <- n
		switch {
		case n%every != every-1:
		case n/every%3 == 2:
			if err := server.RestartAPIServer(f.t.Context()); err != nil {
				f.t.Error(err)
			}
		default:
			f.broker.Kill()
			f.startBroker()
		}
	}
	close(next)
	group.Wait()
	return tokens, early
}

// one has a run, a token and its end. Everything is repeated until it succeeds, as a
// controller would.
func (f *faulty) one(hub *github, n int) (token string, alive bool) {
	t, w, ctx := f.t, f.w, f.t.Context()
	r := w.startPatiently(t, fmt.Sprintf("run-%d", n))
	bearer := ""
	again(t, func() (err error) {
		bearer, err = w.tryToken(r)
		return err
	})
	proxy := w.ask(t, bearer)
	again(t, func() error {
		issued, err := proxy.Issue(ctx, protocol.IssueRequest{Name: "git"})
		if err == nil {
			token = strings.TrimPrefix(issued.Header.Value, "Bearer ")
		}
		return err
	})
	if n%2 == 0 { // the finalizer of the controller; else the broker notices by itself
		var queued []string
		again(t, func() (err error) {
			queued, err = proxy.Revoke(ctx, protocol.RevokeRequest{})
			return err
		})
		alive = len(queued) == 0 && hub.isLive(token)
	}
	again(t, func() error { return client.IgnoreNotFound(admin.Delete(ctx, r.object)) })
	return token, alive
}

// again repeats what fails while something is down.
func again(t *testing.T, do func() error) {
	t.Helper()
	if err := testkit.Poll(t.Context(), 2*time.Minute, "it succeeds", func(context.Context) error { return do() }); err != nil {
		t.Error(err)
	}
}

// settled returns when only leases are left whose tokens nobody knows.
func (w *world) settled(t *testing.T, hub *github, tokens []string) {
	t.Helper()
	testkit.Within(t, 3*time.Minute, "every token that was given is revoked", func(context.Context) bool {
		return !slices.ContainsFunc(tokens, hub.isLive)
	})
}

func (w *world) allLeases(t *testing.T) []v1alpha1.CredentialLease {
	t.Helper()
	var list v1alpha1.CredentialLeaseList
	if err := admin.List(t.Context(), &list, client.InNamespace(w.WebhookNamespace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}
