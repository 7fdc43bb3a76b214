package manifests

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// addNetwork adds what concerns the ports of all Pods.
func (i *installer) addNetwork() {
	if i.MetricsService {
		service := &corev1.Service{
			TypeMeta: kind(corev1.SchemeGroupVersion, "Service"), ObjectMeta: i.meta(i.Name+"-metrics", i.WebhookNamespace),
			Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: i.ofInstallation(), Ports: []corev1.ServicePort{{
				Name: "metrics", Port: PortOf(i.MetricsAddress), TargetPort: intstr.FromString("metrics"), Protocol: corev1.ProtocolTCP,
			}}},
		}
		// A ServiceMonitor selects Services by labels, and this is not the only one.
		service.Labels["app.kubernetes.io/component"] = "metrics"
		i.add(service)
	}
	if policy := i.NetworkPolicy; policy != nil {
		i.add(&networkingv1.NetworkPolicy{
			TypeMeta: kind(networkingv1.SchemeGroupVersion, "NetworkPolicy"), ObjectMeta: i.meta(i.Name, i.WebhookNamespace),
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: i.ofInstallation()}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress: i.ingress(policy),
			},
		})
	}
}

// ingress returns who may reach which port. The ports have names, because not all Pods
// have the same.
func (i *installer) ingress(policy *NetworkPolicy) []networkingv1.NetworkPolicyIngressRule {
	var rules []networkingv1.NetworkPolicyIngressRule
	admit := func(port string, from []networkingv1.NetworkPolicyPeer) {
		name, tcp := intstr.FromString(port), corev1.ProtocolTCP
		rules = append(rules, networkingv1.NetworkPolicyIngressRule{From: from, Ports: []networkingv1.NetworkPolicyPort{{Port: &name, Protocol: &tcp}}})
	}
	if i.Serves {
		callers := policy.APIServers
		if len(callers) > 0 && i.Candidate != "" {
			callers = append(slices.Clone(callers), networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: i.ofInstallation()}})
		}
		admit("webhook", callers)
	}
	for _, port := range i.extensionPorts() {
		admit(port.Name, nil)
	}
	if PortOf(i.HealthAddress) != 0 {
		// A kubelet's requests come from its own node, and have no address of their own.
		admit("health", nil)
	}
	if PortOf(i.MetricsAddress) != 0 {
		admit("metrics", policy.MetricsFrom)
	}
	return rules
}
