package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/afero"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/certs"
)

// writeLeaf puts a new leaf into a folder, like cert-manager's Secret when mounted.
func writeLeaf(t *testing.T, fs afero.Fs) *tls.Certificate {
	t.Helper()
	ca := newCA(t, time.Hour)
	leaf, err := ca.IssueLeaf([]string{"host"}, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: leaf.Certificate[0]},
		"tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := afero.WriteFile(fs, "certs/"+name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := afero.WriteFile(fs, "certs/ca.crt", ca.Bundle(), 0o600); err != nil {
		t.Fatal(err)
	}
	return leaf
}

func TestFilesAreReadAgainWhenTheyChange(t *testing.T) {
	fs, clock := afero.NewMemMapFs(), clocktesting.NewFakeClock(now)
	served := func(files *certs.Files) string {
		cert, err := files.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(cert.Certificate[0])
	}
	core, logs := observer.New(zap.InfoLevel)
	first := writeLeaf(t, fs)
	files, err := certs.NewFiles(certs.FilesOptions{FS: fs, Dir: "certs", Clock: clock, Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	second := writeLeaf(t, fs)
	if served(files) != string(first.Certificate[0]) {
		t.Error("the files are read for each handshake")
	}
	clock.Step(10 * time.Second)
	if served(files) != string(second.Certificate[0]) {
		t.Error("the new certificate is not served after ten seconds")
	}
	if err := afero.WriteFile(fs, "certs/tls.crt", []byte("half a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	clock.Step(10 * time.Second)
	if served(files) != string(second.Certificate[0]) {
		t.Error("a broken file ends the service")
	}
	if said := logs.FilterLevelExact(zap.ErrorLevel).All(); len(said) != 1 || !strings.Contains(fmt.Sprint(said[0].ContextMap()["error"]), "serving certificate") {
		t.Errorf("of the broken file it says %v", said)
	}
}

func TestAFolderThatCannotServeIsRefusedWithTheFilesName(t *testing.T) {
	for name, missing := range map[string]string{
		"no certificate": "tls.crt", "no key": "tls.key", "no bundle": "ca.crt",
	} {
		t.Run(name, func(t *testing.T) {
			fs := afero.NewMemMapFs()
			writeLeaf(t, fs)
			if err := fs.Remove("certs/" + missing); err != nil {
				t.Fatal(err)
			}
			if _, err := certs.NewFiles(certs.FilesOptions{FS: fs, Dir: "certs", Clock: clocktesting.NewFakeClock(now)}); err == nil || !strings.Contains(err.Error(), missing) {
				t.Errorf("got %v, want an error that names %s", err, missing)
			}
		})
	}
}
