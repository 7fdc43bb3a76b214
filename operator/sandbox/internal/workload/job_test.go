package workload

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

const digested = "example.com/agent@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// planned returns the Job of a run by a template.
func planned(t *testing.T, template *v1alpha1.SandboxRunTemplateSpec, spec *v1alpha1.SandboxRunSpec) *batchv1.Job {
	t.Helper()
	p, err := Of(template, nil)
	if err == nil {
		p, err = p.With(spec)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.Job(&v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u"}, Spec: *spec})
}

// envOf is the environment of a container, of two variables of a name the last.
func envOf(c *corev1.Container) map[string]string {
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	return env
}

func TestTheJobOfARunHasTheLimitsOfItsTemplate(t *testing.T) {
	batch := v1alpha1.SandboxRunSpec{Prompt: "p"}
	job := planned(t, &v1alpha1.SandboxRunTemplateSpec{Image: image}, &batch)
	pod := job.Spec.Template.Spec
	if *pod.ActiveDeadlineSeconds != 1860 {
		t.Errorf("without its Job the Pod runs for %d s", *pod.ActiveDeadlineSeconds)
	}
	if job.Name != "sandbox-b" || *job.Spec.ActiveDeadlineSeconds != 1800 || *job.Spec.BackoffLimit != 0 || *pod.TerminationGracePeriodSeconds != 60 || pod.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("%+v", job.Spec)
	}
	if v := pod.Volumes[0]; v.Name != "workspace" || v.EmptyDir == nil || v.EmptyDir.SizeLimit.String() != "1Gi" {
		t.Errorf("%+v", v)
	}
	job = planned(t, &v1alpha1.SandboxRunTemplateSpec{Image: image, TimeoutSeconds: new(int64(60)), TerminationGracePeriodSeconds: new(int64(300))}, &v1alpha1.SandboxRunSpec{TimeoutSeconds: new(int64(30)), Retries: 3})
	if pod := job.Spec.Template.Spec; *job.Spec.ActiveDeadlineSeconds != 30 || *job.Spec.BackoffLimit != 3 || *pod.TerminationGracePeriodSeconds != 300 {
		t.Errorf("%+v", job.Spec)
	}
	job = planned(t, &v1alpha1.SandboxRunTemplateSpec{Image: image, Interactive: &v1alpha1.InteractiveLimits{}}, &v1alpha1.SandboxRunSpec{Mode: v1alpha1.SandboxInteractive})
	if *job.Spec.ActiveDeadlineSeconds != 24*3600 {
		t.Errorf("an Interactive run ends after %d s", *job.Spec.ActiveDeadlineSeconds)
	}
}

func TestThePodOfARunIsNobodyAndHasNoToken(t *testing.T) {
	pod := planned(t, &v1alpha1.SandboxRunTemplateSpec{Image: image}, &v1alpha1.SandboxRunSpec{}).Spec.Template.Spec
	context, c := pod.SecurityContext, pod.Containers[0].SecurityContext
	if *pod.AutomountServiceAccountToken || pod.ServiceAccountName != "" || len(pod.InitContainers) > 0 {
		t.Errorf("%+v", pod)
	}
	if *context.RunAsUser != 65532 || *context.FSGroup != 65532 || !*context.RunAsNonRoot || context.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%+v", context)
	}
	if *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || *c.Privileged || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(c.Capabilities.Add) > 0 {
		t.Errorf("%+v", c)
	}
	for _, v := range pod.Volumes {
		if v.Projected != nil || v.HostPath != nil {
			t.Errorf("%+v", v)
		}
	}
}

func TestThePodOfARunIsWhereItsTemplateSays(t *testing.T) {
	of := v1alpha1.SandboxPod{
		RuntimeClassName: "gvisor", NodeSelector: map[string]string{"pool": "agents"}, PriorityClassName: "low",
		Tolerations: []corev1.Toleration{{Key: "agents"}}, Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1}}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("gpus")}}, Devices: map[string]int64{"example.com/fpga": 2},
	}
	pod := planned(t, &v1alpha1.SandboxRunTemplateSpec{Image: image, Pod: &of}, &v1alpha1.SandboxRunSpec{}).Spec.Template.Spec
	got := v1alpha1.SandboxPod{
		RuntimeClassName: *pod.RuntimeClassName, NodeSelector: pod.NodeSelector, PriorityClassName: pod.PriorityClassName, Tolerations: pod.Tolerations, Affinity: pod.Affinity,
		TopologySpreadConstraints: pod.TopologySpreadConstraints, ImagePullSecrets: pod.ImagePullSecrets, ResourceClaims: pod.ResourceClaims, Devices: of.Devices,
	}
	if !reflect.DeepEqual(got, of) {
		t.Errorf("%+v", got)
	}
	resources := pod.Containers[0].Resources
	for _, list := range []corev1.ResourceList{resources.Limits, resources.Requests} {
		if fpga := list["example.com/fpga"]; fpga.Value() != 2 || len(list) != 4 {
			t.Errorf("%v", list)
		}
	}
	if len(resources.Claims) != 1 || resources.Claims[0].Name != "gpu" {
		t.Errorf("%v", resources.Claims)
	}
	plain := planned(t, &v1alpha1.SandboxRunTemplateSpec{Image: image}, &v1alpha1.SandboxRunSpec{}).Spec.Template.Spec
	if plain.RuntimeClassName != nil || len(plain.Containers[0].Resources.Limits) != 3 {
		t.Errorf("a template that says nothing: %+v", plain)
	}
}

func TestWhatTheSandboxSetsWinsOverTheRunsVariables(t *testing.T) {
	p := &Plan{Image: image, mountPath: "/w", env: []v1alpha1.SandboxEnv{{Name: "HOME", Value: "/theirs"}, {Name: "ADMITKIT_RUN", Value: "theirs"}, {Name: "A", Value: "b"}}}
	pod := p.podOf(&v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1alpha1.SandboxRunSpec{Model: "m"}})
	if env := envOf(&pod.Containers[0]); env["HOME"] != "/w" || env["ADMITKIT_RUN"] != "b" || env["ADMITKIT_MODEL"] != "m" || env["A"] != "b" {
		t.Errorf("%v", env)
	}
}

func TestAnImageWithoutADigestIsPulledAlways(t *testing.T) {
	for of, want := range map[string]corev1.PullPolicy{image: corev1.PullAlways, digested: corev1.PullIfNotPresent} {
		pod := planned(t, &v1alpha1.SandboxRunTemplateSpec{Image: of}, &v1alpha1.SandboxRunSpec{}).Spec.Template.Spec
		seed, err := SeedJob(seeded(), of)
		if err != nil || pod.Containers[0].ImagePullPolicy != want || seed.Spec.Template.Spec.Containers[0].ImagePullPolicy != want {
			t.Errorf("%s: %s, of a seed %+v, %v", of, pod.Containers[0].ImagePullPolicy, seed, err)
		}
	}
}

const image = "example.com/agent:1"

func seeded() *v1alpha1.Workspace {
	return &v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "w", UID: "v"}, Spec: v1alpha1.WorkspaceSpec{Seed: &v1alpha1.WorkspaceSeed{
		Repos: []v1alpha1.WorkspaceRepo{{URL: "https://git.example.com/a", CredentialsFrom: &v1alpha1.WorkspaceSecret{Name: "git"}}},
	}}}
}

func TestTheJobThatSeedsHasOneAttemptOfTenMinutes(t *testing.T) {
	job, err := SeedJob(seeded(), digested)
	if err != nil {
		t.Fatal(err)
	}
	pod := job.Spec.Template.Spec
	if *pod.ActiveDeadlineSeconds != 660 {
		t.Errorf("without its Job the Pod fetches for %d s", *pod.ActiveDeadlineSeconds)
	}
	if job.Name != "workspace-w" || *job.Spec.BackoffLimit != 0 || *job.Spec.ActiveDeadlineSeconds != 600 || *job.Spec.TTLSecondsAfterFinished != 3600 || *pod.TerminationGracePeriodSeconds != 30 {
		t.Errorf("%+v", job.Spec)
	}
	if *pod.SecurityContext.RunAsUser != 65532 || *pod.SecurityContext.RunAsGroup != 65532 || *pod.AutomountServiceAccountToken || pod.ServiceAccountName != "" {
		t.Errorf("%+v", pod)
	}
	if labels := job.Spec.Template.Labels; labels[v1alpha1.LabelSandboxRun] != "" || labels[v1alpha1.LabelWorkspace] != "w" || labels[v1alpha1.LabelEgress] != "v" {
		t.Errorf("%v", labels)
	}
	claim, err := Claim(seeded())
	if err != nil || claim.Name != "workspace-w" || claim.Spec.Resources.Requests.Storage().String() != "1Gi" {
		t.Errorf("%+v, %v", claim, err)
	}
}

// withProxy is the Pod of a run in a mode of interception.
func withProxy(t *testing.T, mode v1alpha1.InterceptionMode) corev1.PodSpec {
	t.Helper()
	job := planned(t, &v1alpha1.SandboxRunTemplateSpec{Image: image}, &v1alpha1.SandboxRunSpec{})
	p := Proxy{
		Mode: mode, InContainer: []string{"MODEL"}, Image: digested, BrokerURL: "https://sandbox-broker.broker.svc:8443", BrokerPort: 8443,
		Denied: []string{"10.244.0.0/16", "10.96.0.0/12", "10.0.0.1/32", "2001:db8::1/128"},
	}
	p.Into(job)
	return job.Spec.Template.Spec
}

func TestTheProxyBeginsBeforeTheWorkAndAloneHasAToken(t *testing.T) {
	pod := withProxy(t, v1alpha1.InterceptionTransparent)
	var names []string
	for _, c := range pod.InitContainers {
		names = append(names, c.Name)
	}
	if !slices.Equal(names, []string{"egress-redirect", "egress-proxy"}) {
		t.Fatalf("%q", names)
	}
	redirect, proxy := pod.InitContainers[0], pod.InitContainers[1]
	if redirect.RestartPolicy != nil || *redirect.SecurityContext.RunAsUser != 0 || !slices.Equal(redirect.SecurityContext.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}) {
		t.Errorf("%+v", redirect)
	}
	if *proxy.RestartPolicy != corev1.ContainerRestartPolicyAlways || *proxy.SecurityContext.RunAsUser != 1337 || !*proxy.SecurityContext.ReadOnlyRootFilesystem || len(proxy.SecurityContext.Capabilities.Add) > 0 {
		t.Errorf("%+v", proxy)
	}
	if r := proxy.Resources; r.Requests.Cpu().String() != "10m" || r.Requests.Memory().String() != "32Mi" || r.Limits.Memory().String() != "128Mi" {
		t.Errorf("%+v", r)
	}
	args := strings.Join(proxy.Args, " ")
	for _, want := range []string{"--mode=transparent", "--address=127.0.0.1:15001", "--deny-cidr=10.244.0.0/16", "--deny-cidr=10.96.0.0/12", "--deny-cidr=10.0.0.1/32", "--deny-cidr=2001:db8::1/128", "--broker-url=https://sandbox-broker.broker.svc:8443"} {
		if !strings.Contains(args, want) {
			t.Errorf("%s lacks %s", args, want)
		}
	}
	tokens := 0
	for _, v := range pod.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if token := source.ServiceAccountToken; token != nil && token.Audience == "admitkit-broker" && v.Name == "proxy" {
				tokens++
			}
		}
	}
	if tokens != 1 || *pod.AutomountServiceAccountToken || slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "proxy" }) {
		t.Errorf("%d tokens: %+v", tokens, pod.Containers[0].VolumeMounts)
	}
}

// Without a broker there is nobody whom the Pod could ask: it has no token, and no account.
func TestAProxyWithoutABrokerHasAListAndNoToken(t *testing.T) {
	job := planned(t, &v1alpha1.SandboxRunTemplateSpec{Image: image}, &v1alpha1.SandboxRunSpec{})
	p := Proxy{Mode: v1alpha1.InterceptionTransparent, Image: digested, Hosts: []v1alpha1.EgressName{
		{Host: "*.example.com", Ports: []int32{80, 443}}, {Host: "api.example.com", OwnCredentials: &v1alpha1.OwnCredentials{Headers: []string{"X-Mine"}, QueryKeys: []string{"$(HOME)", "$$"}}},
	}}
	p.Into(job)
	pod := job.Spec.Template.Spec
	for _, v := range pod.Volumes {
		if v.Name == "proxy" && (len(v.Projected.Sources) != 1 || v.Projected.Sources[0].Secret == nil || v.Projected.Sources[0].Secret.Name != "sandbox-b-proxy") {
			t.Errorf("%+v", v.Projected.Sources)
		}
	}
	if pod.ServiceAccountName != "" || *pod.AutomountServiceAccountToken {
		t.Errorf("the Pod is of account %q", pod.ServiceAccountName)
	}
	for _, c := range pod.InitContainers {
		for _, arg := range c.Args {
			if strings.HasPrefix(arg, "--broker") {
				t.Errorf("%s has %s", c.Name, arg)
			}
			text, is := strings.CutPrefix(arg, "--hosts=")
			var names []protocol.Name
			if err := json.Unmarshal([]byte(text), &names); is && (err != nil || strings.Contains(text, "$") || !reflect.DeepEqual(names, []protocol.Name{
				{Host: "*.example.com", Ports: []int32{80, 443}}, {Host: "api.example.com", Headers: []string{"X-Mine"}, QueryKeys: []string{"$(HOME)", "$$"}},
			})) {
				t.Errorf("%v: %s", err, text)
			}
		}
	}
	if args := pod.InitContainers[1].Args; !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--hosts=") }) {
		t.Errorf("%q", args)
	}
}

func TestNamesThatNoProxyCouldHoldAreRefused(t *testing.T) {
	for host, want := range map[string]string{
		"api.example.com": "", "*.example.com": "", "*": "would allow every name", "*.com": "whole top-level domain", "192.0.2.1": "is an address", "api.example.com:443": "leave out scheme and path, and write ports",
		"https://api.example.com": "leave out scheme", "db.shop.svc": "internal to a cluster", "API.example.com": "is not a DNS name in lower case", "api": "has only one label",
	} {
		_, err := Of(&v1alpha1.SandboxRunTemplateSpec{Image: image, Egress: &v1alpha1.SandboxEgress{Hosts: []v1alpha1.EgressName{{Host: "fine.example.com"}, {Host: host}}}}, nil)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), "egress.hosts[1].host: ") || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", host, err, want)
		}
	}
	_, err := Of(&v1alpha1.SandboxRunTemplateSpec{Image: image, Egress: &v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{DNS: new(false)}, Hosts: []v1alpha1.EgressName{{Host: "api.example.com"}}}}, nil)
	if err == nil || !strings.Contains(err.Error(), "egress.dns: false: the names in hosts must be looked up: leave it out") {
		t.Errorf("%v", err)
	}
}

// An image of the author's choice fetches: it has nothing by which the broker could be asked, and no credential.
func TestTheProxyOfASeedAloneHasItsCredential(t *testing.T) {
	ws := seeded()
	ws.Spec.Seed.Image, ws.Spec.Seed.Repos = "example.com/mine:1", []v1alpha1.WorkspaceRepo{{URL: "https://git.example.com/a", Credential: "git"}}
	for broker, url := range map[bool]string{true: "https://sandbox-broker.broker.svc:8443", false: ""} {
		job, err := SeedJob(ws, digested)
		if err != nil {
			t.Fatal(err)
		}
		p := Proxy{Mode: v1alpha1.InterceptionTransparent, Image: digested, BrokerURL: url, Hosts: []v1alpha1.EgressName{{Host: "git.example.com"}}}
		p.Into(job)
		pod := job.Spec.Template.Spec
		work := &pod.Containers[0]
		var mounts []string
		for _, m := range work.VolumeMounts {
			mounts = append(mounts, m.Name)
		}
		if work.Image != ws.Spec.Seed.Image || !slices.Equal(mounts, []string{"workspace", "tmp", "ca"}) || len(work.EnvFrom) > 0 || slices.ContainsFunc(work.Env, func(e corev1.EnvVar) bool { return e.ValueFrom != nil }) {
			t.Errorf("the container of the seed has %q, %+v", mounts, work.Env)
		}
		if env := envOf(work); env["GIT_SSL_CAINFO"] != "/admitkit/ca/ca.crt" || env["SSL_CERT_FILE"] != "/admitkit/ca/ca.crt" || strings.Contains(env["ADMITKIT_SEED"], "credentials") {
			t.Errorf("%v", env)
		}
		for _, v := range pod.Volumes {
			if v.Name == "ca" && (v.Secret.SecretName != "workspace-w-proxy" || len(v.Secret.Items) != 1 || v.Secret.Items[0].Key != "ca.crt") {
				t.Errorf("%+v", v.Secret)
			}
			if v.Name == "proxy" && (v.Projected.Sources[0].Secret.Name != "workspace-w-proxy" || (len(v.Projected.Sources) == 2) != broker) {
				t.Errorf("%+v", v.Projected)
			}
		}
		if *pod.AutomountServiceAccountToken || pod.InitContainers[0].Name != "egress-redirect" || pod.InitContainers[1].Name != "egress-proxy" {
			t.Errorf("%+v", pod.InitContainers)
		}
	}
}

func TestASeedWithAProxyNamesWhatThatLetsThrough(t *testing.T) {
	type repo = v1alpha1.WorkspaceRepo
	type seed = v1alpha1.WorkspaceSeed
	secret := &v1alpha1.WorkspaceSecret{Name: "hers"}
	names := func(e ...v1alpha1.EgressName) *v1alpha1.SandboxEgress { return &v1alpha1.SandboxEgress{Hosts: e} }
	of := func(host string, ports ...int32) *v1alpha1.SandboxEgress {
		return names(v1alpha1.EgressName{Host: host, Ports: ports})
	}
	own := v1alpha1.EgressName{Host: "git.example.com", OwnCredentials: &v1alpha1.OwnCredentials{Headers: []string{"authorization"}}}
	const url = "https://git.example.com/a"
	for sentence, test := range map[string]struct {
		seed seed
		want string
	}{
		"its host is listed":                 {seed{Repos: []repo{{URL: url}}, Egress: of("git.example.com")}, ""},
		"its host is below a name":           {seed{Repos: []repo{{URL: "https://git.example.com:443/a"}}, Egress: of("*.example.com")}, ""},
		"its host is not listed":             {seed{Repos: []repo{{URL: url}}, Egress: of("other.example.com")}, "seed.repos[0].url: egress.hosts does not list git.example.com: add it there"},
		"its host is listed for HTTP":        {seed{Repos: []repo{{URL: url}}, Egress: of("git.example.com", 80)}, "does not list"},
		"another port is not the proxy's":    {seed{Repos: []repo{{URL: "https://git.example.com:8443/a"}}, Egress: of("other.example.com")}, ""},
		"ssh is not the proxy's":             {seed{Repos: []repo{{URL: "git@git.example.com:a", CredentialsFrom: secret}}, Egress: of("other.example.com")}, ""},
		"no host could be held to":           {seed{Repos: []repo{{URL: url}}, Egress: of("git")}, "seed.egress.hosts[0].host: "},
		"a Secret that the proxy removes":    {seed{Repos: []repo{{URL: url, CredentialsFrom: secret}}, Egress: of("git.example.com")}, "seed.repos[0].credentialsFrom: the proxy of the seed would remove it"},
		"a Secret that the proxy lets pass":  {seed{Repos: []repo{{URL: url, CredentialsFrom: secret}}, Egress: names(own)}, ""},
		"authorities beside names":           {seed{Repos: []repo{{URL: url}}, Egress: names(own), CAFrom: &v1alpha1.SandboxKey{}}, "seed.caFrom: the seed has a proxy, which verifies its servers"},
		"authorities beside a credential":    {seed{Repos: []repo{{URL: url, Credential: "git"}}, CAFrom: &v1alpha1.SandboxKey{}}, "seed.caFrom: "},
		"authorities and a Secret, by CIDRs": {seed{Repos: []repo{{URL: url, CredentialsFrom: secret}}, Egress: &v1alpha1.SandboxEgress{}, CAFrom: &v1alpha1.SandboxKey{}}, ""},
	} {
		if err := CheckSeed(&test.seed); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", sentence, err, test.want)
		}
	}
}

func TestTheWorkIsToldOfTheAuthorityAndInCooperationOfTheProxy(t *testing.T) {
	for mode, told := range map[v1alpha1.InterceptionMode]bool{v1alpha1.InterceptionTransparent: false, v1alpha1.InterceptionCooperative: true} {
		pod := withProxy(t, mode)
		env := envOf(&pod.Containers[0])
		for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO"} {
			if env[name] != "/admitkit/ca/ca.crt" {
				t.Errorf("%s: %s is %q", mode, name, env[name])
			}
		}
		for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"} {
			if (env[name] != "") != told {
				t.Errorf("%s: %s is %q", mode, name, env[name])
			}
		}
		for name := range env {
			if err := CheckEnv([]v1alpha1.SandboxEnv{{Name: name}}, "extraEnv"); err == nil && name != "MODEL" {
				t.Errorf("%s: a run can set %s, too", mode, name)
			}
		}
	}
}

func TestAWideningPolicyIsFoundByTheLabelsOfThePods(t *testing.T) {
	run := &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u"}}
	ws := &v1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "w"}, Spec: v1alpha1.WorkspaceSpec{Seed: &v1alpha1.WorkspaceSeed{}}}
	seed, err := SeedJob(ws, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []struct {
		job   *batchv1.Job
		known map[string]string
	}{{(&Plan{Timeout: 1}).Job(run), owned.PodLabelsOfRun(run)}, {seed, owned.PodLabelsOfSeed(ws)}} {
		labels := map[string]string{ // of the controller of Jobs
			"batch.kubernetes.io/job-name": of.job.Name, "job-name": of.job.Name, "batch.kubernetes.io/controller-uid": "", "controller-uid": "",
		}
		maps.Copy(labels, of.job.Spec.Template.Labels)
		if !maps.Equal(labels, of.known) {
			t.Errorf("the Pods of Job %s have %v, and policies are judged by %v", of.job.Name, labels, of.known)
		}
	}
}
