package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/testing/fakes"
)

func TestAuditFlagsSayWhichSinksThereAreAndWhichAreClosed(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cr3t\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":                                  "log:Open event:Open",
		"--audit-required":                  "log:Closed event:Closed",
		"--audit-objects --audit-log=false": "event:Open auditevent:Open",
		"--audit-file=/x --audit-cloudevents-url=https://x --audit-event=false --audit-closed=file,cloudevents":                   "log:Open file:Closed cloudevents:Closed",
		"--audit-cloudevents-url=https://x --audit-cloudevents-token-file=" + token:                                               "log:Open event:Open cloudevents:Open",
		"--audit-otlp-endpoint=https://x --audit-otlp-dir=/queue --audit-otlp-resource=k8s.cluster.name=prod --audit-closed=otlp": "log:Open event:Open otlp:Closed",
		"--audit-closed=file":                   `error: --audit-closed: the sink "file" is not on`,
		"--audit-log=false --audit-event=false": "error: --audit: every audit sink is off",
		"--audit-cloudevents-url=https://x --audit-cloudevents-token-file=/none": "error: --audit-cloudevents-token-file",
		"--audit-cloudevents-url=https://x --audit-cloudevents-ca-file=/none":    "error: --audit-cloudevents-ca-file",
	} {
		var flags auditFlags
		cmd := &cobra.Command{Use: "admitkit"}
		flags.bind(cmd.Flags())
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		options, err := flags.options(false)
		var got []string
		for _, sink := range options.Sinks {
			got = append(got, sink.Sink.Name()+":"+string(sink.FailurePolicy))
		}
		said := strings.Join(got, " ")
		if err != nil {
			said = "error: " + err.Error()
		}
		if said != want && (err == nil || !strings.HasPrefix(said, want)) {
			t.Errorf("%s: got %s, want %s", args, said, want)
		}
		if err == nil {
			if _, err := audit.New(options).Parts(fakes.NewManager()); err != nil {
				t.Errorf("%s: %v", args, err)
			}
		}
	}
}
