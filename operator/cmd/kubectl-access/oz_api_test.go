package main

import (
	"strings"
	"testing"
)

func TestManifestsOfOzAreTakenByTheAPIServer(t *testing.T) {
	t.Parallel()
	for _, subjects := range []string{"Requester", "Groups"} {
		out := kubectlAccess(t, nobody, "migrate", "-f", "internal/oz/testdata/oz", "--subjects", subjects).expect(t, 0).stdout
		create := cluster.Kubectl(t.Context(), nil, "create", "--dry-run=server", "--validate=strict", "-o", "yaml", "-f", "-")
		create.Stdin = strings.NewReader(out)
		taken := ran(t, create).expect(t, 0, "subjects: "+subjects)
		if n := strings.Count(taken.stdout, "\nkind: "); n < 5 {
			t.Errorf("%d objects are taken, want 5:\n%s", n, taken.stdout)
		}
	}
}
