package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
)

const kwok = "kwok"

// kwokVersion is the release that is downloaded: that of go.mod, which is built otherwise.
const kwokVersion = "v0.8.0"

// kwokSums are the SHA-256 sums of the binaries of that release, which has no file with
// sums. These are the ones that Linux distributions pin, independently of each other. A
// platform that is not here builds kwok.
var kwokSums = map[string]string{
	"darwin/arm64": "69a064ec98d37844d9d742b5b28ff57825659a983ccc3e208daa6948b94d64ba",
	"linux/amd64":  "f5a4385a2ae1b9dd7f8acae18e002a75c0ebba124ae9d7259aa8dadb50711f46",
	"linux/arm64":  "628f7d277860f524a2a775c217adcc58828e7b59ab0933680315784f1b8b0e37",
}

// fetchKwok puts kwok into dir, if its sum is the one that is pinned for this platform.
// If it fails, dir is unchanged.
func (f *fetcher) fetchKwok(ctx context.Context, dir, folder string, sums map[string]string) error {
	want, ok := sums[runtime.GOOS+"/"+runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no checksum of kwok %s is known for %s/%s", kwokVersion, runtime.GOOS, runtime.GOARCH)
	}
	folder = cmp.Or(folder, "https://github.com/kubernetes-sigs/kwok/releases/download/"+kwokVersion)
	url := fmt.Sprintf("%s/kwok-%s-%s", folder, runtime.GOOS, runtime.GOARCH)
	temp, err := os.MkdirTemp(dir, leftover)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	ctx, cancel := context.WithTimeout(ctx, f.limits.archive)
	defer cancel()
	fmt.Printf("controlplane: downloading %s (at most %s)\n", url, f.limits.archive)
	path := filepath.Join(temp, kwok)
	sum, err := download(ctx, url, path)
	if err != nil {
		return err
	}
	if sum != want {
		return fmt.Errorf("%s has the SHA-256 sum %s, not %s", url, sum, want)
	}
	return os.Rename(path, filepath.Join(dir, kwok))
}

// download writes what a URL has to an executable file, and returns its SHA-256 sum.
func download(ctx context.Context, url, path string) (sum string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", url, response.Status)
	}
	hash := sha256.New()
	err = write(path, io.TeeReader(response.Body, hash))
	return hex.EncodeToString(hash.Sum(nil)), err
}
