// Package session records what users do in containers by plain kubectl exec.
//
//   - wrapper.Mutate (wrapper.go) puts the recorder, operator/cmd/recorder, before the command of an
//     exec, with a ticket for it;
//   - guard.Validate (guard.go) refuses an exec that is not recorded where it has to be, and
//     other ways into Pods, which cannot be recorded; nodes.Validate (nodes.go) those through
//     kubelets;
//   - wrapper.Unwrap tells other extensions, such as audit, which command the user gave;
//   - injector.Mutate (inject.go) puts the recorder into new Pods, and podGuard.Validate
//     (pod_guard.go) refuses Pods in which something else could take its place; package
//     recorded knows what such a Pod looks like;
//   - receiver (receiver.go) is the port to which recorders connect, in every replica, and
//     report.go says in AuditEvents and Events what became of a session.
//
// operator/docs/sessions.md says what was seen to work, and where.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session/internal/recorded"
)

// Policy says what happens where a session cannot be recorded.
type Policy string

// The policies.
const (
	// Open lets the session go on without being recorded.
	Open Policy = "Open"
	// Closed refuses it, or ends it.
	Closed Policy = "Closed"
)

type (
	// Storage is what keeps recordings in place of a folder.
	Storage = collector.Storage
	// Entry is a file of a session in a [Storage].
	Entry = collector.Entry
	// Part is a part of a recording that is being written to a [Storage].
	Part = collector.Part
	// Folder is the [Storage] of Options.Folder. Its methods Verify and Cast read recordings
	// where admitkit no longer runs.
	Folder = collector.Folder
	// Key verifies recordings: it is what is in Options.KeyFolder.
	Key = protocol.Key
	// Redactor takes secrets out of recordings.
	Redactor = collector.Redactor
)

// ErrConfiguration is wrapped by the error of a storage that cannot be opened because its
// options are invalid. To try again does not help.
var ErrConfiguration = collector.ErrConfiguration

// Options of [New].
type Options struct {
	// NamespaceSelector selects the namespaces in which sessions are recorded. Default: the
	// watched namespaces, or every namespace if there are none.
	NamespaceSelector *metav1.LabelSelector
	// Image is that of the recorder. Required.
	Image string
	// KeyFolder has the key of tickets in the file `key`, and after a rotation the one before
	// in the file `previous`: at least 32 random bytes each. It is where the Secret with the
	// key is mounted. Both are read for each ticket. Required.
	KeyFolder string
	// KeySecret is the Secret that the command `manifests` mounts there. Default:
	// DefaultKeySecret.
	KeySecret string
	// Folder keeps the recordings: an absolute path. With it, or with Storage, every replica
	// of the manager is a collector, on Port, and all replicas must have the same folder.
	// Without both, collectors run elsewhere: see Collectors.
	Folder string
	// Claim is the PersistentVolumeClaim that the command `manifests` mounts there. Default:
	// a volume that ends with the Pod.
	Claim string
	// Storage opens what keeps the recordings in place of Folder, when the manager starts.
	// All replicas must have the same. As long as it fails, it is tried again, and recorders
	// are refused; with an error that wraps [ErrConfiguration] the manager ends.
	Storage func(context.Context) (Storage, error)
	// Location is what AuditEvents write before the session's ID to say where its recording
	// is, such as s3://BUCKET/PREFIX. Required with Storage.
	Location string
	// StorageEnv are variables that the command `manifests` gives to the Pods that serve, such
	// as credentials for Storage from a Secret.
	StorageEnv []corev1.EnvVar
	// Port is that of the collector, in the Pods and in the Service. Default: DefaultPort.
	Port int32
	// ServiceName is the name of the Service in front of the replicas, in the manager's own
	// namespace. Required with Folder or Storage, unless there are Collectors and a ServerName.
	ServiceName string
	// AuditObjects writes into the AuditEvent of each exec where its recording is. The
	// extension audit must make AuditEvents.
	AuditObjects bool
	// Collectors are the addresses of the collectors, host:port. Default with Folder or
	// Storage: those of Service. Required without them.
	Collectors []string
	// ServerName is the name in the collectors' certificates. Default: that of Service, or
	// the host of each collector.
	ServerName string
	// CAFile has the certificates of the authorities that the collectors' certificates are
	// verified against, in PEM. It is read for each ticket. Required without
	// Folder and Storage.
	CAFile string
	// Unrecorded says what happens in containers without the recorder, and to what cannot be
	// recorded: attach, port forwarding, and the proxies of Pods, of Services, and of nodes as
	// far as they may lead into a Pod where sessions are recorded. With Open, an
	// [extension.Recorder] such as audit keeps which session was not recorded, and why.
	// Default: Closed.
	Unrecorded Policy
	// WithoutNodeProxy leaves nodes/proxy out of the webhooks, for platforms that let no
	// webhook match nodes. Who has the right to it can then exec without being recorded.
	WithoutNodeProxy bool
	// NoCollector says what happens to a session while no collector is reached. Default:
	// Closed.
	NoCollector Policy
	// Wait is how long a session waits for a collector: whole seconds, at most an hour.
	// Default: 10 s.
	Wait time.Duration
	// Input records what is typed, too, while the terminal echoes it.
	Input bool
	// Redact takes secrets out of recordings before they are stored, such as
	// extension/redact does it, by whose patterns records are without secrets.
	// Default: nothing is taken out.
	Redact Redactor
	// Max is how long a session may take, and Idle for how long its user may do nothing: whole
	// seconds, at most a year. The recorder ends it then. Default: for ever.
	Max, Idle time.Duration
	// Retention is how long a recording is kept after its last change, whatever the retention
	// of AuditEvents is: at least MinRetention. Default: DefaultRetention.
	Retention time.Duration
	// AccessNamespaces are those in which operator/access grants requests, "*" alone for all.
	// It must be in the same program, and brings the rights to read them.
	// A session that a grant with onExpiry EndSession allows ends with it, and so does one in an
	// access Pod. Default: sessions do not end with grants.
	AccessNamespaces []string
	// API serves the API group sessions.admitkit.dev on Port, by which users list, read,
	// follow, search and end sessions: see package sessionsapi. It needs Folder or Storage,
	// Service, and in the cluster an [APIService]. An extension that is an
	// [extension.Recorder], such as audit, keeps who reads what: without one, nobody does.
	API bool
	// Evict evicts the Pods of recorders that do not do as they should: that are silent, gone
	// without an end, go on after it, or leave processes that they could not end. Default: they are on record, and stay.
	Evict bool
	// Clock tells the time. Default: the API server's.
	Clock clock.PassiveClock
}

// Defaults of [Options].
const (
	DefaultWait      = 10 * time.Second
	DefaultPort      = 8444
	DefaultKeySecret = "admitkit-session-key"
	// DefaultRetention is that of AuditEvents.
	DefaultRetention = 30 * 24 * time.Hour
	// MinRetention is longer than a ticket's life: what was redeemed and is forgotten could be
	// redeemed again.
	MinRetention = time.Hour
	// portName is that of the port in the Pods and in the Service.
	portName = "sessions"
)

// Session is the extension. Make one with [New].
type Session struct {
	options Options
	// watched are the watched namespaces, none for all. Parts sets it.
	watched []string
}

var _ extension.Composite = (*Session)(nil)

// New returns the extension. AddExtension reports invalid options.
func New(options Options) *Session { return &Session{options: options} }

// Parts implements [extension.Composite].
func (s *Session) Parts(mgr extension.Manager) ([]any, error) {
	options, err := s.options.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("session options: %w", err)
	}
	shared := &shared{options: options}
	if mgr != nil {
		shared.namespace, s.watched = mgr.GetWebhookNamespace(), mgr.GetNamespaces()
		shared.watched = s.watched
	}
	w, g, i, k, d := &wrapper{shared}, &guard{shared}, &injector{shared}, &podGuard{shared}, &debugger{shared}
	parts := []any{
		extension.Mutating(w, w.scope()), extension.Validating(g, g.scope()), extension.Mutating(i, i.scope()), extension.Validating(k, k.scope()),
		extension.Mutating(d, d.scope()),
	}
	if !options.WithoutNodeProxy {
		n := &nodes{shared}
		parts = append(parts, extension.Validating(n, n.scope()))
	}
	return parts, nil
}

func (o Options) withDefaults() (Options, error) {
	for field, policy := range map[string]*Policy{"Unrecorded": &o.Unrecorded, "NoCollector": &o.NoCollector} {
		if *policy == "" {
			*policy = Closed
		}
		if *policy != Open && *policy != Closed {
			return o, fmt.Errorf("%s is %q: must be Open or Closed", field, *policy)
		}
	}
	o.Wait, o.Port, o.KeySecret = cmp.Or(o.Wait, DefaultWait), cmp.Or(o.Port, DefaultPort), cmp.Or(o.KeySecret, DefaultKeySecret)
	switch {
	case o.Image == "":
		return o, errors.New("Image is empty: name the image of the recorder")
	case !filepath.IsAbs(o.KeyFolder):
		return o, fmt.Errorf("KeyFolder %q: must be the absolute path of the folder where the Secret with the key is mounted", o.KeyFolder)
	case o.Wait < time.Second || o.Wait > time.Hour || o.Wait%time.Second != 0:
		return o, fmt.Errorf("Wait is %s: must be whole seconds, from 1s to 1h", o.Wait)
	}
	if err := o.checkEnds(); err != nil {
		return o, err
	}
	if err := errors.Join(o.checkStorage(), o.checkAPI(), o.checkCollectors()); err != nil {
		return o, err
	}
	if !o.collects() {
		return o, o.checkForeign()
	}
	o.Retention = cmp.Or(o.Retention, DefaultRetention)
	return o, o.checkOwn()
}

// checkEnds checks when sessions end.
func (o *Options) checkEnds() error {
	const most = protocol.MaxSeconds * time.Second
	for _, limit := range []struct {
		field string
		value time.Duration
	}{{"Max", o.Max}, {"Idle", o.Idle}} {
		if limit.value < 0 || limit.value > most || limit.value%time.Second != 0 {
			return fmt.Errorf("%s is %s: must be whole seconds, at most %s, or 0 for no end", limit.field, limit.value, most)
		}
	}
	return nil
}

// collects reports whether the replicas of the manager are collectors.
func (o *Options) collects() bool { return o.Folder != "" || o.Storage != nil }

// checkStorage checks where recordings are kept.
func (o *Options) checkStorage() error {
	switch {
	case o.Folder != "" && !filepath.IsAbs(o.Folder):
		return fmt.Errorf("Folder %q: must be an absolute path", o.Folder)
	case o.Folder != "" && o.Storage != nil:
		return errors.New("Folder, Storage: both keep the recordings; leave one of them out")
	case o.Storage != nil && o.Location == "":
		return errors.New("Location is empty: say where Storage keeps the recordings, such as s3://BUCKET/PREFIX")
	case o.Storage == nil && (o.Location != "" || len(o.StorageEnv) > 0):
		return errors.New("Location, StorageEnv: have no effect without Storage")
	}
	return nil
}

// checkCollectors checks their addresses: recorders would try a wrong one in vain.
func (o *Options) checkCollectors() error {
	for _, address := range o.Collectors {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return fmt.Errorf("Collectors: %q: must be host:port", address)
		}
		if number, err := strconv.ParseUint(port, 10, 16); host == "" || number == 0 || err != nil {
			return fmt.Errorf("Collectors: %q: must be host:port, with a port from 1 to 65535", address)
		}
	}
	return nil
}

// checkForeign checks the options for collectors that run elsewhere.
func (o *Options) checkForeign() error {
	switch {
	case !filepath.IsAbs(o.CAFile):
		return fmt.Errorf("CAFile %q: must be the absolute path of a file with certificates", o.CAFile)
	case len(o.AccessNamespaces) > 0:
		return errors.New("AccessNamespaces has no effect without Folder or Storage: only collectors end sessions")
	case len(o.Collectors) == 0:
		return errors.New("Collectors is empty: name at least one, as host:port, or collect here: name a Folder, or give a Storage")
	case o.AuditObjects:
		return errors.New("AuditObjects has no effect without Folder or Storage: only collectors know where a recording is")
	case o.Evict:
		return errors.New("Evict has no effect without Folder or Storage: only collectors notice recorders")
	case o.Redact != nil:
		return errors.New("Redact has no effect without Folder or Storage: only collectors take secrets out")
	case o.Retention != 0:
		return errors.New("Retention has no effect without Folder or Storage: only collectors delete recordings")
	}
	return nil
}

// checkOwn checks the options for collectors in the manager.
func (o *Options) checkOwn() error {
	switch {
	case o.CAFile != "":
		return errors.New("CAFile has no effect with Folder or Storage: the manager has its own CA; leave one of them out")
	case o.ServiceName == "" && (len(o.Collectors) == 0 || o.ServerName == ""):
		return errors.New("ServiceName is empty: recorders reach the replicas by the Service in front of them; name it, or give Collectors and ServerName")
	case o.Port < 1 || o.Port > 65535:
		return fmt.Errorf("Port is %d: must be from 1 to 65535", o.Port)
	case o.Retention < MinRetention:
		return fmt.Errorf("Retention is %s: must be at least %s", o.Retention, MinRetention)
	}
	return nil
}

// shared is what the parts have in common.
type shared struct {
	options Options
	once    sync.Once
	failed  error

	mgr       extension.Manager
	namespace string   // the manager's own
	watched   []string // none for all
	instance  string
	log       *zap.Logger
	core      corev1client.CoreV1Interface
	events    eventsv1client.EventsGetter
	client    client.Client
	clock     clock.PassiveClock
	grants    *grants        // nil without AccessNamespaces
	given     *issuedTickets // nil without Folder and Storage
}

// Register implements [extension.Hosted]. Each part calls it.
func (s *shared) Register(mgr extension.Manager) error {
	s.once.Do(func() { s.failed = s.register(mgr) })
	if s.failed != nil {
		return fmt.Errorf("session: %w", s.failed)
	}
	return nil
}

func (s *shared) register(mgr extension.Manager) error {
	s.mgr, s.log = mgr, mgr.GetLogger().Desugar().Named("session")
	if s.clock = s.options.Clock; s.clock == nil {
		s.clock = mgr.GetClock()
	}
	if s.instance, _ = os.Hostname(); s.instance == "" {
		s.instance = "unknown"
	}
	if s.options.WithoutNodeProxy {
		s.log.Warn("nodes/proxy is left out: a session through it, which can be an exec in every container of a node, is neither recorded nor refused; give nobody that right")
	}
	if _, err := s.options.key(); err != nil {
		return err
	}
	config, err := cluster.Unthrottled(mgr)
	if err != nil {
		return err
	}
	if s.core, err = corev1client.NewForConfig(config); err != nil {
		return err
	}
	if s.events, err = eventsv1client.NewForConfig(config); err != nil {
		return err
	}
	if len(s.options.AccessNamespaces) > 0 {
		if s.grants, err = newGrants(s, mgr); err != nil {
			return err
		}
	}
	if !s.options.collects() {
		_, err := s.terms(mgr.GetContext())
		return err
	}
	if s.options.ServerName == "" {
		s.options.ServerName = s.options.ServiceName + "." + mgr.GetWebhookNamespace() + ".svc"
	}
	if s.options.AuditObjects {
		if s.client, err = cluster.NewClient(mgr, scheme); err != nil {
			return err
		}
	}
	return s.collect(mgr, config)
}

// collect makes this replica a collector.
func (s *shared) collect(mgr extension.Manager, config *rest.Config) error {
	storage, err := s.storage()
	if err != nil {
		return err
	}
	reviews, err := authenticationv1client.NewForConfig(config)
	if err != nil {
		return err
	}
	receiver, err := newReceiver(s, mgr, storage, reviews.TokenReviews())
	if err != nil {
		return err
	}
	if receiver.api, err = receiver.newAPI(storage, config); err != nil {
		return err
	}
	return mgr.GetKubeManager().Add(receiver)
}

// storage returns what keeps the recordings. A folder is tried now, and not when the first
// session is to be kept.
func (s *shared) storage() (*lazyStorage, error) {
	o := &s.options
	if o.Storage != nil {
		return &lazyStorage{open: o.Storage, log: s.log}, nil
	}
	probe, err := os.CreateTemp(o.Folder, ".writable-*")
	if err != nil {
		return nil, fmt.Errorf("Folder: recordings cannot be kept there: %w", err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return nil, fmt.Errorf("Folder: %w", err)
	}
	return &lazyStorage{open: func(context.Context) (collector.Storage, error) { return collector.Folder(o.Folder), nil }, log: s.log}, nil
}

// location returns where the recording of a session is.
func (o *Options) location(id string) string {
	if o.Storage != nil {
		return o.Location + id
	}
	return filepath.Join(o.Folder, id)
}

// scheme has AuditEvents.
var scheme = runtime.NewScheme()

func init() { utilruntime.Must(v1alpha1.AddToScheme(scheme)) }

// verify returns the ticket and the command of a wrapped one, if the ticket is for this
// very request. ok is false if the command is not wrapped at all.
func (s *shared) verify(command []string, container string, req *extension.Request) (ticket *protocol.Ticket, given []string, ok bool, err error) {
	if req.SubResource == ephemeral {
		command = recorded.Plainly(command)
	}
	text, given, ok := protocol.Split(command)
	if !ok {
		return nil, nil, false, nil
	}
	key, err := s.options.key()
	if err != nil {
		return nil, nil, true, err
	}
	if ticket, err = key.Verify(text, s.clock.Now()); err == nil {
		err = ticket.Covers(req.Namespace, req.Name, container, req.User().Username, given)
	}
	return ticket, given, true, err
}
