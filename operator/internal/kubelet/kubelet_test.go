package kubelet

import "testing"

func TestWhatIsAskedOfAKubeletIsHarmlessOnlyIfItIsKnown(t *testing.T) {
	for path, want := range map[string]bool{
		"": true, "/": true, "metrics": true, "/metrics/cadvisor": true, "stats/summary": true, "pods/": true, "healthz": true, "logs/kubelet.log": true,
		"containerLogs/shop/web/main": true,
		"exec/shop/web/main":          false, "/exec/shop/web/main": false, "//exec/shop/web/main": false, "EXEC/shop/web/main": false,
		"run/shop/web/main": false, "attach/shop/web/main": false, "portForward/shop/web": false, "checkpoint/shop/web/main": false,
		"metrics/../exec/shop/web/main": false, "metrics/./../exec/shop/web/main": false, "metrics//..//exec/shop/web/main": false,
		"metrics/%2e%2e/exec/shop/web/main": false, "metrics\n/exec": false, "metricsexec": false, "cri/exec/token": false, "unheard-of": false,
		"metrics/..": false, "metrics?x=/exec": false, "exec/shop/web/main/metrics": false,
	} {
		if IsHarmless(path) != want {
			t.Errorf("%q is harmless: %t", path, !want)
		}
	}
}

func TestAPathOfAKubeletNamesTheContainer(t *testing.T) {
	for path, want := range map[string]Session{
		"exec/shop/web/main":            {"shop", "web", "main"},
		"/EXEC//shop/web/uid/main/":     {"shop", "web", "main"},
		"metrics/../attach/shop/web/c":  {"shop", "web", "c"},
		"portForward/shop/web/8080":     {"shop", "web", ""},
		"run/shop":                      {},
		"cri/exec/token":                {},
		"exec/other/../shop/web/main/.": {"shop", "web", "main"},
	} {
		if got, ok := SessionOf(path); !ok || got != want {
			t.Errorf("%q: %+v, %t", path, got, ok)
		}
	}
	for _, path := range []string{"", "metrics", "containerLogs/shop/web/main", "unheard-of/shop/web/main"} {
		if got, ok := SessionOf(path); ok {
			t.Errorf("%q: %+v", path, got)
		}
	}
}
