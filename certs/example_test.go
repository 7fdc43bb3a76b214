package certs_test

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/admitkit/admitkit/certs"
)

// A CA for a caBundle, and a serving certificate signed by it.
func ExampleCA_IssueLeaf() {
	now := time.Now()
	ca, err := certs.NewCA(now, certs.DefaultCALifetime)
	if err != nil {
		panic(err)
	}
	leaf, err := ca.IssueLeaf([]string{"my-ext.my-system.svc"}, now, 24*time.Hour)
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Bundle()) // the caBundle of an API server
	_, err = leaf.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "my-ext.my-system.svc"})
	fmt.Println(err)
	// Output: <nil>
}
