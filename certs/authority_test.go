package certs_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	clientgotesting "k8s.io/client-go/testing"

	"github.com/admitkit/admitkit/certs"
)

// These tests use a fake client, because they need faults or a clock that runs for
// months. The manager's tests use a real API server.
func newAuthority(secrets corev1client.SecretInterface, change func(*certs.Options)) (*certs.Authority, *observer.ObservedLogs) {
	core, logs := observer.New(zap.InfoLevel)
	options := certs.Options{Secrets: secrets, Namespace: "ns", Name: "ca", Hosts: []string{"host"}, Logger: zap.New(core)}
	if change != nil {
		change(&options)
	}
	return certs.NewAuthority(options), logs
}

func TestReplicasThatLoseTheRaceTakeTheWinnersCA(t *testing.T) {
	secrets := fake.NewClientset().CoreV1().Secrets("ns")
	var group sync.WaitGroup
	authorities := make([]*certs.Authority, 20)
	for i := range authorities {
		authorities[i], _ = newAuthority(secrets, nil)
		group.Go(func() {
			if err := authorities[i].Ensure(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, a := range authorities {
		if !bytes.Equal(bundleOf(t, a), bundleOf(t, authorities[0])) {
			t.Fatal("two replicas use different CAs")
		}
	}
}

func TestARaceThatIsAlwaysLostIsGivenUp(t *testing.T) {
	clientset := fake.NewClientset()
	clientset.PrependReactor("create", "secrets", func(clientgotesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, "ca")
	})
	a, _ := newAuthority(clientset.CoreV1().Secrets("ns"), nil)
	if err := a.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "Secret ns/ca") {
		t.Errorf("got %v, want an error that names the Secret", err)
	}
}

func TestASecretOfSomebodyElsesTypeIsNotWritten(t *testing.T) {
	for _, name := range []string{"ca", "leaf"} {
		secrets := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Type: corev1.SecretTypeServiceAccountToken}).CoreV1().Secrets("ns")
		a, _ := newAuthority(secrets, func(o *certs.Options) { o.LeafName = "leaf" })
		if err := a.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "Secret ns/"+name+" is of type kubernetes.io/service-account-token") {
			t.Errorf("%s: %v", name, err)
		}
		if secret, err := secrets.Get(t.Context(), name, metav1.GetOptions{}); err != nil || len(secret.Data) > 0 {
			t.Errorf("%s holds %v (%v)", name, secret.Data, err)
		}
	}
}

func TestAReadOnlyAuthorityWaitsForTheSecretAndWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientset := fake.NewClientset()
		secrets := clientset.CoreV1().Secrets("ns")
		server, _ := newAuthority(secrets, func(o *certs.Options) { o.ReadOnly = true })
		registrar, _ := newAuthority(secrets, nil)
		waited := make(chan error, 1)
		go func() { waited <- server.Wait(t.Context()) }()
		time.Sleep(time.Hour)
		for _, action := range clientset.Actions() {
			if action.GetVerb() != "get" {
				t.Errorf("it did %s", action.GetVerb())
			}
		}
		if err := registrar.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(bundleOf(t, server), bundleOf(t, registrar)) {
			t.Error("it does not use the registrar's CA")
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := secrets.Delete(ctx, "ca", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		late, _ := newAuthority(secrets, func(o *certs.Options) { o.ReadOnly = true })
		if err := late.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "Secret ns/ca") {
			t.Errorf("got %v, want the end of the context and what it waited for", err)
		}
	})
}

func TestThereIsNoCertificateBeforeTheFirstEnsure(t *testing.T) {
	a, _ := newAuthority(fake.NewClientset().CoreV1().Secrets("ns"), nil)
	if _, err := a.GetCertificate(nil); err == nil {
		t.Error("it serves what it cannot have")
	}
	if bundle, err := a.Bundle(); err == nil || bundle != nil {
		t.Error("it has a bundle without a CA")
	}
}

func TestTheKeyIsNeverLogged(t *testing.T) {
	secrets := fake.NewClientset().CoreV1().Secrets("ns")
	a, logs := newAuthority(secrets, nil)
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "ca"}, Data: map[string][]byte{
		certs.CertKey: []byte("not a certificate"), certs.KeyKey: []byte("secret key material"),
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, entry := range logs.All() {
		for _, value := range entry.ContextMap() {
			if text, ok := value.(string); ok && (strings.Contains(text, "secret key material") || strings.Contains(text, "PRIVATE")) {
				t.Errorf("a key is in the log: %v", entry)
			}
		}
	}
}
