// Package protocol has what a controller and its hooks say to each other, in the formats
// of Metacontroller's v1 and v2, and the client of hooks that are web servers.
package protocol
