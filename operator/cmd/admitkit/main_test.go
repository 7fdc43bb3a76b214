package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

func TestTheOperatorRunsTheExtensionsThatAreOn(t *testing.T) {
	for args, want := range map[string]string{
		"":                                       "access: off, audit: on",
		"--access --access-namespaces=apps,shop": "access: on, audit: on",
		"--access --access-namespaces=* --audit=false": "access: on, audit: off",
		"--access --enforce --access-namespaces=*":     "access: on, audit: on",
		"--access":                                                                                      "--access: say in which namespaces access may be granted: --access-namespaces=",
		"--access --access-namespaces=*,apps":                                                           "adding an extension: *access.Access: access options: Namespaces: * stands for all",
		"--access --access-namespaces=apps,kube-system":                                                 `adding an extension: *access.Access: access options: Namespaces: "kube-system"`,
		"--access --access-namespaces=admitkit-system":                                                  `adding an extension: *access.Access: access options: Namespaces: "admitkit-system" is the manager's own namespace`,
		"--access --access-namespaces=Apps":                                                             `adding an extension: *access.Access: access options: Namespaces: "Apps"`,
		"--access --access-namespaces=apps --access-checks=testdata/checks.yaml":                        "access: on, audit: on",
		"--access --access-namespaces=apps --access-notify-url=http://chat":                             `adding an extension: *access.Access: access options: Notifications: URL "http://chat" must be https`,
		"--access --access-namespaces=apps --access-notify-dir=/queue":                                  "--access-notify-dir has no effect without --access-notify-url",
		"--access --access-namespaces=apps --access-notify-url=https://a --access-notify-ca-file=/none": "--access-notify-ca-file: stat /none",
		"--access --access-namespaces=apps --access-warn-before=-1s":                                    "adding an extension: *access.Access: access options: Retention",
		"--access --access-namespaces=apps --access-checks=/none":                                       "--access-checks: open /none",
		"--access --access-namespaces=apps --access-network-policy=auto --cluster-pod-cidrs=10.244.0.0/16,fd00::/48 --access-cilium": "access: on, audit: on",
		"--access --access-namespaces=apps --access-network-policy=maybe":                                                            `adding an extension: *access.Access: access options: Egress: Mode: "maybe": must be on, off or auto`,
		"--access --access-namespaces=apps --access-network-policy=on --cluster-pod-cidrs=10.0.0.1/8":                                `adding an extension: *access.Access: access options: Egress: PodCIDRs: "10.0.0.1/8" is not in its canonical form`,
		"--access --access-namespaces=apps --access-cilium":                                                                          "--access-cilium has no effect without --access-network-policy",
		"--access --access-namespaces=apps --cluster-service-cidrs=10.96.0.0/12":                                                     "--cluster-service-cidrs has no effect without --access-network-policy",
		"--cluster-pod-cidrs=10.244.0.0/16":                                                                                          "--cluster-pod-cidrs has no effect without --access",
		"--access-checks=testdata/checks.yaml":                                                                                       "--access-checks has no effect without --access",
		"--access-namespaces=apps":                                                                                                   "--access-namespaces has no effect without --access",
		"--audit=false":                                                                                                              "--audit=false without --access",
		"--enforce":                                                                                                                  "--enforce needs --access",
		"--audit=false --access --audit-required":                                                                                    "--audit-required has no effect with --audit=false",
		"--audit=false --access --enforce":                                                                                           "--enforce has no effect with --audit=false",
		"--audit=false --access --evict-touched-pods-after=1h":                                                                       "--evict-touched-pods-after has no effect",
	} {
		t.Run(args, func(t *testing.T) {
			o := newOperator()
			if err := o.cmd.ParseFlags(strings.Fields(args)); err != nil {
				t.Fatal(err)
			}
			extensions, err := o.extensions()
			if err != nil {
				if !strings.HasPrefix(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
				return
			}
			if mgr, err := manager.New(manager.Options{WebhookNamespace: "admitkit-system", ServiceName: "admitkit", RESTConfig: &rest.Config{Host: "https://127.0.0.1:1"}}); err != nil {
				t.Fatal(err)
			} else if err := o.addTo(mgr); err != nil {
				if !strings.HasPrefix(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
				return
			}
			got := map[string]string{"*access.Access": "off", "*audit.Audit": "off", "*binding.Binding": "off"}
			for _, e := range extensions {
				got[fmt.Sprintf("%T", e)] = "on"
			}
			if got := fmt.Sprintf("access: %s, audit: %s, binding: %s", got["*access.Access"], got["*audit.Audit"], got["*binding.Binding"]); strings.TrimSuffix(got, ", binding: off") != want {
				t.Errorf("got %s of %T, want %s", got, extensions, want)
			}
		})
	}
}

// Whoever runs the operator does not know the options of the library.
func TestErrorsNameFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--audit-otlp-endpoint=http://c:4318":                                                                                             `--audit-otlp-endpoint "http://c:4318" must be https, or http on this machine; set --audit-otlp-insecure to send`,
		"--audit-otlp-endpoint=https://c/?a=b":                                                                                            "put a credential into --audit-otlp-token-file",
		"--audit-otlp-endpoint=https://c --audit-otlp-cert-file=/x":                                                                       "--audit-otlp-cert-file and --audit-otlp-key-file must be set together",
		"--audit-otlp-endpoint=https://c --audit-otlp-resource==x":                                                                        "sink otlp: --audit-otlp-resource: the attribute",
		"--otlp-traces-endpoint=https://c --otlp-traces-key-file=/x":                                                                      "--otlp-traces-cert-file and --otlp-traces-key-file must be set together",
		"--audit-cloudevents-url=http://c":                                                                                                `sink cloudevents: --audit-cloudevents-url "http://c" must be https`,
		"--audit-cloudevents-url=https://c --audit-cloudevents-cert-file=/dev/null":                                                       "--audit-cloudevents-cert-file and --audit-cloudevents-key-file must be set together",
		"--access --access-namespaces=a --access-notify-url=http://c":                                                                     `Notifications: --access-notify-url "http://c" must be https`,
		"--access --access-namespaces=a --access-warn-before=-1s":                                                                         "access options: --access-retention 24h0m0s, --access-workers 16 and --access-warn-before -1s must not be negative",
		"--access --access-namespaces=Apps":                                                                                               `access options: --access-namespaces: "Apps"`,
		"--access --access-namespaces=a --access-role=x":                                                                                  `access options: --access-role: "x": write NAMESPACE/NAME`,
		"--access --access-namespaces=a --access-cluster-role=*":                                                                          `access options: --access-cluster-role: "*"`,
		"--sessions --sessions-namespaces=a":                                                                                              "--sessions-image: required with --sessions",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-policy=open":                                                    `--sessions-policy: "open": must be Open or Closed`,
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-wait=1500ms":                                                    "session options: --sessions-wait is 1.5s",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-retention=1m":                                                   "session options: --sessions-retention is 1m0s: must be at least 1h",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-idle=-1s":                                                       "session options: --sessions-idle is -1s",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-s3-bucket=b":                                                    "--sessions-s3-bucket has no effect without --sessions-s3-endpoint",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-s3-endpoint=https://s":                                          "for http:// set --sessions-s3-insecure",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-s3-endpoint=s":                                                  "--sessions-s3-bucket: required",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-s3-endpoint=s --sessions-s3-bucket=bbb --sessions-s3-prefix=/a": "--sessions-s3-prefix: ",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-s3-endpoint=s --sessions-s3-bucket=bbb --sessions-dir=/a":       "--sessions-dir has no effect with --sessions-s3-endpoint",
		"--sessions --sessions-selector=!!! --sessions-image=x":                                                                           "--sessions-selector: ",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-port=70000":                                                     "session options: --sessions-port is 70000",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-dir=here":                                                       `--sessions-dir: "here": must be an absolute path`,
		"--sessions --sessions-namespaces=a --sessions-image=x --audit=false --audit-redact=(":                                            `--audit-redact: pattern "("`,
		"--sessions --sessions-namespaces=a --sessions-image=x --audit=false --sessions-api":                                              "--sessions-api needs --audit",
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-api --service-name= --advertise-host=h":                         "session options: --service-name is empty: with --sessions-api, the front proxy",
		"--sessions --sessions-namespaces=* --sessions-image=x":                                                                           `--sessions-namespaces: "*": must be the name of a namespace`,
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-collectors=here":                                                `session options: --sessions-collectors: "here": must be host:port`,
		"--sessions --sessions-namespaces=a --sessions-image=x --sessions-s3-endpoint=s --sessions-s3-bucket=B_":                          `--sessions-s3-bucket: "B_": `,
		"--sessions --sessions-namespaces=a --sessions-image=x --port=9500 --sessions-port=9500":                                          "--sessions-port: 9500 is --port",
		"--sessions-port=8445":         "--sessions-port has no effect without --sessions",
		"--bindable-role=x":            `binding options: --bindable-role: "x": write NAMESPACE/NAME`,
		"--bindable-cluster-wide=*":    `binding options: --bindable-cluster-wide: "*"`,
		"--bindable-cluster-role=view": "binding options: --binding-namespaces: required with --bindable-cluster-role",
	} {
		cmd := newOperator().cmd
		cmd.SetOut(io.Discard)
		cmd.SetArgs(append([]string{"manifests", "--image=x", "--webhook-namespace=admitkit-system"}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) || command.ExitCode(err) != 2 {
			t.Errorf("%s: %d %v, want %s", args, command.ExitCode(err), err, want)
		}
	}
}

func TestManifestsWarnOfFilesThatTheirDeploymentsDoNotMount(t *testing.T) {
	for args, want := range map[string][]string{
		"": nil,
		"--access --access-namespaces=apps --access-checks=testdata/checks.yaml": {"--access-checks=testdata/checks.yaml"},
		"--client-ca=/etc/ca.crt --audit-file=/var/log/a --audit-cloudevents-url=https://c --audit-cloudevents-dir=/queue": {
			"--audit-cloudevents-dir=/queue", "--audit-file=/var/log/a", "--client-ca=/etc/ca.crt",
		},
	} {
		cmd, stderr := newOperator().cmd, &bytes.Buffer{}
		cmd.SetOut(io.Discard)
		cmd.SetErr(stderr)
		cmd.SetArgs(append([]string{"manifests", "--image=x", "--webhook-namespace=admitkit-system"}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%s: %v", args, err)
		}
		var text strings.Builder
		for _, flag := range want {
			_, _ = fmt.Fprintf(&text, "warning: %s: the Deployments mount no volume at this path: add one with what is there, such as a Secret or a ConfigMap, for example with a patch of Kustomize\n", flag)
		}
		if stderr.String() != text.String() {
			t.Errorf("%s: got %s, want %s", args, stderr, text.String())
		}
	}
}

// A right or a record depends on each of them.
func TestWhatGuardsAccessStaysInForce(t *testing.T) {
	const everything = "manifests --image=x --replicas=1 --webhook-namespace=admitkit-system --access --access-namespaces=apps --enforce --mark-touched-pods --audit-objects " +
		"--binding-namespaces=apps --bindable-cluster-role=view --sessions --sessions-namespaces=apps --sessions-image=x"
	manifests := func(more string) (string, error) {
		cmd, stdout := newOperator().cmd, &bytes.Buffer{}
		cmd.SetOut(stdout)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(strings.Fields(everything + " " + more))
		err := cmd.ExecuteContext(t.Context())
		return stdout.String(), err
	}
	text, err := manifests("--mode=*=observe")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text, "/validate/"); n < 15 || strings.Contains(text, "path: /observe/") {
		t.Errorf("of %d validating webhooks some are not in force: %s", n, text)
	}
	if _, err := manifests("--mode=audit.gate=warn"); err == nil || !strings.Contains(err.Error(), "audit.gate: it cannot be in Warn: its Scope.Modes are [Enforce]") {
		t.Errorf("got %v", err)
	}
}
