package managertest

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

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

// watch returns a function that wraps the transport of a ServiceAccount's connection.
func (f *forbidden) watch(serviceAccount string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
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
