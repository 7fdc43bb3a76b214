package cli

import (
	"testing"
	"time"
)

func TestDurationsHaveDays(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"1d": day, "1d12h": day + 12*time.Hour, "-1d": -day, "2w": 14 * day, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute, "-15m": -15 * time.Minute, "0": 0,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "soon", "1", "d", "12h1d", "99999999d", "--1d"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q is %s, want an error", text, got)
		}
	}
}

func TestDurationsAreWrittenAsPeopleDo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "1h30m", time.Hour + time.Second: "1h0m1s", 10 * time.Second: "10s", 20 * time.Minute: "20m", 10 * time.Hour: "10h",
	} {
		if got := Short(d); got != want {
			t.Errorf("%d is %s, want %s", d, got, want)
		}
	}
}
