// Command bench runs the benchmarks of package webhook several times, side by
// side with controller-runtime, and prints how the two compare:
//
//	BENCH mutate 11.2
//
// A run is all benchmarks once, so that what disturbs the machine disturbs both
// sides. With -write it puts the table into docs/benchmarks.md. It runs from the
// module's root; see `make bench`.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	runs := flag.Int("runs", 6, "how many runs to take the median of")
	benchtime := flag.String("benchtime", "1s", "how long each benchmark of a run takes")
	output := flag.String("output", "bin/bench.txt", "file for what go test prints")
	doc := flag.String("write", "", "file whose table is written anew, docs/benchmarks.md")
	benchstat := flag.String("benchstat", "bin/tools/benchstat", "the benchstat command")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *runs, *benchtime, *output, *doc, *benchstat)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, runs int, benchtime, output, doc, benchstat string) error {
	var text bytes.Buffer
	for i := range runs {
		fmt.Fprintf(os.Stderr, "run %d of %d\n", i+1, runs)
		command := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark(Handler|HTTPS)$", "-benchtime", benchtime, "-timeout", "30m", "./webhook")
		command.Stdout, command.Stderr = io.MultiWriter(&text, os.Stderr), os.Stderr
		if err := command.Run(); err != nil {
			return fmt.Errorf("go test: %w", err)
		}
	}
	if err := os.WriteFile(output, text.Bytes(), 0o600); err != nil {
		return err
	}
	figures, err := parse(&text)
	if err != nil {
		return err
	}
	lines := ratios(figures)
	fmt.Print(lines)
	compared, err := exec.CommandContext(ctx, benchstat, "-col", "/impl", output).Output()
	if err != nil {
		return fmt.Errorf("%s: %w", benchstat, err)
	}
	fmt.Printf("\n%s\n%s", table(figures), compared)
	if doc == "" {
		return nil
	}
	return write(doc, lines, table(figures), string(compared))
}

// measured is a figure of each run: by case, implementation and unit.
type measured map[key][]float64

type key struct{ name, impl, unit string }

// parse reads what go test prints, such as
//
//	BenchmarkHandler/case=mutate/impl=admitkit-2  19330  62251 ns/op  28906 B/op  157 allocs/op
func parse(text io.Reader) (measured, error) {
	samples := measured{}
	for lines := bufio.NewScanner(text); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		_, path, _ := strings.Cut(fields[0], "/case=")
		name, impl, _ := strings.Cut(path, "/impl=")
		if dash := strings.LastIndexByte(impl, '-'); dash > 0 {
			impl = impl[:dash] // the number of CPUs
		}
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", lines.Text(), err)
			}
			k := key{name, impl, fields[i+1]}
			samples[k] = append(samples[k], value)
		}
	}
	if len(samples) == 0 {
		return nil, errors.New("go test printed no benchmark")
	}
	return samples, nil
}

// median returns the median of a figure over all runs.
func (m measured) median(name, impl, unit string) float64 {
	return median(m[key{name, impl, unit}])
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

const (
	ours   = "admitkit"
	theirs = "controller-runtime"
)

// times returns how many times less of a unit ours takes than another: the
// median of what each run says, since the machine may change from run to run.
func (m measured) times(name, other, unit string) float64 {
	we, they := m[key{name, ours, unit}], m[key{name, other, unit}]
	ratios := make([]float64, min(len(we), len(they)))
	for i := range ratios {
		ratios[i] = they[i] / we[i]
	}
	return median(ratios)
}

// ratios are the BENCH lines. All but floor are the better the higher.
func ratios(m measured) string {
	var text strings.Builder
	line := func(name string, ratio float64) { fmt.Fprintf(&text, "BENCH %s %.2f\n", name, ratio) }
	for _, name := range []string{"mutate", "noop", "chain5", "large64k", "update", "metadata", "connect"} {
		line(name, m.times(name, theirs, "ns/op"))
	}
	for _, name := range []string{"https1", "https16", "https256"} {
		line(name, 1/m.times(name, theirs, "req/cpu-s"))
	}
	line("https256.p99", m.times("https256", theirs, "p99-ms"))
	line("floor", 1/m.times("mutate", "floor", "ns/op"))
	line("allocs", m.times("mutate", theirs, "allocs/op"))
	return text.String()
}

func table(m measured) string {
	var text strings.Builder
	text.WriteString("| case | admitkit | controller-runtime | times | floor | allocs | their allocs | bytes | their bytes |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, name := range []string{"mutate", "noop", "chain5", "large64k", "update", "metadata", "connect"} {
		fmt.Fprintf(&text, "| %s | %.1f µs | %.1f µs | %.1f | %.1f µs | %.0f | %.0f | %.0f | %.0f |\n", name,
			m.median(name, ours, "ns/op")/1000, m.median(name, theirs, "ns/op")/1000, m.times(name, theirs, "ns/op"), m.median(name, "floor", "ns/op")/1000,
			m.median(name, ours, "allocs/op"), m.median(name, theirs, "allocs/op"), m.median(name, ours, "B/op"), m.median(name, theirs, "B/op"))
	}
	text.WriteString("\n| connections | requests a CPU second | controller-runtime | times | p99 | controller-runtime |\n|---|---|---|---|---|---|\n")
	for _, connections := range []string{"1", "16", "256"} {
		name := "https" + connections
		fmt.Fprintf(&text, "| %s | %.0f | %.0f | %.1f | %.1f ms | %.1f ms |\n", connections,
			m.median(name, ours, "req/cpu-s"), m.median(name, theirs, "req/cpu-s"), 1/m.times(name, theirs, "req/cpu-s"),
			m.median(name, ours, "p99-ms"), m.median(name, theirs, "p99-ms"))
	}
	return text.String()
}

// The table in the document stands between these.
const begin, end = "<!-- begin: written by make bench -->\n", "<!-- end -->"

func write(doc, lines, table, compared string) error {
	text, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		return fmt.Errorf("%s has no lines %q and %q", doc, strings.TrimSpace(begin), end)
	}
	generated := fmt.Sprintf("%s, %s/%s, %d CPUs, %s.\n\n```\n%s```\n\n%s\nWhat benchstat says, of %s:\n\n```\n%s```\n",
		time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), lines, table, "all runs", compared)
	return os.WriteFile(doc, []byte(before+begin+generated+end+after), 0o600)
}
