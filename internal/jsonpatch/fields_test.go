package jsonpatch

import (
	"fmt"
	"strings"
	"testing"
)

func TestFieldsNamesTheFirstAndCountsTheOthers(t *testing.T) {
	var operations []string
	for i := range 30 {
		operations = append(operations, fmt.Sprintf(`{"op":"add","path":"/spec/f%d","value":1},{"op":"replace","path":"/spec/f%d","value":2}`, i, i))
	}
	got := Fields([]byte("[" + strings.Join(operations, ",") + "]"))
	if !strings.HasPrefix(got, "spec.f0, spec.f1, ") || !strings.HasSuffix(got, "spec.f19 and 10 more") {
		t.Errorf("got %s", got)
	}
}
