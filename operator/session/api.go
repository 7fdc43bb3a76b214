package session

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/sessionsapi"
)

const (
	// apiServices is where the API server has APIServices.
	apiServices = "/apis/apiregistration.k8s.io/v1/apiservices"
	// bundleTime is how often the caBundle is compared, and bundleRetry after a failure. A CA
	// signs a minute after it is in the bundle, at the earliest.
	bundleTime, bundleRetry = 10 * time.Second, 2 * time.Second
	// maxAPIHeader has room for the groups of a user, too.
	maxAPIHeader = maxHeader + 96<<10
	// maxAPIBody has room for DeleteOptions.
	maxAPIBody = sessionsapi.MaxBody
)

// APIService returns the APIService by which the API server passes questions about sessions
// on to the replicas behind a Service, for [Options].API. Make one in the cluster: the
// replicas write its caBundle, and `unregister` deletes it.
func APIService(namespace, service string, port int32) *unstructured.Unstructured {
	version := sessionsapi.GroupVersion
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": apiServiceName()},
		"spec": map[string]any{
			"group": version.Group, "version": version.Version, "groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
			"service": map[string]any{"namespace": namespace, "name": service, "port": int64(port)},
		},
	}}
}

func apiServiceName() string {
	return sessionsapi.GroupVersion.Version + "." + sessionsapi.GroupVersion.Group
}

// checkAPI checks the options of the API.
func (o *Options) checkAPI() error {
	switch {
	case o.API && !o.collects():
		return errors.New("API has no effect without Folder or Storage: only collectors can read recordings")
	case o.API && o.ServiceName == "":
		return errors.New("ServiceName is empty: with API, the front proxy of the cluster reaches the replicas by it")
	}
	return nil
}

// servingCertificate returns the certificate of the port. The API server asks for that of
// the Service.
func (s *shared) servingCertificate(mgr extension.Manager) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	forRecorders, err := mgr.GetServingCertificate(s.options.ServerName)
	service := s.options.ServiceName + "." + s.namespace + ".svc"
	if err != nil || !s.options.API || service == s.options.ServerName {
		return forRecorders, err
	}
	forAPI, err := mgr.GetServingCertificate(service)
	if err != nil {
		return nil, err
	}
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == service {
			if certificate, err := forAPI(hello); err == nil {
				return certificate, nil
			}
		}
		return forRecorders(hello) // else the API server says which name it lacks
	}, nil
}

// newAPI returns what answers the API server, nil without API.
func (r *receiver) newAPI(storage collector.Storage, config *rest.Config) (*sessionsapi.Server, error) {
	if !r.options.API {
		return nil, nil
	}
	reviews, err := authorizationv1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return sessionsapi.New(sessionsapi.Options{
		Storage: storage, Key: r.options.key, End: r.collector.RequestEnd, Recorder: r.mgr.GetRecorder(), Reviews: reviews.SubjectAccessReviews(),
		Namespaces: r.core.Namespaces(),
		FrontProxy: func(ctx context.Context) (map[string]string, error) {
			found, err := r.core.ConfigMaps(sessionsapi.ConfigMapNamespace).Get(ctx, sessionsapi.ConfigMapName, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			return found.Data, nil
		},
		Now: r.clock.Now, Log: r.log.Named("api"),
	}), nil
}

// isAPI reports whether a request is for the API, and not that of a recorder. The API server
// also asks for what the API has not, such as /openapi/v3 every minute.
func (r *receiver) isAPI(request *http.Request) bool {
	if r.api == nil {
		return false
	}
	if conn, ok := request.Context().Value(connectionKey{}).(*counted); ok && conn.front {
		return true
	}
	return request.URL.Path == "/apis" || strings.HasPrefix(request.URL.Path, "/apis/")
}

// keepBundle keeps the caBundle of the APIService, through each rotation of the CA. Every
// replica does.
func (r *receiver) keepBundle(ctx context.Context) {
	if r.api == nil {
		return
	}
	seen, said := "", ""
	for {
		pause := bundleTime
		if err := r.publishBundle(ctx); err != nil && ctx.Err() == nil {
			pause = bundleRetry
			// Not at once: a replica that starts has no certificate yet.
			if text := err.Error(); text == seen && text != said {
				r.log.Error("sessions cannot be read by kubectl", zap.Error(err))
				said = text
			}
			seen = err.Error()
		} else {
			seen, said = "", ""
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// registered is what counts of an APIService.
type registered struct {
	Metadata struct {
		UID             types.UID `json:"uid"`
		ResourceVersion string    `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		CABundle []byte `json:"caBundle"`
		Insecure bool   `json:"insecureSkipTLSVerify"`
		Service  *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"service"`
	} `json:"spec"`
}

// readAPIService returns the APIService, if it is that of this Service.
func readAPIService(ctx context.Context, client rest.Interface, namespace, service string) (*registered, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	text, err := client.Get().AbsPath(apiServices, apiServiceName()).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no APIService %s: apply the manifests, or the chart, with the API of sessions enabled: %w", apiServiceName(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("APIService %s: %w", apiServiceName(), err)
	}
	found := &registered{}
	if err := json.Unmarshal(text, found); err != nil {
		return nil, fmt.Errorf("APIService %s: %w", apiServiceName(), err)
	}
	if of := found.Spec.Service; of == nil || of.Namespace != namespace || of.Name != service {
		return nil, fmt.Errorf("APIService %s: %w: it is not that of Service %s/%s", apiServiceName(), errForeign, namespace, service)
	}
	return found, nil
}

// errForeign is the error about the APIService of another installation.
var errForeign = errors.New("another installation serves it")

// publishBundle writes the caBundle unless it is there.
func (r *receiver) publishBundle(ctx context.Context) error {
	bundle, err := r.mgr.GetServingCA()
	if err != nil {
		return fmt.Errorf("the CA of this port: %w", err)
	}
	client := r.core.RESTClient()
	found, err := readAPIService(ctx, client, r.namespace, r.options.ServiceName)
	switch {
	case err != nil || bytes.Equal(found.Spec.CABundle, bundle):
		return err
	case found.Spec.Insecure: // it can have no caBundle then
		return fmt.Errorf("APIService %s has insecureSkipTLSVerify: the API server does not verify whom it asks; remove that", apiServiceName())
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": found.Metadata.ResourceVersion}, "spec": map[string]any{"caBundle": bundle},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	err = client.Patch(types.MergePatchType).AbsPath(apiServices, apiServiceName()).SetHeader("Accept", "application/json").Body(patch).Do(ctx).Error()
	switch {
	case apierrors.IsConflict(err): // another replica has written it
		return nil
	case err != nil:
		return fmt.Errorf("APIService %s: writing the caBundle: %w", apiServiceName(), err)
	}
	r.log.Info("the API server has the CA of this port", zap.String("apiService", apiServiceName()))
	return nil
}

var _ extension.Remover = (*Session)(nil)

// Remove implements [extension.Remover]: an APIService whose Service is gone keeps namespaces
// from being deleted.
func (s *Session) Remove(ctx context.Context, mgr extension.Manager) error {
	if !s.options.API {
		return nil
	}
	config, err := mgr.GetKubeConnection()
	if err != nil {
		return err
	}
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return err
	}
	found, err := readAPIService(ctx, core.RESTClient(), mgr.GetWebhookNamespace(), s.options.ServiceName)
	if apierrors.IsNotFound(err) || errors.Is(err, errForeign) {
		return nil
	}
	if err != nil {
		return err
	}
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, Preconditions: &metav1.Preconditions{UID: &found.Metadata.UID},
	})
	if err != nil {
		return err
	}
	err = core.RESTClient().Delete().AbsPath(apiServices, apiServiceName()).SetHeader("Accept", "application/json").SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting APIService %s: %w", apiServiceName(), err)
	}
	mgr.GetLogger().Infow("removed", "kind", "APIService", "name", apiServiceName())
	return nil
}

// apiNamespaceRights are those on what the API server says about its front proxy.
func (s *shared) apiNamespaceRights(rights map[string][]rbacv1.PolicyRule) map[string][]rbacv1.PolicyRule {
	if !s.options.API {
		return rights
	}
	if rights == nil {
		rights = map[string][]rbacv1.PolicyRule{}
	}
	rights[sessionsapi.ConfigMapNamespace] = append(rights[sessionsapi.ConfigMapNamespace],
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{sessionsapi.ConfigMapName}, Verbs: []string{"get"}})
	return rights
}

// apiClusterRights let it ask what users may do, and keep its caBundle.
func (s *shared) apiClusterRights() []rbacv1.PolicyRule {
	if !s.options.API {
		return nil
	}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, ResourceNames: []string{apiServiceName()}, Verbs: []string{"get", "patch"}},
	}
}
