package broker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestTheLimitsOfARun(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_900_000_000, 0))
	for issue, want := range map[bool]struct{ burst, perSecond int }{true: {10, 5}, false: {40, 20}} {
		l := newLimits(clock)
		taken := func() (n int) {
			for l.wait("a", issue) == 0 {
				n++
			}
			return n
		}
		if n := taken(); n != want.burst {
			t.Errorf("issue %t: %d at once", issue, n)
		}
		clock.SetTime(clock.Now().Add(time.Second))
		if n := taken(); n != want.perSecond {
			t.Errorf("issue %t: %d a second", issue, n)
		}
		if l.wait("b", issue) > 0 {
			t.Errorf("issue %t: another run waits, too", issue)
		}
	}
}

// hanging does not answer for one lease.
type hanging struct{ secretProvider }

func (*hanging) revoke(ctx context.Context, lease *v1alpha1.CredentialLease, _ []byte) error {
	if lease.Spec.Credential == "hangs" {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// kept takes every record.
type kept struct{}

func (kept) Record(context.Context, extension.Record) error { return nil }

func TestOneLeaseThatHangsHoldsUpNoOther(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakePassiveClock(time.Now())
	live := fake.NewClientBuilder().WithScheme(scheme).Build()
	b := &service{
		namespace: "broker", log: zap.NewNop(), recorder: kept{}, clock: clock, live: live, retries: newRetries(),
		providers: map[v1alpha1.CredentialProvider]provider{v1alpha1.ProviderSecret: &hanging{}},
	}
	var wanted []*v1alpha1.CredentialLease
	for i := range 5 {
		lease := &v1alpha1.CredentialLease{ObjectMeta: metav1.ObjectMeta{Namespace: "broker", Name: fmt.Sprint("lease-", i), Finalizers: []string{v1alpha1.FinalizerLease}}}
		lease.Spec.Provider, lease.Spec.Credential, lease.Spec.ExpiresAt = v1alpha1.ProviderSecret, "fine", metav1.NewMicroTime(clock.Now().Add(time.Hour))
		if i == 0 {
			lease.Spec.Credential = "hangs"
		}
		if err := live.Create(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
		wanted = append(wanted, lease)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // the budget of an answer is longer
	defer cancel()
	queued, err := b.revokeAll(ctx, wanted, false)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) || len(queued) != 1 || queued[0] != "lease-0" {
		t.Errorf("%q are queued, %v", queued, err)
	}
}
