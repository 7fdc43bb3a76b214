package testkit

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Figure prints a line that `make figures` collects.
func Figure(name string, value float64, unit string) {
	fmt.Printf("FIGURE %s=%s %s\n", name, strconv.FormatFloat(math.Round(value*100)/100, 'f', -1, 64), unit)
}

// Long returns a value for the long form of a test, or that for the short one.
func Long[T any](inLong, inShort T) T {
	if testing.Short() {
		return inShort
	}
	return inLong
}

// Percentile returns the value below which the share p of the durations lies.
func Percentile(of []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*p))]
}

// Milliseconds returns a duration with its fractions, for Figure.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
