// Package certs provides the serving certificates of webhooks, and the certificate
// authority behind them, so that no other one is needed.
//
// A [Source] is where a serving certificate comes from. There are three:
//
//   - An [Authority] keeps a CA in a Secret that all replicas share, and rotates it.
//     Every replica signs a leaf certificate for itself and keeps it in memory only.
//   - A [Leaf] serves the leaf of a Secret that an Authority elsewhere, or
//     cert-manager, writes. It is for servers that may not read the CA's key.
//   - [Files] serve a certificate from a folder, and reload it when any part of its
//     chain changes.
//
// A [CA] is a certificate and its key. [NewCA] makes one, and [CA.IssueLeaf] signs with it.
//
// # The Secret
//
// All keys hold PEM: ca.crt and ca.key, the CA that signs; next.crt and next.key, its
// successor during a rotation; previous.crt, the certificates of its predecessors.
// Annotations say why the Secret was last written, when the CA is valid, since when
// every client trusts the next CA, and since when the current one signs. Anyone who
// can read the keys can pose as the webhook to the API server, so only the manager
// should.
//
// # Rotation
//
// Write the next CA. Publish it beside the current one, read that back and record it.
// Wait until every API server has learned of it. Promote it and sign new leaves. When
// the last leaf of the old CA has expired, stop trusting it. API servers key their
// connections by the caBundle, so no call fails if the bundle comes first and the leaf
// second.
//
// [RotateNow] requests one. [RotateEmergency] does not wait: one write replaces every CA, and
// calls fail between the bundle and the leaf.
//
// This needs no leader. Each step is a create or an update that fails if another
// replica was faster. A lost race is success, because what the other replica wrote is
// just as good. After a crash between two steps any other replica continues.
package certs
