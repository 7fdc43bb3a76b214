package credentials

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestALeaseHasFiveSecondsToBeRevokedAndAllHaveThirty(t *testing.T) {
	for leases, want := range map[int]time.Duration{0: 5 * time.Second, 1: 5 * time.Second, 3: 15 * time.Second, 6: 30 * time.Second, 32: 30 * time.Second} {
		if got := revokeBudget(leases); got != want {
			t.Errorf("%d leases have %s", leases, got)
		}
	}
}

func TestASecretThatLastsIsLeftAlone(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	l := &Lender{Clock: clocktesting.NewFakePassiveClock(now)}
	for sentence, test := range map[string]struct {
		left  time.Duration
		value string
		lease string
		want  bool
	}{
		"all is there and lasts":        {leaseLeft + time.Second, "v", "A", true},
		"a lease that ends in 30 s":     {leaseLeft, "v", "A", false},
		"a value that somebody emptied": {time.Hour, "", "A", false},
		"a lease that nobody noted":     {time.Hour, "v", "B", false},
	} {
		leases := []v1alpha1.SandboxCredential{{Name: test.lease, ExpiresAt: metav1.NewTime(now.Add(test.left))}}
		if got := l.lasts(leases, &corev1.Secret{Data: map[string][]byte{"A": []byte(test.value)}}, []string{"A"}); got != test.want {
			t.Errorf("%s: %t", sentence, got)
		}
	}
}
