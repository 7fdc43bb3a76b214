// Command logstream prints the logs of all containers in a namespace, of the Pods
// that are there and of those that come, each line after the name of its
// container:
//
//	web-0/web: listening on :80
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// logStream is a Watcher. It begins a stream for each container that runs, once
// for each of its starts.
type logStream struct {
	mu       sync.Mutex
	out      io.Writer
	followed map[types.UID]map[string]bool // container IDs, by Pod
}

// Rights are what `logstream manifests` asks for; to watch Pods is in it already.
func (*logStream) Rights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}}}
}

// Handle must not wait for a stream, since the next event waits for it.
func (l *logStream) Handle(ctx context.Context, mgr extension.Manager, event watch.Event) {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok {
		return
	}
	if event.Type == watch.Deleted {
		delete(l.followed, pod.UID)
		return
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Running == nil || l.followed[pod.UID][status.ContainerID] {
			continue
		}
		if l.followed[pod.UID] == nil {
			l.followed[pod.UID] = map[string]bool{}
		}
		l.followed[pod.UID][status.ContainerID] = true
		go l.follow(ctx, mgr, pod, status.Name)
	}
}

// follow prints until the container ends, or the manager does.
func (l *logStream) follow(ctx context.Context, mgr extension.Manager, pod *corev1.Pod, container string) {
	name := pod.Name + "/" + container
	log := mgr.GetLogger().With("namespace", pod.Namespace, "container", name)
	client, err := mgr.GetKubeClient()
	if err != nil {
		log.Errorw("no logs", "error", err)
		return
	}
	stream, err := client.Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: container, Follow: true}).Stream(ctx)
	if err != nil {
		if ctx.Err() == nil {
			log.Errorw("no logs", "error", err)
		}
		return
	}
	defer func() { _ = stream.Close() }()
	lines := bufio.NewReader(stream)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			l.print(name, line)
		}
		if err != nil {
			log.Debugw("the logs end", "reason", err)
			return
		}
	}
}

func (l *logStream) print(name, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = fmt.Fprintf(l.out, "%s: %s", name, line)
}

func main() {
	command.Main(command.New("logstream", func(mgr *manager.Manager) error {
		return mgr.AddExtension(&logStream{out: os.Stdout, followed: map[types.UID]map[string]bool{}})
	}))
}
