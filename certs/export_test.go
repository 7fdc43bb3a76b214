package certs

import (
	"context"
	"crypto/x509"
	"time"
)

// What tests look into.
const PublishedAnnotation = publishedAnnotation

var ParseCA = parseCA

func (c *CA) Usable(now time.Time) (usable bool, reason string) { return c.usable(now) }

func (c *CA) LeafDue(leaf *x509.Certificate, now time.Time) (due bool, reason string) {
	return c.leafDue(leaf, now)
}

func (c *CA) NotAfter() time.Time { return c.notAfter() }

func (a *Authority) Ensure(ctx context.Context) error { return a.ensure(ctx) }
