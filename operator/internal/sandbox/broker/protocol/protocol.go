// Package protocol is what runs, their controller and the broker say to each other: messages
// in JSON over HTTPS, and the [Client] of both callers.
//
// A caller shows a projected ServiceAccount token whose audience is [Audience]. A token that
// is bound to the Pod of a run speaks for that run, and needs to name nothing. The
// controller names the run, or the Workspace whose leases are to end.
package protocol

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Audience is that of the tokens that the broker takes.
const Audience = "admitkit-broker"

// Where the broker is, in its own namespace, unless it is told otherwise: its Service, and the ConfigMap with the
// authorities of its certificate.
const (
	ServiceName = "sandbox-broker"
	CAName      = "sandbox-broker-ca"
	CAKey       = "ca.crt"
)

// The paths of the broker. Each is called by POST.
const (
	PathIssue  = "/v1/issue"
	PathRevoke = "/v1/revoke"
	PathEgress = "/v1/egress"
	PathReport = "/v1/report"
)

// MaxBody is how large a request to the broker can be, in bytes.
const MaxBody = 64 << 10

// The kinds of what a credential is for.
const (
	KindRun       = "SandboxRun"
	KindWorkspace = "Workspace"
)

// Run names a run, or a Workspace that is seeded.
type Run struct {
	// Kind is SandboxRun or Workspace. Default: SandboxRun.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// IssueRequest asks for a credential.
type IssueRequest struct {
	// Run is who it is for. Only the controller sets it.
	Run *Run `json:"run,omitempty"`
	// Name is the name of the credential in a BrokerPolicy.
	Name string `json:"name"`
}

// Header is a header that the proxy sets.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Issued is a credential on lease. Exactly one of Header and Value is set.
type Issued struct {
	// Lease is the name of the CredentialLease.
	Lease string `json:"lease"`
	// ExpiresAt is when the credential must not be used any more. Ask again before.
	ExpiresAt time.Time `json:"expiresAt"`
	// Fresh says that the lease was made for this answer. Another was there before, and what it is for may be in use.
	Fresh bool `json:"fresh,omitempty"`
	// Header is what the proxy sets on requests to Hosts.
	Header *Header  `json:"header,omitempty"`
	Hosts  []string `json:"hosts,omitempty"`
	// Value is the credential itself, which the controller gives to the container.
	Value string `json:"value,omitempty"`
}

// RevokeRequest ends leases.
type RevokeRequest struct {
	// Run is whose. Only the controller sets it.
	Run *Run `json:"run,omitempty"`
	// Lease is one of them. Default: all of the run.
	Lease string `json:"lease,omitempty"`
	// Undelivered says that no container has been given what is revoked. Only the controller
	// knows that, of what it asked for.
	Undelivered bool `json:"undelivered,omitempty"`
}

// Revoked is the answer to a RevokeRequest that could not be completed in time (202): the
// broker goes on with the rest by itself. An answer without a body (204) says that nothing
// is left.
type Revoked struct {
	// Queued are the leases that are still to be revoked.
	Queued []string `json:"queued"`
}

// Name is a name that a run may reach, as a BrokerPolicy has it.
type Name struct {
	Host  string  `json:"host"`
	Ports []int32 `json:"ports,omitempty"`
	// Headers and QueryKeys go on, although they may sign the run in.
	Headers   []string `json:"headers,omitempty"`
	QueryKeys []string `json:"queryKeys,omitempty"`
}

// Injected is a credential that the proxy sets.
type Injected struct {
	Name   string   `json:"name"`
	Header string   `json:"header"`
	Hosts  []string `json:"hosts"`
}

// Egress is what a run may reach now.
type Egress struct {
	Allow []Name `json:"allow,omitempty"`
	// DiscoverUntil is until when other names are let through, on record.
	DiscoverUntil *time.Time `json:"discoverUntil,omitempty"`
	// Credentials are those that the proxy sets.
	Credentials []Injected `json:"credentials,omitempty"`
}

// Limits of a Report.
const (
	MaxReported = 64
	MaxDetail   = 256
)

// Reported is a kind of connection, folded: many are one entry.
type Reported struct {
	Host string `json:"host"`
	Port int32  `json:"port"`
	// Allowed says that a discovery let it through, or with Removed that it went on without
	// what Reason names.
	Allowed bool `json:"allowed,omitempty"`
	Removed bool `json:"removed,omitempty"`
	// Reason is why it was refused.
	Reason string    `json:"reason"`
	Count  int64     `json:"count"`
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
}

// Report tells the broker what the proxy refused.
type Report struct {
	// ID tells the report from the others of the run: sent again, it is the same one.
	ID      string     `json:"id"`
	Entries []Reported `json:"entries"`
}

// Code says why the broker did not do what was asked.
type Code string

// The codes.
const (
	CodeBadRequest         Code = "BadRequest"
	CodeUnauthorized       Code = "Unauthorized"
	CodeForbidden          Code = "Forbidden"
	CodeRunNotFound        Code = "RunNotFound"
	CodeRunEnded           Code = "RunEnded"
	CodePolicyMissing      Code = "PolicyMissing"
	CodeCredentialNotFound Code = "CredentialNotFound" //nolint:gosec // it is a code
	CodeAmbiguous          Code = "CredentialAmbiguous"
	CodeTooManyLeases      Code = "TooManyLeases"
	CodePoolExhausted      Code = "PoolExhausted"
	CodeRateLimited        Code = "RateLimited"
	CodeAuditUnavailable   Code = "AuditUnavailable"
	CodeProviderFailed     Code = "ProviderFailed"
	CodeUnavailable        Code = "Unavailable"
)

// Fatal reports whether asking again in the same way is in vain until somebody changes a
// policy or a template. Everything else is for a while.
func (c Code) Fatal() bool {
	switch c {
	case CodeBadRequest, CodeForbidden, CodeRunNotFound, CodeRunEnded, CodePolicyMissing, CodeCredentialNotFound, CodeAmbiguous:
		return true
	}
	return false
}

// Error is the answer of the broker if it did not do what was asked.
type Error struct {
	// Status is that of HTTP.
	Status  int    `json:"-"`
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// RetryAfter is how long to wait before asking again, if the broker said so.
	RetryAfter time.Duration `json:"-"`
}

func (e *Error) Error() string { return fmt.Sprintf("broker: %s: %s", e.Code, e.Message) }

// Allows reports whether the name stands for a port of a host, which is in lower case and
// has no dot at its end.
func (n *Name) Allows(host string, port int32) bool {
	if len(n.Ports) == 0 && port != 443 || len(n.Ports) > 0 && !slices.Contains(n.Ports, port) {
		return false
	}
	return CoversHost(n.Host, host)
}

// CoversHost reports whether a pattern, a name or *. and a name, stands for a host.
func CoversHost(pattern, host string) bool {
	if below, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(host, below) && len(host) > len(below)
	}
	return pattern == host
}
