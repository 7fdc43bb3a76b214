package collector

import (
	"context"
	"errors"
	"io"
	"time"
)

// Storage keeps recordings: [Folder], or package s3 beside this one. A name has the ID of
// the session, a slash, and the name of a file. What a method has written when it returns
// must last. Several collectors share one storage.
//
// The files of a session are:
//
//   - session.json has the ticket, and who redeemed it;
//   - 000001.part and so on have the frames, a new one for each connection. A part may
//     consist of pieces, such as 000001-000001.part. A frame that is there twice counts once;
//   - note-SOMETHING.json has a [Note];
//   - stop has why the session was ended by hand, if it was;
//   - seal.json has the [Seal], once the session has ended.
type Storage interface {
	// Create makes a file that is whole from its beginning. If there is one of this name,
	// the error is fs.ErrExist. Of two that try at the same time, one succeeds.
	Create(ctx context.Context, name string, content []byte) error
	// Open reads a file. The error is fs.ErrNotExist if there is none.
	Open(ctx context.Context, name string) (io.ReadCloser, error)
	// Sessions returns the IDs of all sessions.
	Sessions(ctx context.Context) ([]string, error)
	// List returns the files of a session, in the order of their names.
	List(ctx context.Context, id string) ([]Entry, error)
	// Remove removes a file. It is no error if there is none.
	Remove(ctx context.Context, name string) error
	// Part makes a new part. If there is one of this number, the error is fs.ErrExist.
	Part(ctx context.Context, id string, number int) (Part, error)
	// Delay is how long frames should gather before they are written.
	Delay() time.Duration
}

// ErrConfiguration is wrapped by the error of a storage that cannot be opened because its
// options are invalid. To try again does not help.
var ErrConfiguration = errors.New("the configuration of the storage is invalid")

// Part is a part of a recording that is being written.
type Part interface {
	// Append writes whole frames, which last when it returns.
	Append(ctx context.Context, frames []byte) error
	io.Closer
}

// Entry is a file of a session.
type Entry struct {
	// Name is the file's, without the session's ID.
	Name     string
	Size     int64
	Modified time.Time
}

// storeTime is how long one call of the storage may take. The recorder gives a collector
// 10 s.
const storeTime = 6 * time.Second

func stored() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), storeTime)
}
