// Command backup validates custom resources: a Backup (crd.yaml) must name a time
// zone that exists, which no schema and no CEL rule can know, and its source
// cannot change. There is no Go type for the kind, and none is needed.
package main

import (
	"context"
	"time"
	_ "time/tzdata" // what is right must not hang on the image

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

func validate(_ context.Context, backup *unstructured.Unstructured, req *extension.Request) error {
	zone, err := field(backup, "timeZone")
	if err != nil {
		return err
	}
	// "" and Local would be the zone of the reader.
	if _, err := time.LoadLocation(zone); err != nil || zone == "" || zone == "Local" {
		return extension.Denyf("spec.timeZone: %q is not in the IANA time zone database, for example Europe/Berlin", zone)
	}
	if req.Operation != "UPDATE" {
		return nil
	}
	old := &unstructured.Unstructured{}
	if err := req.Old(old); err != nil {
		return err
	}
	before, err := field(old, "source")
	if err != nil {
		return err
	}
	if after, err := field(backup, "source"); err != nil || after != before {
		return extension.Denyf("spec.source: cannot change, it is %q; make another Backup", before)
	}
	return nil
}

func field(backup *unstructured.Unstructured, name string) (string, error) {
	value, _, err := unstructured.NestedString(backup.Object, "spec", name)
	return value, err
}

func main() {
	command.Main(command.New("backup", func(mgr *manager.Manager) error {
		return mgr.AddExtension(extension.ValidatingFunc(validate, extension.Scope{
			Name:  "backup",
			Rules: extension.Resources("example.com", "v1", []string{"backups"}, admissionregistrationv1.Create, admissionregistrationv1.Update),
		}))
	}))
}
