package manager_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
)

// leaver is an extension of two forms, and a Remover.
type leaver struct {
	markExtension

	remove func(ctx context.Context, mgr extension.Manager) error
}

func (leaver) Register(extension.Manager) error { return nil }

func (leaver) Reconcile(context.Context, ctrl.Request) (ctrl.Result, error) {
	return ctrl.Result{}, nil
}

func (l *leaver) Remove(ctx context.Context, mgr extension.Manager) error { return l.remove(ctx, mgr) }

// leavingValidator is a Validator and a Remover.
type leavingValidator struct {
	remove func(ctx context.Context, mgr extension.Manager) error
}

func (*leavingValidator) Validate(context.Context, *corev1.Pod, *extension.Request) error { return nil }

func (v *leavingValidator) Remove(ctx context.Context, mgr extension.Manager) error {
	return v.remove(ctx, mgr)
}

func registered(t *testing.T, namespace string) bool {
	t.Helper()
	return slices.Contains(configurationsOf(t), "admitkit."+namespace)
}

func TestUnregisterCallsEachRemoverOnceWhileTheWebhooksStillStand(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	var calls atomic.Int32
	met := make(chan struct{})
	remove := func(ctx context.Context, mgr extension.Manager) error {
		if !registered(t, namespace) {
			t.Error("the webhook configurations go before what they guard")
		}
		if config, err := mgr.GetKubeConnection(); err != nil || config == nil {
			t.Errorf("there is no connection: %v", err)
		}
		// No Remover waits for another.
		if calls.Add(1) == 2 {
			close(met)
		}
		select {
		case <-met:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	several := &leaver{markExtension: markExtension{"a"}, remove: remove}
	validator := &leavingValidator{remove}
	r := newManager(t, manager.Options{Namespaces: []string{namespace}}, several,
		extension.Validating(validator, extension.Scope{Name: "a"}), extension.Validating(validator, extension.Scope{Name: "b"}))
	if err := r.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.UnregisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("two Removers are called %d times", n)
	}
	if registered(t, namespace) {
		t.Error("the webhook configurations are left")
	}
	if n := r.logs.FilterMessageSnippet(nothingToRemove).Len(); n != 0 {
		t.Error("it says that there was nothing to remove")
	}
}

const nothingToRemove = "there was no webhook configuration of this name"

func TestUnregisterSaysThatThereWasNothingToRemove(t *testing.T) {
	t.Parallel()
	r := newManager(t, manager.Options{Namespaces: []string{newNamespace(t)}}, mark("a", extension.Scope{}))
	if err := r.UnregisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.logs.FilterMessageSnippet(nothingToRemove).Len(); n != 1 {
		t.Errorf("it says so %d times", n)
	}
}

func TestRemoversAloneLeaveTheRegistrationAsItIs(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	var calls atomic.Int32
	failure := errors.New("the Pod does not end")
	r := newManager(t, manager.Options{Namespaces: []string{namespace}}, &leaver{markExtension: markExtension{"a"}, remove: func(context.Context, extension.Manager) error {
		calls.Add(1)
		return failure
	}})
	if err := r.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.RunRemovers(t.Context()); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
	if calls.Load() != 1 || !registered(t, namespace) {
		t.Errorf("it is called %d times; registered: %t", calls.Load(), registered(t, namespace))
	}
	if err := r.UnregisterExtensions(t.Context()); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
}

func TestUnregisterRemovesWhatItKnowsWhenAnExtensionCouldNotBeAdded(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	removed := 0
	r := newManager(t, manager.Options{Namespaces: []string{namespace}}, &leaver{markExtension: markExtension{"a"}, remove: func(context.Context, extension.Manager) error {
		removed++
		return nil
	}})
	if err := r.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.AddExtension("no extension"); err == nil {
		t.Fatal("a string is an extension")
	}
	if err := r.RunRemovers(t.Context()); err == nil || !strings.Contains(err.Error(), "string") || removed != 1 {
		t.Errorf("RunRemovers ends with %v, and %d Removers ran", err, removed)
	}
	if err := r.UnregisterExtensions(t.Context()); err == nil || !strings.Contains(err.Error(), "string") || removed != 2 {
		t.Errorf("UnregisterExtensions ends with %v, and %d Removers ran", err, removed)
	}
	if left := labelled(t, namespace); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestARemoverThatFailsIsTriedAgainWithoutWebhooksAndLeavesNoneBehind(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fails func(registered bool) bool
		want  string
	}{
		"because of a webhook without a server": {func(registered bool) bool { return registered }, ""},
		"for good":                              {func(bool) bool { return true }, "RoleBinding x is left"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			var calls []bool
			failing := &leaver{markExtension: markExtension{"a"}, remove: func(context.Context, extension.Manager) error {
				stands := registered(t, namespace)
				calls = append(calls, stands)
				if test.fails(stands) {
					return errors.New("RoleBinding x is left")
				}
				return nil
			}}
			fine := 0
			r := newManager(t, manager.Options{Namespaces: []string{namespace}}, failing, &leaver{markExtension: markExtension{"b"}, remove: func(context.Context, extension.Manager) error {
				fine++
				return nil
			}})
			if err := r.RegisterExtensions(t.Context()); err != nil {
				t.Fatal(err)
			}
			err := r.UnregisterExtensions(t.Context())
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("unregister ends with %v, want %q", err, test.want)
			}
			if !slices.Equal(calls, []bool{true, false}) || fine != 1 {
				t.Errorf("it was called while registered: %v; the other %d times", calls, fine)
			}
			if left := labelled(t, namespace); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
