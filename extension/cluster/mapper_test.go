package cluster

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

func TestAnAPIServerThatDoesNotSayWhichKindsItHasHoldsNobody(t *testing.T) {
	asked := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		asked <- struct{}{}
		<-req.Context().Done()
	}))
	defer server.Close()
	mapper, err := mapperWithin(50*time.Millisecond)(&rest.Config{Host: server.URL}, http.DefaultClient)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := mapper.RESTMapping(schema.GroupKind{Group: "argoproj.io", Kind: "Rollout"}, "v1alpha1")
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || len(asked) == 0 {
			t.Errorf("after %d questions: %v", len(asked), err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it still waits")
	}
}
