package certs

import (
	"context"
	"crypto/x509"
	"time"
)

// PublishedAnnotation and ParseCA are exported for the tests alone.
const PublishedAnnotation = publishedAnnotation

var ParseCA = parseCA

func (ca *CA) Usable(now time.Time) (usable bool, reason string) { return ca.usable(now) }

func (ca *CA) LeafDue(leaf *x509.Certificate, now time.Time) (due bool, reason string) {
	return ca.leafDue(leaf, now)
}

func (ca *CA) NotAfter() time.Time { return ca.notAfter() }

func (a *Authority) Ensure(ctx context.Context) error { return a.ensure(ctx) }
