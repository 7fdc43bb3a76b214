package hook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/hook/protocol"
)

// connection returns how to connect to a webhook: as it says itself, or else as the first
// of the endpoints of its host does. The two are not mixed, as in Metacontroller.
func (d *definition) connection(address string, own v1alpha1.Connection) v1alpha1.Connection {
	u, err := url.Parse(address)
	if err != nil || own != (v1alpha1.Connection{}) {
		return own
	}
	for _, endpoint := range d.endpoints {
		if endpoint.Host != "" && strings.EqualFold(withPort(endpoint.Host, u.Scheme), withPort(u.Host, u.Scheme)) {
			return endpoint.Connection
		}
	}
	return own
}

// withPort adds to a host the port of its scheme, if it has none.
func withPort(host, scheme string) string {
	if u := (&url.URL{Host: host}); u.Port() == "" {
		port := map[string]string{"http": ":80", "https": ":443"}[scheme]
		return strings.TrimSuffix(host, ":") + port
	}
	return host
}

// file watches a Secret or a ConfigMap, of a namespace that the operator allows.
func (d *definition) file(resource string, ref *v1alpha1.KeyReference) (*lease, error) {
	if !slices.Contains(d.engine.options.Namespaces, ref.Namespace) {
		return nil, fault("NamespaceNotAllowed", fmt.Sprintf("%s %s/%s: the namespace is not in --hooks-namespaces", resource, ref.Namespace, ref.Name))
	}
	key := watchKey{schema.GroupVersionResource{Version: "v1", Resource: resource}, ref.Namespace, ref.Name, ""}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[key] == nil {
		l, err := d.engine.watches.acquire(key, func(_, _ *unstructured.Unstructured) {
			d.mu.Lock()
			changed := d.changed
			d.mu.Unlock()
			changed()
		})
		if err != nil {
			return nil, err
		}
		d.files[key] = l
	}
	return d.files[key], nil
}

// content returns what a key of a Secret or a ConfigMap has now.
func content(l *lease, resource string, ref *v1alpha1.KeyReference, key string) ([]byte, error) {
	where := fmt.Sprintf("%s %s/%s", resource, ref.Namespace, ref.Name)
	object := l.get(ref.Namespace, ref.Name)
	if object == nil {
		if !l.synced() {
			err := cmp.Or(l.lastError(), errWaiting)
			if apierrors.IsForbidden(err) { // not by a ClusterRole, which would be for every namespace
				return nil, fault("MissingRight", fmt.Sprintf("%s: %v. The operator's manifests have a Role for it in each of --hooks-namespaces: apply them again", where, err))
			}
			return nil, fmt.Errorf("%s has not been read yet: %w", where, err)
		}
		return nil, fmt.Errorf("%s does not exist", where)
	}
	text, ok, err := unstructured.NestedString(object.Object, "data", key)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s has no key %s", where, key)
	}
	if resource == "configmaps" {
		return []byte(text), nil
	}
	return base64.StdEncoding.DecodeString(text)
}

var errWaiting = errors.New("waiting for the API server")

// credential is a part of a connection that is in a Secret or a ConfigMap.
type credential struct {
	lease    *lease
	resource string
	ref      *v1alpha1.KeyReference
	keys     []string
	set      func(*protocol.Credentials, [][]byte) error
}

func (c *credential) read() (data [][]byte, err error) {
	for _, key := range c.keys {
		text, err := content(c.lease, c.resource, c.ref, key)
		if err != nil {
			return nil, err
		}
		data = append(data, text)
	}
	return data, nil
}

// references returns what a connection refers to.
func references(c v1alpha1.Connection) (all []credential) {
	ca := func(into *protocol.Credentials, data [][]byte) error { into.CA = data[0]; return nil }
	if b := c.CABundle; b != nil && b.SecretRef != nil {
		all = append(all, credential{resource: "secrets", ref: b.SecretRef, set: ca, keys: []string{cmp.Or(b.SecretRef.Key, "ca.crt")}})
	}
	if b := c.CABundle; b != nil && b.ConfigMapRef != nil {
		all = append(all, credential{resource: "configmaps", ref: b.ConfigMapRef, set: ca, keys: []string{cmp.Or(b.ConfigMapRef.Key, "ca.crt")}})
	}
	if a := c.Authorization; a != nil && a.SecretRef != nil {
		all = append(all, credential{resource: "secrets", ref: a.SecretRef, keys: []string{cmp.Or(a.SecretRef.Key, "token")}, set: func(into *protocol.Credentials, data [][]byte) error {
			into.Authorization = cmp.Or(a.Type, "Bearer") + " " + string(bytes.TrimSpace(data[0]))
			return nil
		}})
	}
	if b := c.BasicAuth; b != nil && b.SecretRef != nil {
		keys := []string{cmp.Or(b.UsernameKey, "username"), cmp.Or(b.PasswordKey, "password")}
		all = append(all, credential{resource: "secrets", ref: keyless(b.SecretRef), keys: keys, set: func(into *protocol.Credentials, data [][]byte) error {
			into.Authorization = "Basic " + base64.StdEncoding.EncodeToString(slices.Concat(bytes.TrimSpace(data[0]), []byte(":"), bytes.TrimSpace(data[1])))
			return nil
		}})
	}
	if t := c.ClientTLS; t != nil && t.SecretRef != nil {
		keys := []string{cmp.Or(t.CertKey, "tls.crt"), cmp.Or(t.PrivateKeyKey, "tls.key")}
		all = append(all, credential{resource: "secrets", ref: keyless(t.SecretRef), keys: keys, set: func(into *protocol.Credentials, data [][]byte) error {
			pair, err := tls.X509KeyPair(data[0], data[1])
			into.Certificate = &pair
			return err
		}})
	}
	return all
}

// keyless is a reference whose keys the field itself names.
func keyless(ref *v1alpha1.ObjectReference) *v1alpha1.KeyReference {
	return &v1alpha1.KeyReference{Name: ref.Name, Namespace: ref.Namespace}
}

// checkConnection says what of a connection contradicts itself, or cannot be.
func checkConnection(c v1alpha1.Connection) error {
	switch {
	case c.Authorization != nil && c.BasicAuth != nil:
		return errors.New("authorization and basicAuth: choose one")
	case c.Authorization != nil && strings.EqualFold(strings.TrimSpace(c.Authorization.Type), "basic"):
		return errors.New("authorization.type: Basic is basicAuth's: use that")
	case c.Authorization != nil && strings.ContainsFunc(c.Authorization.Type, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("authorization.type: %q is no name of a scheme", c.Authorization.Type)
	}
	if b := c.CABundle; b != nil {
		sources := 0
		for _, has := range []bool{b.Inline != "", b.SecretRef != nil, b.ConfigMapRef != nil} {
			if has {
				sources++
			}
		}
		if sources != 1 {
			return errors.New("caBundle: exactly one of inline, secretRef and configMapRef is needed")
		}
	}
	return nil
}

// credentials returns a function that reads what a connection refers to, as it is now.
func (d *definition) credentials(c v1alpha1.Connection) (func(context.Context) (*protocol.Credentials, error), error) {
	inline := ""
	if c.CABundle != nil {
		inline = c.CABundle.Inline
	}
	parts := references(c)
	for i := range parts {
		var err error
		if parts[i].lease, err = d.file(parts[i].resource, parts[i].ref); err != nil {
			return nil, err
		}
	}
	var mu sync.Mutex
	var last string
	var kept *protocol.Credentials
	return func(context.Context) (*protocol.Credentials, error) {
		fresh := &protocol.Credentials{CA: []byte(inline)}
		var all [][]byte
		for _, p := range parts {
			data, err := p.read()
			if err == nil {
				err = p.set(fresh, data)
			}
			if err != nil {
				return nil, fmt.Errorf("%s %s/%s: %w", p.resource, p.ref.Namespace, p.ref.Name, err)
			}
			all = append(all, data...)
		}
		mu.Lock()
		defer mu.Unlock()
		if now := digest(all); kept == nil || now != last {
			kept, last = fresh, now
		}
		return kept, nil
	}, nil
}
