package paths

import "context"

// Look is a look of Run, and Begin what it does after one.
func (p *Paths) Look(ctx context.Context) error { return p.look(ctx) }

func (p *Paths) Begin(ctx context.Context) error { return p.begin(ctx, Period, "the period is over") }
