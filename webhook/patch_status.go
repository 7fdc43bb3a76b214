package webhook

import (
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// statusless has the kinds whose status the API server drops when they are created:
// after admission it calls PrepareForCreate of the kind's strategy
// (k8s.io/kubernetes, pkg/registry/<group>/<resource>/strategy.go at v1.37;
// kube-aggregator and apiextensions-apiserver for the last two), which empties the
// status. A Node keeps it, because a kubelet creates it with its status. For a
// custom resource it depends on the subresources in the CustomResourceDefinition.
var statusless = map[metav1.GroupKind]bool{
	{Kind: "Namespace"}:             true,
	{Kind: "PersistentVolume"}:      true,
	{Kind: "PersistentVolumeClaim"}: true,
	{Kind: "Pod"}:                   true,
	{Kind: "ReplicationController"}: true,
	{Kind: "ResourceQuota"}:         true,
	{Kind: "Service"}:               true,

	{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"}: true,

	{Group: "apps", Kind: "DaemonSet"}:                                          true,
	{Group: "apps", Kind: "Deployment"}:                                         true,
	{Group: "apps", Kind: "ReplicaSet"}:                                         true,
	{Group: "apps", Kind: "StatefulSet"}:                                        true,
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}:                     true,
	{Group: "batch", Kind: "CronJob"}:                                           true,
	{Group: "batch", Kind: "Job"}:                                               true,
	{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}:           true,
	{Group: "flowcontrol.apiserver.k8s.io", Kind: "FlowSchema"}:                 true,
	{Group: "flowcontrol.apiserver.k8s.io", Kind: "PriorityLevelConfiguration"}: true,
	{Group: "networking.k8s.io", Kind: "Ingress"}:                               true,
	{Group: "policy", Kind: "PodDisruptionBudget"}:                              true,
	{Group: "resource.k8s.io", Kind: "ResourceClaim"}:                           true,
	{Group: "storage.k8s.io", Kind: "VolumeAttachment"}:                         true,

	{Group: "apiregistration.k8s.io", Kind: "APIService"}:             true,
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}: true,
}

// ignoresStatus reports whether the API server ignores the status of the object
// of a request.
func ignoresStatus(request *admissionv1.AdmissionRequest) bool {
	return request.Operation == admissionv1.Create && request.SubResource == "" &&
		statusless[metav1.GroupKind{Group: request.Kind.Group, Kind: request.Kind.Kind}]
}
