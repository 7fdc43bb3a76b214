package manifests

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook"
)

// addRegistrar adds the registrar with its rights.
func (i *installer) addRegistrar() {
	name := i.Name + "-registrar"
	i.addServiceAccount(name)
	cluster := []rbacv1.PolicyRule{rule("admissionregistration.k8s.io", []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"},
		[]string{"get", "list", "watch", "create", "patch", "update", "delete"}, i.ConfigurationName)}
	if crds := i.Converted; len(crds) > 0 {
		// It needs no list: it watches each by its name.
		cluster = append(cluster, rule("apiextensions.k8s.io", []string{"customresourcedefinitions"}, []string{"get", "watch", "patch"}, crds...))
	}
	if len(i.Namespaces) > 0 {
		// It says which of them do not exist.
		cluster = append(cluster, rule("", []string{"namespaces"}, []string{"get"}, i.Namespaces...))
	}
	i.addClusterRole(name, name, cluster...)
	rules := []rbacv1.PolicyRule{rule("", []string{"events"}, []string{"create"})}
	if i.Probe {
		// The probe is a dry run and stores no ConfigMap.
		rules = append(rules, rule("", []string{"configmaps"}, []string{"create"}))
	}
	if i.ForeignCABundle { // then the Secret is foreign, too
		rules = append(rules, rule("", []string{"secrets"}, []string{"get", "watch"}, i.secrets()...))
	}
	if own := i.ownSecrets(); len(own) > 0 {
		rules = append(rules, rule("", []string{"secrets"}, []string{"create"}),
			rule("", []string{"secrets"}, []string{"get", "watch", "update", "delete"}, own...))
		i.addSecretGuard(name, own)
	}
	i.addRole(name, name, i.WebhookNamespace, rules...)
	deployment := i.deployment(name, 1, "register", "--stay")
	i.observe(&deployment.Spec.Template.Spec.Containers[0])
	// Two registrars at a time would do no harm, but would be of no use either.
	deployment.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	i.add(deployment)
}

// addSecretGuard lets the registrar create its own Secrets alone. RBAC cannot: a rule for
// create has no names. Without it, the token controller would write a token of any
// ServiceAccount of the namespace into a Secret that the registrar asks for.
func (i *installer) addSecretGuard(account string, own []string) {
	names, _ := json.Marshal(own) // strings are always JSON, and JSON is CEL
	i.addSecretPolicy(account+"."+i.WebhookNamespace, account,
		fmt.Sprintf("object.metadata.name in %s && object.type in ['%s', '%s']", names, corev1.SecretTypeOpaque, corev1.SecretTypeTLS),
		fmt.Sprintf("%s creates no Secret but its own: %s", account, names))
}

// addTokenGuard keeps an account whose extensions may create Secrets from having the token controller
// write tokens of other ServiceAccounts into them, and from those by which nodes join the cluster.
func (i *installer) addTokenGuard(account string, rights *host.Rights) {
	all := slices.Concat(append(slices.Collect(maps.Values(rights.Namespaces)), rights.Watched, rights.Cluster)...)
	if !slices.ContainsFunc(all, createsSecrets) {
		return
	}
	i.addSecretPolicy(account+"-tokens."+i.WebhookNamespace, account, fmt.Sprintf("!(object.type in ['%s', '%s'])", corev1.SecretTypeServiceAccountToken, corev1.SecretTypeBootstrapToken),
		account+" creates no Secret with a token")
}

func createsSecrets(rule rbacv1.PolicyRule) bool {
	has := func(list []string, of string) bool { return slices.Contains(list, of) || slices.Contains(list, "*") }
	return has(rule.APIGroups, "") && has(rule.Resources, "secrets") && has(rule.Verbs, "create")
}

// addSecretPolicy holds the Secrets that an account creates to an expression.
func (i *installer) addSecretPolicy(name, account, expression, message string) {
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
				Name: "account", Expression: fmt.Sprintf("request.userInfo.username == 'system:serviceaccount:%s:%s'", i.WebhookNamespace, account),
			}},
			Validations: []admissionregistrationv1.Validation{{Expression: expression, Message: message}},
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
	case i.ForeignCABundle:
		return []string{i.LeafSecretName}
	case i.LeafSecretName != "":
		return []string{i.SetupCertificateName, i.LeafSecretName}
	}
	return []string{i.SetupCertificateName}
}

// ownSecrets returns the Secrets that the registrar makes.
func (i *installer) ownSecrets() (own []string) {
	if !i.ForeignCABundle {
		own = i.secrets()
	}
	if i.PathsSecretName != "" {
		own = append(own, i.PathsSecretName)
	}
	return own
}

// addServer adds the replicas that serve, with their rights.
func (i *installer) addServer() error {
	name := i.Name
	i.addServiceAccount(name)
	if secrets := i.secrets(); i.Serves {
		secrets = secrets[len(secrets)-1:]
		if i.PathsSecretName != "" {
			secrets = append(secrets, i.PathsSecretName)
		}
		i.addRole(name, name, i.WebhookNamespace, rule("", []string{"secrets"}, []string{"get", "watch"}, secrets...))
	}
	if err := i.addRights(name, host.Serves, i.Parts.ServerRights(), i.Everywhere); err != nil {
		return err
	}
	deployment := i.serverDeployment(name)
	if i.Serves && i.ServiceName != "" {
		ports := []corev1.ServicePort{{
			Name: "https", Port: i.ServicePort, TargetPort: intstr.FromString("webhook"), Protocol: corev1.ProtocolTCP,
		}}
		for _, port := range i.extensionPorts() {
			ports = append(ports, corev1.ServicePort{Name: port.Name, Port: port.ContainerPort, TargetPort: intstr.FromString(port.Name), Protocol: corev1.ProtocolTCP})
		}
		i.add(&corev1.Service{
			TypeMeta: kind(corev1.SchemeGroupVersion, "Service"), ObjectMeta: i.meta(i.ServiceName, i.WebhookNamespace),
			Spec: corev1.ServiceSpec{Selector: selector(name), Ports: ports},
		})
	}
	i.addBudget(name)
	i.add(deployment)
	return nil
}

// candidate names the next build's Deployment and Service.
func (i *installer) candidate() string { return i.Name + "-candidate" }

// addCandidate adds the next build, which is sent what the servers answer. It is their user.
func (i *installer) addCandidate() {
	name := i.candidate()
	deployment := i.servingDeployment(name, 1, "--candidate")
	pod := &deployment.Spec.Template.Spec
	pod.ServiceAccountName, pod.Containers[0].Image = i.Name, i.Candidate
	i.add(&corev1.Service{
		TypeMeta: kind(corev1.SchemeGroupVersion, "Service"), ObjectMeta: i.meta(name, i.WebhookNamespace),
		Spec: corev1.ServiceSpec{Selector: selector(name), Ports: []corev1.ServicePort{{Name: "https", Port: 443, TargetPort: intstr.FromString("webhook"), Protocol: corev1.ProtocolTCP}}},
	}, deployment)
}

// extensionPorts returns the ports that extensions serve.
func (i *installer) extensionPorts() []corev1.ContainerPort {
	pod := &corev1.PodSpec{Containers: make([]corev1.Container, 1)}
	i.Parts.Equip(pod)
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
	if i.LeaderElection {
		deployment.Spec.Replicas = &i.Replicas
		i.addLease(name, i.ConfigurationName)
		i.addBudget(name)
	} else {
		deployment.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	}
	if err := i.addRights(name, host.Reconciles, i.Parts.ReconcilerRights(), i.Once); err != nil {
		return err
	}
	i.observe(&deployment.Spec.Template.Spec.Containers[0])
	i.add(deployment)
	return nil
}

// addLease adds the rights of the leader election.
func (i *installer) addLease(account, lease string) {
	i.addRole(account, account, i.WebhookNamespace, rule("coordination.k8s.io", []string{"leases"}, []string{"create"}),
		rule("coordination.k8s.io", []string{"leases"}, []string{"get", "update"}, lease),
		rule("", []string{"events"}, []string{"create", "patch"}), rule("events.k8s.io", []string{"events"}, []string{"create", "patch"}))
}

// reconciler names the Deployment and the ServiceAccount of what reconciles.
func (i *installer) reconciler() string { return i.Name + "-reconciler" }

// reconcilerUser is the flag that names the user of what reconciles.
func (i *installer) reconcilerUser() string {
	return "--reconciler-user=system:serviceaccount:" + i.WebhookNamespace + ":" + i.reconciler()
}

// addBudget keeps one of several replicas running.
func (i *installer) addBudget(name string) {
	if i.Replicas < 2 {
		return
	}
	// Replicas that are not ready serve nobody, so they must not hold up the drain of
	// their nodes.
	one, always := intstr.FromInt32(1), policyv1.AlwaysAllow
	i.add(&policyv1.PodDisruptionBudget{
		TypeMeta: kind(policyv1.SchemeGroupVersion, "PodDisruptionBudget"), ObjectMeta: i.meta(name, i.WebhookNamespace),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &one, UnhealthyPodEvictionPolicy: &always, Selector: &metav1.LabelSelector{MatchLabels: selector(name)},
		},
	})
}

func (i *installer) serverDeployment(name string) *appsv1.Deployment {
	var args []string
	if i.Candidate != "" {
		args = append(args, fmt.Sprintf("--mirror=%s.%s.svc", i.candidate(), i.WebhookNamespace))
	}
	deployment := i.servingDeployment(name, i.Replicas, args...)
	// A replica ends only when another one is ready, so that no request fails.
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	deployment.Spec.Strategy = appsv1.DeploymentStrategy{
		Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &none, MaxSurge: &one},
	}
	i.spread(deployment)
	return deployment
}

// servingDeployment returns a Deployment that runs the subcommand serve.
func (i *installer) servingDeployment(name string, replicas int32, args ...string) *appsv1.Deployment {
	args = append([]string{"serve"}, args...)
	if i.Apart {
		args = append(args, i.reconcilerUser())
	}
	deployment := i.deployment(name, replicas, args...)
	container := &deployment.Spec.Template.Spec.Containers[0]
	if i.Serves {
		container.Ports = append(container.Ports, corev1.ContainerPort{Name: "webhook", ContainerPort: i.Port})
	}
	i.observe(container)
	i.Parts.Equip(&deployment.Spec.Template.Spec)
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
	if port := PortOf(i.MetricsAddress); port != 0 {
		container.Ports = append(container.Ports, corev1.ContainerPort{Name: "metrics", ContainerPort: port})
	}
	if port := PortOf(i.HealthAddress); port != 0 {
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
	grace := int64((i.DrainPeriod + webhook.ShutdownTimeout + 5*time.Second).Seconds())
	return &appsv1.Deployment{
		TypeMeta: kind(appsv1.SchemeGroupVersion, "Deployment"), ObjectMeta: i.meta(name, i.WebhookNamespace),
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
						Name: i.Name, Image: i.Image, Args: slices.Concat(i.Subcommand, args, i.Args),
						Resources: *i.Resources.DeepCopy(),
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

func (i *installer) pullSecrets() []corev1.LocalObjectReference {
	var all []corev1.LocalObjectReference
	for _, name := range i.ImagePullSecrets {
		all = append(all, corev1.LocalObjectReference{Name: name})
	}
	return all
}
