package session

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// key reads the key of tickets.
func (o *Options) key() (protocol.Key, error) {
	current, err := os.ReadFile(filepath.Join(o.KeyFolder, "key"))
	if err != nil {
		return protocol.Key{}, fmt.Errorf("the key of tickets: %w: mount the Secret with the key at %s", err, o.KeyFolder)
	}
	if len(current) < protocol.MinKey {
		return protocol.Key{}, fmt.Errorf("the key of tickets in %s has %d bytes: make one of at least %d random bytes", o.KeyFolder, len(current), protocol.MinKey)
	}
	previous, err := os.ReadFile(filepath.Join(o.KeyFolder, "previous"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return protocol.Key{}, fmt.Errorf("the previous key of tickets: %w", err)
	}
	return protocol.Key{Current: current, Previous: previous}, nil
}

// terms are what tickets say about how sessions are recorded.
func (s *shared) terms(ctx context.Context) (protocol.Terms, error) {
	o := &s.options
	terms := protocol.Terms{
		Collectors: o.Collectors, ServerName: o.ServerName, Closed: o.NoCollector == Closed, Wait: int(o.Wait / time.Second), Input: o.Input,
		Max: int64(o.Max / time.Second), Idle: int64(o.Idle / time.Second),
	}
	content, err := s.authorities()
	if err != nil {
		return terms, fmt.Errorf("the authorities of collectors: %w", err)
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			terms.CA = append(terms.CA, block.Bytes)
		}
	}
	if len(terms.CA) == 0 {
		return terms, errors.New("the authorities of collectors: there is no certificate in PEM")
	}
	if len(terms.Collectors) == 0 {
		terms.Collectors, err = s.ownCollectors(ctx)
	}
	return terms, err
}

// authorities returns the certificates that those of collectors are verified against.
func (s *shared) authorities() ([]byte, error) {
	if s.options.CAFile != "" {
		return os.ReadFile(s.options.CAFile)
	}
	return s.mgr.GetServingCA()
}

// ownCollectors returns the address of the Service in front of this manager. It is no name,
// because not every Pod asks the DNS server of the cluster: those with the network of their
// node ask that of the node.
func (s *shared) ownCollectors(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	service, err := s.core.Services(s.mgr.GetWebhookNamespace()).Get(ctx, s.options.ServiceName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("the Service to which recorders connect: %w", err)
	}
	var all []string
	for _, ip := range service.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone {
			all = append(all, net.JoinHostPort(ip, strconv.Itoa(int(s.options.Port))))
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("Service %s/%s, to which recorders connect, has no cluster IP", service.Namespace, service.Name)
	}
	return all, nil
}
