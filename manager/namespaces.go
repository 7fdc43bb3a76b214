package manager

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/manager/internal/apiserver"
)

// namespaces returns the watched namespaces, or "", which stands for all.
func (m *Manager) namespaces() []string {
	if len(m.options.Namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return m.options.Namespaces
}

// watchNamespaces says which watched namespaces do not exist, until all do or ctx ends. That is
// no error: one may be created later. But until then nothing comes from it, which would look
// as if all was well.
func (m *Manager) watchNamespaces(ctx context.Context) {
	known := map[string]bool{}
	for m.tellMissing(ctx, known) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(servedInterval):
		}
	}
}

// tellMissing looks once, says what is new since the last look, which known has, and reports
// whether to look again. A process that may not get them does not try.
func (m *Manager) tellMissing(ctx context.Context, known map[string]bool) (again bool) {
	ctx, cancel := context.WithTimeout(ctx, apiserver.Timeout)
	defer cancel()
	for _, name := range m.options.Namespaces {
		if !m.mayGet(ctx, "", "namespaces", name) {
			continue
		}
		_, err := m.clients.Core.Namespaces().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && !known[name]:
			known[name] = true
			const why = "a watched namespace does not exist, so nothing comes from it: create it, or correct Namespaces (--namespace)"
			m.options.Logger.Warnw(why, "namespace", name)
			m.warning("NamespaceNotFound", fmt.Sprintf("%s: %s", name, why))
		case err == nil && known[name]:
			delete(known, name)
			m.options.Logger.Infow("the watched namespace exists now", "namespace", name)
		}
		again = again || err != nil
	}
	return again
}
