package hook

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
	"github.com/admitkit/admitkit/operator/hook/protocol"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// customizeFor is how long the answer of the hook customize is used, unless the parent's
// generation changes.
const customizeFor = 20 * time.Minute

// relatedRule is a rule of the hook customize, with the kind that it is about.
type relatedRule struct {
	protocol.RelatedRule
	kind       *parentKind
	selector   labels.Selector
	namespaces labels.Selector
	lease      *lease
}

// namespacesOf has the labels of namespaces.
var namespacesOf = corev1.SchemeGroupVersion.WithResource("namespaces")

// customizeFor finds the objects that the hooks want to see.
func (p *parents) customizeFor(ctx context.Context, v *view) error {
	if p.customize == nil {
		return nil
	}
	s := v.state
	if s.rules == nil || s.customized != v.parent.GetGeneration() || time.Now().After(s.until) {
		response, err := p.call(ctx, p.customize, string(v.parent.GetUID()), protocol.CustomizeRequest{Controller: p.object, Parent: v.parent.Object})
		if err != nil {
			return err
		}
		rules, err := protocol.ReadCustomize(response, p.customize.strict)
		if err != nil {
			return fault("HookFailed", "hooks.customize: "+err.Error())
		}
		fresh := []relatedRule{}
		for i, rule := range rules {
			r, err := p.relate(ctx, v, rule)
			if err != nil {
				return fmt.Errorf("hooks.customize: relatedResources[%d]: %w", i, err)
			}
			fresh = append(fresh, *r)
		}
		p.mu.Lock()
		s.rules, s.customized, s.until = fresh, v.parent.GetGeneration(), time.Now().Add(customizeFor)
		p.mu.Unlock()
	}
	v.related = protocol.Objects{}
	for _, rule := range s.rules {
		if !rule.lease.synced() {
			if err := rule.lease.lastError(); err != nil {
				return err
			}
			return errWaiting
		}
		key := protocol.Key(rule.kind.GroupVersion().String(), rule.kind.Kind)
		if v.related[key] == nil {
			v.related[key] = map[string]map[string]any{}
		}
		for _, object := range rule.lease.list() {
			if p.relates(&rule, v.parent.GetNamespace(), object) {
				v.related[key][p.customize.version.Name(v.parent.GetNamespace(), object)] = object.Object
			}
		}
	}
	return nil
}

func (p *parents) relate(ctx context.Context, v *view, rule protocol.RelatedRule) (*relatedRule, error) {
	kind, err := p.engine.kind(ctx, v1alpha1.ResourceRule{APIVersion: rule.APIVersion, Resource: rule.Resource})
	if err != nil {
		return nil, err
	}
	home := v.parent.GetNamespace()
	if home != "" && rule.Namespace != "" && rule.Namespace != home && p.customize.version != protocol.V2 {
		return nil, fault("HookFailed", fmt.Sprintf("namespace %q is not the parent's: in v1 only its own can be seen", rule.Namespace))
	}
	r := &relatedRule{RelatedRule: rule, kind: kind}
	for from, into := range map[*metav1.LabelSelector]*labels.Selector{rule.LabelSelector: &r.selector, rule.NamespaceSelector: &r.namespaces} {
		if from == nil {
			continue
		}
		if *into, err = metav1.LabelSelectorAsSelector(from); err != nil {
			return nil, fault("HookFailed", err.Error())
		}
	}
	if r.lease, err = p.relatedLease(kind.resource); err != nil {
		return nil, err
	}
	if r.namespaces != nil {
		_, err = p.relatedLease(namespacesOf)
	}
	return r, err
}

// relatedLease watches a resource for as long as the controller runs.
func (p *parents) relatedLease(resource schema.GroupVersionResource) (*lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := watchKey{GroupVersionResource: resource}
	if p.related[key] != nil {
		return p.related[key], nil
	}
	l, err := p.engine.watches.acquire(key, func(before, after *compose.Object) {
		for _, object := range []*compose.Object{before, after} {
			if object != nil {
				p.relatedChanged(resource, object)
			}
		}
	})
	if err == nil {
		p.related[key] = l
	}
	return l, err
}

// relatedChanged enqueues the parents whose hooks see an object.
func (p *parents) relatedChanged(resource schema.GroupVersionResource, object *compose.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, s := range p.states {
		for i := range s.rules {
			rule := &s.rules[i]
			if resource == namespacesOf && rule.namespaces != nil || rule.kind.resource == resource && (rule.namespaces != nil || p.relates(rule, key.namespace, object)) {
				p.queue.Add(key)
				break
			}
		}
	}
}

// relates says whether a rule of a parent is about an object.
func (p *parents) relates(rule *relatedRule, home string, object *compose.Object) bool {
	switch {
	case len(rule.Names) > 0 && !slices.Contains(rule.Names, object.GetName()):
		return false
	case rule.selector != nil && !rule.selector.Matches(labels.Set(object.GetLabels())):
		return false
	case object.GetNamespace() == "":
		return true
	case rule.Namespace != "":
		return object.GetNamespace() == rule.Namespace
	case rule.namespaces != nil:
		l := p.related[watchKey{GroupVersionResource: namespacesOf}]
		if l == nil {
			return false
		}
		namespace := l.get("", object.GetNamespace())
		return namespace != nil && rule.namespaces.Matches(labels.Set(namespace.GetLabels()))
	}
	return home == "" || p.customize.version == protocol.V2 || object.GetNamespace() == home
}
