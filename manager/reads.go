package manager

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/metadata"
	clientgocache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
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

// addKinds makes the kinds of CustomResourceDefinitions known.
func (i *installer) addKinds(crds []client.Object) error {
	for _, crd := range crds {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
		if err == nil {
			err = i.kinds.Add(&unstructured.Unstructured{Object: content})
		}
		if err != nil {
			return fmt.Errorf("install options: Objects, CRDs: %w", err)
		}
	}
	return nil
}

// addReads adds the rights to read what extensions read in a process.
func (i *installer) addReads(process host.Process, rights *host.Rights) error {
	reads, err := i.parts.Reads(i.options.Scheme, process)
	if err != nil {
		return err
	}
	for _, read := range reads {
		rule, namespaced, known := i.kinds.ReadRule(read.Kind.GroupKind())
		switch {
		case !known:
			return fmt.Errorf("Reads of %s: the plural of %s, for the rights to read it, is not known without the cluster: give its CustomResourceDefinition: manifests --with, InstallOptions.Objects, or InstallOptions.CRDs if others install it",
				read.Part, read.Kind.GroupKind())
		case namespaced:
			rights.Watched = host.AppendNew(rights.Watched, rule)
			i.warnOfReads(read)
		default:
			rights.Cluster = host.AppendNew(rights.Cluster, rule)
		}
	}
	return nil
}

// warnOfReads says whose admissions come from namespaces that the cache does not hold.
func (i *installer) warnOfReads(read host.Read) {
	if i.options.Namespace == "" {
		return
	}
	for _, selector := range host.Beyond(i.options.Namespace, read.Selectors) {
		i.warn(fmt.Sprintf("extension %s gets admissions from the namespaces of its own NamespaceSelector (%s), but reads %s from a cache that holds %q alone, the watched namespace: "+
			"leave the watched namespace empty, or read by GetAPIReader, with Rights", read.Part, metav1.FormatLabelSelector(selector), read.Kind.Kind, i.options.Namespace))
	}
}
