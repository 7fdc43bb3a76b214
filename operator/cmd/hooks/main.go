// Command hooks runs controllers that are made of hooks: CompositeControllers and
// DecoratorControllers, whose hooks are web servers or policies in Rego. It is a program of
// its own, so that its rights, its memory and OPA stay apart from access and audit.
package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/hook"
	"github.com/admitkit/admitkit/operator/hook/protocol"
	"github.com/admitkit/admitkit/operator/hook/rego"
)

func main() {
	command.Main(newProgram().cmd)
}

// program has the flags, and adds the extension.
type program struct {
	cmd     *cobra.Command
	options hook.Options
}

func newProgram() *program {
	p := &program{options: hook.Options{Compiler: compiler(rego.NewPool(0))}}
	p.cmd = command.New("hooks", p.addTo)
	p.cmd.Short = "hooks runs controllers that are made of hooks"
	p.cmd.Long = `hooks runs CompositeControllers and DecoratorControllers, in the protocol of Metacontroller,
whose hooks are web servers or policies in Rego: run "hooks reconcile" in the cluster, and
"hooks test" and "hooks review" without one. It has no webhooks of its own.

Each flag can also be set by an environment variable: --hooks-kinds by
ADMITKIT_HOOKS_KINDS. The flag wins.

Exit codes: 0 done; 1 failed, or an answer of a policy is wrong, or tests failed; 2 a flag,
an option or a manifest is wrong, or something is missing.`
	flags := p.cmd.PersistentFlags()
	flags.StringSliceVar(&p.options.Kinds, "hooks-kinds", nil, "resources that hooks may be about, such as pods or rolebindings.rbac.authorization.k8s.io; repeatable (default: any that RBAC grants)")
	flags.StringSliceVar(&p.options.Namespaces, "hooks-namespaces", nil, "namespaces from which Secrets and ConfigMaps are read that a controller refers to; repeatable (default none)")
	const selector = "label selector, such as installation=blue, of the CompositeControllers and DecoratorControllers that this installation runs (default all)"
	flags.StringVar(&p.options.TargetLabelSelector, "hooks-target-label-selector", "", selector)
	flags.StringVar(&p.options.TargetLabelSelector, "target-label-selector", "", selector)
	flags.Lookup("target-label-selector").Hidden = true // as Metacontroller names it
	flags.IntVar(&p.options.Workers, "hooks-workers", hook.DefaultWorkers, "number of parents of each controller that are worked on at a time")
	for _, sub := range p.cmd.Commands() {
		switch sub.Name() {
		case "review", "scan", "explain", "replay", "register", "serve", "check", "unregister", "start": // about admissions, and there are none
			p.cmd.RemoveCommand(sub)
		}
	}
	p.cmd.AddCommand(newReview(), newTest())
	return p
}

func (p *program) addTo(mgr *manager.Manager) error { return mgr.AddExtension(hook.New(p.options)) }

// compiler makes a policy a hook that the pool evaluates. Its clock is that of the machine.
func compiler(pool *rego.Pool) protocol.Compiler {
	return func(_ context.Context, p protocol.Policy) (protocol.Hook, error) {
		policy, err := pool.Compile(rego.Source{
			Modules: []rego.Module{{Name: p.Name, Text: p.Source}}, Query: p.Query, Version: p.Version,
		}, rego.Options{})
		if err != nil {
			return nil, err
		}
		return protocol.HookFunc(func(ctx context.Context, req protocol.Request) ([]byte, error) {
			return policy.Evaluate(ctx, req.Body, now())
		}), nil
	}
}
