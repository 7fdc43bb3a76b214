// Package limits bounds what clients can take of a server: memory and connections. What
// may be slow or hostile is cut off first; an API server that sends what it announced, at
// once, is never affected.
//
// Read the files in this order:
//
//   - memory.go: [Memory], which all requests of a process share, and [Share], the part
//     that one of them has while it arrives, waits and runs.
//   - body.go: reading a body into memory that grows with what has arrived.
//   - cost.go: [Estimate], what a request will occupy when it is decoded.
//   - connections.go: the listener that closes the connection of least use when there are
//     too many, and what a request tells of its connection.
//   - line.go: the queue in which both keep who goes first.
package limits
