package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestACopyOfAPodLeavesOutWhatTheClusterWroteIntoIt(t *testing.T) {
	priority := int32(5)
	template := templateOf(&corev1.Pod{Spec: corev1.PodSpec{
		NodeName: "node-1", Priority: &priority, EphemeralContainers: []corev1.EphemeralContainer{{}},
		Volumes: []corev1.Volume{{Name: "kube-api-access-x7v2p"}, {Name: "data"}},
		Containers: []corev1.Container{{
			Name: "main", VolumeMounts: []corev1.VolumeMount{{Name: "kube-api-access-x7v2p"}, {Name: "data"}},
		}},
	}})
	want := corev1.PodSpec{
		Volumes:    []corev1.Volume{{Name: "data"}},
		Containers: []corev1.Container{{Name: "main", VolumeMounts: []corev1.VolumeMount{{Name: "data"}}}},
	}
	if diff := cmp.Diff(want, template.Spec); diff != "" {
		t.Error(diff)
	}
}
