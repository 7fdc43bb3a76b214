package access_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/admit"
)

// offline returns a client of the extension's webhooks, without a cluster: what they refuse
// by what they are sent, and by what they read from the API server. They have no cache here.
func offline(t *testing.T, options access.Options, objects ...runtime.Object) *admit.Client {
	t.Helper()
	paths, err := filepath.Glob("../config/crd/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		crd := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.Unmarshal(text, &crd.Object)
		}
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, crd)
	}
	options.Namespaces = []string{admit.DefaultNamespace}
	return admit.New(t, access.New(options)).WithScheme(scheme).With(objects...).Strict()
}

// denial is what the API server would answer with.
func denial(result *admit.Result) error {
	if result.Allowed {
		return nil
	}
	return errors.New(result.Reason)
}

// webDeployment is a Deployment for webhooks to read.
func webDeployment() *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: admit.DefaultNamespace, Name: "web"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.com/web:1"}}},
		}},
	}
}

func TestTemplatesByWhichNobodyGetsAccessAreRefused(t *testing.T) {
	t.Parallel()
	c := offline(t, access.Options{}, webDeployment())
	value := func(text string) v1alpha1.JSONPatchOperation {
		return v1alpha1.JSONPatchOperation{Operation: "replace", Path: text}
	}
	for sentence, test := range map[string]struct {
		change func(*v1alpha1.PodAccessTemplate)
		parts  []string
	}{
		"a default over the maximum":       {func(p *v1alpha1.PodAccessTemplate) { p.Spec.AccessConfig.DefaultDuration = "3h" }, []string{"defaultDuration"}},
		"a default of nothing":             {func(p *v1alpha1.PodAccessTemplate) { p.Spec.AccessConfig.DefaultDuration = "0s" }, []string{"defaultDuration"}},
		"a command that cannot be parsed":  {func(p *v1alpha1.PodAccessTemplate) { p.Spec.AccessConfig.AccessCommand = "{{ .Metadata" }, []string{"accessCommand"}},
		"a command about an unknown field": {func(p *v1alpha1.PodAccessTemplate) { p.Spec.AccessConfig.AccessCommand = "{{ .Metadata.Title }}" }, []string{"accessCommand", "Title"}},
		"a command that does not end":      {func(p *v1alpha1.PodAccessTemplate) { p.Spec.AccessConfig.AccessCommand = `{{ printf "%5000s" "x" }}` }, []string{"accessCommand:1:", "printf", "is not supported", "{{ .Metadata.F }}"}},
		"a command that loops": {func(p *v1alpha1.PodAccessTemplate) {
			p.Spec.AccessConfig.AccessCommand = "{{ if .Metadata.UID }}{{ range 9223372036854775807 }}{{ end }}{{ end }}"
		}, []string{"accessCommand", "is not supported"}},
		"a patch of what is not there": {func(p *v1alpha1.PodAccessTemplate) {
			p.Spec.ControllerTargetMutationConfig.PatchSpecOperations = []v1alpha1.JSONPatchOperation{value("/spec/nothing")}
		}, []string{"patchSpecOperations"}},
		"a patch that makes no Pod": {func(p *v1alpha1.PodAccessTemplate) {
			p.Spec.ControllerTargetMutationConfig.PatchSpecOperations = []v1alpha1.JSONPatchOperation{{Operation: "add", Path: "/spec/contaners", Value: jsonValue("[]")}}
		}, []string{"contaners"}},
		"a container that the target has not": {func(p *v1alpha1.PodAccessTemplate) { p.Spec.ControllerTargetMutationConfig.DefaultContainerName = "db" }, []string{`no container "db"`}},
		"a podSpec without containers": {func(p *v1alpha1.PodAccessTemplate) {
			p.Spec.ControllerTargetRef, p.Spec.PodSpec = nil, &corev1.PodSpec{}
		}, []string{"containers"}},
		"resources over the caps": {func(p *v1alpha1.PodAccessTemplate) {
			p.Spec.MaxMemory = quantity("1Gi")
			p.Spec.ControllerTargetMutationConfig.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: *quantity("2Gi")}
		}, []string{"spec.maxMemory", "2Gi", "1Gi"}},
		"a cap of nothing":    {func(p *v1alpha1.PodAccessTemplate) { p.Spec.MaxCPU = quantity("0") }, []string{"spec.maxCpu: 0 must be more than 0; leave the field out for no cap"}},
		"a cap below nothing": {func(p *v1alpha1.PodAccessTemplate) { p.Spec.MaxStorage = quantity("-1Gi") }, []string{"spec.maxStorage: -1Gi must be more than 0"}},
		"a patch of the name": {func(p *v1alpha1.PodAccessTemplate) { patches(p, "/metadata/name", `"other"`) }, []string{"patchSpecOperations", "only /metadata/labels and /metadata/annotations"}},
		"a patch of an owner": {func(p *v1alpha1.PodAccessTemplate) {
			patches(p, "/metadata/ownerReferences", `[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"b"}]`)
		}, []string{"patchSpecOperations", "only /metadata/labels and /metadata/annotations"}},
		"a patch of finalizers": {func(p *v1alpha1.PodAccessTemplate) { patches(p, "/metadata/finalizers", `["a/b"]`) }, []string{"patchSpecOperations", "only /metadata/labels and /metadata/annotations"}},
		"a patch of the status": {func(p *v1alpha1.PodAccessTemplate) { patches(p, "/status/phase", `"Running"`) }, []string{"patchSpecOperations", "/status"}},
		"a patch of the kind":   {func(p *v1alpha1.PodAccessTemplate) { patches(p, "/kind", `"Node"`) }, []string{"patchSpecOperations", "apiVersion and kind cannot be changed"}},
		"a label of admitkit's": {func(p *v1alpha1.PodAccessTemplate) {
			p.Spec.ControllerTargetMutationConfig.PodLabels = map[string]string{access.LabelRequest: "other"}
		}, []string{"the label " + access.LabelRequest, "leave it out"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			p := podTemplate("", "refused", ref("Deployment", "web"), "devs")
			p.Spec.ControllerTargetMutationConfig = &v1alpha1.PodTemplateSpecMutationConfig{}
			test.change(p)
			refused(t, denial(c.Create(p)), test.parts...)
		})
	}
	t.Run("a target that is not there yet is no reason", func(t *testing.T) {
		for _, early := range []runtime.Object{podTemplate("", "early", ref("Deployment", "later"), "devs"), execTemplate("", "early", ref("Rollout", "later"), "devs")} {
			if result := c.Create(early); !result.Allowed || !strings.Contains(strings.Join(result.Warnings, ""), "does not exist yet") {
				t.Errorf("it is refused with %q, and warned of with %q", result.Reason, result.Warnings)
			}
		}
	})
}

// patches has a template add what is at a path.
func patches(p *v1alpha1.PodAccessTemplate, path, value string) {
	p.Spec.ControllerTargetMutationConfig.PatchSpecOperations = []v1alpha1.JSONPatchOperation{{Operation: "add", Path: path, Value: jsonValue(value)}}
}

// The table above holds where the webhooks are called as it assumes.
func TestATemplateByWhichNobodyGetsAccessIsRefusedByTheAPIServer(t *testing.T) {
	t.Parallel()
	namespace := common(t)
	pod, exec := podTemplate(namespace, "refused", ref("Deployment", "later"), "devs"), execTemplate(namespace, "refused", ref("Deployment", "later"), "devs")
	pod.Spec.AccessConfig.AccessCommand, exec.Spec.AccessConfig.DefaultDuration = "{{ .Metadata.Title }}", "3h"
	refused(t, admin.Create(t.Context(), pod), "accessCommand", "Title")
	refused(t, admin.Create(t.Context(), exec), "defaultDuration")
	early := podTemplate(namespace, "early", ref("Deployment", "later"), "devs")
	testkit.Create(t, admin, early)
	refused(t, patch(t, cluster.Admin(), early, `{"spec":{"accessConfig":{"defaultDuration":"3h"}}}`), "defaultDuration")
}

// refusals are what makes a template one that is refused, and what is said then.
type refusals map[string]struct {
	change func(*v1alpha1.PodAccessTemplate)
	want   string
}

var egressPorts = []v1alpha1.EgressPort{{Port: 1}}

func (r refusals) of(t *testing.T, namespace string, create func(*v1alpha1.PodAccessTemplate) error) {
	t.Helper()
	for sentence, test := range r {
		t.Run(sentence, func(t *testing.T) {
			template := heldTemplate(namespace, "wrong")
			template.Spec.Egress = &v1alpha1.Egress{}
			test.change(template)
			refused(t, create(template), test.want)
		})
	}
}

func TestTemplatesWhoseEgressCannotBeHeldAreRefused(t *testing.T) {
	t.Parallel()
	options := heldOptions()
	options.Egress.PodCIDRs = nil
	right := heldTemplate(admit.DefaultNamespace, "right")
	c := offline(t, options, right)
	refusals{
		"on the host's network": {func(t *v1alpha1.PodAccessTemplate) { t.Spec.PodSpec.HostNetwork = true }, "spec.egress: hostNetwork: no network policy holds a Pod on the host's network"},
		"with a label": {func(t *v1alpha1.PodAccessTemplate) {
			t.Spec.ControllerTargetMutationConfig = &v1alpha1.PodTemplateSpecMutationConfig{PodLabels: map[string]string{"app": "web"}}
		}, "spec.egress: the label app"},
		"with a label of ours": {func(t *v1alpha1.PodAccessTemplate) {
			t.Spec.ControllerTargetMutationConfig = &v1alpha1.PodTemplateSpecMutationConfig{PodLabels: map[string]string{v1alpha1.LabelEgress: "x"}}
		}, "admitkit.dev/egress"},
		"the internet, without ranges": {func(t *v1alpha1.PodAccessTemplate) { t.Spec.Egress.Internet = true }, "--cluster-pod-cidrs"},
		"a label that is none": {func(t *v1alpha1.PodAccessTemplate) {
			t.Spec.Egress.Pods = []v1alpha1.EgressPods{{MatchLabels: map[string]v1alpha1.LabelValue{"a/b/c": "b"}, Ports: egressPorts}}
		}, "spec.egress: pods[0].matchLabels"},
	}.of(t, "", func(template *v1alpha1.PodAccessTemplate) error { return denial(c.Create(template)) })
	t.Run("a Pod that names such a template is not held, and refused", func(t *testing.T) {
		pod := plainPod("", "own")
		pod.Annotations = map[string]string{access.AnnotationTemplate: right.Name}
		named := c.MatchConditions(map[string]bool{"names-a-template": true, "access-pod": false})
		refused(t, denial(named.Create(pod)), "has spec.egress, to which only the Pods of requests are held")
	})
}

func TestTheCRDRefusesAnEgressThatNamesNothing(t *testing.T) {
	t.Parallel()
	block := func(cidr string, except ...v1alpha1.CIDR) func(*v1alpha1.PodAccessTemplate) {
		return func(t *v1alpha1.PodAccessTemplate) {
			t.Spec.Egress.CIDRs = []v1alpha1.EgressCIDR{{CIDR: v1alpha1.CIDR(cidr), Except: except, Ports: egressPorts}}
		}
	}
	refusals{
		"a block with bits beyond":         {block("10.0.0.1/8"), "must be a block of addresses in its canonical form"},
		"an address":                       {block("10.0.0.1"), "must be a block of addresses"},
		"an exception elsewhere":           {block("10.0.0.0/8", "11.0.0.0/16"), "except must name parts of cidr"},
		"everything excepted":              {block("10.0.0.0/8", "10.0.0.0/8"), "except must name parts of cidr"},
		"an exception of the other family": {block("::/0", "10.0.0.0/8"), "except"},
		"Pods without labels": {func(t *v1alpha1.PodAccessTemplate) {
			t.Spec.Egress.Pods = []v1alpha1.EgressPods{{MatchLabels: map[string]v1alpha1.LabelValue{}, Ports: egressPorts}}
		}, "matchLabels"},
		"a port that is none": {func(t *v1alpha1.PodAccessTemplate) {
			t.Spec.Egress.Pods = []v1alpha1.EgressPods{{MatchLabels: map[string]v1alpha1.LabelValue{"a": "b"}, Ports: []v1alpha1.EgressPort{{Port: 9, EndPort: 8}}}}
		}, "endPort must not be less than port"},
	}.of(t, testkit.Namespace(t, admin), func(template *v1alpha1.PodAccessTemplate) error { return admin.Create(t.Context(), template) })
}
