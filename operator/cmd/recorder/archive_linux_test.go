package main

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// archiveOf returns a tar file of n files of a size.
func archiveOf(n, size int) string {
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for i := range n {
		err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("file-%d", i), Mode: 0o644, Size: int64(size), Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0)})
		if err == nil {
			_, err = w.Write([]byte(testkit.Noise(size)))
		}
		if err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return text.String()
}

// found returns what an archive finds in a stream that comes in pieces.
func found(stream []byte, piece int) (all []protocol.FileSum) {
	a := newArchive("stdin", func(f protocol.FileSum) { all = append(all, f) })
	for len(stream) > 0 {
		n := min(piece, len(stream))
		a.add(stream[:n])
		stream = stream[n:]
	}
	a.end()
	return all
}

func TestTheFilesOfATarStreamAreOnRecord(t *testing.T) {
	stream := []byte(archiveOf(3, 100_000))
	for _, piece := range []int{1, 511, 512, 513, len(stream)} {
		all := found(stream, piece)
		if len(all) != 3 {
			t.Fatalf("in pieces of %d bytes there are %+v", piece, all)
		}
		if want := (protocol.FileSum{Stream: "stdin", Name: "file-2", Type: "0", Mode: 0o644, Bytes: 100_000, SHA256: hexSum([]byte(testkit.Noise(100_000)))}); all[2] != want {
			t.Errorf("got %+v instead of %+v", all[2], want)
		}
	}
	if cut := found(stream[:150_000], 4096); len(cut) != 2 || cut[0].SHA256 == "" || cut[1].SHA256 != "" {
		t.Errorf("of a stream that is cut off there are %+v", cut)
	}
	for what, other := range map[string]string{"text": strings.Repeat("text ", 1000), "zeros": string(make([]byte, 4096)), "little": "x"} {
		if all := found([]byte(other), 100); len(all) > 0 {
			t.Errorf("%s has files: %+v", what, all)
		}
	}
}

// A sparse file of a few bytes can stand for 8 EiB of zeros.
func TestASparseFileCostsNothing(t *testing.T) {
	const size = 1 << 62
	block := make([]byte, 1536) // with the end of the archive
	copy(block, "sparse")
	copy(block[100:], "0000644\x00")
	copy(block[124:], "00000000000\x00")
	copy(block[136:], "00000000000\x00")
	block[156] = tar.TypeGNUSparse
	copy(block[257:], "ustar  \x00")
	number := append([]byte{0x80, 0, 0, 0}, binary.BigEndian.AppendUint64(nil, size)...)
	copy(block[386:], number)            // where the only piece begins,
	copy(block[398:], "00000000000\x00") // and its length
	copy(block[483:], number)            // the real size
	copy(block[148:], "        ")
	sum := 0
	for _, b := range block[:tarBlock] {
		sum += int(b)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
	all := found(block, 4096) // to read the zeros would take centuries
	if len(all) != 1 || all[0].SHA256 != "" || all[0].Bytes != size {
		t.Errorf("found %+v", all)
	}
}

func FuzzArchive(f *testing.F) {
	f.Add([]byte(archiveOf(2, 600)), 100)
	f.Add([]byte("text"), 1)
	f.Fuzz(func(t *testing.T, stream []byte, piece int) {
		if piece <= 0 || len(stream)/piece > 10_000 {
			return
		}
		for _, file := range found(stream, piece) {
			if len(file.Name) > protocol.MaxPath || file.SHA256 != "" && file.Bytes > int64(len(stream)) {
				t.Errorf("found %+v in %d bytes", file, len(stream))
			}
		}
	})
}
