package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/deadlock"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/manager/internal/health"
	"github.com/admitkit/admitkit/webhook"
)

// Converters returns the converters, for a program that sends reviews of its own to
// [webhook.ConversionHandler].
func (m *Manager) Converters() []*host.Converter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.parts.Converters)
}

// Webhooks returns the webhooks of the handlers, for a program that sends them
// requests of its own, as `review` does. It does not call the API server, unless a
// handler does. The manager cannot be started afterwards.
func (m *Manager) Webhooks(ctx context.Context) ([]*webhook.Webhook, error) {
	ctx, err := m.begin(ctx)
	if err != nil {
		return nil, err
	}
	webhooks, err := m.webhooks()
	if err != nil {
		return nil, err
	}
	kube, err := m.newKubeManager(health.New())
	if err != nil {
		return nil, err
	}
	m.enter(ctx, kube, nil)
	return webhooks, m.parts.Register(m)
}

// maxFill is how long caches have to be filled: an informer tries again forever.
const maxFill = time.Minute

// StartCaches starts the caches that the extensions read, for a program that sends requests of
// its own to the handlers of [Manager.Webhooks]. It returns when they have what the extensions
// declare (extension.Reader). The error names a kind that they cannot have; other reads work.
// stop, which is never nil, ends the caches.
func (m *Manager) StartCaches(ctx context.Context) (stop func(), err error) {
	kube, _ := m.GetKubeManager().(kubeManager)
	synced, err := m.startReads(ctx, kube, host.Serves)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, objects := range *kube.caches {
		running.Go(func() {
			defer cancel()         // so that nobody waits for a cache that does not start
			_ = objects.Start(ctx) // a read of a cache that does not run is an error of the extension
		})
	}
	filling, filled := context.WithTimeout(ctx, maxFill)
	defer filled()
	for _, objects := range *kube.caches {
		objects.WaitForCacheSync(filling)
	}
	if err == nil && !synced(filling) {
		err = errors.Join(fmt.Errorf("the caches of what the extensions read are not filled within %s", maxFill), m.caches.Check())
	}
	return func() { cancel(); running.Wait() }, err
}

// webhooks returns the webhooks at the start.
func (m *Manager) webhooks() ([]*webhook.Webhook, error) {
	text, err := m.modes.file.read()
	if err != nil {
		return nil, err
	}
	m.modes.file.text = text
	if err := m.readExemptions(); err != nil {
		return nil, err
	}
	return m.webhooksIn(text)
}

// webhooksIn groups the handlers in the modes of a file: those of the same scope and mode
// share a webhook.
func (m *Manager) webhooksIn(modes []byte) ([]*webhook.Webhook, error) {
	rules, err := m.modeRules(modes)
	if err != nil {
		return nil, err
	}
	return webhook.Group(m.parts.Handlers, webhook.Defaults{
		Namespaces:    m.options.Namespaces,
		PodSelector:   m.options.PodSelector,
		FailurePolicy: *m.options.FailurePolicy,
		Protected:     deadlock.Namespaces(m.options.WebhookNamespace),
		Excluded:      m.options.Registration.ExcludeNamespaces,
		Modes:         rules,
	})
}

// answers reports whether a server is needed: for webhooks or for conversions.
func (m *Manager) answers(webhooks []*webhook.Webhook) bool {
	return len(webhooks)+len(m.parts.Converters) > 0
}

// guardOwnPods refuses webhooks that could block the creation of the manager's own
// Pods while it is down. A manager without a Service has no Pods that serve webhooks.
func (m *Manager) guardOwnPods(webhooks []*webhook.Webhook) error {
	allowed := m.options.Registration.AllowOwnPods
	names := make([]string, len(webhooks))
	for i, w := range webhooks {
		names[i] = w.Name
	}
	var errs []error
	for _, name := range allowed {
		if name != "*" && !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("Registration.AllowOwnPods: there is no webhook %q; there are %s", name, strings.Join(names, ", ")))
		}
	}
	if m.options.ServiceName == "" {
		return errors.Join(errs...)
	}
	for _, w := range webhooks {
		if slices.Contains(allowed, "*") || slices.Contains(allowed, w.Name) || slices.ContainsFunc(w.Handlers, namesItsNamespaces) {
			continue
		}
		matches, err := m.matchesOwnPods(w.Scope)
		if err != nil {
			return err
		}
		if matches {
			errs = append(errs, fmt.Errorf("webhook %s has failure policy Fail and matches the creation of Pods in namespace %s, the manager's own: "+
				"once its last Pod is gone, no other could be created; choose another WebhookNamespace, or name %q in Registration.AllowOwnPods",
				w.Name, m.options.WebhookNamespace, w.Name))
		}
	}
	return errors.Join(errs...)
}

// namesItsNamespaces reports whether the author chose the namespaces. [webhook.Group]
// excludes the protected namespaces from every other selector.
func namesItsNamespaces(h *extension.Handler) bool {
	return host.Open(h).Scope.NamespaceSelector != nil
}

func (m *Manager) matchesOwnPods(scope extension.Scope) (bool, error) {
	if *scope.FailurePolicy != admissionregistrationv1.Fail || !slices.ContainsFunc(scope.Rules, createsPods) {
		return false, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(scope.NamespaceSelector)
	if err != nil {
		return false, err
	}
	return selector.Matches(labels.Set{corev1.LabelMetadataName: m.options.WebhookNamespace}), nil
}

func createsPods(r admissionregistrationv1.RuleWithOperations) bool {
	has := func(values []string, names ...string) bool {
		return slices.ContainsFunc(values, func(v string) bool { return slices.Contains(names, v) })
	}
	creates := slices.ContainsFunc(r.Operations, func(o admissionregistrationv1.OperationType) bool {
		return o == admissionregistrationv1.Create || o == admissionregistrationv1.OperationAll
	})
	return creates && has(r.APIGroups, "", "*") && has(r.Resources, "pods", "*", "*/*")
}
