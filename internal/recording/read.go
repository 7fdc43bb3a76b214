package recording

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxLine is the longest line that is read. A request has two objects, an answer has one, each of
// at most 8 MiB by default.
const maxLine = 64 << 20

// Damage is a part of a recording that cannot be read, such as the end of one whose process
// crashed.
type Damage struct {
	File string
	// Line is the number of the line, from 1.
	Line int
	Err  error
}

func (d Damage) String() string { return fmt.Sprintf("%s, line %d: %v", d.File, d.Line, d.Err) }

// ErrNothing is the error for folders without recordings.
var ErrNothing = errors.New("no admission is recorded there: name a folder of --record, with files *" + gzipSuffix + " or *" + plainSuffix)

// Read calls a function with each entry in folders, the oldest of a folder first, and returns what
// it could not read. An error is one of the function, or says that a folder has no recordings.
func Read(dirs []string, each func(*Entry) error) ([]Damage, error) {
	return walkDirs(dirs, func(name string) ([]Damage, error) { return readFile(name, each) })
}

// Rewrite is [Read] with a function that may change the entries, or leave them out. Each file is
// replaced as a whole, when all its entries are written.
func Rewrite(dirs []string, each func(*Entry) (keep bool, err error)) ([]Damage, error) {
	return walkDirs(dirs, func(name string) ([]Damage, error) { return rewriteFile(name, each) })
}

func walkDirs(dirs []string, each func(name string) ([]Damage, error)) ([]Damage, error) {
	var damages []Damage
	for _, dir := range dirs {
		files, err := filesOf(dir)
		if err != nil {
			return damages, err
		}
		if len(files) == 0 {
			return damages, fmt.Errorf("%s: %w", dir, ErrNothing)
		}
		for _, file := range files {
			damaged, err := each(file)
			damages = append(damages, damaged...)
			if err != nil {
				return damages, err
			}
		}
	}
	return damages, nil
}

// readFile reads the entries of one file.
func readFile(name string, each func(*Entry) error) (damages []Damage, err error) {
	file, err := openFile(name)
	switch {
	case errors.Is(err, io.EOF): // its process wrote nothing
		return nil, nil
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF):
		return []Damage{{name, 1, cutOff(err)}}, nil
	case err != nil:
		return nil, err
	}
	defer func() { _ = file.close() }() // it was only read
	return ReadLines(name, file, each)
}

// ReadLines calls a function with each entry in lines, and returns what it could not read. An error
// is one of the function.
func ReadLines(name string, from io.Reader, each func(*Entry) error) (damages []Damage, err error) {
	lines := bufio.NewReaderSize(from, 64<<10)
	for number := 1; ; number++ {
		line, err := readLine(lines)
		if err == nil && len(line) > 0 {
			entry := &Entry{}
			if err := json.Unmarshal(line, entry); err != nil {
				damages = append(damages, Damage{name, number, err})
			} else if err := each(entry); err != nil {
				return damages, err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return damages, nil
		case err != nil:
			return append(damages, Damage{name, number, cutOff(err)}), nil
		}
	}
}

// cutOff says what it means that a file ends too early.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the rest is missing: its process crashed, or still records")
	}
	return fmt.Errorf("the rest cannot be read: %w", err)
}

// readLine returns a line. The error is io.EOF with a part of one at the end.
func readLine(lines *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := lines.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return line, fmt.Errorf("it has more than %d bytes", maxLine)
		case err == nil:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}

// rewriteFile reads the entries of one file and writes what is made of them in its place.
func rewriteFile(name string, each func(*Entry) (keep bool, err error)) (damages []Damage, err error) {
	into, err := os.CreateTemp(filepath.Dir(name), ".rewritten-*")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(into.Name()))
		}
	}()
	buffered := bufio.NewWriter(into)
	var lines io.Writer = buffered
	finish := buffered.Flush
	if strings.HasSuffix(name, gzipSuffix) {
		compressed := gzip.NewWriter(buffered)
		lines, finish = compressed, func() error { return errors.Join(compressed.Close(), buffered.Flush()) }
	}
	damages, err = readFile(name, func(entry *Entry) error {
		keep, err := each(entry)
		if err != nil || !keep {
			return err
		}
		line, err := encode(entry)
		if err == nil {
			_, err = lines.Write(append(line, '\n'))
		}
		return err
	})
	if err = errors.Join(err, finish(), into.Close()); err != nil {
		return damages, err
	}
	return damages, os.Rename(into.Name(), name)
}
