package sink

import (
	"context"
	"errors"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
)

// logSink writes each record as one structured line of the manager's log.
type logSink struct{ log *zap.Logger }

// NewLog returns the sink "log": each record is a line of the manager's log at
// level info, with the message "session". Dry runs are logged too.
func NewLog() Sink { return &logSink{log: zap.NewNop()} }

// Name is "log".
func (*logSink) Name() string { return "log" }

// Register takes the manager's logger.
func (s *logSink) Register(mgr extension.Manager) error {
	s.log = mgr.GetLogger().Desugar().Named("audit")
	return nil
}

// Write bypasses zap.Logger, which hides the errors of its cores.
func (s *logSink) Write(_ context.Context, r *v1alpha1.AuditRecord) error {
	core := s.log.Core()
	if !core.Enabled(zapcore.InfoLevel) {
		return errors.New("the log's level is above info")
	}
	entry := zapcore.Entry{Level: zapcore.InfoLevel, Time: r.Time.Time, LoggerName: s.log.Name(), Message: "session"}
	return core.Write(entry, act.Fields(r))
}
