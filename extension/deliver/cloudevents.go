package deliver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"time"
)

// EventOptions are the options of [NewEvents].
type EventOptions struct {
	Options
	// Source is the source of the events: a URI that names their origin, for
	// example the cluster. There is no default.
	Source string
}

// Event is an event, without what all events of a sender have in common.
type Event struct {
	// ID is unique among the events of the source. There is no default.
	ID string
	// Type is the type of the event, such as com.example.order. There is no
	// default.
	Type string
	// Subject names the object of the event. It is optional.
	Subject string
	// Time is when the event happened.
	Time time.Time
	// Data is the payload. It is sent as JSON.
	Data any
	// Extensions are further attributes, such as the cluster. Their names have lower-case
	// letters and digits, at most 20, as the specification of CloudEvents says.
	Extensions map[string]string
}

// Events sends CloudEvents. Make one with [NewEvents].
type Events struct {
	*Sender
	source string
}

// NewEvents returns a sender of CloudEvents. [Events.Validate] reports invalid options.
func NewEvents(options EventOptions) *Events {
	return &Events{source: options.Source, Sender: newSender(options.Options, options.URL, encoding{
		name: "cloudevents", receiver: "endpoint", item: "event", mediaType: "application/cloudevents-batch+json; charset=utf-8",
		maxBatch: math.MaxInt, otherwise: busy, metrics: eventMetrics,
		request: func(events [][]byte) ([]byte, error) {
			return append(append([]byte{'['}, bytes.Join(events, []byte{','})...), ']'), nil
		},
		describe: func(event []byte) (id, text string) {
			var e struct{ ID string }
			_ = json.Unmarshal(event, &e)
			return e.ID, string(event)
		},
	})}
}

// maxSource bounds what each event repeats.
const maxSource = 1024

// Validate returns an error that names the wrong option, if there is one. It does not read
// the files.
func (e *Events) Validate() error {
	u, err := e.options.server()
	switch {
	case err != nil:
		return err
	case u.Scheme != "https" && !onThisMachine(u):
		return fmt.Errorf("URL %q must be https, or http on this machine", u.Redacted())
	case e.source == "":
		return errors.New("Source is missing")
	case len(e.source) > maxSource:
		return fmt.Errorf("Source has %d bytes: at most %d", len(e.source), maxSource)
	}
	return e.options.validate()
}

// Send sends an event, or puts it into the queue. An event whose ID is in the
// queue already is not queued again.
func (e *Events) Send(ctx context.Context, event Event) error {
	text, err := e.marshal(event)
	if err != nil {
		return err
	}
	return e.send(ctx, event.ID, text)
}

// marshal returns the event in the JSON format of CloudEvents 1.0
// (https://github.com/cloudevents/spec, formats/json-format.md).
func (e *Events) marshal(event Event) ([]byte, error) {
	if event.ID == "" || event.Type == "" {
		return nil, errors.New("a CloudEvent needs an ID and a Type")
	}
	attributes := map[string]any{
		"specversion": "1.0", "id": event.ID, "source": e.source, "type": event.Type,
		"time": event.Time.UTC(), "datacontenttype": "application/json", "data": event.Data,
	}
	if event.Subject != "" {
		attributes["subject"] = event.Subject
	}
	for name, value := range event.Extensions {
		if _, taken := attributes[name]; taken || !attributeName.MatchString(name) {
			return nil, fmt.Errorf("the extension attribute %.40q of a CloudEvent must have 1 to 20 lower-case letters and digits, and be none of the specification's", name)
		}
		attributes[name] = value
	}
	return json.Marshal(attributes)
}

var attributeName = regexp.MustCompile(`^[a-z0-9]{1,20}$`)
