package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/tools/setup-envtest/remote"
	"sigs.k8s.io/controller-runtime/tools/setup-envtest/versions"
)

// published are the binaries that envtest publishes for each Kubernetes version.
var published = []string{"etcd", "kube-apiserver", "kubectl"}

// limits bound what a download may take. What exceeds them is built instead.
type limits struct {
	// index is how long the index may take: a machine that does not reach it within
	// that time counts as offline.
	index time.Duration
	// archive is how long a download may take; a build takes about twice as long.
	archive time.Duration
	// The sizes in bytes of the index (150 KB today), an archive (75 to 90 MB) and a
	// binary in it (up to 130 MB).
	indexBytes, archiveBytes, binaryBytes int64
}

var defaultLimits = limits{
	index: 5 * time.Second, archive: 5 * time.Minute,
	indexBytes: 8 << 20, archiveBytes: 400 << 20, binaryBytes: 400 << 20,
}

// fetcher takes binaries from an archive that envtest publishes. setup-envtest's
// client finds it in the index and compares its checksum with the index's.
type fetcher struct {
	client *remote.HTTPClient
	limits limits
}

// newFetcher returns a fetcher for an index; none means envtest's own.
func newFetcher(index string, limits limits) *fetcher {
	if index == "" {
		index = remote.DefaultIndexURL
	}
	// setup-envtest has no client of its own, and so neither a time nor a size limit.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: limits.index}).DialContext
	transport.TLSHandshakeTimeout, transport.ResponseHeaderTimeout = limits.index, limits.index
	http.DefaultClient = &http.Client{Transport: bounded{transport, index, limits.indexBytes, limits.archiveBytes}}
	return &fetcher{client: &remote.HTTPClient{Log: logr.Discard(), IndexURL: index}, limits: limits}
}

// fetch puts the named binaries into dir. The version is the nearest published
// patch of the same minor, which it returns. If it fails, dir is unchanged.
func (f *fetcher) fetch(ctx context.Context, dir, version string, names []string) (string, error) {
	available, err := f.list(ctx)
	if err != nil {
		return "", err
	}
	published, platform, err := nearest(available, version, versions.Platform{OS: runtime.GOOS, Arch: runtime.GOARCH})
	if err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(dir, leftover)
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	fmt.Printf("controlplane: downloading %s (about 80 MB, at most %s)\n", platform.ArchiveName(published), f.limits.archive)
	archive, err := f.download(ctx, temp, published, platform)
	if err != nil {
		return "", err
	}
	if err := unpack(archive, temp, names, f.limits.binaryBytes); err != nil {
		return "", fmt.Errorf("%s: %w", platform.ArchiveName(published), err)
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(temp, name), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return "v" + published.String(), nil
}

func (f *fetcher) list(ctx context.Context) ([]versions.Set, error) {
	ctx, cancel := context.WithTimeout(ctx, f.limits.index)
	defer cancel()
	return f.client.ListVersions(ctx)
}

func (f *fetcher) download(ctx context.Context, dir string, version versions.Concrete, platform versions.PlatformItem) (_ string, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.limits.archive)
	defer cancel()
	file, err := os.Create(filepath.Join(dir, "archive.tar.gz"))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return file.Name(), f.client.GetVersion(ctx, version, platform, file)
}

// nearest returns the published version to take for a pinned one: itself, or the
// newest patch of its minor, which is what a newcomer can have without a build.
func nearest(available []versions.Set, pinned string, platform versions.Platform) (versions.Concrete, versions.PlatformItem, error) {
	spec, err := versions.FromExpr(pinned[1:])
	if err != nil || spec.AsConcrete() == nil {
		return versions.Concrete{}, versions.PlatformItem{}, fmt.Errorf("version %q is not one of Kubernetes", pinned)
	}
	want := *spec.AsConcrete()
	distance := func(c versions.Concrete) int { return max(c.Patch-want.Patch, want.Patch-c.Patch) }
	var best versions.Concrete
	var item versions.PlatformItem
	for _, set := range available { // the newest comes first
		if set.Version.Major != want.Major || set.Version.Minor != want.Minor {
			continue
		}
		i := slices.IndexFunc(set.Platforms, func(p versions.PlatformItem) bool { return p.Platform == platform })
		if i < 0 || (item.Hash != nil && distance(set.Version) >= distance(best)) {
			continue
		}
		best, item = set.Version, set.Platforms[i]
	}
	if item.Hash == nil {
		return best, item, fmt.Errorf("envtest publishes no Kubernetes %d.%d for %s", want.Major, want.Minor, platform)
	}
	return best, item, nil
}

// unpack writes the named files of a .tar.gz to dir.
func unpack(archive, dir string, names []string, limit int64) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	missing := slices.Clone(names)
	for entries := tar.NewReader(unzipped); len(missing) > 0; {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("it does not hold %q", missing)
		}
		if err != nil {
			return err
		}
		i := slices.Index(missing, filepath.Base(entry.Name))
		if i < 0 || entry.Typeflag != tar.TypeReg {
			continue
		}
		if entry.Size > limit {
			return fmt.Errorf("%s has %d bytes, more than %d", entry.Name, entry.Size, limit)
		}
		if err := write(filepath.Join(dir, missing[i]), entries); err != nil {
			return err
		}
		missing = slices.Delete(missing, i, i+1)
	}
	return nil
}

func write(path string, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

// bounded is a transport whose answers end with an error after so many bytes.
type bounded struct {
	http.RoundTripper
	indexURL                 string
	indexBytes, archiveBytes int64
}

func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	limit := b.archiveBytes
	if request.URL.String() == b.indexURL {
		limit = b.indexBytes // it is read into memory
	}
	response.Body = http.MaxBytesReader(nil, response.Body, limit)
	return response, nil
}
