package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestTheBrokerAndTheProxySayWhatIsMissing(t *testing.T) {
	for _, c := range []struct{ args, part string }{
		{"broker manifests --webhook-namespace=broker --namespace=shop", "--broker-cert-file and --broker-key-file"},
		{"broker manifests --webhook-namespace=broker --broker-cert-file=a --broker-key-file=b", "--sandbox-namespaces: name the namespaces"},
		{"broker manifests --webhook-namespace=broker --sandbox-namespaces=shop --broker-cert-file=a --broker-key-file=b --broker-controller=*", "is not the name of one user"},
		{"egress-proxy", "--mode: must be cooperative or transparent"},
		{"egress-proxy --mode=transparent --deny-cidr=10.0.0.0", "--deny-cidr"},
		{"egress-proxy --mode=transparent --ca-cert-file=nowhere", "--ca-cert-file"},
		{"egress-proxy --mode=transparent --max-connections=0", "--max-connections"},
	} {
		cmd := newCommand()
		cmd.SetArgs(strings.Fields(c.args))
		cmd.SetOut(&bytes.Buffer{})
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), c.part) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

func TestTheManifestsOfTheBrokerHaveItsRights(t *testing.T) {
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetArgs(strings.Fields("broker manifests --webhook-namespace=broker --sandbox-namespaces=shop --broker-cert-file=a --broker-key-file=b --image=registry.example.com/sandbox:1"))
	cmd.SetOut(&out)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"tokenreviews", "credentialleases", "brokerpolicies", "secrets"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the manifests have no rights on %s", part)
		}
	}
}
