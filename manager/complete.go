package manager

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
)

// complete validates the options and fills in the defaults. Every error begins with
// the path of the field and says what to do.
func (o *Options) complete() error {
	if err := errors.Join(
		o.completeNames(),
		o.completeAddresses(),
		o.completePolicies(),
		o.completeServing(),
		o.completeTLS(),
		o.completeRegistration(),
		o.completeCertificates(),
		o.completeWatching(),
	); err != nil {
		return err
	}
	if o.Context == nil {
		o.Context = context.Background()
	}
	if o.Scheme == nil {
		o.Scheme = clientgoscheme.Scheme
	}
	if o.Logger == nil {
		config := zap.NewProductionConfig()
		config.Sampling, config.DisableStacktrace = nil, true // most errors are mistakes of others
		logger, err := config.Build()
		if err != nil {
			return fmt.Errorf("Logger: %w", err)
		}
		o.Logger = logger.Sugar()
	}
	return o.completeConnection()
}

func (o *Options) completeNames() error {
	o.OperatorFingerprint = cmp.Or(o.OperatorFingerprint, o.ServiceName)
	o.Namespaces = slices.Compact(slices.Sorted(slices.Values(o.Namespaces)))
	if len(o.Namespaces) == 1 {
		o.WebhookNamespace = cmp.Or(o.WebhookNamespace, o.Namespaces[0])
	}
	o.SetupCertificateName = cmp.Or(o.SetupCertificateName, o.OperatorFingerprint+"-setupcertificate")
	o.Serving.ClusterDomain = cmp.Or(o.Serving.ClusterDomain, DefaultClusterDomain)
	if err := checkEach("Namespaces", o.Namespaces, validation.IsDNS1123Label); err != nil {
		return err
	}
	if o.WebhookNamespace == "" {
		return errors.New("WebhookNamespace: required unless Namespaces names one: set it to the manager's own namespace")
	}
	if o.OperatorFingerprint == "" {
		return errors.New("OperatorFingerprint: required without a ServiceName: name this program, because another of the same name in the manager's own namespace, or on this host, would displace it")
	}
	return errors.Join(
		check("WebhookNamespace", o.WebhookNamespace, validation.IsDNS1123Label),
		check("ServiceName", o.ServiceName, validation.IsDNS1035Label),
		check("OperatorFingerprint", o.OperatorFingerprint, validation.IsDNS1123Label),
		check("SetupCertificateName", o.SetupCertificateName, validation.IsDNS1123Subdomain),
		check("Certificates.LeafSecretName", o.Certificates.LeafSecretName, validation.IsDNS1123Subdomain),
		check("Serving.ClusterDomain", o.Serving.ClusterDomain, validation.IsDNS1123Subdomain),
	)
}

func (o *Options) completeAddresses() error {
	s := &o.Serving
	o.Port = cmp.Or(o.Port, DefaultPort)
	s.ServicePort = cmp.Or(s.ServicePort, DefaultServicePort)
	if o.Port == FreePort && (o.ServiceName != "" || !o.Registration.UnregisterOnStop) {
		return errors.New("Port: a free one needs Registration.UnregisterOnStop, and no ServiceName: " +
			"each start has another port, and would take the webhooks of the last one for another installation's")
	}
	for _, port := range []struct {
		field string
		value int32
	}{{"Port", o.Port}, {"Serving.ServicePort", s.ServicePort}} {
		if problems := validation.IsValidPortNum(int(port.value)); len(problems) > 0 && port.value != FreePort {
			return fmt.Errorf("%s: %d: %s", port.field, port.value, strings.Join(problems, ", "))
		}
	}
	for _, address := range []struct{ field, value string }{
		{"Serving.HealthAddress", s.HealthAddress}, {"Serving.MetricsAddress", s.MetricsAddress},
	} {
		if _, _, err := net.SplitHostPort(address.value); err != nil && address.value != "" {
			return fmt.Errorf("%s: %q: must be HOST:PORT, or :PORT for every address", address.field, address.value)
		}
	}
	if host := s.AdvertiseHost; host != "" && net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(strings.ToLower(host))) > 0 {
		return fmt.Errorf("Serving.AdvertiseHost: %q: must be a DNS name or an address alone: the scheme is https, and the port is that of Port", host)
	}
	if o.ServiceName == "" && s.AdvertiseHost == "" {
		if ip := net.ParseIP(o.Host); ip == nil || !ip.IsUnspecified() {
			s.AdvertiseHost = o.Host
		}
	}
	return nil
}

// callable returns an error if the API server could not call this manager. Only an
// extension that answers admissions needs that.
func (o *Options) callable() error {
	if o.ServiceName == "" && o.Serving.AdvertiseHost == "" {
		return errors.New("manager options: Serving.AdvertiseHost: required, since there is no ServiceName and Host is not a single address: the API server must know what to call")
	}
	return nil
}

func (o *Options) completePolicies() error {
	o.RegisterWebHook = ptrOr(o.RegisterWebHook, true)
	o.FailurePolicy = ptrOr(o.FailurePolicy, admissionregistrationv1.Fail)
	if *o.FailurePolicy != admissionregistrationv1.Fail && *o.FailurePolicy != admissionregistrationv1.Ignore {
		return fmt.Errorf("FailurePolicy: %q: must be %s or %s", *o.FailurePolicy, admissionregistrationv1.Fail, admissionregistrationv1.Ignore)
	}
	if _, err := metav1.LabelSelectorAsSelector(o.PodSelector); err != nil {
		return fmt.Errorf("PodSelector: %w", err)
	}
	return nil
}

func (o *Options) completeServing() error {
	s := &o.Serving
	s.DrainPeriod = ptrOr(s.DrainPeriod, DefaultDrainPeriod)
	return errors.Join(
		notNegative("Serving.MaxBodyBytes", s.MaxBodyBytes),
		notNegative("Serving.MaxInFlight", s.MaxInFlight),
		notNegative("Serving.MaxMemoryBytes", s.MaxMemoryBytes),
		notNegative("Serving.MaxConnections", s.MaxConnections),
		notNegative("Serving.DrainPeriod", *s.DrainPeriod),
		s.completeRecording(),
	)
}

func (o *Options) completeRegistration() error {
	r := &o.Registration
	r.Probe = ptrOr(r.Probe, true)
	var err error
	if r.tolerated, err = registration.ParseTolerated(r.TolerateSelectorTerms); err != nil {
		return fmt.Errorf("Registration.TolerateSelectorTerms: %w", err)
	}
	r.ExcludeNamespaces = slices.Compact(slices.Sorted(slices.Values(r.ExcludeNamespaces)))
	for _, name := range r.ExcludeNamespaces {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return fmt.Errorf("Registration.ExcludeNamespaces: %q: %s", name, strings.Join(problems, ", "))
		}
		if slices.Contains(o.Namespaces, name) {
			return fmt.Errorf("Registration.ExcludeNamespaces: %q is in Namespaces, too: remove it from one of them", name)
		}
	}
	switch owner := r.Owner; {
	case r.UnregisterOnStop && !*o.RegisterWebHook:
		return errors.New("Registration.UnregisterOnStop: set while RegisterWebHook is false: only the process that registers can unregister")
	case r.IgnoreUntilProbed && !*r.Probe:
		return errors.New("Registration.IgnoreUntilProbed: needs Registration.Probe: without a probe the failure policy would stay Ignore")
	case r.ForeignCABundle && o.Certificates.Dir == "" && o.Certificates.LeafSecretName == "":
		return errors.New("Registration.ForeignCABundle: needs a certificate of the same CA: set Certificates.Dir or Certificates.LeafSecretName")
	case owner != nil && (owner.APIVersion == "" || owner.Kind == "" || owner.Name == "" || owner.UID == ""):
		return errors.New("Registration.Owner: needs an API version, a kind, a name and a UID")
	}
	return nil
}

func (o *Options) completeCertificates() error {
	c := &o.Certificates
	if err := errors.Join(
		notNegative("Certificates.CALifetime", c.CALifetime),
		notNegative("Certificates.LeafLifetime", c.LeafLifetime),
		notNegative("Certificates.PropagationDelay", c.PropagationDelay),
	); err != nil {
		return err
	}
	c.CALifetime = cmp.Or(c.CALifetime, certs.DefaultCALifetime)
	c.LeafLifetime = cmp.Or(c.LeafLifetime, certs.DefaultLeafLifetime)
	c.PropagationDelay = cmp.Or(c.PropagationDelay, certs.DefaultPropagationDelay)
	switch {
	case c.LeafLifetime > c.CALifetime/3:
		return fmt.Errorf("Certificates.LeafLifetime: %s: must be at most a third of Certificates.CALifetime, %s, so that a leaf ends before its CA", c.LeafLifetime, c.CALifetime)
	case c.PropagationDelay > c.CALifetime/6:
		return fmt.Errorf("Certificates.PropagationDelay: %s: must be at most a sixth of Certificates.CALifetime, %s, so that a rotation ends before the CA", c.PropagationDelay, c.CALifetime)
	case c.Dir != "" && c.LeafSecretName != "":
		return errors.New("Certificates.Dir and Certificates.LeafSecretName: set only one of them")
	case c.Dir != "" && o.SetupCertificate != nil && *o.SetupCertificate:
		return errors.New("SetupCertificate and Certificates.Dir: the manager either makes the certificates or is given them")
	case c.LeafSecretName != "" && c.LeafSecretName == o.SetupCertificateName:
		return errors.New("Certificates.LeafSecretName: must differ from SetupCertificateName, which holds the CA's key")
	}
	o.SetupCertificate = ptrOr(o.SetupCertificate, *o.RegisterWebHook)
	return nil
}

func (o *Options) completeWatching() error {
	o.Watching.QueueLength = cmp.Or(o.Watching.QueueLength, DefaultWatcherQueueLength)
	if o.WatcherStartRV != "" {
		if _, err := strconv.ParseUint(o.WatcherStartRV, 10, 64); err != nil {
			return fmt.Errorf("WatcherStartRV: %q: must be a resource version, which is a number", o.WatcherStartRV)
		}
	}
	if user := o.Watching.ReconcilerUser; strings.TrimSpace(user) != user {
		return fmt.Errorf("Watching.ReconcilerUser: %q: must be a user name, such as system:serviceaccount:NAMESPACE:NAME", user)
	}
	return notNegative("Watching.QueueLength", o.Watching.QueueLength)
}

// completeConnection sets RESTConfig, whichever way the connection was given.
func (o *Options) completeConnection() error {
	switch {
	case o.RESTConfig != nil && o.KubeConfig != "":
		return errors.New("KubeConfig and RESTConfig: set only one of them")
	case o.RESTConfig != nil:
		o.RESTConfig = rest.CopyConfig(o.RESTConfig)
	default:
		config, err := apiserver.Config(o.KubeConfig)
		if err != nil {
			return fmt.Errorf("KubeConfig: %w", err)
		}
		o.RESTConfig = config
	}
	if o.RESTConfig.QPS == 0 {
		// No limit of our own: the API server has a fairer one (API Priority and
		// Fairness), and client-go's default of 5 per second would delay a start.
		o.RESTConfig.QPS = -1
	}
	if o.RESTConfig.UserAgent == "" {
		o.RESTConfig.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + o.OperatorFingerprint
	}
	return nil
}

// hosts returns every name by which the API server may call the webhooks.
func (o *Options) hosts() []string {
	var hosts []string
	if o.ServiceName != "" {
		service := o.ServiceName + "." + o.WebhookNamespace
		hosts = []string{o.ServiceName, service, service + ".svc", service + ".svc." + o.Serving.ClusterDomain}
	}
	if o.Serving.AdvertiseHost != "" {
		hosts = append(hosts, o.Serving.AdvertiseHost)
	}
	return hosts
}

// hasPort returns an error unless the port is known before the start.
func (o *Options) hasPort() error {
	if o.Port == FreePort {
		return errors.New("Port: a free one is for Start, which serves and registers in one process: name the port of the server")
	}
	return nil
}

// calledAs returns the name by which the API server calls the webhooks.
func (o *Options) calledAs() string {
	if o.ServiceName != "" {
		return o.ServiceName + "." + o.WebhookNamespace + ".svc"
	}
	return o.Serving.AdvertiseHost
}

// pathsSecret is the name of the Secret with the key by which the paths of webhooks are
// signed, "" if these are plain.
func (o *Options) pathsSecret() string {
	if o.Serving.PlainPaths {
		return ""
	}
	return o.OperatorFingerprint + "-paths"
}

// configurationName names the webhook configurations. A DNS label contains no dot,
// so the names of two installations always differ.
func (o *Options) configurationName() string {
	return o.OperatorFingerprint + "." + o.WebhookNamespace
}

func check(field, value string, valid func(string) []string) error {
	if value == "" {
		return nil
	}
	if problems := valid(value); len(problems) > 0 {
		return fmt.Errorf("%s: %q: %s", field, value, strings.Join(problems, ", "))
	}
	return nil
}

func checkEach(field string, values []string, valid func(string) []string) error {
	var errs []error
	for _, value := range values {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s: an empty name", field))
		}
		errs = append(errs, check(field, value, valid))
	}
	return errors.Join(errs...)
}

func notNegative[T int | int64 | time.Duration](field string, value T) error {
	if value < 0 {
		return fmt.Errorf("%s: %v: must not be negative", field, value)
	}
	return nil
}

func ptrOr[T any](value *T, otherwise T) *T {
	if value == nil {
		return &otherwise
	}
	return value
}

// tlsVersions are the versions of TLS that a server may ask for, by the names of crypto/tls
// and of Kubernetes' flags.
var tlsVersions = map[string]uint16{
	"": tls.VersionTLS12, "1.2": tls.VersionTLS12, "VersionTLS12": tls.VersionTLS12, "1.3": tls.VersionTLS13, "VersionTLS13": tls.VersionTLS13,
}

// completeTLS reads the names of TLS's version and cipher suites.
func (o *Options) completeTLS() error {
	s := &o.Serving
	version, known := tlsVersions[s.TLSMinVersion]
	if !known {
		return fmt.Errorf("Serving.TLSMinVersion: %q: must be 1.2 or 1.3", s.TLSMinVersion)
	}
	s.minVersion, s.cipherSuites = version, nil
	for _, name := range s.TLSCipherSuites {
		suite, err := cipherSuite(name)
		if err != nil {
			return fmt.Errorf("Serving.TLSCipherSuites: %w", err)
		}
		if !slices.Contains(s.cipherSuites, suite.ID) {
			s.cipherSuites = append(s.cipherSuites, suite.ID)
		}
	}
	own := o.Certificates.Dir == "" && !o.Registration.ForeignCABundle
	switch {
	case len(s.cipherSuites) == 0:
	case version > tls.VersionTLS12:
		return errors.New("Serving.TLSCipherSuites: TLS 1.3 has no choice of cipher suites: leave them out, or set Serving.TLSMinVersion to 1.2")
	case own && !slices.ContainsFunc(s.TLSCipherSuites, func(name string) bool { return strings.Contains(name, "_ECDSA_") }):
		return errors.New("Serving.TLSCipherSuites: none fits the manager's own certificate, which has an ECDSA key: add one of TLS_ECDHE_ECDSA_...")
	}
	if len(s.ClientNames) > 0 && s.ClientCAFile == "" {
		return errors.New("Serving.ClientNames: set without Serving.ClientCAFile: without it nobody verifies certificates of clients")
	}
	return nil
}

// cipherSuite returns the suite of TLS 1.2 with the name.
func cipherSuite(name string) (*tls.CipherSuite, error) {
	named := func(suite *tls.CipherSuite) bool { return suite.Name == name }
	secure := slices.DeleteFunc(tls.CipherSuites(), func(suite *tls.CipherSuite) bool { return !slices.Contains(suite.SupportedVersions, tls.VersionTLS12) })
	if i := slices.IndexFunc(secure, named); i >= 0 {
		return secure[i], nil
	}
	names := make([]string, len(secure))
	for i, suite := range secure {
		names[i] = suite.Name
	}
	problem := "is not known"
	switch {
	case slices.ContainsFunc(tls.InsecureCipherSuites(), named):
		problem = "is insecure"
	case slices.ContainsFunc(tls.CipherSuites(), named):
		problem = "is one of TLS 1.3, which are always on: leave it out"
	}
	return nil, fmt.Errorf("%q %s; there are %s", name, problem, strings.Join(names, ", "))
}
