// Command podlogger is a Watcher: it logs a line for every event of the Pods in
// a namespace, those that already exist first.
//
//	podlogger -namespace apps
package main

import (
	"context"
	"flag"
	"log"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
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
	var options manager.Options
	flag.StringVar(&options.Namespace, "namespace", "default", "namespace whose Pods are logged")
	flag.StringVar(&options.KubeConfig, "kubeconfig", "", "kubeconfig file")
	flag.Parse()
	options.OperatorFingerprint = "podlogger"

	mgr, err := manager.New(options)
	if err != nil {
		log.Fatal(err)
	}
	if err := mgr.AddExtension(PodLogger{}); err != nil {
		log.Fatal(err)
	}
	if err := mgr.Watch(signals.SetupSignalHandler()); err != nil {
		log.Fatal(err)
	}
}
