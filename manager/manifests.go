package manager

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/kinds"
	"github.com/admitkit/admitkit/webhook"
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
	i := &installer{Manager: m, install: options, namespace: m.options.WebhookNamespace}
	i.addOwn(definesKind)
	if err := i.addKinds(slices.Concat(i.objects, options.CRDs)); err != nil {
		return nil, err
	}
	i.addNamespace()
	i.addOwn(func(object client.Object) bool { return !definesKind(object) })
	if m.answers(webhooks) {
		i.addRegistrar()
	}
	apart := !m.once().empty() && m.options.Watching.ReconcilerUser == ""
	if serves := m.answers(webhooks); serves || !m.everywhere().empty() {
		if err := i.addServer(serves, apart); err != nil {
			return nil, err
		}
	}
	if apart {
		if err := i.addReconciler(); err != nil {
			return nil, err
		}
	}
	i.addNetwork(m.answers(webhooks))
	if err := i.checkNames(); err != nil {
		return nil, err
	}
	installation := &Installation{Objects: i.objects, Webhooks: webhooks, Warnings: i.warnings}
	if len(webhooks) > 0 {
		for _, object := range m.registration(webhooks).Objects() {
			installation.Configurations = append(installation.Configurations, object)
		}
	}
	return installation, nil
}

// installable returns what options of the manager an installation cannot have.
func (m *Manager) installable(options InstallOptions) error {
	switch {
	case options.MetricsService && portOf(m.options.Serving.MetricsAddress) == 0:
		return errors.New("install options: MetricsService: Serving.MetricsAddress has no port: set it, or leave the Service out")
	case m.options.Certificates.Dir != "":
		return errors.New("Certificates.Dir: a Pod has no such folder; put the certificate into a Secret, and name it in Certificates.LeafSecretName")
	}
	return m.options.hasPort()
}

// installer collects the objects.
type installer struct {
	*Manager
	install   InstallOptions
	namespace string
	kinds     kinds.Table
	objects   []client.Object
	warnings  []string
}

func (i *installer) add(objects ...client.Object) { i.objects = append(i.objects, objects...) }

func (i *installer) meta(name, namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: i.ofInstallation()}
}

// addOwn adds those of the author's objects that are wanted.
func (i *installer) addOwn(wanted func(client.Object) bool) {
	for _, object := range i.install.Objects {
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
	own := &corev1.Namespace{TypeMeta: kind(corev1.SchemeGroupVersion, "Namespace"), ObjectMeta: metav1.ObjectMeta{Name: i.namespace}}
	if slices.ContainsFunc(i.install.Objects, func(object client.Object) bool { return identity(object) == identity(own) }) {
		return
	}
	if i.namespace == i.options.Namespace || slices.Contains([]string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}, i.namespace) {
		return
	}
	own.ObjectMeta = i.meta(i.namespace, "")
	// https://kubernetes.io/docs/concepts/security/pod-security-standards/
	own.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	i.add(own)
}

// addRegistrar adds the registrar with its rights.
func (i *installer) addRegistrar() {
	name := i.install.Name + "-registrar"
	i.addServiceAccount(name)
	cluster := []rbacv1.PolicyRule{rule("admissionregistration.k8s.io", []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"},
		[]string{"get", "list", "watch", "create", "patch", "update", "delete"}, i.options.configurationName())}
	if crds := i.conversions().Names(); len(crds) > 0 {
		// It needs no list: it watches each by its name.
		cluster = append(cluster, rule(crdResource.Group, []string{crdResource.Resource}, []string{"get", "watch", "patch"}, crds...))
	}
	i.addClusterRole(name, name, cluster...)
	rules := []rbacv1.PolicyRule{rule("", []string{"events"}, []string{"create"})}
	if *i.options.Registration.Probe {
		// The probe is a dry run and stores no ConfigMap.
		rules = append(rules, rule("", []string{"configmaps"}, []string{"create"}))
	}
	if i.options.Registration.ForeignCABundle { // then the Secret is foreign, too
		rules = append(rules, rule("", []string{"secrets"}, []string{"get", "watch"}, i.secrets()...))
	} else {
		rules = append(rules, rule("", []string{"secrets"}, []string{"create"}),
			rule("", []string{"secrets"}, []string{"get", "watch", "update", "delete"}, i.secrets()...))
		i.addSecretGuard(name)
	}
	i.addRole(name, name, i.namespace, rules...)
	deployment := i.deployment(name, 1, "register", "--stay")
	i.observe(&deployment.Spec.Template.Spec.Containers[0])
	// Two registrars at a time would do no harm, but would be of no use either.
	deployment.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	i.add(deployment)
}

// addSecretGuard lets the registrar create its own Secrets alone. RBAC cannot: a rule for
// create has no names. Without it, the token controller would write a token of any
// ServiceAccount of the namespace into a Secret that the registrar asks for.
func (i *installer) addSecretGuard(account string) {
	name := account + "." + i.namespace
	names, _ := json.Marshal(i.secrets()) // strings are always JSON, and JSON is CEL
	fail := admissionregistrationv1.Fail
	equivalent := admissionregistrationv1.Equivalent
	i.add(&admissionregistrationv1.ValidatingAdmissionPolicy{
		TypeMeta: kind(admissionregistrationv1.SchemeGroupVersion, "ValidatingAdmissionPolicy"), ObjectMeta: i.meta(name, ""),
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionregistrationv1.MatchResources{
				MatchPolicy: &equivalent,
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: extension.Resources("", "v1", []string{"secrets"}, admissionregistrationv1.Create)[0],
				}},
			},
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "registrar", Expression: fmt.Sprintf("request.userInfo.username == 'system:serviceaccount:%s:%s'", i.namespace, account),
			}},
			Validations: []admissionregistrationv1.Validation{{
				Expression: fmt.Sprintf("object.metadata.name in %s && object.type in ['%s', '%s']", names, corev1.SecretTypeOpaque, corev1.SecretTypeTLS),
				Message:    fmt.Sprintf("%s creates no Secret but those of its certificates: %s", account, names),
			}},
		},
	}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		TypeMeta: kind(admissionregistrationv1.SchemeGroupVersion, "ValidatingAdmissionPolicyBinding"), ObjectMeta: i.meta(name, ""),
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	})
}

// secrets returns the Secrets with certificates. The last one is for the servers.
func (i *installer) secrets() []string {
	switch {
	case i.options.Registration.ForeignCABundle:
		return []string{i.options.Certificates.LeafSecretName}
	case i.options.Certificates.LeafSecretName != "":
		return []string{i.options.SetupCertificateName, i.options.Certificates.LeafSecretName}
	}
	return []string{i.options.SetupCertificateName}
}

// addServer adds the replicas that serve, with their rights. apart says that another
// process reconciles.
func (i *installer) addServer(serves, apart bool) error {
	name := i.install.Name
	i.addServiceAccount(name)
	if secrets := i.secrets(); serves {
		i.addRole(name, name, i.namespace, rule("", []string{"secrets"}, []string{"get", "watch"}, secrets[len(secrets)-1]))
	}
	if err := i.addRights(name, host.Serves, i.parts.ServerRights(), i.everywhere().watchers); err != nil {
		return err
	}
	deployment := i.serverDeployment(name, serves, apart)
	if serves && i.options.ServiceName != "" {
		ports := []corev1.ServicePort{{
			Name: "https", Port: i.options.Serving.ServicePort, TargetPort: intstr.FromString("webhook"), Protocol: corev1.ProtocolTCP,
		}}
		for _, port := range i.extensionPorts() {
			ports = append(ports, corev1.ServicePort{Name: port.Name, Port: port.ContainerPort, TargetPort: intstr.FromString(port.Name), Protocol: corev1.ProtocolTCP})
		}
		i.add(&corev1.Service{
			TypeMeta: kind(corev1.SchemeGroupVersion, "Service"), ObjectMeta: i.meta(i.options.ServiceName, i.namespace),
			Spec: corev1.ServiceSpec{Selector: selector(name), Ports: ports},
		})
	}
	i.addBudget(name)
	i.add(deployment)
	return nil
}

// extensionPorts returns the ports that extensions serve.
func (i *installer) extensionPorts() []corev1.ContainerPort {
	pod := &corev1.PodSpec{Containers: make([]corev1.Container, 1)}
	i.parts.Equip(pod)
	return pod.Containers[0].Ports
}

// addReconciler adds the replicas that reconcile and watch, of which one does, with
// their rights.
func (i *installer) addReconciler() error {
	name := i.reconciler()
	i.addServiceAccount(name)
	// It refuses to run as another user than the one whom the servers believe.
	deployment := i.deployment(name, 1, "reconcile", i.reconcilerUser())
	i.spread(deployment)
	if i.options.Watching.LeaderElection {
		deployment.Spec.Replicas = &i.install.Replicas
		i.addRole(name, name, i.namespace, rule("coordination.k8s.io", []string{"leases"}, []string{"create"}),
			rule("coordination.k8s.io", []string{"leases"}, []string{"get", "update"}, i.options.configurationName()),
			rule("", []string{"events"}, []string{"create", "patch"}), rule("events.k8s.io", []string{"events"}, []string{"create", "patch"}))
		i.addBudget(name)
	} else {
		deployment.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	}
	if err := i.addRights(name, host.Reconciles, i.parts.ReconcilerRights(), i.once().watchers); err != nil {
		return err
	}
	i.observe(&deployment.Spec.Template.Spec.Containers[0])
	i.add(deployment)
	return nil
}

// reconciler names the Deployment and the ServiceAccount of what reconciles.
func (i *installer) reconciler() string { return i.install.Name + "-reconciler" }

// reconcilerUser is the flag that names the user of what reconciles.
func (i *installer) reconcilerUser() string {
	return "--reconciler-user=system:serviceaccount:" + i.namespace + ":" + i.reconciler()
}

// addRights grants what extensions ask for and read to the ServiceAccount of a process, and
// what its watchers watch.
func (i *installer) addRights(account string, process host.Process, rights host.Rights, watchers []extension.Watcher) error {
	if err := i.addReads(process, &rights); err != nil {
		return err
	}
	for _, w := range watchers {
		if err := i.addWatch(w, &rights); err != nil {
			return err
		}
	}
	name, watched, cluster := account+"-extensions", rights.Watched, rights.Cluster
	if i.options.Namespace != "" {
		i.warnOutside(rights.Outside)
		rights.Namespaces[i.options.Namespace] = append(watched, rights.Namespaces[i.options.Namespace]...)
	} else {
		cluster = append(watched, cluster...)
	}
	for _, namespace := range slices.Sorted(maps.Keys(rights.Namespaces)) {
		i.addRole(name, account, namespace, rights.Namespaces[namespace]...)
	}
	i.addClusterRole(name, account, cluster...)
	i.addAggregate(account+"-aggregate", account, rights.Aggregates)
	return nil
}

// addWatch adds the right to watch what a watcher sees.
func (i *installer) addWatch(w extension.Watcher, rights *host.Rights) error {
	watched, ofKind, err := host.WatchedBy(w, i.options.Scheme)
	if err != nil {
		return err
	}
	kind := schema.GroupKind{Kind: "Pod"}
	if ofKind {
		kind = watched.Kind.GroupKind()
	}
	all, namespaced, known := i.kinds.ReadRule(kind)
	if !known {
		return fmt.Errorf("%s watches %s, whose plural, for the rights to do so, is not known without the cluster: give its CustomResourceDefinition (--with; InstallOptions.CRDs)", host.WatcherName(w), kind)
	}
	may := rule(kind.Group, all.Resources, []string{"list", "watch"})
	if namespaced {
		rights.Watched = host.AppendNew(rights.Watched, may)
	} else {
		rights.Cluster = host.AppendNew(rights.Cluster, may)
	}
	return nil
}

// warnOutside says whose rights do not follow its scope. To grant them everywhere would
// be more than the watched namespace promises.
func (i *installer) warnOutside(outside []host.Outside) {
	for _, part := range outside {
		warning := fmt.Sprintf("extension %s gets admissions from the namespaces of its own NamespaceSelector (%s), but its Rights are granted in %q alone, the watched namespace: "+
			"elsewhere the API server forbids what it does; name the namespaces in the selector (%s in [...]), or ask by NamespaceRights or, for every namespace, by ClusterRights",
			part.Name, metav1.FormatLabelSelector(part.Selector), i.options.Namespace, corev1.LabelMetadataName)
		i.warn(warning)
	}
}

// warn adds a warning, once.
func (i *installer) warn(warning string) {
	if !slices.Contains(i.warnings, warning) {
		i.warnings = append(i.warnings, warning)
	}
}

// addBudget keeps one of several replicas running.
func (i *installer) addBudget(name string) {
	if i.install.Replicas < 2 {
		return
	}
	// Replicas that are not ready serve nobody, so they must not hold up the drain of
	// their nodes.
	one, always := intstr.FromInt32(1), policyv1.AlwaysAllow
	i.add(&policyv1.PodDisruptionBudget{
		TypeMeta: kind(policyv1.SchemeGroupVersion, "PodDisruptionBudget"), ObjectMeta: i.meta(name, i.namespace),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &one, UnhealthyPodEvictionPolicy: &always, Selector: &metav1.LabelSelector{MatchLabels: selector(name)},
		},
	})
}

func (i *installer) serverDeployment(name string, serves, apart bool) *appsv1.Deployment {
	args := []string{"serve"}
	if apart {
		args = append(args, i.reconcilerUser())
	}
	deployment := i.deployment(name, i.install.Replicas, args...)
	// A replica ends only when another one is ready, so that no request fails.
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	deployment.Spec.Strategy = appsv1.DeploymentStrategy{
		Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &none, MaxSurge: &one},
	}
	i.spread(deployment)
	container := &deployment.Spec.Template.Spec.Containers[0]
	if serves {
		container.Ports = append(container.Ports, corev1.ContainerPort{Name: "webhook", ContainerPort: i.options.Port})
	}
	i.observe(container)
	i.parts.Equip(&deployment.Spec.Template.Spec)
	return deployment
}

// spread puts the replicas on several nodes, if there are several.
func (i *installer) spread(deployment *appsv1.Deployment) {
	deployment.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: deployment.Spec.Selector.DeepCopy(),
	}}
}

// observe adds the ports of metrics and health checks, and the probes.
func (i *installer) observe(container *corev1.Container) {
	if port := portOf(i.options.Serving.MetricsAddress); port != 0 {
		container.Ports = append(container.Ports, corev1.ContainerPort{Name: "metrics", ContainerPort: port})
	}
	if port := portOf(i.options.Serving.HealthAddress); port != 0 {
		container.Ports = append(container.Ports, corev1.ContainerPort{Name: "health", ContainerPort: port})
		probe := func(path string) *corev1.Probe {
			return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("health")}}}
		}
		container.LivenessProbe, container.ReadinessProbe = probe("/healthz"), probe("/readyz")
		container.ReadinessProbe.PeriodSeconds = 2
	}
}

// deployment returns a Deployment whose Pods meet the restricted Pod security
// standard.
func (i *installer) deployment(name string, replicas int32, args ...string) *appsv1.Deployment {
	yes, no := true, false
	// Longer than a stop takes, so that the process can end and log what was left.
	grace := int64((*i.options.Serving.DrainPeriod + webhook.ShutdownTimeout + 5*time.Second).Seconds())
	return &appsv1.Deployment{
		TypeMeta: kind(appsv1.SchemeGroupVersion, "Deployment"), ObjectMeta: i.meta(name, i.namespace),
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: selector(name)},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: i.podLabels(name)},
				Spec: corev1.PodSpec{
					ImagePullSecrets:   i.pullSecrets(),
					ServiceAccountName: name, TerminationGracePeriodSeconds: &grace,
					// The variables of a Service named admitkit would look like flags.
					EnableServiceLinks: &no,
					// The images are of Linux; nodes of Windows could not start them.
					NodeSelector:    map[string]string{corev1.LabelOSStable: "linux"},
					SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
					Containers: []corev1.Container{{
						Name: i.install.Name, Image: i.install.Image, Args: slices.Concat(i.install.Subcommand, args, i.install.Args),
						Resources: *i.install.Resources.DeepCopy(),
						SecurityContext: &corev1.SecurityContext{
							AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
							Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						},
					}},
				},
			},
		},
	}
}

// podLabels returns the selector's labels of a process, and the one of the installation.
func (i *installer) podLabels(name string) map[string]string {
	labels := selector(name)
	maps.Copy(labels, i.ofInstallation())
	return labels
}

// ofInstallation is the label that all Pods, and most objects, have.
func (i *installer) ofInstallation() map[string]string {
	return map[string]string{"app.kubernetes.io/part-of": i.install.Name}
}

func (i *installer) pullSecrets() []corev1.LocalObjectReference {
	var all []corev1.LocalObjectReference
	for _, name := range i.install.ImagePullSecrets {
		all = append(all, corev1.LocalObjectReference{Name: name})
	}
	return all
}

// addNetwork adds what concerns the ports of all Pods.
func (i *installer) addNetwork(serves bool) {
	if i.install.MetricsService {
		service := &corev1.Service{
			TypeMeta: kind(corev1.SchemeGroupVersion, "Service"), ObjectMeta: i.meta(i.install.Name+"-metrics", i.namespace),
			Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: i.ofInstallation(), Ports: []corev1.ServicePort{{
				Name: "metrics", Port: portOf(i.options.Serving.MetricsAddress), TargetPort: intstr.FromString("metrics"), Protocol: corev1.ProtocolTCP,
			}}},
		}
		// A ServiceMonitor selects Services by labels, and this is not the only one.
		service.Labels["app.kubernetes.io/component"] = "metrics"
		i.add(service)
	}
	if policy := i.install.NetworkPolicy; policy != nil {
		i.add(&networkingv1.NetworkPolicy{
			TypeMeta: kind(networkingv1.SchemeGroupVersion, "NetworkPolicy"), ObjectMeta: i.meta(i.install.Name, i.namespace),
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: i.ofInstallation()}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress: i.ingress(policy, serves),
			},
		})
	}
}

// ingress returns who may reach which port. The ports have names, because not all Pods
// have the same.
func (i *installer) ingress(policy *NetworkPolicyOptions, serves bool) []networkingv1.NetworkPolicyIngressRule {
	var rules []networkingv1.NetworkPolicyIngressRule
	admit := func(port string, from []networkingv1.NetworkPolicyPeer) {
		name, tcp := intstr.FromString(port), corev1.ProtocolTCP
		rules = append(rules, networkingv1.NetworkPolicyIngressRule{From: from, Ports: []networkingv1.NetworkPolicyPort{{Port: &name, Protocol: &tcp}}})
	}
	if serves {
		admit("webhook", policy.APIServers)
	}
	for _, port := range i.extensionPorts() {
		admit(port.Name, nil)
	}
	if portOf(i.options.Serving.HealthAddress) != 0 {
		// A kubelet's requests come from its own node, and have no address of their own.
		admit("health", nil)
	}
	if portOf(i.options.Serving.MetricsAddress) != 0 {
		admit("metrics", policy.MetricsFrom)
	}
	return rules
}

func (i *installer) addServiceAccount(name string) {
	i.add(&corev1.ServiceAccount{TypeMeta: kind(corev1.SchemeGroupVersion, "ServiceAccount"), ObjectMeta: i.meta(name, i.namespace)})
	if i.options.Serving.MetricsSecure { // each process serves its own
		i.addClusterRole(name+"-metrics", name, metricsRights()...)
	}
}

// addRole adds a Role and its binding to a ServiceAccount.
func (i *installer) addRole(name, account, namespace string, rules ...rbacv1.PolicyRule) {
	if len(rules) == 0 {
		return
	}
	i.add(&rbacv1.Role{TypeMeta: kind(rbacv1.SchemeGroupVersion, "Role"), ObjectMeta: i.meta(name, namespace), Rules: rules},
		&rbacv1.RoleBinding{
			TypeMeta: kind(rbacv1.SchemeGroupVersion, "RoleBinding"), ObjectMeta: i.meta(name, namespace),
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: i.subjects(account),
		})
}

// addClusterRole adds a ClusterRole and its binding to a ServiceAccount.
func (i *installer) addClusterRole(name, account string, rules ...rbacv1.PolicyRule) {
	if len(rules) == 0 {
		return
	}
	i.bindClusterRole(name, account, &rbacv1.ClusterRole{Rules: rules})
}

// addAggregate adds a ClusterRole that kube-controller-manager fills with the rules of
// ClusterRoles with one of the labels, and its binding to a ServiceAccount.
func (i *installer) addAggregate(name, account string, labels []string) {
	if len(labels) == 0 {
		return
	}
	rule := &rbacv1.AggregationRule{}
	for _, label := range labels {
		rule.ClusterRoleSelectors = append(rule.ClusterRoleSelectors, metav1.LabelSelector{MatchLabels: map[string]string{label: "true"}})
	}
	i.bindClusterRole(name, account, &rbacv1.ClusterRole{AggregationRule: rule})
}

// bindClusterRole adds a ClusterRole and its binding to a ServiceAccount.
func (i *installer) bindClusterRole(name, account string, role *rbacv1.ClusterRole) {
	// There may be an installation of the same name in another namespace.
	name = i.namespace + "-" + name
	role.TypeMeta, role.ObjectMeta = kind(rbacv1.SchemeGroupVersion, "ClusterRole"), i.meta(name, "")
	i.add(role, &rbacv1.ClusterRoleBinding{
		TypeMeta: kind(rbacv1.SchemeGroupVersion, "ClusterRoleBinding"), ObjectMeta: i.meta(name, ""),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}, Subjects: i.subjects(account),
	})
}

func (i *installer) subjects(account string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: i.namespace}}
}

func rule(group string, resources, verbs []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, ResourceNames: names, Verbs: verbs}
}

func selector(name string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": name}
}

func kind(version schema.GroupVersion, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version.String(), Kind: kind}
}

// portOf returns the port of an address to listen on, or 0 if it has none.
func portOf(address string) int32 {
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
