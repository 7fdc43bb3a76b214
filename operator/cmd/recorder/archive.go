//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strconv"
	"strings"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	tarBlock = 512
	// maxFiles is how many entries of a stream are recorded.
	maxFiles = 100_000
)

// archive finds what is in a stream if that is a tar file, as of kubectl cp.
type archive struct {
	stream string
	found  func(protocol.FileSum)

	first []byte // the first block, as far as it is there
	to    *io.PipeWriter
	done  chan struct{}
	other bool // it is not a tar file
}

func newArchive(stream string, found func(protocol.FileSum)) *archive {
	return &archive{stream: stream, found: found}
}

// add takes the next piece of the stream.
func (a *archive) add(piece []byte) {
	if a.other {
		return
	}
	if a.to == nil {
		n := min(tarBlock-len(a.first), len(piece))
		a.first = append(a.first, piece[:n]...)
		if piece = piece[n:]; len(a.first) < tarBlock {
			return
		}
		if a.other = !isHeader(a.first); a.other {
			return
		}
		r, w := io.Pipe()
		a.to, a.done = w, make(chan struct{})
		go a.read(r)
		_, _ = w.Write(a.first) // read reads all
	}
	_, _ = a.to.Write(piece) // read reads all
}

// end waits until the last entry is found.
func (a *archive) end() {
	if a.to != nil {
		_ = a.to.Close() // never fails
		<-a.done
	}
}

// read reads the entries, and what comes after them.
func (a *archive) read(from io.Reader) {
	defer close(a.done)
	defer func() { _, _ = io.Copy(io.Discard, from) }()
	entries := tar.NewReader(from)
	for range maxFiles {
		header, err := entries.Next()
		if err != nil {
			return
		}
		f := protocol.FileSum{
			Stream: a.stream, Name: cut(header.Name, protocol.MaxPath), Link: cut(header.Linkname, protocol.MaxPath),
			Type: strconv.QuoteRune(rune(header.Typeflag)), Mode: header.Mode,
		}
		f.Type = strings.Trim(f.Type, "'")
		f.Bytes, f.SHA256, err = sumOf(header, entries)
		a.found(f)
		if err != nil {
			return
		}
	}
}

// sumOf returns the size of an entry, and the sum of a file. A sparse one has none: it can
// have any number of zeros that are not in the stream.
func sumOf(header *tar.Header, content io.Reader) (size int64, sum string, err error) {
	sparse := header.Typeflag == tar.TypeGNUSparse
	for key := range header.PAXRecords {
		sparse = sparse || strings.HasPrefix(key, "GNU.sparse.")
	}
	if sparse || header.Typeflag != tar.TypeReg {
		return header.Size, "", nil
	}
	hash := sha256.New()
	if size, err = io.Copy(hash, content); err != nil { // the stream was cut off
		return size, "", err
	}
	return size, hex.EncodeToString(hash.Sum(nil)), nil
}

// isHeader reports whether a block is the header of a tar entry, by its checksum.
func isHeader(block []byte) bool {
	const at, length = 148, 8
	field := string(bytes.Trim(block[at:at+length], " \x00"))
	want, err := strconv.ParseInt(field, 8, 64)
	if err != nil {
		return false
	}
	sum := int64(length * ' ')
	for i, b := range block {
		if i < at || i >= at+length {
			sum += int64(b)
		}
	}
	return sum == want
}
