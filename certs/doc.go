// Package certs is the certificate authority behind the webhooks, so that
// nobody needs another one.
//
//   - [CA] is a certificate and its key: made by [NewCA], read by [ParseCA],
//     asked for its fitness by [CA.Usable], and used by [CA.IssueLeaf].
//   - [Authority] keeps a CA in a Secret that all replicas share, rotates it,
//     and keeps a leaf certificate, which every replica signs for itself, in
//     memory only.
//   - [Leaf] serves a leaf from a Secret that an Authority elsewhere, or
//     cert-manager, writes: for servers that may not read the CA's key.
//   - [Files] serves a certificate that someone else made, and reloads it when
//     any part of its chain changes.
//
// # The Secret
//
// The keys are PEM: ca.crt and ca.key, the CA that signs; next.crt and next.key,
// its successor, while a rotation is under way; previous.crt, the certificates
// of predecessors. Annotations say why it was last written, from when until when
// the CA is valid, since when every client trusts the next CA, and since when
// the current one signs. Whoever reads the keys can pose as the webhook towards
// the API server, so only the manager should.
//
// # Rotation
//
// Write the next CA; publish it beside the current one; read that back, and note
// it; wait until every API server has learned of it; promote it; sign new
// leaves; when the last leaf of the old one is over, trust it no longer. API
// servers key their connections by the caBundle, so bundle first and leaf second
// is the order in which no call fails.
//
// No leader is needed: each step is a create or an update that fails when
// someone else was faster, and a lost race is success, because what the other
// one wrote serves as well. A crash between two steps leaves a state from which
// any other replica goes on.
package certs
