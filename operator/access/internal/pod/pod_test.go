package pod

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// busy is the Pod template of a target with everything that an access Pod must
// not have.
func busy() *workload.Workload {
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	hook := &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"announce"}}}}
	always, grace := corev1.ContainerRestartPolicyAlways, int64(300)
	return &workload.Workload{
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "tier": "front"}, Annotations: map[string]string{"team": "shop"}},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, Hostname: "web", Subdomain: "peers",
				SchedulingGates:           []corev1.PodSchedulingGate{{Name: "example.com/gate"}},
				ReadinessGates:            []corev1.PodReadinessGate{{ConditionType: "example.com/lb"}},
				TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone"}},
				NodeSelector:              map[string]string{"os": "linux"},
				InitContainers:            []corev1.Container{{Name: "proxy", RestartPolicy: &always, StartupProbe: probe, Lifecycle: hook}},
				Containers: []corev1.Container{
					{
						Name: "web", Command: []string{"serve"}, Args: []string{"--all"}, LivenessProbe: probe, ReadinessProbe: probe, StartupProbe: probe, Lifecycle: hook,
						Env:   []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "B", Value: "$(A)"}, {Name: "C", Value: "c"}},
						Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}, VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
					},
					{Name: "side", LivenessProbe: probe, ReadinessProbe: probe, StartupProbe: probe},
				},
			},
		},
		Claims: []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec:       corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}}},
		}},
	}
}

func build(t *testing.T, config *v1alpha1.PodTemplateSpecMutationConfig) *corev1.Pod {
	t.Helper()
	pod, err := New(metav1.ObjectMeta{}, &v1alpha1.PodAccessTemplate{Spec: v1alpha1.PodAccessTemplateSpec{ControllerTargetMutationConfig: config}}, busy(), 90*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestAnAccessPodIsHarmlessWithoutAnyConfiguration(t *testing.T) {
	for name, config := range map[string]*v1alpha1.PodTemplateSpecMutationConfig{"none": nil, "an empty one": {}} {
		t.Run(name, func(t *testing.T) {
			pod := build(t, config)
			second, deadline := int64(1), int64(5400)
			always := corev1.ContainerRestartPolicyAlways
			want := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"team": "shop"}},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &second, ActiveDeadlineSeconds: &deadline,
					NodeSelector:   map[string]string{"os": "linux"},
					InitContainers: []corev1.Container{{Name: "proxy", RestartPolicy: &always}},
					Containers: []corev1.Container{
						{
							Name: "web", Command: []string{"serve"}, Args: []string{"--all"},
							Env:   []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "B", Value: "$(A)"}, {Name: "C", Value: "c"}},
							Ports: []corev1.ContainerPort{{ContainerPort: 80}}, VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
						},
						{Name: "side"},
					},
					Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
				},
			}
			if diff := cmp.Diff(want, pod); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEachKnobOfTheMutationTurns(t *testing.T) {
	value := func(text string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(text)} }
	web := func(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] }
	patched := func(operations ...v1alpha1.JSONPatchOperation) v1alpha1.PodTemplateSpecMutationConfig {
		return v1alpha1.PodTemplateSpecMutationConfig{PatchSpecOperations: operations}
	}
	for sentence, test := range map[string]struct {
		config v1alpha1.PodTemplateSpecMutationConfig
		got    func(*corev1.Pod) any
		want   any
	}{
		"defaultContainerName chooses the container": {v1alpha1.PodTemplateSpecMutationConfig{DefaultContainerName: "side", Command: &[]string{"sleep"}}, func(p *corev1.Pod) any { return p.Spec.Containers[1].Command }, []string{"sleep"}},
		"defaultContainerName tells kubectl":         {v1alpha1.PodTemplateSpecMutationConfig{DefaultContainerName: "side"}, func(p *corev1.Pod) any { return p.Annotations[annotationDefaultContainer] }, "side"},
		"command replaces the command":               {v1alpha1.PodTemplateSpecMutationConfig{Command: &[]string{"sleep", "1d"}}, func(p *corev1.Pod) any { return web(p).Command }, []string{"sleep", "1d"}},
		"command removes the args":                   {v1alpha1.PodTemplateSpecMutationConfig{Command: &[]string{"sleep"}}, func(p *corev1.Pod) any { return web(p).Args }, []string(nil)},
		"args replaces the args":                     {v1alpha1.PodTemplateSpecMutationConfig{Args: &[]string{"--none"}}, func(p *corev1.Pod) any { return append(web(p).Command, web(p).Args...) }, []string{"serve", "--none"}},
		"command and args go together":               {v1alpha1.PodTemplateSpecMutationConfig{Command: &[]string{"x"}, Args: &[]string{"y"}}, func(p *corev1.Pod) any { return append(web(p).Command, web(p).Args...) }, []string{"x", "y"}},
		"env is merged by name, in place":            {v1alpha1.PodTemplateSpecMutationConfig{Env: []corev1.EnvVar{{Name: "D", Value: "d"}, {Name: "A", Value: "z"}}}, func(p *corev1.Pod) any { return web(p).Env }, []corev1.EnvVar{{Name: "A", Value: "z"}, {Name: "B", Value: "$(A)"}, {Name: "C", Value: "c"}, {Name: "D", Value: "d"}}},
		"resources replaces the resources":           {v1alpha1.PodTemplateSpecMutationConfig{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}}, func(p *corev1.Pod) any { return web(p).Resources.Limits.Cpu().String() }, "1"},
		"podAnnotations are added":                   {v1alpha1.PodTemplateSpecMutationConfig{PodAnnotations: map[string]string{"a": "b"}}, func(p *corev1.Pod) any { return p.Annotations }, map[string]string{"team": "shop", "a": "b"}},
		"purgeAnnotations removes the target's":      {v1alpha1.PodTemplateSpecMutationConfig{PurgeAnnotations: true, PodAnnotations: map[string]string{"a": "b"}}, func(p *corev1.Pod) any { return p.Annotations }, map[string]string{"a": "b"}},
		"podLabels are the labels":                   {v1alpha1.PodTemplateSpecMutationConfig{PodLabels: map[string]string{"a": "b"}}, func(p *corev1.Pod) any { return p.Labels }, map[string]string{"a": "b"}},
		"nodeSelector is added":                      {v1alpha1.PodTemplateSpecMutationConfig{NodeSelector: map[string]string{"disk": "ssd"}}, func(p *corev1.Pod) any { return p.Spec.NodeSelector }, map[string]string{"os": "linux", "disk": "ssd"}},
		"keepLivenessProbe keeps that of the container": {v1alpha1.PodTemplateSpecMutationConfig{KeepLivenessProbe: true}, func(p *corev1.Pod) any {
			return []bool{web(p).LivenessProbe != nil, web(p).ReadinessProbe != nil, web(p).StartupProbe != nil, p.Spec.Containers[1].LivenessProbe != nil}
		}, []bool{true, false, false, false}},
		"keepReadinessProbe keeps that of the container": {v1alpha1.PodTemplateSpecMutationConfig{KeepReadinessProbe: true}, func(p *corev1.Pod) any {
			return []bool{web(p).LivenessProbe != nil, web(p).ReadinessProbe != nil, web(p).StartupProbe != nil, p.Spec.Containers[1].ReadinessProbe != nil}
		}, []bool{false, true, false, false}},
		"keepStartupProbe keeps that of the container": {v1alpha1.PodTemplateSpecMutationConfig{KeepStartupProbe: true}, func(p *corev1.Pod) any {
			return []bool{web(p).LivenessProbe != nil, web(p).ReadinessProbe != nil, web(p).StartupProbe != nil, p.Spec.Containers[1].StartupProbe != nil}
		}, []bool{false, false, true, false}},
		"keepTerminationGracePeriod keeps the period": {v1alpha1.PodTemplateSpecMutationConfig{KeepTerminationGracePeriod: true}, func(p *corev1.Pod) any { return *p.Spec.TerminationGracePeriodSeconds }, int64(300)},
		"keepTopologySpreadConstraints keeps them":    {v1alpha1.PodTemplateSpecMutationConfig{KeepTopologySpreadConstraints: true}, func(p *corev1.Pod) any { return len(p.Spec.TopologySpreadConstraints) }, 1},
		"claimTemplates can be volumes of their own": {v1alpha1.PodTemplateSpecMutationConfig{ClaimTemplates: v1alpha1.ClaimTemplatesEphemeral}, func(p *corev1.Pod) any {
			return p.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec.Resources.Requests.Storage().String()
		}, "10Gi"},
		"a patch adds an object":    {patched(v1alpha1.JSONPatchOperation{Operation: "add", Path: "/spec/tolerations", Value: value(`[{"key":"a","operator":"Exists"}]`)}), func(p *corev1.Pod) any { return p.Spec.Tolerations }, []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}},
		"a patch adds a number":     {patched(v1alpha1.JSONPatchOperation{Operation: "add", Path: "/spec/priority", Value: value(`2000000001`)}), func(p *corev1.Pod) any { return *p.Spec.Priority }, int32(2000000001)},
		"a patch adds a boolean":    {patched(v1alpha1.JSONPatchOperation{Operation: "add", Path: "/spec/shareProcessNamespace", Value: value(`true`)}), func(p *corev1.Pod) any { return *p.Spec.ShareProcessNamespace }, true},
		"a patch adds a null":       {patched(v1alpha1.JSONPatchOperation{Operation: "add", Path: "/spec/nodeSelector"}), func(p *corev1.Pod) any { return p.Spec.NodeSelector }, map[string]string(nil)},
		"a patch replaces a string": {patched(v1alpha1.JSONPatchOperation{Operation: "replace", Path: "/spec/containers/0/name", Value: value(`"oz"`)}), func(p *corev1.Pod) any { return web(p).Name }, "oz"},
		"a patch removes":           {patched(v1alpha1.JSONPatchOperation{Operation: "remove", Path: "/spec/containers/1"}), func(p *corev1.Pod) any { return len(p.Spec.Containers) }, 1},
		"a patch moves":             {patched(v1alpha1.JSONPatchOperation{Operation: "move", From: "/spec/containers/1", Path: "/spec/containers/0"}), func(p *corev1.Pod) any { return web(p).Name }, "side"},
		"a patch copies":            {patched(v1alpha1.JSONPatchOperation{Operation: "copy", From: "/spec/containers/0/command", Path: "/spec/containers/1/command"}), func(p *corev1.Pod) any { return p.Spec.Containers[1].Command }, []string{"serve"}},
		"a patch tests":             {patched(v1alpha1.JSONPatchOperation{Operation: "test", Path: "/spec/containers/0/name", Value: value(`"web"`)}), func(p *corev1.Pod) any { return web(p).Name }, "web"},
		"a patch reaches labels":    {patched(v1alpha1.JSONPatchOperation{Operation: "add", Path: "/metadata/labels", Value: value(`{"a":"b"}`)}), func(p *corev1.Pod) any { return p.Labels }, map[string]string{"a": "b"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.got(build(t, &test.config))); diff != "" {
				t.Error(diff)
			}
		})
	}
	for sentence, operation := range map[string]v1alpha1.JSONPatchOperation{
		"of the name":                {Operation: "add", Path: "/metadata/name", Value: value(`"other"`)},
		"a test that fails":          {Operation: "test", Path: "/spec/containers/0/name", Value: value(`"db"`)},
		"a path that is not there":   {Operation: "remove", Path: "/spec/containers/7"},
		"a negative index":           {Operation: "remove", Path: "/spec/containers/-1"},
		"a value of the wrong type":  {Operation: "replace", Path: "/spec/containers/0/name", Value: value(`7`)},
		"a field that no Pod has":    {Operation: "add", Path: "/spec/containres", Value: value(`[]`)},
		"a Pod without a container":  {Operation: "replace", Path: "/spec/containers", Value: value(`[]`)},
		"an operation nobody knows":  {Operation: "merge", Path: "/spec"},
		"a value that is no pointer": {Operation: "add", Path: "spec", Value: value(`{}`)},
	} {
		t.Run("not "+sentence, func(t *testing.T) {
			config := patched(operation)
			_, err := New(metav1.ObjectMeta{}, &v1alpha1.PodAccessTemplate{Spec: v1alpha1.PodAccessTemplateSpec{ControllerTargetMutationConfig: &config}}, busy(), 90*time.Minute)
			if err == nil || !strings.Contains(err.Error(), "patchSpecOperations") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestTheCapsHold(t *testing.T) {
	quantity := func(text string) *resource.Quantity {
		q := resource.MustParse(text)
		return &q
	}
	list := func(name corev1.ResourceName, text string) corev1.ResourceList {
		return corev1.ResourceList{name: resource.MustParse(text)}
	}
	for sentence, test := range map[string]struct {
		template v1alpha1.PodAccessTemplateSpec
		web      corev1.ResourceRequirements
		side     corev1.ResourceRequirements
		want     string // of the limits, as "name web side", or of the error
	}{
		"containers without limits share":     {template: v1alpha1.PodAccessTemplateSpec{MaxCPU: quantity("3")}, want: "cpu 1 1"},
		"what has no limit gets what is left": {template: v1alpha1.PodAccessTemplateSpec{MaxMemory: quantity("3Gi")}, web: corev1.ResourceRequirements{Limits: list("memory", "1Gi")}, want: "memory 1Gi 1Gi"},
		"limits over the cap":                 {template: v1alpha1.PodAccessTemplateSpec{MaxCPU: quantity("1")}, web: corev1.ResourceRequirements{Limits: list("cpu", "2")}, want: "error spec.maxCpu: the limits of the containers come to 2, more than 1"},
		"limits over the cap together":        {template: v1alpha1.PodAccessTemplateSpec{MaxCPU: quantity("1")}, web: corev1.ResourceRequirements{Limits: list("cpu", "600m")}, side: corev1.ResourceRequirements{Limits: list("cpu", "600m")}, want: "error spec.maxCpu"},
		"requests over the cap":               {template: v1alpha1.PodAccessTemplateSpec{MaxMemory: quantity("1Gi")}, web: corev1.ResourceRequirements{Requests: list("memory", "2Gi")}, want: "error spec.maxMemory: the requests"},
		"a request over its share":            {template: v1alpha1.PodAccessTemplateSpec{MaxMemory: quantity("3Gi")}, web: corev1.ResourceRequirements{Requests: list("memory", "2Gi")}, want: "error spec.maxMemory: container"},
		"nothing left for who has no limit":   {template: v1alpha1.PodAccessTemplateSpec{MaxCPU: quantity("1")}, web: corev1.ResourceRequirements{Limits: list("cpu", "1")}, want: "error spec.maxCpu: container"},
		"storage is what containers and claims need": {template: v1alpha1.PodAccessTemplateSpec{
			MaxStorage: quantity("13Gi"), ControllerTargetMutationConfig: &v1alpha1.PodTemplateSpecMutationConfig{ClaimTemplates: v1alpha1.ClaimTemplatesEphemeral},
		}, want: "ephemeral-storage 1Gi 1Gi"},
		"claims over the cap": {template: v1alpha1.PodAccessTemplateSpec{
			MaxStorage: quantity("9Gi"), ControllerTargetMutationConfig: &v1alpha1.PodTemplateSpecMutationConfig{ClaimTemplates: v1alpha1.ClaimTemplatesEphemeral},
		}, want: "error spec.maxStorage: the ephemeral volumes ask for 10Gi"},
		"a patch does not escape": {template: v1alpha1.PodAccessTemplateSpec{
			MaxCPU: quantity("1"), ControllerTargetMutationConfig: &v1alpha1.PodTemplateSpecMutationConfig{PatchSpecOperations: []v1alpha1.JSONPatchOperation{{
				Operation: "add", Path: "/spec/containers/0/resources", Value: &apiextensionsv1.JSON{Raw: []byte(`{"limits":{"cpu":"8"}}`)},
			}}},
		}, want: "error spec.maxCpu"},
	} {
		t.Run(sentence, func(t *testing.T) {
			target := busy()
			target.Template.Spec.Containers[0].Resources, target.Template.Spec.Containers[1].Resources = test.web, test.side
			pod, err := New(metav1.ObjectMeta{}, &v1alpha1.PodAccessTemplate{Spec: test.template}, target, 90*time.Minute)
			if err != nil {
				if want, isError := strings.CutPrefix(test.want, "error "); !isError || !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %v, want %s", err, test.want)
				}
				return
			}
			name, _, _ := strings.Cut(test.want, " ")
			got := name
			for _, c := range pod.Spec.Containers {
				limit := c.Resources.Limits[corev1.ResourceName(name)]
				got += " " + limit.String()
			}
			if got != test.want {
				t.Errorf("the limits are %s, want %s", got, test.want)
			}
		})
	}
}
