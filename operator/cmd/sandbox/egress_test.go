package main

import (
	"bytes"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
)

func TestTheBrokerAndTheProxySayWhatIsMissing(t *testing.T) {
	for _, c := range []struct{ args, part string }{
		{"broker manifests --webhook-namespace=broker --namespace=shop --broker-cert-file=a", "--broker-cert-file and --broker-key-file"},
		{"broker manifests --webhook-namespace=broker --namespace=shop --broker-cert-file=a --broker-key-file=b --broker-serving-name=c", "ServingNames"},
		{"egress-proxy --probe --address=127.0.0.1:1", "connection refused"},
		{"broker manifests --webhook-namespace=broker --broker-cert-file=a --broker-key-file=b", "--sandbox-namespaces: name the namespaces"},
		{"broker manifests --webhook-namespace=broker --sandbox-namespaces=shop --broker-cert-file=a --broker-key-file=b --broker-controller=*", "is not the name of one user"},
		{"broker manifests --webhook-namespace=broker --sandbox-namespaces=shop --broker-source-connections=2000", "SourceConnections: 2000 is not from 1 to 1024"},
		{"egress-proxy", "--mode: must be cooperative or transparent"},
		{"egress-proxy --mode=transparent --deny-cidr=10.0.0.0", "--deny-cidr"},
		{"egress-proxy --mode=transparent --ca-cert-file=nowhere", "--ca-cert-file"},
		{"egress-proxy --mode=transparent --upstream-ca-file=nowhere", "--upstream-ca-file"},
		{"egress-proxy --mode=transparent --upstream-ca-file=egress_test.go", "--upstream-ca-file: egress_test.go: no certificate in it"},
		{"egress-proxy --mode=transparent --max-connections=0", "--max-connections"},
		{"egress-proxy --mode=transparent --ca-cert-file=egress_test.go --ca-key-file=egress_test.go", "--broker-url"},
		{"egress-proxy --mode=transparent --ca-cert-file=egress_test.go --ca-key-file=egress_test.go --hosts=api.example.com", "--hosts: must be a list of names in JSON"},
		{"egress-proxy --mode=transparent --ca-cert-file=egress_test.go --ca-key-file=egress_test.go --hosts=[]", "CA: there is no certificate"},
	} {
		cmd := newCommand()
		cmd.SetArgs(strings.Fields(c.args))
		cmd.SetOut(&bytes.Buffer{})
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), c.part) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

func TestTheProxyAcceptsServersOfPrivateAuthoritiesToo(t *testing.T) {
	authority, file := testkit.NewClientCA(t), filepath.Join(t.TempDir(), "ca.crt")
	authority.Write(t, file)
	leaf, err := x509.ParseCertificate(authority.Issue(t, "git.example.com", x509.ExtKeyUsageServerAuth, "git.example.com").Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	pool, err := roots(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "git.example.com"}); err != nil {
		t.Errorf("a server of the private authority is not accepted: %v", err)
	}
	internet, err := x509.SystemCertPool()
	if err != nil {
		t.Fatal(err)
	}
	if pool.Equal(internet) || pool.Equal(x509.NewCertPool()) || !internet.AppendCertsFromPEM(readFile(t, file)) || !pool.Equal(internet) {
		t.Error("the authorities of the internet are not those besides it")
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestTheManifestsOfTheBrokerHaveItsRights(t *testing.T) {
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetArgs(strings.Fields("broker manifests --webhook-namespace=broker --sandbox-namespaces=shop --image=registry.example.com/sandbox:1"))
	cmd.SetOut(&out)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"tokenreviews", "credentialleases", "brokerpolicies", "secrets", "sandbox-broker-ca", "kind: Service\n", "port: 8443"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the manifests have no rights on %s", part)
		}
	}
}

// The policy of the installation alone would close the port at which runs and their controller ask.
func TestTheNetworkPolicyOfTheBrokerOpensItsPort(t *testing.T) {
	output, err := execute(t, strings.Fields("broker manifests --webhook-namespace=broker --sandbox-namespaces=shop --image=x --network-policy --broker-address=:9000")...)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(output, "name: sandbox-broker-port\n  namespace: broker\nspec:\n  ingress:\n  - ports:\n    - port: 9000\n      protocol: TCP\n  podSelector:\n    matchLabels:\n      app.kubernetes.io/name: sandbox-broker-reconciler\n") {
		t.Errorf("nobody reaches the broker:\n%s", output)
	}
}

// The image is the program alone.
func TestTheProgramTrustsTheAuthoritiesOfTheInternetWhereTheSystemHasNone(t *testing.T) {
	const inside = "SANDBOX_TEST_WITHOUT_ROOTS"
	if os.Getenv(inside) != "" {
		pool, err := x509.SystemCertPool()
		if err != nil || pool.Equal(x509.NewCertPool()) {
			t.Errorf("there are no authorities: %v", err)
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inside+"=yes", "SSL_CERT_FILE=/nowhere", "SSL_CERT_DIR=/nowhere")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
