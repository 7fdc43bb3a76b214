package testkit

// Noise returns n bytes that look like chance, and are the same each time.
func Noise(n int) string {
	state, text := uint32(1), make([]byte, n)
	for i := range text {
		state = state*1664525 + 1013904223
		text[i] = byte(state >> 24)
	}
	return string(text)
}
