package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
	"github.com/admitkit/admitkit/operator/sandbox/internal/brokerpolicy"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

const (
	// proxyUser is as whom the proxy runs, and nothing else of a Pod: only its connections are not redirected.
	proxyUser = 1337
	proxyPort = 15001
	// proxyDir is where the proxy has its authority and its token, and caDir where the work has the certificate.
	proxyDir, caDir = "/run/admitkit", "/admitkit/ca"
	// ProxyContainer is the name of its container.
	ProxyContainer = "egress-proxy"
	upstreamFile   = "upstream/ca.crt"
	programPath    = "/sandbox"
	account        = "default"
	tokenLife      = 3600
)

// proxyLimits are what a proxy may use at most.
var (
	proxyRequests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	proxyLimits   = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("128Mi")}
)

// MaxProxied is how long a run with a proxy may take: the authority of its proxy ends an hour later.
const MaxProxied = runca.RunLife - time.Hour

// NoProxies says that there are no proxies.
const NoProxies = "the controller makes no proxies, which hold Pods to names: let the operator set --sandbox-proxy-image"

// Proxy is what stands between a run, or a seed, and the outside.
type Proxy struct {
	Mode v1alpha1.InterceptionMode
	// Hosts are the names beyond which it lets nothing through, none for no such bound.
	Hosts []v1alpha1.EgressName
	// InContainer are the credentials that the container gets.
	InContainer []string
	// Image is that of the command sandbox.
	Image string
	// BrokerURL is where the broker is, and BrokerPort the port in it. Without, Hosts are all that it lets through.
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
	pod, name := &job.Spec.Template.Spec, job.Name+owned.SuffixProxy
	if p.Mode == v1alpha1.InterceptionTransparent {
		pod.InitContainers = append(pod.InitContainers, p.redirect())
	}
	pod.InitContainers = append(pod.InitContainers, p.sidecar())
	files := []corev1.KeyToPath{{Key: corev1.TLSCertKey, Path: "ca/tls.crt"}, {Key: corev1.TLSPrivateKeyKey, Path: "ca/tls.key"}}
	if p.UpstreamCA {
		files = append(files, corev1.KeyToPath{Key: owned.KeyUpstreamCA, Path: upstreamFile})
	}
	var token []corev1.VolumeProjection
	if p.BrokerURL != "" {
		pod.ServiceAccountName = account // a token needs one
		files = append(files, corev1.KeyToPath{Key: owned.KeyBrokerCA, Path: "broker/ca.crt"})
		token = []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: protocol.Audience, ExpirationSeconds: new(int64(tokenLife)), Path: "token/token"}}}
	}
	pod.Volumes = append(pod.Volumes,
		corev1.Volume{Name: "proxy", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: append([]corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: files}},
		}, token...)}}},
		corev1.Volume{Name: "ca", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, Items: []corev1.KeyToPath{{Key: owned.KeyCA, Path: owned.KeyCA}}}}})
	work := &pod.Containers[0]
	work.VolumeMounts = append(work.VolumeMounts, corev1.VolumeMount{Name: "ca", MountPath: caDir, ReadOnly: true})
	work.Env = append(work.Env, p.environment()...)
	for _, credential := range p.InContainer {
		work.Env = append(work.Env, corev1.EnvVar{Name: credential, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: job.Name + owned.SuffixCredentials}, Key: credential,
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
	args := []string{"egress-proxy", "--mode=" + strings.ToLower(string(p.Mode)), "--address=" + proxyAddress}
	if p.BrokerURL != "" {
		args = append(args, "--broker-url="+p.BrokerURL)
	}
	if len(p.Hosts) > 0 {
		args = append(args, "--hosts="+hostsArgument(p.Hosts))
	}
	for _, cidr := range p.Denied {
		args = append(args, "--deny-cidr="+cidr)
	}
	if p.UpstreamCA {
		args = append(args, "--upstream-ca-file="+proxyDir+"/"+upstreamFile)
	}
	c := p.container(ProxyContainer, args)
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

// checkNames refuses names that no proxy could hold a Pod to.
func checkNames(e *v1alpha1.SandboxEgress) error {
	if len(e.Hosts) == 0 {
		return nil
	}
	if problem := brokerpolicy.RefuseNames("hosts", e.Hosts); problem != "" {
		return errors.New(problem)
	}
	if !e.AllowsDNS() {
		return errors.New("dns: false: the names in hosts must be looked up: leave it out")
	}
	return nil
}

// hostsArgument has the names in JSON, as the proxy reads them. Kubernetes would expand a $ in arguments.
func hostsArgument(hosts []v1alpha1.EgressName) string {
	names := make([]protocol.Name, 0, len(hosts))
	for i := range hosts {
		headers, keys := hosts[i].Own()
		names = append(names, protocol.Name{Host: hosts[i].Host, Ports: hosts[i].Ports, Headers: headers, QueryKeys: keys})
	}
	text, _ := json.Marshal(names) // texts and numbers
	return strings.ReplaceAll(string(text), "$", `\u0024`)
}

// redirect is the container that has the kernel redirect. It has ended before anything that nobody trusts begins.
func (p *Proxy) redirect() corev1.Container {
	args := []string{"egress-redirect", fmt.Sprintf("--proxy-port=%d", proxyPort), fmt.Sprintf("--proxy-uid=%d", proxyUser)}
	if p.BrokerPort != 0 {
		args = append(args, fmt.Sprintf("--broker-port=%d", p.BrokerPort))
	}
	c := p.container("egress-redirect", args)
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
