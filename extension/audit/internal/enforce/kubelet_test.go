package enforce

import (
	"testing"
)

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
		if harmless.MatchString(path) != want {
			t.Errorf("%q is harmless: %t", path, !want)
		}
	}
}
