package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
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
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

// refusals records what the proxies of runs refuse that have no broker to tell. These write it to their logs, which it reads,
// so that such a Pod needs no token, and no way to anybody. The same line that is read twice is one record, by its ID.
type refusals struct {
	of   *runs // whose connection it uses
	logs func(ctx context.Context, pod types.NamespacedName, since time.Time) (io.ReadCloser, error)
	readings
}

var _ extension.Reconciler = (*refusals)(nil)

// Register makes the controller.
func (r *refusals) Register(mgr extension.Manager) error {
	config, err := cluster.Unthrottled(mgr)
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	if r.logs, err = logsOfProxies(config); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	watches := map[client.Object]handler.EventHandler{&corev1.Pod{}: &handler.EnqueueRequestForObject{}}
	if _, err := controller.New(mgr, "sandbox-refusals", r, outputWorkers, r.of.cluster.GetCache(), watches); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	return nil
}

// logsOfProxies reads the log of a proxy since a time, to the second, each line with its own.
func logsOfProxies(config *rest.Config) (func(context.Context, types.NamespacedName, time.Time) (io.ReadCloser, error), error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, pod types.NamespacedName, since time.Time) (io.ReadCloser, error) {
		options := &corev1.PodLogOptions{Container: workload.ProxyContainer, Timestamps: true, LimitBytes: new(int64(maxLog))}
		if !since.IsZero() {
			options.SinceTime = &metav1.Time{Time: since}
		}
		return clients.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	}, nil
}

// Reconcile reads the log of a proxy, unless it was read a moment ago, and once more at its end.
func (r *refusals) Reconcile(ctx context.Context, item reconcile.Request) (reconcile.Result, error) {
	pod := &corev1.Pod{}
	if err := r.of.cached.Get(ctx, item.NamespacedName, pod); err != nil {
		r.forget(item.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	object, err := r.unheard(ctx, pod)
	if err != nil || object == nil {
		return reconcile.Result{}, err
	}
	ended := owned.HasEnded(pod)
	if wait := r.wait(item.NamespacedName, r.of.options.Clock.Now(), ended); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	again, err := r.read(ctx, item.NamespacedName, pod, object)
	switch {
	case err != nil:
		r.of.log.Warn("what the proxy of a Pod refused is not recorded yet", zap.Stringer("pod", item.NamespacedName), zap.Error(err))
	case again:
		r.again(item.NamespacedName)
		return reconcile.Result{RequeueAfter: time.Nanosecond}, nil
	case ended:
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: outputPeriod}, nil
}

// unheard returns the run, or the Workspace, of a Pod whose proxy has begun and has no broker, nil for another Pod.
func (r *refusals) unheard(ctx context.Context, pod *corev1.Pod) (*corev1.ObjectReference, error) {
	begun := false
	for _, c := range pod.Status.InitContainerStatuses {
		begun = begun || c.Name == workload.ProxyContainer && c.State.Waiting == nil
	}
	if !begun {
		return nil, nil //nolint:nilnil // most have none
	}
	run, ws := &v1alpha1.SandboxRun{}, &v1alpha1.Workspace{}
	object, key, decided := client.Object(run), v1alpha1.LabelSandboxRun, &run.Status.Egress
	if pod.Labels[key] == "" {
		object, key, decided = ws, v1alpha1.LabelWorkspace, &ws.Status.Egress
	}
	err := r.of.cached.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: pod.Labels[key]}, object)
	if err != nil || string(object.GetUID()) != pod.Labels[v1alpha1.LabelEgress] || *decided == nil || (*decided).Broker != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if object == ws {
		return new((&workspaceAttempt{ws: ws}).object()), nil
	}
	return new(recordOf(run, "", "").Object), nil
}

// read records what is new in the log of a proxy. again says that there is more.
func (r *refusals) read(ctx context.Context, key types.NamespacedName, pod *corev1.Pod, object *corev1.ObjectReference) (again bool, err error) {
	reading, cancel := context.WithTimeout(ctx, outputTimeout)
	defer cancel()
	since := r.until(key)
	log, err := r.logs(reading, key, since)
	if apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) { // the Pod is gone, or its container has not begun
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer log.Close() //nolint:errcheck // it was only read
	limited := &io.LimitedReader{R: log, N: maxLog}
	lines, before := bufio.NewReaderSize(limited, 4*maxEvent), since
	for {
		line, more, err := lines.ReadLine()
		if cut := limited.N == 0; errors.Is(err, io.EOF) && cut { // and so is the last line
			return before.After(since), nil
		}
		r.seen(key, before)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return false, err
		}
		if at, report := reportOf(line); at.After(since) {
			if report != nil && !more {
				if err := r.record(ctx, pod, object, report); err != nil {
					return false, err
				}
			}
			before = at
		}
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
	}
}

// reportOf reads a line that begins with its time, nil for one that is no report.
func reportOf(line []byte) (time.Time, *protocol.Report) {
	stamp, text, _ := bytes.Cut(line, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil || at.Unix() <= 0 {
		return time.Time{}, nil
	}
	return at, protocol.ParseLogged(text)
}

func (r *refusals) record(ctx context.Context, pod *corev1.Pod, object *corev1.ObjectReference, report *protocol.Report) error {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	for i := range report.Entries {
		entry := &report.Entries[i]
		record := extension.Record{ID: entry.Digest(strings.ToLower(string(object.UID)), report.ID), Denied: !entry.Allowed, Object: *object, Pod: corev1.ObjectReference{Name: pod.Name, UID: pod.UID}}
		record.Action, record.Reason = entry.Told()
		if err := r.of.recorder.Record(ctx, record); err != nil {
			unrecordedTotal.WithLabelValues(record.Action).Inc()
			return err
		}
	}
	return nil
}
