package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// repack writes a .tgz anew, with one time for every file in it.
func repack(path string, date time.Time) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var buffer bytes.Buffer
	packed, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
	if err != nil {
		return err
	}
	packed.Comment, packed.Extra = unpacked.Comment, unpacked.Extra // Helm's marks
	reader, writer := tar.NewReader(unpacked), tar.NewWriter(packed)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := writer.WriteHeader(&tar.Header{Name: header.Name, Mode: 0o644, Size: header.Size, Typeflag: header.Typeflag, ModTime: date}); err != nil {
			return err
		}
		if _, err := io.Copy(writer, reader); err != nil {
			return err
		}
	}
	if err := writer.Close(); err != nil {
		return err
	}
	if err := packed.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, buffer.Bytes(), 0o644)
}

// unpack returns the files of a .tar, .tar.gz, .tgz or .zip.
func unpack(name string, content []byte) (map[string][]byte, error) {
	if strings.HasSuffix(name, ".zip") {
		return unzip(content)
	}
	var reader io.Reader = bytes.NewReader(content)
	if !strings.HasSuffix(name, ".tar") {
		unpacked, err := gzip.NewReader(reader)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		reader = unpacked
	}
	files := map[string][]byte{}
	archive := tar.NewReader(reader)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
}

func unzip(content []byte) (map[string][]byte, error) {
	archive, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, entry := range archive.File {
		file, err := entry.Open()
		if err != nil {
			return nil, err
		}
		if files[entry.Name], err = io.ReadAll(file); err != nil {
			return nil, err
		}
	}
	return files, nil
}
