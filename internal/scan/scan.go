// Package scan runs the extensions of a program over what a cluster stores, and reports
// what they would have refused, changed, or failed at. It only reads.
//
// A [Plan] says which resources are read in which version, for which webhooks, and which
// admissions no stored object can stand for. [Run] lists each resource in pages of one
// snapshot. It sends every object through the webhooks twice, with the engine of
// internal/offline: as it would be created, and as an update that changes nothing. An
// object that no such update could pass is stuck: nobody can change its labels any more,
// and no controller can remove its finalizer.
//
// The memory of a scan depends on the size of a page and on the number of namespaces, not
// on that of objects: what is found is counted, and a bounded number of findings is kept.
package scan

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

// DefaultFindings is the default of Options.Findings.
const DefaultFindings = 10_000

// Options are the options of [Run].
type Options struct {
	// Config and Client are the connection, with the right to read.
	Config *rest.Config
	Client *http.Client
	// Webhooks are those of the program.
	Webhooks []*webhook.Webhook
	// Engine has the options of the engine. Run sets its Lean.
	Engine offline.Options
	// User makes the requests. Default: an administrator, and then it is tried out on a
	// sample whether an extension decides otherwise for somebody else.
	User *authenticationv1.UserInfo
	// Findings is how many findings are kept, beyond which they are only counted.
	// Default: DefaultFindings.
	Findings int
	// Progress is called, by one goroutine at a time, after each page: with the resource,
	// how many of its objects were scanned, and how many there are, if that is known.
	Progress func(resource string, done, all int)
}

// administrator and nobody are the users of a scan whose user does not matter.
var (
	administrator = authenticationv1.UserInfo{Username: "admin", Groups: []string{"system:masters", "system:authenticated"}}
	nobody        = authenticationv1.UserInfo{Username: "admitkit:nobody", Groups: []string{"system:authenticated"}}
)

// UserOf returns the user who makes the requests, by Options.User.
func UserOf(given *authenticationv1.UserInfo) authenticationv1.UserInfo {
	if given == nil {
		return administrator
	}
	return *given
}

// Run scans the cluster. An error means that the scan could not go on. The result names all that
// could not be scanned, such as a resource that may not be listed.
func Run(ctx context.Context, options Options) (*Result, error) {
	if options.Findings == 0 {
		options.Findings = DefaultFindings
	}
	options.Engine.Lean = true
	cluster, err := connect(options.Config, options.Client)
	if err != nil {
		return nil, err
	}
	lists, problem, err := cluster.resources(ctx)
	if err != nil {
		return nil, err
	}
	plan := PlanOf(options.Webhooks, lists)
	s := &scanner{options: options, cluster: cluster, result: newResult(options.Webhooks, plan.Left, options.Findings), labels: map[string]map[string]string{}}
	s.result.incomplete(problem)
	if err := s.readNamespaces(ctx); err != nil {
		return nil, err
	}
	s.missNamespaces(ctx, plan)
	for _, pass := range plan.Passes {
		if err := s.pass(ctx, pass); err != nil {
			return nil, err
		}
	}
	s.result.sort()
	return s.result, nil
}

// scanner is a scan that runs.
type scanner struct {
	options Options
	cluster *cluster
	result  *Result

	mu     sync.Mutex
	labels map[string]map[string]string // of namespaces
}

// pass scans the objects of one resource.
func (s *scanner) pass(ctx context.Context, pass Pass) error {
	group, ctx := errgroup.WithContext(ctx)
	items := make(chan json.RawMessage)
	group.Go(func() error {
		defer close(items)
		for _, namespace := range pass.Namespaces {
			err := s.cluster.list(ctx, pass, namespace, s.options.Progress, items)
			if apierrors.IsNotFound(err) { // a namespace, or a kind, that has gone meanwhile
				continue
			}
			if err != nil && ctx.Err() == nil {
				s.result.incomplete(fmt.Errorf("%s%s: %w", pass.Resource.GroupResource(), in(namespace), err))
				continue
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	for range runtime.GOMAXPROCS(0) {
		engine := offline.New(pass.Webhooks, s.options.Engine)
		group.Go(func() error {
			for item := range items {
				o, err := objectOf(pass, item)
				if err != nil {
					s.result.incomplete(fmt.Errorf("%s: %w", pass.Resource.GroupResource(), err))
					continue
				}
				if err := s.scan(ctx, engine, pass, o); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func in(namespace string) string {
	if namespace == metav1.NamespaceAll {
		return ""
	}
	return " in namespace " + namespace
}

// readNamespaces reads the labels of all namespaces. Without the right to it, they are
// unknown, which matters to the webhooks that select by them.
func (s *scanner) readNamespaces(ctx context.Context) error {
	err := s.cluster.namespaces(ctx, func(namespace *metav1.PartialObjectMetadata) { s.labels[namespace.Name] = known(namespace.Labels) })
	if apierrors.IsForbidden(err) {
		return nil
	}
	return err
}

// missNamespaces notes those of the plan that do not exist: an API server lists nothing in
// them, and says nothing.
func (s *scanner) missNamespaces(ctx context.Context, plan *Plan) {
	looked := map[string]bool{metav1.NamespaceAll: true}
	for _, pass := range plan.Passes {
		for _, namespace := range pass.Namespaces {
			if _, found := s.labels[namespace]; found || looked[namespace] {
				continue
			}
			looked[namespace] = true
			if _, err := s.cluster.namespace(ctx, namespace); apierrors.IsNotFound(err) {
				s.result.incomplete(fmt.Errorf("namespace %s does not exist", namespace))
			}
		}
	}
}

// known returns labels that are not nil, which would mean that they are unknown.
func known(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

// labelsOf returns the labels of a namespace, nil if they are unknown. A namespace may be
// younger than the scan.
func (s *scanner) labelsOf(ctx context.Context, namespace string) map[string]string {
	s.mu.Lock()
	labels, found := s.labels[namespace]
	s.mu.Unlock()
	if found || namespace == "" {
		return labels
	}
	if object, err := s.cluster.namespace(ctx, namespace); err == nil {
		labels = known(object.Labels)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.labels[namespace] = labels
	return labels
}
