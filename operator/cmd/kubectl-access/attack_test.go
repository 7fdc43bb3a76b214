package main

import (
	"bytes"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// What other users write keeps to its cell: they ask on behalf of whomever they like while
// the template is yet to come.
func TestTextOfOtherUsersForgesNoRow(t *testing.T) {
	var out bytes.Buffer
	c := &cli.Base{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: &out}}
	req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	req.Spec.Requester, req.Spec.OnBehalfOf = &v1alpha1.Requester{Username: "mallory"}, "x\nroot\tforged\u009b2J\a"
	if err := c.Table(cli.Visible(requestColumns, false, false))(req); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "\n") != 2 || strings.ContainsAny(out.String(), "\u009b\a") {
		t.Errorf("this went through: %q", out.String())
	}
}

// A script whose variable is empty must not ask for itself.
func TestAskingForNobodyIsNotAskingForOneself(t *testing.T) {
	t.Parallel()
	kubectlAccess(t, nobody, "exec", "web", "--for", "").expect(t, cli.CodeUsage, "--for: must name a user")
}
