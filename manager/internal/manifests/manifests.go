package manifests

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/webhook"
)

// Config is what the manifests depend on: what an author asks of an installation, and the
// options and parts of the manager in it.
type Config struct {
	// Those of manager.InstallOptions, completed.
	Name, Image      string
	Subcommand, Args []string
	Replicas         int32
	Objects, CRDs    []client.Object
	Resources        *corev1.ResourceRequirements
	ImagePullSecrets []string
	MetricsService   bool
	NetworkPolicy    *NetworkPolicy
	Scan             *Scan
	Candidate        string // "" for none

	// Those of manager.Options, completed.
	Namespaces                             []string
	WebhookNamespace, ServiceName          string
	SetupCertificateName, LeafSecretName   string
	PathsSecretName                        string // "" with plain paths
	HealthAddress, MetricsAddress          string
	MetricsSecure                          bool
	Port, ServicePort                      int32
	DrainPeriod                            time.Duration
	Probe, ForeignCABundle, LeaderElection bool
	Scheme                                 *runtime.Scheme

	// ConfigurationName names the webhook configurations, and ScanLease the Lease of what scans.
	ConfigurationName, ScanLease string
	Webhooks                     []*webhook.Webhook
	// Parts are what was added to the manager.
	Parts *host.Parts
	// Converted are the CustomResourceDefinitions that the manager converts.
	Converted []string
	// Serves is true if a server is needed, for webhooks or conversions.
	Serves bool
	// Everywhere are the watchers that run in each replica that serves, Once those that run
	// with the reconcilers.
	Everywhere, Once []extension.Watcher
	// Apart is true if a process of its own reconciles.
	Apart bool
}

// NetworkPolicy is manager.NetworkPolicyOptions.
type NetworkPolicy struct {
	APIServers, MetricsFrom []networkingv1.NetworkPolicyPeer
}

// Scan is manager.ScanOptions.
type Scan struct {
	Every   time.Duration
	Reports bool
}

// Make returns the objects, in the order in which they can be applied, and warnings of what
// will probably not work as the author expects.
func Make(config *Config) (objects []client.Object, warnings []string, err error) {
	i := &installer{Config: config}
	i.addOwn(definesKind)
	if err := i.addKinds(slices.Concat(i.objects, config.CRDs)); err != nil {
		return nil, nil, err
	}
	i.warnUnconverted()
	if err := i.checkRights(); err != nil {
		return nil, nil, err
	}
	i.addNamespace()
	i.addOwn(func(object client.Object) bool { return !definesKind(object) })
	if config.Serves {
		i.addRegistrar()
	}
	if config.Serves || len(config.Everywhere) > 0 {
		if err := i.addServer(); err != nil {
			return nil, nil, err
		}
	}
	if config.Candidate != "" {
		i.addCandidate()
	}
	if config.Apart {
		if err := i.addReconciler(); err != nil {
			return nil, nil, err
		}
	}
	if config.Scan != nil {
		if err := i.addScanner(); err != nil {
			return nil, nil, err
		}
	}
	i.addNetwork()
	if err := i.checkNames(); err != nil {
		return nil, nil, err
	}
	return i.objects, i.warnings, nil
}

// installer collects the objects.
type installer struct {
	*Config
	kinds    kinds.Table
	objects  []client.Object
	warnings []string
}

func (i *installer) add(objects ...client.Object) { i.objects = append(i.objects, objects...) }

func (i *installer) meta(name, namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: i.ofInstallation()}
}

// addOwn adds those of the author's objects that are wanted.
func (i *installer) addOwn(wanted func(client.Object) bool) {
	for _, object := range i.Objects {
		if wanted(object) {
			i.add(object)
		}
	}
}

// checkNames returns an error if two objects are one: the last to be applied would win.
func (i *installer) checkNames() error {
	known := map[string]bool{}
	for _, object := range i.objects {
		name := identity(object)
		if known[name] {
			return fmt.Errorf("install options: Objects: %s: the installation has it already: give it another name", name)
		}
		known[name] = true
	}
	return nil
}

// addNamespace adds the manager's own namespace, unless it holds other things, too, or
// is among the author's objects.
func (i *installer) addNamespace() {
	own := &corev1.Namespace{TypeMeta: kind(corev1.SchemeGroupVersion, "Namespace"), ObjectMeta: metav1.ObjectMeta{Name: i.WebhookNamespace}}
	if slices.ContainsFunc(i.Objects, func(object client.Object) bool { return identity(object) == identity(own) }) {
		return
	}
	if slices.Contains(i.Namespaces, i.WebhookNamespace) || slices.Contains([]string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}, i.WebhookNamespace) {
		return
	}
	own.ObjectMeta = i.meta(i.WebhookNamespace, "")
	// https://kubernetes.io/docs/concepts/security/pod-security-standards/
	own.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	i.add(own)
}

// identity tells an object of an installation from the others.
func identity(object client.Object) string {
	kind, place := object.GetObjectKind().GroupVersionKind().GroupKind(), object.GetNamespace()
	if place != "" {
		place += "/"
	}
	return kind.String() + " " + place + object.GetName()
}

func definesKind(object client.Object) bool {
	return object.GetObjectKind().GroupVersionKind().GroupKind() == schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
}

// ofInstallation is the label that all Pods, and most objects, have.
func (i *installer) ofInstallation() map[string]string {
	return map[string]string{"app.kubernetes.io/part-of": i.Name}
}

// warn adds a warning, once.
func (i *installer) warn(warning string) {
	if !slices.Contains(i.warnings, warning) {
		i.warnings = append(i.warnings, warning)
	}
}

func selector(name string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": name}
}

func kind(version schema.GroupVersion, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version.String(), Kind: kind}
}

// PortOf returns the port of an address to listen on, or 0 if it has none.
func PortOf(address string) int32 {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int32(port)
}
