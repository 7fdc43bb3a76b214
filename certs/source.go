package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"k8s.io/utils/clock"
)

// Source provides the serving certificate and the bundle by which clients
// verify it: an [Authority], a [Leaf] or [Files].
type Source interface {
	// GetCertificate returns the certificate to serve. It has the form of the
	// field in tls.Config.
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ForHosts returns such a function for a server of other names. The
	// certificate comes from the same CA, so the same bundle verifies it.
	ForHosts(hosts ...string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error)
	// Bundle returns the certificates, in PEM, that a client should trust.
	Bundle() ([]byte, error)

	// Wait returns when there is a certificate to serve.
	Wait(ctx context.Context) error
	// Check takes every step that is due, once: it renews and publishes.
	Check(ctx context.Context) error
	// Run calls Check until ctx ends: at intervals, and whenever trigger has an
	// entry. A nil trigger is fine.
	Run(ctx context.Context, trigger <-chan struct{})
	// SecretName returns the name of the Secret whose changes should trigger a
	// check, or "" if there is none.
	SecretName() string
}

var (
	_ Source = (*Authority)(nil)
	_ Source = (*Leaf)(nil)
	_ Source = (*Files)(nil)
)

// Publish makes every client trust a bundle and reports whether that changed
// anything. It returns nil once it has read the bundle back.
//
// It must read what is published before it calls bundle, and write only if nobody
// else wrote in between. A replica that was suspended can then never publish an
// outdated bundle.
type Publish func(ctx context.Context, bundle func(context.Context) ([]byte, error)) (changed bool, err error)

// publishKnown publishes a bundle that this process does not write itself. It does
// nothing without a Publish.
func publishKnown(ctx context.Context, publish Publish, bundle func() ([]byte, error)) error {
	if publish == nil {
		return nil
	}
	_, err := publish(ctx, func(context.Context) ([]byte, error) { return bundle() })
	return err
}

// checkInterval is how often a source checks even if no watch reports a change,
// so that a lost event does no harm. It leaves a repair two seconds to be done
// within ten.
const checkInterval = 8 * time.Second

// repeat calls check at each interval and on each trigger, until ctx ends. It logs
// failures: the certificate at hand keeps serving.
func repeat(ctx context.Context, clock clock.WithTicker, log *zap.Logger, trigger <-chan struct{}, check func(context.Context) error) {
	ticker := clock.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-trigger:
		case <-ticker.C():
		}
		if err := check(ctx); err != nil && ctx.Err() == nil {
			log.Error("certificate check failed", zap.Error(err))
		}
	}
}

var (
	errNoCertificate = errors.New("there is no serving certificate yet")
	// errNotYet is why a process waits that does not write the Secret itself.
	errNotYet = errors.New("waiting for the registrar to write it")
)

// waitFor tries until the error is not errNotYet. It logs once that it waits.
func waitFor(ctx context.Context, clock clock.WithTicker, log *zap.Logger, message string, try func(context.Context) error) error {
	ticker := clock.NewTicker(time.Second)
	defer ticker.Stop()
	for logged := false; ; logged = true {
		err := try(ctx)
		if !errors.Is(err, errNotYet) {
			return err
		}
		if !logged {
			log.Info(message, zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		case <-ticker.C():
		}
	}
}

// onlyFor returns get for a server of these hosts, if the certificate is valid for
// all of them. While there is no certificate yet, each handshake finds out.
func onlyFor(hosts []string, from string, get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	checked := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := get(hello)
		if err != nil {
			return nil, err
		}
		for _, host := range hosts {
			if err := cert.Leaf.VerifyHostname(host); err != nil {
				return nil, fmt.Errorf("the certificate in %s: %w; add the name where it is issued, or let the manager run its own CA", from, err)
			}
		}
		return cert, nil
	}
	if _, err := checked(nil); err != nil && !errors.Is(err, errNoCertificate) {
		return nil, err
	}
	return checked, nil
}
