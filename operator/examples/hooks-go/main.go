// Command hooks-go is the hook of a controller of Websites: it is sent a Website with its
// children, and answers with the children and the status that the Website should have. It
// writes nothing and has no rights; the operator for hooks does what it says.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os/signal"
	"slices"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Website is the parent: see crd.yaml.
type Website struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Pages    map[string]string `json:"pages"`
		Replicas int32             `json:"replicas"`
	} `json:"spec"`
}

// Status is what the hook says of a Website.
type Status struct {
	Pages         []string `json:"pages"`
	ReadyReplicas int32    `json:"readyReplicas"`
}

// Request is what of the protocol's request this hook needs. In v2 the children have the
// keys NAMESPACE/NAME.
type Request struct {
	Parent   Website `json:"parent"`
	Children struct {
		Deployments map[string]appsv1.Deployment `json:"Deployment.apps/v1"`
	} `json:"children"`
}

// Response is what the Website should have.
type Response struct {
	Status   Status           `json:"status"`
	Children []runtime.Object `json:"children"`
}

// Sync is the controller. It has no side effects, so it can be called at any time, and
// tested without a cluster.
func Sync(r *Request) *Response {
	site := &r.Parent
	response := &Response{Children: []runtime.Object{pages(site), deployment(site), service(site)}}
	for name := range site.Spec.Pages {
		response.Status.Pages = append(response.Status.Pages, name)
	}
	slices.Sort(response.Status.Pages)
	response.Status.ReadyReplicas = r.Children.Deployments[site.Namespace+"/"+site.Name].Status.ReadyReplicas
	return response
}

func pages(site *Website) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: site.Name}, Data: site.Spec.Pages,
	}
}

func deployment(site *Website) *appsv1.Deployment {
	labels := map[string]string{"website": site.Name}
	// Maps are sorted in JSON. A Pod with other pages is another Pod, so that they roll out.
	text, _ := json.Marshal(site.Spec.Pages)
	digest := fmt.Sprintf("%x", sha256.Sum256(text))
	mount := corev1.VolumeMount{Name: "pages", MountPath: "/usr/share/nginx/html", ReadOnly: true}
	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Name: site.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &site.Spec.Replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"example.com/pages": digest}},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{
						Name: "nginx", Image: "docker.io/library/nginx:1.29", VolumeMounts: []corev1.VolumeMount{mount},
						Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80, Protocol: corev1.ProtocolTCP}},
					}},
					Volumes: []corev1.Volume{{Name: "pages", VolumeSource: corev1.VolumeSource{
						ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: site.Name}},
					}}},
				},
			},
		},
	}
}

func service(site *Website) *corev1.Service {
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Name: site.Name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"website": site.Name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http"), Protocol: corev1.ProtocolTCP}},
		},
	}
}

// serve answers the operator. A status that is not 200 changes nothing in the cluster.
func serve(w http.ResponseWriter, r *http.Request) {
	var request Request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<20)).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := json.NewEncoder(w).Encode(Sync(&request)); err != nil {
		log.Print(err)
	}
}

func main() {
	address := flag.String("address", ":8080", "where to listen")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	http.HandleFunc("POST /sync", serve)
	server := &http.Server{Addr: *address, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Shutdown(context.WithoutCancel(ctx)) })
	err := server.ListenAndServe()
	stop()
	if !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}
