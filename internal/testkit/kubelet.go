package testkit

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kubelet is a node whose containers have the log that a test writes: those of kwok have none. Pods whose nodeName is its
// name are on it. The test plays the rest of a kubelet.
type Kubelet struct {
	mu      sync.Mutex
	lines   []string
	written chan struct{} // closed when there is more
	ended   bool
	asked   []url.Values
}

// kubeletTime is that of the first line. Each is a second later than the one before.
const kubeletTime = 1_900_000_000

// NewKubelet makes a node until the test ends.
func NewKubelet(t *testing.T, admin client.Client, node string) *Kubelet {
	t.Helper()
	k := &Kubelet{written: make(chan struct{})}
	web := httptest.NewTLSServer(k)
	t.Cleanup(web.CloseClientConnections)
	_, text, err := net.SplitHostPort(web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	Create(t, admin, object)
	Succeeds(t, time.Minute, "the node has an address", func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		object.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		object.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
		return admin.Status().Update(ctx, object)
	})
	return k
}

// Write writes lines to the log.
func (k *Kubelet) Write(lines ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lines = append(k.lines, lines...)
	k.wake()
}

// End ends the log, and so what follows it.
func (k *Kubelet) End() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	k.wake()
}

func (k *Kubelet) wake() {
	close(k.written)
	k.written = make(chan struct{})
}

// Asked returns the queries of the requests for logs.
func (k *Kubelet) Asked() []url.Values {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.asked)
}

// ServeHTTP answers the API server.
func (k *Kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/containerLogs/") {
		http.NotFound(w, r)
		return
	}
	query := r.URL.Query()
	k.mu.Lock()
	k.asked = append(k.asked, query)
	sent := 0
	if tail, err := strconv.Atoi(query.Get("tailLines")); err == nil {
		sent = max(len(k.lines)-tail, 0)
	}
	k.mu.Unlock()
	for {
		k.mu.Lock()
		for ; sent < len(k.lines); sent++ {
			if query.Get("timestamps") == "true" {
				_, _ = fmt.Fprint(w, time.Unix(int64(kubeletTime+sent), 0).UTC().Format(time.RFC3339Nano)+" ")
			}
			_, _ = fmt.Fprintln(w, k.lines[sent])
		}
		more, over := k.written, k.ended || query.Get("follow") != "true"
		k.mu.Unlock()
		if over {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}
