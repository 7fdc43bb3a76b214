package broker

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/cluster"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

const (
	certifyRetry = time.Second
	// propagation is how long the proxies of runs may take to learn of a new authority: the
	// controller writes it into their Secrets, and the kubelet into their files.
	propagation = 10 * time.Minute
)

// ownCertificate is a certificate of the broker's own: its authority is in a Secret, and published
// in a ConfigMap, both of its namespace.
type ownCertificate struct {
	*certs.Authority
	log *zap.Logger
}

func newOwnCertificate(b *service, mgr extension.Manager) (*ownCertificate, error) {
	config, err := cluster.Unthrottled(mgr)
	if err != nil {
		return nil, err
	}
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	names := b.options.ServingNames
	if len(names) == 0 {
		service := protocol.ServiceName + "." + b.namespace
		names = []string{service + ".svc", service + ".svc.cluster.local", service}
	}
	return &ownCertificate{certs.NewAuthority(certs.Options{
		Secrets: core.Secrets(b.namespace), Namespace: b.namespace, Name: protocol.CAName, Hosts: names,
		PropagationDelay: propagation, Publish: b.publish, Logger: b.log,
	}), b.log}, nil
}

// start keeps the certificate until ctx ends, and returns when there is one.
func (o *ownCertificate) start(ctx context.Context) {
	for {
		err := o.Check(ctx)
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			o.log.Warn("the certificate of the broker is not ready", zap.Error(err))
		}
		select {
		case <-time.After(certifyRetry):
		case <-ctx.Done():
			return
		}
	}
	go o.Run(ctx, nil)
}

// publish writes the authorities where those who call the broker read them.
func (b *service) publish(ctx context.Context, bundle func(context.Context) ([]byte, error)) (changed bool, err error) {
	config := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: b.namespace, Name: protocol.CAName}
	err = b.live.Get(ctx, key, config)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return false, fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	authorities, err := bundle(ctx)
	if err != nil || !missing && config.Data[protocol.CAKey] == string(authorities) {
		return false, err
	}
	config.Namespace, config.Name, config.Data = key.Namespace, key.Name, map[string]string{protocol.CAKey: string(authorities)}
	if missing {
		err = b.live.Create(ctx, config)
	} else {
		err = b.live.Update(ctx, config)
	}
	if err != nil {
		return false, fmt.Errorf("publishing the authorities of the broker in ConfigMap %s: %w", key, err)
	}
	return true, nil
}
