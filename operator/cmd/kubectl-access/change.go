package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// onRequest returns a command for one request.
func (c *commands) onRequest(cmd *cobra.Command, names []string, do func(context.Context, client.WithWatch, request, []string) error) *cobra.Command {
	cmd.Args = cli.Exactly(append([]string{"NAME"}, names...)...)
	cmd.ValidArgsFunction = c.completeRequests
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cl, namespace, err := c.Connect()
		if err != nil {
			return err
		}
		req, err := find(cmd.Context(), cl, namespace, args[0])
		if err != nil {
			return err
		}
		return cli.Explained(do(cmd.Context(), cl, req, args[1:]))
	}
	return cmd
}

func (c *commands) extendCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "extend NAME DURATION", Short: "Extend access, up to the template's maximum",
		Long: `Extend access by DURATION, such as 15m, 1h30m or 1d, up to the template's
maximum, which counts from when access was asked for. A DURATION such as -15m ends
it sooner. Only who made the request may do either, and access that has ended stays
ended: make another request.`,
		Example: "  kubectl access extend web-x7k2p 15m\n  kubectl access extend web-x7k2p -15m",
	}
	return c.onRequest(cmd, []string{"DURATION"}, func(ctx context.Context, cl client.WithWatch, req request, args []string) error {
		by, err := cli.ParseDuration(args[0])
		if err != nil {
			return cli.Exitf(cli.CodeUsage, "DURATION: %w", err)
		}
		if by == 0 {
			return cli.Exitf(cli.CodeUsage, "DURATION: %s changes nothing; 15m extends access, and -15m shortens it", args[0])
		}
		if err := extend(ctx, cl, req, by); err != nil {
			return err
		}
		end, err := v1alpha1.EndOf(req)
		if err != nil {
			return err
		}
		if !end.After(time.Now()) {
			c.Sayf("%s: access ends now", req.GetName())
			return nil
		}
		c.Sayf("%s: access until %s, for %s", req.GetName(), cli.Until(end), duration.HumanDuration(time.Until(end)))
		return nil
	})
}

// extend changes the duration of a request, unless somebody else has changed it
// since it was read: the sum would not be what the engineer meant. A
// resourceVersion cannot check this, because the status changes at any time.
func extend(ctx context.Context, cl client.Client, req request, by time.Duration) error {
	before := req.GetRequestSpec().Duration
	now, err := lasts(req)
	if err != nil {
		return fmt.Errorf("spec.duration of %s: %w", named(req), err)
	}
	patch, err := json.Marshal([]jsonpatch.Operation{
		jsonpatch.NewOperation("test", "/metadata/uid", req.GetUID()),
		jsonpatch.NewOperation("test", "/spec/duration", before),
		jsonpatch.NewOperation("replace", "/spec/duration", cli.Short(max(now+by, 0))),
	})
	if err != nil {
		return err
	}
	err = cl.Patch(ctx, req, client.RawPatch(types.JSONPatchType, patch))
	if !apierrors.IsInvalid(err) {
		return err
	}
	// A test that fails has no error of its own.
	current := kindOf(req).newRequest()
	if readErr := cl.Get(ctx, client.ObjectKeyFromObject(req), current); readErr != nil {
		return readErr
	}
	if after := current.GetRequestSpec().Duration; after != before || current.GetUID() != req.GetUID() {
		return cli.Exitf(cli.CodeError, "%s has been changed in the meantime: its duration was %s, and is %s now; nothing was changed", named(req), before, after)
	}
	return err
}

// lasts returns for how long there is access, counted from its begin: a check may have
// allowed less than spec.duration.
func lasts(req request) (time.Duration, error) {
	begin, waits := v1alpha1.BeginOf(req)
	if waits {
		return time.ParseDuration(req.GetRequestSpec().Duration)
	}
	term, err := v1alpha1.TermOf(req)
	return term.Sub(begin), err
}

// negativeLast puts durations below zero behind "--" if the command is extend, because
// cobra would take -15m for flags.
func negativeLast(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil || cmd.Name() != "extend" || slices.Contains(args, "--") {
		return args
	}
	var others, negative []string
	for _, arg := range args {
		if len(arg) > 1 && arg[0] == '-' && strings.ContainsAny(arg[1:2], ".0123456789") {
			negative = append(negative, arg)
		} else {
			others = append(others, arg)
		}
	}
	return slices.Concat(others, []string{"--"}, negative)
}

func (c *commands) revokeCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "End access before its time",
		Long: `End access before its time: yours, or that of another user if you may delete the
request, for which you must give a reason. The right and the Pod that the request
gave go. The request stays as a record of who ended it, when and why.`,
		Example: "  kubectl access revoke web-x7k2p\n  kubectl access revoke web-x7k2p --reason \"left the team\"",
	}
	cmd.Flags().StringVarP(&reason, "reason", "r", "", "reason for the revocation")
	return c.onRequest(cmd, nil, func(ctx context.Context, cl client.WithWatch, req request, _ []string) error {
		if by := req.GetRequestSpec().Revoked; by != nil {
			return cli.Exitf(cli.CodeRefused, "nothing to revoke: access was revoked %s; for more make another request", revocation(by))
		}
		if err := revoke(ctx, cl, req, reason); err != nil {
			return err
		}
		c.Sayf("%s: revoked", req.GetName())
		return nil
	})
}

// revoke revokes this request, but not another one of the same name. If it is gone
// already, it gives no access.
func revoke(ctx context.Context, cl client.Client, req request, reason string) error {
	patch, err := json.Marshal([]jsonpatch.Operation{
		jsonpatch.NewOperation("test", "/metadata/uid", req.GetUID()),
		jsonpatch.NewOperation("add", "/spec/revoked", v1alpha1.Revocation{Reason: reason}),
	})
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(cl.Patch(ctx, req, client.RawPatch(types.JSONPatchType, patch)))
}

func (c *commands) describeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "describe NAME", Short: "Show the progress, the story and the events of a request"}
	return c.onRequest(cmd, nil, func(ctx context.Context, cl client.WithWatch, req request, _ []string) error {
		spec, status := req.GetRequestSpec(), req.GetRequestStatus()
		var groups string
		if spec.Requester != nil {
			groups = strings.Join(spec.Requester.Groups, ", ")
		}
		if err := cli.Lines(c.Out,
			"Name", req.GetName(), "Namespace", req.GetNamespace(), "Kind", kindOf(req).name, "Template", spec.TemplateName,
			"Requester", requester(req), "Groups", groups, "Reason", spec.Reason, "Duration", spec.Duration,
			"Approval", needed(req), "Revoked", revocation(spec.Revoked),
			"Role", roleOf(req), "Pod", status.PodName, "Pod not ready", troubled(ctx, cl, req.GetNamespace(), status.PodName), "Ready", fmt.Sprint(status.Ready), "Expires", cli.Moment(status.ExpiresAt), "Left", left(req),
			"Command", status.AccessMessage,
		); err != nil {
			return err
		}
		if err := cli.Lines(c.Out, append([]string{"Story", " "}, story(req)...)...); err != nil {
			return err
		}
		if err := cli.Lines(c.Out, cli.Conditions(status.Conditions)...); err != nil {
			return err
		}
		return c.DescribeEvents(ctx, cl, req)
	})
}

// roleOf names the role that a request got, "" if it got none.
func roleOf(req request) string {
	if role := req.GetRequestStatus().GrantedRole; role != nil {
		return role.String()
	}
	return ""
}

// revocation says who revoked a request, when, and why.
func revocation(by *v1alpha1.Revocation) string {
	if by == nil {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("by %s at %s  %s", by.By, cli.Moment(by.At), by.Reason))
}
