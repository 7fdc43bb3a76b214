package manager

import (
	"errors"

	"github.com/admitkit/admitkit/manager/internal/manifests"
)

// Manifests returns the manifests of an installation in three processes: a registrar,
// which alone may write webhook configurations and Secrets; the replicas that serve,
// which can be reached; and those that reconcile, if an extension has a Reconciler or a
// Watcher. The last two may do what the extensions in them ask for
// ([extension.Entitled]), and nothing else. docs/security.md and the chart take their
// roles from here.
func (m *Manager) Manifests(options InstallOptions) (*Installation, error) {
	if err := options.complete(m.options.Scheme); err != nil {
		return nil, err
	}
	if err := errors.Join(m.added(), m.installable(options)); err != nil {
		return nil, err
	}
	webhooks, err := m.webhooks()
	if err != nil {
		return nil, err
	}
	if err := m.guardOwnPods(webhooks); err != nil {
		return nil, err
	}
	objects, warnings, err := manifests.Make(m.manifestsOf(&options, m.answers(webhooks)))
	if err != nil {
		return nil, err
	}
	installation := &Installation{Objects: objects, Webhooks: webhooks, Warnings: warnings}
	if len(webhooks) > 0 {
		for _, object := range m.registration(webhooks).Objects() {
			installation.Configurations = append(installation.Configurations, object)
		}
	}
	return installation, nil
}

// manifestsOf returns what the manifests depend on. serves says that a server is needed.
func (m *Manager) manifestsOf(install *InstallOptions, serves bool) *manifests.Config {
	o, once := &m.options, m.once()
	return &manifests.Config{
		Name: install.Name, Image: install.Image, Subcommand: install.Subcommand, Args: install.Args, Replicas: install.Replicas,
		Objects: install.Objects, CRDs: install.CRDs, Resources: install.Resources, ImagePullSecrets: install.ImagePullSecrets,
		MetricsService: install.MetricsService, NetworkPolicy: (*manifests.NetworkPolicy)(install.NetworkPolicy),

		Namespace: o.Namespace, WebhookNamespace: o.WebhookNamespace, ServiceName: o.ServiceName,
		SetupCertificateName: o.SetupCertificateName, LeafSecretName: o.Certificates.LeafSecretName,
		HealthAddress: o.Serving.HealthAddress, MetricsAddress: o.Serving.MetricsAddress, MetricsSecure: o.Serving.MetricsSecure,
		Port: o.Port, ServicePort: o.Serving.ServicePort, DrainPeriod: *o.Serving.DrainPeriod,
		Probe: *o.Registration.Probe, ForeignCABundle: o.Registration.ForeignCABundle, LeaderElection: o.Watching.LeaderElection,
		Scheme: o.Scheme,

		ConfigurationName: o.configurationName(), Parts: &m.parts, Converted: m.conversions().Names(), Serves: serves,
		Everywhere: m.everywhere().watchers, Once: once.watchers, Apart: !once.empty() && o.Watching.ReconcilerUser == "",
	}
}

// installable returns what options of the manager an installation cannot have.
func (m *Manager) installable(options InstallOptions) error {
	switch {
	case options.MetricsService && manifests.PortOf(m.options.Serving.MetricsAddress) == 0:
		return errors.New("install options: MetricsService: Serving.MetricsAddress has no port: set it, or leave the Service out")
	case m.options.Certificates.Dir != "":
		return errors.New("Certificates.Dir: a Pod has no such folder; put the certificate into a Secret, and name it in Certificates.LeafSecretName")
	}
	return m.options.hasPort()
}
