package sessionsapi

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
)

const (
	// ConfigMapNamespace is that of ConfigMapName.
	ConfigMapNamespace = "kube-system"
	// ConfigMapName names the ConfigMap in which kube-apiserver says how its front proxy shows
	// that it is that, and who asks.
	ConfigMapName = "extension-apiserver-authentication"

	// trustTime is how long what it says is believed. It changes when the authority rotates.
	trustTime = time.Minute
	// retryTime is how often it is read because a certificate is of an unknown authority, or
	// because it could not be read.
	retryTime = 5 * time.Second
)

// errStranger is the error of a request that does not come from the front proxy.
var errStranger = errors.New("only the API server may ask here: use kubectl")

// front knows the API server's front proxy.
type front struct {
	// read returns the data of the ConfigMap.
	read func(context.Context) (map[string]string, error)
	now  func() time.Time

	mu     sync.Mutex
	known  *trust
	failed error
	tried  time.Time
}

// trust is what the ConfigMap says.
type trust struct {
	roots                            *x509.CertPool
	names                            []string
	users, uids, groups, extraPrefix []string
	at                               time.Time
}

// identify returns who asks. The error wraps errStranger if nobody says so who may.
func (f *front) identify(r *http.Request) (*authenticationv1.UserInfo, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, fmt.Errorf("%w: there is no client certificate", errStranger)
	}
	by, err := f.trust(r.Context(), trustTime)
	if err != nil {
		return nil, err
	}
	if err = by.verify(r.TLS.PeerCertificates, f.now()); err != nil {
		if by, err = f.trust(r.Context(), retryTime); err != nil {
			return nil, err
		}
		if err := by.verify(r.TLS.PeerCertificates, f.now()); err != nil {
			return nil, fmt.Errorf("%w: %w", errStranger, err)
		}
	}
	return by.user(r.Header)
}

// Trusts reports whether a certificate is that of the API server's front proxy, as far as is
// known. Who has it must have proved that they have its key.
func (s *Server) Trusts(ctx context.Context, chain []*x509.Certificate) bool {
	by, err := s.front.trust(ctx, trustTime)
	return err == nil && by.verify(chain, s.front.now()) == nil
}

// trust returns what the ConfigMap said at most so long ago.
func (f *front) trust(ctx context.Context, life time.Duration) (*trust, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if f.known != nil && now.Sub(f.known.at) < life {
		return f.known, nil
	}
	if f.failed != nil && now.Sub(f.tried) < retryTime {
		return nil, f.failed
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiTime) // a client that goes away is no failure
	defer cancel()
	f.tried = now
	data, err := f.read(ctx)
	if err == nil {
		f.known, err = parseTrust(data)
	}
	if f.failed = err; err != nil {
		f.failed = fmt.Errorf("ConfigMap %s/%s, which says who the API server's front proxy is: %w", ConfigMapNamespace, ConfigMapName, err)
		f.known = nil
		return nil, f.failed
	}
	f.known.at = now
	return f.known, nil
}

func parseTrust(data map[string]string) (*trust, error) {
	t := &trust{roots: x509.NewCertPool()}
	if !t.roots.AppendCertsFromPEM([]byte(data["requestheader-client-ca-file"])) {
		return nil, errors.New("requestheader-client-ca-file has no certificate: the API server has no aggregation layer (--requestheader-client-ca-file)")
	}
	for _, list := range []struct {
		key  string
		into *[]string
	}{
		{"requestheader-allowed-names", &t.names},
		{"requestheader-username-headers", &t.users},
		{"requestheader-uid-headers", &t.uids},
		{"requestheader-group-headers", &t.groups},
		{"requestheader-extra-headers-prefix", &t.extraPrefix},
	} {
		text := data[list.key]
		if text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(text), list.into); err != nil {
			return nil, fmt.Errorf("%s: %w", list.key, err)
		}
	}
	if len(t.users) == 0 {
		return nil, errors.New("requestheader-username-headers is empty: nobody would say who asks")
	}
	return t, nil
}

// verify returns an error unless a certificate is that of the front proxy. The handshake has
// proved that the client has its key.
func (t *trust) verify(chain []*x509.Certificate, now time.Time) error {
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{
		Roots: t.roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return err
	}
	if name := chain[0].Subject.CommonName; len(t.names) > 0 && !slices.Contains(t.names, name) {
		return fmt.Errorf("the certificate is that of %.100q, which is not the front proxy", name)
	}
	return nil
}

// user returns who asks.
func (t *trust) user(header http.Header) (*authenticationv1.UserInfo, error) {
	user := &authenticationv1.UserInfo{Username: firstOf(header, t.users), UID: firstOf(header, t.uids), Extra: map[string]authenticationv1.ExtraValue{}}
	if user.Username == "" {
		return nil, fmt.Errorf("%w: it does not say for whom", errStranger)
	}
	for _, name := range t.groups {
		user.Groups = append(user.Groups, header.Values(name)...)
	}
	for _, prefix := range t.extraPrefix {
		for name, values := range header {
			if len(name) <= len(prefix) || !strings.EqualFold(name[:len(prefix)], prefix) {
				continue
			}
			key := strings.ToLower(name[len(prefix):])
			if unescaped, err := url.PathUnescape(key); err == nil {
				key = unescaped
			}
			user.Extra[key] = append(user.Extra[key], values...)
		}
	}
	return user, nil
}

func firstOf(header http.Header, names []string) string {
	for _, name := range names {
		if value := header.Get(name); value != "" {
			return value
		}
	}
	return ""
}
