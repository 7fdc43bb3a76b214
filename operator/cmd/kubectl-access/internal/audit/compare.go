package audit

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// compare holds the API server's own audit log against the records. It lists the acts that
// went through without a record, and the records of acts that the log does not have.
func (q *query) compare(ctx context.Context) error {
	if q.watch || q.decision != "" || q.request != "" {
		return cli.Exitf(cli.CodeUsage, "--compare lists what is missing: it goes with none of --watch, --decision and --request")
	}
	if !q.output.Asked() {
		*q.output.OutputFormat = "wide"
	}
	show, err := q.output.ListPrinter(q.everywhere)
	if err != nil {
		return err
	}
	cl, namespace, err := q.Connect()
	if err != nil {
		return err
	}
	log, err := q.serverLog(namespace)
	if err != nil {
		return err
	}
	recorded, err := q.records(ctx, cl, func(event *v1alpha1.AuditEvent) bool { return q.isMissing(log, event, namespace) })
	if err != nil {
		return q.explained(ctx, err)
	}
	var missing []client.Object
	passed := 0
	for i := range log.acts {
		act := &log.acts[i]
		why := recorded.lack(act)
		if !act.passed() {
			continue
		}
		passed++
		if why != "" {
			missing = append(missing, act.asRecord(why))
		}
	}
	lack := len(missing)
	for i := range recorded.unheard {
		missing = append(missing, &recorded.unheard[i])
	}
	if err := show(missing...); err != nil {
		return err
	}
	return q.compared(lack, passed, len(recorded.unheard), cli.InNamespace(namespace, q.everywhere))
}

// compared says how the two differ.
func (q *query) compared(lack, passed, unheard int, where string) (err error) {
	if unheard > 0 {
		err = cli.Exitf(cli.CodeError, "%d records%s are of acts that the API server's audit log does not have, although it covers their time: somebody has forged them, or the policy of the log leaves these acts out", unheard, where)
	}
	if lack > 0 {
		return errors.Join(cli.Exitf(cli.CodeError, "%d of %d acts%s have no record; those before the retention of the records have none any more: see --since", lack, passed, where), err)
	}
	if err == nil {
		q.Sayf("%d acts%s, and each has a record", passed, where)
	}
	return err
}

// serverAct is an event of the API server's audit log (audit.k8s.io/v1), as far as it
// matters here.
type serverAct struct {
	AuditID          string              `json:"auditID"`
	Verb             string              `json:"verb"`
	RequestURI       string              `json:"requestURI"`
	User             v1alpha1.AuditUser  `json:"user"`
	ImpersonatedUser *v1alpha1.AuditUser `json:"impersonatedUser"`
	ObjectRef        *serverRef          `json:"objectRef"`
	ResponseStatus   *metav1.Status      `json:"responseStatus"`
	Received         metav1.MicroTime    `json:"requestReceivedTimestamp"`
	Annotations      map[string]string   `json:"annotations"`
}

type serverRef struct {
	Resource, Namespace, Name, APIGroup, Subresource string
}

// serverLog is the API server's audit log.
type serverLog struct {
	// acts are those that the query selects, each once, in their order.
	acts []serverAct
	// records are the IDs of records that the log names, and from and to the time it covers.
	records  map[string]bool
	from, to time.Time
}

// serverLog reads the file.
func (q *query) serverLog(namespace string) (*serverLog, error) {
	from := q.In
	if q.file != "-" {
		file, err := os.Open(q.file)
		if err != nil {
			return nil, cli.Exitf(cli.CodeUsage, "--compare: %w", err)
		}
		defer func() { _ = file.Close() }() // it is only read
		from = file
	}
	lines := bufio.NewReader(from)
	seen := map[string]bool{}
	found := &serverLog{records: map[string]bool{}}
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("--compare: %w", err)
		}
		ended := err != nil
		var act serverAct
		err = json.Unmarshal(line, &act)
		if err == nil {
			found.cover(&act)
		}
		switch {
		case err != nil && ended:
			if len(line) > 0 {
				q.Sayf("line %d is not complete yet, and is left out", n)
			}
		case err != nil:
			return nil, cli.Exitf(cli.CodeUsage, "--compare: line %d is not an event of the API server's audit log (its JSON format): %w", n, err)
		// A request has several events. The first with an answer decides.
		case act.ObjectRef != nil && act.ResponseStatus != nil && !seen[act.AuditID] && act.way() != "" && q.selects(&act, namespace):
			seen[act.AuditID] = true
			found.acts = append(found.acts, act)
		}
		if ended {
			break
		}
	}
	slices.SortStableFunc(found.acts, func(a, b serverAct) int { return a.Received.Compare(b.Received.Time) })
	return found, nil
}

// cover notes what the log says about records.
func (l *serverLog) cover(act *serverAct) {
	l.records[act.record()] = true
	at := act.Received.Time
	if l.from.IsZero() || at.Before(l.from) && !at.IsZero() {
		l.from = at
	}
	if at.After(l.to) {
		l.to = at
	}
}

// slack is how far an act and its record are apart: clocks differ, and an act waits for its
// record.
const slack = time.Minute

// isMissing reports whether a record is of a way in that the log covers and does not have.
func (q *query) isMissing(log *serverLog, event *v1alpha1.AuditEvent, namespace string) bool {
	r := &event.Spec.AuditRecord
	ways := []v1alpha1.AuditWay{v1alpha1.WayExec, v1alpha1.WayAttach, v1alpha1.WayPortForward, v1alpha1.WayPodProxy, v1alpha1.WayServiceProxy, v1alpha1.WayNodeProxy}
	return slices.Contains(ways, r.Way) && r.Decision == v1alpha1.AuditAllowed && !event.Spec.Folded && r.Amends == "" && !log.records[r.ID] &&
		(q.everywhere || r.Namespace == namespace) && (q.user == "" || q.user == r.User.Username) && (q.pod == "" || q.pod == r.Pod) && q.Has(r.Time.Time) &&
		r.Time.After(log.from.Add(slack)) && r.Time.Time.Before(log.to.Add(-slack))
}

func (q *query) selects(act *serverAct, namespace string) bool {
	_, pod := act.target()
	at := act.Received.Time
	return (q.everywhere || act.ObjectRef.Namespace == namespace) && (q.user == "" || q.user == act.user().Username) && (q.pod == "" || q.pod == pod) &&
		q.Has(at)
}

// way returns the way in that an event is about, or "". The creation of a Pod is one only
// if admitkit says so: the event need not have the Pod.
func (a *serverAct) way() v1alpha1.AuditWay {
	ref := a.ObjectRef
	if ref.APIGroup != "" || strings.Contains(a.RequestURI, "dryRun=All") {
		return ""
	}
	switch way := v1alpha1.AuditWay(strings.TrimSuffix(ref.Resource+"/"+ref.Subresource, "/")); way {
	case v1alpha1.WayExec, v1alpha1.WayAttach, v1alpha1.WayPortForward, v1alpha1.WayPodProxy, v1alpha1.WayServiceProxy, v1alpha1.WayNodeProxy:
		return way
	case v1alpha1.WayDebug:
		if a.Verb == "update" || a.Verb == "patch" {
			return way
		}
	case v1alpha1.WayPod:
		if a.record() != "" {
			return way
		}
	}
	return ""
}

// user is who acted, to admission.
func (a *serverAct) user() *v1alpha1.AuditUser {
	if a.ImpersonatedUser != nil {
		return a.ImpersonatedUser
	}
	return &a.User
}

// target returns the name within the name of a proxy, which can be scheme:name:port, and
// the Pod if it is one.
func (a *serverAct) target() (name, pod string) {
	name = a.ObjectRef.Name
	if parts := strings.Split(name, ":"); strings.HasSuffix(string(a.way()), "/proxy") && len(parts) > 1 {
		name = parts[len(parts)-2]
		if len(parts) == 3 {
			name = parts[1]
		}
	}
	if a.ObjectRef.Resource == "pods" {
		pod = name
	}
	return name, pod
}

// record is the ID of the record, by which admitkit's webhooks annotate a request.
func (a *serverAct) record() string {
	for key, value := range a.Annotations {
		if strings.HasSuffix(key, ".record") {
			return value
		}
	}
	return ""
}

// passed reports whether an act went through: behind a proxy, the answer that is not a
// success can be that of the Pod.
func (a *serverAct) passed() bool {
	status := a.ResponseStatus
	return status.Code < 400 || strings.HasSuffix(string(a.way()), "/proxy") && status.Status != metav1.StatusFailure
}

// asRecord is the record that is missing.
func (a *serverAct) asRecord(why string) *v1alpha1.AuditEvent {
	name, pod := a.target()
	r := v1alpha1.AuditRecord{
		ID: cmp.Or(a.record(), a.AuditID), Time: a.Received, Way: a.way(), Verb: a.Verb, User: *a.user(), Namespace: a.ObjectRef.Namespace, Pod: pod,
		Decision: v1alpha1.AuditAllowed, Reason: why,
	}
	switch a.ObjectRef.Resource {
	case "services":
		r.Service = name
	case "nodes":
		r.Node = name
	}
	if uri, err := url.ParseRequestURI(a.RequestURI); err == nil {
		r.Container, r.Command, r.Path = uri.Query().Get("container"), uri.Query()["command"], uri.Path
	}
	event := &v1alpha1.AuditEvent{Spec: v1alpha1.AuditEventSpec{AuditRecord: r}}
	event.Name = r.ID
	return event
}

// recorded are the records that there are.
type recorded struct {
	ids   map[string]bool
	folds []fold
	// unheard are of acts that the log does not have.
	unheard []v1alpha1.AuditEvent
}

// fold is a folded AuditEvent: some acts of a user, in a namespace if it has one.
type fold struct {
	user, namespace string
	from, to        time.Time
	left            int64
}

// records reads the AuditEvents, some at a time.
func (q *query) records(ctx context.Context, cl client.Client, unheard func(*v1alpha1.AuditEvent) bool) (*recorded, error) {
	found := &recorded{ids: map[string]bool{}}
	options := &client.ListOptions{Limit: 500}
	for {
		var list v1alpha1.AuditEventList
		if err := cl.List(ctx, &list, options); err != nil {
			return nil, err
		}
		for i := range list.Items {
			found.add(&list.Items[i])
			if unheard(&list.Items[i]) {
				found.unheard = append(found.unheard, list.Items[i])
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

func (k *recorded) add(event *v1alpha1.AuditEvent) {
	k.ids[event.Spec.ID], k.ids[event.Spec.Amends] = true, true
	if !event.Spec.Folded {
		return
	}
	f := fold{user: event.Spec.User.Username, from: event.Spec.Time.Time, to: event.Spec.Time.Time, left: max(event.Status.Count, 1) - 1}
	if event.Labels[auditevent.LabelNamespace] != "" {
		f.namespace = event.Spec.Namespace
	}
	if last := event.Status.LastTime; last != nil {
		f.to = last.Time
	}
	k.folds = append(k.folds, f)
}

// lack says why an act has no record, or nothing if it has one. A fold has as many
// of the user's acts in its time as it counts.
func (k *recorded) lack(a *serverAct) string {
	id := a.record()
	if id == "" {
		for key := range a.Annotations {
			if strings.HasPrefix(key, "failed-open.") {
				return "no webhook of admitkit answered, and the failure policy let it through"
			}
		}
		return "the API server did not ask admitkit"
	}
	if k.ids[id] {
		return ""
	}
	for i := range k.folds {
		f := &k.folds[i]
		if f.left > 0 && f.user == a.user().Username && (f.namespace == "" || a.way() == v1alpha1.WayNodeProxy || f.namespace == a.ObjectRef.Namespace) &&
			a.Received.After(f.from.Add(-slack)) && a.Received.Time.Before(f.to.Add(slack)) {
			f.left--
			return ""
		}
	}
	return "admitkit was asked, and its record is lost, or was deleted"
}
