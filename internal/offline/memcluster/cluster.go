package memcluster

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/kinds"
)

// Cluster is the API server that extensions talk to: the HTTP of the Kubernetes API
// over objects in memory. It supports create, get, list, watch, update, patch and delete.
// It records writes, which are the side effects, and calls without the right.
type Cluster struct {
	// Kinds are the kinds that it serves. [Cluster.Add] adds those of
	// CustomResourceDefinitions.
	Kinds *kinds.Table

	mu         sync.Mutex
	scheme     *runtime.Scheme
	authorizer func(authorizationv1.SubjectAccessReviewSpec) bool
	objects    map[string]*unstructured.Unstructured // by path
	version    int
	history    []change
	changed    chan struct{} // closed by the next change
	writes     []string
	forbidden  []string
}

// username is who an [Account] is.
const username = "system:serviceaccount:admitkit-system:admitkit"

// New returns a cluster without objects, which serves the kinds of a scheme.
func New(scheme *runtime.Scheme) *Cluster {
	return &Cluster{Kinds: &kinds.Table{}, scheme: scheme, objects: map[string]*unstructured.Unstructured{}, changed: make(chan struct{})}
}

// SetScheme replaces the scheme.
func (c *Cluster) SetScheme(scheme *runtime.Scheme) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scheme = scheme
}

// SetAuthorizer sets who may do what. Without one, nobody may do anything.
func (c *Cluster) SetAuthorizer(may func(authorizationv1.SubjectAccessReviewSpec) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.authorizer = may
}

// Config returns the configuration of clients that talk to a Cluster by this transport,
// which is the Cluster or an [Account].
func Config(transport http.RoundTripper) *rest.Config {
	return &rest.Config{
		Host: "http://offline.invalid", Transport: transport, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
	}
}

// TakeWrites returns the writes since its last call.
func (c *Cluster) TakeWrites() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	writes := c.writes
	c.writes = nil
	return writes
}

// TakeForbidden returns the calls without the right since its last call; see
// [Cluster.NewAccount].
func (c *Cluster) TakeForbidden() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	forbidden := c.forbidden
	c.forbidden = nil
	return forbidden
}

// Add adds an object to the cluster.
func (c *Cluster) Add(object *unstructured.Unstructured) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kinds.IsCRD(object) {
		if err := c.Kinds.Add(object); err != nil {
			return err
		}
	}
	kind := object.GroupVersionKind()
	resource := c.Kinds.Resource(kind)
	path := "/apis/" + kind.Group + "/" + kind.Version
	if kind.Group == "" {
		path = "/api/" + kind.Version
	}
	if namespace := object.GetNamespace(); namespace != "" {
		path += "/namespaces/" + namespace
	}
	if object.GetName() == "" {
		return fmt.Errorf("the %s needs a name", kind.Kind)
	}
	mergeStringData(object)
	c.put(path+"/"+resource.Resource+"/"+object.GetName(), object)
	return nil
}

// NamespaceLabels returns the labels of a namespace of the cluster, and nil for one
// that is not there.
func (c *Cluster) NamespaceLabels(name string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	object := c.objects["/api/v1/namespaces/"+name]
	if object == nil {
		return nil
	}
	labels := map[string]string{}
	maps.Copy(labels, object.GetLabels())
	return labels
}

// put stores an object with what every object of an API server has.
func (c *Cluster) put(path string, object *unstructured.Unstructured) {
	what, before := watch.Modified, c.objects[path]
	if before == nil {
		what = watch.Added
	}
	if object.GetUID() == "" {
		object.SetUID(uuid.NewUUID())
	}
	if created := object.GetCreationTimestamp(); created.IsZero() {
		object.SetCreationTimestamp(metav1.Now())
	}
	if object.GetGeneration() == 0 && hasGeneration(c.Kinds, object.GroupVersionKind().GroupKind()) {
		object.SetGeneration(1)
	}
	c.objects[path] = object
	c.note(what, path, before, object)
}

// note gives an object the next version, and tells those who watch it.
func (c *Cluster) note(what watch.EventType, path string, before, object *unstructured.Unstructured) {
	c.version++
	object.SetResourceVersion(strconv.Itoa(c.version))
	c.history = append(c.history, change{what, path, before, object.DeepCopy()})
	close(c.changed)
	c.changed = make(chan struct{})
}

// call is one request, parsed from its URL.
type call struct {
	*http.Request
	collection, name string
	subresource      string
	namespace        string
	resource         schema.GroupVersionResource
	labels           labels.Selector
	fields           fields.Selector
	dryRun           bool
	body             []byte
	deletion         metav1.DeleteOptions
}

func parse(req *http.Request) (*call, error) {
	p := &call{Request: req, dryRun: req.URL.Query().Get("dryRun") != ""}
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	var prefix []string
	switch {
	case parts[0] == "api" && len(parts) > 2:
		prefix, p.resource.Version = parts[:2], parts[1]
	case parts[0] == "apis" && len(parts) > 3:
		prefix, p.resource.Group, p.resource.Version = parts[:3], parts[1], parts[2]
	default:
		return nil, fmt.Errorf("the cluster in memory does not serve %s", req.URL.Path)
	}
	rest := parts[len(prefix):]
	if rest[0] == "namespaces" && len(rest) > 2 && rest[2] != "status" && rest[2] != "finalize" {
		p.namespace, prefix, rest = rest[1], append(slices.Clone(prefix), rest[:2]...), rest[2:]
	}
	p.resource.Resource = rest[0]
	p.collection = "/" + strings.Join(append(prefix, rest[0]), "/")
	if len(rest) > 1 {
		p.name = rest[1]
	}
	if len(rest) > 2 {
		p.subresource = rest[2]
	}
	var err error
	if p.labels, err = labels.Parse(req.URL.Query().Get("labelSelector")); err != nil {
		return nil, err
	}
	if p.fields, err = fields.ParseSelector(req.URL.Query().Get("fieldSelector")); err != nil {
		return nil, err
	}
	return p, p.read()
}

// read reads the body, in which a deletion and an eviction have their options.
func (p *call) read() (err error) {
	if p.Body == nil {
		return nil
	}
	if p.body, err = io.ReadAll(p.Body); err != nil {
		return err
	}
	switch {
	case p.Method == http.MethodDelete && len(p.body) > 0:
		err = json.Unmarshal(p.body, &p.deletion)
	case p.subresource == "eviction":
		err = json.Unmarshal(p.body, &policyv1.Eviction{DeleteOptions: &p.deletion})
	}
	p.dryRun = p.dryRun || len(p.deletion.DryRun) > 0
	return err
}

// RoundTrip implements http.RoundTripper, with all rights.
func (c *Cluster) RoundTrip(req *http.Request) (*http.Response, error) {
	return c.serve(req, nil, "")
}

// serve answers a request of somebody with these rights; nil means all. It refuses what
// is allowed if there is a reason.
func (c *Cluster) serve(req *http.Request, rights *Rights, refusal string) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := Discover(c.scheme, c.Kinds, req.URL.Path); found != nil {
		return Respond(req, http.StatusOK, found)
	}
	p, err := parse(req)
	if err != nil {
		return nil, err
	}
	err = c.authorize(p, rights)
	if err == nil && refusal != "" {
		return nil, fmt.Errorf("cannot answer %s %s: %s", req.Method, req.URL.Path, refusal)
	}
	if kind, known := c.Kinds.Of(p.resource.GroupResource()); err == nil && known {
		err = c.Kinds.Selectable(p.resource.GroupVersion().WithKind(kind.Kind), p.fields)
	}
	if err == nil && p.isWatch() {
		return c.watch(p)
	}
	var object any
	if err == nil {
		object, err = c.answer(p, rights)
	}
	code := http.StatusOK
	if err != nil {
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			status = apierrors.NewBadRequest(err.Error())
		}
		content := status.Status()
		content.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		object, code = content, int(content.Code)
	}
	return Respond(req, code, object)
}

func (c *Cluster) answer(p *call, rights *Rights) (any, error) {
	if strings.HasSuffix(p.resource.Resource, "reviews") {
		return c.review(p, rights)
	}
	if p.Method != http.MethodGet && !p.dryRun {
		c.writes = append(c.writes, fmt.Sprintf("%s %s", p.Method, p.URL.Path))
	}
	path := p.collection + "/" + p.name
	live := c.objects[path]
	if err := c.findSubresource(p); err != nil {
		return nil, err
	}
	if p.name != "" && live == nil && !c.mayCreate(p) {
		return nil, apierrors.NewNotFound(p.resource.GroupResource(), p.name)
	}
	switch p.Method {
	case http.MethodGet:
		if p.name != "" {
			return live.Object, nil
		}
		return c.list(p)
	case http.MethodPost:
		if p.subresource == "eviction" { // no disruption budget keeps the Pod
			return success(p, nil), c.deleteOne(p, path, live)
		}
		return c.create(p)
	case http.MethodPut, http.MethodPatch:
		return c.update(p, path, live)
	case http.MethodDelete:
		return c.delete(p, path, live)
	}
	return nil, apierrors.NewMethodNotSupported(p.resource.GroupResource(), p.Method)
}

func (c *Cluster) list(p *call) (any, error) {
	items, metadata := []any{}, map[string]any{"resourceVersion": strconv.Itoa(c.version)}
	limit, _ := strconv.Atoi(p.URL.Query().Get("limit"))
	last, err := base64.RawURLEncoding.DecodeString(p.URL.Query().Get("continue"))
	if err != nil {
		return nil, apierrors.NewBadRequest("continue key is not valid: " + err.Error())
	}
	for _, path := range slices.Sorted(maps.Keys(c.objects)) {
		object := c.objects[path]
		if path <= string(last) || !c.isIn(p, path, object) {
			continue
		}
		if limit > 0 && len(items) == limit {
			metadata["continue"] = base64.RawURLEncoding.EncodeToString(last)
			break
		}
		items, last = append(items, object.Object), []byte(path)
	}
	list := map[string]any{"apiVersion": p.resource.GroupVersion().String(), "metadata": metadata, "items": items}
	for kind := range c.scheme.KnownTypes(p.resource.GroupVersion()) {
		if c.Kinds.Resource(p.resource.GroupVersion().WithKind(kind)) == p.resource {
			list["kind"] = kind + "List"
		}
	}
	if kind, found := c.Kinds.Of(p.resource.GroupResource()); found {
		list["kind"] = kind.Kind + "List"
	}
	return list, nil
}

// isIn reports whether an object is in the collection of a call, and selected by it.
func (c *Cluster) isIn(p *call, path string, object *unstructured.Unstructured) bool {
	if !p.labels.Matches(labels.Set(object.GetLabels())) || !p.fields.Matches(kinds.Fields(object)) {
		return false
	}
	if p.namespace == "" { // all namespaces
		return c.Kinds.Resource(object.GroupVersionKind()) == p.resource
	}
	return strings.HasPrefix(path, p.collection+"/")
}

// nameInSelector returns the name that a field selector asks for.
func (p *call) nameInSelector() string {
	name, _ := p.fields.RequiresExactMatch(metav1.ObjectNameField)
	return name
}

func (p *call) isWatch() bool {
	return p.Method == http.MethodGet && p.name == "" && slices.Contains([]string{"true", "1"}, p.URL.Query().Get("watch"))
}

// object returns the object in the request's body.
func (p *call) object() (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	body, err := yaml.YAMLToJSON(p.body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if err := utiljson.Unmarshal(body, &object.Object); err != nil { // with whole numbers as such
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return object, nil
}
