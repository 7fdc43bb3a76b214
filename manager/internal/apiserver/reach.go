package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Timeout is how long a start waits for an API server that does not answer: long
// enough for a restart, short enough to wait for the reason.
const Timeout = 8 * time.Second

// Reach makes sure that an API server answers. A wrong address is then not reported
// as something else later.
func Reach(ctx context.Context, all *Clients, host string) error {
	var last error // but not that the time is over, if there was another reason before
	err := wait.PollUntilContextTimeout(ctx, time.Second, Timeout, true, func(ctx context.Context) (bool, error) {
		err := all.Discovery.RESTClient().Get().AbsPath("/version").Do(ctx).Error()
		if last == nil || ctx.Err() == nil {
			last = err
		}
		var status apierrors.APIStatus
		// Any response below 500 will do; what follows reports a 401.
		return err == nil || errors.As(err, &status) && status.Status().Code < 500, nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("no API server answers at %s within %s: %w", host, Timeout, last)
}
