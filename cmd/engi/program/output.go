package program

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/engi-dev/engi/internal/engi"
)

// An OutputDir is a directory for files of an untrusted program. No name or link,
// whenever it was created, leads out of it.
type OutputDir struct{ root *os.Root }

// OpenOutputDir opens dir and creates it if it does not exist. The caller must
// close it.
func OpenOutputDir(dir string) (*OutputDir, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, engi.Errorf(engi.Denied, "%v", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, engi.Errorf(engi.Denied, "%v", err)
	}
	return &OutputDir{root}, nil
}

// Close closes the directory.
func (b *OutputDir) Close() error { return b.root.Close() }

// Write writes a file atomically: exactly size bytes with the given hash, in hex.
// It reports Invalid for names that are not plain relative paths, and Internal for
// other content.
func (b *OutputDir) Write(name string, mode fs.FileMode, size int64, sum string, r io.Reader) error {
	if !fs.ValidPath(name) || name == "." || !filepath.IsLocal(filepath.FromSlash(name)) || !printable(name) {
		return engi.Errorf(engi.Invalid, "this name is not safe to write").WithRemedy("rename the file in the program")
	}
	if dir := path.Dir(name); dir != "." {
		if err := b.root.MkdirAll(filepath.FromSlash(dir), 0o755); err != nil {
			return engi.Errorf(engi.Denied, "%v", err)
		}
	}
	tmp := filepath.FromSlash(path.Join(path.Dir(name), ".engi-"+rand.Text()))
	// No set-id bits, and never unwritable for the owner.
	f, err := b.root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode.Perm()|0o600)
	if err != nil {
		return engi.Errorf(engi.Denied, "%v", err)
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(r, size+1))
	err = errors.Join(err, f.Close())
	if err == nil && (n != size || hex.EncodeToString(h.Sum(nil)) != sum) {
		err = engi.Errorf(engi.Internal, "got %d bytes that do not match the size of %d and the hash", n, size).WithRemedy("fetch it again")
	} else if err != nil {
		err = engi.Errorf(engi.Unavailable, "%v", err)
	}
	if err == nil {
		if err = b.root.Rename(tmp, filepath.FromSlash(name)); err != nil {
			err = engi.Errorf(engi.Conflict, "%v", err).WithRemedy("another object has this name: choose an empty directory")
		}
	}
	if err != nil {
		b.root.Remove(tmp)
	}
	return err
}

// printable reports whether a name has only printable characters.
func printable(name string) bool {
	for _, c := range name {
		if c < ' ' || c == 0x7f || c == 0xfffd {
			return false
		}
	}
	return true
}
