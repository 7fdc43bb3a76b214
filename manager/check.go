package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/registration"
)

// checkInterval is the pause after a check that failed.
const checkInterval = time.Second

// CheckRegistered returns an error unless the API server calls the webhooks of this
// installation: both webhook configurations, and the conversion stanzas of the
// CustomResourceDefinitions that it converts, are what these extensions and options make,
// and a request through the API server comes back through a webhook. It tries again
// until ctx ends. It logs, too, why a rotation of the CA waits that was requested, if it has
// the right to get the CA's Secret. The request is a dry run that creates a ConfigMap in the manager's own
// namespace. CheckRegistered needs the right to create one, and to get the
// configurations and CustomResourceDefinitions, by name; it changes nothing. It has no
// object to convert, so of a program that only converts it compares the stanzas alone.
func (m *Manager) CheckRegistered(ctx context.Context) error {
	defer m.httpClient.CloseIdleConnections()
	if err := m.checkRegistered(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

func (m *Manager) checkRegistered(ctx context.Context) error {
	if err := m.added(); err != nil {
		return err
	}
	webhooks, err := m.webhooks()
	if err != nil {
		return err
	}
	switch {
	case !m.answers(webhooks):
		return errors.New("no extension answers admissions or converts: there is nothing to check")
	case len(webhooks) > 0 && !*m.options.Registration.Probe:
		return errors.New("Registration.Probe: without a probe nothing tells whether the webhooks answer")
	}
	if err := errors.Join(m.options.callable(), m.options.hasPort()); err != nil {
		return err
	}
	m.reportRotation(ctx)
	r := m.registration(webhooks)
	client, probe := m.clients.Admissionregistration.RESTClient(), m.probe(r)
	if len(webhooks) == 0 {
		probe = func(context.Context) error { return nil }
	}
	var last error
	err = wait.PollUntilContextCancel(ctx, checkInterval, true, func(ctx context.Context) (bool, error) {
		found := errors.Join(r.Verify(ctx, client), probe(ctx))
		// The end of the time says nothing; what was found before does.
		if last == nil || !over(ctx) {
			last = found
		}
		if errors.Is(found, registration.ErrForeign) {
			return false, found // that will not change
		}
		return found == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	switch {
	case err != nil:
	case len(webhooks) == 0:
		m.options.Logger.Infow("the conversions are registered; whether they answer, nothing was sent to find out", "conversions", len(m.parts.Converters))
	default:
		m.options.Logger.Infow("the webhooks are registered, and answer", "webhooks", len(webhooks), "conversions", len(m.parts.Converters))
	}
	return err
}

// reportRotation logs why a rotation of the CA that was requested has not begun. The
// metadata of the CA's Secret says it, so the key is not read; RBAC has no lesser right,
// and without it this is unknown.
func (m *Manager) reportRotation(ctx context.Context) {
	o := &m.options
	if o.Certificates.Dir != "" || o.Registration.ForeignCABundle {
		return
	}
	log := o.Logger.With("secret", o.WebhookNamespace+"/"+o.SetupCertificateName)
	all, err := metadata.NewForConfigAndClient(metadata.ConfigFor(o.RESTConfig), m.httpClient)
	if err == nil {
		var secret *metav1.PartialObjectMetadata
		secret, err = all.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(o.WebhookNamespace).Get(ctx, o.SetupCertificateName, metav1.GetOptions{})
		if err == nil && secret.Annotations[certs.RotationAnnotation] != "" {
			log.Warn(secret.Annotations[certs.RotationAnnotation])
		}
	}
	switch {
	case apierrors.IsForbidden(err): // as by helm test
		log.Info("whether a rotation of the CA waits is unknown, without the right to get its Secret")
	case err != nil:
		log.Infow("whether a rotation of the CA waits is unknown", "error", err)
	}
}

// over says that the time of ctx is over. Its deadline tells that before its timer does, and a client with a rate limiter
// refuses to begin then.
func over(ctx context.Context) bool {
	deadline, limited := ctx.Deadline()
	return ctx.Err() != nil || limited && !time.Now().Before(deadline)
}
