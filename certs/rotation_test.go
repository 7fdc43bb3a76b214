package certs_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/admitkit/admitkit/certs"
)

// trust holds what clients trust, in place of webhook configurations.
type trust struct {
	mu     sync.Mutex
	bundle []byte
	writes int
	away   bool
}

func (p *trust) publish(ctx context.Context, bundle func(context.Context) ([]byte, error)) (bool, error) {
	p.mu.Lock()
	before, away := p.writes, p.away
	p.mu.Unlock()
	want, err := bundle(ctx)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case away:
		return false, errors.New("the API server is away")
	case bytes.Equal(p.bundle, want):
		return false, nil
	case p.writes != before:
		return false, errors.New("conflict")
	}
	p.bundle = want
	p.writes++
	return true, nil
}

// verify does what a client does at each call.
func (p *trust) verify(a *certs.Authority) error {
	leaf, err := a.GetCertificate(nil)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.bundle)
	_, err = leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "host", Roots: roots, CurrentTime: time.Now()})
	return err
}

// rotating sets options with which much happens within hours.
func rotating(p *trust, changes func(certs.Change)) func(*certs.Options) {
	return func(o *certs.Options) {
		o.CALifetime, o.LeafLifetime, o.PropagationDelay = 12*time.Hour, 2*time.Hour, time.Minute
		o.Publish, o.OnChange = p.publish, changes
	}
}

func TestNoCallFailsInRotationsByReplicasWithoutALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secrets := fake.NewClientset().CoreV1().Secrets("ns")
		p := &trust{}
		var mu sync.Mutex
		steps := map[certs.Step]int{}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		replicas := make([]*certs.Authority, 3)
		for i := range replicas {
			replicas[i], _ = newAuthority(secrets, func(o *certs.Options) {
				rotating(p, func(c certs.Change) {
					mu.Lock()
					defer mu.Unlock()
					steps[c.Step]++
				})(o)
				o.CALifetime, o.LeafLifetime = time.Hour, 10*time.Minute
			})
			if err := errors.Join(replicas[i].Ensure(ctx), replicas[i].Check(ctx)); err != nil {
				t.Fatal(err)
			}
			group.Go(func() { replicas[i].Run(ctx, nil) })
		}
		for end := time.Now().Add(5 * time.Hour); time.Now().Before(end); time.Sleep(17 * time.Second) {
			for _, a := range replicas {
				if err := p.verify(a); err != nil {
					t.Fatalf("a call fails after %v: %v", steps, err)
				}
			}
		}
		cancel()
		group.Wait()
		if steps[certs.Created] != 1 || steps[certs.Promoted] < 5 || steps[certs.PreviousDropped] < 5 || steps[certs.LeafIssued] < 100 {
			t.Errorf("there were %v", steps)
		}
		if steps[certs.NextWritten] != steps[certs.NextTrusted] || steps[certs.NextWritten]-steps[certs.Promoted] > 1 {
			t.Errorf("a step was taken twice: %v", steps)
		}
	})
}

func TestTheNextCAIsNotPromotedBeforeItIsTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secrets := fake.NewClientset().CoreV1().Secrets("ns")
		p := &trust{}
		a, _ := newAuthority(secrets, rotating(p, nil))
		if err := a.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		annotate(t, secrets, certs.RotateAnnotation, "now")
		p.away = true
		for range 100 {
			if a.Check(t.Context()) == nil {
				t.Fatal("a bundle that cannot be published is no error")
			}
			time.Sleep(time.Minute)
		}
		p.away = false
		if err := a.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := secretOf(t, secrets)
		if before.Annotations[certs.PublishedAnnotation] == "" || len(before.Data[certs.NextCertKey]) == 0 {
			t.Fatalf("the next CA is not trusted yet: %v", before.Annotations)
		}
		time.Sleep(59 * time.Second)
		if err := a.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(secretOf(t, secrets).Data[certs.CertKey], before.Data[certs.CertKey]) {
			t.Error("it is promoted before the delay is over")
		}
		time.Sleep(2 * time.Second)
		if err := a.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := secretOf(t, secrets)
		if !bytes.Equal(after.Data[certs.CertKey], before.Data[certs.NextCertKey]) || !bytes.Equal(after.Data[certs.PreviousCertKey], before.Data[certs.CertKey]) {
			t.Error("it is not promoted after the delay")
		}
		if _, found := after.Annotations[certs.RotateAnnotation]; found {
			t.Error("the request to rotate is still there")
		}
		time.Sleep(2 * time.Hour)
		if err := a.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if secretOf(t, secrets).Data[certs.PreviousCertKey] != nil || bytes.Contains(p.bundle, before.Data[certs.CertKey]) {
			t.Error("the previous CA is trusted after its last leaf")
		}
	})
}

func TestARequestToRotateThatWaits(t *testing.T) {
	for sentence, test := range map[string]struct {
		value    string
		promoted bool // the rotation before it
		step     certs.Step
		want     string
	}{
		"says until when, after a rotation":       {certs.RotateNow, true, certs.RotationWaits, "a rotation waits: until 2000-01-01T02:01:00Z, when the last serving certificate of the previous CA has expired; "},
		"says until when, during a rotation":      {certs.RotateNow, false, certs.RotationWaits, "a rotation waits: another one is under way, and the next begins 2h0m0s after its CA signs; "},
		"says which values there are, of another": {"yes", true, certs.RotationInvalid, `the annotation admitkit.dev/rotate has an unknown value: "yes"; set now or emergency, with kubectl annotate --overwrite`},
	} {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				secrets := fake.NewClientset().CoreV1().Secrets("ns")
				p := &trust{}
				var said []certs.Change
				replicas := make([]*certs.Authority, 2)
				for i := range replicas {
					replicas[i], _ = newAuthority(secrets, rotating(p, func(c certs.Change) {
						if c.Step == certs.RotationWaits || c.Step == certs.RotationInvalid {
							said = append(said, c)
						}
					}))
				}
				check := func() {
					t.Helper()
					for _, a := range replicas {
						if err := a.Check(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
				}
				check()
				annotate(t, secrets, certs.RotateAnnotation, certs.RotateNow)
				check()
				if test.promoted {
					time.Sleep(time.Minute)
					check()
				}
				signs := secretOf(t, secrets).Data[certs.CertKey]
				annotate(t, secrets, certs.RotateAnnotation, test.value)
				for range 10 {
					check()
				}
				if len(said) != 1 || said[0].Step != test.step || !strings.HasPrefix(said[0].Reason, test.want) {
					t.Errorf("it is said: %v", said)
				}
				if secret := secretOf(t, secrets); !strings.HasPrefix(secret.Annotations[certs.RotationAnnotation], test.want) || secret.Annotations[certs.RotateAnnotation] != test.value {
					t.Errorf("the Secret says %v", secret.Annotations)
				}
				time.Sleep(time.Minute + 2*time.Hour)
				check()
				time.Sleep(time.Minute + 2*time.Hour)
				check()
				after := secretOf(t, secrets)
				if _, waits := after.Annotations[certs.RotationAnnotation]; waits != (test.step == certs.RotationInvalid) {
					t.Errorf("later the Secret says %v", after.Annotations)
				}
				if rotated := !bytes.Equal(after.Data[certs.CertKey], signs); rotated != (test.step == certs.RotationWaits) {
					t.Errorf("it rotated: %v", rotated)
				}
				delete(after.Annotations, certs.RotateAnnotation)
				if _, err := secrets.Update(t.Context(), after, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				check()
				if text, waits := secretOf(t, secrets).Annotations[certs.RotationAnnotation]; waits {
					t.Errorf("without a request the Secret says %s", text)
				}
			})
		})
	}
}

func TestAnEmergencyWithdrawsEveryCA(t *testing.T) {
	damage := func(s *corev1.Secret) { s.Data[certs.KeyKey] = nil }
	for sentence, test := range map[string]struct {
		rotated time.Duration // since a rotation was requested; 0 without one
		damage  func(*corev1.Secret)
	}{
		"that signs":                {0, nil},
		"that is next, too":         {time.Second, nil},
		"that was before, too":      {61 * time.Second, nil},
		"of a Secret that is empty": {61 * time.Second, func(s *corev1.Secret) { s.Data = nil }},
		"of a Secret without a key": {0, damage},
	} {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				secrets := fake.NewClientset().CoreV1().Secrets("ns")
				p := &trust{}
				replicas := make([]*certs.Authority, 3)
				for i := range replicas {
					replicas[i], _ = newAuthority(secrets, rotating(p, nil))
				}
				server := certs.NewAuthority(certs.Options{Secrets: secrets, Namespace: "ns", Name: "ca", Hosts: []string{"host"}, ReadOnly: true})
				replicas = append(replicas, server)
				check := func() {
					t.Helper()
					for _, a := range replicas {
						if err := errors.Join(a.Check(t.Context()), p.verify(a)); err != nil {
							t.Fatal(err)
						}
					}
				}
				check()
				if test.rotated > 0 {
					annotate(t, secrets, certs.RotateAnnotation, certs.RotateNow)
					check()
					time.Sleep(test.rotated)
					check()
				}
				leaked := bytes.Clone(p.bundle)
				if test.damage != nil {
					secret := secretOf(t, secrets)
					test.damage(secret)
					if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				annotate(t, secrets, certs.RotateAnnotation, certs.RotateEmergency)

				if err := errors.Join(replicas[0].Check(t.Context()), p.verify(replicas[0])); err != nil {
					t.Fatal(err)
				}
				secret := secretOf(t, secrets)
				if !bytes.Equal(p.bundle, secret.Data[certs.CertKey]) || secret.Data[certs.NextCertKey] != nil || secret.Data[certs.PreviousCertKey] != nil {
					t.Error("clients trust more than the new CA")
				}
				for block := range bytes.SplitAfterSeq(leaked, []byte("-----END CERTIFICATE-----\n")) {
					if len(block) > 0 && bytes.Contains(p.bundle, block) {
						t.Error("clients trust a CA from before")
					}
				}
				if _, again := secret.Annotations[certs.RotateAnnotation]; again {
					t.Error("the request is still there")
				}
				for i, a := range replicas[1:] {
					if p.verify(a) == nil {
						t.Errorf("replica %d, which has not looked yet, is trusted", i+1)
					}
				}
				check()
				if !bytes.Equal(p.bundle, secret.Data[certs.CertKey]) {
					t.Error("another replica has brought a CA back")
				}
			})
		})
	}
}

// A replica crashes right after a step and another one continues, until a crash has
// followed each step.
func TestAfterACrashBetweenAnyTwoStepsAnotherReplicaGoesOn(t *testing.T) {
	crashed := map[certs.Step]int{}
	every := 20 * time.Second
	if testing.Short() {
		every = time.Minute
	}
	for _, victim := range []certs.Step{certs.Created, certs.LeafIssued, certs.BundlePublished, certs.NextWritten, certs.NextTrusted, certs.Promoted, certs.PreviousDropped} {
		synctest.Test(t, func(t *testing.T) {
			secrets := fake.NewClientset().CoreV1().Secrets("ns")
			p := &trust{}
			witness, _ := newAuthority(secrets, rotating(p, nil))
			asked := false
			for end := time.Now().Add(4 * time.Hour); time.Now().Before(end); time.Sleep(every) {
				mortal, _ := newAuthority(secrets, rotating(p, func(c certs.Change) {
					if c.Step == victim {
						crashed[victim]++
						panic(victim)
					}
				}))
				func() {
					defer func() {
						if reason := recover(); reason != nil && reason != victim {
							panic(reason)
						}
					}()
					if err := mortal.Check(t.Context()); err != nil {
						t.Fatal(err)
					}
				}()
				if err := witness.Check(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := p.verify(witness); err != nil {
					t.Fatalf("after a crash at %s a call fails: %v", victim, err)
				}
				if !asked {
					annotate(t, secrets, certs.RotateAnnotation, "now")
					asked = true
				}
			}
			if s := secretOf(t, secrets); s.Data[certs.NextCertKey] != nil || s.Data[certs.PreviousCertKey] != nil {
				t.Errorf("after crashes at %s the rotation did not end: %v", victim, s.Annotations)
			}
		})
		if crashed[victim] == 0 {
			t.Errorf("no crash at %s", victim)
		}
	}
	t.Log(slices.Sorted(maps.Keys(crashed)))
}

func TestASecretThatIsLostWhileReplicasRunIsRestoredWithoutAFailedCall(t *testing.T) {
	garbage := []byte("garbage")
	for name, test := range map[string]struct {
		damage func(*corev1.Secret)
		reason string
	}{
		"deleted":            {nil, "the Secret does not exist"},
		"emptied":            {func(s *corev1.Secret) { s.Data = nil }, "the CA's certificate is missing"},
		"filled with rubble": {func(s *corev1.Secret) { s.Data[certs.CertKey], s.Data[certs.KeyKey] = garbage, garbage }, "the CA's certificate is not PEM"},
		"a foreign key": {func(s *corev1.Secret) {
			other, _ := certs.NewCA(time.Now(), time.Hour)
			s.Data[certs.KeyKey], _ = other.KeyPEM()
		}, "the CA's key does not belong to its certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				secrets := fake.NewClientset().CoreV1().Secrets("ns")
				p := &trust{}
				var restored []certs.Change
				replicas := make([]*certs.Authority, 3)
				for i := range replicas {
					replicas[i], _ = newAuthority(secrets, rotating(p, func(c certs.Change) {
						if c.Step == certs.Restored {
							restored = append(restored, c)
						}
					}))
					if err := replicas[i].Check(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				before := secretOf(t, secrets)
				if test.damage == nil {
					if err := secrets.Delete(t.Context(), "ca", metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
				} else {
					damaged := before.DeepCopy()
					test.damage(damaged)
					if _, err := secrets.Update(t.Context(), damaged, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				for range 60 {
					for _, a := range replicas {
						if err := errors.Join(a.Check(t.Context()), p.verify(a)); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(10 * time.Second)
				}
				if len(restored) != 1 || restored[0].Reason != test.reason {
					t.Errorf("restored %v, want once because %s", restored, test.reason)
				}
				if bytes.Equal(secretOf(t, secrets).Data[certs.KeyKey], before.Data[certs.KeyKey]) {
					t.Error("a key that others may have seen still signs after ten minutes")
				}
			})
		})
	}
}

func TestAfterALongSleepTheFirstHandshakeGetsAFreshLeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &trust{}
		a, _ := newAuthority(fake.NewClientset().CoreV1().Secrets("ns"), rotating(p, nil))
		if err := a.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Hour) // and no check meanwhile
		if err := p.verify(a); err != nil {
			t.Error(err)
		}
	})
}

func TestASuspendedReplicaCannotPublishWhatItKnewBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secrets := fake.NewClientset().CoreV1().Secrets("ns")
		p := &trust{}
		other, _ := newAuthority(secrets, rotating(p, nil))
		if err := other.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		stale, _ := newAuthority(secrets, func(o *certs.Options) {
			rotating(p, nil)(o)
			o.Publish = func(ctx context.Context, bundle func(context.Context) ([]byte, error)) (bool, error) {
				return p.publish(ctx, func(ctx context.Context) ([]byte, error) {
					was, err := bundle(ctx)
					annotate(t, secrets, certs.RotateAnnotation, "now")
					return was, errors.Join(err, other.Check(ctx))
				})
			}
		})
		if err := stale.Check(t.Context()); err == nil {
			t.Error("it published what was not so any more")
		}
		if !bytes.Contains(p.bundle, secretOf(t, secrets).Data[certs.NextCertKey]) {
			t.Error("the next CA is not trusted any more")
		}
	})
}

func TestAServerWithoutTheCAsKeyServesTheLeafOfTheRegistrar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secrets := fake.NewClientset().CoreV1().Secrets("ns")
		p := &trust{}
		registrars := make([]*certs.Authority, 2)
		for i := range registrars {
			registrars[i], _ = newAuthority(secrets, func(o *certs.Options) {
				rotating(p, nil)(o)
				o.LeafName, o.CALifetime, o.LeafLifetime = "leaf", time.Hour, 10*time.Minute
			})
			if err := registrars[i].Check(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		server := certs.NewLeaf(certs.LeafOptions{Secrets: secrets, Namespace: "ns", Name: "leaf"})
		if err := server.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		serials := map[string]bool{}
		for end := time.Now().Add(2 * time.Hour); time.Now().Before(end); time.Sleep(20 * time.Second) {
			for _, r := range registrars {
				if err := r.Check(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := server.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			leaf, err := server.GetCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(p.bundle)
			if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "host", Roots: roots, CurrentTime: time.Now()}); err != nil {
				t.Fatal(err)
			}
			serials[leaf.Leaf.SerialNumber.String()] = true
			if !bytes.Equal(bundleOf(t, server), p.bundle) {
				t.Fatal("the Secret's bundle is not what is published")
			}
		}
		if len(serials) < 17 || len(serials) > 24 {
			t.Errorf("in two hours there were %d leaves of ten minutes", len(serials))
		}
		secret, err := secrets.Get(t.Context(), "leaf", metav1.GetOptions{})
		if err != nil || secret.Type != corev1.SecretTypeTLS || strings.Contains(fmt.Sprint(secret.Data), "ca.key") {
			t.Errorf("the leaf's Secret is %v, %v", secret, err)
		}
	})
}

func secretOf(t *testing.T, secrets corev1client.SecretInterface) *corev1.Secret {
	t.Helper()
	secret, err := secrets.Get(t.Context(), "ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func annotate(t *testing.T, secrets corev1client.SecretInterface, key, value string) {
	t.Helper()
	secret := secretOf(t, secrets)
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, key, value)
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
