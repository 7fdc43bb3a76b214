// Package certs is the certificate authority behind the webhooks, so that
// nobody needs another one.
//
//   - [CA] is a certificate and its key: made by [NewCA], read by [ParseCA],
//     asked for its fitness by [CA.Usable], and used by [CA.IssueLeaf].
//   - [Authority] keeps a CA in a Secret that all replicas share, and a leaf
//     certificate, which every replica signs for itself, in memory only.
//   - [Files] serves a certificate that someone else made, cert-manager for
//     example, and reloads it when it changes.
//
// The Secret has the keys ca.crt and ca.key, PEM both. Whoever reads it can
// pose as the webhook towards the API server, so only the manager should.
//
// No leader is needed: each step is a create or an update that fails when
// someone else was faster, and a lost race is success, because what the other
// one wrote serves as well.
package certs
