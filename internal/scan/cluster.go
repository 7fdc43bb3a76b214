package scan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// The size of a page follows that of its objects: wanted is what it should have in bytes,
// and most what is read of one. A page that has more is asked for again with fewer objects.
const (
	firstPage = 100
	fullPage  = 500
	wanted    = 2 << 20
	most      = 8 << 20
)

// cluster reads what is stored.
type cluster struct {
	objects   rest.Interface
	metadata  metadata.Interface
	discovery *discovery.DiscoveryClient
}

func connect(config *rest.Config, client *http.Client) (*cluster, error) {
	c := &cluster{}
	config = rest.CopyConfig(config)
	config.GroupVersion, config.NegotiatedSerializer, config.APIPath = &corev1.SchemeGroupVersion, scheme.Codecs.WithoutConversion(), "/api"
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	var errs [3]error
	c.objects, errs[0] = rest.RESTClientForConfigAndClient(config, client)
	c.metadata, errs[1] = metadata.NewForConfigAndClient(metadata.ConfigFor(config), client)
	c.discovery, errs[2] = discovery.NewDiscoveryClientForConfigAndClient(config, client)
	return c, errors.Join(errs[:]...)
}

// resources returns what is served, the preferred version of each group first. The problem
// names groups that do not answer.
func (c *cluster) resources(ctx context.Context) (lists []*metav1.APIResourceList, problem, err error) {
	groups, lists, err := discovery.ServerGroupsAndResourcesWithContext(ctx, c.discovery)
	if discovery.IsGroupDiscoveryFailedError(err) {
		problem, err = err, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("which resources are there: %w", err)
	}
	byVersion := map[string]*metav1.APIResourceList{}
	for _, list := range lists {
		byVersion[list.GroupVersion] = list
	}
	lists = nil
	for _, group := range groups {
		preferred := group.PreferredVersion.GroupVersion
		versions := []string{preferred}
		for _, v := range group.Versions {
			if v.GroupVersion != preferred {
				versions = append(versions, v.GroupVersion)
			}
		}
		for _, v := range versions {
			if byVersion[v] != nil {
				lists = append(lists, byVersion[v])
			}
		}
	}
	return lists, problem, nil
}

// namespaces calls visit for each namespace.
func (c *cluster) namespaces(ctx context.Context, visit func(*metav1.PartialObjectMetadata)) error {
	return each(ctx, c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")), "", visit)
}

// each calls visit for the metadata of each object of a resource with some labels.
func each(ctx context.Context, all metadata.ResourceInterface, labels string, visit func(*metav1.PartialObjectMetadata)) error {
	options := metav1.ListOptions{LabelSelector: labels, Limit: fullPage}
	for {
		page, err := all.List(ctx, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			visit(&page.Items[i])
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

func (c *cluster) namespace(ctx context.Context, name string) (*metav1.PartialObjectMetadata, error) {
	return c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Get(ctx, name, metav1.GetOptions{})
}

// page is a page of a list. Its objects stay as they were sent.
type page struct {
	Metadata metav1.ListMeta   `json:"metadata"`
	Items    []json.RawMessage `json:"items"`
}

// list sends the items of a resource to a channel, from one snapshot. If that is
// compacted before the scan is through, the rest is from a newer one.
func (c *cluster) list(ctx context.Context, pass Pass, namespace string, progress func(string, int, int), to chan<- json.RawMessage) error {
	limit, from, done := firstPage, "", 0
	for {
		p, size, err := c.page(ctx, pass, namespace, limit, from)
		if errors.Is(err, errTooLarge) && limit > 1 {
			limit = max(limit/4, 1)
			continue
		}
		if rest := restOf(err); rest != "" && rest != from {
			from = rest
			continue
		}
		if err != nil {
			return err
		}
		for _, item := range p.Items {
			select {
			case to <- item:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if done += len(p.Items); progress != nil {
			all := 0
			if p.Metadata.RemainingItemCount != nil {
				all = done + int(*p.Metadata.RemainingItemCount)
			} else if p.Metadata.Continue == "" {
				all = done
			}
			progress(pass.Resource.GroupResource().String(), done, all)
		}
		if from = p.Metadata.Continue; from == "" {
			return nil
		}
		if len(p.Items) > 0 {
			limit = min(max(wanted*len(p.Items)/size, 1), fullPage)
		}
	}
}

var errTooLarge = errors.New("a page of the list is too large")

// page reads one page, and returns its size.
func (c *cluster) page(ctx context.Context, pass Pass, namespace string, limit int, from string) (*page, int, error) {
	request := c.objects.Get().AbsPath(rootOf(pass.Resource)).NamespaceIfScoped(namespace, namespace != "").Resource(pass.Resource.Resource).
		Param("limit", strconv.Itoa(limit)).Param("continue", from)
	stream, err := request.Stream(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = stream.Close() }() // what it says was read
	body := io.Reader(stream)
	if limit > 1 {
		body = io.LimitReader(stream, most+1)
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, 0, err
	}
	if limit > 1 && len(text) > most {
		return nil, 0, errTooLarge
	}
	p := &page{}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, 0, fmt.Errorf("reading a page: %w", err)
	}
	return p, len(text), nil
}

// rootOf returns the path of a group and version.
func rootOf(resource schema.GroupVersionResource) string {
	if resource.Group == "" {
		return path.Join("/api", resource.Version)
	}
	return path.Join("/apis", resource.Group, resource.Version)
}

// restOf returns where a list goes on, from a newer snapshot, if the API server no longer
// has the one from which it began.
func restOf(err error) string {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok && apierrors.IsResourceExpired(err) {
		return status.ErrStatus.Continue
	}
	return ""
}
