// Command podlogger is a Watcher: it logs a line for every event of the Pods in
// a namespace, those that already exist first.
//
//	podlogger start --namespace apps
package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// PodLogger logs Pod events.
type PodLogger struct{}

// Handle is called with one event after the other.
func (PodLogger) Handle(_ context.Context, mgr extension.Manager, event watch.Event) {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok {
		return
	}
	mgr.GetLogger().Infow("pod", "event", event.Type, "namespace", pod.Namespace, "name", pod.Name, "phase", pod.Status.Phase)
}

func main() {
	command.Main(command.New("podlogger", func(mgr *manager.Manager) error { return mgr.AddExtension(PodLogger{}) }))
}
