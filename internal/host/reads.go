package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/admitkit/admitkit/extension"
)

// Process says which parts run in a process.
type Process uint8

// The processes of an installation. One may be several of them.
const (
	Serves     Process = 1 << iota // what answers admissions or runs beside it
	Reconciles                     // the reconcilers, and the watchers that run in one replica
	Watches                        // all watchers
)

// Read is a kind that a part reads through the cache of its manager.
type Read struct {
	// Part is the Go type of the part.
	Part string
	Kind schema.GroupVersionKind
	// Object is an object of that kind in the form in which it is read.
	Object client.Object
	// Selectors are the NamespaceSelectors of the part's scopes.
	Selectors []*metav1.LabelSelector
}

// Reads returns what the parts read that run in a process. It returns each kind once in
// each form. The error says which part returned an object that cannot be read.
func (p *Parts) Reads(scheme *runtime.Scheme, in Process) ([]Read, error) {
	var all []Read
	for _, e := range p.entitled {
		reader, ok := e.part.(extension.Reader)
		if !ok || !e.runsIn(in) {
			continue
		}
		for _, object := range reader.Reads() {
			kind, err := kindOf(object, scheme)
			if err != nil {
				return nil, fmt.Errorf("Reads of %T: %w", e.part, err)
			}
			read := Read{fmt.Sprintf("%T", e.part), kind, object, e.selectors}
			if !slices.ContainsFunc(all, func(known Read) bool { return known.key() == read.key() }) {
				all = append(all, read)
			}
		}
	}
	return all, nil
}

// runsIn reports whether a part runs in one of the processes.
func (e entitled) runsIn(in Process) bool {
	return e.serves && in&Serves != 0 || e.reconciles && in&Reconciles != 0 || e.watches && in&Watches != 0
}

// kindOf returns the kind of an object that can be read.
func kindOf(object client.Object, scheme *runtime.Scheme) (schema.GroupVersionKind, error) {
	if object == nil || isNil(object) {
		return schema.GroupVersionKind{}, errors.New("an object is nil: return an empty one of the kind, such as &corev1.Namespace{}")
	}
	kind, err := apiutil.GVKForObject(object, scheme)
	switch {
	case formOf(object) != typed && (kind.Kind == "" || kind.Version == ""):
		return kind, fmt.Errorf("a %T has no kind: name it by SetGroupVersionKind", object)
	case err != nil:
		return kind, fmt.Errorf("%w: add the type to the manager's Scheme, or read the kind as *unstructured.Unstructured", err)
	case isList(kind, scheme):
		return kind, fmt.Errorf("%s is a list: name the kind of its items, %s", kind.Kind, strings.TrimSuffix(kind.Kind, "List"))
	}
	return kind, nil
}

// isList reports whether a kind that a scheme has is a list of objects.
func isList(kind schema.GroupVersionKind, scheme *runtime.Scheme) bool {
	object, err := scheme.New(kind)
	return err == nil && meta.IsListType(object)
}

// form is the form in which objects are read. A cache has an informer for each.
type form string

const (
	typed        form = ""
	metadata     form = "metadata"
	unstructured form = "unstructured"
)

func formOf(object runtime.Object) form {
	switch object.(type) {
	case runtime.Unstructured:
		return unstructured
	case *metav1.PartialObjectMetadata, *metav1.PartialObjectMetadataList:
		return metadata
	}
	return typed
}

// readKey identifies what is read.
type readKey struct {
	schema.GroupVersionKind
	form
}

func (r Read) key() readKey { return readKey{r.Kind, formOf(r.Object)} }

// Admission is the key of a value that only the contexts of admissions have, an
// *Undeclared. It is nil unless somebody asks for it.
var Admission = admissionKey{}

type admissionKey struct{}

// Undeclared are the reads of an admission that a [Guard] refused.
type Undeclared struct {
	mu  sync.Mutex
	all []string
}

func (u *Undeclared) add(read error) error {
	if u != nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.all = append(u.all, read.Error())
	}
	return read
}

// TakeUndeclared returns the refused reads since its last call.
func TakeUndeclared(ctx context.Context) []string {
	u, _ := ctx.Value(Admission).(*Undeclared)
	if u == nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.all
	u.all = nil
	return all
}

// Guard keeps admissions from reading through a cache what no extension says that it reads:
// the first such read would wait for the whole kind to be listed, and without the right
// until the admission is out of time.
type Guard struct {
	scheme   *runtime.Scheme
	declared map[readKey]bool
}

// NewGuard returns a guard that knows of no reads.
func NewGuard(scheme *runtime.Scheme) *Guard { return &Guard{scheme, map[readKey]bool{}} }

// Declare makes reads known. It is to be called before the first admission.
func (g *Guard) Declare(reads []Read) {
	for _, read := range reads {
		g.declared[read.key()] = true
	}
}

// check returns whether a read was declared, and an error if it has to be and was not.
func (g *Guard) check(ctx context.Context, object runtime.Object) (declared bool, err error) {
	kind, err := apiutil.GVKForObject(object, g.scheme)
	if err != nil {
		return false, err
	}
	if _, list := object.(client.ObjectList); list {
		kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	}
	if g.declared[readKey{kind, formOf(object)}] {
		return true, nil
	}
	undeclared, admission := ctx.Value(Admission).(*Undeclared)
	if !admission {
		return false, nil
	}
	for _, other := range []form{typed, metadata, unstructured} {
		if g.declared[readKey{kind, other}] {
			return false, undeclared.add(fmt.Errorf("reading %s of %s as a %T: Reads (extension.Reader) returns that kind in another form: read it in that form, or return both", kind.Kind, kind.GroupVersion(), object))
		}
	}
	return false, undeclared.add(fmt.Errorf("reading %s of %s in an admission: no extension declares it: return it from Reads (extension.Reader), or ask the API server by GetAPIReader", kind.Kind, kind.GroupVersion()))
}

// Cache returns a cache that is guarded.
func (g *Guard) Cache(c cache.Cache) cache.Cache { return guardedCache{c, g} }

type guardedCache struct {
	cache.Cache
	guard *Guard
}

func (c guardedCache) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, err := c.guard.check(ctx, object); err != nil {
		return err
	}
	return explained(c.Cache.Get(ctx, key, object, options...))
}

func (c guardedCache) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, err := c.guard.check(ctx, list); err != nil {
		return err
	}
	return explained(c.Cache.List(ctx, list, options...))
}

// explained says more of an error of a cache.
func explained(err error) error {
	if _, not := errors.AsType[*cache.ErrCacheNotStarted](err); not {
		return fmt.Errorf("%w: read by GetAPIReader in Register, and give review the objects by --with", err)
	}
	// controller-runtime has no type for it.
	if err != nil && strings.Contains(err.Error(), "unknown namespace for the cache") {
		return fmt.Errorf("%w: it holds the watched namespaces alone: read what is elsewhere by GetAPIReader, or watch every namespace", err)
	}
	return err
}

// Client returns a client that is guarded. What was declared it reads by cached, unstructured
// objects too, which a client of controller-runtime reads from the API server. cached is of
// [Guard.Cache].
func (g *Guard) Client(c client.Client, cached client.Reader) client.Client {
	return guardedClient{c, cached, g}
}

type guardedClient struct {
	client.Client
	cached client.Reader
	guard  *Guard
}

func (c guardedClient) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	by, err := c.reader(ctx, object)
	if err != nil {
		return err
	}
	return by.Get(ctx, key, object, options...)
}

func (c guardedClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	by, err := c.reader(ctx, list)
	if err != nil {
		return err
	}
	return by.List(ctx, list, options...)
}

func (c guardedClient) reader(ctx context.Context, object runtime.Object) (client.Reader, error) {
	declared, err := c.guard.check(ctx, object)
	if declared {
		return c.cached, nil
	}
	return c.Client, err
}
