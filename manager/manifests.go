package manager

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/admitkit/admitkit/manager/internal/manifests"
	"github.com/admitkit/admitkit/webhook"
)

// InstallOptions configure an installation in a cluster.
type InstallOptions struct {
	// Name is the name of the Deployment. The other names begin with it. Required.
	Name string
	// Image is the container image of the program, which has the subcommands of
	// package command. Required.
	Image string
	// Subcommand is the one below which the program has those of package command, such as
	// controller. Default: it has them itself.
	Subcommand []string
	// Args follow the subcommand. They must be the flags that made this Manager.
	Args []string
	// Replicas is the number of Pods that serve. Default: 2.
	Replicas int32

	// Objects are objects of your own that belong to the installation, such as a
	// CustomResourceDefinition or a ConfigMap. They come before what may need them,
	// CustomResourceDefinitions first. Each needs a name, and an API version and kind,
	// unless the manager's Scheme has its type. A Namespace of the manager's own name
	// replaces the one that would be made. Default: none.
	Objects []client.Object
	// CRDs are the CustomResourceDefinitions of kinds that extensions read
	// ([extension.Reader]) and that others install: rights need their plurals. They are not
	// among the manifests. Default: none.
	CRDs []client.Object
	// Resources are the requests and limits of each container; an empty value sets none.
	// Default: requests for 50m CPU and 64Mi memory, and a limit of 256Mi memory, to which
	// the programs keep.
	Resources *corev1.ResourceRequirements
	// ImagePullSecrets names Secrets in WebhookNamespace by which the nodes pull Image.
	// Default: none.
	ImagePullSecrets []string
	// MetricsService adds a headless Service, NAME-metrics, with the metrics of every Pod of
	// the installation. It needs Serving.MetricsAddress. Default: false.
	MetricsService bool
	// Scan adds a Deployment of one replica that runs the subcommand scan again and again,
	// with the rights to read what the extensions receive. Default: none.
	Scan *ScanOptions
	// Candidate is the container image of the next build of the program. It adds a Deployment of
	// one replica that answers nobody, and to which the replicas that serve send what they
	// answer, for it to compare ([Manager.StartCandidate]). Default: none.
	Candidate string
	// NetworkPolicy adds a NetworkPolicy that admits traffic to the installation's own
	// ports only. Default: none.
	NetworkPolicy *NetworkPolicyOptions
}

// ScanOptions say how what a cluster stores is scanned.
type ScanOptions struct {
	// Every is the time from one scan to the next, at least a minute. Required.
	Every time.Duration
	// Reports keeps a Report for each object with a finding, in the API for it that the
	// cluster serves. Default: metrics and the log alone.
	Reports bool
}

// NetworkPolicyOptions say who may reach the Pods of an installation. Everybody may reach
// the health checks. Policies add up: an extension that serves a port of its own needs
// one of its own, which may be among the Objects.
type NetworkPolicyOptions struct {
	// APIServers are the API servers, which alone may then reach the webhooks, or the Pods
	// through which they call. Default: everybody.
	APIServers []networkingv1.NetworkPolicyPeer
	// MetricsFrom are those who may read metrics. Default: everybody.
	MetricsFrom []networkingv1.NetworkPolicyPeer
}

// DefaultResources returns the requests and limits of each container unless
// InstallOptions.Resources says otherwise.
func DefaultResources() *corev1.ResourceRequirements {
	return &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
	}
}

// Installation holds the manifests of an installation.
type Installation struct {
	// Objects can be applied in this order.
	Objects []client.Object
	// Configurations are the webhook configurations that the registrar writes and
	// repairs. Do not apply them: without their caBundle every call would fail.
	Configurations []client.Object
	// Warnings say what in this installation will probably not work as its author expects.
	Warnings []string
	// Webhooks are what the Configurations register.
	Webhooks []*webhook.Webhook
}

// complete validates the options and fills in the defaults.
func (o *InstallOptions) complete(scheme *runtime.Scheme) error {
	if o.Name == "" {
		return errors.New("install options: Name: required: the name of the program")
	}
	if o.Image == "" {
		return errors.New("install options: Image: required: the container image of the program, such as registry.example.com/my-ext:1.0")
	}
	o.Replicas = cmp.Or(o.Replicas, 2)
	if o.Resources == nil {
		o.Resources = DefaultResources()
	}
	errs := []error{notNegative("Replicas", int(o.Replicas)), checkResources(o.Resources), checkEach("ImagePullSecrets", o.ImagePullSecrets, validation.IsDNS1123Subdomain)}
	if o.Scan != nil && o.Scan.Every < time.Minute {
		errs = append(errs, fmt.Errorf("Scan.Every: %s: must be at least 1m", o.Scan.Every))
	}
	if policy := o.NetworkPolicy; policy != nil {
		errs = append(errs, checkPeers("NetworkPolicy.APIServers", policy.APIServers), checkPeers("NetworkPolicy.MetricsFrom", policy.MetricsFrom))
	}
	typed := make([]client.Object, len(o.Objects))
	for i, object := range o.Objects {
		var err error
		if typed[i], err = withKind(object, scheme); err != nil {
			errs = append(errs, fmt.Errorf("Objects[%d]: %w", i, err))
		}
	}
	o.Objects = typed
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("install options: %w", err)
	}
	return nil
}

// checkResources returns an error for a request beyond its limit, with which no Pod
// could be created.
func checkResources(resources *corev1.ResourceRequirements) error {
	for name, request := range resources.Requests {
		if limit, limited := resources.Limits[name]; limited && request.Cmp(limit) > 0 {
			return fmt.Errorf("Resources: the request for %s, %s, is more than its limit, %s: set both", name, request.String(), limit.String())
		}
	}
	return nil
}

func checkPeers(field string, peers []networkingv1.NetworkPolicyPeer) error {
	for i, peer := range peers {
		switch {
		case peer.IPBlock == nil && peer.PodSelector == nil && peer.NamespaceSelector == nil:
			return fmt.Errorf("%s[%d]: it is empty: set IPBlock, PodSelector or NamespaceSelector", field, i)
		case peer.IPBlock != nil:
			if _, err := netip.ParsePrefix(peer.IPBlock.CIDR); err != nil {
				return fmt.Errorf("%s[%d]: IPBlock.CIDR: %w", field, i, err)
			}
		}
	}
	return nil
}

// withKind returns a copy of an object that says what it is, as a manifest must.
func withKind(object client.Object, scheme *runtime.Scheme) (client.Object, error) {
	if object == nil {
		return nil, errors.New("it is nil")
	}
	made := object.DeepCopyObject().(client.Object)
	if made.GetObjectKind().GroupVersionKind().Empty() {
		known, err := apiutil.GVKForObject(object, scheme)
		if err != nil {
			return nil, fmt.Errorf("%T: set its API version and kind, or add its type to Options.Scheme: %w", object, err)
		}
		made.GetObjectKind().SetGroupVersionKind(known)
	}
	if made.GetName() == "" {
		return nil, fmt.Errorf("the %s needs a name", made.GetObjectKind().GroupVersionKind().Kind)
	}
	return made, nil
}

// Manifests returns the manifests of an installation in three processes: a registrar,
// which alone may write webhook configurations and Secrets; the replicas that serve,
// which can be reached; and those that reconcile, if an extension has a Reconciler or a
// Watcher. The last two may do what the extensions in them ask for
// ([extension.Entitled]), and nothing else. docs/security.md and the chart take their
// roles from here.
//
// A file of modes or exemptions that is not on this machine, but where the Deployments
// run, counts as empty.
func (m *Manager) Manifests(options InstallOptions) (*Installation, error) {
	if err := options.complete(m.options.Scheme); err != nil {
		return nil, err
	}
	if err := errors.Join(m.added(), m.installable(options)); err != nil {
		return nil, err
	}
	missing := m.ignoreMissing()
	webhooks, err := m.webhooks()
	if err != nil {
		return nil, err
	}
	if err := m.guardOwnPods(webhooks); err != nil {
		return nil, err
	}
	objects, warnings, err := manifests.Make(m.manifestsOf(&options, webhooks))
	if err != nil {
		return nil, err
	}
	installation := &Installation{Objects: objects, Webhooks: webhooks, Warnings: append(warnings, missing...)}
	if len(webhooks) > 0 {
		for _, object := range m.registration(webhooks).Objects() {
			installation.Configurations = append(installation.Configurations, object)
		}
	}
	return installation, nil
}

// manifestsOf returns what the manifests depend on.
func (m *Manager) manifestsOf(install *InstallOptions, webhooks []*webhook.Webhook) *manifests.Config {
	o, once := &m.options, m.once()
	return &manifests.Config{
		Name: install.Name, Image: install.Image, Subcommand: install.Subcommand, Args: install.Args, Replicas: install.Replicas,
		Objects: install.Objects, CRDs: install.CRDs, Resources: install.Resources, ImagePullSecrets: install.ImagePullSecrets,
		MetricsService: install.MetricsService, NetworkPolicy: (*manifests.NetworkPolicy)(install.NetworkPolicy), Scan: (*manifests.Scan)(install.Scan), Candidate: install.Candidate,

		Namespaces: o.Namespaces, WebhookNamespace: o.WebhookNamespace, ServiceName: o.ServiceName,
		SetupCertificateName: o.SetupCertificateName, LeafSecretName: o.Certificates.LeafSecretName, PathsSecretName: o.pathsSecret(),
		HealthAddress: o.Serving.HealthAddress, MetricsAddress: o.Serving.MetricsAddress, MetricsSecure: o.Serving.MetricsSecure,
		Port: o.Port, ServicePort: o.Serving.ServicePort, DrainPeriod: *o.Serving.DrainPeriod,
		Probe: *o.Registration.Probe, ForeignCABundle: o.Registration.ForeignCABundle, LeaderElection: o.Watching.LeaderElection,
		Scheme: o.Scheme,

		ConfigurationName: o.configurationName(), ScanLease: o.OperatorFingerprint + manifests.OfScans + "." + o.WebhookNamespace, Webhooks: webhooks, Parts: &m.parts, Converted: m.conversions().Names(), Serves: m.answers(webhooks),
		Everywhere: m.everywhere().watchers, Once: once.watchers, Apart: !once.empty() && o.Watching.ReconcilerUser == "",
	}
}

// installable returns what options of the manager an installation cannot have.
func (m *Manager) installable(options InstallOptions) error {
	s := &m.options.Serving
	switch {
	case options.Candidate != "" && len(m.parts.Handlers) == 0:
		return errors.New("install options: Candidate: no extension answers admissions: there is nothing to compare")
	case options.Candidate != "" && (s.PlainPaths || s.ClientCAFile != "" || s.RecordDir != "" || s.Mirror != ""):
		return errors.New("install options: Candidate: leave out Serving.PlainPaths, ClientCAFile, RecordDir and Mirror: the servers send what they answer to the candidate, which knows them by the path")
	case options.MetricsService && manifests.PortOf(m.options.Serving.MetricsAddress) == 0:
		return errors.New("install options: MetricsService: Serving.MetricsAddress has no port: set it, or leave the Service out")
	case m.options.Certificates.Dir != "":
		return errors.New("Certificates.Dir: a Pod has no such folder; put the certificate into a Secret, and name it in Certificates.LeafSecretName")
	}
	return m.options.hasPort()
}
