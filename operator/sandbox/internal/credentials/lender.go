package credentials

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// Lender lends to the containers of runs what the broker issues, in Secrets, and equips proxies.
type Lender struct {
	// Own is the manager's own namespace, and UpstreamCA the ConfigMap in it with authorities that proxies accept of servers
	// besides those of the internet, "" for none.
	Own, UpstreamCA string
	// Broker is nil where nothing is lent any more.
	Broker *Broker
	// Given remembers what was lent.
	Given Given

	Live   client.Reader
	Writer client.Client
	Clock  clock.PassiveClock
	Log    *zap.Logger
}

// EquipProxy makes what the proxy of a run or a seed needs, by the metadata of what belongs to it: an authority of its own,
// and those that it trusts.
func (l *Lender) EquipProxy(ctx context.Context, of metav1.ObjectMeta, brokered bool) (err error) {
	ca := ""
	if brokered {
		if _, ca, err = l.Broker.Client(ctx); err != nil {
			return Obstacle(err)
		}
	}
	upstream, err := l.upstream(ctx)
	if err != nil {
		return Obstacle(err)
	}
	err = l.makeAuthority(ctx, of, ca, upstream)
	if apierrors.IsNotFound(err) { // the root
		return Obstacle(err)
	}
	return err
}

// Ask returns a client of the broker. An error is an [conditions.Obstacle].
func (l *Lender) Ask(ctx context.Context) (*protocol.Client, error) {
	asker, _, err := l.Broker.Client(ctx)
	if err != nil {
		return nil, Obstacle(err)
	}
	return asker, nil
}

// Obstacle makes of an error of the broker why the run waits, or why it fails.
func Obstacle(err error) error {
	refused := (*protocol.Error)(nil)
	if errors.As(err, &refused) && refused.Code.Fatal() {
		return &conditions.Obstacle{Condition: v1alpha1.ConditionCredentialsReady, Reason: string(refused.Code), Message: err.Error(), Fatal: true}
	}
	return &conditions.Obstacle{Condition: v1alpha1.ConditionBrokerReady, Reason: v1alpha1.BrokerUnavailable, Message: err.Error(), Poll: true, Refused: refused != nil}
}

// maxUpstream bounds the authorities that each run has a copy of.
const maxUpstream = 128 << 10

// upstream reads the authorities that proxies accept of servers besides those of the internet, "" for none.
func (l *Lender) upstream(ctx context.Context) (string, error) {
	if l.UpstreamCA == "" {
		return "", nil
	}
	key := client.ObjectKey{Namespace: l.Own, Name: l.UpstreamCA}
	config := &corev1.ConfigMap{}
	if err := l.Live.Get(ctx, key, config); err != nil {
		return "", fmt.Errorf("the authorities of servers: %w", err)
	}
	ca := config.Data[owned.KeyCA]
	if len(ca) > maxUpstream {
		return "", fmt.Errorf("the authorities of servers: ConfigMap %s: its key %s has %d bytes, at most %d are allowed", key, owned.KeyCA, len(ca), maxUpstream)
	}
	if _, err := cert.ParseCertsPEM([]byte(ca)); err != nil {
		return "", fmt.Errorf("the authorities of servers: ConfigMap %s, key %s: %w", key, owned.KeyCA, err)
	}
	return ca, nil
}

// The budget for revoking the leases of a run before it goes.
const (
	revokePerLease = 5 * time.Second
	maxRevoke      = 30 * time.Second
)

// revokeBudget is how long a run that goes waits for so many leases.
func revokeBudget(leases int) time.Duration {
	return min(revokePerLease*time.Duration(max(leases, 1)), maxRevoke)
}

// RevokeAll has the broker revoke all leases of a run or a seed, so many of which are known, and tells what is left to it.
func (l *Lender) RevokeAll(ctx context.Context, of *protocol.Run, known int, tell func(reason, note string)) {
	if l.Broker == nil || l.Broker.Namespace == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeBudget(known))
	defer cancel()
	asker, _, err := l.Broker.Client(ctx)
	var queued []string
	if err == nil {
		queued, err = asker.Revoke(ctx, protocol.RevokeRequest{Run: of})
	}
	switch {
	case err != nil:
		l.Log.Error("leases are not revoked yet: the broker revokes them by itself when it runs", zap.String("kind", of.Kind), zap.String("run", of.Namespace+"/"+of.Name), zap.Error(err))
		tell("RevokeFailed", "the broker revokes the leases when it can: "+err.Error())
	case len(queued) > 0:
		tell("RevokeQueued", "the broker still revokes CredentialLeases "+strings.Join(queued, ", "))
	}
}
