package certs_test

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/certs"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func newCA(t *testing.T, lifetime time.Duration) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA(now, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestALeafVerifiesForItsHostsAgainstTheBundle(t *testing.T) {
	ca := newCA(t, certs.DefaultCALifetime)
	leaf, err := ca.IssueLeaf([]string{"svc.ns.svc", "192.0.2.7", "2001:db8::1"}, now, certs.DefaultLeafLifetime)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.Bundle()) {
		t.Fatal("the bundle is not PEM")
	}
	verify := func(host string, at time.Time) error {
		_, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: at})
		return err
	}
	for _, host := range []string{"svc.ns.svc", "192.0.2.7", "2001:db8::1"} {
		if err := verify(host, now); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if err := verify("other.ns.svc", now); err == nil {
		t.Error("it verifies for a host that it is not for")
	}
	if err := verify("svc.ns.svc", now.Add(-30*time.Minute)); err != nil {
		t.Errorf("for an API server whose clock is half an hour behind: %v", err)
	}
	if err := verify("svc.ns.svc", now.Add(certs.DefaultLeafLifetime+time.Second)); err == nil {
		t.Error("it verifies after its end")
	}
}

func TestALeafNeverOutlivesItsCA(t *testing.T) {
	ca := newCA(t, time.Hour)
	leaf, err := ca.IssueLeaf([]string{"host"}, now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if leaf.Leaf.NotAfter.After(ca.NotAfter()) {
		t.Errorf("the leaf ends at %s, its CA at %s", leaf.Leaf.NotAfter, ca.NotAfter())
	}
}

func TestEachCertificateHasASerialNumberOfItsOwn(t *testing.T) {
	ca := newCA(t, time.Hour)
	serials := map[string]bool{}
	for range 100 {
		leaf, err := ca.IssueLeaf([]string{"host"}, now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		serials[leaf.Leaf.SerialNumber.String()] = true
	}
	if len(serials) != 100 {
		t.Errorf("100 leaves have %d serial numbers", len(serials))
	}
}

func TestACASurvivesWritingAndReading(t *testing.T) {
	ca := newCA(t, time.Hour)
	key, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	again, err := certs.ParseCA(ca.Bundle(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := again.IssueLeaf([]string{"host"}, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if due, reason := ca.LeafDue(leaf.Leaf, now); due {
		t.Errorf("what was read signs what was written does not know: %s", reason)
	}
}

func TestACAIsUsableWithinItsValidityOnly(t *testing.T) {
	ca := newCA(t, time.Hour)
	for name, test := range map[string]struct {
		at     time.Time
		reason string
	}{
		"now":                      {now, ""},
		"before it begins":         {now.Add(-2 * time.Hour), "the CA is not valid yet"},
		"at the moment of its end": {now.Add(time.Hour), "the CA has expired"},
		"a second before its end":  {now.Add(time.Hour - time.Second), ""},
	} {
		usable, reason := ca.Usable(test.at)
		if usable != (test.reason == "") || !strings.HasPrefix(reason, test.reason) {
			t.Errorf("%s: %t, %q", name, usable, reason)
		}
	}
}

func TestALeafIsDueAtTwoThirdsOfItsLife(t *testing.T) {
	ca, other := newCA(t, 24*time.Hour), newCA(t, 24*time.Hour)
	leaf, err := ca.IssueLeaf([]string{"host"}, now, 2*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	// The backdated hour does not count.
	renewal := now.Add(80 * time.Minute)
	for name, test := range map[string]struct {
		ca   *certs.CA
		leaf *x509.Certificate
		at   time.Time
		due  bool
	}{
		"a new one":                   {ca, leaf.Leaf, now, false},
		"just before":                 {ca, leaf.Leaf, renewal.Add(-time.Second), false},
		"at two thirds":               {ca, leaf.Leaf, renewal, true},
		"long over":                   {ca, leaf.Leaf, now.Add(24 * time.Hour), true},
		"after the CA has changed":    {other, leaf.Leaf, now, true},
		"when there is none":          {ca, nil, now, true},
		"when the clock was set back": {ca, leaf.Leaf, now.Add(-2 * time.Hour), true},
	} {
		if due, reason := test.ca.LeafDue(test.leaf, test.at); due != test.due || due != (reason != "") {
			t.Errorf("%s: due is %t because %q", name, due, reason)
		}
	}
}

func FuzzParseCA(f *testing.F) {
	ca, err := certs.NewCA(now, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	key, err := ca.KeyPEM()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ca.Bundle(), key)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), key)
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		ca, err := certs.ParseCA(cert, key)
		if (ca == nil) == (err == nil) {
			t.Errorf("got %v and %v", ca, err)
		}
	})
}
