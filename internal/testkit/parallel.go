package testkit

import "testing"

// Parallel runs subtests by their sentences beside each other, and returns when all have ended.
func Parallel(t *testing.T, stories map[string]func(*testing.T)) {
	t.Run("together", func(t *testing.T) {
		for sentence, story := range stories {
			t.Run(sentence, func(t *testing.T) {
				t.Parallel()
				story(t)
			})
		}
	})
}
