package main

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
)

// echoes returns how long a terminal takes to echo a key, in order.
func echoes(t *testing.T, argv []string, n int) []time.Duration {
	c := launch(t, "", argv, true)
	c.expect("ready")
	all := make([]time.Duration, n)
	for i := range all {
		key := string(rune('a' + i%26))
		began := time.Now()
		c.send(key)
		c.expect(key)
		all[i] = time.Since(began)
	}
	c.send("\x03")
	c.wait()
	slices.Sort(all)
	return all
}

func TestWhatTheRecorderCosts(t *testing.T) {
	testkit.OnlyLong(t)
	const keys, size, most = 2000, 100_000_000, 5.0
	p := newPlace(t)
	command := sh("stty -icanon; echo ready; exec cat >/dev/null")
	plain, recorded := echoes(t, command, keys), echoes(t, p.wrap(p.ticket(command), command), keys)
	p50, p99 := testkit.Milliseconds(recorded[keys/2]-plain[keys/2]), testkit.Milliseconds(recorded[keys*99/100]-plain[keys*99/100])
	fmt.Printf("FIGURE session.echo_added_ms=%.3f ms\nFIGURE session.echo_added_p99_ms=%.3f ms\n", p50, p99)
	if p50 > most {
		t.Errorf("a key is echoed %.3f ms later", p50)
	}
	for name, terminal := range map[string]bool{"throughput": true, "throughput_pipe": false} {
		command := []string{"head", "-c", strconv.Itoa(size), "/dev/zero"}
		speed := func(argv []string) float64 {
			began := time.Now()
			if got := launch(t, "", argv, terminal).wait(); len(got.stdout) != size {
				t.Errorf("%d bytes arrived: %s", len(got.stdout), got.stderr)
			}
			return float64(size) / time.Since(began).Seconds() / 1e6
		}
		plain, recorded := speed(command), speed(p.wrap(p.ticket(command), command))
		fmt.Printf("FIGURE session.%s_ratio=%.2f ratio\nFIGURE session.%s_mb_s=%.0f MB/s\n", name, recorded/plain, name, recorded)
	}
}

func TestARecorderThatHasRecordedMuchIsSmall(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	command := sh(fmt.Sprintf("head -c %d /dev/zero; echo; echo ready; read x", testkit.Long(100_000_000, 2_000_000)))
	c := launch(t, "", p.wrap(p.ticket(command), command), true)
	c.expect("ready")
	most := testkit.Memory(t, c.cmd.Process.Pid, "VmHWM")
	c.send("\n")
	c.wait()
	testkit.Figure("session.recorder_rss_mb", float64(most)/(1<<20), "MiB")
	if most > 64<<20 {
		t.Errorf("the recorder has had %d bytes", most)
	}
}
