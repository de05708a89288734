package tree

import (
	"archive/tar"
	"context"
	"errors"
	"hash/maphash"
	"io"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// Names of whiteouts in OCI layers, which delete files of lower layers.
const (
	whiteout     = ".wh."
	whiteoutMeta = ".wh..wh."
	opaque       = ".wh..wh..opq"
)

// A Budget bounds the unpacked size of a series of archives. It belongs to one
// goroutine.
type Budget struct {
	Bytes   int64 // remaining bytes of file content
	Entries int   // remaining number of entries
}

// ExtractOptions configures the extraction of an archive.
type ExtractOptions struct {
	Whiteouts bool              // the archive is an OCI layer for the existing tree
	FilesOnly bool              // entries other than files and directories are Invalid
	Budget    *Budget           // limits of the extraction; required; Extract decrements it
	Progress  func(bytes int64) // called with the bytes of entries as they are written; may be nil
}

// Skipped holds the numbers of entries of an archive that were not extracted.
type Skipped struct {
	Devices int // number of device nodes
	Other   int // number of entries of unknown types
}

// Extract extracts a tar stream to the tree. Entries replace existing files, but
// directories are merged. It reports Invalid for names with ".." and for hard links
// to missing files, and Exhausted if the budget is exceeded. It keeps set-ID bits,
// so the tree must be in a directory that other users cannot access. After an
// error, the tree is incomplete and must be discarded.
func (t *Tree) Extract(ctx context.Context, r io.Reader, o ExtractOptions) (Skipped, error) {
	x := extraction{t: t, o: o, lateModes: map[string]fs.FileMode{}}
	if o.Whiteouts {
		x.seed, x.added = maphash.MakeSeed(), map[uint64]struct{}{}
	}
	tr := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return x.skipped, engi.Errorf(engi.Expired, "extract: %v", err)
		}
		h, err := tr.Next()
		if err == io.EOF {
			return x.skipped, x.finish()
		}
		if err != nil {
			return x.skipped, readError(err)
		}
		if err := x.entry(h, tr); err != nil {
			return x.skipped, err
		}
	}
}

type extraction struct {
	t         *Tree
	o         ExtractOptions
	skipped   Skipped
	seed      maphash.Seed
	added     map[uint64]struct{}    // hashes of the names in this layer, with parents
	lateModes map[string]fs.FileMode // modes of directories to set at the end, since they would deny this process access
}

func (x *extraction) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if x.o.Budget.Entries--; x.o.Budget.Entries < 0 {
		return engi.Errorf(engi.Exhausted, "extract: the archive has too many entries").WithRemedy("remove files that the template does not need")
	}
	name, err := clean(h.Name)
	if err != nil {
		return err
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= 1<<32-1 || int64(h.Gid) >= 1<<32-1 {
		return engi.Errorf(engi.Invalid, "extract %s: impossible owner %d:%d", name, h.Uid, h.Gid)
	}
	owner := Owner{h.Uid, h.Gid}
	mode := h.FileInfo().Mode()

	if x.o.Whiteouts && strings.HasPrefix(path.Base(name), whiteout) {
		return x.whiteout(name)
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return engi.Errorf(engi.Invalid, "extract: the archive replaces the root directory")
		}
		return nil // mode and owner of the root are not taken from archives
	}
	x.markAdded(name)

	if x.o.FilesOnly && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeReg {
		return engi.Errorf(engi.Invalid, "extract %s: only files and directories are allowed", name)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return x.dir(name, mode, owner)
	case tar.TypeReg, tar.TypeGNUSparse:
		if h.Size > x.o.Budget.Bytes {
			return tooBig()
		}
		n, err := x.t.Create(name, &budgetReader{content, x.o.Budget}, File{
			Mode: mode, Owner: owner, Modified: h.ModTime,
			caps: h.PAXRecords["SCHILY.xattr.security.capability"],
		})
		if err != nil {
			return err
		}
		if x.o.Progress != nil {
			x.o.Progress(n)
		}
		return nil
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) >= unix.PathMax || strings.ContainsRune(h.Linkname, 0) {
			return engi.Errorf(engi.Invalid, "extract %s: impossible link target", name)
		}
		return x.t.Symlink(h.Linkname, name, owner)
	case tar.TypeLink:
		old, err := clean(h.Linkname)
		if err != nil {
			return err
		}
		err = x.t.Link(old, name)
		if engi.Is(err, engi.NotFound) {
			return engi.Errorf(engi.Invalid, "extract %s: hard link to %s, which the archive does not have", name, old)
		}
		return err
	case tar.TypeFifo:
		return x.t.Fifo(name, mode, owner)
	case tar.TypeChar, tar.TypeBlock:
		x.skipped.Devices++
		return nil
	default:
		x.skipped.Other++
		return nil
	}
}

func (x *extraction) dir(name string, mode fs.FileMode, o Owner) error {
	if mode&0o700 != 0o700 && !privileged {
		x.lateModes[name] = mode
		mode |= 0o700
	}
	st, err := x.t.Lstat(name)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := x.t.Chown(name, o); err != nil {
			return err
		}
		return x.t.Chmod(name, mode)
	}
	dir, _, err := x.t.replace(name)
	if err != nil {
		return err
	}
	unix.Close(dir)
	return wrap("make directory", name, x.t.mkdir(name, mode, o))
}

// whiteout applies a whiteout: it deletes files of lower layers, but not files of this
// layer, whatever the order of entries.
func (x *extraction) whiteout(name string) error {
	dir, base := path.Split(name)
	if base == opaque {
		fd, err := x.t.open(dir, unix.O_PATH|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return nil
		}
		if err != nil {
			return wrap("clear", dir, err)
		}
		defer unix.Close(fd)
		return wrap("clear", dir, removeBelow(fd, ".", "", x.keeps(dir)))
	}
	if strings.HasPrefix(base, whiteoutMeta) {
		return nil // metadata of another union file system
	}
	gone := strings.TrimPrefix(base, whiteout)
	if gone == "" || gone == "." || gone == ".." {
		return engi.Errorf(engi.Invalid, "extract: whiteout %q deletes a directory it is in", name)
	}
	victim := path.Join(dir, gone)
	fd, base, err := x.t.parent(victim)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return wrap("remove", victim, err)
	}
	defer unix.Close(fd)
	if !x.wasAdded(victim) {
		return wrap("remove", victim, removeAll(fd, base, nil))
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return wrap("remove", victim, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	return wrap("clear", victim, removeBelow(fd, base, "", x.keeps(victim)))
}

func (x *extraction) keeps(dir string) func(string) bool {
	return func(rel string) bool { return x.wasAdded(path.Join(dir, rel)) }
}

func (x *extraction) markAdded(name string) {
	if x.added == nil {
		return
	}
	for name != "." && name != "/" {
		h := maphash.String(x.seed, name)
		if _, known := x.added[h]; known {
			return // the parents are marked already
		}
		x.added[h] = struct{}{}
		name = path.Dir(name)
	}
}

func (x *extraction) wasAdded(name string) bool {
	_, ok := x.added[maphash.String(x.seed, path.Clean(name))]
	return ok
}

func (x *extraction) finish() error {
	for name, mode := range x.lateModes {
		if err := engi.Ignore(x.t.Chmod(name, mode), engi.NotFound); err != nil {
			return err
		}
	}
	return nil
}

// clean returns the relative form of a name in an archive.
func clean(name string) (string, error) {
	if len(name) >= unix.PathMax || strings.ContainsRune(name, 0) {
		return "", engi.Errorf(engi.Invalid, "extract: impossible name of %d bytes", len(name))
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", engi.Errorf(engi.Invalid, "extract: the name %q leads upwards", name).WithRemedy("use an archive whose names stay below its root")
		}
		if len(part) > 255 {
			return "", engi.Errorf(engi.Invalid, "extract: a name has a part of %d bytes", len(part))
		}
	}
	c := strings.TrimPrefix(path.Clean("/"+name), "/")
	if c == "" {
		c = "."
	}
	return c, nil
}

// A budgetReader decrements a budget by the bytes read.
type budgetReader struct {
	r io.Reader
	b *Budget
}

func (s *budgetReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if s.b.Bytes -= int64(n); s.b.Bytes < 0 {
		return n, tooBig()
	}
	if err != nil && err != io.EOF {
		err = readError(err)
	}
	return n, err
}

func tooBig() error {
	return engi.Errorf(engi.Exhausted, "extract: the archive unpacks to more than a template may have").WithRemedy("remove files that the template does not need")
}

// readError classifies an error of reading an archive. An error from outside this package means
// that the archive is broken.
func readError(err error) error {
	if _, ok := errors.AsType[*engi.Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return engi.Errorf(engi.Expired, "extract: %v", err)
	}
	return engi.Errorf(engi.Invalid, "extract: broken archive: %v", err)
}
