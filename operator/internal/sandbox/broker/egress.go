package broker

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// egress says what a run may reach now: what the policies that apply to it allow adds up.
func (b *service) egress(ctx context.Context, of *run) (*protocol.Egress, error) {
	if of.ended {
		return nil, refuse(http.StatusForbidden, protocol.CodeRunEnded, "%s has ended", of)
	}
	policies, _, err := b.policiesOf(ctx, b.cached, of)
	if err != nil {
		return nil, b.unavailable("reading BrokerPolicies", err)
	}
	found, granted, now := &protocol.Egress{}, map[string]int{}, b.clock.Now()
	for i := range policies {
		spec := &policies[i].Spec
		for _, name := range spec.Egress {
			allowed := protocol.Name{Host: name.Host, Ports: name.Ports}
			if own := name.OwnCredentials; own != nil {
				allowed.Headers, allowed.QueryKeys = own.Headers, own.QueryKeys
			}
			found.Allow = append(found.Allow, allowed)
		}
		if end := spec.EgressDiscovery; policies[i].Discovers(now) && (found.DiscoverUntil == nil || found.DiscoverUntil.Before(end.ExpiresAt.Time)) {
			found.DiscoverUntil = &end.ExpiresAt.Time
		}
		for j := range spec.Grants.Credentials {
			granted[spec.Grants.Credentials[j].Name]++
		}
	}
	for i := range policies {
		for _, grant := range policies[i].Spec.Grants.Credentials {
			// issue refuses a name that two policies have, too.
			if inject := grant.Delivery.ProxyInjected; inject != nil && granted[grant.Name] == 1 {
				found.Credentials = append(found.Credentials, protocol.Injected{Name: grant.Name, Header: inject.Header, Hosts: inject.Hosts})
			}
		}
	}
	return found, nil
}

// report puts on record what a proxy refused, removed, or let through in a discovery.
func (b *service) report(ctx context.Context, who *caller, of *run, report protocol.Report) error {
	if problem := checkReport(&report); problem != "" {
		return refuse(http.StatusBadRequest, protocol.CodeBadRequest, "%s", problem)
	}
	for _, entry := range report.Entries {
		action, what := "egress-refused", "refused"
		switch {
		case entry.Removed:
			action, what = "sign-in-removed", "sent on without what would sign the run in"
		case entry.Allowed:
			action, what = "egress-discovered", "let through by a discovery"
		}
		record := runRecord(who, of, digest(string(of.UID), report.ID, entry.Host, fmt.Sprint(entry.Port), entry.Reason), action)
		record.Denied = !entry.Allowed
		record.Reason = fmt.Sprintf("%d connections to %q, port %d, were %s from %s to %s: %q",
			entry.Count, entry.Host, entry.Port, what, entry.First.UTC().Format(time.RFC3339), entry.Last.UTC().Format(time.RFC3339), entry.Reason)
		if err := b.recorder.Record(ctx, record); err != nil {
			b.log.Error("a report of a proxy is not recorded")
			return later(http.StatusServiceUnavailable, protocol.CodeAuditUnavailable, 5, "the report cannot be recorded")
		}
	}
	return nil
}

func checkReport(report *protocol.Report) string {
	if report.ID == "" || len(report.ID) > 64 || strings.ContainsRune(report.ID, 0) {
		return "id: must have from 1 to 64 characters"
	}
	if len(report.Entries) == 0 || len(report.Entries) > protocol.MaxReported {
		return fmt.Sprintf("entries: must be from 1 to %d", protocol.MaxReported)
	}
	for i, entry := range report.Entries {
		switch {
		case entry.Host == "" || len(entry.Host) > protocol.MaxDetail || strings.ContainsRune(entry.Host, 0):
			return fmt.Sprintf("entries[%d].host: must have from 1 to %d characters", i, protocol.MaxDetail)
		case entry.Reason == "" || len(entry.Reason) > protocol.MaxDetail:
			return fmt.Sprintf("entries[%d].reason: must have from 1 to %d characters", i, protocol.MaxDetail)
		case entry.Port < 0 || entry.Port > 65535 || entry.Count < 1 || entry.First.IsZero() || entry.Last.Before(entry.First):
			return fmt.Sprintf("entries[%d]: needs a port, a count and the times of the first and the last", i)
		}
	}
	return ""
}

// runRecord begins a record about a run.
func runRecord(who *caller, of *run, id, action string) extension.Record {
	record := extension.Record{
		ID: id, Action: action, User: who.user,
		Object: corev1.ObjectReference{Kind: string(of.Kind), Namespace: of.Namespace, Name: of.Name, UID: of.UID},
	}
	if who.pod != nil {
		record.Pod = corev1.ObjectReference{Name: who.pod.Name, UID: who.pod.UID}
	}
	return record
}
