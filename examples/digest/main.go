// Command digest admits only images that are pinned by digest: a tag can be moved
// to another image, NAME@ALGORITHM:DIGEST cannot. Every algorithm of the OCI image
// specification's grammar will do.
//
// It looks at all places of a Pod that name an image: containers, init
// containers, image volumes, and the ephemeral containers of kubectl debug, which
// come through a subresource.
package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// digest is the grammar of
// https://github.com/opencontainers/image-spec/blob/main/descriptor.md#digests.
// 32 characters are the shortest digest that any algorithm in use has.
var digest = regexp.MustCompile(`^([a-z0-9]+(?:[+._-][a-z0-9]+)*):([a-zA-Z0-9=_-]{32,})$`)

// hexDigits are the lengths of the algorithms that the specification registers.
var hexDigits = map[string]*regexp.Regexp{
	"sha256": regexp.MustCompile(`^[a-f0-9]{64}$`),
	"sha384": regexp.MustCompile(`^[a-f0-9]{96}$`),
	"sha512": regexp.MustCompile(`^[a-f0-9]{128}$`),
	"blake3": regexp.MustCompile(`^[a-f0-9]{64}$`),
}

func pinned(image string) bool {
	name, after, found := strings.Cut(image, "@")
	parts := digest.FindStringSubmatch(after)
	if !found || name == "" || parts == nil {
		return false
	}
	registered, known := hexDigits[parts[1]]
	return !known || registered.MatchString(parts[2])
}

// validate names all images that are not pinned.
func validate(_ context.Context, pod *corev1.Pod, _ *extension.Request) error {
	var problems []string
	check := func(field, image string) {
		if !pinned(image) {
			problems = append(problems, fmt.Sprintf("%s: image %q is not pinned by digest", field, image))
		}
	}
	for i, container := range pod.Spec.InitContainers {
		check(fmt.Sprintf("spec.initContainers[%d]", i), container.Image)
	}
	for i, container := range pod.Spec.Containers {
		check(fmt.Sprintf("spec.containers[%d]", i), container.Image)
	}
	for i, container := range pod.Spec.EphemeralContainers {
		check(fmt.Sprintf("spec.ephemeralContainers[%d]", i), container.Image)
	}
	for i, volume := range pod.Spec.Volumes {
		if volume.Image != nil {
			check(fmt.Sprintf("spec.volumes[%d]", i), volume.Image.Reference)
		}
	}
	if len(problems) > 0 {
		return extension.Deny(strings.Join(problems, "; "))
	}
	return nil
}

func main() {
	command.Main(command.New("digest", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.ValidatingFunc(validate, extension.Scope{
			Name: "digest",
			Rules: append(
				extension.Pods(admissionregistrationv1.Create, admissionregistrationv1.Update),
				extension.Resources("", "v1", []string{"pods/ephemeralcontainers"}, admissionregistrationv1.Update)...,
			),
		}))
	}))
}
