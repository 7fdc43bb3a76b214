package certs_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/afero"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/admitkit/admitkit/certs"
)

func bundleOf(t *testing.T, source certs.Source) []byte {
	t.Helper()
	bundle, err := source.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	return bundle
}

func TestALeafForAnotherServerVerifiesAgainstThePublishedBundleThroughRotations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &trust{}
		a, _ := newAuthority(fake.NewClientset().CoreV1().Secrets("ns"), func(o *certs.Options) {
			rotating(p, nil)(o)
			o.CALifetime, o.LeafLifetime = time.Hour, 10*time.Minute
		})
		serve, err := a.ForHosts("other.ns.svc", "192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := serve(nil); err == nil {
			t.Error("there is a certificate before there is a CA")
		}
		for end := time.Now().Add(3 * time.Hour); time.Now().Before(end); time.Sleep(20 * time.Second) {
			if err := a.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			cert, err := serve(nil)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(p.bundle)
			for _, host := range []string{"other.ns.svc", "192.0.2.1"} {
				if _, err := cert.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: time.Now()}); err != nil {
					t.Fatal(err)
				}
			}
			if again, _ := serve(nil); again != cert {
				t.Fatal("each handshake signs a leaf of its own")
			}
		}
	})
}

func TestWithoutTheCAsKeyAnotherServerGetsTheSameLeafIfItHasTheName(t *testing.T) {
	fs := afero.NewMemMapFs()
	writeLeaf(t, fs)
	files, err := certs.NewFiles(certs.FilesOptions{FS: fs, Dir: "certs"})
	if err != nil {
		t.Fatal(err)
	}
	secrets := fake.NewClientset().CoreV1().Secrets("ns")
	registrar, _ := newAuthority(secrets, func(o *certs.Options) { o.LeafName = "leaf" })
	leaf := certs.NewLeaf(certs.LeafOptions{Secrets: secrets, Namespace: "ns", Name: "leaf"})
	late, err := leaf.ForHosts("other") // it cannot know yet
	if err != nil {
		t.Fatal(err)
	}
	if err := registrar.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := leaf.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := late(nil); err == nil || !strings.Contains(err.Error(), "Secret ns/leaf") {
		t.Errorf("got %v, want an error that names the Secret", err)
	}
	for from, source := range map[string]certs.Source{"certs": files, "Secret ns/leaf": leaf} {
		serve, err := source.ForHosts("host")
		if err != nil {
			t.Fatal(err)
		}
		got, err := serve(nil)
		want, _ := source.GetCertificate(nil)
		if err != nil || got != want {
			t.Errorf("%s: got another certificate, error %v", from, err)
		}
		if _, err := source.ForHosts("host", "other"); err == nil || !strings.Contains(err.Error(), from) || !strings.Contains(err.Error(), "other") {
			t.Errorf("%s: got %v, want an error that names the source and the host", from, err)
		}
	}
}

func TestASourceThatSignsNothingPublishesItsBundleToo(t *testing.T) {
	fs := afero.NewMemMapFs()
	writeLeaf(t, fs)
	p := &trust{}
	files, err := certs.NewFiles(certs.FilesOptions{FS: fs, Dir: "certs", Publish: p.publish})
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p.bundle, bundleOf(t, files)) {
		t.Error("the files' bundle is not published")
	}
	synctest.Test(t, func(t *testing.T) {
		secrets := fake.NewClientset().CoreV1().Secrets("ns")
		p := &trust{}
		leaf := certs.NewLeaf(certs.LeafOptions{Secrets: secrets, Namespace: "ns", Name: "leaf", Publish: p.publish})
		registrar, _ := newAuthority(secrets, func(o *certs.Options) { o.LeafName = "leaf" })
		if err := registrar.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		trigger := make(chan struct{}, 1)
		go func() { defer close(ended); leaf.Run(ctx, trigger) }()
		trigger <- struct{}{}
		synctest.Wait()
		if !bytes.Equal(p.bundle, bundleOf(t, leaf)) {
			t.Error("the Secret's bundle is not published")
		}
		cancel()
		<-ended
	})
}
