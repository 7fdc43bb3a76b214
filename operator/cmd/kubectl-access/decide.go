package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

func (c *commands) approveCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "approve NAME", Short: "Approve a request that waits for approval",
		Long: `Approve a request that waits for approval. Its template says who may, and how many
must. You cannot approve what you asked for yourself, and you decide once.
"kubectl access list --for-me" shows the requests that wait for you.`,
		Example: "  kubectl access approve web-x7k2p",
	}
	cmd.Flags().StringVarP(&reason, "reason", "r", "", "reason for the approval")
	return c.onRequest(cmd, nil, func(ctx context.Context, cl client.WithWatch, req request, _ []string) error {
		if err := c.decide(ctx, cl, req, v1alpha1.DecisionApprove, reason); err != nil {
			return err
		}
		terms := req.GetRequestSpec().Approval // not nil, or the decision had been refused
		c.Sayf("%s: approved; it has %s", req.GetName(), terms.Count(min(approvals(req)+1, int(terms.Required))))
		return nil
	})
}

func (c *commands) denyCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "deny NAME --reason REASON", Short: "Deny a request that waits for approval, which ends it",
		Long: `Deny a request that waits for approval. One denial ends it, whoever has approved.
Say why: who asked reads it.`,
		Example: "  kubectl access deny web-x7k2p --reason \"use the replica\"",
	}
	cmd.Flags().StringVarP(&reason, "reason", "r", "", "reason for the denial (required)")
	return c.onRequest(cmd, nil, func(ctx context.Context, cl client.WithWatch, req request, _ []string) error {
		if strings.TrimSpace(reason) == "" {
			return cli.Exitf(cli.CodeUsage, "--reason is missing: say why you deny the request")
		}
		if err := c.decide(ctx, cl, req, v1alpha1.DecisionDeny, reason); err != nil {
			return err
		}
		c.Sayf("%s: denied", req.GetName())
		return nil
	})
}

// decide decides about this request, and not another of its name. It says first what
// about.
func (c *commands) decide(ctx context.Context, cl client.Client, req request, word v1alpha1.Decision, reason string) error {
	spec := req.GetRequestSpec()
	c.Sayf("%s asks for access by template %s%s for %s: %s", cli.EscapeLine(requester(req)), spec.TemplateName, to(ctx, cl, req), spec.Duration, cli.EscapeLine(cmp.Or(spec.Reason, "no reason given")))
	return cl.Create(ctx, &v1alpha1.AccessDecision{
		ObjectMeta: metav1.ObjectMeta{Namespace: req.GetNamespace(), GenerateName: req.GetName() + "-"},
		Spec: v1alpha1.AccessDecisionSpec{
			Request: v1alpha1.DecidedRequest{Kind: kindOf(req).request, Name: req.GetName(), UID: string(req.GetUID())}, Decision: word, Reason: reason,
		},
	})
}

// to says to what a request gives access, "" if the current user may not read its template.
func to(ctx context.Context, cl client.Client, req request) string {
	template := kindOf(req).newTemplate()
	err := cl.Get(ctx, client.ObjectKey{Namespace: req.GetNamespace(), Name: req.GetRequestSpec().TemplateName}, template)
	if target := template.GetTargetRef(); err == nil && target != nil {
		return " (" + cli.EscapeLine(target.String()) + ")"
	}
	return ""
}

// pending reports whether a request waits for approval.
func pending(req request) bool {
	_, waits := v1alpha1.BeginOf(req)
	return waits && !v1alpha1.Over(req, time.Now())
}

// waitsForApproval reports whether a request says that it waits for approval.
func waitsForApproval(req request) bool {
	c := meta.FindStatusCondition(req.GetRequestStatus().Conditions, v1alpha1.ConditionApproved)
	return c != nil && c.Reason == v1alpha1.ReasonWaiting
}

// askApprovers says who has to approve, and how.
func (a *ask) askApprovers(req request) {
	a.Sayf("it needs %s: ask them for 'kubectl access approve %s -n %s'",
		cli.EscapeLine(strings.TrimPrefix(req.GetRequestSpec().Approval.Count(0), "0 of ")), req.GetName(), req.GetNamespace())
}

// ofMyDecision keeps the requests that wait for a decision of the current user.
func ofMyDecision(ctx context.Context, cl client.Client, objects []client.Object) ([]client.Object, error) {
	me, err := cli.WhoAmI(ctx, cl)
	if err != nil {
		return nil, err
	}
	who := &v1alpha1.Requester{Username: me.Username, Groups: me.Groups}
	may := map[string]bool{}
	var found []client.Object
	for _, object := range objects {
		req, namespace := object.(request), object.GetNamespace()
		decided := slices.ContainsFunc(req.GetRequestStatus().Verdicts, func(v v1alpha1.Verdict) bool { return v.Username == me.Username })
		if !pending(req) || decided || req.GetRequestSpec().May(who) != nil {
			continue
		}
		if _, known := may[namespace]; !known {
			if may[namespace], err = mayCreate(ctx, cl, "accessdecisions", namespace); err != nil {
				return nil, cli.Explained(err)
			}
		}
		if may[namespace] {
			found = append(found, object)
		}
	}
	return found, nil
}

// story tells what has happened to a request, as far as it says itself: when, and what.
func story(req request) (told []string) {
	spec, status := req.GetRequestSpec(), req.GetRequestStatus()
	tell := func(at *metav1.Time, format string, args ...any) {
		if at != nil && !at.IsZero() {
			told = append(told, "  "+at.Local().Format(time.DateTime), strings.TrimSpace(fmt.Sprintf(format, args...)))
		}
	}
	created := req.GetCreationTimestamp()
	tell(&created, "%s asked  %s", requester(req), spec.Reason)
	if spec.Approval != nil && !spec.Approval.Needed() {
		tell(&created, "no approval needed, as a member of %s", spec.Approval.SkippedFor)
	}
	for i := range status.Verdicts {
		v := &status.Verdicts[i]
		word := map[v1alpha1.Decision]string{v1alpha1.DecisionApprove: "approved", v1alpha1.DecisionDeny: "denied"}[v.Decision]
		tell(&v.Time, "%s %s  %s", v.Username, word, v.Reason)
	}
	if check := status.Check; check != nil {
		word := map[v1alpha1.CheckDecision]string{v1alpha1.CheckAllow: "allowed", v1alpha1.CheckDeny: "denied"}[check.Decision]
		tell(&check.Time, "the check %s %s it  %s", check.Name, word, check.Message)
	}
	tell(status.GrantedAt, "access was granted")
	if use := status.UsedBy; use != nil {
		tell(&use.Time, "%s used it for %s", use.Username, use.Verb)
	}
	if by := spec.Revoked; by != nil {
		tell(by.At, "%s revoked it  %s", by.By, by.Reason)
	}
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAccessStillValid); c != nil && c.Status == metav1.ConditionFalse {
		what := "access"
		if status.GrantedAt == nil {
			what = "the request" // which never gave any
		}
		tell(&c.LastTransitionTime, "%s has ended: %s", what, c.Message)
	}
	return told
}

// needed says who must approve a request.
func needed(req request) string {
	terms := req.GetRequestSpec().Approval
	switch {
	case terms == nil:
		return ""
	case !terms.Needed():
		return "skipped, as a member of " + terms.SkippedFor
	}
	return terms.Count(min(approvals(req), int(terms.Required)))
}

// approvals counts the verdicts that approve.
func approvals(req request) (n int) {
	for _, v := range req.GetRequestStatus().Verdicts {
		if v.Decision == v1alpha1.DecisionApprove {
			n++
		}
	}
	return n
}
