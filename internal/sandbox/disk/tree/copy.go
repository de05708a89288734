package tree

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// Copy copies the content of tree from to tree to, with owners, modes, times and links, but
// without sockets and device nodes. progress, which may be nil, is called with the
// bytes of each file.
func Copy(ctx context.Context, to, from *Tree, progress func(bytes int64)) error {
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := from.Pack(ctx, pw)
		pw.CloseWithError(err)
		packed <- err
	}()
	_, err := to.Extract(ctx, pr, ExtractOptions{Budget: &Budget{Bytes: 1 << 60, Entries: 1 << 30}, Progress: progress})
	if err == nil {
		_, err = io.Copy(io.Discard, pr) // padding after the archive
	}
	pr.CloseWithError(io.ErrClosedPipe)
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		return packErr
	}
	return err
}

// Pack writes the tree as a tar stream in the order of names.
func (t *Tree) Pack(ctx context.Context, w io.Writer) error {
	p := packer{ctx: ctx, w: tar.NewWriter(w), seen: map[[2]uint64]string{}, buf: make([]byte, 256<<10)}
	if err := p.dir(int(t.root.Fd()), ""); err != nil {
		return err
	}
	return p.w.Close()
}

type packer struct {
	ctx  context.Context
	w    *tar.Writer
	seen map[[2]uint64]string // first name of each file with several links, by device and inode
	buf  []byte
}

func (p *packer) dir(at int, name string) error {
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrap("list", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return wrap("list", name, err)
	}
	slices.Sort(names)
	for _, base := range names {
		if err := p.ctx.Err(); err != nil {
			return engi.Errorf(engi.Expired, "pack: %v", err)
		}
		if err := p.entry(fd, base, path.Join(name, base)); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(dir int, base, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return wrap("stat", name, err)
	}
	h := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec), Format: tar.FormatPAX,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := p.w.WriteHeader(h); err != nil {
			return err
		}
		fd, err := unix.Openat(dir, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return wrap("open", name, err)
		}
		defer unix.Close(fd)
		return p.dir(fd, name)
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, base, buf)
		if err != nil {
			return wrap("read link", name, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(buf[:n])
		return p.w.WriteHeader(h)
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
		return p.w.WriteHeader(h)
	case unix.S_IFREG:
		return p.file(dir, base, h, &st)
	}
	return nil
}

func (p *packer) file(dir int, base string, h *tar.Header, st *unix.Stat_t) error {
	if st.Nlink > 1 {
		id := [2]uint64{uint64(st.Dev), st.Ino}
		if first, ok := p.seen[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return p.w.WriteHeader(h)
		}
		p.seen[id] = h.Name
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return wrap("open", h.Name, err)
	}
	f := os.NewFile(uintptr(fd), h.Name)
	defer f.Close()
	caps := make([]byte, 64)
	if n, err := unix.Fgetxattr(fd, "security.capability", caps); err == nil {
		h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": string(caps[:n])}
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if err := p.w.WriteHeader(h); err != nil {
		return engi.Errorf(engi.Internal, "pack %s: %v", strconv.Quote(h.Name), err)
	}
	n, err := io.CopyBuffer(p.w, io.LimitReader(f, st.Size), p.buf)
	if err == nil && n < st.Size {
		return engi.Errorf(engi.Conflict, "pack %s: it shrinks while it is read", h.Name)
	}
	return err
}
