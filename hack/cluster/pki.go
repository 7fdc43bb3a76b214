//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// lifetime of all certificates: no cluster for tests lives longer.
const lifetime = 30 * 24 * time.Hour

// authority signs the certificates of the cluster.
type authority struct {
	*cluster
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// newAuthority makes an authority and writes its certificate and key.
func (c *cluster) newAuthority(file, name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{cluster: c, key: key, certificate: &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}}
	self, err := a.issue(file, a.certificate, key)
	if err != nil {
		return nil, err
	}
	a.pem = self.certificate
	return a, nil
}

// writePKI makes the keys, certificates and kubeconfigs of all processes.
func (c *cluster) writePKI() error {
	a, err := c.newAuthority("ca", "kubernetes")
	if err != nil {
		return err
	}
	if err := c.writeFrontProxy(); err != nil {
		return err
	}
	serviceAccount, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if _, err := a.writeKey("service-account", serviceAccount); err != nil {
		return err
	}
	server := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	node := net.ParseIP(c.nodeIP())
	for name, certificate := range map[string]*x509.Certificate{
		"kube-apiserver": {
			Subject: pkix.Name{CommonName: "kube-apiserver"}, ExtKeyUsage: server,
			DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			IPAddresses: []net.IP{node, net.ParseIP(serviceIP), net.IPv4(127, 0, 0, 1)},
		},
		"kubelet":        {Subject: pkix.Name{CommonName: nodeName}, ExtKeyUsage: server, DNSNames: []string{nodeName}, IPAddresses: []net.IP{node}},
		"kubelet-client": user("kube-apiserver", "system:masters"),
	} {
		if _, err := a.sign(name, certificate); err != nil {
			return err
		}
	}
	for file, certificate := range map[string]*x509.Certificate{
		c.path("pki", "kube-controller-manager.kubeconfig"): user("system:kube-controller-manager"),
		c.path("pki", "kube-scheduler.kubeconfig"):          user("system:kube-scheduler"),
		c.path("pki", "kube-proxy.kubeconfig"):              user("system:kube-proxy"),
		c.path("pki", "kubelet.kubeconfig"):                 user("system:node:"+nodeName, "system:nodes"),
		c.kubeconfig():                                      user("admin", "system:masters"),
	} {
		if err := a.writeKubeconfig(file, certificate); err != nil {
			return err
		}
	}
	return nil
}

// writeFrontProxy makes what kube-apiserver shows to aggregated APIs. Its authority is one of
// its own: that of the cluster signs users, who must not be able to name others.
func (c *cluster) writeFrontProxy() error {
	a, err := c.newAuthority("front-proxy-ca", "front-proxy")
	if err != nil {
		return err
	}
	_, err = a.sign("front-proxy-client", user("front-proxy-client"))
	return err
}

// user is a certificate that says who a client is.
func user(name string, groups ...string) *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// pair is a certificate and its key, both as PEM.
type pair struct{ certificate, key []byte }

// sign makes a key and its certificate.
func (a *authority) sign(name string, certificate *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	certificate.KeyUsage = x509.KeyUsageDigitalSignature
	return a.issue(name, certificate, key)
}

func (a *authority) issue(name string, certificate *x509.Certificate, key *ecdsa.PrivateKey) (pair, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return pair{}, err
	}
	certificate.SerialNumber = serial
	certificate.NotBefore, certificate.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, certificate, a.certificate, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("certificate of %s: %w", name, err)
	}
	p := pair{certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	if p.key, err = a.writeKey(name, key); err != nil {
		return p, err
	}
	return p, write(a.path("pki", name+".crt"), p.certificate)
}

func (a *authority) writeKey(name string, key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return text, write(a.path("pki", name+".key"), text)
}

// writeKubeconfig writes one that holds all it needs.
func (a *authority) writeKubeconfig(file string, certificate *x509.Certificate) error {
	signed, err := a.sign("client-"+certificate.Subject.CommonName, certificate)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{Server: a.address(), CertificateAuthorityData: a.pem}
	config.AuthInfos["user"] = &clientcmdapi.AuthInfo{ClientCertificateData: signed.certificate, ClientKeyData: signed.key}
	config.Contexts["cluster"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "user"}
	config.CurrentContext = "cluster"
	return clientcmd.WriteToFile(*config, file)
}
