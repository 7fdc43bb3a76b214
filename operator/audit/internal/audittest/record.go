// Package audittest has what the tests of several audit packages share.
package audittest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spf13/afero"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Record returns the record of an exec.
func Record(id string, at time.Time) *v1alpha1.AuditRecord {
	return &v1alpha1.AuditRecord{
		ID: id, Time: metav1.NewMicroTime(at), Way: v1alpha1.WayExec, Verb: "connect", Namespace: "shop", Pod: "web",
		User: v1alpha1.AuditUser{Username: "alice"}, Command: []string{"ls", "-la"}, Decision: v1alpha1.AuditAllowed,
	}
}

// IDs returns the IDs of the records in a file of JSON Lines. It passes over lines
// that a crash left incomplete.
func IDs(t testing.TB, fs afero.Fs, path string) []string {
	t.Helper()
	text, err := afero.ReadFile(fs, path)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		var r v1alpha1.AuditRecord
		if json.Unmarshal([]byte(line), &r) == nil {
			found = append(found, r.ID)
		}
	}
	return found
}
