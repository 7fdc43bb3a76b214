package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
	"github.com/admitkit/admitkit/manager/internal/paths"
	"github.com/admitkit/admitkit/webhook"
)

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

// newPaths returns what signs the paths of the webhooks and opens them; nil if nobody does.
// r is nil in a process that does not register.
func (m *Manager) newPaths(r *registration.Registration) *paths.Paths {
	o := &m.options
	name := o.pathsSecret()
	if name == "" {
		return nil
	}
	options := paths.Options{
		Secrets: m.clients.Core.Secrets(o.WebhookNamespace), Namespace: o.WebhookNamespace, Name: name, Labels: m.labels(),
		Delay: cmp.Or(o.Certificates.PropagationDelay, certs.DefaultPropagationDelay), Clock: m.clock, Logger: o.Logger.Desugar(),
	}
	if r == nil {
		return paths.New(options)
	}
	options.Registers = true
	if len(r.Webhooks) > 0 && m.probes() {
		options.Probe = m.probe(r)
	}
	made := paths.New(options)
	r.Paths = made
	return made
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
	modesChanged := m.modes.change(r)
	before := r.Conversions.States()
	repairs, err := r.Reconcile(ctx, m.clients.Admissionregistration.RESTClient(), bundle)
	for _, repair := range repairs {
		if repair.Kind == registration.PathChanged { // nobody did anything
			m.options.Logger.Debugw("webhooks registered at other paths", "object", repair.Object)
			continue
		}
		if modesChanged { // the operator did
			m.options.Logger.Infow("webhooks registered in other modes", "object", repair.Object)
			m.event("Registered", repair.Object+" written: the modes of extensions have changed")
			continue
		}
		registrationRepairs.WithLabelValues(repair.Kind).Inc()
		times := m.repairs.Tell(repair, time.Now())
		if times == 0 {
			m.options.Logger.Debugw("webhooks registered again", "object", repair.Object, "reason", repair.Kind, "detail", repair.Detail)
			continue
		}
		m.options.Logger.Infow("webhooks registered", "object", repair.Object, "reason", repair.Kind, "detail", repair.Detail, "times", times, "webhooks", len(r.Webhooks))
		m.event("Registered", registration.RepairText(repair, times))
	}
	m.tellConversions(before, r.Conversions.States())
	m.tellSuperseded(err)
	if err != nil && ctx.Err() == nil {
		lastError.WithLabelValues("registration").SetToCurrentTime()
	}
	return len(repairs) > 0, err
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
		m.warning("Superseded", err.Error())
	}
}

// notSuperseded is a check of readiness.
func (m *Manager) notSuperseded(*http.Request) error {
	if err := m.superseded.Load(); err != nil {
		return *err
	}
	return nil
}

// conversions returns the stanzas of the converters.
func (m *Manager) conversions() *registration.Conversions {
	all := make([]registration.Conversion, len(m.parts.Converters))
	for i, c := range m.parts.Converters {
		all[i] = registration.Conversion{CRD: c.CRD, Versions: c.Names()}
		conversionRegistered.WithLabelValues(c.CRD).Add(0)
	}
	return registration.NewConversions(all)
}

// tellConversions says what has changed about the conversions since before.
func (m *Manager) tellConversions(before, after map[string]registration.ConversionState) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		was, is := before[name], after[name]
		registered := 0.0
		if is.Registered {
			registered = 1
		}
		conversionRegistered.WithLabelValues(name).Set(registered)
		if is.Missing && !was.Missing {
			message := fmt.Sprintf("CustomResourceDefinition %s does not exist: its conversion is registered when it does", name)
			m.options.Logger.Warnw(message, "crd", name)
			m.warning("NoCustomResourceDefinition", message)
		}
		if len(is.Unconverted) > 0 && !slices.Equal(was.Unconverted, is.Unconverted) {
			message := fmt.Sprintf("CustomResourceDefinition %s has versions that the converter does not know, so requests for them fail: %s", name, strings.Join(is.Unconverted, ", "))
			m.options.Logger.Warnw(message, "crd", name)
			m.warning("VersionNotConverted", message)
		}
	}
}

// crdResource is the resource of CustomResourceDefinitions.
var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// watchCRD watches the metadata of CustomResourceDefinitions, which can be large themselves.
func (m *Manager) watchCRD(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	client, err := metadata.NewForConfigAndClient(metadata.ConfigFor(m.options.RESTConfig), m.httpClient)
	if err != nil {
		return nil, err
	}
	return client.Resource(crdResource).Watch(ctx, options)
}

// releaseConversions gives the CustomResourceDefinitions up; see
// [registration.Registration.ReleaseConversions].
func (m *Manager) releaseConversions(ctx context.Context) error {
	if len(m.parts.Converters) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiserver.Timeout)
	defer cancel()
	stay, err := m.registration(nil).ReleaseConversions(ctx, m.clients.Admissionregistration.RESTClient())
	for _, name := range stay {
		m.options.Logger.Warnw("spec.conversion stays in the CustomResourceDefinition, and nobody answers it any more: until another installation converts, its objects are read and written in the stored version alone; "+
			"with the strategy None, fields would be lost", "crd", name)
	}
	return err
}
