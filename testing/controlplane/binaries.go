package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	assetsVariable = "KUBEBUILDER_ASSETS"
	// builtDir is the link that `make controlplane` sets to the version it built last.
	builtDir = "bin/k8s/current"
)

// findBinaries returns the path of each binary. If dir is empty, it takes each one
// from the first default place that has it, because setup-envtest delivers
// kube-apiserver, etcd and kubectl, but not kube-controller-manager and kwok.
func findBinaries(dir string, names ...string) (map[string]string, error) {
	places := []string{dir}
	if dir == "" {
		var err error
		if places, err = defaultPlaces(); err != nil {
			return nil, err
		}
	}
	found := make(map[string]string, len(names))
	var missing []string
	for _, name := range names {
		for _, place := range places {
			path, err := filepath.Abs(filepath.Join(place, name))
			if err != nil {
				return nil, err
			}
			if executable(path) {
				found[name] = path
				break
			}
		}
		if found[name] == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return found, nil
	}
	return nil, fmt.Errorf("not found: %s\nlooked in:\n\t%s\n"+
		"In admitkit's repository, `make controlplane` builds all of them. Elsewhere, set %s to a folder that has them: "+
		"setup-envtest (sigs.k8s.io/controller-runtime/tools/setup-envtest) downloads kube-apiserver, etcd and kubectl; "+
		"put kube-controller-manager of the same Kubernetes version and kwok beside them",
		strings.Join(missing, ", "), strings.Join(places, "\n\t"), assetsVariable)
}

func defaultPlaces() ([]string, error) {
	var places []string
	if assets := os.Getenv(assetsVariable); assets != "" {
		if err := checkAssets(assets); err != nil {
			return nil, err
		}
		places = append(places, assets)
	}
	folder, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("looking for binaries: %w", err)
	}
	for {
		places = append(places, filepath.Join(folder, builtDir))
		parent := filepath.Dir(folder)
		if parent == folder {
			return places, nil
		}
		folder = parent
	}
}

// checkAssets reports a folder that would be ignored, so that the tests would run on another Kubernetes.
func checkAssets(assets string) error {
	remedy := fmt.Sprintf("name the absolute path of a folder that has binaries of Kubernetes, or unset %s to use %s", assetsVariable, builtDir)
	entries, err := os.ReadDir(assets)
	if err != nil || !filepath.IsAbs(assets) {
		return fmt.Errorf("%s is %q, which is not an absolute path of a folder that exists: %s", assetsVariable, assets, remedy)
	}
	for _, entry := range entries {
		if slices.Contains([]string{"etcd", "kube-apiserver", "kubectl", controllerManager, kwok}, entry.Name()) {
			return nil
		}
	}
	return fmt.Errorf("%s is %q, which holds none of the binaries: %s", assetsVariable, assets, remedy)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
