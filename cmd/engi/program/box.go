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

	"github.com/engi-dev/engi"
)

// A Box is a directory that files of a stranger are written to. No name and
// no link, made before or meanwhile, leads out of it.
type Box struct{ root *os.Root }

// OpenBox opens dir, and makes it if it is not there. The caller closes it.
func OpenBox(dir string) (*Box, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, engi.Errorf(engi.Denied, "%v", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, engi.Errorf(engi.Denied, "%v", err)
	}
	return &Box{root}, nil
}

// Close closes the box.
func (b *Box) Close() error { return b.root.Close() }

// Write writes a file whole or not at all: exactly size bytes with the given
// hash, in hex. It reports Invalid for names that are not plain relative
// paths, and Internal for content that is not what was promised.
func (b *Box) Write(name string, mode fs.FileMode, size int64, sum string, r io.Reader) error {
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
		err = engi.Errorf(engi.Internal, "%d bytes arrived that are not the %d promised ones", n, size).WithRemedy("fetch it again")
	} else if err != nil {
		err = engi.Errorf(engi.Unavailable, "%v", err)
	}
	if err == nil {
		if err = b.root.Rename(tmp, filepath.FromSlash(name)); err != nil {
			err = engi.Errorf(engi.Conflict, "%v", err).WithRemedy("something else is at that place: choose an empty directory")
		}
	}
	if err != nil {
		b.root.Remove(tmp)
	}
	return err
}

// printable refuses names that would deceive somebody who lists them.
func printable(name string) bool {
	for _, c := range name {
		if c < ' ' || c == 0x7f || c == 0xfffd {
			return false
		}
	}
	return true
}
