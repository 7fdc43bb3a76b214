// Package protocol is what the recorder (operator/cmd/recorder), the webhook and the collector of
// operator/session say to each other: the ticket by which a session begins, and the
// frames in which it is recorded. It imports the standard library only, because the
// recorder does.
//
// # How a session begins
//
// The webhook signs a [Ticket] ([Key.Sign]) and puts the recorder before the command of the
// user ([Wrap]). Whoever has the key can verify the ticket ([Key.Verify]) and find the
// command of the user ([Split]). The recorder has no key: it reads from the ticket where the
// collectors are and what to do without one ([Parse]), and presents it to a collector.
//
// # How it is recorded
//
// The recorder sends [Frame]s. Each one that matters has a sequence number, beginning with
// 1. The collector acknowledges what it has stored, and the recorder keeps the rest to send
// it again, to the same collector or to another.
package protocol
