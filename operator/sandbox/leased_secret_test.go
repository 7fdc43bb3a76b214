package sandbox

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
	"github.com/admitkit/admitkit/operator/sandbox/internal/credentials"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
)

// lender is a broker, and an API server that can fail.
type lender struct {
	mu sync.Mutex
	// renews says that the broker has a lease already, and issued and revoked are what it did.
	renews          bool
	issued          int
	revoked         []string
	records         []extension.Record
	storing, status error
	// lost says that what fails was done, and only the answer was lost.
	lost bool
	*runs
}

// ServeHTTP is the broker. It has one token, or one each time.
func (l *lender) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.URL.Path == protocol.PathIssue {
		l.issued++
		of := protocol.Issued{Lease: fmt.Sprint("lease-", l.issued), Value: fmt.Sprint("token-", l.issued), Fresh: true, ExpiresAt: now.Add(time.Hour)}
		if l.renews {
			of.Lease, of.Value, of.Fresh = "lease", "token", false
		}
		_ = json.NewEncoder(w).Encode(of)
		return
	}
	var request protocol.RevokeRequest
	_ = json.NewDecoder(r.Body).Decode(&request)
	how := " revoked"
	if request.Undelivered {
		how = " given back"
	}
	l.revoked = append(l.revoked, request.Lease+how)
	w.WriteHeader(http.StatusNoContent)
}

// Record implements [extension.Recorder].
func (l *lender) Record(_ context.Context, record extension.Record) error {
	l.records = append(l.records, record)
	return record.Validate()
}

// fails has a write fail with an error, nil for none.
func (l *lender) fails(with error, write func() error) error {
	if with != nil && !l.lost {
		return with
	}
	return errors.Join(write(), with)
}

func newLender(t *testing.T) *lender {
	t.Helper()
	scheme, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	l := &lender{}
	server := httptest.NewTLSServer(l)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := runca.NewRoot(now)
	if err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{&v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u"}}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: credentials.RootName}, Data: map[string][]byte{corev1.TLSCertKey: root.Certificate, corev1.TLSPrivateKeyKey: root.Key}}}
	cluster := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.SandboxRun{}).Build(), interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			return l.fails(l.storing, func() error { return c.Update(ctx, object, options...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			return l.fails(l.status, func() error { return c.SubResource(name).Patch(ctx, object, patch, options...) })
		},
	})
	options := Options{Clock: clocktesting.NewFakePassiveClock(now), Broker: BrokerOptions{Namespace: "broker", CAFile: file}}
	l.runs = &runs{
		shared: &shared{options: options, own: "own"}, log: zap.NewNop(), events: &events.FakeRecorder{}, recorder: l, cached: cluster, live: cluster, writer: cluster,
	}
	l.lender = l.runs.lends()
	l.lender.Broker = &credentials.Broker{Namespace: "broker", URL: server.URL, CAFile: file, Live: cluster, Token: func(context.Context) (string, error) { return "t", nil }}
	return l
}

// lends has a run have its credential. It returns its Secret.
func (l *lender) lends(t *testing.T, began bool) (*corev1.Secret, error) {
	t.Helper()
	f := &facts.Facts{Run: &v1alpha1.SandboxRun{}}
	if err := l.cached.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "b"}, f.Run); err != nil {
		t.Fatal(err)
	}
	if began {
		f.Job = &batchv1.Job{}
	}
	lent := l.lender.Lend(t.Context(), l.loanOf(f, f.Run.Status.DeepCopy(), []string{"TOKEN"}))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "sandbox-b-credentials"}}
	if err := l.live.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}
	return secret, lent
}

// A pool gives a token that was given back to another run at once, so nobody may have seen it.
func TestALeaseGoesBackOnlyIfSurelyNobodyHasSeenItsValue(t *testing.T) {
	timeout, resource := apierrors.NewTimeoutError("too slow", 1), corev1.Resource("secrets")
	for sentence, test := range map[string]struct {
		fails func(*lender)
		// first is what the broker is told after the attempt that fails, and then after the next: a status that was not
		// written again names a lease that is gone.
		first, then string
		issued      int
	}{
		"a Secret that is refused":             {func(l *lender) { l.storing = apierrors.NewForbidden(resource, "b", nil) }, "lease-1 given back", "lease-1 given back, lease-1 revoked", 2},
		"a Secret whose answer is lost":        {func(l *lender) { l.storing, l.lost = timeout, true }, "", "", 1},
		"a Secret that nobody knows about":     {func(l *lender) { l.storing = timeout }, "", "lease-1 revoked", 2},
		"a connection that breaks":             {func(l *lender) { l.storing, l.lost = errors.New("connection reset by peer"), true }, "", "", 1},
		"a Secret that was written meanwhile":  {func(l *lender) { l.storing = apierrors.NewConflict(resource, "b", nil) }, "", "lease-1 revoked", 2},
		"a status that cannot be written":      {func(l *lender) { l.status = timeout }, "lease-1 given back", "lease-1 given back", 2},
		"one that an earlier attempt had, too": {func(l *lender) { l.storing, l.renews = apierrors.NewForbidden(resource, "b", nil), true }, "", "", 2},
		"one that nothing is in the way of":    {func(*lender) {}, "", "", 1},
		"a Secret that is too large":           {func(l *lender) { l.storing = apierrors.NewRequestEntityTooLargeError("no") }, "lease-1 given back", "lease-1 given back, lease-1 revoked", 2},
	} {
		t.Run(sentence, func(t *testing.T) {
			l := newLender(t)
			test.fails(l)
			_, err := l.lends(t, false)
			if first := strings.Join(l.revoked, ", "); first != test.first || (err != nil) != (l.storing != nil || l.status != nil) {
				t.Errorf("%v: %q, want %q", err, first, test.first)
			}
			l.storing, l.status, l.lost = nil, nil, false
			secret, err := l.lends(t, false)
			if then := strings.Join(l.revoked, ", "); err != nil || then != test.then || l.issued != test.issued {
				t.Errorf("%v: %q, want %q, after %d were issued", err, then, test.then, l.issued)
			}
			if value := string(secret.Data["TOKEN"]); value != fmt.Sprint("token-", test.issued) && !l.renews {
				t.Errorf("the Secret has %q", value)
			}
			if len(l.records) > 0 {
				t.Errorf("nobody tampered: %+v", l.records)
			}
		})
	}
}

// What is in use cannot be revoked for one that did not get into the Secret.
func TestALeaseInUseIsNotRevokedForItsRenewal(t *testing.T) {
	l := newLender(t)
	if _, err := l.lends(t, false); err != nil {
		t.Fatal(err)
	}
	l.options.Clock.(*clocktesting.FakePassiveClock).SetTime(now.Add(time.Hour))
	l.storing = apierrors.NewTimeoutError("too slow", 1)
	if _, err := l.lends(t, true); err == nil || len(l.revoked) > 0 || l.issued != 2 {
		t.Errorf("%v, %q, %d", err, l.revoked, l.issued)
	}
}

func TestASecretIsKeptAsItWas(t *testing.T) {
	for sentence, test := range map[string]struct {
		change func(data map[string][]byte)
		issued int
		did    string
	}{
		"nobody changed it":           {func(map[string][]byte) {}, 1, ""},
		"somebody put keys into it":   {func(data map[string][]byte) { data["EVIL"], data["ALSO"] = []byte("x"), []byte("y") }, 1, "put keys into Secret %s, which are out of it again: ALSO, EVIL"},
		"somebody replaced the value": {func(data map[string][]byte) { data["TOKEN"] = []byte("evil") }, 2, "changed what is in Secret %s, which is as it was again: TOKEN"},
		"somebody took the value out": {func(data map[string][]byte) { delete(data, "TOKEN") }, 2, "changed what is in Secret %s, which is as it was again: TOKEN"},
		"somebody did both":           {func(data map[string][]byte) { data["EVIL"], data["TOKEN"] = []byte("x"), nil }, 2, "changed what is in Secret %s, which is as it was again: TOKEN"},
	} {
		t.Run(sentence, func(t *testing.T) {
			l := newLender(t)
			secret, err := l.lends(t, false)
			if err != nil {
				t.Fatal(err)
			}
			keys := len(secret.Data)
			test.change(secret.Data)
			if err := l.writer.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			secret, err = l.lends(t, true)
			if err != nil || l.issued != test.issued || len(secret.Data) != keys || string(secret.Data["TOKEN"]) != fmt.Sprint("token-", test.issued) || len(l.revoked) > 0 {
				t.Errorf("%v: %d were issued, and the Secret has %d keys; %q", err, l.issued, len(secret.Data), l.revoked)
			}
			var did []string
			for _, record := range l.records {
				did = append(did, record.Action+": "+record.Reason)
			}
			var want []string
			if test.did != "" {
				want = []string{"credentials-tampered: somebody " + strings.ReplaceAll(test.did, "%s", secret.Name)}
			}
			if !slices.Equal(did, want) {
				t.Errorf("on record is %q, want %q", did, want)
			}
		})
	}
}
