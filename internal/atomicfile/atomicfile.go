// Package atomicfile writes files atomically: after a crash, a file is complete or absent.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path. When it returns nil, the file survives a loss of
// power. After a kill, a file that begins with .write- may stay in the directory.
func Write(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, mode, os.Rename)
}

// Create is like Write, but does not replace an existing file.
func Create(path string, data []byte, mode fs.FileMode) error {
	if err := write(path, data, mode, os.Link); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func write(path string, data []byte, mode fs.FileMode, put func(from, to string) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".write-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // no effect after a rename
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := put(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
