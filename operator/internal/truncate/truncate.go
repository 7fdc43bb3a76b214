// Package truncate shortens texts to what a field of the API server's holds.
package truncate

import "strings"

// Text returns at most so many bytes of a text, all of them whole characters.
func Text(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
