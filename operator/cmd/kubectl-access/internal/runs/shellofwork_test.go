package runs

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A template's image need not have bash.
func TestAttachRunsBashWhereTheImageHasItAndElseSh(t *testing.T) {
	for want, shells := range map[string][]string{"sh\n": {"sh"}, "bash\n": {"sh", "bash"}} {
		path := t.TempDir()
		for _, name := range shells {
			if err := os.WriteFile(filepath.Join(path, name), []byte("#!/bin/sh\necho "+name+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), shellOfWork[0], shellOfWork[1:]...)
		cmd.Env = []string{"PATH=" + path}
		if got, err := cmd.CombinedOutput(); err != nil || string(got) != want {
			t.Errorf("with %q it is %q, %v", shells, got, err)
		}
	}
}
