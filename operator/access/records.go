package access

import (
	"context"
	"fmt"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// toldRecords is how many records are known to have been made: an attempt that is made
// again and again would otherwise fill the log with the same.
const toldRecords = 10_000

// tellOnce makes a record, unless it was made before.
func (a *shared) tellOnce(ctx context.Context, record extension.Record) error {
	if _, told := a.told.Get(record.ID); told {
		return nil
	}
	if err := a.Recorder.Record(ctx, record); err != nil {
		return fmt.Errorf("recording that %s %s/%s was %s: %w", record.Object.Kind, record.Object.Namespace, record.Object.Name, record.Action, err)
	}
	a.told.Add(record.ID, nil)
	return nil
}

// tell records what a decision adds to the records, but for the grant itself, which
// [requests.grant] records.
func (r *requests) tell(ctx context.Context, f *facts.Facts, d decision.Decision) error {
	if r.Recorder == nil {
		return nil // an uninstall
	}
	if f.Request != nil {
		last, _ := r.told.Get(moveKey(f.Request))
		f.LastMove, _ = last.(facts.Move)
	}
	for _, record := range decision.Records(f, d) {
		if err := r.tellOnce(ctx, record); err != nil {
			return err
		}
		if record.Action == grant.ActionMoved {
			r.told.Add(moveKey(f.Request), facts.Move{From: f.Request.GetRequestStatus().ExpiresAt.Time, To: d.Status.ExpiresAt.Time})
		}
		if f.Request == nil { // else the status says so
			r.notify([]step{stepOf(record)})
		}
	}
	return nil
}

// moveKey is where the last move of a request is kept among what was told.
func moveKey(req v1alpha1.Request) string { return string(req.GetUID()) + "-last-move" }
