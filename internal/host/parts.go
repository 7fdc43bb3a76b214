package host

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension"
)

// Parts are the parts of extensions, sorted by what their host does with them.
type Parts struct {
	Handlers    []*extension.Handler
	Watchers    []extension.Watcher
	Reconcilers []extension.Reconciler
	Removers    []extension.Remover
	Recorders   []extension.Recorder
	Converters  []*Converter
	// Unwrappers are the parts, and the values of handlers, that wrap commands.
	Unwrappers []extension.Unwrapper

	entitled []entitled
	// registered are the values that have their manager.
	registered []any
}

// entitled is a part that may need rights, in the processes in which it runs.
type entitled struct {
	part                        any
	serves, reconciles, watches bool
	// selectors are the NamespaceSelectors of its scope, or of those of its parts.
	selectors []*metav1.LabelSelector
}

// Rights are the rules that parts need.
type Rights struct {
	// Watched are those in the namespaces of the manager's Namespaces option, Cluster
	// those in the whole cluster, and Namespaces those in other namespaces by name.
	Watched, Cluster []rbacv1.PolicyRule
	Namespaces       map[string][]rbacv1.PolicyRule
	// Aggregates are labels of ClusterRoles whose rules hold, too, in the whole cluster.
	Aggregates []string
	// Outside are the parts whose Watched rules do not hold everywhere where they get
	// admissions, unless every namespace is watched.
	Outside []Outside
}

// maxDepth bounds how deep Composites nest. A Composite could be a part of itself.
const maxDepth = 16

// PartsOf sorts the parts of one extension. If a value is in no form that package
// extension defines, the error says what to do.
func PartsOf(e any, mgr extension.Manager) (Parts, error) {
	var p Parts
	err := p.add(e, mgr, maxDepth)
	return p, err
}

// Append appends the parts of another extension.
func (p *Parts) Append(other Parts) {
	p.Handlers = append(p.Handlers, other.Handlers...)
	p.Watchers = append(p.Watchers, other.Watchers...)
	p.Reconcilers = append(p.Reconcilers, other.Reconcilers...)
	for _, r := range other.Removers {
		p.addRemover(r)
	}
	p.Recorders = append(p.Recorders, other.Recorders...)
	p.Converters = append(p.Converters, other.Converters...)
	for _, u := range other.Unwrappers {
		p.addUnwrapper(u)
	}
	p.entitled = append(p.entitled, other.entitled...)
}

func (p *Parts) add(e any, mgr extension.Manager, depth int) error {
	if e == nil {
		return errors.New("nil is not an extension")
	}
	if isNil(e) {
		return fmt.Errorf("a nil %T is not an extension", e)
	}
	if h, ok := e.(*extension.Handler); ok {
		if err := check(h); err != nil {
			return err
		}
	}
	if w, ok := e.(*extension.KindWatcher); ok {
		if err := checkWatcher(w); err != nil {
			return err
		}
	}
	if c, ok := e.(*extension.Converter); ok {
		return p.addConverter(c)
	}
	before := len(p.Handlers)
	known := p.addForms(e, mgr)
	if c, ok := e.(extension.Composite); ok {
		if depth == 0 {
			return fmt.Errorf("%T: Composites are nested more than %d deep; does a part embed its Composite, and so have its method Parts?", e, maxDepth)
		}
		parts, err := c.Parts(mgr)
		if err != nil {
			return fmt.Errorf("%T: %w", e, err)
		}
		if len(parts) == 0 && !known {
			return fmt.Errorf("%T has no parts", e)
		}
		for _, part := range parts {
			if err := p.add(part, mgr, depth-1); err != nil {
				return fmt.Errorf("a part of %T: %w", e, err)
			}
		}
		known = true
	}
	if !known {
		return unknownForm(e)
	}
	at := where(e)
	if err := errors.Join(misfit(at.part), scopedTwice(e)); err != nil {
		return err
	}
	at.selectors = selectorsOf(p.Handlers[before:])
	p.addRoles(at)
	return nil
}

// where says in which processes a part runs: a Composite that is nothing else in all.
func where(e any) entitled {
	if h, ok := e.(*extension.Handler); ok {
		return entitled{part: inside.Value(h), serves: true}
	}
	_, answers := e.(extension.Extension)
	_, reconciles := e.(extension.Reconciler)
	w, watches := e.(extension.Watcher)
	if watches {
		answers, reconciles = answers || EveryReplica(w), reconciles || !EveryReplica(w)
	}
	nothingElse := !answers && !reconciles
	if watches {
		e = valueOf(w)
	}
	return entitled{part: e, serves: answers || nothingElse, reconciles: reconciles || nothingElse, watches: watches || nothingElse}
}

// EveryReplica reports whether a watcher asks to run in every replica.
func EveryReplica(w extension.Watcher) bool {
	elected, says := w.(extension.LeaderElected)
	return says && !elected.NeedLeaderElection()
}

// addForms adds e in each of its forms.
func (p *Parts) addForms(e any, mgr extension.Manager) (known bool) {
	if h, ok := e.(*extension.Handler); ok {
		p.Handlers, known = append(p.Handlers, h), true
	}
	if x, ok := e.(extension.Extension); ok {
		p.Handlers, known = append(p.Handlers, HandlerOf(x, mgr)), true
	}
	if w, ok := e.(extension.Watcher); ok {
		p.Watchers, known = append(p.Watchers, w), true
	}
	if r, ok := e.(extension.Reconciler); ok {
		p.Reconcilers, known = append(p.Reconcilers, r), true
	}
	if r, ok := e.(extension.Recorder); ok {
		p.Recorders, known = append(p.Recorders, r), true
	}
	return known
}

// addRoles adds the other interfaces of a part or, if it is a Handler, of its value.
func (p *Parts) addRoles(e entitled) {
	p.entitled = append(p.entitled, e)
	if r, ok := e.part.(extension.Remover); ok {
		p.addRemover(r)
	}
	if u, ok := e.part.(extension.Unwrapper); ok {
		p.addUnwrapper(u)
	}
}

// addUnwrapper adds an Unwrapper once, although a value may be several parts.
func (p *Parts) addUnwrapper(u extension.Unwrapper) {
	if !slices.ContainsFunc(p.Unwrappers, func(other extension.Unwrapper) bool { return same(other, u) }) {
		p.Unwrappers = append(p.Unwrappers, u)
	}
}

// addRemover adds a Remover once, although a value may be several parts.
func (p *Parts) addRemover(r extension.Remover) {
	if !slices.ContainsFunc(p.Removers, func(other extension.Remover) bool { return same(other, r) }) {
		p.Removers = append(p.Removers, r)
	}
}

// Empty reports whether there is nothing to run.
func (p *Parts) Empty() bool {
	return len(p.Handlers)+len(p.Watchers)+len(p.Reconcilers)+len(p.Recorders)+len(p.Converters) == 0
}

// Register gives the handlers and recorders their manager.
func (p *Parts) Register(mgr extension.Manager) error {
	for _, h := range p.Handlers {
		if err := p.register(mgr, inside.Value(h), inside.Name(h)); err != nil {
			return err
		}
	}
	return p.RegisterRecorders(mgr)
}

// RegisterRecorders gives the recorders their manager.
func (p *Parts) RegisterRecorders(mgr extension.Manager) error {
	for _, r := range p.Recorders {
		if err := p.register(mgr, r, fmt.Sprintf("%T", r)); err != nil {
			return err
		}
	}
	return nil
}

// RegisterWatcher gives a watcher its manager.
func (p *Parts) RegisterWatcher(mgr extension.Manager, w extension.Watcher) error {
	return p.register(mgr, valueOf(w), WatcherName(w))
}

// register gives a value its manager, if it is [extension.Hosted], and once, although
// several parts may be made of it.
func (p *Parts) register(mgr extension.Manager, value any, name string) error {
	hosted, ok := value.(extension.Hosted)
	if !ok || slices.ContainsFunc(p.registered, func(known any) bool { return same(known, value) }) {
		return nil
	}
	if err := hosted.Register(mgr); err != nil {
		return fmt.Errorf("registering %s: %w", name, err)
	}
	p.registered = append(p.registered, value)
	return nil
}

// same reports whether two values are one.
func same(a, b any) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.ValueOf(a).Comparable() && a == b
}

// ServerRights returns what the parts need that answer admissions or run beside them.
func (p *Parts) ServerRights() Rights {
	return p.rights(func(e entitled) bool { return e.serves })
}

// ReconcilerRights returns what the reconcilers and watchers need.
func (p *Parts) ReconcilerRights() Rights {
	return p.rights(func(e entitled) bool { return e.reconciles })
}

// Equip adds to the Pods in which admissions are answered what the parts there need.
func (p *Parts) Equip(pod *corev1.PodSpec) {
	for _, e := range p.entitled {
		if equipped, ok := e.part.(extension.Equipped); ok && e.serves {
			equipped.Equip(pod)
		}
	}
}

// rights returns each rule of the selected parts once.
func (p *Parts) rights(selected func(entitled) bool) Rights {
	all := Rights{Namespaces: map[string][]rbacv1.PolicyRule{}}
	for _, e := range p.entitled {
		if !selected(e) {
			continue
		}
		asked := asks(e.part)
		all.grant(e, asked.scope)
		for namespace, rules := range asked.namespaces {
			all.Namespaces[namespace] = AppendNew(all.Namespaces[namespace], rules...)
		}
		all.Cluster = AppendNew(all.Cluster, asked.cluster...)
		if asks, ok := e.part.(extension.AggregateEntitled); ok && !slices.Contains(all.Aggregates, asks.AggregateLabel()) {
			all.Aggregates = append(all.Aggregates, asks.AggregateLabel())
		}
	}
	return all
}

// asked are the rules that a part asks for: where it gets admissions, in namespaces by name,
// and in the whole cluster.
type asked struct {
	scope      []rbacv1.PolicyRule
	namespaces map[string][]rbacv1.PolicyRule
	cluster    []rbacv1.PolicyRule
}

func asks(part any) (all asked) {
	if p, ok := part.(extension.Entitled); ok {
		all.scope = p.Rights()
	}
	if p, ok := part.(extension.NamespaceEntitled); ok {
		all.namespaces = p.NamespaceRights()
	}
	if p, ok := part.(extension.ClusterEntitled); ok {
		all.cluster = p.ClusterRights()
	}
	return all
}

// Right is a rule that a part asks for.
type Right struct {
	// Part is the type of the part, and Method the one that returns the rule, at Index.
	Part, Method string
	Index        int
	Rule         rbacv1.PolicyRule
}

// EachRight calls visit for each rule that a part asks for, until it returns an error.
func (p *Parts) EachRight(visit func(Right) error) error {
	for _, e := range p.entitled {
		asked := asks(e.part)
		of := map[string][]rbacv1.PolicyRule{"Rights": asked.scope, "ClusterRights": asked.cluster}
		for _, namespace := range slices.Sorted(maps.Keys(asked.namespaces)) {
			if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
				return fmt.Errorf("%T: NamespaceRights(): %q is no name of a namespace: %s", e.part, namespace, strings.Join(problems, ", "))
			}
			of["NamespaceRights"] = append(of["NamespaceRights"], asked.namespaces[namespace]...)
		}
		for _, method := range slices.Sorted(maps.Keys(of)) {
			for i, rule := range of[method] {
				if err := visit(Right{fmt.Sprintf("%T", e.part), method, i, rule}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// AppendNew appends the rules that are not there yet.
func AppendNew(rules []rbacv1.PolicyRule, more ...rbacv1.PolicyRule) []rbacv1.PolicyRule {
	for _, r := range more {
		if !slices.ContainsFunc(rules, func(known rbacv1.PolicyRule) bool { return known.String() == r.String() }) {
			rules = append(rules, r)
		}
	}
	return rules
}

// check returns why a Handler cannot be called.
func check(h *extension.Handler) error {
	opened := Open(h)
	switch {
	case opened.typ == nil:
		return errors.New("this extension.Handler is empty: make one with extension.Mutating or extension.Validating")
	case opened.value == nil || isNil(opened.value):
		return fmt.Errorf("the Mutator or Validator of a Handler is nil: %s", opened.Name)
	}
	return checkRules(opened)
}

func isNil(e any) bool {
	v := reflect.ValueOf(e)
	switch v.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Interface:
		return v.IsNil()
	}
	return false
}

// forms has the forms that a value misses if it should have been a pointer.
var forms = []reflect.Type{
	reflect.TypeFor[extension.Extension](), reflect.TypeFor[extension.Watcher](),
	reflect.TypeFor[extension.Reconciler](), reflect.TypeFor[extension.Composite](),
}

var handler, converter = reflect.TypeFor[extension.Handler](), reflect.TypeFor[extension.Converter]()

const handleSignatures = "an Extension has Handle(context.Context, extension.Manager, *corev1.Pod, admission.Request) admission.Response, " +
	"a Watcher has Handle(context.Context, extension.Manager, watch.Event)"

// unknownForm returns an error that says why a value is in no form, and what to do.
func unknownForm(e any) error {
	typ := reflect.TypeOf(e)
	if typ == handler || typ == converter || typ.Kind() != reflect.Pointer && slices.ContainsFunc(forms, reflect.PointerTo(typ).Implements) {
		return fmt.Errorf("%T is not an extension, but *%T is: pass a pointer", e, e)
	}
	if method, hint := nearest(typ); hint != "" {
		return fmt.Errorf("%T is not an Extension, Watcher, Reconciler or Composite: it has %s%s; %s",
			e, method.Name, signature(method.Type), hint)
	}
	if typ.Kind() == reflect.Func {
		return fmt.Errorf("%T is not an extension: make a Handler of the function with extension.Mutating or extension.Validating", e)
	}
	return fmt.Errorf("%T is not an Extension, Watcher, Reconciler, Composite or *extension.Handler", e)
}

// nearest returns the method by which a type is nearly in one of the forms, and what that
// form asks for. The names are constants in the calls: with a variable, the linker would
// have to keep every exported method of every type, a third more of each user's program.
func nearest(typ reflect.Type) (method reflect.Method, hint string) {
	var ok bool
	if method, ok = typ.MethodByName("Handle"); ok {
		return method, handleSignatures
	}
	if method, ok = typ.MethodByName("Mutate"); ok {
		return method, "a Mutator has Mutate(context.Context, T, *extension.Request) error; add extension.Mutating(x, scope)"
	}
	if method, ok = typ.MethodByName("Validate"); ok {
		return method, "a Validator has Validate(context.Context, T, *extension.Request) error; add extension.Validating(x, scope)"
	}
	if method, ok = typ.MethodByName("Watch"); ok {
		return method, "a WatcherOf has Watch(context.Context, extension.Manager, watch.EventType, T); add extension.Watching(x, scope)"
	}
	if method, ok = typ.MethodByName("Reconcile"); ok {
		return method, "a Reconciler has Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) and Register(extension.Manager) error"
	}
	if method, ok = typ.MethodByName("Parts"); ok {
		return method, "a Composite has Parts(extension.Manager) ([]any, error)"
	}
	return method, ""
}

// signature prints the type of a method without its receiver.
func signature(method reflect.Type) string {
	in := make([]reflect.Type, method.NumIn()-1)
	for i := range in {
		in[i] = method.In(i + 1)
	}
	out := make([]reflect.Type, method.NumOut())
	for i := range out {
		out[i] = method.Out(i)
	}
	text := reflect.FuncOf(in, out, method.IsVariadic()).String()
	return text[len("func"):]
}
