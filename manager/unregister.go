package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
)

// UnregisterExtensions removes what RegisterExtensions made and what the extensions
// that are an [extension.Remover] left behind, and logs each. Add the same extensions
// as for the installation. Stop every manager first, for example by
// [Manager.ScaleDown], because a running manager would repair what is removed.
//
// Removers run first. While the webhook configurations exist and nobody serves them,
// those with failure policy Fail refuse everything, so that nobody can forge a record
// of access, make a request or begin a session meanwhile. They may also refuse a
// deletion by a Remover, or a Remover may fail for another reason. The configurations
// are removed nevertheless, because without a server they would block what they
// match. Then the failed Removers run once more, and their errors are returned. The
// Secrets and the Lease come last.
//
// The conversion stanza of a CustomResourceDefinition with several versions stays: without
// it, writes in other versions than the stored one would lose fields. Until another
// installation takes it, such requests fail. Remove it yourself if you know better.
//
// It can be repeated until it returns no error.
func (m *Manager) UnregisterExtensions(ctx context.Context) error {
	if err := errors.Join(m.unregister(ctx), m.problems()); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

// CheckOwner returns an error if the webhook configurations of this name belong to
// another installation. Ask it before you stop anything.
func (m *Manager) CheckOwner(ctx context.Context) error {
	if err := m.owns(ctx); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

func (m *Manager) owns(ctx context.Context) error {
	if err := m.reach(ctx); err != nil {
		return err
	}
	if m.options.callable() != nil {
		return nil //nolint:nilerr // it has no webhooks
	}
	if err := m.options.hasPort(); err != nil {
		return err
	}
	return m.checkOwner(ctx, m.registration(nil))
}

func (m *Manager) unregister(ctx context.Context) error {
	if err := m.owns(ctx); err != nil {
		return err
	}
	failed, err := m.remove(ctx, m.parts.Removers)
	if err != nil {
		m.options.Logger.Warnw("not everything is removed; trying again when the webhook configurations are gone", zap.Error(err))
	}
	if unregistered := m.removeRegistration(ctx); unregistered != nil {
		return errors.Join(err, unregistered)
	}
	_, err = m.remove(ctx, failed)
	return errors.Join(err, m.releaseConversions(ctx), m.removeObjects(ctx))
}

// repairTime is more than a manager that still runs needs to repair a webhook
// configuration: it watches them, with pauses of rewatchInterval.
const repairTime = rewatchInterval + time.Second

// lookInterval is the pause between two looks for a repair.
const lookInterval = 250 * time.Millisecond

// CheckUnregistered returns an error if a webhook configuration of this installation comes
// back, because a manager that still runs repairs it. Ask it after UnregisterExtensions.
// It takes 3 s, and needs the right to get the configurations, by name.
func (m *Manager) CheckUnregistered(ctx context.Context) error {
	if m.options.callable() != nil {
		return nil //nolint:nilerr // it has no webhooks
	}
	name := m.options.configurationName()
	client := m.clients.Admissionregistration
	var back []string
	err := wait.PollUntilContextTimeout(ctx, lookInterval, repairTime, true, func(ctx context.Context) (bool, error) {
		_, mutating := client.MutatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
		_, validating := client.ValidatingWebhookConfigurations().Get(ctx, name, metav1.GetOptions{})
		for kind, err := range map[string]error{"MutatingWebhookConfiguration": mutating, "ValidatingWebhookConfiguration": validating} {
			if err == nil {
				back = append(back, kind+" "+name)
			} else if !apierrors.IsNotFound(err) && ctx.Err() == nil {
				return false, err
			}
		}
		return len(back) > 0, nil
	})
	switch {
	case len(back) > 0:
		slices.Sort(back)
		return fmt.Errorf("manager: %s is there again: a manager that still runs has repaired it: stop it, and unregister once more", strings.Join(back, " and "))
	case ctx.Err() == nil && wait.Interrupted(err):
		return nil // it stayed away
	}
	return fmt.Errorf("manager: whether a manager still runs: %w", err)
}

// RunRemovers removes what the extensions made that must not outlive them, but not the
// registration. Use it if [Manager.ScaleDown] failed and the managers may still run.
func (m *Manager) RunRemovers(ctx context.Context) error {
	_, err := m.remove(ctx, m.parts.Removers)
	if err = errors.Join(err, m.problems()); err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return nil
}

// removeTimeout limits the Removers. It is long enough for Pods to end.
const removeTimeout = time.Minute

// remove calls all Removers at the same time, so that none waits for the Pods of
// another. It returns those that failed.
func (m *Manager) remove(ctx context.Context, removers []extension.Remover) (failed []extension.Remover, err error) {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	errs := make([]error, len(removers))
	var group sync.WaitGroup
	for i, r := range removers {
		group.Go(func() { errs[i] = r.Remove(ctx, m) })
	}
	group.Wait()
	for i, err := range errs {
		if err != nil {
			failed = append(failed, removers[i])
		}
	}
	return failed, errors.Join(errs...)
}

// removeObjects removes the manager's objects in the manager's own namespace.
func (m *Manager) removeObjects(ctx context.Context) error {
	namespace := m.options.WebhookNamespace
	remove := func(kind, name string, remove func(context.Context, string, metav1.DeleteOptions) error) error {
		err := remove(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("deleting %s %s/%s: %w", kind, namespace, name, err)
		}
		m.options.Logger.Infow("removed", "kind", kind, "name", namespace+"/"+name)
		return nil
	}
	var errs []error
	secrets := m.clients.Core.Secrets(namespace)
	if *m.options.SetupCertificate && m.options.Certificates.Dir == "" && !m.options.Registration.ForeignCABundle {
		errs = append(errs, remove("Secret", m.options.SetupCertificateName, secrets.Delete))
		if m.options.Certificates.LeafSecretName != "" {
			errs = append(errs, remove("Secret", m.options.Certificates.LeafSecretName, secrets.Delete))
		}
	}
	if name := m.options.pathsSecret(); name != "" {
		errs = append(errs, remove("Secret", name, secrets.Delete))
	}
	if m.options.Watching.LeaderElection {
		errs = append(errs, remove("Lease", m.options.configurationName(), m.clients.Coordination.Leases(namespace).Delete))
	}
	return errors.Join(errs...)
}

func (m *Manager) removeRegistration(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiserver.Timeout)
	defer cancel()
	name := m.options.configurationName()
	removed, err := registration.Remove(ctx, m.clients.Admissionregistration.RESTClient(), name)
	for _, kind := range removed {
		m.options.Logger.Infow("removed", "kind", kind, "name", name)
	}
	if err == nil && len(removed) == 0 && m.options.callable() == nil {
		m.options.Logger.Warnw("there was no webhook configuration of this name: it is removed already, or the fingerprint (by default the Service's name) "+
			"or the manager's own namespace is not that of the installation", "name", name)
	}
	return err
}
