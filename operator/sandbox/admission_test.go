package sandbox_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox"
)

// admitted is part of TestRuns.
func (i *installed) admitted(t *testing.T) {
	base := &v1alpha1.ClusterSandboxRunTemplate{ObjectMeta: metav1.ObjectMeta{Name: "base"}, Spec: v1alpha1.SandboxRunTemplateSpec{
		Image: image, TimeoutSeconds: new(int64(600)), Env: []v1alpha1.SandboxEnv{{Name: "REGION", Value: "eu"}},
		Resources: &v1alpha1.SandboxResources{CPU: amount(t, "2")},
	}}
	limited := template(i.here, "limited")
	limited.Spec.TimeoutSeconds, limited.Spec.Env = new(int64(60)), []v1alpha1.SandboxEnv{{Name: "FIXED", Value: "yes"}}
	testkit.Create(t, admin, base, limited)
	t.Cleanup(func() { _ = admin.Delete(t.Context(), base) })
	t.Run("of templates", func(t *testing.T) { i.templates(t) })
	t.Run("of where Pods run", func(t *testing.T) { i.placement(t) })
	t.Run("of runs", func(t *testing.T) { i.runs(t) })
	t.Run("of changes to a run", func(t *testing.T) { i.changes(t) })
	t.Run("of policies and labels", func(t *testing.T) { i.guards(t) })
}

func (i *installed) templates(t *testing.T) {
	derived := func(change func(*v1alpha1.SandboxRunTemplateSpec)) client.Object {
		d := template(i.here, "derived")
		d.Spec.Image, d.Spec.BaseTemplateRef = "", &v1alpha1.SandboxBase{Name: "base"}
		change(&d.Spec)
		return d
	}
	with := func(change func(*v1alpha1.SandboxRunTemplateSpec)) client.Object {
		d := template(i.here, "plain")
		change(&d.Spec)
		return d
	}
	type spec = v1alpha1.SandboxRunTemplateSpec
	for sentence, test := range map[string]struct {
		object client.Object
		want   string
	}{
		"one with an image":               {with(func(*spec) {}), ""},
		"one without an image":            {with(func(s *spec) { s.Image = "" }), "image or baseTemplateRef must be set"},
		"one by a base":                   {derived(func(*spec) {}), ""},
		"one by a base that is not there": {derived(func(s *spec) { s.BaseTemplateRef.Name = "none" }), ""},
		"another image than the base's":   {derived(func(s *spec) { s.Image = image }), "baseTemplateRef locks image, command, args, workspace, egress and pod"},
		"another command":                 {derived(func(s *spec) { s.Command = []string{"sh"} }), "baseTemplateRef locks"},
		"another egress":                  {derived(func(s *spec) { s.Egress = &v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{Internet: true}} }), "baseTemplateRef locks"},
		"a longer time than the base's":   {derived(func(s *spec) { s.TimeoutSeconds = new(int64(601)) }), "spec.timeoutSeconds: 601 is more than the 600 of the template"},
		"more CPU than the base's": {
			derived(func(s *spec) { s.Resources = &v1alpha1.SandboxResources{CPU: amount(t, `"2500m"`)} }),
			"spec.resources.cpu: 2500m is more than the 2 of the template",
		},
		"less CPU than the base's": {derived(func(s *spec) { s.Resources = &v1alpha1.SandboxResources{CPU: amount(t, `"500m"`)} }), ""},
		"a variable of the base": {
			derived(func(s *spec) { s.Env = []v1alpha1.SandboxEnv{{Name: "REGION", Value: "us"}} }),
			"spec.env[0].name: the template sets REGION already",
		},
		"no CPU at all":                                 {with(func(s *spec) { s.Resources = &v1alpha1.SandboxResources{CPU: amount(t, "0")} }), "spec.resources.cpu: \"0\" is not an amount above 0"},
		"less than no CPU":                              {with(func(s *spec) { s.Resources = &v1alpha1.SandboxResources{CPU: amount(t, "-1")} }), "spec.resources.cpu: \"-1\" is not an amount above 0"},
		"memory in thousandths":                         {with(func(s *spec) { s.Resources = &v1alpha1.SandboxResources{Memory: amount(t, `"512m"`)} }), "spec.resources.memory: \"512m\" is in thousandths of a byte: write Mi for m"},
		"an absurd amount":                              {with(func(s *spec) { s.Resources = &v1alpha1.SandboxResources{CPU: amount(t, `"1e999999999"`)} }), "spec.resources.cpu"},
		"a reserved variable":                           {with(func(s *spec) { s.Env = []v1alpha1.SandboxEnv{{Name: "https_proxy", Value: "x"}} }), "spec.env[0].name: https_proxy is reserved"},
		"a grace of 301 s":                              {with(func(s *spec) { s.TerminationGracePeriodSeconds = new(int64(301)) }), "terminationGracePeriodSeconds"},
		"a grace below 0":                               {with(func(s *spec) { s.TerminationGracePeriodSeconds = new(int64(-1)) }), "terminationGracePeriodSeconds"},
		"a time of a week and a second":                 {with(func(s *spec) { s.TimeoutSeconds = new(int64(604801)) }), "timeoutSeconds"},
		"a workspace over the prompt":                   {with(func(s *spec) { s.Workspace = &v1alpha1.SandboxWorkspace{MountPath: "/admitkit/prompt"} }), "must be an absolute path"},
		"a workspace over everything":                   {with(func(s *spec) { s.Workspace = &v1alpha1.SandboxWorkspace{MountPath: "/var"} }), "must be an absolute path"},
		"a workspace that climbs":                       {with(func(s *spec) { s.Workspace = &v1alpha1.SandboxWorkspace{MountPath: "/a/../tmp"} }), "must be an absolute path"},
		"the internet, without the cluster's addresses": {with(func(s *spec) { s.Egress = &v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{Internet: true}} }), "spec.egress.internet: the addresses of the cluster are not known"},
		"names, without proxies": {with(func(s *spec) {
			s.Egress = &v1alpha1.SandboxEgress{Hosts: []v1alpha1.EgressName{{Host: "api.example.com"}}}
		}), "spec.egress.hosts: the controller makes no proxies, which hold Pods to names: let the operator set --sandbox-proxy-image"},
		"no names at all": {with(func(s *spec) { s.Egress = &v1alpha1.SandboxEgress{Hosts: []v1alpha1.EgressName{{}}} }), "spec.egress.hosts[0].host"},
		"a runtime of its own": {with(func(s *spec) {
			s.Pod = &v1alpha1.SandboxPod{RuntimeClassName: "gvisor", Devices: map[string]int64{"nvidia.com/gpu": 1}}
		}), ""},
		"other nodes":              {derived(func(s *spec) { s.Pod = &v1alpha1.SandboxPod{NodeSelector: map[string]string{"a": "b"}} }), "baseTemplateRef locks"},
		"a device that is none":    {with(func(s *spec) { s.Pod = &v1alpha1.SandboxPod{Devices: map[string]int64{"cpu": 100}} }), "spec.pod.devices: \"cpu\" is not the name of an extended resource"},
		"a resource of Kubernetes": {with(func(s *spec) { s.Pod = &v1alpha1.SandboxPod{Devices: map[string]int64{"x.kubernetes.io/y": 1}} }), "is not the name of an extended resource"},
		"no device":                {with(func(s *spec) { s.Pod = &v1alpha1.SandboxPod{Devices: map[string]int64{"nvidia.com/gpu": 0}} }), "spec.pod.devices[nvidia.com/gpu]: 0: must be at least 1"},
		"a Secret without a name":  {with(func(s *spec) { s.Pod = &v1alpha1.SandboxPod{ImagePullSecrets: []corev1.LocalObjectReference{{}}} }), "spec.pod.imagePullSecrets[0].name"},
		"a base of a base": {
			&v1alpha1.ClusterSandboxRunTemplate{ObjectMeta: metav1.ObjectMeta{Name: "chain"}, Spec: spec{BaseTemplateRef: &v1alpha1.SandboxBase{Name: "base"}}},
			"a ClusterSandboxRunTemplate has no base",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			err := admin.Create(t.Context(), test.object, client.DryRunAll)
			if test.want != "" {
				refused(t, err, test.want)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// placement is who may say where Pods run: nobody who may not create Pods.
func (i *installed) placement(t *testing.T) {
	grant(t, "carol", rbacv1.PolicyRule{APIGroups: []string{"admitkit.dev"}, Resources: []string{"sandboxruntemplates"}, Verbs: []string{"create", "update"}})
	added, err := server.AddUser("carol")
	if err != nil {
		t.Fatal(err)
	}
	carol := testkit.Client(t, added, scheme)
	urgent := &v1alpha1.SandboxPod{PriorityClassName: "system-cluster-critical"}
	placed := template(i.here, "placed")
	placed.Spec.Pod = urgent
	refused(t, carol.Create(t.Context(), placed.DeepCopy()), `spec.pod: user "carol" has not the right to create pods in namespace `+i.here)
	testkit.Create(t, i.alice, placed)
	placed.Spec.TimeoutSeconds = new(int64(60))
	if err := carol.Update(t.Context(), placed, client.DryRunAll); err != nil {
		t.Errorf("what another said, and nobody changes: %v", err)
	}
	placed.Spec.Pod.PriorityClassName = "system-node-critical"
	refused(t, carol.Update(t.Context(), placed, client.DryRunAll), "spec.pod")
}

func (i *installed) runs(t *testing.T) {
	from := func(configMap, secret string) *v1alpha1.SandboxPromptSource {
		s := &v1alpha1.SandboxPromptSource{}
		if configMap != "" {
			s.ConfigMapKeyRef = &v1alpha1.SandboxKey{Name: configMap, Key: "prompt"}
		}
		if secret != "" {
			s.SecretKeyRef = &v1alpha1.SandboxKey{Name: secret, Key: "prompt"}
		}
		return s
	}
	for sentence, test := range map[string]struct {
		change func(*v1alpha1.SandboxRun)
		want   string
	}{
		"one that its template allows":             {func(*v1alpha1.SandboxRun) {}, ""},
		"one whose template is not there yet":      {func(r *v1alpha1.SandboxRun) { r.Spec.TemplateRef.Name = "later" }, ""},
		"where nothing runs them":                  {func(r *v1alpha1.SandboxRun) { r.Namespace = i.elsewhere }, "nothing runs SandboxRuns there"},
		"no prompt":                                {func(r *v1alpha1.SandboxRun) { r.Spec.Prompt = "" }, "exactly one of prompt and promptFrom must be set"},
		"two prompts":                              {func(r *v1alpha1.SandboxRun) { r.Spec.PromptFrom = from("hers", "") }, "exactly one of prompt and promptFrom must be set"},
		"a prompt of 256 KiB":                      {func(r *v1alpha1.SandboxRun) { r.Spec.Prompt = strings.Repeat("a", 256<<10) }, ""},
		"a prompt of 256 KiB and a byte":           {func(r *v1alpha1.SandboxRun) { r.Spec.Prompt = strings.Repeat("a", 256<<10+1) }, "spec.prompt"},
		"as many letters, but more bytes":          {func(r *v1alpha1.SandboxRun) { r.Spec.Prompt = strings.Repeat("ü", 200<<10) }, "spec.prompt: 409600 bytes, at most 262144 are allowed"},
		"a prompt in a ConfigMap of theirs":        {func(r *v1alpha1.SandboxRun) { r.Spec.Prompt, r.Spec.PromptFrom = "", from("hers", "") }, ""},
		"a prompt in a ConfigMap they cannot read": {func(r *v1alpha1.SandboxRun) { r.Spec.Prompt, r.Spec.PromptFrom = "", from("another", "") }, "has not the right to get configmaps"},
		"a prompt in a Secret they cannot read":    {func(r *v1alpha1.SandboxRun) { r.Spec.Prompt, r.Spec.PromptFrom = "", from("", "token") }, "has not the right to get secrets"},
		"a prompt in two places":                   {func(r *v1alpha1.SandboxRun) { r.Spec.Prompt, r.Spec.PromptFrom = "", from("hers", "token") }, "exactly one of configMapKeyRef and secretKeyRef"},
		"an interactive one":                       {func(r *v1alpha1.SandboxRun) { r.Spec.Mode = v1alpha1.SandboxInteractive }, "spec.mode: Interactive runs are off: let the operator set --sandbox-interactive"},
		"in the name of another": {func(r *v1alpha1.SandboxRun) {
			r.Spec.Author = &v1alpha1.Author{Requester: v1alpha1.Requester{Username: "bob"}}
		}, "spec.author: the server sets it"},
		"a variable of the proxy": {func(r *v1alpha1.SandboxRun) { r.Spec.ExtraEnv = []v1alpha1.SandboxEnv{{Name: "NO_PROXY", Value: "*"}} }, "spec.extraEnv[0].name: NO_PROXY is reserved"},
		"a variable of ours": {func(r *v1alpha1.SandboxRun) {
			r.Spec.ExtraEnv = []v1alpha1.SandboxEnv{{Name: "ADMITKIT_RUN", Value: "x"}}
		}, "ADMITKIT_RUN is reserved"},
		"a variable of the template":        {func(r *v1alpha1.SandboxRun) { r.Spec.ExtraEnv = []v1alpha1.SandboxEnv{{Name: "FIXED", Value: "no"}} }, "the template sets FIXED already"},
		"a longer time than the template's": {func(r *v1alpha1.SandboxRun) { r.Spec.TimeoutSeconds = new(int64(61)) }, "spec.timeoutSeconds: 61 is more than the 60 of the template"},
		"more memory than the template's": {
			func(r *v1alpha1.SandboxRun) {
				r.Spec.Resources = &v1alpha1.SandboxResources{Memory: amount(t, `"1Gi"`)}
			},
			"spec.resources.memory: 1Gi is more than the 512Mi of the template",
		},
		"11 retries":     {func(r *v1alpha1.SandboxRun) { r.Spec.Retries = 11 }, "retries"},
		"a long name":    {func(r *v1alpha1.SandboxRun) { r.Name = strings.Repeat("a", 53) }, "metadata.name must have at most 52 characters"},
		"a kind unknown": {func(r *v1alpha1.SandboxRun) { r.Spec.TemplateRef.Kind = "Pod" }, "templateRef.kind"},
	} {
		t.Run(sentence, func(t *testing.T) {
			r := run(i.here, "asked", "limited")
			test.change(r)
			err := i.alice.Create(t.Context(), r, client.DryRunAll)
			switch {
			case test.want != "":
				refused(t, err, test.want)
			case err != nil:
				t.Error(err)
			case r.Spec.Author == nil || r.Spec.Author.Username != "alice":
				t.Errorf("the author is %+v", r.Spec.Author)
			}
		})
	}
}

func (i *installed) changes(t *testing.T) {
	r := run(i.here, "changes", "later")
	testkit.Create(t, i.alice, r)
	await(t, r, "waits for its template", in(v1alpha1.SandboxPending))
	patch := func(text string) error {
		return i.alice.Patch(t.Context(), r.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text)))
	}
	for text, want := range map[string]string{
		`{"spec": {"prompt": "Do something else."}}`:            "prompt cannot be changed",
		`{"spec": {"retries": 3}}`:                              "spec cannot be changed, but for cancelled",
		`{"spec": {"extraEnv": [{"name": "A", "value": "b"}]}}`: "spec cannot be changed, but for cancelled",
		`{"spec": {"author": {"username": "bob"}}}`:             "author cannot be changed",
		`{"spec": {"templateRef": {"name": "another"}}}`:        "templateRef cannot be changed",
	} {
		refused(t, patch(text), want)
	}
	status := r.DeepCopy()
	status.Status.Phase = v1alpha1.SandboxSucceeded
	refused(t, i.alice.Status().Update(t.Context(), status), "status: only admitkit writes it")
	// A manifest that is applied again has no author.
	again := r.DeepCopy()
	again.Spec.Author = nil
	if err := i.alice.Update(t.Context(), again); err != nil {
		t.Error(err)
	}
	if err := patch(`{"spec": {"cancelled": true}}`); err != nil {
		t.Error(err)
	}
	refused(t, patch(`{"spec": {"cancelled": false}}`), "cancelled cannot be taken back")
}

func (i *installed) guards(t *testing.T) {
	policy := func(selector metav1.LabelSelector) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: i.here, Name: "foreign"}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: selector, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}, Egress: []networkingv1.NetworkPolicyEgressRule{{}},
		}}
	}
	labelled := func(key, value string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	without := func(keys ...string) (s metav1.LabelSelector) {
		for _, key := range keys {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpDoesNotExist})
		}
		return s
	}
	for sentence, test := range map[string]struct {
		selector metav1.LabelSelector
		want     string
	}{
		"all Pods":                             {metav1.LabelSelector{}, "may select Pods of SandboxRuns"},
		"Pods of runs":                         {labelled(sandbox.LabelRun, "a"), "may select Pods of SandboxRuns"},
		"Pods of one Job":                      {labelled("batch.kubernetes.io/job-name", "sandbox-a"), "may select Pods of SandboxRuns"},
		"Pods by another label":                {labelled("app", "web"), ""},
		"Pods but those of runs":               {without(v1alpha1.LabelEgress), ""},
		"Pods but those of runs, and of seeds": {without(sandbox.LabelRun, sandbox.LabelWorkspace), ""},
		"Pods but those of seeds":              {without(sandbox.LabelWorkspace), "may select Pods of SandboxRuns"},
		"Pods but those of runs, not of seeds": {without(sandbox.LabelRun), "may select Pods of SandboxRuns"},
	} {
		err := i.alice.Create(t.Context(), policy(test.selector), client.DryRunAll)
		if test.want != "" {
			refused(t, err, test.want)
		} else if err != nil {
			t.Errorf("%s: %v", sentence, err)
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.here, Name: "of-a-run", Labels: map[string]string{sandbox.LabelRun: "a", v1alpha1.LabelEgress: "x"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: image}}, NodeName: "none"},
	}
	testkit.Create(t, i.As("system:serviceaccount:kube-system:job-controller", "system:masters"), pod)
	for _, text := range []string{`{"metadata": {"labels": {"app": "web"}}}`, `{"metadata": {"labels": {"admitkit.dev/egress": null}}}`, `{"metadata": {"labels": {"admitkit.dev/run": null}}}`} {
		patch := client.RawPatch("application/merge-patch+json", []byte(text))
		refused(t, i.alice.Patch(t.Context(), pod.DeepCopy(), patch), "nobody can change them")
		refused(t, i.alice.Status().Patch(t.Context(), pod.DeepCopy(), patch), "nobody can change them")
	}
	if err := i.alice.Patch(t.Context(), pod.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"annotations": {"a": "b"}}}`))); err != nil {
		t.Error(err)
	}
	if err := admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Error(err)
	}
}
