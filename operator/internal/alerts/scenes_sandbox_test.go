package alerts

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox"
)

// sandboxed are the controller of runs, and a broker for runs of another namespace. Nobody
// keeps their records.
func sandboxed(s settings) []any {
	return []any{
		full{},
		sandbox.New(sandbox.Options{Namespaces: []string{s.Namespace}, Egress: egress.Options{Mode: egress.ModeOn}}),
		broker.New(broker.Options{
			Address: fmt.Sprintf("127.0.0.1:%d", s.Port), Namespaces: []string{s.Brokered}, Controllers: []string{"system:serviceaccount:" + s.Brokered + ":default"},
			GitHubURL: "https://127.0.0.1:1", // where nobody listens
		}),
	}
}

// full is an extension.Recorder that keeps nothing.
type full struct{}

var _ extension.Recorder = full{}

func (full) Record(context.Context, extension.Record) error { return errors.New("the disk is full") }

func unattendedRuns(s *stage) {
	with := settings{Extensions: "sandbox", Brokered: testkit.Namespace(s, admin), Port: freeport.For(s)}
	testkit.Create(s, admin, newRun(with.Brokered)) // which the controller would refuse
	s.start(with)
	s.scrape()
	leave(s, with.Brokered)
	askInVain(s, &with)
	testkit.Create(s, admin, &v1alpha1.SandboxRunTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "agent"}, Spec: v1alpha1.SandboxRunTemplateSpec{Image: "example.com/agent:1"},
	}, newRun(s.namespace))
	s.until(`admitkit_sandbox_unrecorded_total\{action="started"`)
	if err := admin.DeleteAllOf(s.Context(), &networkingv1.NetworkPolicy{}, client.InNamespace(s.namespace)); err != nil {
		s.Fatal(err)
	}
	s.until(`admitkit_sandbox_policies_restored_total`)
	testkit.Within(s, time.Minute, "a lease could not be ended five times", func(context.Context) bool {
		return s.count(`admitkit_broker_revocations_failed_total{provider="GitHubApp"}`) >= 5
	})
	s.scrape()
}

func newRun(namespace string) *v1alpha1.SandboxRun {
	return &v1alpha1.SandboxRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "run"},
		Spec:       v1alpha1.SandboxRunSpec{TemplateRef: v1alpha1.SandboxRunTemplateRef{Name: "agent"}, Prompt: "Say hello."},
	}
}

// leave makes the lease of a token that GitHub has made for a run which is gone.
func leave(s *stage, brokered string) {
	s.Helper()
	lease := &v1alpha1.CredentialLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: programs, GenerateName: "githubapp-", Finalizers: []string{v1alpha1.FinalizerLease}},
		Spec: v1alpha1.CredentialLeaseSpec{
			Run: v1alpha1.LeaseRun{Kind: v1alpha1.LeaseOfRun, Namespace: brokered, Name: "gone", UID: "gone"}, Policy: "policy", Credential: "github",
			Provider: v1alpha1.ProviderGitHubApp, ExpiresAt: metav1.NewMicroTime(time.Now().Add(time.Hour)),
		},
	}
	testkit.Create(s, admin, lease)
	testkit.Create(s, admin, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: programs, Name: lease.Name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(lease, v1alpha1.GroupVersion.WithKind("CredentialLease"))},
		},
		Data: map[string][]byte{"handle": []byte("a token")},
	})
}

// askInVain asks the broker for a credential, as the controller does. It is not issued,
// because that is not recorded.
func askInVain(s *stage, with *settings) {
	s.Helper()
	testkit.Create(s, admin, &v1alpha1.BrokerPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: with.Brokered, Name: "policy"},
		Spec: v1alpha1.BrokerPolicySpec{AppliesToTemplates: []string{"*"}, Grants: v1alpha1.BrokerGrants{Credentials: []v1alpha1.CredentialGrant{{
			Name: "model", Secret: &v1alpha1.SecretKey{Name: "model", Key: "key"},
			Delivery: v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{Accepted: true, Reason: "a test of what nobody records"}},
		}}}},
	})
	body := marshal(s, protocol.IssueRequest{Run: &protocol.Run{Namespace: with.Brokered, Name: "run"}, Name: "model"})
	bearer := token(s, with.Brokered, protocol.Audience, nil)
	asking := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}}
	defer asking.CloseIdleConnections()
	for range 5 {
		testkit.Succeeds(s, time.Minute, "the broker says that nobody records it", func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://127.0.0.1:%d%s", with.Port, protocol.PathIssue), bytes.NewReader(body))
			if err != nil {
				return err
			}
			request.Header.Set("Authorization", "Bearer "+bearer)
			response, err := asking.Do(request)
			if err != nil {
				return err
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusServiceUnavailable {
				return errors.New(response.Status)
			}
			return nil
		})
	}
}
