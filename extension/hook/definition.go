package hook

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	sigsjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/extension/hook/compose"
	"github.com/admitkit/admitkit/extension/hook/protocol"
)

// definition is a controller as its object says.
type definition struct {
	engine      *engine
	name        string
	object      map[string]any
	composite   bool
	parentKinds []parentKind
	children    []childKind
	generate    bool
	resync      time.Duration
	wakeUps     bool
	sync        *boundHook
	finalize    *boundHook
	customize   *boundHook
	endpoints   []v1alpha1.EndpointConfig
	// dishonored name the fields without effect.
	dishonored []string

	mu sync.Mutex
	// files are the Secrets and ConfigMaps that hooks refer to.
	files   map[watchKey]*lease
	changed func()
}

type parentKind struct {
	schema.GroupVersionKind
	resource       schema.GroupVersionResource
	namespaced     bool
	hasStatus      bool
	selector       labels.Selector
	annotations    labels.Selector
	ignoringStatus bool
}

func (k *parentKind) selects(parent *compose.Object) bool {
	return k.selector.Matches(labels.Set(parent.GetLabels())) && k.annotations.Matches(labels.Set(parent.GetAnnotations()))
}

type childKind struct {
	compose.Kind
	resource schema.GroupVersionResource
}

// boundHook is a hook, and how its responses are read.
type boundHook struct {
	protocol.Hook
	name    string
	version protocol.Version
	strict  bool
}

// finalizer is Metacontroller's, so that an upgrade from it and back leaves none behind.
func (d *definition) finalizer() string {
	if d.composite {
		return "metacontroller.io/compositecontroller-" + d.name
	}
	return "metacontroller.io/decoratorcontroller-" + d.name
}

// define makes a definition of a controller's object.
func (e *engine) define(ctx context.Context, object *unstructured.Unstructured, report *report) (*definition, error) {
	d := &definition{engine: e, name: object.GetName(), object: object.Object, files: map[watchKey]*lease{}, composite: object.GetKind() == "CompositeController", changed: func() {}}
	err := d.read(ctx)
	report.honored(d.dishonored)
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// close ends what the hooks hold.
func (d *definition) close() {
	for _, hook := range []*boundHook{d.sync, d.finalize, d.customize} {
		if hook == nil {
			continue
		}
		if closer, ok := hook.Hook.(interface{ Close() }); ok {
			closer.Close()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.files {
		l.release()
	}
	d.files = nil
}

func (d *definition) read(ctx context.Context) error {
	text, err := json.Marshal(map[string]any{"spec": d.object["spec"]})
	if err != nil {
		return err
	}
	var children []v1alpha1.ChildResource
	var common v1alpha1.Common
	var resync *int32
	if d.composite {
		var of struct {
			Spec v1alpha1.CompositeControllerSpec `json:"spec"`
		}
		if err := d.decode(text, &of); err != nil {
			return err
		}
		children, common, resync = of.Spec.ChildResources, of.Spec.Common, of.Spec.ResyncPeriodSeconds
		err = d.readComposite(ctx, &of.Spec)
	} else {
		var of struct {
			Spec v1alpha1.DecoratorControllerSpec `json:"spec"`
		}
		if err := d.decode(text, &of); err != nil {
			return err
		}
		children, common, resync = of.Spec.Attachments, of.Spec.Common, of.Spec.ResyncPeriodSeconds
		err = d.readDecorator(ctx, &of.Spec)
	}
	if err != nil {
		return err
	}
	if resync != nil && *resync > 0 {
		d.resync = time.Duration(*resync) * time.Second
	}
	d.wakeUps = common.WakeUpAtTimes == nil || *common.WakeUpAtTimes
	return d.readChildren(ctx, children)
}

// decode reads the spec, and notes the fields that it does not know.
func (d *definition) decode(text []byte, into any) error {
	unknown, err := sigsjson.UnmarshalStrict(text, into)
	if err != nil {
		return fault("Invalid", err.Error())
	}
	for _, fault := range unknown {
		d.ignores("%s", strings.TrimPrefix(fault.Error(), "json: "))
	}
	return nil
}

func (d *definition) ignores(format string, args ...any) {
	d.dishonored = append(d.dishonored, fmt.Sprintf(format, args...))
}

func (d *definition) readComposite(ctx context.Context, spec *v1alpha1.CompositeControllerSpec) error {
	hooks := cmp.Or(spec.Hooks, &v1alpha1.CompositeControllerHooks{})
	if hooks.PreUpdateChild != nil || hooks.PostUpdateChild != nil {
		d.ignores("spec.hooks.preUpdateChild and postUpdateChild have no effect, as in Metacontroller")
	}
	if history := spec.ParentResource.RevisionHistory; history != nil && len(history.FieldPaths) > 0 {
		d.ignores("spec.parentResource.revisionHistory.fieldPaths has no effect: a rolling update leaves the children that it has not reached as they are")
	}
	p := spec.ParentResource
	d.generate = spec.GenerateSelector != nil && *spec.GenerateSelector
	if err := d.readParent(ctx, p.ResourceRule, p.LabelSelector, nil, p.IgnoreStatusChanges); err != nil {
		return err
	}
	if !d.parentKinds[0].hasStatus {
		return fault("NoStatus", fmt.Sprintf("%s has no status subresource, which a CompositeController needs: add subresources: {status: {}} to its CustomResourceDefinition", p.Resource))
	}
	return d.readHooks(spec.Common, hooks.Sync, hooks.Finalize, hooks.Customize)
}

func (d *definition) readDecorator(ctx context.Context, spec *v1alpha1.DecoratorControllerSpec) error {
	hooks := cmp.Or(spec.Hooks, &v1alpha1.DecoratorControllerHooks{})
	for _, r := range spec.Resources {
		if err := d.readParent(ctx, r.ResourceRule, r.LabelSelector, r.AnnotationSelector, r.IgnoreStatusChanges); err != nil {
			return err
		}
	}
	return d.readHooks(spec.Common, hooks.Sync, hooks.Finalize, hooks.Customize)
}

func (d *definition) readParent(ctx context.Context, rule v1alpha1.ResourceRule, by *metav1.LabelSelector, annotations *v1alpha1.AnnotationSelector, ignoreStatus *bool) error {
	kind, err := d.engine.kind(ctx, rule)
	if err != nil {
		return err
	}
	kind.selector, kind.annotations = labels.Everything(), labels.Everything()
	if by != nil {
		if kind.selector, err = metav1.LabelSelectorAsSelector(by); err != nil {
			return fault("Invalid", "labelSelector: "+err.Error())
		}
	}
	if annotations != nil {
		as := &metav1.LabelSelector{MatchLabels: annotations.MatchAnnotations, MatchExpressions: annotations.MatchExpressions}
		if kind.annotations, err = metav1.LabelSelectorAsSelector(as); err != nil {
			return fault("Invalid", "annotationSelector: "+err.Error())
		}
	}
	kind.ignoringStatus = ignoreStatus != nil && *ignoreStatus
	d.parentKinds = append(d.parentKinds, *kind)
	return nil
}

func (d *definition) readChildren(ctx context.Context, rules []v1alpha1.ChildResource) error {
	for _, rule := range rules {
		kind, err := d.engine.kind(ctx, rule.ResourceRule)
		if err != nil {
			return err
		}
		child := childKind{compose.Kind{GroupVersionKind: kind.GroupVersionKind, Namespaced: kind.namespaced}, kind.resource}
		if s := rule.UpdateStrategy; s != nil {
			child.Method, child.Checks = s.Method, s.StatusChecks.Conditions
			if len(child.Checks) > 0 && !compose.Rolls(s.Method) {
				d.ignores("statusChecks of %s have no effect with the method %s", rule.Resource, cmp.Or(s.Method, v1alpha1.OnDelete))
			}
			if !d.composite && compose.Rolls(s.Method) {
				return fault("Invalid", fmt.Sprintf("attachments: %s: a DecoratorController has no method %s", rule.Resource, s.Method))
			}
		}
		if slices.ContainsFunc(d.children, func(k childKind) bool { return k.GroupVersionKind == child.GroupVersionKind }) {
			return fault("Invalid", fmt.Sprintf("%s of %s is listed twice", rule.Resource, rule.APIVersion))
		}
		d.children = append(d.children, child)
	}
	return nil
}

func (d *definition) kinds() []compose.Kind {
	kinds := make([]compose.Kind, len(d.children))
	for i, child := range d.children {
		kinds[i] = child.Kind
	}
	return kinds
}

// kind asks the API server about a resource.
func (e *engine) kind(ctx context.Context, rule v1alpha1.ResourceRule) (*parentKind, error) {
	version, err := schema.ParseGroupVersion(rule.APIVersion)
	if err != nil {
		return nil, fault("Invalid", err.Error())
	}
	if err := e.allows(rule.Resource, version.Group); err != nil {
		return nil, err
	}
	list, err := e.discovery.ServerResourcesForGroupVersion(rule.APIVersion)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var kind *parentKind
	hasStatus := false
	if list != nil {
		for _, r := range list.APIResources {
			switch r.Name {
			case rule.Resource:
				kind = &parentKind{GroupVersionKind: version.WithKind(r.Kind), resource: version.WithResource(r.Name), namespaced: r.Namespaced}
			case rule.Resource + "/status":
				hasStatus = true
			}
		}
	}
	if kind == nil {
		return nil, fault("NoSuchKind", fmt.Sprintf("the API server has no resource %s in %s: install its CustomResourceDefinition, and write the plural in lower case", rule.Resource, rule.APIVersion))
	}
	kind.hasStatus = hasStatus
	return kind, nil
}

func (d *definition) readHooks(common v1alpha1.Common, sync, finalize, customize *v1alpha1.Hook) (err error) {
	d.endpoints = common.EndpointConfigs
	for i, endpoint := range d.endpoints {
		if endpoint.Host == "" {
			d.ignores("spec.endpointConfigs[%d] has no host, and no effect", i)
		}
	}
	for _, each := range []struct {
		name string
		hook *v1alpha1.Hook
		into **boundHook
	}{{"sync", sync, &d.sync}, {"finalize", finalize, &d.finalize}, {"customize", customize, &d.customize}} {
		if each.hook == nil {
			continue
		}
		if *each.into, err = d.bind(each.name, each.hook); err != nil {
			if p, ok := errors.AsType[*problem](err); ok {
				return fault(p.reason, "hooks."+each.name+": "+p.message)
			}
			return fault("Invalid", "hooks."+each.name+": "+err.Error())
		}
	}
	if d.sync == nil && d.finalize == nil {
		return fault("Invalid", "spec.hooks has neither sync nor finalize: there is nothing to call")
	}
	return nil
}

func (d *definition) bind(name string, h *v1alpha1.Hook) (*boundHook, error) {
	b := &boundHook{name: name, version: protocol.Version(cmp.Or(h.Version, string(protocol.V1)))}
	b.strict = b.version == protocol.V2
	switch {
	case h.Webhook != nil && h.Rego != nil:
		return nil, errors.New("webhook and rego: choose one")
	case h.Rego != nil:
		return b, d.bindRego(h.Rego, b)
	case h.Webhook == nil:
		return nil, errors.New("has neither webhook nor rego")
	}
	if mode := h.Webhook.ResponseUnMarshallMode; mode != "" {
		b.strict = mode == "strict"
	}
	endpoint, faults, err := protocol.EndpointOf(h.Webhook)
	for _, fault := range faults {
		d.ignores("spec.hooks.%s.webhook: %s", name, fault)
	}
	if err != nil {
		return nil, err
	}
	if h.Webhook.Etag != nil && h.Webhook.Etag.CacheCleanupSeconds != nil {
		d.ignores("spec.hooks.%s.webhook.etag.cacheCleanupSeconds: responses go when they are too old", name)
	}
	if endpoint.Credentials, err = d.credentials(d.connection(endpoint.URL, h.Webhook.Connection)); err != nil {
		return nil, err
	}
	b.Hook = protocol.NewWebhook(endpoint)
	return b, nil
}

// connection adds to a webhook's own connection what its host has.
func (d *definition) connection(address string, c v1alpha1.Connection) v1alpha1.Connection {
	u, err := url.Parse(address)
	if err != nil {
		return c
	}
	for _, endpoint := range d.endpoints {
		if endpoint.Host != u.Host && endpoint.Host != u.Hostname() {
			continue
		}
		c.CABundle = cmp.Or(c.CABundle, endpoint.CABundle)
		if c.Authorization == nil && c.BasicAuth == nil {
			c.Authorization, c.BasicAuth = endpoint.Authorization, endpoint.BasicAuth
		}
		c.ClientTLS = cmp.Or(c.ClientTLS, endpoint.ClientTLS)
	}
	return c
}

// file watches a Secret or a ConfigMap, of a namespace that the operator allows.
func (d *definition) file(resource string, ref *v1alpha1.KeyReference) (*lease, error) {
	if !slices.Contains(d.engine.options.Namespaces, ref.Namespace) {
		return nil, fault("NamespaceNotAllowed", fmt.Sprintf("%s %s/%s: the namespace is not in --hooks-namespaces", resource, ref.Namespace, ref.Name))
	}
	key := watchKey{schema.GroupVersionResource{Version: "v1", Resource: resource}, ref.Namespace, ref.Name}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[key] == nil {
		l, err := d.engine.watches.acquire(key, func(_, _ *unstructured.Unstructured) {
			d.mu.Lock()
			changed := d.changed
			d.mu.Unlock()
			changed()
		})
		if err != nil {
			return nil, err
		}
		d.files[key] = l
	}
	return d.files[key], nil
}

// content returns what a key of a Secret or a ConfigMap has now.
func content(l *lease, resource string, ref *v1alpha1.KeyReference, key string) ([]byte, error) {
	where := fmt.Sprintf("%s %s/%s", resource, ref.Namespace, ref.Name)
	object := l.get(ref.Namespace, ref.Name)
	if object == nil {
		if !l.synced() {
			err := cmp.Or(l.lastError(), errWaiting)
			if apierrors.IsForbidden(err) { // not by a ClusterRole, which would be for every namespace
				return nil, fault("MissingRight", fmt.Sprintf("%s: %v. The operator's manifests have a Role for it in each of --hooks-namespaces: apply them again", where, err))
			}
			return nil, fmt.Errorf("%s has not been read yet: %w", where, err)
		}
		return nil, fmt.Errorf("%s does not exist", where)
	}
	text, ok, err := unstructured.NestedString(object.Object, "data", key)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s has no key %s", where, key)
	}
	if resource == "configmaps" {
		return []byte(text), nil
	}
	return base64.StdEncoding.DecodeString(text)
}

var errWaiting = errors.New("waiting for the API server")

// credential is a part of a connection that is in a Secret or a ConfigMap.
type credential struct {
	lease    *lease
	resource string
	ref      *v1alpha1.KeyReference
	keys     []string
	set      func(*protocol.Credentials, [][]byte) error
}

func (c *credential) read() (data [][]byte, err error) {
	for _, key := range c.keys {
		text, err := content(c.lease, c.resource, c.ref, key)
		if err != nil {
			return nil, err
		}
		data = append(data, text)
	}
	return data, nil
}

// references returns what a connection refers to.
func references(c v1alpha1.Connection) (all []credential) {
	ca := func(into *protocol.Credentials, data [][]byte) error { into.CA = data[0]; return nil }
	if b := c.CABundle; b != nil && b.SecretRef != nil {
		all = append(all, credential{resource: "secrets", ref: b.SecretRef, set: ca, keys: []string{cmp.Or(b.SecretRef.Key, "ca.crt")}})
	}
	if b := c.CABundle; b != nil && b.ConfigMapRef != nil {
		all = append(all, credential{resource: "configmaps", ref: b.ConfigMapRef, set: ca, keys: []string{cmp.Or(b.ConfigMapRef.Key, "ca.crt")}})
	}
	if a := c.Authorization; a != nil && a.SecretRef != nil {
		all = append(all, credential{resource: "secrets", ref: a.SecretRef, keys: []string{cmp.Or(a.SecretRef.Key, "token")}, set: func(into *protocol.Credentials, data [][]byte) error {
			into.Authorization = cmp.Or(a.Type, "Bearer") + " " + strings.TrimSpace(string(data[0]))
			return nil
		}})
	}
	if b := c.BasicAuth; b != nil && b.SecretRef != nil {
		all = append(all, credential{resource: "secrets", ref: b.SecretRef, keys: []string{"username", "password"}, set: func(into *protocol.Credentials, data [][]byte) error {
			into.Authorization = "Basic " + base64.StdEncoding.EncodeToString(slices.Concat(data[0], []byte(":"), data[1]))
			return nil
		}})
	}
	if t := c.ClientTLS; t != nil && t.SecretRef != nil {
		all = append(all, credential{resource: "secrets", ref: t.SecretRef, keys: []string{"tls.crt", "tls.key"}, set: func(into *protocol.Credentials, data [][]byte) error {
			pair, err := tls.X509KeyPair(data[0], data[1])
			into.Certificate = &pair
			return err
		}})
	}
	return all
}

// credentials returns a function that reads what a connection refers to, as it is now.
func (d *definition) credentials(c v1alpha1.Connection) (func(context.Context) (*protocol.Credentials, error), error) {
	inline := ""
	if c.CABundle != nil {
		inline = c.CABundle.Inline
	}
	parts := references(c)
	for i := range parts {
		var err error
		if parts[i].lease, err = d.file(parts[i].resource, parts[i].ref); err != nil {
			return nil, err
		}
	}
	var mu sync.Mutex
	var last string
	var kept *protocol.Credentials
	return func(context.Context) (*protocol.Credentials, error) {
		fresh := &protocol.Credentials{CA: []byte(inline)}
		var all [][]byte
		for _, p := range parts {
			data, err := p.read()
			if err == nil {
				err = p.set(fresh, data)
			}
			if err != nil {
				return nil, fmt.Errorf("%s %s/%s: %w", p.resource, p.ref.Namespace, p.ref.Name, err)
			}
			all = append(all, data...)
		}
		mu.Lock()
		defer mu.Unlock()
		if now := digest(all); kept == nil || now != last {
			kept, last = fresh, now
		}
		return kept, nil
	}, nil
}

// bindRego makes a hook of a policy, which is compiled when it is first called, and again
// when its ConfigMap has changed.
func (d *definition) bindRego(r *v1alpha1.Rego, into *boundHook) error {
	if d.engine.options.Compiler == nil {
		return errors.New("rego: this program runs no policies")
	}
	policy := protocol.Policy{Name: "inline", Source: r.Inline, Query: cmp.Or(r.Query, "data.controller"), Version: cmp.Or(r.Version, "v1")}
	var current func() (protocol.Policy, error)
	if ref := r.ConfigMap; ref != nil {
		l, err := d.file("configmaps", ref)
		if err != nil {
			return err
		}
		key := cmp.Or(ref.Key, "policy.rego")
		current = func() (protocol.Policy, error) {
			text, err := content(l, "configmaps", ref, key)
			policy := policy
			policy.Name, policy.Source = fmt.Sprintf("configmap/%s/%s/%s", ref.Namespace, ref.Name, key), string(text)
			return policy, err
		}
	}
	var mu sync.Mutex
	var last protocol.Policy
	var compiled protocol.Hook
	var failed error
	into.Hook = protocol.HookFunc(func(ctx context.Context, request protocol.Request) ([]byte, error) {
		policy := policy
		if current != nil {
			var err error
			if policy, err = current(); err != nil {
				return nil, err
			}
		}
		mu.Lock()
		if policy != last || failed != nil {
			last = policy
			compiled, failed = d.engine.options.Compiler(ctx, policy)
		}
		hook, err := compiled, failed
		mu.Unlock()
		if err != nil {
			return nil, fault("PolicyInvalid", err.Error())
		}
		ctx, cancel := context.WithTimeout(ctx, protocol.DefaultTimeout)
		defer cancel()
		return hook.Call(ctx, request)
	})
	return nil
}
