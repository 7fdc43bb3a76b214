//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// attack is what a user does against the recorder of a session of their own, with the
// recorder's UID. One that changes the Pod, or has it evicted, has a Pod of its own.
type attack struct {
	// script is what they run on a terminal. $PPID is the recorder.
	script string
	change func(*corev1.PodSpec)
	// notes are the kinds that must be on record, evicted says that the Pod goes, and sealed
	// that the recorder has ended the recording: else the collector does when the Pod has gone.
	notes   []string
	evicted bool
	sealed  bool
	// has is what a recording must have, and left what the Pod must have running before it is
	// evicted, which the attack gains.
	has  string
	left string
	// killed and leftOver are the least processes that the seal says were killed, and left.
	killed, leftOver int
	// brief says that the short form tries it, too.
	brief bool
	// maySilence says that the attack may also be on record as silence.
	maySilence bool
}

// The scripts print GAINED where they get what they should not, which no client may see.
func attacks() map[string]*attack {
	limited := func(name corev1.ResourceName, value string) func(*corev1.PodSpec) {
		return func(spec *corev1.PodSpec) {
			spec.Containers[0].Resources.Limits = corev1.ResourceList{name: resource.MustParse(value)}
		}
	}
	return map[string]*attack{
		"it kills the recorder": {
			script: "setsid sleep 7777 >/dev/null 2>&1 & echo ready; sleep 1; kill -KILL $PPID",
			notes:  []string{collector.Gone}, evicted: true, left: "sleep 7777", brief: true,
		},
		"it crashes the recorder": {
			script: "echo ready; sleep 1; kill -SEGV $PPID; sleep 600",
			notes:  []string{collector.Gone}, evicted: true,
		},
		"it stops the recorder and opens its terminal": {
			script: "echo ready; sleep 1; kill -STOP $PPID; for p in /dev/pts/[0-9]*; do (echo GAINED $p >$p); done; exec sh </dev/pts/0 >/dev/pts/0; sleep 600",
			notes:  []string{collector.Silent}, evicted: true, brief: true,
		},
		"it stops the recorder as its terminal does": {script: "kill -TTIN $PPID; kill -TTOU $PPID; sleep 1; echo over", sealed: true, has: "over"},
		"it traces the recorder":                     {script: "/work/intruder touch $PPID; echo over", sealed: true, has: "to read its memory: refused", brief: true},
		"it opens terminals":                         {script: "/work/intruder terminals; echo over", sealed: true, has: "to open /dev/pts/0: refused: open /dev/pts/0: device or resource busy", brief: true, change: func(*corev1.PodSpec) {}},
		"it starves the recorder":                    {script: "renice 19 $PPID; for i in 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0; do (while :; do :; done) & done; sleep 20; echo over", change: limited(corev1.ResourceCPU, "100m"), sealed: true, maySilence: true, has: "over"},
		"it takes all the memory":                    {script: "tail /dev/zero; echo over", change: limited(corev1.ResourceMemory, "64Mi"), sealed: true, has: "over"},
		"it leaves processes behind": {
			script: "setsid sleep 7777 & nohup sleep 7777 >/dev/null 2>&1 & (setsid sh -c 'setsid sleep 7777 & sleep 7777' &) ; (trap '' HUP TERM INT; sleep 7777 &) ; sleep 1; echo over",
			sealed: true, has: "over", killed: 4, brief: true,
		},
		"it runs from process to process": {script: "/work/intruder chain 15s; sleep 1; echo over", sealed: true, has: "over", killed: 1},
		"it takes open files from the recorder": {
			script: "setsid sleep 7777 >/dev/null 2>&1 & echo ready; /work/intruder limit $PPID; sleep 1; echo over", sealed: true, has: "over",
			notes: []string{collector.Left}, leftOver: 1, evicted: true,
		},
		"it changes the recorder's program": {
			script: "for f in /.admitkit/recorder /.admitkit/x /.admitkit-token/x; do echo GAINED >$f && cat $f; done; rm -f /.admitkit/recorder; mv /.admitkit /work/x; mount -t tmpfs x /.admitkit && echo GAINED; " +
				"unshare -Urm true && echo GAINED; ln -sf /bin/true /.admitkit/recorder && echo GAINED; echo over",
			sealed: true, has: "Read-only file system",
		},
		"its Pod has variables for it": {script: "echo $LD_PRELOAD; ls /work", sealed: true, has: "/work/evil.so"},
	}
}

// variables are those of a Pod that could change what programs do.
func variables(spec *corev1.PodSpec) {
	for name, value := range map[string]string{
		"LD_PRELOAD": "/work/evil.so", "LD_LIBRARY_PATH": "/work", "GODEBUG": "x509usefallbackroots=1", "GOTRACEBACK": "crash", "GOMAXPROCS": "1", "GOGC": "off",
		"SSL_CERT_FILE": "/work/ca.crt", "HTTPS_PROXY": "http://127.0.0.1:1", "TZ": "/work/tz", "SSLKEYLOGFILE": "/work/keys",
	} {
		spec.Containers[0].Env = append(spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: value})
	}
}

// attacked is an attack that is under way.
type attacked struct {
	*attack
	name    string
	pod     *corev1.Pod
	id      string
	client  *kubectlClient
	outcome outcome
	ready   time.Time
}

func (a *attacked) command() []string { return script(a.script) }

// alone reports whether an attack has a Pod of its own.
func (a *attacked) alone() bool { return a.change != nil || a.evicted }

// begin begins the session.
func (a *attacked) begin(t *testing.T, by user) {
	t.Helper()
	a.client = by.enter(t, a.pod.Name, a.command()...)
	if a.evicted {
		a.client.expect("ready")
		a.ready = time.Now()
	}
	a.id = sessionOf(t, a.pod, a.command()...)
	if a.left != "" {
		a.goesOn(t)
	}
}

func TestWhatAUserDoesAgainstTheRecorderIsOnRecord(t *testing.T) {
	parallel(t)
	needsRecordings(t)
	mallory := newUserWith(t, "mallory", recorded, mayExec()...)
	var all []*attacked
	for name, each := range attacks() {
		if each.brief || !testing.Short() {
			all = append(all, &attacked{attack: each, name: name})
		}
	}
	slices.SortFunc(all, func(a, b *attacked) int { return strings.Compare(a.name, b.name) })
	shared := makeSessionPod(t, recorded, "attacked", variables)
	for i, a := range all {
		if a.pod = shared; a.alone() {
			a.pod = makeSessionPod(t, recorded, fmt.Sprintf("attacked-%d", i), func(spec *corev1.PodSpec) {
				if a.change != nil {
					a.change(spec)
				}
			})
		}
	}
	awaitReady(t, shared)
	mallory.brings(t, shared)
	// Those with a Pod of their own take their time.
	for _, a := range all {
		if a.alone() {
			awaitReady(t, a.pod)
			if strings.Contains(a.script, "intruder") {
				mallory.brings(t, a.pod)
			}
			a.begin(t, mallory)
		}
	}
	for _, a := range all {
		if !a.alone() {
			a.begin(t, mallory)
			a.outcome = a.client.end()
		}
	}
	unnoticed := 0
	for _, a := range all { // whose recordings are sealed by now, or soon
		if !t.Run(a.name, a.judge) {
			unnoticed++
		}
	}
	testkit.Figure("session.attacks_tried", float64(len(all)), "attacks")
	testkit.Figure("session.attacks_unnoticed", float64(unnoticed), "attacks")
}

// goesOn waits until what the attack has left is all that runs of it.
func (a *attacked) goesOn(t *testing.T) {
	t.Helper()
	testkit.Succeeds(t, time.Minute, a.name+": what is left goes on", func(ctx context.Context) error {
		out, err := command(ctx, adminKubeconfig, "kubectl", "exec", "--namespace", recorded, a.pod.Name, "--", "sh", "-c", `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline; echo; done`)
		if err == nil && (!strings.Contains("\n"+out, "\n"+a.left) || strings.Contains(out, a.script)) {
			err = errors.New(out)
		}
		return err
	})
}

// judge checks what an attack has gained, and what is on record.
func (a *attacked) judge(t *testing.T) {
	if a.alone() {
		a.client.t = t
		a.outcome = a.client.end()
	}
	if bytes.Contains(a.outcome.stdout, []byte("GAINED")) {
		t.Errorf("it gains something: %s", brief(a.outcome.stdout))
	}
	var got *collector.Summary
	err := testkit.Poll(t.Context(), time.Minute, "it is on record", func(ctx context.Context) (err error) {
		if got, err = collector.Summarize(ctx, recordings(), a.id, sessionKey); err != nil {
			return err
		}
		if a.maySilence && kinds(got)[collector.Silent] {
			return nil
		}
		for _, kind := range a.notes {
			if !kinds(got)[kind] {
				return fmt.Errorf("the notes are %+v", got.Notes)
			}
		}
		if a.sealed && got.Seal == nil {
			return fmt.Errorf("it is not sealed: %+v", got.Notes)
		}
		return nil
	})
	if err != nil {
		t.Errorf("%v\nthe client saw %s%s", err, brief(a.outcome.stdout), brief(a.outcome.stderr))
	}
	if a.evicted {
		a.wasEvicted(t)
	}
	if got == nil {
		return
	}
	for _, note := range got.Notes {
		t.Logf("on record %.1f s later: %s: %s", note.At.Sub(a.ready).Seconds(), note.Kind, note.Text)
	}
	if a.sealed && got.Seal != nil {
		a.checkSealed(t, got.Seal)
	}
}

func kinds(of *collector.Summary) map[string]bool {
	all := map[string]bool{}
	for _, note := range of.Notes {
		all[note.Kind] = true
	}
	return all
}

func (a *attacked) wasEvicted(t *testing.T) {
	t.Helper()
	testkit.Succeeds(t, time.Minute, "the Pod is evicted", func(ctx context.Context) error {
		pod, err := clientset.CoreV1().Pods(recorded).Get(ctx, a.pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there: "+string(pod.Status.Phase)), err)
	})
}

// checkSealed checks a recording that is whole: it has what the client saw, and the
// AuditEvent says what was left.
func (a *attacked) checkSealed(t *testing.T, seal *collector.Seal) {
	t.Helper()
	output := recordedOutput(t, a.id)
	if !bytes.Equal(output, a.outcome.stdout) {
		t.Errorf("the recording has %s, the client saw %s", brief(output), brief(a.outcome.stdout))
	}
	if !bytes.Contains(output, []byte(a.has)) {
		t.Errorf("the recording has not %q: %s", a.has, brief(output))
	}
	if seal.End.Killed < a.killed || seal.End.Left < a.leftOver {
		t.Errorf("%d processes were killed, and %d left, want at least %d and %d", seal.End.Killed, seal.End.Left, a.killed, a.leftOver)
	}
	t.Logf("on record: exit code %d, %d killed, %d left", seal.End.Code, seal.End.Killed, seal.End.Left)
	if seal.End.Left == 0 {
		if left := leftProcesses(t, a.pod.Name); left != 0 {
			t.Errorf("%d processes are left, and the seal says none", left)
		}
	}
}

// recordedOutput returns what a session has printed, as it is on record.
func recordedOutput(t *testing.T, id string) []byte {
	t.Helper()
	var output []byte
	if err := recordings().Frames(id, func(f *protocol.Frame) error {
		if f.Type == protocol.Output {
			output = append(output, f.Data...)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return output
}

func TestTicketsTokensAndTheRecordersPathAreOfNoUseToItsUser(t *testing.T) {
	parallel(t)
	needsRecordings(t)
	mallory := newUserWith(t, "mallory", recorded, mayExec()...)
	pod := sessionPod(t, recorded, "replayed", func(*corev1.PodSpec) {})
	run := func(args ...string) (string, error) {
		return mallory.kubectl(t.Context(), append([]string{"exec", "--namespace", recorded, pod.Name, "--"}, args...)...)
	}
	mallory.brings(t, pod)
	others := ticketsOfOthers(t, pod)
	thief := mallory.enter(t, pod.Name, script("/work/intruder replay $PPID "+strings.Join(others, " "))...)
	thief.expect("watching")
	stolen := protocol.NewID()                                     // in the command, so that its recording is found
	for n := 0; n < 50 && !thief.hasPrinted("of the thief"); n++ { // it has to see the command line of a recorder that starts
		_, _ = run("echo", stolen) // it may end it
	}
	got := thief.end()
	out := string(got.stdout)
	t.Log(out)
	if tried := strings.Count(out, "refused: "); got.code != 0 || strings.Contains(out, "GAINED") || tried < len(others)+4 {
		t.Errorf("%d: of %d attempts, some are no refusals:\n%s", got.code, tried, out)
	}
	for _, want := range []string{
		"the ticket of its own recorder: refused: ", "its ticket, without a token: refused: 401", "its ticket, with a byte more: refused: 403",
		"ticket 0 of others: refused: 403", "the token at the API server: refused: 401",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q", want)
		}
	}
	contested := 0
	for _, id := range sessionsOf(t, pod, "echo", stolen) {
		if _, err := sealed(t, id); errors.Is(err, collector.ErrContested) {
			contested++
		} else if err != nil {
			t.Error(err)
		}
	}
	if contested != 1 {
		t.Errorf("of %d sessions the ticket is contested, and it was stolen of one", contested)
	}

	// The recorder, as the user starts it: by exec it is refused, and in a session it refuses.
	for _, path := range []string{"/.admitkit/recorder", "//.admitkit/./recorder", "/proc/self/root/.admitkit/recorder", "/work/../.admitkit/recorder"} {
		if out, err := run(path, "--ticket="+others[0], "--", "id"); err == nil || !strings.Contains(err.Error(), "by nobody else") {
			t.Errorf("%s: %v: %s", path, err, out)
		}
	}
	inside := `/.admitkit/recorder --ticket=` + others[0] + ` -- id; echo code $?; /.admitkit/recorder --ticket=x -- id; echo code $?; cp /.admitkit/recorder /work/session; echo code $?`
	out, err := run("sh", "-c", inside+" 2>&1")
	if err != nil || strings.Contains(out, "uid=") || strings.Count(out, "code 125") != 2 || !strings.Contains(out, "code 1\n") {
		t.Errorf("in a session: %v: %s", err, out)
	}
}

// ticketsOfOthers returns tickets that were not given for a Pod, each signed with the key of
// the installation: another Pod's, and one that has expired.
func ticketsOfOthers(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	var texts []string
	for _, change := range []func(*protocol.Ticket){
		func(ticket *protocol.Ticket) { ticket.PodUID = "00000000-0000-4000-8000-000000000000" },
		func(ticket *protocol.Ticket) { ticket.Expires = time.Now().Add(-time.Minute).Unix() },
	} {
		ticket := &protocol.Ticket{
			ID: protocol.NewID(), Namespace: recorded, Pod: pod.Name, PodUID: string(pod.UID), Container: "main", User: "mallory",
			Command: protocol.Sum([]string{"id"}), Expires: time.Now().Add(protocol.Life).Unix(),
			Terms: protocol.Terms{Collectors: []string{"10.0.0.1:8444"}, CA: [][]byte{{1}}, Closed: true, Wait: 10},
		}
		change(ticket)
		text, err := sessionKey.Sign(ticket)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	return texts
}

// A process of another session may be faster than the recorder.
func TestATerminalThatAnotherSessionHasOpenIsNotASessions(t *testing.T) {
	parallel(t)
	needsRecordings(t)
	mallory := newUserWith(t, "mallory", recorded, mayExec()...)
	pod := sessionPod(t, recorded, "grabbed", func(*corev1.PodSpec) {})
	mallory.brings(t, pod)
	grabber := mallory.enter(t, pod.Name, "/work/intruder", "grab", "10m")
	grabber.expect("grabbing")
	faster := 0
	for i := range testkit.Long(20, 5) {
		command := script(fmt.Sprintf("echo ready %d; sleep 1; echo over", i))
		got := mallory.enter(t, pod.Name, command...).end()
		if bytes.Contains(got.stdout, []byte("has this terminal open")) {
			faster++
			if got.code == 137 { // found only once the command ran
				endedBecause(t, sessionOf(t, pod, command...), "", "process ")
			} else if got.code != 125 || bytes.Contains(got.stdout, []byte("ready")) {
				t.Errorf("session %d is refused with %d, and showed %s", i, got.code, brief(got.stdout))
			}
			continue
		}
		// What the intruder prints on the inner terminal is recorded.
		if output := recordedOutput(t, sessionOf(t, pod, command...)); got.code != 0 || !bytes.Equal(output, got.stdout) {
			t.Errorf("session %d ended with %d, and showed %s, of which there is on record %s", i, got.code, brief(got.stdout), brief(output))
		}
	}
	testkit.Figure("session.terminals_grabbed", float64(faster), "terminals") // and refused
	grabber.send("\x03")
	grabber.end()
}

// brings copies the intruder into a Pod. It needs nothing of an image.
func (u user) brings(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := u.kubectl(t.Context(), "cp", "--namespace", recorded, filepath.Join(files, "intruder"), pod.Name+":/work/intruder"); err != nil {
		t.Fatal(err)
	}
}
