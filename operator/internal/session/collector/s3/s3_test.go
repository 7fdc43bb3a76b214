package s3_test

import (
	"errors"
	"io"
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/admitkit/admitkit/operator/internal/s3gateway"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/collector/s3"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

func options(endpoint string) s3.Options {
	return s3.Options{
		Endpoint: endpoint, Insecure: true, Bucket: s3gateway.Bucket, Prefix: "a/",
		Credentials: credentials.NewStaticV4(s3gateway.AccessKey, s3gateway.SecretKey, ""),
	}
}

// How sessions are recorded there, and what happens when the service is slow or away, is
// tested with real recorders: see operator/cmd/recorder.
func TestABucketKeepsFilesOfSessions(t *testing.T) {
	ctx := t.Context()
	storage, err := s3.New(ctx, options(s3gateway.Start(t, "../../../../..")))
	if err != nil {
		t.Fatal(err)
	}
	id, other := protocol.NewID(), protocol.NewID()
	if err := errors.Join(storage.Create(ctx, id+"/session.json", []byte("{}")), storage.Create(ctx, other+"/session.json", []byte("{}"))); err != nil {
		t.Fatal(err)
	}
	if err := storage.Create(ctx, id+"/session.json", []byte("other")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("creating a file twice: %v", err)
	}
	if _, err := storage.Open(ctx, id+"/seal.json"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening a file that is not there: %v", err)
	}
	part, err := storage.Part(ctx, id, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(part.Append(ctx, []byte("one")), part.Append(ctx, []byte("two")), part.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := storage.Part(ctx, id, 1); !errors.Is(err, fs.ErrExist) {
		t.Errorf("beginning a part twice: %v", err)
	}
	entries, err := storage.List(ctx, id)
	var names []string
	text := ""
	for _, entry := range entries {
		names = append(names, entry.Name)
		file, err := storage.Open(ctx, id+"/"+entry.Name)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(file)
		if err = errors.Join(err, file.Close()); err != nil || int64(len(content)) != entry.Size || time.Since(entry.Modified).Abs() > time.Minute {
			t.Errorf("%+v has %q, %v", entry, content, err)
		}
		text += string(content)
	}
	want := []string{"000001-00000000.part", "000001-00000001.part", "000001-00000002.part", "session.json"}
	if err != nil || !reflect.DeepEqual(names, want) || text != "onetwo{}" {
		t.Errorf("%v with %q, %v", names, text, err)
	}
	if ids, err := storage.Sessions(ctx); err != nil || len(ids) != 2 {
		t.Errorf("%v, %v", ids, err)
	}
	for range 2 {
		if err := storage.Remove(ctx, other+"/session.json"); err != nil {
			t.Error(err)
		}
	}
	if ids, err := storage.Sessions(ctx); err != nil || !reflect.DeepEqual(ids, []string{id}) {
		t.Errorf("%v, %v", ids, err)
	}
}

func TestOptionsOfABucketAreChecked(t *testing.T) {
	for field, change := range map[string]func(*s3.Options){
		"Endpoint": func(o *s3.Options) { o.Endpoint = "https://s3.example.com" },
		"Bucket":   func(o *s3.Options) { o.Bucket = "" },
		`"B_"`:     func(o *s3.Options) { o.Bucket = "B_" },
		"Delay":    func(o *s3.Options) { o.Delay = time.Minute },
	} {
		of := options("s3.example.com")
		change(&of)
		if _, err := s3.New(t.Context(), of); !errors.Is(err, collector.ErrConfiguration) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
