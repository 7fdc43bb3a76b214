package access

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/check"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Check is an HTTPS endpoint that decides about requests by the templates that name it. The
// author of a template chooses one of these by its name, and never where to connect.
type Check struct {
	// Name is the check's, by which templates name it. There is no default.
	Name string `json:"name"`
	// URL is where requests are posted to. It must be https. There is no default.
	URL string `json:"url"`
	// Timeout is how long an answer may take, at most 8 s. Default: 5 s.
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// CAFile or CABundle have the authorities of the endpoint's certificate, in PEM.
	// Default: those of the system. The files are read again before each question.
	CAFile   string `json:"caFile,omitempty"`
	CABundle string `json:"caBundle,omitempty"`
	// TokenFile has the bearer token. Default: none.
	TokenFile string `json:"tokenFile,omitempty"`
	// CertFile and KeyFile have the client certificate and its key, in PEM. Default: none.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

// Limits of checks.
const (
	DefaultCheckTimeout = 5 * time.Second
	// MaxCheckTimeout is below the time that an attempt of a reconciler has.
	MaxCheckTimeout = 8 * time.Second

	maxChecks     = 64
	maxChecksFile = 1 << 20
	// checkWorkers is how many requests one check is asked about at a time. Each check has
	// its own, so that one that hangs holds up no other.
	checkWorkers = 8
)

// The pauses after a check has failed, for each request.
const (
	checkBackoff    = 500 * time.Millisecond
	maxCheckBackoff = 30 * time.Second
)

// ReadChecks reads the checks of a file, in YAML or JSON:
//
//	checks:
//	- name: change-windows
//	  url: https://changes.example.com/admitkit
//	  caFile: ca.crt
//	  tokenFile: token
//	  timeout: 3s
//
// The names of other files are relative to the folder of this one.
func ReadChecks(path string) ([]Check, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names it
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxChecksFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxChecksFile:
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxChecksFile)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	_, _ = documents.Read()
	if more, err := documents.Read(); err == nil && len(bytes.TrimSpace(more)) > 0 {
		return nil, fmt.Errorf("%s: must be one document", path) // the others would be left out
	}
	var content struct {
		Checks []Check `json:"checks"`
	}
	document, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	strict, err := kjson.UnmarshalStrict(document, &content)
	if err = errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("%s: %w", path, misread(document, err))
	}
	if len(content.Checks) == 0 {
		return nil, fmt.Errorf("%s: checks: must name at least one", path)
	}
	for i := range content.Checks {
		c := &content.Checks[i]
		for _, name := range []*string{&c.CAFile, &c.TokenFile, &c.CertFile, &c.KeyFile} {
			if *name != "" && !filepath.IsAbs(*name) {
				*name = filepath.Join(filepath.Dir(path), *name)
			}
		}
	}
	if err := validateChecks(content.Checks); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return content.Checks, nil
}

// misread returns err as the field that it is about and what that must be: the errors of
// JSON name Go types instead. It holds no values, which may be credentials.
func misread(document []byte, err error) error {
	const form = "must be a list, each with name and url: checks: [{name: change-windows, url: \"https://changes.example.com\"}]"
	var content map[string]json.RawMessage
	if json.Unmarshal(document, &content) != nil {
		return errors.New("checks: " + form)
	}
	for _, name := range slices.Sorted(maps.Keys(content)) {
		if name != "checks" {
			return fmt.Errorf("%s: there is no such field: the file has checks only", name)
		}
	}
	var checks []map[string]json.RawMessage
	if json.Unmarshal(content["checks"], &checks) != nil {
		return errors.New("checks: " + form)
	}
	for i, fields := range checks {
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if wrong := misreadField(name, fields[name]); wrong != "" {
				return fmt.Errorf("checks[%d].%s: %s", i, name, wrong)
			}
		}
	}
	return err
}

// misreadField returns what is wrong with a field of a check, "" for nothing.
func misreadField(name string, value []byte) string {
	names := []string{"name", "url", "timeout", "caFile", "caBundle", "tokenFile", "certFile", "keyFile"}
	switch {
	case !slices.Contains(names, name):
		return "there is no such field: a check has " + strings.Join(names, ", ")
	case name == "timeout" && json.Unmarshal(value, new(metav1.Duration)) != nil:
		return "must be a duration such as 3s or 500ms"
	case name != "timeout" && json.Unmarshal(value, new(string)) != nil:
		return "must be a string: put it in quotation marks"
	}
	return ""
}

// validateChecks returns an error that names the field.
func validateChecks(all []Check) error {
	if len(all) > maxChecks {
		return fmt.Errorf("checks: there are %d: at most %d", len(all), maxChecks)
	}
	known := map[string]bool{}
	for i := range all {
		c := &all[i]
		field := func(name string) string { return fmt.Sprintf("checks[%d].%s", i, name) }
		if problems := validation.IsDNS1123Label(c.Name); len(problems) > 0 {
			return fmt.Errorf("%s: %q: %s", field("name"), c.Name, strings.Join(problems, ", "))
		}
		u, err := url.Parse(c.URL)
		switch {
		case known[c.Name]:
			return fmt.Errorf("%s: %q is there twice", field("name"), c.Name)
		case err != nil:
			return fmt.Errorf("%s: it cannot be parsed", field("url")) // its text may hold a credential
		case u.Scheme != "https" || u.Host == "":
			return fmt.Errorf("%s: must be https://HOST/..., because its answer gives access", field("url"))
		case u.User != nil:
			return fmt.Errorf("%s: must hold no user and password: use tokenFile", field("url"))
		case c.Timeout.Duration < 0 || c.Timeout.Duration > MaxCheckTimeout:
			return fmt.Errorf("%s: %s: must be from 0, for the default of %s, to %s", field("timeout"), c.Timeout.Duration, DefaultCheckTimeout, MaxCheckTimeout)
		case c.CAFile != "" && c.CABundle != "":
			return fmt.Errorf("%s and caBundle exclude each other", field("caFile"))
		case (c.CertFile == "") != (c.KeyFile == ""):
			return fmt.Errorf("%s and keyFile need each other: set both", field("certFile"))
		case c.CABundle != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(c.CABundle)):
			return fmt.Errorf("%s: there is no certificate in PEM", field("caBundle"))
		}
		known[c.Name] = true
	}
	return nil
}

// noCheck refuses a template that names a check which there is not. Its names are no
// secret from those who may write templates; where they lead to is.
func (a *shared) noCheck(name string) *refusal {
	if name == "" || slices.ContainsFunc(a.options.Checks, func(c Check) bool { return c.Name == name }) {
		return nil
	}
	names := make([]string, len(a.options.Checks))
	for i := range a.options.Checks {
		names[i] = a.options.Checks[i].Name
	}
	there := "there are: " + strings.Join(names, ", ")
	if len(names) == 0 {
		there = "there are none; the operator configures them with --access-checks"
	}
	return refuse(v1alpha1.ReasonCheckFailed, "spec.accessConfig.check: there is no check %q; %s", name, there)
}

var (
	checksTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "admitkit_access_checks_total", Help: "Questions to a check, by its answer: allowed, denied, or why there was none: unready (its credential or CA cannot be read), unreachable, timeout, status (not 200) or invalid.",
	}, []string{"check", "result"})
	checkSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "admitkit_access_check_duration_seconds", Help: "How long a check took to answer, or to fail.",
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 8},
	}, []string{"check"})
)

func init() { metrics.Registry.MustRegister(checksTotal, checkSeconds) }

const (
	resultAllowed = "allowed"
	resultDenied  = "denied"
)

// question is about one request.
type question struct {
	kind string
	key  types.NamespacedName
	uid  types.UID
}

// checks asks the checks about requests that are otherwise ready to be granted, apart from
// the reconcilers, which must not wait for anybody. An answer is written into the status,
// where nobody can change it, and only a request without one is asked about.
type checks struct {
	*shared
	of map[string]*checkQueue

	mu    sync.Mutex
	kinds map[string]*requests
	// open has the questions that are asked now, or will be, with the last failure.
	open map[question]string
}

type checkQueue struct {
	name   string
	client *check.Client
	queue  workqueue.TypedRateLimitingInterface[question]
}

var _ manager.LeaderElectionRunnable = (*checks)(nil)

func newChecks(a *shared) *checks {
	c := &checks{shared: a, of: map[string]*checkQueue{}, kinds: map[string]*requests{}, open: map[question]string{}}
	for i := range a.options.Checks {
		o := &a.options.Checks[i]
		endpoint := check.Endpoint{
			URL: o.URL, Timeout: o.Timeout.Duration, Connections: checkWorkers,
			CAFile: o.CAFile, TokenFile: o.TokenFile, CertFile: o.CertFile, KeyFile: o.KeyFile,
		}
		if endpoint.Timeout == 0 {
			endpoint.Timeout = DefaultCheckTimeout
		}
		if o.CABundle != "" {
			endpoint.CABundle = []byte(o.CABundle)
		}
		c.of[o.Name] = &checkQueue{name: o.Name, client: check.NewClient(endpoint)}
	}
	return c
}

// register makes the checks known to a controller, and begins their counts. With the
// first controller comes what asks.
func (c *checks) register(mgr extension.Manager, r *requests) error {
	for name, q := range c.of {
		if err := q.client.Ready(); err != nil {
			return fmt.Errorf("access: check %s: %w", name, err)
		}
		for _, result := range append([]string{resultAllowed, resultDenied}, check.Failures...) {
			checksTotal.WithLabelValues(name, result)
		}
		checkSeconds.WithLabelValues(name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[r.kind.name] = r
	if len(c.of) == 0 || len(c.kinds) > 1 {
		return nil
	}
	return mgr.GetKubeManager().Add(c)
}

// NeedLeaderElection is true: only who grants asks.
func (*checks) NeedLeaderElection() bool { return true }

// Start asks until ctx ends.
func (c *checks) Start(ctx context.Context) error {
	var group sync.WaitGroup
	c.mu.Lock()
	for _, q := range c.of {
		q.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[question](checkBackoff, maxCheckBackoff))
		for range checkWorkers {
			group.Go(func() { c.work(ctx, q) })
		}
	}
	c.mu.Unlock()
	<-ctx.Done()
	for _, q := range c.of {
		q.queue.ShutDown()
	}
	group.Wait()
	for _, q := range c.of {
		q.client.Close()
	}
	return nil
}

// ask has a check asked about a request, unless it is asked already. Before Start nobody
// is asked: the request comes back.
func (c *checks) ask(name string, about question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.of[name]
	if _, asked := c.open[about]; asked || q == nil || q.queue == nil {
		return
	}
	c.open[about] = ""
	q.queue.Add(about)
}

// trouble returns why a check has not answered yet, "" if it has not failed.
func (c *checks) trouble(about question) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[about]
}

func (c *checks) work(ctx context.Context, q *checkQueue) {
	for {
		about, over := q.queue.Get()
		if over {
			return
		}
		c.mu.Lock()
		r := c.kinds[about.kind]
		c.mu.Unlock()
		trouble, err := c.settle(ctx, q, r, about)
		if err != nil && ctx.Err() == nil {
			r.log.Warn("a check has not answered", zap.String("check", q.name), zap.String("kind", r.kind.request), zap.Stringer("request", about.key), zap.Error(err))
		}
		c.mu.Lock()
		news := c.open[about] != trouble
		if err == nil {
			delete(c.open, about)
			q.queue.Forget(about)
		} else {
			c.open[about] = trouble
			q.queue.AddRateLimited(about)
		}
		c.mu.Unlock()
		q.queue.Done(about)
		if news || err == nil {
			r.wake(ctx, about.key)
		}
	}
}

// settle asks a check about a request, and writes the answer into its status. The error is
// why it must be asked again, and trouble what the request says of it. No error means that
// there is an answer, or nothing to ask any more.
func (c *checks) settle(ctx context.Context, q *checkQueue, r *requests, about question) (trouble string, err error) {
	const unwritten = "its answer cannot be recorded"
	reading, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	req, err := r.asked(reading, about)
	if err != nil || req == nil {
		return unwritten, err
	}
	began := c.options.Clock.Now()
	answer, err := q.client.Ask(ctx, r.questionAbout(req, q.name))
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	checkSeconds.WithLabelValues(q.name).Observe(c.options.Clock.Since(began).Seconds())
	if failed, ok := errors.AsType[*check.Failure](err); ok {
		checksTotal.WithLabelValues(q.name, failed.Reason).Inc()
		return failed.Error(), err
	}
	result := &v1alpha1.CheckResult{Name: q.name, Decision: answer.Decision, Message: answer.Message, Time: metav1.Time{Time: c.options.Clock.Now()}}
	if most := answer.MaxDurationSeconds; most != nil && answer.Decision == v1alpha1.CheckAllow {
		result.MaxDurationSeconds = *most
	}
	counted := resultAllowed
	if answer.Decision == v1alpha1.CheckDeny {
		counted = resultDenied
	}
	checksTotal.WithLabelValues(q.name, counted).Inc()
	if err = r.writeCheck(ctx, about, req, result); errors.Is(err, errChanged) {
		return "", err
	}
	return unwritten, err
}

// errChanged means that the answer is about a request that has changed since.
var errChanged = errors.New("the request has changed since the check was asked")

// writeCheck writes an answer into the request that it is about. Others may write the
// status at the same time, which changes nothing; another duration would.
func (r *requests) writeCheck(ctx context.Context, about question, asked v1alpha1.Request, result *v1alpha1.CheckResult) error {
	writing, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		req, err := r.asked(writing, about)
		switch {
		case err != nil || req == nil:
			return err
		case req.GetGeneration() != asked.GetGeneration():
			return errChanged
		}
		s := &state{RequestStatus: *req.GetRequestStatus().DeepCopy()}
		s.Check = result
		return client.IgnoreNotFound(r.patchStatus(writing, req, s))
	})
}

// asked returns a request as the API server has it, nil if it waits for no check: it is
// gone, over, not approved, or has its answer. The cache could be behind, and a check is
// asked no more about what is on record.
func (r *requests) asked(ctx context.Context, about question) (v1alpha1.Request, error) {
	req, err := get(ctx, r.live, about.key, r.kind.newRequest())
	if err != nil || req == nil || req.GetUID() != about.uid || !req.GetDeletionTimestamp().IsZero() {
		return nil, err
	}
	_, waits := v1alpha1.BeginOf(req)
	if waits || req.GetRequestStatus().Check != nil || v1alpha1.Over(req, r.options.Clock.Now()) {
		return nil, nil
	}
	return req, nil
}

// questionAbout returns what a check is asked about a request.
func (r *requests) questionAbout(req v1alpha1.Request, name string) check.Question {
	spec := req.GetRequestSpec()
	begin, _ := v1alpha1.BeginOf(req)
	end, _ := v1alpha1.EndOf(req) // one that is invalid is not asked about
	q := check.Question{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: r.kind.request, Namespace: req.GetNamespace(), Name: req.GetName(), UID: string(req.GetUID()), Check: name,
		OnBehalfOf: spec.OnBehalfOf, Reason: spec.Reason, Template: spec.TemplateName, TargetPod: req.GetTargetPod(),
		DurationSeconds: int64(end.Sub(begin).Seconds()), From: begin.UTC(), Until: end.UTC(),
	}
	if spec.Requester != nil {
		q.Requester = *spec.Requester
	}
	if req.GetRequestStatus().ApprovedAt != nil {
		for i := range req.GetRequestStatus().Verdicts {
			q.ApprovedBy = append(q.ApprovedBy, req.GetRequestStatus().Verdicts[i].Username)
		}
	}
	return q
}

// wake has a request looked at.
func (r *requests) wake(ctx context.Context, key types.NamespacedName) {
	req := r.kind.newRequest()
	req.SetNamespace(key.Namespace)
	req.SetName(key.Name)
	select {
	case r.woken <- event.GenericEvent{Object: req}:
	case <-ctx.Done():
	}
}

func (f *facts) question() question {
	return question{kind: f.kind.name, key: f.key, uid: f.request.GetUID()}
}

// readCheck reads how it stands with the check that the template names.
func (r *requests) readCheck(f *facts) {
	if name := f.template.GetAccessConfig().Check; name != "" {
		f.noCheck, f.trouble = r.noCheck(name), r.checks.trouble(f.question())
	}
}

// checkIsMissing reports whether the template names a check, and the request was neither
// granted nor checked: the template did not name it when something was chosen for it.
func (f *facts) checkIsMissing() bool {
	status := f.request.GetRequestStatus()
	return f.template != nil && f.template.GetAccessConfig().Check != "" && status.Check == nil && status.GrantedAt == nil
}

// unchecked refuses a request that its check has not allowed.
func (f *facts) unchecked() *refusal {
	name, result := f.template.GetAccessConfig().Check, f.request.GetRequestStatus().Check
	var refused *refusal
	switch {
	case name == "":
		return nil
	case f.noCheck != nil:
		refused = refuse(v1alpha1.ReasonCheckFailed, "%s", f.noCheck.message)
	case result == nil && f.trouble != "":
		refused = refuse(v1alpha1.ReasonCheckFailed, "waiting for the check %s: %s; it is asked again", name, f.trouble)
		refused.check = name
	case result == nil:
		refused = refuse(v1alpha1.ReasonWaiting, "waiting for the check %s", name)
		refused.check, refused.quiet = name, true
	case result.Name != name:
		refused = refuse(v1alpha1.ReasonCheckReplaced, "the request was allowed by the check %s, and its template now names %s; make another request", result.Name, name)
	default:
		return nil
	}
	return refused.about(v1alpha1.ConditionChecked)
}

// refusedByCheck ends a request that its check denies, nil for any other. A check that
// is asked another time could say something else, and so it is asked once.
func (f *facts) refusedByCheck(now time.Time) *decision {
	result := f.request.GetRequestStatus().Check
	if result == nil || result.Decision != v1alpha1.CheckDeny {
		return nil
	}
	d := decision{dead: true, status: newState(f.request, f.end)}
	d.status.RevokedAt = &metav1.Time{Time: now}
	message := fmt.Sprintf("denied by the check %s: %s", result.Name, said(result.Message))
	d.status.nothing(v1alpha1.ReasonDenied, message)
	d.status.ExpiresAt = nil
	d.status.set(v1alpha1.ConditionChecked, false, v1alpha1.ReasonDenied, message)
	d.status.set(v1alpha1.ConditionAccessStillValid, false, v1alpha1.ReasonDenied, message)
	return &d
}

// neverChecked says that a request has ended whose check has not allowed it.
func (f *facts) neverChecked(s *state) {
	status := f.request.GetRequestStatus()
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionChecked)
	switch {
	case status.Check != nil && status.Check.Decision == v1alpha1.CheckDeny:
		s.ExpiresAt = nil
	case status.Check == nil && chosenIn(status) == choice{} && c != nil && !f.wasRevoked():
		s.ExpiresAt = nil
		message := "its check has not answered until " + f.end.UTC().Format(time.RFC3339) + "; make another request"
		s.nothing(v1alpha1.ReasonTimedOut, message)
		s.set(v1alpha1.ConditionChecked, false, v1alpha1.ReasonTimedOut, message)
		s.set(v1alpha1.ConditionAccessStillValid, false, v1alpha1.ReasonTimedOut, message)
	}
}

// checked says what the check has allowed.
func (s *state) checked(result *v1alpha1.CheckResult) {
	if result == nil {
		return
	}
	s.set(v1alpha1.ConditionChecked, true, "Allowed", allowance(result))
}

func allowance(result *v1alpha1.CheckResult) string {
	message := "allowed by the check " + result.Name
	if most := result.MaxDurationSeconds; most > 0 {
		message += ", for at most " + (time.Duration(min(most, int64(maxSeconds))) * time.Second).String()
	}
	if result.Message != "" {
		message += ": " + result.Message
	}
	return message
}

// maxSeconds is as many as a duration holds.
const maxSeconds = 9_000_000_000

func said(message string) string { return cmp.Or(message, "no reason given") }
