package session

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
)

const (
	// openTime is how long opening the storage may take, and firstTime for the first time,
	// during which recorders cannot connect.
	openTime  = 30 * time.Second
	firstTime = 5 * time.Second
	// openPause is after how long it is tried again, which doubles up to maxOpenPause.
	openPause    = time.Second
	maxOpenPause = time.Minute
)

// errNotOpen is what recorders hear while the storage is not open. The log says why.
var errNotOpen = errors.New("recordings cannot be kept at the moment: the storage of sessions does not work; the log of admitkit says why")

// lazyStorage is a storage that may not be open yet. A service that is not reached when the
// manager starts must not keep it from answering admissions.
type lazyStorage struct {
	open   func(context.Context) (collector.Storage, error)
	log    *zap.Logger
	opened atomic.Pointer[collector.Storage]
}

var _ collector.Storage = (*lazyStorage)(nil)

// try opens the storage.
func (o *lazyStorage) try(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	storage, err := o.open(ctx)
	if err != nil {
		return err
	}
	o.opened.Store(&storage)
	storageOpen.Set(1)
	return nil
}

// run tries until the storage is open or ctx ends. The error is one of the configuration,
// which does not go away.
func (o *lazyStorage) run(ctx context.Context, err error) error {
	for pause := openPause; err != nil; pause = min(2*pause, maxOpenPause) {
		if errors.Is(err, collector.ErrConfiguration) || ctx.Err() != nil {
			return err
		}
		o.log.Error("recordings cannot be kept: recorders are refused, and sessions wait and end by sessions-policy; trying again", zap.Duration("in", pause), zap.Error(err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if err = o.try(ctx, openTime); err == nil {
			o.log.Info("recordings can be kept now")
		}
	}
	return nil
}

func (o *lazyStorage) get() (collector.Storage, error) {
	if storage := o.opened.Load(); storage != nil {
		return *storage, nil
	}
	return nil, errNotOpen
}

// Create implements [collector.Storage].
func (o *lazyStorage) Create(ctx context.Context, name string, content []byte) error {
	storage, err := o.get()
	if err != nil {
		return err
	}
	return storage.Create(ctx, name, content)
}

// Open implements [collector.Storage].
func (o *lazyStorage) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	storage, err := o.get()
	if err != nil {
		return nil, err
	}
	return storage.Open(ctx, name)
}

// Sessions implements [collector.Storage].
func (o *lazyStorage) Sessions(ctx context.Context) ([]string, error) {
	storage, err := o.get()
	if err != nil {
		return nil, err
	}
	return storage.Sessions(ctx)
}

// List implements [collector.Storage].
func (o *lazyStorage) List(ctx context.Context, id string) ([]collector.Entry, error) {
	storage, err := o.get()
	if err != nil {
		return nil, err
	}
	return storage.List(ctx, id)
}

// Remove implements [collector.Storage].
func (o *lazyStorage) Remove(ctx context.Context, name string) error {
	storage, err := o.get()
	if err != nil {
		return err
	}
	return storage.Remove(ctx, name)
}

// Part implements [collector.Storage].
func (o *lazyStorage) Part(ctx context.Context, id string, number int) (collector.Part, error) {
	storage, err := o.get()
	if err != nil {
		return nil, err
	}
	return storage.Part(ctx, id, number)
}

// Delay implements [collector.Storage]. No session has begun before the storage is open.
func (o *lazyStorage) Delay() time.Duration {
	storage, err := o.get()
	if err != nil {
		return 0
	}
	return storage.Delay()
}
