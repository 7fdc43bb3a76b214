package testkit

import (
	"fmt"
	"math"
	"runtime"
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

// OnlyLong skips a test of endurance, or one that measures, in the short form.
func OnlyLong(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("the long form runs it")
	}
}

// Percentile returns the value below which the share p of the durations lies.
func Percentile(of []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*p))]
}

// Milliseconds returns a duration with its fractions, for Figure.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Cost runs a function and returns how long it took and how many bytes were allocated
// meanwhile.
func Cost(run func()) (took time.Duration, allocated uint64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	run()
	took = time.Since(began)
	runtime.ReadMemStats(&after)
	return took, after.TotalAlloc - before.TotalAlloc
}
