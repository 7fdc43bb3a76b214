package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/registration"
)

// newSource returns the source of serving certificates that the options choose. It
// publishes its bundle in the registration, unless that is nil: this process then
// does not register.
func (m *Manager) newSource(r *registration.Registration) (certs.Source, error) {
	o := &m.options
	log := o.Logger.Desugar()
	secrets := m.clients.Core.Secrets(o.WebhookNamespace)
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

// errNoSource is the error of a handshake with a server of an extension.
var errNoSource = errors.New("there is no serving certificate: the manager has not started, or no extension answers admissions")

// GetServingCertificate returns a function for tls.Config with which an extension
// serves a port of its own. The certificate is valid for the hosts, which are DNS
// names and IP addresses, and verifies against the caBundle of the webhook
// configurations, through every rotation.
//
// By default the manager signs it. With Certificates.Dir, and in a server with
// Certificates.LeafSecretName, it has no CA to sign with: the extension then gets
// the webhooks' certificate, and an error if that is not valid for the hosts.
//
// Call it at any time. Before the manager starts, handshakes fail.
func (m *Manager) GetServingCertificate(hosts ...string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if len(hosts) == 0 {
		return nil, errors.New("a serving certificate needs a host: name at least one")
	}
	if source := m.certificates(); source != nil {
		return source.ForHosts(hosts...)
	}
	var mu sync.Mutex
	var serve func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		if serve == nil {
			source := m.certificates()
			if source == nil {
				return nil, errNoSource
			}
			var err error
			if serve, err = source.ForHosts(hosts...); err != nil {
				return nil, err
			}
		}
		return serve(hello)
	}, nil
}

// GetServingCA returns the certificates, in PEM, by which a client verifies what
// GetServingCertificate serves. It fails before the manager has a certificate.
func (m *Manager) GetServingCA() ([]byte, error) {
	source := m.certificates()
	if source == nil {
		return nil, errNoSource
	}
	return source.Bundle()
}

// certificates returns the source of serving certificates; nil before the start.
func (m *Manager) certificates() certs.Source {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.source
}
