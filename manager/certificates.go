package manager

import (
	"context"
	"fmt"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/webhook/registration"
)

// newSource returns the source of serving certificates that the options choose. It
// publishes its bundle in the registration, unless that is nil: this process then
// does not register.
func (m *Manager) newSource(r *registration.Registration) (certs.Source, error) {
	o := &m.options
	log := o.Logger.Desugar()
	secrets := m.clientset.CoreV1().Secrets(o.WebhookNamespace)
	var publish certs.Publish
	if r != nil {
		publish = func(ctx context.Context, bundle func(context.Context) ([]byte, error)) (bool, error) {
			return m.reconcileRegistration(ctx, r, bundle)
		}
	}
	switch {
	case o.Certificates.Dir != "":
		files, err := certs.NewFiles(certs.FilesOptions{Dir: o.Certificates.Dir, Publish: publish, Clock: m.clock, Logger: log})
		if err != nil {
			return nil, fmt.Errorf("Certificates.Dir: %w", err)
		}
		return files, nil
	case o.Certificates.LeafSecretName != "" && (r == nil || o.Registration.ForeignCABundle):
		return certs.NewLeaf(certs.LeafOptions{
			Secrets: secrets, Namespace: o.WebhookNamespace, Name: o.Certificates.LeafSecretName, Publish: publish, Clock: m.clock, Logger: log,
		}), nil
	}
	return certs.NewAuthority(certs.Options{
		Secrets:          secrets,
		Namespace:        o.WebhookNamespace,
		Name:             o.SetupCertificateName,
		LeafName:         o.Certificates.LeafSecretName,
		Labels:           m.labels(),
		Hosts:            o.hosts(),
		ReadOnly:         !*o.SetupCertificate,
		CALifetime:       o.Certificates.CALifetime,
		LeafLifetime:     o.Certificates.LeafLifetime,
		PropagationDelay: o.Certificates.PropagationDelay,
		Publish:          publish,
		OnChange:         m.certificateChanged,
		Clock:            m.clock,
		Logger:           log,
	}), nil
}

func (m *Manager) certificateChanged(change certs.Change) {
	// Every replica signs leaves all the time: that is not worth an Event.
	if change.Step != certs.LeafIssued {
		m.event(string(change.Step), change.Reason)
	}
	if m.options.Certificates.OnChange != nil {
		m.options.Certificates.OnChange(change)
	}
}
