package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/pflag"
)

// ParseDuration parses a Go duration, or one with days, such as 1d12h, which neither
// Go nor the API has.
func ParseDuration(text string) (time.Duration, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	d, err := model.ParseDurationAllowNegative(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 30m, 1h30m or 1d", text)
	}
	return time.Duration(d), nil
}

// Short writes a duration as people and the API do, 30m and not 30m0s.
func Short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Until writes a time of today as a time alone, and any other with its date and zone.
func Until(end time.Time) string {
	end, now := end.Local(), time.Now()
	if end.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return end.Format(time.TimeOnly)
	}
	return end.Format(time.DateTime + " MST")
}

// NewDuration returns a flag for a duration, which can have days. check says what is wrong
// with a value.
func NewDuration(value *time.Duration, check func(time.Duration) error) pflag.Value {
	return durationFlag{value, check}
}

// durationFlag is a flag for a duration, which can have days.
type durationFlag struct {
	*time.Duration
	// check says what is wrong with a value.
	check func(time.Duration) error
}

func (f durationFlag) Set(text string) error {
	d, err := ParseDuration(text)
	if err == nil {
		err = f.check(d)
	}
	*f.Duration = d
	return err
}

// String returns "" for 0, so that help shows no default.
func (f durationFlag) String() string {
	if f.Duration == nil || *f.Duration == 0 {
		return ""
	}
	return Short(*f.Duration)
}

func (durationFlag) Type() string { return "duration" }

// MoreThanZero is the check of a duration that has a default.
func MoreThanZero(d time.Duration) error {
	if d <= 0 {
		return errors.New("must be more than 0; leave it out for the template's default")
	}
	return nil
}

// NotBelowZero is the check of a duration that may be none.
func NotBelowZero(d time.Duration) error {
	if d < 0 {
		return errors.New("must not be less than 0; 0 does not wait")
	}
	return nil
}
