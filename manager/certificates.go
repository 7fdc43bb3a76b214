package manager

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/spf13/afero"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/webhook/registration"
)

// certificates is where serving certificates come from, and what keeps them and
// the registration as they should be.
type certificates struct {
	getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	bundle         func() ([]byte, error)
	// wait returns when there is a certificate to serve.
	wait func(context.Context) error
	// check makes right, once, what is not: certificates and registration.
	check func(context.Context) error
	// run does so until the context ends, and when it is told to.
	run func(context.Context, <-chan struct{})
	// secret is what to watch; "" for none.
	secret string
}

// newCertificates chooses the source. r is nil in a process that does not
// register.
func (m *Manager) newCertificates(r *registration.Registration) (*certificates, error) {
	o := &m.options
	switch {
	case o.CertificateDir != "":
		return m.certificatesFromFiles(r)
	case o.LeafSecretName != "" && (r == nil || o.ForeignCABundle):
		return m.certificatesFromLeaf(r), nil
	}
	options := certs.Options{
		Secrets:          m.clientset.CoreV1().Secrets(o.WebhookNamespace),
		Namespace:        o.WebhookNamespace,
		Name:             o.SetupCertificateName,
		LeafName:         o.LeafSecretName,
		Labels:           m.labels(),
		Hosts:            o.hosts(),
		ReadOnly:         !*o.SetupCertificate,
		CALifetime:       o.CALifetime,
		LeafLifetime:     o.LeafLifetime,
		PropagationDelay: o.PropagationDelay,
		OnChange:         m.certificateChanged,
		Clock:            m.clock,
		Logger:           o.Logger.Desugar(),
	}
	if r != nil {
		options.Publish = func(ctx context.Context, bundle func(context.Context) ([]byte, error)) (bool, error) {
			return m.reconcileRegistration(ctx, r, bundle)
		}
	}
	authority := certs.NewAuthority(options)
	return &certificates{
		getCertificate: authority.GetCertificate,
		bundle:         func() ([]byte, error) { return authority.Bundle(), nil },
		wait:           authority.Wait,
		check:          authority.Check,
		run:            authority.Run,
		secret:         o.SetupCertificateName,
	}, nil
}

func (m *Manager) certificatesFromFiles(r *registration.Registration) (*certificates, error) {
	files, err := certs.NewFiles(afero.NewOsFs(), m.options.CertificateDir, m.clock, m.options.Logger.Desugar())
	if err != nil {
		return nil, fmt.Errorf("CertificateDir: %w", err)
	}
	source := &certificates{
		getCertificate: files.GetCertificate,
		bundle:         files.Bundle,
		wait:           func(context.Context) error { return nil },
	}
	m.keepRegistration(source, r)
	return source, nil
}

func (m *Manager) certificatesFromLeaf(r *registration.Registration) *certificates {
	o := &m.options
	leaf := certs.NewLeaf(certs.LeafOptions{
		Secrets: m.clientset.CoreV1().Secrets(o.WebhookNamespace), Namespace: o.WebhookNamespace, Name: o.LeafSecretName,
		Clock: m.clock, Logger: o.Logger.Desugar(),
	})
	source := &certificates{
		getCertificate: leaf.GetCertificate,
		bundle:         func() ([]byte, error) { return leaf.Bundle(), nil },
		wait:           leaf.Wait,
		secret:         o.LeafSecretName,
	}
	m.keepRegistration(source, r)
	keep := source.run
	source.run = func(ctx context.Context, trigger <-chan struct{}) {
		done := make(chan struct{})
		go func() { defer close(done); keep(ctx, nil) }()
		leaf.Run(ctx, trigger)
		<-done
	}
	return source
}

// registrationInterval is how often the registration is looked at where no
// authority does so.
const registrationInterval = 8 * time.Second

// keepRegistration makes check and run those of the registration alone.
func (m *Manager) keepRegistration(source *certificates, r *registration.Registration) {
	source.check = func(ctx context.Context) error {
		if r == nil {
			return nil
		}
		_, err := m.reconcileRegistration(ctx, r, func(context.Context) ([]byte, error) { return source.bundle() })
		return err
	}
	source.run = func(ctx context.Context, trigger <-chan struct{}) {
		ticker := time.NewTicker(registrationInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-trigger:
			case <-ticker.C:
			}
			if err := source.check(ctx); err != nil && ctx.Err() == nil {
				m.options.Logger.Errorw("registration check failed", "error", err)
			}
		}
	}
}

// reconcileRegistration repairs the webhook configurations and says what it did.
func (m *Manager) reconcileRegistration(ctx context.Context, r *registration.Registration, bundle func(context.Context) ([]byte, error)) (changed bool, err error) {
	repairs, err := r.Reconcile(ctx, m.clientset.AdmissionregistrationV1().RESTClient(), bundle)
	for _, repair := range repairs {
		registrationRepairs.WithLabelValues(repair.Kind).Inc()
		m.options.Logger.Infow("webhooks registered", "object", repair.Object, "reason", repair.Kind, "webhooks", len(r.Webhooks))
		m.event("Registered", fmt.Sprintf("%s written: %s was not as it should be", repair.Object, repair.Kind))
	}
	if err != nil && ctx.Err() == nil {
		lastError.WithLabelValues("registration").SetToCurrentTime()
	}
	return len(repairs) > 0, err
}

func (m *Manager) certificateChanged(change certs.Change) {
	// Each replica signs leaves, which is nobody's news.
	if change.Step != certs.LeafIssued {
		m.event(string(change.Step), change.Reason)
	}
	if m.options.OnCertificateChange != nil {
		m.options.OnCertificateChange(change)
	}
}

// keep runs the source, which watches tell of changes, until ctx ends.
func (m *Manager) keep(ctx context.Context, source *certificates, trigger chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	var watches []func(context.Context, metav1.ListOptions) (watch.Interface, error)
	var names []string
	if source.secret != "" {
		watches, names = append(watches, m.clientset.CoreV1().Secrets(m.options.WebhookNamespace).Watch), append(names, source.secret)
	}
	if *m.options.RegisterWebHook {
		admission, name := m.clientset.AdmissionregistrationV1(), m.options.configurationName()
		watches = append(watches, admission.MutatingWebhookConfigurations().Watch, admission.ValidatingWebhookConfigurations().Watch)
		names = append(names, name, name)
	}
	done := make(chan struct{})
	for i := range watches {
		go func() {
			m.watchOne(ctx, names[i], watches[i], trigger)
			done <- struct{}{}
		}()
	}
	source.run(ctx, trigger)
	cancel()
	for range watches {
		<-done
	}
}

// rewatchInterval is the pause before a watch that ended is begun anew. Nothing
// depends on it: the next look comes all the same.
const rewatchInterval = 2 * time.Second

// watchOne puts an entry into trigger whenever the object changes.
func (m *Manager) watchOne(ctx context.Context, name string, begin func(context.Context, metav1.ListOptions) (watch.Interface, error), trigger chan<- struct{}) {
	selector := metav1.SingleObject(metav1.ObjectMeta{Name: name})
	for ctx.Err() == nil {
		w, err := begin(ctx, selector)
		if err != nil {
			m.options.Logger.Debugw("watch not begun", "name", name, "error", err)
		} else {
			for open := true; open && ctx.Err() == nil; {
				select {
				case <-ctx.Done():
				case _, open = <-w.ResultChan():
					notify(trigger)
				}
			}
			w.Stop()
		}
		select {
		case <-ctx.Done():
		case <-time.After(rewatchInterval):
		}
	}
}

// notify does not wait: one entry says it all.
func notify(trigger chan<- struct{}) {
	select {
	case trigger <- struct{}{}:
	default:
	}
}

// logError is for what is tried again.
func (m *Manager) logError(part string, err error) {
	lastError.WithLabelValues(part).SetToCurrentTime()
	m.options.Logger.Desugar().Error(part+" failed", zap.Error(err))
}
