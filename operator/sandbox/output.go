package sandbox

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
	"github.com/admitkit/admitkit/operator/internal/truncate"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// outputs reads what the work writes, while it does, into the status of its run. It asks the API server for the last lines
// of the container's log, so that nothing in the Pod needs a token, or a way to anybody. It has workers of its own: a node
// that does not answer holds up no policy.
type outputs struct {
	of   *runs // whose connection it uses
	logs func(ctx context.Context, pod types.NamespacedName) (io.ReadCloser, error)
	readings
}

var _ extension.Reconciler = (*outputs)(nil)

const (
	// outputPeriod is how often the output of a run is read, and written if it changed, at most.
	outputPeriod = 10 * time.Second
	// outputTimeout bounds one read, and outputPatience how long after the end of a run it is tried.
	outputTimeout  = 5 * time.Second
	outputPatience = 5 * time.Minute
	outputWorkers  = 4
	// maxLog bounds what is read at a time, maxEvent a line, and maxEvents all that are kept.
	maxLog    = 1 << 20
	maxEvent  = 1024
	maxEvents = 32 << 10
	maxType   = 64
)

func newOutputs(r *runs) *outputs {
	return &outputs{of: r}
}

// Register makes the controller.
func (o *outputs) Register(mgr extension.Manager) error {
	config, err := cluster.Unthrottled(mgr)
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	if o.logs, err = logsOf(config); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	watches := map[client.Object]handler.EventHandler{&v1alpha1.SandboxRun{}: &handler.EnqueueRequestForObject{}}
	if _, err := controller.New(mgr, "sandboxrun-outputs", o, outputWorkers, o.of.cluster.GetCache(), watches); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	return nil
}

// logsOf reads the last lines of the container of a run, each with its time.
func logsOf(config *rest.Config) (func(context.Context, types.NamespacedName) (io.ReadCloser, error), error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, pod types.NamespacedName) (io.ReadCloser, error) {
		return clients.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: workload.Container, Timestamps: true, TailLines: new(int64(v1alpha1.MaxRecentEvents)), LimitBytes: new(int64(maxLog)),
		}).Stream(ctx)
	}, nil
}

// Reconcile reads the output of a run, unless it was read a moment ago.
func (o *outputs) Reconcile(ctx context.Context, item reconcile.Request) (reconcile.Result, error) {
	run := &v1alpha1.SandboxRun{}
	err := o.of.cached.Get(ctx, item.NamespacedName, run)
	ended := run.Status.Phase.Terminal()
	if run.Status.OutputClosed {
		o.of.lender.Given.Forget(run.UID)
	}
	if err != nil || run.Status.OutputClosed || !ended && run.Status.Phase != v1alpha1.SandboxRunning {
		o.forget(item.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if wait := o.wait(item.NamespacedName, o.of.options.Clock.Now(), ended); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	events, closed, err := o.look(ctx, run)
	if err == nil {
		err = o.write(ctx, run, events, closed)
	}
	if err != nil && !apierrors.IsConflict(err) {
		o.of.log.Warn("the output of a run is not read", zap.Stringer("run", item.NamespacedName), zap.Error(err))
	}
	if err == nil && closed {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: outputPeriod}, nil
}

// look reads the last lines of a run. closed says that there will be no other.
func (o *outputs) look(ctx context.Context, run *v1alpha1.SandboxRun) (events []v1alpha1.SandboxEvent, closed bool, err error) {
	ended := run.Status.Phase.Terminal()
	if run.Status.PodName == "" || !o.of.lender.Given.Knows(run.UID, run.Status.Credentials) {
		return run.Status.RecentEvents, ended, nil
	}
	ctx, cancel := context.WithTimeout(ctx, outputTimeout)
	defer cancel()
	log, err := o.logs(ctx, types.NamespacedName{Namespace: run.Namespace, Name: run.Status.PodName})
	if err == nil {
		events, err = parseLog(log)
		err = errors.Join(err, log.Close())
	}
	switch {
	case err == nil:
		outputReadsTotal.WithLabelValues("read").Inc()
	case apierrors.IsNotFound(err) || apierrors.IsBadRequest(err): // the Pod is gone, or its container has not begun
		return run.Status.RecentEvents, ended, nil
	default:
		outputReadsTotal.WithLabelValues("failed").Inc()
		if ended && o.of.options.Clock.Now().After(run.Status.CompletionTime.Add(outputPatience)) {
			return run.Status.RecentEvents, true, nil
		}
		return nil, false, err
	}
	redact := func(text string) string { return o.of.lender.Given.Redact(run.UID, run.Status.Credentials, text) }
	for i := range events {
		events[i].Type, events[i].Message = truncate.Text(redact(events[i].Type), maxType), truncate.Text(redact(events[i].Message), maxEvent)
	}
	return fit(events), ended, nil
}

// write writes what is new, and nothing else of the status: another reconciler writes that.
func (o *outputs) write(ctx context.Context, run *v1alpha1.SandboxRun, events []v1alpha1.SandboxEvent, closed bool) error {
	if closed == run.Status.OutputClosed && apiequality.Semantic.DeepEqual(events, run.Status.RecentEvents) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": run.UID}, "status": map[string]any{"recentEvents": events, "outputClosed": closed}})
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(o.of.writer.Status().Patch(ctx, run.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
}

// parseLog reads a log with times, of which it keeps the beginning of each line.
func parseLog(log io.Reader) (events []v1alpha1.SandboxEvent, err error) {
	lines := bufio.NewReaderSize(io.LimitReader(log, maxLog), 4*maxEvent)
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return events[max(len(events)-v1alpha1.MaxRecentEvents, 0):], err
		}
		if event, ok := eventOf(line); ok {
			events = append(events, event)
		}
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
	}
}

// eventOf reads a line that begins with its time.
func eventOf(line []byte) (event v1alpha1.SandboxEvent, ok bool) {
	stamp, text, _ := bytes.Cut(line, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil || at.Unix() <= 0 {
		return event, false
	}
	event = v1alpha1.SandboxEvent{Time: metav1.NewMicroTime(at.UTC().Truncate(time.Microsecond)), Message: clean(text)}
	typed := struct{ Type, Message string }{}
	if bytes.HasPrefix(text, []byte("{")) && json.Unmarshal(text, &typed) == nil && typed.Type != "" {
		event.Type, event.Message = clean([]byte(typed.Type)), clean([]byte(cmp.Or(typed.Message, string(text))))
	}
	return event, true
}

// clean makes text of bytes.
func clean(text []byte) string {
	return strings.ToValidUTF8(strings.TrimRight(string(text), "\r\n"), "\uFFFD")
}

// fit leaves the newest lines that fit a status.
func fit(events []v1alpha1.SandboxEvent) []v1alpha1.SandboxEvent {
	size := 0
	for i, event := range slices.Backward(events) {
		if size += len(event.Type) + len(event.Message); size > maxEvents {
			return events[i+1:]
		}
	}
	return events
}
