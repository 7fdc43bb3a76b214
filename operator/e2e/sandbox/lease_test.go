//go:build e2e && linux

package sandbox_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// lending is a Workspace whose repository needs a token, which a policy lends to the proxy of its seed, and one without the
// credential, which names the server by itself.
const lending = `
apiVersion: admitkit.dev/v1alpha1
kind: BrokerPolicy
metadata: {name: lender, namespace: e2e-agents}
spec:
  appliesToWorkspaces: [lent]
  egress: [{host: ` + gitName + `}]
  grants:
    credentials:
    - name: git
      secret: {name: keys, key: git}
      delivery: {proxyInjected: {hosts: [` + gitName + `], basicUser: git}}
---
apiVersion: admitkit.dev/v1alpha1
kind: Workspace
metadata: {name: lent, namespace: e2e-agents}
spec:
  storage: {size: 100Mi}
  seed:
    repos: [{url: "https://` + gitName + `/private.git", path: private, credential: git}]
---
apiVersion: admitkit.dev/v1alpha1
kind: Workspace
metadata: {name: unlent, namespace: e2e-agents}
spec:
  storage: {size: 100Mi}
  seed:
    repos: [{url: "https://` + gitName + `/private.git", path: private}]
    egress: {hosts: [{host: ` + gitName + `}]}
`

// lends has a run in a Workspace whose seed had a credential by its proxy, which is nowhere but in the policy's Secret, and never was.
func (i *installation) lends(t *testing.T) {
	folder := i.makeVolume(t, "lent")
	i.makeVolume(t, "unlent")
	places := watchPlaces(t)
	i.apply(t, lending)
	lent := workspaceIn(t, "lent", v1alpha1.WorkspaceActive)
	if e := lent.Status.Egress; lent.Status.Interception != v1alpha1.InterceptionTransparent || e.Broker == nil {
		t.Errorf("the seed has no proxy: %+v", lent.Status)
	}
	const secret = "workspace-lent-proxy"
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: agents, Name: secret}, &corev1.Secret{}); !apierrors.IsNotFound(err) {
		t.Errorf("the seed has ended, and its Secret is there: %v", err)
	}
	for _, action := range []string{"issued", "revoked"} {
		awaitRecord(t, "lent", action, "credential git of provider Secret")
	}
	testkit.Succeeds(t, patience, "no lease of the Workspace is left", func(ctx context.Context) error {
		var leases v1alpha1.CredentialLeaseList
		if err := admin.List(ctx, &leases, client.InNamespace(brokers)); err != nil {
			return err
		}
		for _, lease := range leases.Items {
			if lease.Spec.Run.Kind == v1alpha1.LeaseOfWorkspace {
				return fmt.Errorf("there is %s: %+v", lease.Name, lease.Status)
			}
		}
		return nil
	})
	unlent := workspaceIn(t, "unlent", v1alpha1.WorkspaceFailed)
	if c := meta.FindStatusCondition(unlent.Status.Conditions, v1alpha1.ConditionSeeded); c == nil || !strings.Contains(c.Message, "authentication required") {
		t.Errorf("the server gives the repository to anybody: %+v", c)
	}
	i.apply(t, i.template("private", "work", map[string]string{"FILES": "private/file"})+runOf("three", "private", "lent"))
	if run := ended(t, "three"); run.Status.Phase != v1alpha1.SandboxSucceeded || !strings.Contains(run.Status.Output, "private/file=this is private") {
		t.Errorf("run three is %s, and its output %q", run.Status.Phase, run.Status.Output)
	}
	if got, want := places.end(t), []string{"Secret " + agents + "/keys"}; !slices.Equal(got, want) {
		t.Errorf("these objects had the credential at some time: %q, want %q", got, want)
	}
	i.nowhere(t, folder)
}

// workspaceIn waits until a Workspace has a phase.
func workspaceIn(t *testing.T, name string, phase v1alpha1.WorkspacePhase) *v1alpha1.Workspace {
	t.Helper()
	ws := &v1alpha1.Workspace{}
	testkit.Succeeds(t, patience, fmt.Sprintf("Workspace %s is %s", name, phase), func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKey{Namespace: agents, Name: name}, ws); err != nil {
			return err
		}
		if ws.Status.Phase != phase {
			return fmt.Errorf("it is %s: %+v", ws.Status.Phase, ws.Status.Conditions)
		}
		return nil
	})
	return ws
}

// nowhere looks for the credential in what a seed leaves: its files, the logs of the node and of its Pods, and the URLs that the
// server was asked for. Each must have what it is known to have, so that it is the right place to look at.
func (i *installation) nowhere(t *testing.T, volume string) {
	t.Helper()
	url := "https://" + gitName + "/private.git"
	for place, has := range map[string]string{
		volume:                            url, // .git/config
		filepath.Join(clusterDir, "logs"): "repos[0]: " + url + " is at ",
		filepath.Join(i.folder, asked):    `"git" asks for /private.git/info/refs?service=git-upload-pack`,
	} {
		found := false
		err := filepath.WalkDir(place, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return ignoreGone(err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return ignoreGone(err)
			}
			found = found || bytes.Contains(text, []byte(has))
			if shows(text) {
				t.Errorf("%s has the credential", path)
			}
			return nil
		})
		if err != nil || !found {
			t.Errorf("in %s there is no %q: %v", place, has, err)
		}
	}
}

// ignoreGone takes for no error that a log was rotated.
func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// shows reports whether a text has the credential, in a form that it may have on its way.
func shows(text []byte) bool {
	for _, form := range []string{lentToken, base64.StdEncoding.EncodeToString([]byte(lentToken)), base64.StdEncoding.EncodeToString([]byte("git:" + lentToken))} {
		if bytes.Contains(text, []byte(form)) {
			return true
		}
	}
	return false
}

// places are the objects that had the credential at some time.
type places struct {
	watching sync.WaitGroup
	watches  []watch.Interface
	mu       sync.Mutex
	ended    bool
	found    []string
	broken   []string
}

// watchPlaces begins to look at every version of the objects that a seed has to do with.
func watchPlaces(t *testing.T) *places {
	t.Helper()
	p := &places{}
	for _, list := range []client.ObjectList{
		&corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.PodList{}, &batchv1.JobList{}, &eventsv1.EventList{},
		&v1alpha1.WorkspaceList{}, &v1alpha1.SandboxRunList{}, &v1alpha1.BrokerPolicyList{}, &v1alpha1.CredentialLeaseList{}, &v1alpha1.AuditEventList{},
	} {
		w, err := admin.Watch(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		p.watches = append(p.watches, w)
		p.watching.Go(func() {
			for event := range w.ResultChan() {
				p.look(event)
			}
		})
	}
	return p
}

func (p *places) look(event watch.Event) {
	object, is := event.Object.(client.Object)
	text, err := json.Marshal(event.Object)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case event.Type == watch.Error && p.ended: // a watch that is stopped says so
	case event.Type == watch.Error || !is || err != nil:
		p.broken = append(p.broken, fmt.Sprintf("%s: %s: %v", event.Type, text, err))
	case shows(text):
		kinds, _, _ := admin.Scheme().ObjectKinds(object)
		p.found = append(p.found, fmt.Sprintf("%s %s/%s", kinds[0].Kind, object.GetNamespace(), object.GetName()))
	}
}

// end returns the objects, sorted.
func (p *places) end(t *testing.T) []string {
	t.Helper()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	for _, w := range p.watches {
		w.Stop()
	}
	p.watching.Wait()
	for _, what := range p.broken {
		t.Errorf("a watch has not seen all: %s", what)
	}
	slices.Sort(p.found)
	return slices.Compact(p.found)
}
