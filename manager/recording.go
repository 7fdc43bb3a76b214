package manager

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/internal/recording"
	"github.com/admitkit/admitkit/manager/buildinfo"
)

// DefaultRecordLimitBytes is the default of ServingOptions.RecordLimitBytes.
const DefaultRecordLimitBytes = 1 << 30

// leastRecordLimit is what a useful recording needs: a segment is an eighth of it, and an entry
// must fit into one.
const leastRecordLimit = 1 << 20

// completeRecording checks the options of recordings.
func (s *ServingOptions) completeRecording() error {
	switch {
	case s.Mirror != "" && s.RecordDir != "":
		return errors.New("Serving.Mirror and Serving.RecordDir: set only one of them")
	case s.Mirror != "" && (s.PlainPaths || s.ClientCAFile != ""):
		return errors.New("Serving.Mirror: needs signed paths, and no ClientCAFile: a candidate knows by the path who calls, and a mirror has no certificate of an API server")
	case s.RecordDir == "" && (s.RecordShare != 0 || s.RecordLimitBytes != 0):
		return errors.New("Serving.RecordShare, Serving.RecordLimitBytes: set without Serving.RecordDir, which names the folder")
	case !(s.RecordShare >= 0 && s.RecordShare <= 1): // not a number, too
		return fmt.Errorf("Serving.RecordShare: %v: must be more than 0, and 1 at most", s.RecordShare)
	case s.RecordLimitBytes != 0 && s.RecordLimitBytes < leastRecordLimit:
		return fmt.Errorf("Serving.RecordLimitBytes: %d: must be at least %d", s.RecordLimitBytes, leastRecordLimit)
	}
	if s.Mirror != "" {
		return s.completeMirror()
	}
	if s.RecordDir == "" {
		return nil
	}
	s.RecordShare = cmp.Or(s.RecordShare, 1)
	s.RecordLimitBytes = cmp.Or(s.RecordLimitBytes, DefaultRecordLimitBytes)
	return nil
}

// completeMirror checks the address of the candidate, and adds its port.
func (s *ServingOptions) completeMirror() error {
	host, port, err := net.SplitHostPort(s.Mirror)
	if err != nil {
		host, port = s.Mirror, strconv.Itoa(DefaultServicePort)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 || net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(host)) > 0 {
		return fmt.Errorf("Serving.Mirror: %q: must be a DNS name or an address, and a port if that is not %d", s.Mirror, DefaultServicePort)
	}
	s.Mirror = net.JoinHostPort(host, port)
	return nil
}

// newRecorder returns the recorder of admissions; nil for none.
func (s *serving) newRecorder() (*recording.Recorder, error) {
	if s.options.Serving.Mirror != "" {
		return s.newMirror(), nil
	}
	return s.newFolder()
}

// newMirror returns a recorder that sends to the candidate.
func (s *serving) newMirror() *recording.Recorder {
	o := &s.options
	o.Logger.Infow("admissions are sent to a candidate, which compares", "candidate", o.Serving.Mirror)
	// It has the installation's certificate, and so its name.
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		bundle, err := s.source.Bundle()
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(bundle)
		return (&tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: o.calledAs(), MinVersion: tls.VersionTLS12}}).DialContext(ctx, network, address)
	}
	return recording.NewMirror(recording.MirrorOptions{
		Client: &http.Client{Transport: &http.Transport{DialTLSContext: dial, MaxIdleConns: 1, IdleConnTimeout: time.Minute}},
		URL:    func() string { return "https://" + o.Serving.Mirror + s.paths.Sign(recording.MirrorPath) },
		Build:  buildOf(), Logger: o.Logger.Desugar(),
	})
}

// buildOf says what this process was built from.
func buildOf() string {
	build := buildinfo.Get()
	return strings.TrimSpace(build.Short() + " " + build.Commit)
}

// newFolder returns a recorder that writes into a folder; nil for none.
func (m *Manager) newFolder() (*recording.Recorder, error) {
	o := &m.options.Serving
	if o.RecordDir == "" {
		return nil, nil
	}
	recorder, err := recording.NewRecorder(recording.Options{
		Dir: o.RecordDir, Share: o.RecordShare, LimitBytes: o.RecordLimitBytes,
		Build: buildOf(), Logger: m.options.Logger.Desugar(),
	})
	if err != nil {
		return nil, fmt.Errorf("Serving.RecordDir: %w: name a folder that this process may write to", err)
	}
	m.options.Logger.Infow("admissions are recorded, without the secrets that can be recognized", "folder", o.RecordDir, "share", o.RecordShare, "limitBytes", o.RecordLimitBytes)
	return recorder, nil
}

// record writes recordings until stop is called, which returns when all are written.
func (s *serving) record() (stop func()) {
	if s.recorder == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.recorder.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}
