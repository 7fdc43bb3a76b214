package health

import (
	"errors"
	"testing"
)

func TestAReplicaDoesNotWaitForItselfThroughItsService(t *testing.T) {
	const call = `Internal error occurred: failed calling webhook "probe.x.admitkit.dev": failed to call webhook: Post "https://x.y.svc:443/probe?timeout=5s": `
	for text, reached := range map[string]bool{
		call + "dial tcp 10.96.131.2:443: connect: connection refused":                                               false,
		call + "dial tcp 10.96.131.2:443: i/o timeout":                                                               false,
		call + "context deadline exceeded":                                                                           false,
		call + "net/http: request canceled (Client.Timeout exceeded while awaiting headers)":                         false,
		call + `no endpoints available for service "x"`:                                                              false,
		call + "tls: failed to verify certificate: x509: certificate signed by unknown authority":                    true,
		`configmaps is forbidden: User "x" cannot create resource "configmaps" in API group "" in the namespace "y"`: true,
	} {
		probed := &Prober{err: errors.New(text)}
		if err := probed.Ready(true); (err != nil) != reached {
			t.Errorf("through a Service, after %q: got %v", text, err)
		}
		if err := probed.Ready(false); err == nil {
			t.Errorf("without a Service nothing is to be waited for, and it is ready after %q", text)
		}
	}
	if err := new(Prober).Ready(true); err == nil {
		t.Error("it is ready before the first probe")
	}
}
