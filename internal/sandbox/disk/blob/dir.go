// Package blob stores blobs by name, in a directory or in a bucket of any service
// with the protocol of S3. Both stores implement [engi.Blobs].
package blob

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// A Dir stores blobs as files.
type Dir struct{ root string }

var _ engi.Blobs = (*Dir)(nil)

// partial is the beginning of the names of incomplete files.
const partial = ".new-"

const stale = time.Hour // age from which an incomplete file counts as abandoned

// OpenDir returns a store in a directory, which it creates if missing.
func OpenDir(root string) (*Dir, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, engi.Errorf(engi.Unavailable, "open the store of workspaces: %v", err)
	}
	return &Dir{root}, nil
}

func (d *Dir) file(name string) (string, error) {
	if !fs.ValidPath(name) || strings.ContainsAny(name, "\\\x00") || strings.HasPrefix(path.Base(name), ".") {
		return "", engi.Errorf(engi.Invalid, "%.200q is not a name of a blob", name)
	}
	return filepath.Join(d.root, filepath.FromSlash(name)), nil
}

// Put implements [engi.Blobs].
func (d *Dir) Put(_ context.Context, name string, data []byte) (err error) {
	defer engi.Annotate(&err, "store %s", name)
	file, err := d.file(name)
	if err != nil {
		return err
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return classify(err)
	}
	out, err := os.CreateTemp(dir, partial)
	if err != nil {
		return classify(err)
	}
	_, err = out.Write(data)
	if err == nil {
		err = out.Sync()
	}
	if e := out.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(out.Name(), file)
	}
	if err != nil {
		_ = os.Remove(out.Name()) // an incomplete file has no use
		return classify(err)
	}
	at, err := os.Open(dir)
	if err != nil {
		return classify(err)
	}
	defer at.Close()
	return classify(at.Sync())
}

// Get implements [engi.Blobs].
func (d *Dir) Get(_ context.Context, name string, limit int64) (_ []byte, err error) {
	defer engi.Annotate(&err, "read %s", name)
	file, err := d.file(name)
	if err != nil {
		return nil, err
	}
	in, err := os.Open(file)
	if err != nil {
		return nil, classify(err)
	}
	defer in.Close()
	return readAll(in, limit)
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, classify(err)
	}
	if int64(len(data)) > limit {
		return nil, engi.Errorf(engi.Conflict, "it has more than %d bytes", limit)
	}
	return data, nil
}

// List implements [engi.Blobs]. It skips files that a kill left
// incomplete, and removes them after a while.
func (d *Dir) List(ctx context.Context, prefix string) iter.Seq2[engi.Blob, error] {
	return func(yield func(engi.Blob, error) bool) {
		top := filepath.Join(d.root, filepath.FromSlash(path.Dir(prefix+"x")))
		err := filepath.WalkDir(top, func(file string, e fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case ctx.Err() != nil:
				return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
			case e.IsDir():
				return nil
			}
			rel, err := filepath.Rel(d.root, file)
			name := filepath.ToSlash(rel)
			if err != nil || !strings.HasPrefix(name, prefix) {
				return err
			}
			fi, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && strings.HasPrefix(e.Name(), partial) {
				if time.Since(fi.ModTime()) > stale {
					_ = os.Remove(file) // if this fails, the next listing removes the file
				}
				return nil
			}
			if err == nil && !yield(engi.Blob{Name: name, Size: fi.Size()}, nil) {
				return fs.SkipAll
			}
			return err
		})
		if err != nil {
			yield(engi.Blob{}, engi.Errorf(engi.KindOf(classify(err)), "list %s: %w", prefix, err))
		}
	}
}

// Remove implements [engi.Blobs].
func (d *Dir) Remove(_ context.Context, name string) error {
	file, err := d.file(name)
	if err != nil {
		return err
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return engi.Errorf(engi.KindOf(classify(err)), "remove %s: %w", name, err)
	}
	return nil
}

func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case !engi.Is(err, engi.Internal):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return engi.Errorf(engi.NotFound, "there is no such blob")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return engi.Errorf(engi.Exhausted, "the disk of the store is full").WithRemedy("the operator makes room, or sets sandbox.workspaces to another place")
	}
	return engi.Errorf(engi.Unavailable, "%v", err)
}
