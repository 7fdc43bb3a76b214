package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// groupsOf returns the names of the groups of alerts in a file or a PrometheusRule.
func groupsOf(t *testing.T, text []byte) (names []string) {
	t.Helper()
	var rules struct{ Groups []struct{ Name string } }
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for _, group := range rules.Groups {
		names = append(names, group.Name)
	}
	return names
}

func TestAlertsAndDashboardsAreThoseOfTheFilesForWhatIsEnabled(t *testing.T) {
	t.Parallel()
	const runs, recorded = `sandbox: {enabled: true, namespaces: [agents]}`, `sessions: {enabled: true, namespaces: [apps]}, replicas: 1`
	const enabled = `metrics: {prometheusRule: {enabled: true, namespace: monitoring, labels: {a: b}}, dashboards: {enabled: true, annotations: {folder: x}}}`
	for values, without := range map[string]string{
		`access: {enabled: true, namespaces: [apps]}, hooks: {enabled: true}, ` + runs + `, ` + recorded: "none",
		`hooks: {enabled: true}, ` + runs:                                      "access sessions",
		`hooks: {enabled: true}, ` + recorded:                                  "access sandbox",
		`access: {enabled: true, namespaces: [apps]}`:                          "hooks sandbox sessions",
		`access: {enabled: true, namespaces: [apps]}, audit: {enabled: false}`: "audit hooks sandbox sessions",
		`audit: {enabled: false}, hooks: {enabled: true}`:                      "access audit certificates webhooks sandbox sessions",
	} {
		var groups, want, dashboards, wantDashboards []string
		for _, object := range objectsOf(t, render(t, strings.TrimSuffix(`{`+enabled+`, `+values, ", ")+`}`)) {
			switch o := object.(type) {
			case *prometheusRule:
				text, err := json.Marshal(o.Spec)
				if err != nil {
					t.Fatal(err)
				}
				groups = groupsOf(t, text)
				if o.Namespace != "monitoring" || o.Labels["a"] != "b" {
					t.Errorf("%s/%s %v", o.Namespace, o.Name, o.Labels)
				}
			case *corev1.ConfigMap:
				if o.Labels["grafana_dashboard"] != "1" || o.Annotations["folder"] != "x" || o.Namespace != releaseNamespace || len(o.Data) != 1 {
					t.Errorf("%s/%s %v %v", o.Namespace, o.Name, o.Labels, o.Annotations)
				}
				for _, text := range o.Data {
					dashboards = append(dashboards, text)
				}
			}
		}
		for _, kind := range []string{"alerts", "dashboards"} {
			files, err := filepath.Glob(filepath.Join(chartDir, "files", kind, "*"))
			if err != nil || len(files) < 4 {
				t.Fatalf("%d files of %s, %v", len(files), kind, err)
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				switch {
				case err != nil:
					t.Fatal(err)
				case slices.Contains(strings.Fields(without), strings.Split(filepath.Base(file), ".")[0]):
				case kind == "alerts":
					want = append(want, groupsOf(t, text)...)
				default:
					wantDashboards = append(wantDashboards, string(text))
				}
			}
		}
		if !slices.Equal(groups, want) || len(want) == 0 {
			t.Errorf("%s: groups %q, want %q", values, groups, want)
		}
		if !slices.Equal(dashboards, wantDashboards) || len(groups) == 0 {
			t.Errorf("%s: %d dashboards, want %d as they are in the files", values, len(dashboards), len(wantDashboards))
		}
	}
}

func TestThePodsOfEveryDeploymentAreScraped(t *testing.T) {
	t.Parallel()
	objects := objectsOf(t, render(t, `{split: {enabled: true}, metrics: {podMonitor: {enabled: true}}, sandbox: {enabled: true, namespaces: [agents], egress: {podCIDRs: [10.0.0.0/16], serviceCIDRs: [10.1.0.0/16]}, broker: {enabled: true, namespace: leases}}}`))
	scraped := func(namespace string, of map[string]string) bool {
		return slices.ContainsFunc(objects, func(object metav1.Object) bool {
			monitor, ok := object.(*podMonitor)
			if !ok {
				return false
			}
			selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
			if err != nil {
				t.Fatal(err)
			}
			namespaces := monitor.Spec.NamespaceSelector.MatchNames
			if len(namespaces) == 0 {
				namespaces = []string{monitor.Namespace}
			}
			return slices.Contains(namespaces, namespace) && selector.Matches(labels.Set(of))
		})
	}
	for _, object := range objects {
		if d, ok := object.(*appsv1.Deployment); ok && !scraped(d.Namespace, d.Spec.Template.Labels) {
			t.Errorf("no PodMonitor has the Pods of Deployment %s/%s", d.Namespace, d.Name)
		}
	}
}

func TestSecureMetricsAreScrapedByWhomRBACLets(t *testing.T) {
	t.Parallel()
	const split = `split: {enabled: true}, scan: {every: 1h}, access: {enabled: true, namespaces: [apps]}, `
	objects := objectsOf(t, render(t, `{`+split+`metrics: {secure: true, serviceMonitor: {enabled: true}}}`))
	for _, name := range []string{release + "-admitkit", release + "-admitkit-registrar", release + "-admitkit-reconciler", release + "-admitkit-scanner"} {
		got := rightsOf(t, objects)[name]
		if !got["everywhere: create tokenreviews.authentication.k8s.io *"] || !got["everywhere: create subjectaccessreviews.authorization.k8s.io *"] {
			t.Errorf("%s may not ask who may read its metrics", name)
		}
	}
	readers := 0
	for _, object := range objects {
		switch o := object.(type) {
		case *serviceMonitor:
			if e := o.Spec.Endpoints[0]; e.Scheme != "https" || e.TLSConfig["insecureSkipVerify"] != true || e.BearerTokenFile == "" || e.Authorization != nil {
				t.Errorf("it scrapes %+v", e)
			}
		case *rbacv1.ClusterRole:
			if strings.HasSuffix(o.Name, "-metrics-reader") {
				readers++
				if len(o.Rules) != 1 || !slices.Equal(o.Rules[0].NonResourceURLs, []string{"/metrics"}) || !slices.Equal(o.Rules[0].Verbs, []string{"get"}) {
					t.Errorf("readers may %v", o.Rules)
				}
			}
		}
		if pod := podOf(object); pod != nil && !slices.Contains(pod.Spec.Containers[0].Args, "--metrics-secure=true") {
			t.Errorf("%s serves them to everybody", object.GetName())
		}
	}
	if readers != 1 {
		t.Errorf("%d roles of readers", readers)
	}
	for _, object := range objectsOf(t, render(t, `{metrics: {secure: true, authorization: {credentials: {name: token, key: t}}, tlsConfig: {serverName: a}, podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}}`)) {
		var e endpoint
		switch o := object.(type) {
		case *serviceMonitor:
			e = o.Spec.Endpoints[0]
		case *podMonitor:
			e = o.Spec.PodMetricsEndpoints[0]
		default:
			continue
		}
		if e.Scheme != "https" || e.TLSConfig["serverName"] != "a" || e.Authorization == nil || e.BearerTokenFile != "" {
			t.Errorf("%s scrapes %+v", object.GetName(), e)
		}
	}
	if rights := rightsOf(t, objectsOf(t, render(t, "")))[release+"-admitkit"]; rights["everywhere: create tokenreviews.authentication.k8s.io *"] {
		t.Error("the right is given to those who do not need it")
	}
}
