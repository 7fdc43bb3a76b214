package apiserver

import (
	"errors"
	"net/http"

	"k8s.io/client-go/discovery"
	admissionregistrationv1client "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Clients are those that a manager uses. A kubernetes.Clientset has one for every
// version of every group, and each program would link them all.
type Clients struct {
	Admissionregistration *admissionregistrationv1client.AdmissionregistrationV1Client
	Apps                  *appsv1client.AppsV1Client
	Authentication        *authenticationv1client.AuthenticationV1Client
	Authorization         *authorizationv1client.AuthorizationV1Client
	Coordination          *coordinationv1client.CoordinationV1Client
	Core                  *corev1client.CoreV1Client
	Discovery             *discovery.DiscoveryClient
}

// NewClients returns clients that share the connection, and its rate limit, as those
// of a kubernetes.Clientset do.
func NewClients(original *rest.Config, connection *http.Client) (Clients, error) {
	config := *original
	if config.RateLimiter == nil && config.QPS > 0 {
		if config.Burst <= 0 {
			return Clients{}, errors.New("with QPS above 0, Burst must be above 0, too")
		}
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	}
	var c Clients
	errs := make([]error, 7)
	c.Admissionregistration, errs[0] = admissionregistrationv1client.NewForConfigAndClient(&config, connection)
	c.Apps, errs[1] = appsv1client.NewForConfigAndClient(&config, connection)
	c.Authentication, errs[2] = authenticationv1client.NewForConfigAndClient(&config, connection)
	c.Authorization, errs[3] = authorizationv1client.NewForConfigAndClient(&config, connection)
	c.Coordination, errs[4] = coordinationv1client.NewForConfigAndClient(&config, connection)
	c.Core, errs[5] = corev1client.NewForConfigAndClient(&config, connection)
	c.Discovery, errs[6] = discovery.NewDiscoveryClientForConfigAndClient(&config, connection)
	return c, errors.Join(errs...)
}
