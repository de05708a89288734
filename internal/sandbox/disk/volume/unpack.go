package volume

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

var _ engi.VolumeUnpacker = (*files)(nil)

// Unpack implements [engi.VolumeUnpacker]. It syncs once, at the end: syncing each
// of thousands of files would take longer than all other work.
func (f *files) Unpack(ctx context.Context, r io.Reader) (err error) {
	defer engi.Annotate(&err, "unpack into volume %s", f.record.ID)
	tr := tar.NewReader(r)
	u := unpacker{f: f}
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return u.end()
		}
		if err != nil {
			return unreadable(err)
		}
		if h.Name, err = relPath("/" + h.Name); err != nil {
			return err
		}
		if err := u.add(ctx, h, tr); err != nil {
			return err
		}
	}
}

// copyFrom copies files into the volume, in the same way as Unpack.
func (f *files) copyFrom(ctx context.Context, content fs.FS) error {
	u := unpacker{f: f}
	if err := fs.WalkDir(content, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return fault("read", name, err)
		}
		info, err := e.Info()
		if err != nil {
			return fault("read", name, err)
		}
		link := ""
		if info.Mode().Type() == fs.ModeSymlink {
			if link, err = fs.ReadLink(content, name); err != nil {
				return fault("read", name, err)
			}
		}
		h, err := tar.FileInfoHeader(unnamed{info}, link)
		if err != nil {
			return engi.Errorf(engi.Invalid, "%.200q: %v", name, err)
		}
		h.Name = name
		if !info.Mode().IsRegular() {
			return u.add(ctx, h, nil)
		}
		from, err := content.Open(name)
		if err != nil {
			return fault("read", name, err)
		}
		defer from.Close()
		return u.add(ctx, h, from)
	}); err != nil {
		return err
	}
	return u.end()
}

// An unnamed is a file info without names of owners.
type unnamed struct{ fs.FileInfo }

// Uname implements [tar.FileInfoNames].
func (unnamed) Uname() (string, error) { return "", nil }

// Gname implements [tar.FileInfoNames].
func (unnamed) Gname() (string, error) { return "", nil }

// An unpacker writes files into a volume.
type unpacker struct {
	f    *files
	dirs []*tar.Header
}

func (u *unpacker) add(ctx context.Context, h *tar.Header, r io.Reader) error {
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
	if h.Typeflag == tar.TypeDir {
		u.dirs = append(u.dirs, h)
	}
	return u.f.volumeFull(u.f.unpackOne(ctx, h, r))
}

// end sets the attributes of directories and syncs all files to disk.
func (u *unpacker) end() error {
	// Do this last, so that a directory without write permission is filled before, and
	// the deepest first, since a new name in a directory changes its time.
	for _, h := range slices.Backward(u.dirs) {
		d, err := u.f.openDir(h.Name)
		if err != nil {
			return err
		}
		err = u.f.setAttr(h, d)
		d.Close()
		if err != nil {
			return err
		}
	}
	if err := unix.Syncfs(int(u.f.tmp.Fd())); err != nil {
		return u.f.volumeFull(fault("sync", "/", err))
	}
	return nil
}

// unreadable classifies an error of a stream. An error with a kind keeps it; others mean a damaged archive.
func unreadable(err error) error {
	if kind := engi.KindOf(err); kind != engi.Internal {
		return engi.Errorf(kind, "%w", err)
	}
	return engi.Errorf(engi.Invalid, "the archive is damaged: %v", err)
}

func (f *files) unpackOne(ctx context.Context, h *tar.Header, r io.Reader) error {
	if h.Name == "." {
		return nil
	}
	if st, err := f.root.Lstat(h.Name); err == nil && (h.Typeflag != tar.TypeDir || !st.IsDir()) {
		if err := f.root.RemoveAll(h.Name); err != nil {
			return fault("replace", h.Name, err)
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := f.root.MkdirAll(h.Name, 0o700); err != nil {
			return fault("make directory", h.Name, err)
		}
		return nil
	case tar.TypeSymlink:
		if err := f.root.Symlink(h.Linkname, h.Name); err != nil {
			return fault("link", h.Name, err)
		}
		if !privileged {
			return nil
		}
		if err := f.root.Lchown(h.Name, h.Uid, h.Gid); err != nil {
			return fault("change owner of", h.Name, err)
		}
		return nil
	case tar.TypeReg:
		return f.unpackFile(ctx, h, r)
	}
	return engi.Errorf(engi.Invalid, "%.200q is not a file, directory or link", h.Name)
}

func (f *files) unpackFile(ctx context.Context, h *tar.Header, r io.Reader) error {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	out, err := f.root.OpenFile(h.Name, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := f.root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
			return fault("make directory", path.Dir(h.Name), err)
		}
		out, err = f.root.OpenFile(h.Name, flags, 0o600)
	}
	if err != nil {
		return fault("write", h.Name, err)
	}
	defer out.Close()
	src := &source{ctx: ctx, r: r}
	if !f.record.Image {
		src.budget = f.budget
	}
	if _, err := io.Copy(struct{ io.Writer }{out}, src); err != nil {
		f.refund(src.spent)
		if src.err != nil {
			return unreadable(src.err)
		}
		return fault("write", h.Name, err)
	}
	if err := f.setAttr(h, out); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return fault("write", h.Name, err)
	}
	return nil
}

// setAttr sets owner, permissions and time of an open file or directory.
func (f *files) setAttr(h *tar.Header, open *os.File) error {
	if privileged {
		if err := open.Chown(h.Uid, h.Gid); err != nil {
			return fault("change owner of", h.Name, err)
		}
	}
	if err := open.Chmod(fs.FileMode(h.Mode) & fs.ModePerm); err != nil {
		return fault("change mode of", h.Name, err)
	}
	if err := f.root.Chtimes(h.Name, time.Time{}, h.ModTime); err != nil {
		return fault("change time of", h.Name, err)
	}
	return nil
}
