package audit_test

import (
	"context"
	"fmt"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/manager"
)

func ExampleNew() {
	mgr, err := manager.New(manager.Options{Namespace: "shop", Host: "127.0.0.1", Port: 8443})
	if err != nil {
		fmt.Println(err) // there is no cluster
		return
	}
	// Nobody gets into a container unless there is an AuditEvent of it. Events are
	// for the engineers; if one cannot be written, that is all right.
	if err := audit.New(audit.Options{Sinks: []audit.SinkOptions{
		{Sink: audit.NewObjectSink(audit.ObjectSinkOptions{}), FailurePolicy: audit.Closed},
		{Sink: audit.NewEventSink(), FailurePolicy: audit.Open},
	}}).AddTo(mgr); err != nil {
		fmt.Println(err)
	}
}

// pager is a sink of one's own: it tells somebody at once when a Pod that was
// entered gives access to its node.
type pager struct{ page func(text string) }

func (pager) Name() string { return "pager" }

func (p pager) Write(_ context.Context, r *v1alpha1.AuditRecord) error {
	for _, flag := range r.Flags {
		if flag == v1alpha1.FlagHostNamespace && !r.DryRun {
			p.page(fmt.Sprintf("%s: %s in Pod %s/%s on node %s", r.User.Username, r.Way, r.Namespace, r.Pod, r.Node))
		}
	}
	return nil
}

func ExampleSink() {
	sink := pager{page: func(text string) { fmt.Println(text) }}
	_ = sink.Write(context.Background(), &v1alpha1.AuditRecord{
		Way: v1alpha1.WayAttach, User: v1alpha1.AuditUser{Username: "alice"}, Namespace: "shop", Pod: "node-debugger", Node: "node-0",
		Flags: []v1alpha1.AuditFlag{v1alpha1.FlagHostNamespace},
	})
	// Output: alice: pods/attach in Pod shop/node-debugger on node node-0
}

func ExampleRedactor() {
	redactor, err := audit.NewRedactor(append(audit.DefaultRedact, `pin`)...)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(redactor.Command([]string{"unlock", "--pin=1234", "--token", "abc", "--door", "7"}))
	// Output: [unlock --pin=REDACTED --token REDACTED --door 7]
}
