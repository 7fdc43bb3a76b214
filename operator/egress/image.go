package egress

import "strings"

// IsDigestPinned reports whether a reference to an image names it by a digest of any
// algorithm, as in registry.example.com/app@sha256:0123abcd. One that names a tag may be another
// image tomorrow: have it pulled always.
func IsDigestPinned(image string) bool {
	at := strings.LastIndex(image, "@")
	if at < 1 {
		return false
	}
	algorithm, hash, found := strings.Cut(image[at+1:], ":")
	return found && algorithm != "" && hash != ""
}
