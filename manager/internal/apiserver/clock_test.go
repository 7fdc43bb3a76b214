package apiserver

import (
	"net/http"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// answers are those of an API server, at a moment of its own, some time after a machine
// asked.
type answers struct {
	machine *clocktesting.FakePassiveClock
	ahead   time.Duration // of the machine
	takes   time.Duration
}

func (a *answers) RoundTrip(*http.Request) (*http.Response, error) {
	header := http.Header{}
	header.Set("Date", a.machine.Now().Add(a.ahead).UTC().Format(http.TimeFormat))
	a.machine.SetTime(a.machine.Now().Add(a.takes))
	return &http.Response{Header: header, Body: http.NoBody}, nil
}

func TestTheClockIsTheAPIServersWhateverThisMachinesSays(t *testing.T) {
	for sentence, test := range map[string]struct{ ahead, takes time.Duration }{
		"a clock that is right":                   {0, time.Millisecond},
		"a clock that is nearly right":            {-300 * time.Millisecond, time.Millisecond},
		"a clock that is an hour behind":          {time.Hour, 20 * time.Millisecond},
		"a clock that is an hour ahead":           {-time.Hour, 20 * time.Millisecond},
		"a clock that is four seconds behind":     {4 * time.Second, 0},
		"a clock that is off, and a slow network": {time.Hour, 700 * time.Millisecond},
	} {
		t.Run(sentence, func(t *testing.T) {
			server := &answers{machine: clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)), ahead: test.ahead, takes: test.takes}
			clock := NewClock(server.machine)
			transport := clock.Wrap(server)
			ask := func() (wrong time.Duration) {
				server.machine.SetTime(server.machine.Now().Add(130 * time.Millisecond))
				answer, err := transport.RoundTrip(nil)
				if err != nil {
					t.Fatal(err)
				}
				_ = answer.Body.Close()
				return clock.Now().Sub(server.machine.Now().Add(test.ahead)).Abs()
			}
			if wrong := ask(); wrong > time.Second+test.takes {
				t.Errorf("after an answer it is wrong by %s", wrong)
			}
			for range 20 {
				ask()
			}
			if wrong := ask(); wrong > 130*time.Millisecond+test.takes {
				t.Errorf("after many it is wrong by %s", wrong)
			}
			// An answer that takes a minute says little, and changes nothing.
			server.takes = time.Minute
			before := clock.ahead.Load()
			if ask(); clock.ahead.Load() != before {
				t.Error("a slow answer changes it")
			}
		})
	}
}
