// Command alarm converts Alarms, a kind of its own, between its two versions (v1/types.go,
// v2/types.go).
package main

import (
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/admitkit/admitkit/examples/alarm/v1"
	v2 "github.com/admitkit/admitkit/examples/alarm/v2"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// snooze is where v1 keeps what it has no field for, so that nothing is lost when somebody
// reads an Alarm as v1 and writes it back.
const snooze = "alarm.example.com/snooze"

func toV2(from *v1.Alarm, to *v2.Alarm) error {
	// Without it the Alarm is not whole, as during a server-side apply of v2.
	if _, err := fmt.Sscanf(from.Spec.Time, "%d:%d", &to.Spec.Hour, &to.Spec.Minute); err != nil && from.Spec.Time != "" {
		return fmt.Errorf("spec.time: %q: must be a time of the day, such as 07:30: %w", from.Spec.Time, err)
	}
	to.Spec.Message = from.Spec.Text
	if kept, is := from.Annotations[snooze]; is {
		minutes, err := strconv.ParseInt(kept, 10, 32)
		if err != nil {
			return fmt.Errorf("annotation %s: %q: must be a number of minutes", snooze, kept)
		}
		to.Spec.Snooze = int32(minutes)
		delete(to.Annotations, snooze)
	}
	return nil
}

func fromV2(from *v2.Alarm, to *v1.Alarm) error {
	to.Spec = v1.AlarmSpec{Time: fmt.Sprintf("%02d:%02d", from.Spec.Hour, from.Spec.Minute), Text: from.Spec.Message}
	if from.Spec.Snooze != 0 {
		metav1.SetMetaDataAnnotation(&to.ObjectMeta, snooze, strconv.Itoa(int(from.Spec.Snooze)))
	}
	return nil
}

// converter has v2 as its hub: it can express everything.
func converter() *extension.Converter {
	return extension.Converting("alarms.alarm.example.com", "v2", extension.Between("v1", toV2, fromV2))
}

func build(mgr *manager.Manager) error { return mgr.AddExtension(converter()) }

func main() { command.Main(command.New("alarm", build)) }
