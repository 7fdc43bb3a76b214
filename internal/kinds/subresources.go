package kinds

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// withStatus lists the kinds of Kubernetes that have a subresource status, by group. A
// test compares the lists of this file with the discovery of a real API server.
var withStatus = map[string]string{
	"":                             "Namespace Node PersistentVolume PersistentVolumeClaim Pod ReplicationController ResourceQuota Service",
	"admissionregistration.k8s.io": "ValidatingAdmissionPolicy",
	"apiextensions.k8s.io":         "CustomResourceDefinition",
	"apiregistration.k8s.io":       "APIService",
	"apps":                         "DaemonSet Deployment ReplicaSet StatefulSet",
	"autoscaling":                  "HorizontalPodAutoscaler",
	"batch":                        "CronJob Job",
	"certificates.k8s.io":          "CertificateSigningRequest PodCertificateRequest",
	"flowcontrol.apiserver.k8s.io": "FlowSchema PriorityLevelConfiguration",
	"internal.apiserver.k8s.io":    "StorageVersion",
	"lifecycle.k8s.io":             "Eviction EvictionRequest",
	"networking.k8s.io":            "Ingress ServiceCIDR",
	"policy":                       "PodDisruptionBudget",
	"resource.k8s.io":              "DeviceTaintRule ResourceClaim ResourcePoolStatusRequest",
	"scheduling.k8s.io":            "CompositePodGroup PodGroup",
	"storage.k8s.io":               "CSINode VolumeAttachment",
	"storagemigration.k8s.io":      "StorageVersionMigration",
}

// withOthers lists the other subresources that admission sees.
var withOthers = map[schema.GroupKind]string{
	{Kind: "Namespace"}:                  "finalize",
	{Kind: "Node"}:                       "proxy",
	{Kind: "Pod"}:                        "attach binding ephemeralcontainers eviction exec portforward proxy resize",
	{Kind: "ReplicationController"}:      "scale",
	{Kind: "Service"}:                    "proxy",
	{Kind: "ServiceAccount"}:             "token",
	{Group: "apps", Kind: "Deployment"}:  "scale",
	{Group: "apps", Kind: "ReplicaSet"}:  "scale",
	{Group: "apps", Kind: "StatefulSet"}: "scale",
	{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}: "approval",
}

// Subresources returns the subresources of a kind that admission sees.
func (t *Table) Subresources(kind schema.GroupKind) []string {
	if custom, known := t.Custom()[kind]; known {
		return custom.Subresources
	}
	all := strings.Fields(withOthers[kind])
	if slices.Contains(strings.Fields(withStatus[kind.Group]), kind.Kind) {
		all = append(all, "status")
	}
	return all
}
