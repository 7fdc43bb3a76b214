package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/internal/s3gateway"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session"
)

func TestTheOperatorSaysWhereAccessIsNotRecorded(t *testing.T) {
	for args, want := range map[string][]string{
		"--access --access-namespaces=a,b --sessions --sessions-namespaces=b,c": {"a"},
		"--access --access-namespaces=* --sessions --sessions-namespaces=b":     {"*"},
		"--access --access-namespaces=b --sessions --sessions-namespaces=b,c":   nil,
		"--access --access-namespaces=b --sessions --sessions-selector=a=b":     nil,
		"--sessions --sessions-namespaces=b":                                    nil,
	} {
		o := newOperator()
		if err := o.cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if got := o.unrecordedAccess(); !slices.Equal(got, want) {
			t.Errorf("%s: %q", args, got)
		}
	}
}

func TestReplicasThatShareNoRecordingsAreRefused(t *testing.T) {
	const sessions = "--image=x --webhook-namespace=s --sessions --sessions-namespaces=a --sessions-image=x "
	for args, refused := range map[string]bool{
		sessions:                        true,
		sessions + "--replicas=3":       true,
		sessions + "--replicas=1":       false,
		sessions + "--sessions-claim=c": false,
		sessions + "--sessions-s3-endpoint=s --sessions-s3-bucket=bbb": false,
		"--image=x --webhook-namespace=s":                              false,
	} {
		cmd := newOperator().cmd
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append([]string{"manifests"}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); (err != nil) != refused || err != nil && !strings.Contains(err.Error(), "--sessions-claim: required with --replicas=") {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestABucketKeepsTheRecordings(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", s3gateway.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3gateway.SecretKey)
	o := newOperator()
	err := o.cmd.ParseFlags([]string{"--sessions-s3-endpoint=" + s3gateway.Start(t, "../../.."), "--sessions-s3-insecure", "--sessions-s3-bucket=" + s3gateway.Bucket, "--sessions-s3-prefix=a/"})
	if err != nil {
		t.Fatal(err)
	}
	var options session.Options
	if err := o.sessions.s3.apply(&options); err != nil || options.Folder != "" || options.Location != "s3://recordings/a/" {
		t.Fatalf("%+v: %v", options, err)
	}
	storage, err := options.Storage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := protocol.NewID()
	if err := storage.Create(t.Context(), id+"/session.json", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if ids, err := storage.Sessions(t.Context()); err != nil || !slices.Equal(ids, []string{id}) {
		t.Errorf("the bucket has %v: %v", ids, err)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "other")
	if _, err := options.Storage(t.Context()); err == nil || !strings.Contains(err.Error(), "in bucket recordings") {
		t.Errorf("with a key that the service does not know: %v", err)
	}
}
