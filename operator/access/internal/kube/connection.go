package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcluster "sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// Settings are what the operator says and more than one part needs.
type Settings struct {
	// Places are where requests are granted, and Roles those that they can get.
	Places rules.Namespaces
	Roles  rules.Roles
	// CheckNames are the names of the checks that templates may name.
	CheckNames []string
	// SingleUse says that something limits requests with singleUse to one session.
	SingleUse bool
	// Sessions says why sessions in a Pod cannot be ended, "" if they can; nil if they can in
	// none.
	Sessions interface {
		CannotEnd(ctx context.Context, reader client.Reader, pod *corev1.Pod) (why string, err error)
	}
	// Egress says how access Pods are held to the egress of their template.
	Egress egress.Options
	Clock  clock.PassiveClock
}

// Connection is what the parts of the extension share: what the operator says, and the
// clients of the API server.
type Connection struct {
	Settings
	once sync.Once
	err  error

	// The following are set by Setup.
	Log *zap.Logger
	// Self knows as whom the reconcilers write.
	Self *controller.Asker
	// Holder holds access Pods to their egress.
	Holder egress.Holder
	Events events.EventRecorder
	// Recorder is nil during an uninstall.
	Recorder extension.Recorder
	// Cached reads what is ours from memory; Live reads everything else, by
	// name, from the API server.
	Cluster ctrlcluster.Cluster
	Cached  client.Reader
	Live    client.Reader
	Writer  client.Client
}

// Setup connects to the cluster, once for all parts.
func (c *Connection) Setup(mgr extension.Manager) error {
	c.once.Do(func() { c.err = c.connect(mgr) })
	return c.err
}

// connect makes a cache that holds templates, requests, and what carries our label.
func (c *Connection) connect(mgr extension.Manager) error {
	scheme, err := controller.Scheme()
	if err != nil {
		return fmt.Errorf("access: %w", err)
	}
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{grant.LabelManagedBy: grant.ManagedBy})}
	pods := ours
	pods.Transform = cluster.TrimPod
	c.Log = mgr.GetLogger().Desugar().Named("access")
	c.Holder = egress.Holder{Options: &c.Egress, Flag: "--access-network-policy"}
	if err := c.Holder.Connect(mgr, c.Log); err != nil {
		return fmt.Errorf("access: %w", err)
	}
	held := c.Holder.Cache(ours)
	held[&corev1.Pod{}], held[&rbacv1.Role{}], held[&rbacv1.RoleBinding{}] = pods, ours, ours
	c.Cluster, err = cluster.New(mgr, cluster.Options{Name: "access", Scheme: scheme, Namespaces: c.Places.Each(), ByObject: held})
	if err != nil {
		return err
	}
	c.Recorder = mgr.GetRecorder()
	c.Events = mgr.GetKubeManager().GetEventRecorder("admitkit-access")
	c.Cached, c.Live, c.Writer = c.Cluster.GetCache(), c.Cluster.GetAPIReader(), c.Cluster.GetClient()
	c.Self = controller.NewAsker(mgr, c.Writer)
	c.Holder.Use(c.Live, c.Writer, c.Clock)
	if err := Index(mgr.GetContext(), c.Cluster.GetFieldIndexer()); err != nil {
		return fmt.Errorf("access: %w", err)
	}
	return nil
}

// Uncached returns a connection with the same settings and without a cache, which nobody
// would start, for an uninstall.
func (c *Connection) Uncached(mgr extension.Manager) (*Connection, error) {
	scheme, err := controller.Scheme()
	if err != nil {
		return nil, err
	}
	live, err := cluster.NewClient(mgr, scheme)
	if err != nil {
		return nil, err
	}
	return &Connection{
		Settings: c.Settings, Log: mgr.GetLogger().Desugar().Named("access"), Holder: egress.Holder{Kinds: c.Egress.Kinds()},
		Cached: live, Live: live, Writer: live,
	}, nil
}

// AttemptTimeout bounds one attempt, so that an API server that does not answer
// holds a worker no longer than that.
const AttemptTimeout = 10 * time.Second
