package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/extension/redact"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/session"
)

// sessionFlags are the flags of the session extension.
type sessionFlags struct {
	on         bool
	namespaces []string
	selector   string
	nodeProxy  bool
	options    session.Options
	s3         s3Flags
}

func (s *sessionFlags) part() part {
	return part{
		bind: s.bind, on: func() bool { return s.on }, flags: []string{"sessions-"}, off: "without --sessions",
		options: map[string]string{"session options: ": "sessions"},
		enabled: "sessions.enabled",
		values: map[string]string{
			"sessions": "sessions.enabled", "sessions-namespaces": "sessions.namespaces", "sessions-selector": "sessions.selector",
			"sessions-policy": "sessions.policy", "sessions-unrecorded": "sessions.unrecorded", "sessions-node-proxy": "sessions.nodeProxy",
			"sessions-wait": "sessions.wait", "sessions-input": "sessions.input", "sessions-max": "sessions.max", "sessions-idle": "sessions.idle",
			"sessions-retention": "sessions.retention", "sessions-evict": "sessions.evict", "sessions-port": "sessions.port", "sessions-api": "sessions.api.enabled",
			"sessions-s3-endpoint": "sessions.s3.endpoint", "sessions-s3-insecure": "sessions.s3.insecure", "sessions-s3-bucket": "sessions.s3.bucket",
			"sessions-s3-region": "sessions.s3.region", "sessions-s3-prefix": "sessions.s3.prefix",
		},
	}
}

func (s *sessionFlags) bind(flags *pflag.FlagSet) {
	o := &s.options
	flags.BoolVar(&s.on, "sessions", false, "record what users do by kubectl exec; needs a Secret with a key, and a volume for the recordings")
	flags.StringSliceVar(&s.namespaces, "sessions-namespaces", nil, "namespaces in which sessions are recorded (default: --namespace; this, or --sessions-selector, is required with --sessions if that is empty)")
	flags.StringVar(&s.selector, "sessions-selector", "", "label selector of the namespaces in which sessions are recorded, in place of their names")
	flags.StringVar(&o.Image, "sessions-image", "", "container image of the recorder (required with --sessions)")
	flags.StringVar((*string)(&o.NoCollector), "sessions-policy", string(session.Closed), "what happens to a session while no collector is reached for --sessions-wait: Closed ends it, Open lets it go on without being recorded")
	flags.StringVar((*string)(&o.Unrecorded), "sessions-unrecorded", string(session.Closed), "what happens to attach, port forwarding and proxies, and to exec in containers without the recorder: Closed refuses them, Open lets them through with a warning, and on record as unrecorded")
	flags.BoolVar(&s.nodeProxy, "sessions-node-proxy", true, "look at sessions through nodes/proxy, too; false for platforms that let no webhook match nodes")
	flags.DurationVar(&o.Wait, "sessions-wait", session.DefaultWait, "how long a session waits for a collector, in whole seconds")
	flags.BoolVar(&o.Input, "sessions-input", false, "record what is typed, too, while the terminal echoes it")
	flags.DurationVar(&o.Max, "sessions-max", 0, "how long a session may take, in whole seconds; 0 for ever")
	flags.DurationVar(&o.Idle, "sessions-idle", 0, "for how long the user of a session may do nothing before it ends, in whole seconds; 0 for ever")
	flags.DurationVar(&o.Retention, "sessions-retention", session.DefaultRetention, "how long a recording is kept after its last change, at least 1h")
	flags.StringVar(&o.KeyFolder, "sessions-key-dir", "/session-key", "folder where the Secret with the key of tickets is mounted")
	flags.StringVar(&o.KeySecret, "sessions-key-secret", session.DefaultKeySecret, "name of that Secret, for the subcommand manifests")
	flags.StringVar(&o.Folder, "sessions-dir", "/sessions", "folder of the recordings, which all replicas share")
	flags.StringVar(&o.Claim, "sessions-claim", "", "PersistentVolumeClaim of that folder, for the subcommand manifests (default: a volume that ends with the Pod)")
	flags.Int32Var(&o.Port, "sessions-port", session.DefaultPort, "port to which recorders connect")
	flags.StringSliceVar(&o.Collectors, "sessions-collectors", nil, "addresses, as HOST:PORT, by which recorders reach that port (default: the cluster IP of --service-name)")
	flags.BoolVar(&o.API, "sessions-api", false, "serve the API group sessions.admitkit.dev on that port, by which kubectl access sessions reads recordings; needs the APIService that the subcommand manifests prints. One installation of a cluster can")
	flags.BoolVar(&o.Evict, "sessions-evict", false, "evict the Pods of recorders that are silent, gone without an end, go on after it, or leave processes")
	s.s3.bind(flags)
	flags.StringVar(&o.ServerName, "sessions-server-name", "", "name in the certificate of that port (default: that of --service-name)")
}

// extension returns the extension.
func (s *sessionFlags) extension(mgr *manager.Manager, auditObjects bool, accessNamespaces, patterns []string) (*session.Session, error) {
	o := s.options
	o.WithoutNodeProxy = !s.nodeProxy
	redactor, err := redact.New(patterns...)
	if err != nil {
		return nil, fmt.Errorf("--audit-redact: %w", err)
	}
	o.Redact = redactor
	o.ServiceName, o.AuditObjects, o.AccessNamespaces = mgr.GetManagerOptions().ServiceName, auditObjects, accessNamespaces
	if o.Image == "" {
		return nil, errors.New("--sessions-image: required with --sessions: name the image of the recorder, such as ghcr.io/admitkit/recorder:VERSION")
	}
	for flag, policy := range map[string]session.Policy{"sessions-policy": o.NoCollector, "sessions-unrecorded": o.Unrecorded} {
		if policy != session.Open && policy != session.Closed {
			return nil, fmt.Errorf("--%s: %q: must be Open or Closed", flag, policy)
		}
	}
	for flag, path := range map[string]string{"sessions-dir": o.Folder, "sessions-key-dir": o.KeyFolder} {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("--%s: %q: must be an absolute path", flag, path)
		}
	}
	if o.Port == mgr.GetManagerOptions().Port {
		return nil, fmt.Errorf("--sessions-port: %d is --port; choose another", o.Port)
	}
	if err := s.s3.apply(&o); err != nil {
		return nil, err
	}
	if o.NamespaceSelector, err = s.where(mgr); err != nil {
		return nil, err
	}
	return session.New(o), nil
}

// checkShared refuses manifests by which each of several Pods would keep recordings of its
// own: a session that another replica goes on with could not be recorded.
func (s *sessionFlags) checkShared(root *cobra.Command) error {
	if !s.on || s.options.Claim != "" || s.s3.options.Endpoint != "" {
		return nil
	}
	for _, cmd := range root.Commands() {
		if cmd.Name() != "manifests" || cmd.CalledAs() == "" {
			continue
		}
		if replicas, err := cmd.Flags().GetInt32("replicas"); err == nil && replicas > 1 {
			return fmt.Errorf("--sessions-claim: required with --replicas=%d, because all Pods must share the recordings: name a PersistentVolumeClaim to which they can write (ReadWriteMany), or a bucket by --sessions-s3-endpoint, or set --replicas=1", replicas)
		}
	}
	return nil
}

// where returns which namespaces have sessions recorded, nil for the watched one.
func (s *sessionFlags) where(mgr *manager.Manager) (*metav1.LabelSelector, error) {
	switch {
	case s.selector != "" && len(s.namespaces) > 0:
		return nil, errors.New("--sessions-selector, --sessions-namespaces: both say where sessions are recorded; leave one of them out")
	case s.selector != "":
		selector, err := metav1.ParseToLabelSelector(s.selector)
		if err != nil {
			return nil, fmt.Errorf("--sessions-selector: %w", err)
		}
		return selector, nil
	case len(s.namespaces) > 0:
		for _, name := range s.namespaces {
			if len(validation.IsDNS1123Label(name)) > 0 {
				return nil, fmt.Errorf("--sessions-namespaces: %q: must be the name of a namespace; --sessions-selector selects several by a label", name)
			}
			if name == mgr.GetWebhookNamespace() {
				return nil, fmt.Errorf("--sessions-namespaces: %s is the manager's own namespace: no Pod of the manager could begin while it does not run", name)
			}
		}
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: s.namespaces,
		}}}, nil
	case len(mgr.GetNamespaces()) == 0:
		return nil, errors.New("--sessions: say where sessions are recorded: --sessions-namespaces=a,b, or --sessions-selector=LABEL=VALUE. Each new Pod there gets the recorder")
	}
	return nil, nil
}
