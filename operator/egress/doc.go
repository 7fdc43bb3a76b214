// Package egress holds a Pod to the addresses that it may reach: it decides whether network
// policies are enforced here, and composes the policy of a Pod. It makes nothing itself. An
// extension that makes Pods reads the facts by it, and writes the policy where its rights
// and its watch are; operator/access does, for access Pods.
//
// Read it in this order. [Options] are the operator's. [Prober] decides whether a policy
// holds anything here ([Probe]), and [ServesCilium] which kind it has. [APIServerOf] finds the addresses of the API
// server. [Check] says what is wrong with an Egress, and [Policy.Compose] turns one into a
// NetworkPolicy or a CiliumNetworkPolicy. [Widens] finds the policies of others that would
// undo it, since policies add up. [IsDigestPinned] is for the images of such Pods.
package egress
