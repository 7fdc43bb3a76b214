package credentials

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// What a container was given is in no output, also if it is not known any more.
func TestCredentialsAreInNoOutput(t *testing.T) {
	run := &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Status: v1alpha1.SandboxRunStatus{Credentials: []v1alpha1.SandboxCredential{{Name: "a"}}}}
	g := &Given{}
	if got := g.Redact(run.UID, run.Status.Credentials, "open sesame"); got != redacted {
		t.Errorf("of what is not known: %q", got)
	}
	g.learn(run.UID, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sandbox-b" + owned.SuffixProxy}, Data: map[string][]byte{"ca.crt": []byte("open")}})
	g.learn(run.UID, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sandbox-b" + owned.SuffixCredentials}, Data: map[string][]byte{"A": []byte("sesame\n"), "B": []byte("e")}})
	if got := g.Redact(run.UID, run.Status.Credentials, "open sesame, Sesame"); got != "open ***, Sesame" {
		t.Errorf("%q", got)
	}
	g.Forget("u")
	if g.Knows(run.UID, run.Status.Credentials) {
		t.Error("it is still known")
	}
	if got := g.Redact("", nil, "open sesame"); got != "open sesame" {
		t.Errorf("of a run that was given nothing: %q", got)
	}
}
