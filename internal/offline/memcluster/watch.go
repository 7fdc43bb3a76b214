package memcluster

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// change is an event of an object, with what it was before, or nil.
type change struct {
	what           watch.EventType
	path           string
	before, object *unstructured.Unstructured
}

// watch answers a watch, with a body that goes on until it is closed or the context of
// the request ends. The caller holds the mutex.
func (c *Cluster) watch(p *call) (*http.Response, error) {
	query := p.URL.Query()
	if query.Get("sendInitialEvents") != "" { // client-go lists instead
		return c.refuse(p, apierrors.NewMethodNotSupported(p.resource.GroupResource(), "watch list"))
	}
	s := &stream{cluster: c, call: p, closed: make(chan struct{})}
	version, err := strconv.Atoi(query.Get("resourceVersion"))
	if err != nil || version == 0 {
		for _, path := range slices.Sorted(maps.Keys(c.objects)) {
			if err := s.add(change{watch.Added, path, nil, c.objects[path]}); err != nil {
				return nil, err
			}
		}
		version = c.version
	}
	s.next = version
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: p.Request,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: s, ContentLength: -1,
	}, nil
}

func (c *Cluster) refuse(p *call, err *apierrors.StatusError) (*http.Response, error) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return Respond(p.Request, int(status.Code), status)
}

// stream is the body of the answer to a watch.
type stream struct {
	cluster *Cluster
	call    *call
	next    int // in the history, which has one entry for each version
	unread  []byte
	closed  chan struct{}
	once    sync.Once
}

// Read implements io.Reader.
func (s *stream) Read(into []byte) (int, error) {
	for len(s.unread) == 0 {
		changed, err := s.catchUp()
		switch {
		case err != nil:
			return 0, err
		case len(s.unread) > 0:
			continue
		}
		select {
		case <-changed:
		case <-s.closed:
			return 0, io.EOF
		case <-s.call.Context().Done():
			return 0, s.call.Context().Err()
		}
	}
	n := copy(into, s.unread)
	s.unread = s.unread[n:]
	return n, nil
}

// catchUp reads the history, and returns the channel that its next change closes.
func (s *stream) catchUp() (<-chan struct{}, error) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	var errs []error
	for ; s.next < len(s.cluster.history); s.next++ {
		errs = append(errs, s.add(s.cluster.history[s.next]))
	}
	return s.cluster.changed, errors.Join(errs...)
}

// add adds a change to what is to be read, if the watch is about its object. An object that
// is no longer selected is deleted for the watch, and one that is again is added.
func (s *stream) add(c change) error {
	was := c.before != nil && s.cluster.isIn(s.call, c.path, c.before)
	is := c.what != watch.Deleted && s.cluster.isIn(s.call, c.path, c.object)
	switch {
	case !was && !is:
		return nil
	case !was:
		c.what = watch.Added
	case !is && c.what != watch.Deleted:
		last := c.before.DeepCopy()
		last.SetResourceVersion(c.object.GetResourceVersion())
		c.what, c.object = watch.Deleted, last
	}
	text, err := json.Marshal(map[string]any{"type": c.what, "object": c.object.Object})
	s.unread = append(append(s.unread, text...), '\n')
	return err
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}
