package volume

import (
	"archive/tar"
	"context"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
)

var _ engi.VolumeUnpacker = (*files)(nil)

// Unpack implements [engi.VolumeUnpacker]. It syncs once, at the end: syncing each
// of thousands of files takes longer than everything else.
func (f *files) Unpack(ctx context.Context, r io.Reader) (err error) {
	defer engi.Annotate(&err, "unpack into volume %s", f.record.ID)
	tr := tar.NewReader(r)
	var dirs []*tar.Header
	for {
		if ctx.Err() != nil {
			return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return unreadable(err)
		}
		if h.Name, err = relPath("/" + h.Name); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			dirs = append(dirs, h)
		}
		if err := f.unpackOne(ctx, h, tr); err != nil {
			return f.volumeFull(err)
		}
	}
	// Last, so that a directory that nobody may write to is filled before, and
	// the deepest first, since names in a directory change its time.
	for _, h := range slices.Backward(dirs) {
		if err := f.setAttr(h); err != nil {
			return err
		}
	}
	if err := unix.Syncfs(int(f.tmp.Fd())); err != nil {
		return f.volumeFull(fault("sync", "/", err))
	}
	return nil
}

// unreadable classifies an error of a stream, whose source may have said why.
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
	if err := f.root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
		return fault("make directory", path.Dir(h.Name), err)
	}
	out, err := f.root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
	if err := out.Close(); err != nil {
		return fault("write", h.Name, err)
	}
	return f.setAttr(h)
}

// setAttr sets owner, permissions and time of a file or directory.
func (f *files) setAttr(h *tar.Header) error {
	if privileged {
		if err := f.root.Chown(h.Name, h.Uid, h.Gid); err != nil {
			return fault("change owner of", h.Name, err)
		}
	}
	if err := f.root.Chmod(h.Name, fs.FileMode(h.Mode)&fs.ModePerm); err != nil {
		return fault("change mode of", h.Name, err)
	}
	if err := f.root.Chtimes(h.Name, time.Time{}, h.ModTime); err != nil {
		return fault("change time of", h.Name, err)
	}
	return nil
}
