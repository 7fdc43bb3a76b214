package manager

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	clientgocache "k8s.io/client-go/tools/cache"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
)

// startReads makes the informers of what extensions read in this process, which run as soon
// as kube does, and returns a function that waits until they have synced. It reports what
// would keep them from it: an informer tries again forever.
func (m *Manager) startReads(ctx context.Context, kube ctrlmanager.Manager, process host.Process) (synced func(context.Context) bool, err error) {
	reads, err := m.parts.Reads(m.options.Scheme, process)
	if err != nil {
		return nil, err
	}
	var all []clientgocache.InformerSynced
	for _, read := range reads {
		if err := m.checkRead(ctx, kube.GetRESTMapper(), read); err != nil {
			return nil, fmt.Errorf("Reads of %s: %s: %w", read.Part, read.Kind.Kind, err)
		}
		informer, err := kube.GetCache().GetInformer(ctx, read.Object)
		if err != nil {
			return nil, fmt.Errorf("Reads of %s: %s: %w", read.Part, read.Kind.Kind, err)
		}
		all = append(all, informer.HasSynced)
	}
	return func(ctx context.Context) bool { return clientgocache.WaitForCacheSync(ctx.Done(), all...) }, nil
}

// checkRead makes sure that the API server has a kind, and lets this process list and watch
// it.
func (m *Manager) checkRead(ctx context.Context, mapper meta.RESTMapper, read host.Read) error {
	ctx, cancel := context.WithTimeout(ctx, apiserver.Timeout)
	defer cancel()
	mapping, err := mapper.RESTMapping(read.Kind.GroupKind(), read.Kind.Version)
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the API server does not have this kind in %s: install its CustomResourceDefinition first", read.Kind.GroupVersion())
	}
	if err != nil {
		return err
	}
	all, err := metadata.NewForConfigAndClient(m.options.RESTConfig, m.httpClient)
	if err != nil {
		return err
	}
	resource := metadata.ResourceInterface(all.Resource(mapping.Resource))
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = all.Resource(mapping.Resource).Namespace(m.options.Namespace)
	}
	const remedy = "grant get, list and watch, as the command manifests does"
	list, err := resource.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("%w: %s", err, remedy)
	}
	watch, err := resource.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return fmt.Errorf("%w: %s", err, remedy)
	}
	watch.Stop()
	for range watch.ResultChan() { // until it is closed: whoever fills it waits
	}
	return nil
}
