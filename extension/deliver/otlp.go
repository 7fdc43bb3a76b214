package deliver

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// OTLPOptions are the options of [NewLogs] and [NewSpans].
type OTLPOptions struct {
	// Options have the URL of a collector, such as https://collector:4318. The path of the
	// signal, /v1/logs or /v1/traces, is added unless the URL ends with it.
	Options
	// Insecure allows http to another machine. Anyone on the network path can read what is
	// sent, so credentials are not allowed then. Default: false.
	Insecure bool
	// Resource are attributes of where log records come from, such as k8s.cluster.name:
	// at most 32, of 1 KiB each. Default: service.name is admitkit, and
	// service.instance.id the name of the host.
	Resource map[string]string
}

// Validate returns an error that names the wrong option of the connection, if there is one.
// It does not read the files: where the options are written, they may not exist.
func (o *OTLPOptions) Validate() error {
	u, err := o.server()
	switch {
	case err != nil:
		return err
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("URL %q must not have a query; put a credential into TokenFile", u.Scheme+"://"+u.Host+u.Path)
	case u.Scheme == "https":
		return nil
	case o.CAFile != "" || o.CertFile != "":
		return fmt.Errorf("URL %q must be https: CAFile and CertFile have no effect by http", u.Redacted())
	case onThisMachine(u):
		return nil
	case !o.Insecure:
		return fmt.Errorf("URL %q must be https, or http on this machine; set Insecure to send by http all the same", u.Redacted())
	case o.TokenFile != "" || len(o.Header) > 0 || u.User != nil:
		return fmt.Errorf("URL %q must be https: by http anybody in between could read the credentials", u.Redacted())
	}
	return nil
}

// sender returns a sender to the path of a signal.
func (o *OTLPOptions) sender(path string, request func(items [][]byte) ([]byte, error)) *Sender {
	return newSender(o.Options, strings.TrimSuffix(strings.TrimRight(o.URL, "/"), path)+path, encoding{
		name: "otlp", receiver: "collector", item: "record", mediaType: "application/x-protobuf",
		maxBatch: MaxRequest, otherwise: unexpected, notFound: "; it receives no OTLP over HTTP at ", metrics: otlpMetrics,
		request: request, describe: describeRecord, read: readAnswer,
	})
}

// readAnswer reads a google.rpc.Status, message = 2, or the answer to a request that was
// taken, Export...ServiceResponse: partial_success = 1 {rejected = 1, error_message = 2}.
// The messages of all signals have the same form, and the package of their Go types brings
// gRPC along.
func readAnswer(body []byte, taken bool) (a answer) {
	partial := body
	if taken {
		partial = nil
		each(body, 1, func(value []byte, _ uint64) { partial = value })
		each(partial, 1, func(_ []byte, n uint64) { a.rejected = max(0, int64(n)) }) //nolint:gosec // an int64 on the wire
	}
	each(partial, 2, func(value []byte, _ uint64) { a.message = fmt.Sprintf("%.*s", maxMessage, value) })
	return a
}

// each calls found with a field of a message, as far as the message can be read.
func each(message []byte, field protowire.Number, found func(bytes []byte, number uint64)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		size := protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return
		}
		if number == field {
			switch kind {
			case protowire.BytesType:
				value, _ := protowire.ConsumeBytes(message)
				found(value, 0)
			case protowire.VarintType:
				value, _ := protowire.ConsumeVarint(message)
				found(nil, value)
			}
		}
		message = message[size:]
	}
}
