package workload

import (
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

const (
	// proxyUser is as whom the proxy runs, and nothing else of a Pod: only its connections are not redirected.
	proxyUser = 1337
	proxyPort = 15001
	// proxyDir is where the proxy has its authority and its token, and caDir where the work has the certificate.
	proxyDir, caDir = "/run/admitkit", "/admitkit/ca"
	proxyContainer  = "egress-proxy"
	upstreamFile    = "upstream/ca.crt"
	programPath     = "/sandbox"
	account         = "default"
	tokenLife       = 3600
)

// proxyLimits are what a proxy may use at most.
var (
	proxyRequests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	proxyLimits   = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("128Mi")}
)

// MaxProxied is how long a run with a proxy may take: the authority of its proxy ends an hour later.
const MaxProxied = runca.RunLife - time.Hour

// Proxy is what stands between a run and the outside.
type Proxy struct {
	Mode v1alpha1.InterceptionMode
	// InContainer are the credentials that the container gets.
	InContainer []string
	// Image is that of the command sandbox.
	Image string
	// BrokerURL is where the broker is, and BrokerPort the port in it.
	BrokerURL  string
	BrokerPort int32
	// UpstreamCA says that there are authorities of servers besides those of the internet.
	UpstreamCA bool
	// Denied are the addresses to which the proxy connects nobody.
	Denied []string
}

// Into puts the proxy into a Job, beside the work: an init container that redirects, if the mode is that, the proxy,
// which begins before the work and ends after it, and what the work must know.
func (p *Proxy) Into(job *batchv1.Job) {
	pod, run := &job.Spec.Template.Spec, job.Labels[v1alpha1.LabelSandboxRun]
	pod.ServiceAccountName = account // a token needs one
	if p.Mode == v1alpha1.InterceptionTransparent {
		pod.InitContainers = append(pod.InitContainers, p.redirect())
	}
	pod.InitContainers = append(pod.InitContainers, p.sidecar())
	name := owned.PrefixRun + run + owned.SuffixProxy
	files := []corev1.KeyToPath{{Key: corev1.TLSCertKey, Path: "ca/tls.crt"}, {Key: corev1.TLSPrivateKeyKey, Path: "ca/tls.key"}, {Key: owned.KeyBrokerCA, Path: "broker/ca.crt"}}
	if p.UpstreamCA {
		files = append(files, corev1.KeyToPath{Key: owned.KeyUpstreamCA, Path: upstreamFile})
	}
	pod.Volumes = append(pod.Volumes,
		corev1.Volume{Name: "proxy", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: files}},
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: protocol.Audience, ExpirationSeconds: new(int64(tokenLife)), Path: "token/token"}},
		}}}},
		corev1.Volume{Name: "ca", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, Items: []corev1.KeyToPath{{Key: owned.KeyCA, Path: owned.KeyCA}}}}})
	work := &pod.Containers[0]
	work.VolumeMounts = append(work.VolumeMounts, corev1.VolumeMount{Name: "ca", MountPath: caDir, ReadOnly: true})
	work.Env = append(work.Env, p.environment()...)
	for _, credential := range p.InContainer {
		work.Env = append(work.Env, corev1.EnvVar{Name: credential, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: owned.PrefixRun + run + owned.SuffixCredentials}, Key: credential,
		}}})
	}
}

// environment is what programs go by to reach the outside.
func (p *Proxy) environment() (env []corev1.EnvVar) {
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO"} {
		env = append(env, corev1.EnvVar{Name: name, Value: caDir + "/" + owned.KeyCA})
	}
	if p.Mode == v1alpha1.InterceptionTransparent {
		return env
	}
	for _, v := range []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: proxyURL}, {Name: "HTTP_PROXY", Value: proxyURL}, {Name: "NO_PROXY", Value: "localhost,127.0.0.1,::1"}} {
		env = append(env, v, corev1.EnvVar{Name: strings.ToLower(v.Name), Value: v.Value})
	}
	return env
}

var (
	proxyAddress = fmt.Sprintf("127.0.0.1:%d", proxyPort)
	proxyURL     = "http://" + proxyAddress
)

// sidecar is the proxy, a sidecar.
func (p *Proxy) sidecar() corev1.Container {
	args := []string{"egress-proxy", "--mode=" + strings.ToLower(string(p.Mode)), "--address=" + proxyAddress, "--broker-url=" + p.BrokerURL}
	for _, cidr := range p.Denied {
		args = append(args, "--deny-cidr="+cidr)
	}
	if p.UpstreamCA {
		args = append(args, "--upstream-ca-file="+proxyDir+"/"+upstreamFile)
	}
	c := p.container(proxyContainer, args)
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	c.SecurityContext.RunAsNonRoot, c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = new(true), new(int64(proxyUser)), new(int64(proxyUser))
	c.VolumeMounts = []corev1.VolumeMount{{Name: "proxy", MountPath: proxyDir, ReadOnly: true}}
	// The work begins when the proxy serves.
	c.StartupProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{programPath, "egress-proxy", "--probe", "--address=" + proxyAddress}}},
		PeriodSeconds: 1, TimeoutSeconds: 5, FailureThreshold: 60,
	}
	return c
}

// redirect is the container that has the kernel redirect. It has ended before anything that nobody trusts begins.
func (p *Proxy) redirect() corev1.Container {
	c := p.container("egress-redirect", []string{
		"egress-redirect", fmt.Sprintf("--proxy-port=%d", proxyPort), fmt.Sprintf("--proxy-uid=%d", proxyUser), fmt.Sprintf("--broker-port=%d", p.BrokerPort),
	})
	c.SecurityContext.RunAsNonRoot, c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = new(false), new(int64(0)), new(int64(0))
	c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
	return c
}

// container is one of the command sandbox.
func (p *Proxy) container(name string, args []string) corev1.Container {
	return corev1.Container{
		Name: name, Image: p.Image, ImagePullPolicy: pullPolicy(p.Image), Args: args,
		Resources:                corev1.ResourceRequirements{Requests: proxyRequests, Limits: proxyLimits},
		SecurityContext:          restricted(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}
