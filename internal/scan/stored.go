package scan

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

// Stored returns the requests for one stored object: as it would be created, and as an
// update that changes nothing. The resource is named as for kubectl: pod, deploy,
// widgets.example.com. It is in the first version that a webhook receives, as an API server
// converts it.
func Stored(ctx context.Context, config *rest.Config, client *http.Client, webhooks []*webhook.Webhook, resource, namespace, name string) ([]*offline.Request, error) {
	c, err := connect(config, client)
	if err != nil {
		return nil, err
	}
	pass, namespaced, err := c.find(resource, webhooks)
	if err != nil {
		return nil, err
	}
	switch {
	case namespaced && namespace == "":
		return nil, fmt.Errorf("%s are in namespaces: name the object NAMESPACE/NAME", pass.Resource.Resource)
	case !namespaced && namespace != "":
		return nil, fmt.Errorf("%s are in no namespace: name the object NAME", pass.Resource.Resource)
	}
	text, err := c.objects.Get().AbsPath(rootOf(pass.Resource)).NamespaceIfScoped(namespace, namespaced).Resource(pass.Resource.Resource).Name(name).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(pass.Resource.GroupResource(), name)
	}
	if err != nil {
		return nil, err
	}
	o, err := objectOf(pass, text)
	if err != nil {
		return nil, err
	}
	var labels map[string]string
	if namespaced {
		of, err := c.namespace(ctx, namespace)
		if err != nil && !apierrors.IsForbidden(err) {
			return nil, err
		}
		if err == nil {
			labels = known(of.Labels)
		}
	}
	requests := o.requests(pass)
	for _, req := range requests {
		req.NamespaceLabels = labels
	}
	return requests, nil
}

// find returns the resource that a user names.
func (c *cluster) find(text string, webhooks []*webhook.Webhook) (pass Pass, namespaced bool, err error) {
	groups, err := restmapper.GetAPIGroupResources(c.discovery)
	if err != nil {
		return pass, false, fmt.Errorf("which resources are there: %w", err)
	}
	mapper := restmapper.NewShortcutExpander(restmapper.NewDiscoveryRESTMapper(groups), c.discovery, nil)
	exact, short := schema.ParseResourceArg(strings.ToLower(text))
	if exact == nil {
		exact = &schema.GroupVersionResource{Group: short.Group, Resource: short.Resource}
	}
	found, err := mapper.ResourceFor(*exact)
	if err != nil {
		found, err = mapper.ResourceFor(short.WithVersion(""))
	}
	if err != nil {
		return pass, false, fmt.Errorf("%q: the API server serves no such resource: %w", text, err)
	}
	found = received(groups, found, webhooks)
	kind, err := mapper.KindFor(found)
	if err != nil {
		return pass, false, err
	}
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return pass, false, err
	}
	for _, group := range groups {
		for _, r := range group.VersionedResources[found.Version] {
			pass.HasStatus = pass.HasStatus || group.Group.Name == found.Group && r.Name == found.Resource+"/status"
		}
	}
	pass.Resource, pass.Kind = found, kind
	return pass, mapping.Scope.Name() == "namespace", nil
}

// received returns a resource in a version that a webhook receives, if there is one.
func received(groups []*restmapper.APIGroupResources, resource schema.GroupVersionResource, webhooks []*webhook.Webhook) schema.GroupVersionResource {
	is := func(resource schema.GroupVersionResource) bool {
		return slices.ContainsFunc(webhooks, func(w *webhook.Webhook) bool { return receives(w, resource) })
	}
	if is(resource) {
		return resource
	}
	for _, group := range groups {
		for _, version := range group.Group.Versions {
			other := resource.GroupResource().WithVersion(version.Version)
			served := slices.ContainsFunc(group.VersionedResources[version.Version], func(r metav1.APIResource) bool { return r.Name == resource.Resource })
			if group.Group.Name == resource.Group && served && is(other) {
				return other
			}
		}
	}
	return resource
}

// requests returns the requests for an object.
func (o *object) requests(pass Pass) []*offline.Request {
	return []*offline.Request{
		offline.Stored(admissionv1.Create, pass.Kind, pass.Resource, o.namespace, o.name, o.created, nil),
		offline.Stored(admissionv1.Update, pass.Kind, pass.Resource, o.namespace, o.name, o.stored, o.stored),
	}
}
