package proxy

import (
	"context"
	"errors"
	"io"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// Listed is the [Broker] of a run that has none: it allows the names of a list, grants nothing, and writes reports to the
// log of the proxy, where the controller reads them.
type Listed struct {
	Names []protocol.Name
	Log   io.Writer
}

// Egress implements [Broker].
func (l *Listed) Egress(context.Context) (*protocol.Egress, error) {
	return &protocol.Egress{Allow: l.Names}, nil
}

// Issue implements [Broker].
func (l *Listed) Issue(context.Context, protocol.IssueRequest) (*protocol.Issued, error) {
	return nil, errors.New("there is no broker")
}

// Report implements [Broker].
func (l *Listed) Report(_ context.Context, report protocol.Report) error {
	return protocol.LogReport(l.Log, report)
}
