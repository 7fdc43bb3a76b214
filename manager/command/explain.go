package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/internal/scan"
)

const aboutExplain = `Say which extensions see an object of the cluster, in which order and mode, which rule,
selector or condition keeps the others out, and what each would do now: if the object were
created, and if it were updated without a change. It changes nothing.

The flags of the other subcommands are accepted, and those that are not listed here change
nothing.

Exit codes: 0 it is explained, whatever an extension would do; 1 there is no such object, or
the API server does not give it; 2 a flag or a scope is wrong, or it depends on something
unknown whether an extension is called.`

func newExplain(name string, f *flags, build Build) *cobra.Command {
	s := &scanning{flags: f, build: build}
	cmd := &cobra.Command{
		Use:   "explain KIND [NAMESPACE/]NAME",
		Short: "Say which extensions see an object of the cluster, and what they would do",
		Long:  aboutExplain,
		Example: strings.ReplaceAll(`  NAME explain pod shop/web
  NAME explain deployments.apps shop/web --user alice --groups developers
  NAME explain namespace shop`, "NAME", name),
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.ExactArgs(2)(cmd, args); err != nil {
				return wrong(fmt.Errorf("%w: KIND [NAMESPACE/]NAME", err))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return s.explain(cmd, args[0], args[1]) },
	}
	s.bindUser(cmd)
	return cmd
}

func (s *scanning) explain(cmd *cobra.Command, resource, name string) error {
	if err := quiet(cmd); err != nil {
		return err
	}
	mgr, _, with, err := s.manager(cmd)
	if err != nil {
		return err
	}
	stop, err := mgr.StartCaches(cmd.Context())
	defer stop()
	if err != nil {
		return wrong(err)
	}
	namespace, name, found := strings.Cut(name, "/")
	if !found {
		namespace, name = "", namespace
	}
	requests, err := scan.Stored(cmd.Context(), with.Config, with.Client, with.Webhooks, resource, namespace, name)
	if err != nil {
		return err
	}
	engine := offline.New(with.Webhooks, with.Engine)
	var undecided []error
	for i, req := range requests {
		req.User, req.DryRun = scan.UserOf(with.User), true
		out, err := engine.Admit(cmd.Context(), req)
		if unknown, ok := errors.AsType[*offline.Unknown](err); ok {
			undecided = append(undecided, fmt.Errorf("%s: %w", req.Operation, unknown))
			continue
		}
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s of %s", req.Operation, report(req, out, true))
		if i > 0 {
			text = "\n" + text
		}
		if _, err := cmd.OutOrStdout().Write([]byte(text)); err != nil {
			return err
		}
	}
	if len(undecided) > 0 {
		return wrong(errors.Join(undecided...))
	}
	return nil
}
