package managertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// calm is how long no call is made when the extensions rest, and restlessness is how long
// the end of a test waits for it.
const calm, restlessness = 100 * time.Millisecond, 10 * time.Second

// maxStatus limits what is read of a refusal.
const maxStatus = 1 << 20

// refusedByRBAC is in the sentences of RBAC, for a right that is missing and for one that
// would be given away. Refusals of admission plugins and webhooks have other words.
var refusedByRBAC = regexp.MustCompile(`(?i)forbidden: user "`)

// forbidden passes on what RBAC refuses, each sentence once.
type forbidden struct {
	tell func(serviceAccount, sentence string)
	// told is closed when the test has failed.
	told chan struct{}

	mu    sync.Mutex
	said  map[string]bool
	ended bool
	// open counts the calls that have no answer, and last is the latest of all calls, which
	// began or ended at moved.
	open  int
	last  string
	moved time.Time
}

func newForbidden(t testing.TB, tell func(serviceAccount, sentence string)) *forbidden {
	f := &forbidden{tell: tell, told: make(chan struct{}), said: map[string]bool{}}
	if tell == nil {
		once := sync.OnceFunc(func() { close(f.told) })
		f.tell = func(serviceAccount, sentence string) {
			t.Errorf("managertest: ServiceAccount %s lacks a right, for which an extension has to ask (extension.Entitled): %s", serviceAccount, sentence)
			once()
		}
	}
	return f
}

// end passes on nothing more: the test may be over.
func (f *forbidden) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
}

func (f *forbidden) say(serviceAccount, sentence string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended && !f.said[sentence] {
		f.said[sentence] = true
		f.tell(serviceAccount, sentence)
	}
}

// rest returns when no call was made for a while: what the extensions still do after the
// test must not be refused either.
func (f *forbidden) rest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restlessness)
	defer cancel()
	began := time.Now()
	for {
		f.mu.Lock()
		since, last := f.moved, f.last
		rests := f.open == 0
		f.mu.Unlock()
		if since.Before(began) {
			since = began
		}
		if left := calm - time.Since(since); rests && left <= 0 {
			return nil
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return fmt.Errorf("%s after the test, the extensions still call the API server, so it is not known whether they lack a right: the last call is %s; wait in the test for what they do, and see whether a Reconciler changes what it watches", restlessness, last)
		}
	}
}

// move notes that a call began or ended. A watch never ends, and a lease is renewed again and again.
func (f *forbidden) move(request *http.Request, open int) {
	if request.URL.Query().Get("watch") != "" || strings.Contains(request.URL.Path, "/leases") {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open += open
	f.last, f.moved = request.Method+" "+request.URL.Path, time.Now()
}

// watch returns a function that wraps the transport of a ServiceAccount's connection.
func (f *forbidden) watch(serviceAccount string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			f.move(request, 1)
			defer f.move(request, -1)
			response, err := next.RoundTrip(request)
			if err != nil || response.StatusCode != http.StatusForbidden {
				return response, err
			}
			body, err := io.ReadAll(io.LimitReader(response.Body, maxStatus))
			_ = response.Body.Close()
			if err != nil {
				return nil, err
			}
			response.Body = io.NopCloser(bytes.NewReader(body))
			if sentence := sentenceOf(body); refusedByRBAC.MatchString(sentence) {
				f.say(serviceAccount, sentence)
			}
			return response, nil
		})
	}
}

// sentenceOf returns the message of a Status in any encoding.
func sentenceOf(body []byte) string {
	decoded, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if status, ok := decoded.(*metav1.Status); err == nil && ok {
		return status.Message
	}
	return string(body)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
