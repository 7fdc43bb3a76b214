package broker

import (
	"context"
	"net/http"

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
			headers, keys := name.Own()
			found.Allow = append(found.Allow, protocol.Name{Host: name.Host, Ports: name.Ports, Headers: headers, QueryKeys: keys})
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
	if problem := report.Problem(); problem != "" {
		return refuse(http.StatusBadRequest, protocol.CodeBadRequest, "%s", problem)
	}
	for i := range report.Entries {
		entry := &report.Entries[i]
		record := runRecord(who, of, entry.Digest(string(of.UID), report.ID), "")
		record.Denied = !entry.Allowed
		record.Action, record.Reason = entry.Told()
		if err := b.recorder.Record(ctx, record); err != nil {
			b.log.Error("a report of a proxy is not recorded")
			return later(http.StatusServiceUnavailable, protocol.CodeAuditUnavailable, 5, "the report cannot be recorded")
		}
	}
	return nil
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
