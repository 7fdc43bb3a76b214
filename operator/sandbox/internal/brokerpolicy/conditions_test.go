package brokerpolicy

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestADiscoveryIsLookedAtASecondAfterItsEnd(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	for sentence, test := range map[string]struct {
		end    time.Duration
		reason string
		again  time.Duration
	}{
		"none":              {0, v1alpha1.DiscoveryNone, 0},
		"one that lasts":    {time.Hour, v1alpha1.DiscoveryActive, time.Hour + time.Second},
		"one that is over":  {-time.Second, v1alpha1.DiscoveryExpired, 0},
		"one that ends now": {time.Nanosecond, v1alpha1.DiscoveryActive, time.Second + time.Nanosecond},
	} {
		policy := &v1alpha1.BrokerPolicy{}
		if test.end != 0 {
			policy.Spec.EgressDiscovery = &v1alpha1.EgressDiscovery{ExpiresAt: metav1.NewTime(now.Add(test.end))}
		}
		again := setDiscovery(policy, now)
		active, expired := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionDiscoveryModeActive), meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionDiscoveryExpired)
		if again != test.again || active.Reason != test.reason || expired.Reason != test.reason ||
			(active.Status == metav1.ConditionTrue) != (test.reason == v1alpha1.DiscoveryActive) || (expired.Status == metav1.ConditionTrue) != (test.reason == v1alpha1.DiscoveryExpired) {
			t.Errorf("%s: again after %s, %+v, %+v", sentence, again, active, expired)
		}
	}
}
