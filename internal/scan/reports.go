package scan

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Reports keeps a Report for each object with a finding. The report belongs to the object,
// so that the garbage collector removes it with that.
type Reports struct {
	source   string
	kind     reportKind
	objects  dynamic.Interface
	metadata metadata.Interface
}

// reportKind is an API of reports. All have the same fields.
type reportKind struct {
	schema.GroupVersion
	// report is the kind for objects in a namespace, and clusterReport that for others.
	report, clusterReport string
}

// reportKinds are the APIs of https://openreports.io and of the working group for policies
// of Kubernetes. The first that is served is used.
var reportKinds = []reportKind{
	{schema.GroupVersion{Group: "openreports.io", Version: "v1alpha1"}, "Report", "ClusterReport"},
	{schema.GroupVersion{Group: "wgpolicyk8s.io", Version: "v1alpha2"}, "PolicyReport", "ClusterPolicyReport"},
}

// isReport reports whether a resource has reports, in whatever version.
func isReport(resource schema.GroupVersionResource) bool {
	return slices.ContainsFunc(reportKinds, func(k reportKind) bool {
		return k.Group == resource.Group && (resource.Resource == resourceOf(k.report) || resource.Resource == resourceOf(k.clusterReport))
	})
}

// resourceOf returns the resource of a kind of reports.
func resourceOf(kind string) string { return strings.ToLower(kind) + "s" }

// The label and the annotation of reports.
const (
	sourceLabel      = "admitkit.dev/scan"
	digestAnnotation = "admitkit.dev/digest"
)

// NewReports returns the Reports of a source, such as the fingerprint of a program.
func NewReports(ctx context.Context, config *rest.Config, client *http.Client, source string) (*Reports, error) {
	r := &Reports{source: source}
	var errs [3]error
	var served *discovery.DiscoveryClient
	served, errs[0] = discovery.NewDiscoveryClientForConfigAndClient(config, client)
	r.objects, errs[1] = dynamic.NewForConfigAndClient(config, client)
	r.metadata, errs[2] = metadata.NewForConfigAndClient(metadata.ConfigFor(config), client)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for _, kind := range reportKinds {
		_, err := served.ServerResourcesForGroupVersionWithContext(ctx, kind.String())
		if err == nil {
			r.kind = kind
			return r, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("which reports are there: %w", err)
		}
	}
	return nil, errors.New("the cluster serves neither Reports (openreports.io/v1alpha1) nor PolicyReports (wgpolicyk8s.io/v1alpha2): install their CustomResourceDefinitions")
}

// Write makes the reports those of a result: it writes those that differ, and deletes those
// about objects without a finding. After a scan that was incomplete it deletes none. One report
// that cannot be written does not keep the others from it.
func (r *Reports) Write(ctx context.Context, result *Result) error {
	stored := map[string]*metav1.PartialObjectMetadata{} // by name
	for _, kind := range []string{r.kind.report, r.kind.clusterReport} {
		ours := func(report *metav1.PartialObjectMetadata) { stored[report.Name] = report }
		if err := each(ctx, r.metadata.Resource(r.resource(kind)), sourceLabel+"="+r.source, ours); err != nil {
			return err
		}
	}
	var group errgroup.Group
	var problems problems
	group.SetLimit(8)
	of := byObject(result.Findings)
	if without := len(of[""]); without > 0 {
		problems.add(fmt.Errorf("%d findings are about objects without a UID, and have no report", without))
		delete(of, "")
	}
	if result.More > 0 {
		problems.add(fmt.Errorf("%d findings were only counted, and have no report: set more --findings", result.More))
	}
	for _, findings := range of {
		report, err := r.report(findings)
		if err != nil {
			return err
		}
		before := stored[report.GetName()]
		delete(stored, report.GetName())
		if before == nil || before.Annotations[digestAnnotation] != report.GetAnnotations()[digestAnnotation] {
			group.Go(func() error { problems.add(r.apply(ctx, report)); return nil })
		}
	}
	for _, report := range stored {
		if len(result.Incomplete) == 0 && result.More == 0 {
			group.Go(func() error { problems.add(r.remove(ctx, report)); return nil })
		}
	}
	return errors.Join(group.Wait(), problems.err())
}

// problems are why reports are not as they should be.
type problems struct {
	mu   sync.Mutex
	some []error
	more int
}

// maxProblems bounds how many are told: they may all be the same.
const maxProblems = 5

func (p *problems) add(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.some) == maxProblems {
		p.more++
		return
	}
	p.some = append(p.some, err)
}

func (p *problems) err() error {
	if p.more > 0 {
		return errors.Join(append(p.some, fmt.Errorf("and %d more", p.more))...)
	}
	return errors.Join(p.some...)
}

// byObject returns the findings that do not depend on the user, by the UID of their objects.
func byObject(all []Finding) map[string][]Finding {
	of := map[string][]Finding{}
	for _, f := range all {
		if !f.ByUser {
			of[f.UID] = append(of[f.UID], f)
		}
	}
	return of
}

// report returns the report of an object.
func (r *Reports) report(findings []Finding) (*unstructured.Unstructured, error) {
	f, summary := findings[0], map[string]any{"pass": int64(0), "fail": int64(0), "warn": int64(0), "error": int64(0), "skip": int64(0)}
	var results []any
	for _, f := range findings {
		result := map[Outcome]string{Stuck: "fail", Denied: "fail", Failed: "error", Changed: "warn"}[f.Outcomes[0]]
		summary[result] = summary[result].(int64) + 1
		results = append(results, map[string]any{
			"source": r.source, "policy": f.Extension, "result": result, "message": f.Message,
			"properties": map[string]any{"outcomes": joined(f.Outcomes), "mode": f.Mode},
		})
	}
	content := map[string]any{
		"scope":   map[string]any{"apiVersion": f.APIVersion, "kind": f.Kind, "name": f.Name, "namespace": f.Namespace, "uid": f.UID},
		"summary": summary, "results": results,
	}
	text, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(text)
	report := &unstructured.Unstructured{Object: content}
	kind := r.kind.clusterReport
	if f.Namespace != "" {
		kind = r.kind.report
	}
	report.SetGroupVersionKind(r.kind.WithKind(kind))
	report.SetNamespace(f.Namespace)
	report.SetName(r.source + "-" + f.UID)
	report.SetLabels(map[string]string{sourceLabel: r.source})
	report.SetAnnotations(map[string]string{digestAnnotation: hex.EncodeToString(digest[:])})
	report.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: f.APIVersion, Kind: f.Kind, Name: f.Name, UID: types.UID(f.UID)}})
	now := map[string]any{"seconds": time.Now().Unix(), "nanos": int64(0)}
	for _, result := range results {
		result.(map[string]any)["timestamp"] = now
	}
	return report, nil
}

func (r *Reports) resource(kind string) schema.GroupVersionResource {
	return r.kind.WithResource(resourceOf(kind))
}

func (r *Reports) apply(ctx context.Context, report *unstructured.Unstructured) error {
	_, err := r.objects.Resource(r.resource(report.GetKind())).Namespace(report.GetNamespace()).
		Apply(ctx, report.GetName(), report, metav1.ApplyOptions{FieldManager: r.source, Force: true})
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the namespace has gone, or is going
	}
	return err
}

func (r *Reports) remove(ctx context.Context, report *metav1.PartialObjectMetadata) error {
	kind := r.kind.clusterReport
	if report.Namespace != "" {
		kind = r.kind.report
	}
	err := r.objects.Resource(r.resource(kind)).Namespace(report.Namespace).Delete(ctx, report.Name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
