package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox/internal/credentials"
)

// BrokerOptions say where the broker of credentials is, which package broker is. The zero value is none: a run to whose
// template a BrokerPolicy applies, or that requires credentials, fails then.
type BrokerOptions struct {
	// Namespace is the broker's own. Pods of runs with a proxy reach it at the port of URL. Required with the others.
	Namespace string
	// URL is the broker's. Default: https://sandbox-broker.NAMESPACE.svc:8443.
	URL string
	// CAFile has the authorities of the broker's certificate, in PEM, and is read again when it is used. Default: what
	// the broker writes into its ConfigMap sandbox-broker-ca.
	CAFile string
	// Image is that of the command sandbox, for the proxies of runs. Required.
	Image string
	// UpstreamCA is a ConfigMap in the manager's own namespace. Its key ca.crt has authorities, in PEM, that the proxies of
	// all runs accept of servers, besides those of the internet. Default: none.
	UpstreamCA string
	// ServiceAccount is the one as which the reconcilers run, in the manager's own namespace. They ask the API server
	// for its tokens, which the broker takes. Default: sandbox-reconciler.
	ServiceAccount string
}

// DefaultServiceAccount is the default of BrokerOptions.ServiceAccount.
const DefaultServiceAccount = "sandbox-reconciler"

func (o *BrokerOptions) on() bool { return o.Namespace != "" }

func (o *BrokerOptions) setDefaults() {
	if o.on() {
		o.URL = strings.TrimSuffix(cmp.Or(o.URL, fmt.Sprintf("https://%s.%s.svc:8443", protocol.ServiceName, o.Namespace)), "/")
		o.ServiceAccount = cmp.Or(o.ServiceAccount, DefaultServiceAccount)
	}
}

// check says what is wrong with the options.
func (o *Options) checkBroker(namespaces []string) error {
	b := &o.Broker
	switch {
	case !b.on() && *b != BrokerOptions{}:
		return errors.New("Namespace: required with the others: name the namespace of the broker")
	case !b.on():
		return nil
	case len(validation.IsDNS1123Label(b.Namespace)) > 0:
		return fmt.Errorf("Namespace: %q is not the name of a namespace", b.Namespace)
	case slices.Contains(namespaces, b.Namespace):
		return fmt.Errorf("Namespace: %q is one in which runs run: what runs there is too near to the leases", b.Namespace)
	case b.Image == "":
		return errors.New("Image: required: name the image of the command sandbox, of which the proxies of runs are made")
	case b.UpstreamCA != "" && len(validation.IsDNS1123Subdomain(b.UpstreamCA)) > 0:
		return fmt.Errorf("UpstreamCA: %q is not the name of a ConfigMap", b.UpstreamCA)
	case len(o.Egress.PodCIDRs) == 0 || len(o.Egress.ServiceCIDRs) == 0:
		return errors.New("the addresses of the cluster's Pods and Services are required (--cluster-pod-cidrs, --cluster-service-cidrs): a proxy reaches the internet, and these are not part of it")
	}
	if _, err := b.port(); err != nil {
		return err
	}
	return nil
}

// port is that of the broker.
func (o *BrokerOptions) port() (int32, error) {
	parsed, err := url.Parse(o.URL)
	if err != nil || parsed.Scheme != "https" || parsed.Hostname() == "" || strings.Trim(parsed.Path, "/") != "" {
		return 0, fmt.Errorf("URL: %q is not like https://sandbox-broker.sandbox-broker.svc:8443", o.URL)
	}
	port, err := strconv.ParseUint(cmp.Or(parsed.Port(), "443"), 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("URL: %q has no port from 1 to 65535", o.URL)
	}
	return int32(port), nil
}

// toBroker are the rights to have runs with proxies and credentials.
func (r *runs) toBroker() map[string][]rbacv1.PolicyRule {
	b := &r.options.Broker
	rights := r.each(rule(ourGroup, []string{"brokerpolicies"}, "get", "list", "watch"))
	if !b.on() {
		return rights
	}
	named := func(rule rbacv1.PolicyRule, names ...string) rbacv1.PolicyRule {
		rule.ResourceNames = names
		return rule
	}
	for namespace := range rights {
		rights[namespace] = append(rights[namespace], rule(coreGroup, []string{"secrets"}, "get", "create", "update", "delete"))
	}
	rights[r.own] = append(rights[r.own],
		named(rule(coreGroup, []string{"secrets"}, "get", "update"), credentials.RootName),
		named(rule(coreGroup, []string{"serviceaccounts/token"}, "create"), b.ServiceAccount))
	if b.UpstreamCA != "" {
		rights[r.own] = append(rights[r.own], named(rule(coreGroup, []string{"configmaps"}, "get"), b.UpstreamCA))
	}
	// An uninstall has the broker revoke what is left, as the reconcilers can ask it to at any time.
	rights[b.Namespace] = append(rights[b.Namespace], rule(ourGroup, []string{"credentialleases"}, "list", "delete"))
	if b.CAFile == "" {
		rights[b.Namespace] = append(rights[b.Namespace], named(rule(coreGroup, []string{"configmaps"}, "get"), protocol.CAName))
	}
	return rights
}

// RootSecret is the empty Secret into which the reconcilers write the root of the proxies: make it in the manager's own
// namespace. They have no right to make Secrets there, by which they would get the token of every ServiceAccount in it.
func RootSecret() *corev1.Secret { return credentials.EmptyRoot() }
