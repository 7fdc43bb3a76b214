// Package cli has what the commands of the plugin share.
//
// Read the files in this order:
//
//   - cli.go: [Base], which every command gets: the streams, the flags of kubectl, the
//     connection.
//   - errors.go: exit codes, and what the API server says in plain words.
//   - output.go, table.go: [Output], how a command prints objects.
//   - listing.go, describe.go: the frames of commands that list and describe.
//   - completion.go, duration.go, span.go: arguments and flags.
//   - kubectl.go: running kubectl with the same connection.
package cli
