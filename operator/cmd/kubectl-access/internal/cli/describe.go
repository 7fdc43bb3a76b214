package cli

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Conditions returns the names and values of conditions, for Lines.
func Conditions(conditions []metav1.Condition) []string {
	text := []string{"Conditions", " "}
	for _, condition := range conditions {
		text = append(text, "  "+condition.Type, strings.TrimSpace(string(condition.Status)+"  "+condition.Reason+"  "+condition.Message))
	}
	return text
}

// DescribeEvents shows the events that the engineer may see.
func (c *Base) DescribeEvents(ctx context.Context, cl client.Client, of client.Object) error {
	var events corev1.EventList
	err := cl.List(ctx, &events, client.InNamespace(of.GetNamespace()), client.MatchingFieldsSelector{
		Selector: fields.OneTermEqualSelector("involvedObject.uid", string(of.GetUID())),
	})
	if apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return err
	}
	happened := []string{"Events", " "}
	for _, event := range events.Items {
		when := event.EventTime.Time
		if when.IsZero() {
			when = event.LastTimestamp.Time
		}
		happened = append(happened, "  "+when.Local().Format(time.DateTime)+"  "+event.Reason, event.Message)
	}
	if len(events.Items) == 0 {
		return nil
	}
	return Lines(c.Out, happened...)
}
