package memcluster

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/internal/kinds"
)

// Respond returns a response with the value as JSON.
func Respond(req *http.Request, code int, value any) (*http.Response, error) {
	body, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}, nil
}

// Discover returns what an API server with the kinds of a scheme answers at a
// discovery path. It returns nil for other paths.
func Discover(scheme *runtime.Scheme, known *kinds.Table, path string) any {
	versions := scheme.PrioritizedVersionsAllGroups()
	for _, custom := range known.Custom() {
		versions = append(versions, custom.GroupVersions...)
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "/api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case path == "/apis":
		return groups(versions)
	case parts[0] == "api" && len(parts) == 2:
		return resourcesOf(scheme, known, schema.GroupVersion{Version: parts[1]})
	case parts[0] == "apis" && len(parts) == 3:
		return resourcesOf(scheme, known, schema.GroupVersion{Group: parts[1], Version: parts[2]})
	}
	return nil
}

func groups(versions []schema.GroupVersion) metav1.APIGroupList {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, version := range versions {
		if version.Group == "" {
			continue
		}
		entry := metav1.GroupVersionForDiscovery{GroupVersion: version.String(), Version: version.Version}
		i := slices.IndexFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == version.Group })
		if i < 0 {
			list.Groups = append(list.Groups, metav1.APIGroup{Name: version.Group, PreferredVersion: entry})
			i = len(list.Groups) - 1
		}
		if !slices.Contains(list.Groups[i].Versions, entry) {
			list.Groups[i].Versions = append(list.Groups[i].Versions, entry)
		}
	}
	return list
}

func resourcesOf(scheme *runtime.Scheme, known *kinds.Table, version schema.GroupVersion) metav1.APIResourceList {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.String()}
	types := scheme.KnownTypes(version)
	var all []string
	for kind, custom := range known.Custom() {
		if slices.Contains(custom.GroupVersions, version) {
			all = append(all, kind.Kind)
		}
	}
	for kind := range types {
		// Only objects have a list kind, and reviews, which have none, are resources, too. The other kinds are lists and options.
		_, listed := types[kind+"List"]
		if !listed && strings.HasSuffix(kind, "Review") {
			_, listed = known.Find(version.WithKind(kind).GroupKind())
		}
		if listed && !slices.Contains(all, kind) {
			all = append(all, kind)
		}
	}
	for _, kind := range all {
		gvk := version.WithKind(kind)
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: known.Resource(gvk).Resource, SingularName: strings.ToLower(kind), Kind: kind, Namespaced: known.Namespaced(gvk.GroupKind()),
			Verbs: metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"},
		})
	}
	return list
}
