package hook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	sigsjson "sigs.k8s.io/json"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/hook/protocol"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
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
	// fieldPaths are the fields of a parent that make a revision.
	fieldPaths [][]string
	// found are the kinds as the API server had them, and absent the versions of those that
	// it did not have, and need not.
	found  []found
	absent []string
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
	files := d.files
	d.files = nil
	d.mu.Unlock()
	for _, l := range files { // which waits for what a change calls, and that needs the lock
		l.release()
	}
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
	if resync != nil {
		d.resync = max(time.Second, time.Duration(*resync)*time.Second)
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
	p := spec.ParentResource
	if err := d.readHistory(spec); err != nil {
		return err
	}
	d.generate = spec.GenerateSelector != nil && *spec.GenerateSelector
	if err := d.readParent(ctx, p.ResourceRule, p.LabelSelector, nil, p.IgnoreStatusChanges); err != nil {
		return err
	}
	if !d.parentKinds[0].hasStatus {
		return fault("NoStatus", fmt.Sprintf("%s has no status subresource, which a CompositeController needs: add subresources: {status: {}} to its CustomResourceDefinition", p.Resource))
	}
	return d.readHooks(spec.Common, hooks.Sync, hooks.Finalize, hooks.Customize)
}

// readHistory reads which fields make a revision.
func (d *definition) readHistory(spec *v1alpha1.CompositeControllerSpec) (err error) {
	history := cmp.Or(spec.ParentResource.RevisionHistory, &v1alpha1.RevisionHistory{})
	if d.fieldPaths, err = compose.Paths(history.FieldPaths); err != nil {
		return fault("Invalid", "spec.parentResource.revisionHistory.fieldPaths"+err.Error())
	}
	rolls := slices.ContainsFunc(spec.ChildResources, func(c v1alpha1.ChildResource) bool {
		return c.UpdateStrategy != nil && compose.Rolls(c.UpdateStrategy.Method)
	})
	if len(history.FieldPaths) > 0 && !rolls {
		d.ignores("spec.parentResource.revisionHistory.fieldPaths has no effect: no kind of children has a rolling method")
	}
	return nil
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
	d.found = append(d.found, found{rule, kind})
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
		if noSuchKind(err) && rule.Optional != nil && *rule.Optional {
			d.found, d.absent = append(d.found, found{rule.ResourceRule, nil}), append(d.absent, rule.APIVersion)
			d.ignores("%s of %s is optional, and the API server does not have it now", rule.Resource, rule.APIVersion)
			continue
		}
		if err != nil {
			return err
		}
		d.found = append(d.found, found{rule.ResourceRule, kind})
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
		if slices.ContainsFunc(d.children, func(k childKind) bool { return k.GroupKind() == child.GroupKind() }) {
			return fault("Invalid", fmt.Sprintf("%s of %s is listed twice: an object has one version here", rule.Resource, rule.APIVersion))
		}
		d.children = append(d.children, child)
	}
	return d.checkRolls(ctx)
}

// rolls says whether a kind of children has a rolling method.
func (d *definition) rolls() bool {
	return slices.ContainsFunc(d.children, func(k childKind) bool { return compose.Rolls(k.Method) })
}

// checkRolls says what a rolling update needs and does not have.
func (d *definition) checkRolls(ctx context.Context) error {
	if !d.rolls() {
		return nil
	}
	if !d.parentKinds[0].namespaced {
		return fault("Invalid", fmt.Sprintf("childResources: a rolling method needs parents with a namespace, for their ControllerRevisions, and %s have none: use InPlace or Recreate", d.parentKinds[0].resource.Resource))
	}
	_, err := d.engine.discover(ctx, v1alpha1.ResourceRule{APIVersion: v1alpha1.GroupVersion.String(), Resource: revisionResource.Resource})
	return err
}

func (d *definition) kinds() []compose.Kind {
	kinds := make([]compose.Kind, len(d.children))
	for i, child := range d.children {
		kinds[i] = child.Kind
	}
	return kinds
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
	connection := d.connection(endpoint.URL, h.Webhook.Connection)
	if err := checkConnection(connection); err != nil {
		return nil, err
	}
	if endpoint.Credentials, err = d.credentials(connection); err != nil {
		return nil, err
	}
	b.Hook = protocol.NewWebhook(endpoint)
	return b, nil
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
	compile := func(ctx context.Context, policy protocol.Policy) (protocol.Hook, error) {
		mu.Lock()
		defer mu.Unlock() // whatever the compiler does
		if policy != last || failed != nil {
			compiled, failed = d.engine.options.Compiler(ctx, policy)
			last = policy
		}
		return compiled, failed
	}
	into.Hook = protocol.HookFunc(func(ctx context.Context, request protocol.Request) ([]byte, error) {
		policy := policy
		if current != nil {
			var err error
			if policy, err = current(); err != nil {
				return nil, err
			}
		}
		hook, err := compile(ctx, policy)
		if err != nil {
			return nil, fault("PolicyInvalid", err.Error())
		}
		ctx, cancel := context.WithTimeout(ctx, protocol.DefaultTimeout)
		defer cancel()
		return hook.Call(ctx, request)
	})
	return nil
}
