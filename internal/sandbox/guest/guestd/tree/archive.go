package tree

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// Pack writes dir and everything below it as a tar archive. Names begin with the
// last element of dir. It skips sockets, pipes, devices and files that vanish,
// and fails if a file shrinks.
func Pack(w io.Writer, dir string) error {
	if _, err := os.Lstat(dir); err != nil {
		return Classify(err, "pack", dir)
	}
	tw := tar.NewWriter(w)
	base := filepath.Dir(filepath.Clean(dir))
	buf := make([]byte, 256<<10)
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil
			}
			return Classify(err, "pack", p)
		}
		rel, err := filepath.Rel(base, p)
		if err != nil || rel == "." {
			return nil
		}
		fi, err := e.Info()
		if err != nil {
			return nil // the file is gone by now
		}
		return packOne(tw, p, rel, fi, buf)
	})
	if err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return engi.Errorf(engi.Unavailable, "pack %s: %v", dir, err)
	}
	return nil
}

func packOne(tw *tar.Writer, p, rel string, fi fs.FileInfo, buf []byte) error {
	h := &tar.Header{Name: rel, Mode: int64(fi.Mode().Perm()), ModTime: fi.ModTime(), Format: tar.FormatPAX}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
		h.Mode = int64(st.Mode & 0o7777)
	}
	if strings.IndexByte(rel, 0) >= 0 {
		return nil
	}
	var file *os.File
	switch {
	case fi.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, rel+"/"
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(p)
		if err != nil {
			return nil
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case fi.Mode().IsRegular():
		f, err := OpenRegular(p)
		if err != nil {
			return nil // the file is gone, or of another type by now
		}
		defer f.Close()
		now, err := f.Stat()
		if err != nil {
			return Classify(err, "pack", p)
		}
		file, h.Typeflag, h.Size = f, tar.TypeReg, now.Size()
	default:
		return nil
	}
	if err := tw.WriteHeader(h); err != nil {
		return engi.Errorf(engi.Unavailable, "pack %s: %v", p, err)
	}
	if file == nil {
		return nil
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{tw}, struct{ io.Reader }{io.LimitReader(file, h.Size)}, buf)
	if err != nil || n != h.Size {
		return engi.Errorf(engi.Conflict, "pack %s: %d of %d bytes: %v", p, n, h.Size, err)
	}
	return nil
}

// Unpack extracts a tar archive below dir, which it creates if missing. It never
// writes outside dir, whatever names and links the archive has. It reports Invalid for devices
// and pipes. It replaces existing files.
func Unpack(dir string, r io.Reader, o Owner) (err error) {
	defer engi.Annotate(&err, "unpack into %s", dir)
	if err := MakeDirAll(dir, o); err != nil {
		return err
	}
	d, err := OpenDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			// Read the padding, so that the sender finishes and sees the answer.
			io.Copy(io.Discard, io.LimitReader(r, 1<<20))
			return nil
		}
		if err != nil {
			return engi.Errorf(engi.Invalid, "the archive is damaged: %v", err)
		}
		if err := d.unpackOne(h, tr, o); err != nil {
			return err
		}
	}
}

func (d *Dir) unpackOne(h *tar.Header, r io.Reader, o Owner) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
	if name == "" || name == "." {
		return nil
	}
	name = path.Clean(name)
	if strings.HasPrefix(h.Name, "/") || strings.HasPrefix(name, "../") || name == ".." {
		return engi.Errorf(engi.Invalid, "name %.200q is outside of the directory", h.Name)
	}
	if err := wire.CheckRelative(name); err != nil {
		return err
	}
	perm := uint32(h.Mode & 0o777)
	if h.Typeflag != tar.TypeDir {
		// Remove an existing file at the name, since it may be a link that Create would follow.
		if err := d.unlink(name, o); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		parent, last, err := d.parent(name, o)
		if err != nil {
			return err
		}
		if parent != d.fd {
			defer unix.Close(parent)
		}
		fd, err := openStep(parent, last, o)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Fchmod(fd, perm|0o700); err != nil {
			return Classify(err, "set mode of", name)
		}
	case tar.TypeReg:
		if _, err := d.Create(name, perm, o, r, h.Size); err != nil {
			return err
		}
	case tar.TypeSymlink:
		return d.link(name, o, func(parent int, last string) error {
			if err := unix.Symlinkat(h.Linkname, parent, last); err != nil {
				return err
			}
			if o.UID >= 0 {
				return unix.Fchownat(parent, last, o.UID, o.GID, unix.AT_SYMLINK_NOFOLLOW)
			}
			return nil
		})
	case tar.TypeLink:
		target := path.Clean(strings.TrimPrefix(h.Linkname, "./"))
		if err := wire.CheckRelative(target); err != nil {
			return engi.Errorf(engi.Invalid, "link %.200q: %w", h.Name, err)
		}
		from, base, err := d.parent(target, o)
		if err != nil {
			return err
		}
		if from != d.fd {
			defer unix.Close(from)
		}
		return d.link(name, o, func(parent int, last string) error {
			return unix.Linkat(from, base, parent, last, 0) // does not follow links
		})
	default:
		return engi.Errorf(engi.Invalid, "%.200q is not a file, directory or link", h.Name)
	}
	return nil
}

// link calls create with the parent of name and its last element.
func (d *Dir) link(name string, o Owner, create func(parent int, last string) error) error {
	parent, last, err := d.parent(name, o)
	if err != nil {
		return err
	}
	if parent != d.fd {
		defer unix.Close(parent)
	}
	if err := create(parent, last); err != nil {
		return Classify(err, "link", name)
	}
	return nil
}

// unlink removes a file or link at name. It reports Conflict for a directory.
func (d *Dir) unlink(name string, o Owner) error {
	parent, last, err := d.parent(name, o)
	if err != nil {
		return err
	}
	if parent != d.fd {
		defer unix.Close(parent)
	}
	if err := unix.Unlinkat(parent, last, 0); err != nil && err != unix.ENOENT {
		return Classify(err, "replace", name)
	}
	return nil
}
