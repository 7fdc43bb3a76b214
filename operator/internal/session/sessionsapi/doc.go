// Package sessionsapi serves the API group sessions.admitkit.dev, by which users list, read,
// follow, search and end recorded sessions: see operator/docs/sessions.md and docs/adr/0014. A
// [Server] is behind an APIService ([APIService]): the API server authenticates and
// authorizes users, and passes their requests on.
//
//   - front.go believes nobody but the API server's front proxy who asks;
//   - request.go parses a path as the API server does, and authorize.go asks it again
//     whether the user may do that; namespace.go tells a namespace from an earlier one of its
//     name;
//   - index.go knows the sessions of the storage, and objects.go makes objects of them;
//   - gate.go bounds who asks at a time;
//   - list.go, read.go, search.go and end.go answer.
//
// The paths, below /apis/sessions.admitkit.dev/v1alpha1, and the rights that they need:
//
//	GET sessions                                   list sessions, in all namespaces
//	GET namespaces/NS/sessions                     list sessions
//	GET namespaces/NS/sessions?search=TEXT         list sessions, and get sessions/log of all
//	GET namespaces/NS/sessions/ID                  get sessions
//	GET namespaces/NS/sessions/ID/log              get sessions/log, as asciicast v3
//	GET namespaces/NS/sessions/ID/log?as=frames    get sessions/log, as it is stored
//	GET namespaces/NS/sessions/ID/log?as=seal      get sessions/log, whether it was changed
//	GET watch/namespaces/NS/sessions/ID/log        watch sessions/log, of a live session
//	DELETE namespaces/NS/sessions/ID               delete sessions: ends a live one
package sessionsapi
