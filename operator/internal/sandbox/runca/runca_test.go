package runca_test

import (
	"crypto/elliptic"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
)

func TestTheAuthorityOfARunSignsForTwoDaysAndNoOtherAuthority(t *testing.T) {
	now := time.Now()
	root, err := runca.NewRoot(now)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := runca.NewRun(root, "agents", "fix", now)
	if err != nil {
		t.Fatal(err)
	}
	above, _, err := root.Parse()
	if err != nil {
		t.Fatal(err)
	}
	authority, key, err := pair.Parse()
	if err != nil {
		t.Fatal(err)
	}
	if key.Curve != elliptic.P256() || !authority.IsCA || !authority.MaxPathLenZero || authority.KeyUsage&x509.KeyUsageCertSign == 0 || authority.NotAfter.Sub(now).Round(time.Minute) != 48*time.Hour {
		t.Errorf("%+v", authority)
	}
	if err := authority.CheckSignatureFrom(above); err != nil {
		t.Error(err)
	}
	old, err := runca.NewRoot(now.Add(-runca.RootLife + time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runca.NewRun(old, "agents", "fix", now); err == nil || !strings.Contains(err.Error(), "renew it") {
		t.Errorf("a run has an authority whose root ends before it: %v", err)
	}
}
