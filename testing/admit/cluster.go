package admit

import (
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

	mergepatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/internal/jsonpatch"
	"github.com/admitkit/admitkit/internal/offline"
)

// cluster is the API server that extensions talk to: the HTTP of the Kubernetes API
// over objects in memory. It records writes, which are the side effects.
type cluster struct {
	mu      sync.Mutex
	scheme  *runtime.Scheme
	kinds   *offline.Kinds
	objects map[string]*unstructured.Unstructured // by path
	version int
	writes  []string
}

func newCluster(scheme *runtime.Scheme) *cluster {
	return &cluster{scheme: scheme, kinds: &offline.Kinds{}, objects: map[string]*unstructured.Unstructured{}}
}

func (c *cluster) setScheme(scheme *runtime.Scheme) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scheme = scheme
}

// takeWrites returns the writes since its last call.
func (c *cluster) takeWrites() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	writes := c.writes
	c.writes = nil
	return writes
}

// add adds an object to the cluster.
func (c *cluster) add(object *unstructured.Unstructured) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if offline.IsCRD(object) {
		if err := c.kinds.Add(object); err != nil {
			return err
		}
	}
	kind := object.GroupVersionKind()
	resource := c.kinds.Resource(kind)
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
	c.put(path+"/"+resource.Resource+"/"+object.GetName(), object)
	return nil
}

// namespaceLabels returns the labels of a namespace of the cluster, and none for one
// that was not added.
func (c *cluster) namespaceLabels(name string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	labels := map[string]string{}
	if object := c.objects["/api/v1/namespaces/"+name]; object != nil {
		maps.Copy(labels, object.GetLabels())
	}
	return labels
}

func (c *cluster) put(path string, object *unstructured.Unstructured) {
	c.version++
	object.SetResourceVersion(strconv.Itoa(c.version))
	if object.GetUID() == "" {
		object.SetUID(uuid.NewUUID())
	}
	c.objects[path] = object
}

// call is one request, parsed from its URL.
type call struct {
	*http.Request
	collection, name string
	namespace        string
	resource         schema.GroupVersionResource
	dryRun           bool
	body             []byte
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
		return nil, fmt.Errorf("the cluster of testing/admit does not serve %s", req.URL.Path)
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
	var err error
	if req.Body != nil {
		p.body, err = io.ReadAll(req.Body)
	}
	return p, err
}

// RoundTrip implements http.RoundTripper.
func (c *cluster) RoundTrip(req *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := offline.Discover(c.scheme, c.kinds, req.URL.Path); found != nil {
		return offline.Respond(req, http.StatusOK, found)
	}
	p, err := parse(req)
	if err != nil {
		return nil, err
	}
	object, err := c.answer(p)
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
	return offline.Respond(req, code, object)
}

func (c *cluster) answer(p *call) (any, error) {
	if strings.HasSuffix(p.resource.Resource, "reviews") {
		return p.object() // a review, such as a SubjectAccessReview, stays unanswered: not allowed
	}
	if p.Method != http.MethodGet && !p.dryRun {
		c.writes = append(c.writes, fmt.Sprintf("%s %s", p.Method, p.URL.Path))
	}
	path := p.collection + "/" + p.name
	live := c.objects[path]
	if p.name != "" && live == nil && (p.Method != http.MethodPatch || !isApply(p)) {
		return nil, apierrors.NewNotFound(p.resource.GroupResource(), p.name)
	}
	switch p.Method {
	case http.MethodGet:
		if p.name != "" {
			return live.Object, nil
		}
		return c.list(p)
	case http.MethodPost:
		return c.create(p)
	case http.MethodPut, http.MethodPatch:
		return c.update(p, path, live)
	case http.MethodDelete:
		if !p.dryRun {
			delete(c.objects, path)
		}
		return metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}, nil
	}
	return nil, apierrors.NewMethodNotSupported(p.resource.GroupResource(), p.Method)
}

func (c *cluster) list(p *call) (any, error) {
	query := p.URL.Query()
	if query.Get("watch") != "" {
		return nil, apierrors.NewMethodNotSupported(p.resource.GroupResource(), "watch")
	}
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	items := []any{}
	for _, path := range slices.Sorted(maps.Keys(c.objects)) {
		object := c.objects[path]
		inCollection := strings.HasPrefix(path, p.collection+"/")
		if p.namespace == "" { // all namespaces
			inCollection = c.kinds.Resource(object.GroupVersionKind()) == p.resource
		}
		if inCollection && selector.Matches(labels.Set(object.GetLabels())) {
			items = append(items, object.Object)
		}
	}
	list := map[string]any{"apiVersion": p.resource.GroupVersion().String(), "metadata": map[string]any{"resourceVersion": strconv.Itoa(c.version)}, "items": items}
	for kind := range c.scheme.KnownTypes(p.resource.GroupVersion()) {
		if c.kinds.Resource(p.resource.GroupVersion().WithKind(kind)) == p.resource {
			list["kind"] = kind + "List"
		}
	}
	return list, nil
}

func (c *cluster) create(p *call) (any, error) {
	object, err := p.object()
	if err != nil {
		return nil, err
	}
	if object.GetName() == "" && object.GetGenerateName() != "" {
		object.SetName(object.GetGenerateName() + strconv.Itoa(c.version+1))
	}
	if object.GetName() == "" {
		return nil, apierrors.NewBadRequest("name or generateName is required")
	}
	path := p.collection + "/" + object.GetName()
	if c.objects[path] != nil {
		return nil, apierrors.NewAlreadyExists(p.resource.GroupResource(), object.GetName())
	}
	object.SetNamespace(p.namespace)
	if !p.dryRun {
		c.put(path, object)
	}
	return object.Object, nil
}

func (c *cluster) update(p *call, path string, live *unstructured.Unstructured) (any, error) {
	var object *unstructured.Unstructured
	var err error
	switch {
	case p.Method == http.MethodPut || live == nil:
		object, err = p.object()
	default:
		object, err = c.patched(p, live)
	}
	if err != nil {
		return nil, err
	}
	if version := object.GetResourceVersion(); version != "" && live != nil && version != live.GetResourceVersion() {
		return nil, apierrors.NewConflict(p.resource.GroupResource(), p.name, errors.New("the object has been modified"))
	}
	object.SetName(p.name)
	object.SetNamespace(p.namespace)
	if !p.dryRun {
		c.put(path, object)
	}
	return object.Object, nil
}

func isApply(p *call) bool {
	return strings.HasPrefix(p.Header.Get("Content-Type"), string(types.ApplyPatchType))
}

// patched applies a patch. A server-side apply is a merge patch here: field owners
// do not exist.
func (c *cluster) patched(p *call, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	before, err := json.Marshal(live.Object)
	if err != nil {
		return nil, err
	}
	var after []byte
	switch kind := types.PatchType(p.Header.Get("Content-Type")); {
	case kind == types.JSONPatchType:
		decoded, err := jsonpatch.Decode(p.body)
		if err != nil {
			return nil, err
		}
		after, err = decoded.Apply(before)
		if err != nil {
			return nil, err
		}
	case kind == types.StrategicMergePatchType && c.scheme.Recognizes(live.GroupVersionKind()):
		typed, err := c.scheme.New(live.GroupVersionKind())
		if err != nil {
			return nil, err
		}
		if after, err = strategicpatch.StrategicMergePatch(before, p.body, typed); err != nil {
			return nil, err
		}
	default:
		patch, err := yaml.YAMLToJSON(p.body)
		if err != nil {
			return nil, err
		}
		if after, err = mergepatch.MergePatch(before, patch); err != nil {
			return nil, err
		}
	}
	object := &unstructured.Unstructured{}
	return object, json.Unmarshal(after, &object.Object)
}

// object returns the object in the request's body.
func (p *call) object() (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	body, err := yaml.YAMLToJSON(p.body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if err := json.Unmarshal(body, &object.Object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return object, nil
}
