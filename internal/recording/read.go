package recording

import (
	"bufio"
	"bytes"
	"cmp"
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
	// Line is the number of the line, from 1. It is 0 if it is about the file.
	Line int
	Err  error
}

func (d Damage) String() string {
	if d.Line == 0 {
		return fmt.Sprintf("%s: %v", d.File, d.Err)
	}
	return fmt.Sprintf("%s, line %d: %v", d.File, d.Line, d.Err)
}

// ErrNothing is the error for folders without recordings.
var ErrNothing = errors.New("no admission is recorded there: name a folder of --record, with files *" + gzipSuffix + " or *" + plainSuffix)

// Read calls a function with each entry in folders, the oldest of a folder first, and returns what
// it could not read. An error is one of the function, or says that a folder has no recordings.
func Read(dirs []string, each func(*Entry) error) ([]Damage, error) {
	return walkDirs(dirs, func(name string) ([]Damage, error) { return readFile(name, each) })
}

// A Change says what becomes of an entry.
type Change int

// The changes.
const (
	Keep Change = iota
	Replace
	Remove
)

// Rewrite is [Read] with a function that may change the entries, or leave them out. A file in which
// something changes is replaced as a whole, when all is written. What cannot be read stays in it.
func Rewrite(dirs []string, each func(*Entry) (Change, error)) ([]Damage, error) {
	return walkDirs(dirs, func(name string) ([]Damage, error) { return rewriteFile(name, each) })
}

func walkDirs(dirs []string, each func(name string) ([]Damage, error)) ([]Damage, error) {
	var damages []Damage
	for _, dir := range dirs {
		files, left, err := find(dir)
		if err != nil {
			return damages, err
		}
		damages = append(damages, left...)
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

// find returns the recordings in a folder, the oldest first, and what is no file or in a folder
// of it. A symbolic link, as in a volume of a ConfigMap, is as good as its file.
func find(dir string) (files []string, left []Damage, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		if entry.IsDir() {
			if inner, err := filesOf(name); err == nil && len(inner) > 0 {
				left = append(left, Damage{name, 0, errors.New("its recordings are not read: name this folder, too")})
			}
			continue
		}
		if !isRecording(entry.Name()) {
			continue
		}
		if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
			left = append(left, Damage{name, 0, cmp.Or(err, errors.New("it is no regular file"))})
			continue
		}
		files = append(files, name)
	}
	return files, left, nil
}

// maxDamages bounds how many parts of a file are named.
const maxDamages = 20

// errNoAdmission is the error of a line of something else.
var errNoAdmission = errors.New("it is no admission that was recorded")

// readFile reads the entries of one file.
func readFile(name string, each func(*Entry) error) (damages []Damage, err error) {
	return readLines(name, each, func([]byte) error { return nil })
}

// readLines is readFile, and calls skip with what it cannot read.
func readLines(name string, each func(*Entry) error, skip func(line []byte) error) (damages []Damage, err error) {
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
	return readFrom(name, file, each, skip)
}

// ReadLines calls a function with each entry in lines, and returns what it could not read. An error
// is one of the function.
func ReadLines(name string, from io.Reader, each func(*Entry) error) ([]Damage, error) {
	return readFrom(name, from, each, func([]byte) error { return nil })
}

// readFrom is ReadLines, and calls skip with what it cannot read.
func readFrom(name string, from io.Reader, each func(*Entry) error, skip func(line []byte) error) (damages []Damage, err error) {
	more := 0
	damaged := func(number int, line []byte, why error) error {
		if len(damages) < maxDamages {
			damages = append(damages, Damage{name, number, why})
		} else {
			more++
		}
		return skip(line)
	}
	defer func() {
		if more > 0 {
			damages = append(damages, Damage{name, 0, fmt.Errorf("and %d more lines", more)})
		}
	}()
	lines := bufio.NewReaderSize(from, 64<<10)
	for number := 1; ; number++ {
		line, err := readLine(lines)
		if err == nil && len(line) > 0 {
			entry, why := parse(line)
			if why != nil {
				why = damaged(number, append(line, '\n'), why)
			} else {
				why = each(entry)
			}
			if why != nil {
				return damages, why
			}
		}
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return damages, nil
		case err != nil:
			return damages, damaged(number, line, cutOff(err))
		}
	}
}

func parse(line []byte) (*Entry, error) {
	entry := &Entry{}
	if err := json.Unmarshal(line, entry); err != nil {
		return nil, err
	}
	if len(entry.Request) == 0 || entry.Webhook.Name == "" || entry.Answer.Outcome == "" {
		return nil, errNoAdmission
	}
	return entry, nil
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
func rewriteFile(name string, each func(*Entry) (Change, error)) (damages []Damage, err error) {
	if name, err = filepath.EvalSymlinks(name); err != nil {
		return nil, err
	}
	into, err := os.CreateTemp(filepath.Dir(name), ".rewritten-*")
	if err != nil {
		return nil, err
	}
	changed := false
	defer func() {
		if err != nil || !changed {
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
	write := func(line []byte) error {
		_, err := lines.Write(line)
		return err
	}
	damages, err = readLines(name, func(entry *Entry) error {
		change, err := each(entry)
		changed = changed || change != Keep
		if err != nil || change == Remove {
			return err
		}
		line, err := encode(entry)
		return errors.Join(err, write(append(line, '\n')))
	}, write)
	if err = errors.Join(err, finish(), into.Close()); err != nil || !changed {
		return damages, err
	}
	return damages, os.Rename(into.Name(), name)
}
