package alerts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	alarmv1 "github.com/admitkit/admitkit/examples/alarm/v1"
	alarmv2 "github.com/admitkit/admitkit/examples/alarm/v2"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/audit/sink/deliver"
	"github.com/admitkit/admitkit/operator/hook"
)

// The programs are the test's own binary, with the command line that every extension
// gets, so that their counters begin as those of a real process do.

// programVariable has the settings of a test binary that is to be a program.
const programVariable = "ALERTS_TEST_PROGRAM"

type settings struct {
	// Extensions are a name of extensionsOf.
	Extensions string
	// Namespace is the watched one.
	Namespace string
	// Endpoint gets CloudEvents or log records, through a queue in Queue if that is set.
	Endpoint, Queue string
	// Folder has what an extension reads, and what makes it fail. Port is one of its own.
	Folder string
	Port   int32
	// Brokered is a namespace for whose runs there is a broker.
	Brokered string
	// Retention is that of AuditEvents, by a clock that is Ahead.
	Retention, Ahead time.Duration
}

// extensionsOf returns the extensions of a program.
var extensionsOf = map[string]func(settings) []any{
	"author":    func(settings) []any { return []any{&author{}} },
	"converter": func(settings) []any { return []any{&author{}, alarms()} },
	"unserved":  func(settings) []any { return []any{unserved()} },
	"access":    func(settings) []any { return []any{access.New(access.Options{})} },
	"hook":      func(settings) []any { return []any{hook.New(hook.Options{})} },
	"session":   func(s settings) []any { return []any{recording(s)} },
	"sandbox":   sandboxed,
	"audit": func(s settings) []any {
		return []any{audit.New(audit.Options{
			Sinks: []audit.SinkOptions{
				{Sink: deliver.NewCloudEvents(deliver.EventOptions{Options: deliver.Options{URL: s.Endpoint, Backoff: time.Millisecond, MaxBackoff: 100 * time.Millisecond}}), Timeout: audit.MaxTimeout},
				{Sink: auditevent.New(auditevent.Options{FoldAfter: 3, Retention: s.Retention, Clock: ahead(s.Ahead)})},
			},
			Enforcement: &audit.Enforcement{Namespaces: []string{s.Namespace}, ExemptGroups: []string{"system:masters"}},
			TouchedPods: &audit.TouchedPods{},
		})}
	},
	"audit-closed": func(s settings) []any {
		return []any{audit.New(audit.Options{Sinks: []audit.SinkOptions{{Sink: deliver.NewCloudEvents(deliver.EventOptions{Options: deliver.Options{URL: s.Endpoint}}), FailurePolicy: audit.Closed}}})}
	},
	"audit-queue": func(s settings) []any {
		return []any{audit.New(audit.Options{Sinks: []audit.SinkOptions{{Sink: deliver.NewCloudEvents(deliver.EventOptions{Options: deliver.Options{
			URL: s.Endpoint, Dir: s.Queue, Backoff: time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		}})}}})}
	},
	"audit-otlp": func(s settings) []any {
		return []any{audit.New(audit.Options{Sinks: []audit.SinkOptions{{Sink: deliver.NewOTLP(deliver.OTLPOptions{Options: deliver.Options{
			URL: s.Endpoint, Dir: s.Queue, Backoff: time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		}})}}})}
	},
}

// ahead is a clock that is ahead.
type ahead time.Duration

func (a ahead) Now() time.Time                  { return time.Now().Add(time.Duration(a)) }
func (a ahead) Since(t time.Time) time.Duration { return a.Now().Sub(t) }

// runProgram is the program.
func runProgram(text string) {
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	command.Main(command.New("alerts", func(mgr *manager.Manager) error {
		for _, e := range extensionsOf[s.Extensions](s) {
			if err := mgr.AddExtension(e); err != nil {
				return err
			}
		}
		return nil
	}))
}

// author is an extension of somebody's who makes mistakes, if the name of a ConfigMap says
// so. It has a part that answers and one that watches.
type author struct{}

func (a *author) Parts(extension.Manager) ([]any, error) {
	ignore := admissionregistrationv1.Ignore
	return []any{
		extension.ValidatingFunc(a.validate, extension.Scope{
			Name: "author", FailurePolicy: &ignore, Timeout: 10 * time.Second,
			Rules: extension.Resources("", "v1", []string{"configmaps"}, admissionregistrationv1.Create),
		}),
		extension.Watching[*corev1.ConfigMap](a, extension.WatchScope{}),
	}, nil
}

func (*author) validate(ctx context.Context, c *corev1.ConfigMap, _ *extension.Request) error {
	switch name := c.Name; {
	case strings.HasPrefix(name, "panics"):
		panic("a mistake")
	case strings.HasPrefix(name, "fails"):
		return errors.New("it fails")
	case strings.HasPrefix(name, "slow"):
		select {
		case <-time.After(4 * time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

// Watch panics too, or is slow.
func (a *author) Watch(_ context.Context, _ extension.Manager, event watch.EventType, c *corev1.ConfigMap) {
	switch {
	case event != watch.Added:
	case strings.HasPrefix(c.Name, "watcher-panics"):
		panic("another mistake")
	case strings.HasPrefix(c.Name, "watcher-slow"):
		time.Sleep(5 * time.Second) // what a watcher that calls somebody slow does
	}
}

// unserved is for a resource that nobody has installed.
func unserved() *extension.Handler {
	ignore := admissionregistrationv1.Ignore
	return extension.ValidatingFunc(func(context.Context, *metav1.PartialObjectMetadata, *extension.Request) error { return nil }, extension.Scope{
		Name: "unserved", FailurePolicy: &ignore,
		Rules: extension.Resources("nobody.example.com", "v1", []string{"widgets"}, admissionregistrationv1.Create),
	})
}

// alarms converts no alarm.
func alarms() *extension.Converter {
	return extension.Converting("alarms.alarm.example.com", "v2", extension.Between("v1",
		func(*alarmv1.Alarm, *alarmv2.Alarm) error { return errors.New("it cannot be said") },
		func(*alarmv2.Alarm, *alarmv1.Alarm) error { return nil }))
}

// stage is where a scene takes place: a namespace, a program and what it said.
type stage struct {
	*testing.T
	namespace string
	// program is the one that runs, if one does, at these addresses.
	program               *testkit.Process
	metrics, health, port string
	scrapes               []scrape
}

// start starts a program and returns when it is ready.
func (s *stage) start(with settings, flags ...string) {
	s.Helper()
	s.launch(with, flags...)
	testkit.Within(s, 3*time.Minute, "the program is ready", func(ctx context.Context) bool {
		_, err := read(ctx, s.metrics) // served by themselves
		return err == nil && testkit.IsReady(ctx, s.health)
	})
}

// launch is start without waiting.
func (s *stage) launch(with settings, flags ...string) {
	s.Helper()
	with.Namespace = s.namespace
	// Again at the same addresses: by another port it would be another installation.
	for _, address := range []*string{&s.metrics, &s.health, &s.port} {
		if *address == "" {
			*address = fmt.Sprintf("127.0.0.1:%d", freeport.For(s))
		}
	}
	args := []string{
		"start", "--kubeconfig", cluster.Admin().KubeConfig, "--namespace", s.namespace, "--webhook-namespace", programs, "--fingerprint", s.namespace,
		"--host", "127.0.0.1", "--port", strings.TrimPrefix(s.port, "127.0.0.1:"), "--metrics-address", s.metrics, "--health-address", s.health, "--drain-period", "0s",
	}
	s.program = testkit.RunAgain(s, programVariable, with, append(args, flags...)...)
}

// kill ends the program without a word.
func (s *stage) kill() {
	s.program.Kill()
	s.program = nil
}

// now scrapes the program, if one runs.
func (s *stage) now() map[string]string {
	s.Helper()
	if s.program == nil {
		return nil
	}
	values, err := read(s.Context(), s.metrics)
	if err != nil {
		s.Fatal(err)
	}
	return values
}

// count returns the value of a counter or a gauge that is a whole number, 0 if there is none.
func (s *stage) count(name string) int {
	s.Helper()
	count, _ := strconv.Atoi(s.now()[name])
	return count
}

// scrape keeps what the program says now.
func (s *stage) scrape() {
	s.Helper()
	s.scrapes = append(s.scrapes, scrape{time.Now(), s.now()})
}

// until waits until one of the series that match a pattern is no longer what it was in the
// last scrape, and is not zero.
func (s *stage) until(pattern string) {
	s.Helper()
	matches, last := regexp.MustCompile("^(?:"+pattern+")"), map[string]string{}
	if n := len(s.scrapes); n > 0 {
		last = s.scrapes[n-1].values
	}
	testkit.Within(s, 3*time.Minute, "a change of "+pattern, func(context.Context) bool {
		for name, value := range s.now() {
			if matches.MatchString(name) && value != last[name] && value != "0" {
				return true
			}
		}
		return false
	})
}

// create makes ConfigMaps, whatever becomes of them.
func (s *stage) create(names ...string) {
	s.Helper()
	for _, name := range names {
		if err := admin.Create(s.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}); err != nil {
			s.Logf("creating %s: %v", name, err)
		}
	}
}

// exec asks for a session in a Pod, which need not exist: admission comes first.
func (s *stage) exec(pod string) testkit.Answer {
	s.Helper()
	return testkit.Send(s, cluster.Admin(), "POST", "/api/v1/namespaces/"+s.namespace+"/pods/"+pod+"/exec?command=sh&stdin=true&tty=true&stdout=true", testkit.AsJSON, "")
}

// file writes into a folder of the test.
func file(t testing.TB, dir, name string, text []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}
