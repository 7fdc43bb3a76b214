// Package credentials has the broker lend credentials to the containers of runs. It puts them into Secrets, keeps these as
// they were, and gives back what nobody uses. It makes what the proxies of runs and of seeds need.
//
// Read the files in this order:
//
//   - lender.go: [Lender], which both reconcilers have.
//   - loan.go: a [Loan] is what one Secret has on lease.
//   - broker.go: [Broker], the client.
//   - authority.go: the root of the proxies, what each proxy signs with, and how Secrets are read and
//     stored.
//   - given.go: [Given] remembers what was lent, so that no status has it.
package credentials
