package audit

import (
	"context"
	"errors"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension"
)

// logSink writes each record as one structured line of the manager's log.
type logSink struct{ log *zap.Logger }

// NewLogSink returns the sink "log": each record is a line of the manager's log
// at level info, with the message "session". Dry runs are logged too.
func NewLogSink() Sink { return &logSink{log: zap.NewNop()} }

// Name is "log".
func (*logSink) Name() string { return "log" }

// Register takes the manager's logger.
func (s *logSink) Register(mgr extension.Manager) error {
	s.log = mgr.GetLogger().Desugar().Named("audit")
	return nil
}

// Write writes past zap.Logger, which keeps the errors of its cores to itself.
func (s *logSink) Write(_ context.Context, r *v1alpha1.AuditRecord) error {
	core := s.log.Core()
	if !core.Enabled(zapcore.InfoLevel) {
		return errors.New("the log's level is above info")
	}
	entry := zapcore.Entry{Level: zapcore.InfoLevel, Time: r.Time.Time, LoggerName: s.log.Name(), Message: "session"}
	return core.Write(entry, fields(r))
}

// fields are a record as fields of a log line, without those that are empty.
func fields(r *v1alpha1.AuditRecord) []zap.Field {
	f := []zap.Field{
		zap.String("id", r.ID), zap.String("way", string(r.Way)), zap.String("verb", r.Verb),
		zap.String("user", r.User.Username), zap.Strings("groups", r.User.Groups),
	}
	text := func(key, value string) {
		if value != "" {
			f = append(f, zap.String(key, value))
		}
	}
	text("amends", r.Amends)
	text("userUID", r.User.UID)
	if len(r.User.Extra) > 0 {
		f = append(f, zap.Any("extra", r.User.Extra))
	}
	text("namespace", r.Namespace)
	text("pod", r.Pod)
	text("podUID", string(r.PodUID))
	text("service", r.Service)
	text("node", r.Node)
	text("container", r.Container)
	text("image", r.Image)
	f = append(f, zap.Strings("command", r.Command), zap.Bool("tty", r.TTY), zap.Bool("stdin", r.Stdin))
	if len(r.Ports) > 0 {
		f = append(f, zap.Strings("ports", r.Ports))
	}
	text("path", r.Path)
	if len(r.Containers) > 0 {
		f = append(f, zap.Any("containers", r.Containers))
	}
	if r.DryRun {
		f = append(f, zap.Bool("dryRun", true))
	}
	text("decision", string(r.Decision))
	text("rule", r.Rule)
	text("reason", r.Reason)
	if r.AccessRequest != nil {
		f = append(f, zap.String("accessRequest", r.AccessRequest.Kind+"/"+r.AccessRequest.Name))
	}
	if len(r.Flags) > 0 {
		f = append(f, zap.Any("flags", r.Flags))
	}
	return f
}
