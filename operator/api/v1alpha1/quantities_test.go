package v1alpha1_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestATemplateThatIsCostlyToReadIsRefused(t *testing.T) {
	container := func(field string) string { return `{"podSpec":{"containers":[{"name":"a"},{` + field + `}]}}` }
	volume := func(source string) string { return `{"podSpec":{"volumes":[{"name":"a",` + source + `}]}}` }
	const quantity = `"1e-999999999"`
	for want, spec := range map[string]string{
		`spec.podSpec.containers[1].resources.limits.cpu: the exponent of "1e-999999999" has 9 digits`: container(`"resources":{"limits":{"cpu":` + quantity + `}}`),
		`spec.podSpec.containers[1].resources.requests.cpu: the exponent of`:                           container(`"resources":{"requests":{"cpu":1E+999}}`),
		`spec.podSpec.containers[1].env[0].valueFrom.resourceFieldRef.divisor: the`:                    container(`"env":[{"valueFrom":{"resourceFieldRef":{"divisor":` + quantity + `}}}]`),
		`spec.podSpec.volumes[0].emptyDir.sizeLimit: the`:                                              volume(`"emptyDir":{"sizeLimit":` + quantity + `}`),
		`spec.podSpec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests.storage: the`:   volume(`"ephemeral":{"volumeClaimTemplate":{"spec":{"resources":{"requests":{"storage":` + quantity + `}}}}}`),
		`spec.podSpec.overhead.cpu: the`:                                                               `{"podSpec":{"overhead":{"cpu":` + quantity + `}}}`,
		`spec.maxCpu: the quantity has 1000 characters, at most 128`:                                   `{"maxCpu":"` + strings.Repeat("9", 1000) + `"}`,
		`spec.controllerTargetMutationConfig.resources.limits.cpu: the`:                                `{"controllerTargetMutationConfig":{"resources":{"limits":{"cpu":` + quantity + `}}}}`,
		`cannot unmarshal number into Go struct field PodSpec.spec.podSpec.containers`:                 `{"podSpec":{"containers":5}}`,
		`at most 65536 are allowed`:                                                                    container(`"args":["` + strings.Repeat("x", 130_000) + `"]`),
	} {
		var template v1alpha1.PodAccessTemplate
		raw := fmt.Sprintf(`{"metadata":{"name":"a"%s},"spec":%s}`, strings.Repeat(" ", 2000), spec)
		if err := json.Unmarshal([]byte(raw), &template); err != nil {
			t.Fatal(err)
		}
		if err := template.Unreadable(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if template.Name != "a" || template.Spec.PodSpec != nil {
			t.Errorf("of one that cannot be read it has %+v", template)
		}
	}
	var template v1alpha1.PodAccessTemplate
	raw := `{"metadata":{"annotations":{"a":"1e-999999999"}},"spec":{"maxCpu":"500m","podSpec":{"containers":[{"args":["1e-999999999"],"resources":{"limits":{"memory":"1e9","cpu":2}}}]}}}`
	if err := errors.Join(json.Unmarshal([]byte(raw), &template), template.Unreadable()); err != nil {
		t.Fatal(err)
	}
	if limits := template.Spec.PodSpec.Containers[0].Resources.Limits; limits.Memory().Value() != 1e9 || limits.Cpu().Value() != 2 || template.Spec.MaxCPU.MilliValue() != 500 || template.Annotations["a"] == "" {
		t.Errorf("it reads %+v", template)
	}
}
