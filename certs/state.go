package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The keys of the CA Secret. All values are PEM.
const (
	// CertKey and KeyKey are the CA that signs.
	CertKey = "ca.crt"
	KeyKey  = "ca.key"
	// NextCertKey and NextKeyKey are its successor during a rotation: trusted
	// already, but not yet signing.
	NextCertKey = "next.crt"
	NextKeyKey  = "next.key"
	// PreviousCertKey holds the certificates of predecessors, whose leaves may still
	// be in use. Their keys are gone.
	PreviousCertKey = "previous.crt"
)

// The annotations of the CA Secret. Times are RFC 3339.
const (
	// reasonAnnotation says why the Secret was last written.
	reasonAnnotation = "admitkit.dev/reason"
	// NotBeforeAnnotation and NotAfterAnnotation are the validity of the CA that
	// signs.
	NotBeforeAnnotation = "admitkit.dev/not-before"
	NotAfterAnnotation  = "admitkit.dev/not-after"
	// publishedAnnotation is the time since which every client trusts the next CA.
	publishedAnnotation = "admitkit.dev/published"
	// promotedAnnotation is the time since which the CA signs, if it has
	// predecessors.
	promotedAnnotation = "admitkit.dev/promoted"
	// RotateAnnotation requests a rotation, [RotateNow] or [RotateEmergency]:
	//
	//	kubectl annotate secret NAME admitkit.dev/rotate=now
	RotateAnnotation = "admitkit.dev/rotate"
	// RotationAnnotation says why a rotation that was requested has not begun, and until
	// when it waits.
	RotationAnnotation = "admitkit.dev/rotation"
)

// The values of RotateAnnotation.
const (
	// RotateNow requests a rotation in which no call fails. It waits until the last leaf
	// of the previous CA has expired.
	RotateNow = "now"
	// RotateEmergency withdraws the CA, its predecessors and its successor at once, for a
	// key that has leaked. Calls fail between the moment at which an API server learns of
	// the new bundle and the moment at which each server has a new leaf.
	RotateEmergency = "emergency"
)

// state is the content of the Secret. It is immutable; the methods named with... return
// the state after a step.
type state struct {
	current  *CA
	next     *CA
	previous []*x509.Certificate
	// published and promoted are zero if they are not known.
	published, promoted time.Time
	// rotate is the value of RotateAnnotation: "" without a request.
	rotate string
	// said is why the request waits, as the Secret says it.
	said string
	// problem says what is wrong with the next CA in the Secret; next is nil then.
	problem string
}

// parseState reads a Secret. It fails if the current CA is malformed. It ignores a next
// CA and predecessors that are.
func parseState(secret *corev1.Secret) (*state, error) {
	current, err := parseCA(secret.Data[CertKey], secret.Data[KeyKey])
	if err != nil {
		return nil, err
	}
	s := &state{
		current: current, previous: parseCerts(secret.Data[PreviousCertKey]),
		rotate: requested(secret), said: secret.Annotations[RotationAnnotation],
	}
	if len(secret.Data[NextCertKey])+len(secret.Data[NextKeyKey]) > 0 {
		if s.next, err = parseCA(secret.Data[NextCertKey], secret.Data[NextKeyKey]); err != nil {
			s.problem = "the next CA is malformed"
		}
	}
	// A malformed time is zero, which means unknown to every decision.
	s.published, _ = time.Parse(time.RFC3339Nano, secret.Annotations[publishedAnnotation])
	s.promoted, _ = time.Parse(time.RFC3339Nano, secret.Annotations[promotedAnnotation])
	return s, nil
}

// requested returns the rotation that is requested. Replicas of earlier versions leave a
// request without a value, which means now.
func requested(secret *corev1.Secret) string {
	value, there := secret.Annotations[RotateAnnotation]
	if there && value == "" {
		return RotateNow
	}
	return value
}

func parseCerts(data []byte) []*x509.Certificate {
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return certs
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			certs = append(certs, cert)
		}
	}
}

// writeTo puts the state into a Secret. It keeps foreign keys and annotations.
func (s *state) writeTo(secret *corev1.Secret, reason string) error {
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	key, err := s.current.KeyPEM()
	if err != nil {
		return err
	}
	var next, nextKey []byte
	if s.next != nil {
		next = s.next.Bundle()
		if nextKey, err = s.next.KeyPEM(); err != nil {
			return err
		}
	}
	for name, value := range map[string][]byte{
		CertKey: s.current.Bundle(), KeyKey: key, NextCertKey: next, NextKeyKey: nextKey, PreviousCertKey: encodeCerts(s.previous),
	} {
		set(secret.Data, name, value, len(value) > 0)
	}
	set(secret.Annotations, reasonAnnotation, reason, true)
	set(secret.Annotations, NotBeforeAnnotation, s.current.cert.NotBefore.Format(time.RFC3339), true)
	set(secret.Annotations, NotAfterAnnotation, s.current.cert.NotAfter.Format(time.RFC3339), true)
	set(secret.Annotations, publishedAnnotation, s.published.Format(time.RFC3339Nano), !s.published.IsZero())
	set(secret.Annotations, promotedAnnotation, s.promoted.Format(time.RFC3339Nano), !s.promoted.IsZero())
	set(secret.Annotations, RotateAnnotation, s.rotate, s.rotate != "")
	set(secret.Annotations, RotationAnnotation, s.said, s.said != "")
	return nil
}

// set sets an entry, or removes it.
func set[V any](entries map[string]V, key string, value V, there bool) {
	if there {
		entries[key] = value
	} else {
		delete(entries, key)
	}
}

func encodeCerts(certs []*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, cert := range certs {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	}
	return b.Bytes()
}

// bundle returns what clients should trust: the same bytes in every replica.
func (s *state) bundle() []byte {
	certs := []*x509.Certificate{s.current.cert}
	if s.next != nil {
		certs = append(certs, s.next.cert)
	}
	return encodeCerts(append(certs, s.previous...))
}

// nextDue decides whether to make the next CA. During a rotation no other one begins.
func (s *state) nextDue(now time.Time) (due bool, reason string) {
	switch {
	case s.problem != "":
		return true, s.problem
	case s.next != nil:
		if usable, reason := s.next.usable(now); !usable {
			return true, "the next CA cannot be used: " + reason
		}
		return false, ""
	case len(s.previous) > 0:
		return false, ""
	case s.rotate == RotateNow:
		return true, "the annotation " + RotateAnnotation + " requests it"
	}
	return s.current.renewalDue(now)
}

// waits returns what to say of a request to rotate that nextDue does not fulfil, or "".
// The label of metrics ends at the colon.
func (s *state) waits(leafLifetime time.Duration) (step Step, message string) {
	remedy := fmt.Sprintf("; if a key has leaked, %s=%s withdraws it at once, and calls fail meanwhile", RotateAnnotation, RotateEmergency)
	switch {
	case s.rotate == "":
		return "", ""
	case s.rotate != RotateNow:
		return RotationInvalid, fmt.Sprintf("the annotation %s has an unknown value: %.40q; set %s or %s, with kubectl annotate --overwrite",
			RotateAnnotation, s.rotate, RotateNow, RotateEmergency)
	case s.next != nil:
		return RotationWaits, fmt.Sprintf("a rotation waits: another one is under way, and the next begins %s after its CA signs%s", leafLifetime, remedy)
	case len(s.previous) > 0:
		return RotationWaits, fmt.Sprintf("a rotation waits: until %s, when the last serving certificate of the previous CA has expired%s",
			s.dropTime(leafLifetime).UTC().Format(time.RFC3339), remedy)
	}
	return "", ""
}

// publishedDue decides whether to record that every client trusts the next CA. The
// caller has just seen that they do.
func (s *state) publishedDue(now time.Time) (due bool, reason string) {
	switch {
	case s.next == nil:
		return false, ""
	case s.published.IsZero():
		return true, "every client trusts the next CA"
	case s.published.After(now.Add(backdate)):
		return true, "the next CA was published by a clock that is ahead"
	}
	return false, ""
}

// promoteDue decides whether the next CA should sign: every client has had the delay to
// learn of it.
func (s *state) promoteDue(now time.Time, delay time.Duration) (due bool, reason string) {
	if s.next == nil || s.published.IsZero() || now.Before(s.published.Add(delay)) {
		return false, ""
	}
	if usable, _ := s.next.usable(now); !usable {
		return false, ""
	}
	return true, fmt.Sprintf("every client has trusted the next CA for %s", delay)
}

// dropDue decides whether clients should stop trusting the predecessors: the last leaf
// that one of them signed has expired.
func (s *state) dropDue(now time.Time, leafLifetime time.Duration) (due bool, reason string) {
	if len(s.previous) == 0 {
		return false, ""
	}
	if now.Before(s.dropTime(leafLifetime)) {
		return false, ""
	}
	if !s.promoted.IsZero() && !now.Before(s.promoted.Add(leafLifetime)) {
		return true, "the last leaf of the previous CA has expired"
	}
	return true, "the previous CA has expired"
}

// dropTime returns the end of the last leaf that a predecessor signed, or of the last
// predecessor if that is earlier.
func (s *state) dropTime(leafLifetime time.Duration) time.Time {
	var end time.Time
	for _, cert := range s.previous {
		if cert.NotAfter.After(end) {
			end = cert.NotAfter
		}
	}
	if leaves := s.promoted.Add(leafLifetime); !s.promoted.IsZero() && leaves.Before(end) {
		return leaves
	}
	return end
}

// wake returns the moment when the next step is due, or latest if that is earlier.
func (s *state) wake(latest time.Time, delay, leafLifetime time.Duration) time.Time {
	earlier := func(t time.Time) {
		if t.Before(latest) {
			latest = t
		}
	}
	switch {
	case s.next != nil && !s.published.IsZero():
		earlier(s.published.Add(delay))
	case s.next == nil && len(s.previous) == 0:
		earlier(renewal(s.current.cert))
	}
	if len(s.previous) > 0 && !s.promoted.IsZero() {
		earlier(s.promoted.Add(leafLifetime))
	}
	return latest
}

func (s *state) withNext(next *CA) *state {
	return &state{current: s.current, next: next, previous: s.previous, promoted: s.promoted}
}

func (s *state) withSaid(message string) *state {
	after := *s
	after.said = message
	return &after
}

func (s *state) withPublished(now time.Time) *state {
	after := *s
	after.published = now
	return &after
}

func (s *state) withPromotion(now time.Time) *state {
	return &state{current: s.next, previous: append([]*x509.Certificate{s.current.cert}, s.previous...), promoted: now, rotate: s.rotate}
}

func (s *state) withoutPrevious() *state {
	after := *s
	after.previous, after.promoted = nil, time.Time{}
	return &after
}
