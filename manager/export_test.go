package manager

import "time"

// Lease sets how long a Lease is valid without a renewal.
func (o *WatchingOptions) Lease(lease time.Duration) { o.lease = lease }
