package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/webhook"
)

// webhooks groups the handlers: those of the same scope share a webhook.
func (m *Manager) webhooks() ([]*webhook.Webhook, error) {
	return webhook.Group(m.parts.Handlers, webhook.Defaults{
		Namespace:     m.options.Namespace,
		PodSelector:   m.options.PodSelector,
		FailurePolicy: *m.options.FailurePolicy,
		Protected:     m.protected(),
	})
}

// answers reports whether a server is needed: for webhooks or for conversions.
func (m *Manager) answers(webhooks []*webhook.Webhook) bool {
	return len(webhooks)+len(m.parts.Converters) > 0
}

// protected returns the namespaces without which there is no cluster or no manager.
func (m *Manager) protected() []string {
	return []string{m.options.WebhookNamespace, metav1.NamespaceSystem, "kube-node-lease"}
}

// registration describes the webhook configurations of this installation.
func (m *Manager) registration(webhooks []*webhook.Webhook) *registration.Registration {
	o := &m.options
	for _, kind := range registration.Kinds { // alerts watch the counter from zero on
		registrationRepairs.WithLabelValues(kind)
	}
	r := &registration.Registration{
		Name:        o.configurationName(),
		Domain:      o.configurationName() + ".admitkit.dev",
		Labels:      m.labels(),
		Annotations: o.Registration.Annotations,
		Owner:       o.Registration.Owner,
		Webhooks:    webhooks,
		Conversions: m.conversions(),
		Target: registration.Target{
			ServiceName: o.ServiceName, ServiceNamespace: o.WebhookNamespace, ServicePort: o.Serving.ServicePort,
			Host: o.Serving.AdvertiseHost, Port: o.Port,
		},
		ForeignBundle:     o.Registration.ForeignCABundle,
		IgnoreUntilProbed: o.Registration.IgnoreUntilProbed,
		Probed:            m.prober.HasPassed,
		Tolerated:         o.Registration.tolerated,
		Started:           m.clock.Now(),
	}
	if *o.Registration.Probe {
		r.ProbeNamespace = o.WebhookNamespace
	}
	return r
}

// labels are on every object that the manager creates.
func (m *Manager) labels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/managed-by": "admitkit",
		"admitkit.dev/fingerprint":     m.options.OperatorFingerprint,
	}
}

// checkOwner reports another installation of the same name. Any other problem is
// reported by a later step.
func (m *Manager) checkOwner(ctx context.Context, r *registration.Registration) error {
	if err := r.Check(ctx, m.clients.Admissionregistration.RESTClient()); errors.Is(err, registration.ErrForeign) {
		return err
	}
	return nil
}

// reconcileRegistration repairs the webhook configurations, and logs and counts
// what it repaired.
func (m *Manager) reconcileRegistration(ctx context.Context, r *registration.Registration, bundle func(context.Context) ([]byte, error)) (changed bool, err error) {
	before := r.Conversions.States()
	repairs, err := r.Reconcile(ctx, m.clients.Admissionregistration.RESTClient(), bundle)
	for _, repair := range repairs {
		registrationRepairs.WithLabelValues(repair.Kind).Inc()
		times := m.repairs.tell(repair, time.Now())
		if times == 0 {
			m.options.Logger.Debugw("webhooks registered again", "object", repair.Object, "reason", repair.Kind, "detail", repair.Detail)
			continue
		}
		m.options.Logger.Infow("webhooks registered", "object", repair.Object, "reason", repair.Kind, "detail", repair.Detail, "times", times, "webhooks", len(r.Webhooks))
		m.event("Registered", repairText(repair, times))
	}
	m.tellConversions(before, r.Conversions.States())
	m.tellSuperseded(err)
	if err != nil && ctx.Err() == nil {
		lastError.WithLabelValues("registration").SetToCurrentTime()
	}
	return len(repairs) > 0, err
}

// repairsTold says what was repaired, once in a while for each cause.
type repairsTold struct {
	mu   sync.Mutex
	told map[cause]told
}

// cause is an object, and what was wrong with it.
type cause struct{ object, kind string }

// told is when it was last said, and how often it was repaired since.
type told struct {
	at    time.Time
	since int
}

// tellEvery is the time between two Events, and two log lines, of the same cause.
const tellEvery = time.Minute

// tell returns how often the cause was repaired, this time included, since that was last
// said; 0 if it is too early to say it again.
func (r *repairsTold) tell(repair registration.Repair, now time.Time) (times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.told == nil {
		r.told = map[cause]told{}
	}
	of := cause{repair.Object, repair.Kind}
	last, before := r.told[of]
	if before && now.Sub(last.at) < tellEvery {
		last.since++
		r.told[of] = last
		return 0
	}
	r.told[of] = told{at: now}
	return last.since + 1
}

// repairText is the message of an Event.
func repairText(repair registration.Repair, times int) string {
	text := fmt.Sprintf("%s written: %s was not as it should be", repair.Object, repair.Kind)
	if repair.Detail != "" {
		text += ": " + repair.Detail
	}
	if times > 1 {
		text += fmt.Sprintf(" (%d times since the last Event: somebody changes it again and again, and repairs are put off by up to %s)", times, registration.MaxPause)
	}
	return text
}

// tellSuperseded says so when another installation has taken the webhook configurations:
// this one is not called any more, and no longer ready.
func (m *Manager) tellSuperseded(err error) {
	if !errors.Is(err, registration.ErrForeign) {
		if err == nil {
			m.superseded.Store(nil)
		}
		return
	}
	if m.superseded.Swap(&err) == nil {
		m.options.Logger.Errorw("this process is not called any more: another installation has taken its webhook configurations", "error", err)
		m.event("Superseded", err.Error())
	}
}

// notSuperseded is a check of readiness.
func (m *Manager) notSuperseded(*http.Request) error {
	if err := m.superseded.Load(); err != nil {
		return *err
	}
	return nil
}
