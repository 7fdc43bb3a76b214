package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// CollectorOptions say where the recorders of sessions in Pods of runs send what they record; see operator/session. The zero
// value is nowhere: the network policy of a run lets a recorder reach only what its template names.
type CollectorOptions struct {
	// Namespace is that of the collector's Pods. All Pods of runs can reach these at Port, and nothing else there.
	Namespace string
	// Port is that of the Pods. Default: DefaultCollectorPort.
	Port int32
}

// DefaultCollectorPort is the default of CollectorOptions.Port.
const DefaultCollectorPort = 8444

// checkCollector says what is wrong with the options.
func (o *Options) checkCollector(namespaces []string) error {
	c := &o.Collector
	switch {
	case c.Namespace == "" && c.Port != 0:
		return errors.New("Namespace: required with Port: name the namespace of the collector")
	case c.Namespace == "":
		return nil
	case len(validation.IsDNS1123Label(c.Namespace)) > 0:
		return fmt.Errorf("Namespace: %q is not the name of a namespace", c.Namespace)
	case slices.Contains(namespaces, c.Namespace):
		return fmt.Errorf("Namespace: %q is one in which runs run: they would reach each other", c.Namespace)
	case c.Port < 1 || c.Port > 65535:
		return fmt.Errorf("Port: %d is not from 1 to 65535", c.Port)
	case !o.Proxy.on():
		return nil
	}
	// What redirects the connections of a run sees ports, and no addresses.
	ports := []int32{80, 443}
	if broker, err := o.Broker.port(); err == nil {
		ports = append(ports, broker)
	}
	if slices.Contains(ports, c.Port) {
		return fmt.Errorf("Port: %d is for the proxies of runs alone, as 80, 443 and the broker's are: let the collector have another", c.Port)
	}
	return nil
}

// collector is what the policies of runs let through, nil for nothing.
func (o *Options) collector() *v1alpha1.EgressCollector {
	if o.Collector.Namespace == "" {
		return nil
	}
	return &v1alpha1.EgressCollector{Namespace: o.Collector.Namespace, Port: o.Collector.Port}
}

// ProxyOptions say of what the proxies of runs and of seeds are made, which hold these to names. The zero value is none: a
// template, or a seed, with hosts is refused then.
type ProxyOptions struct {
	// Image is that of operator/cmd/sandbox. Required with the other, and with a broker.
	Image string
	// UpstreamCA is a ConfigMap in the manager's own namespace. Its key ca.crt has authorities, in PEM, that all proxies
	// accept of servers, besides those of the internet. Default: none.
	UpstreamCA string
}

func (o *ProxyOptions) on() bool { return o.Image != "" }

// checkProxy says what is wrong with the options.
func (o *Options) checkProxy() error {
	p := &o.Proxy
	switch {
	case !p.on() && (p.UpstreamCA != "" || o.Broker.on()):
		return errors.New("Image: required: name the image of the command sandbox, of which the proxies of runs are made")
	case !p.on():
		return nil
	case p.UpstreamCA != "" && len(validation.IsDNS1123Subdomain(p.UpstreamCA)) > 0:
		return fmt.Errorf("UpstreamCA: %q is not the name of a ConfigMap", p.UpstreamCA)
	case len(o.Egress.PodCIDRs) == 0 || len(o.Egress.ServiceCIDRs) == 0:
		return errors.New("the addresses of the cluster's Pods and Services are required (--cluster-pod-cidrs, --cluster-service-cidrs): a proxy reaches the internet, and these are not part of it")
	}
	return nil
}

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
