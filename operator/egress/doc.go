// Package egress holds a Pod to the addresses that it may reach: it decides whether network policies
// are enforced here, composes the policy of a Pod, and writes it over what others made of it. An
// extension that makes Pods has a [Holder], and says by which rights, watch and cache
// it works; operator/access has one for access Pods, and operator/sandbox for those of runs and seeds.
//
// Read it in this order. [Options] are the operator's. [Prober] decides whether a policy
// holds anything here ([Probe]), and [ServesCilium] which kind it has. [APIServerOf] finds the addresses of the API
// server. [Check] says what is wrong with an Egress, and [Policy.Compose] turns one into a
// NetworkPolicy or a CiliumNetworkPolicy. [Widens] finds the policies of others that would
// undo it, since policies add up. [Holder.Decide] is asked before there is a Pod, [Held.Restore] says afterwards what has
// become of its policy, and [Holder.Write] makes it as it was. [IsDigestPinned] is for the images of such Pods.
package egress
