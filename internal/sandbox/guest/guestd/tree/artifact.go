package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// A Search selects the files to collect.
type Search struct {
	Since time.Time        // files whose inode last changed before this time are skipped
	Known map[string]Stamp // files to skip if unchanged, by path relative to the directory
	Bytes int64            // maximum total size of all artifacts
	Count int              // maximum number of artifacts
}

// Bounds of a walk, since programs control the tree.
const (
	maxDepth   = 64
	maxEntries = 200_000
	maxWalk    = 10 * time.Second
)

// Collect lists the regular files below dir that are new or changed, in path
// order, and counts those it skips because they are over the limits, unreadable,
// or have invalid names.
func Collect(dir string, s Search) (found []wire.Artifact, skipped int, err error) {
	d, err := OpenDir(dir)
	if engi.Is(err, engi.NotFound) {
		return nil, 0, nil // the program has removed the directory
	}
	if err != nil {
		return nil, 0, err
	}
	defer d.Close()
	w := &walk{s: s, deadline: time.Now().Add(maxWalk)}
	w.dir(d.fd, "", 0)
	return w.found, w.skipped, nil
}

type walk struct {
	s        Search
	deadline time.Time
	entries  int
	bytes    int64
	found    []wire.Artifact
	skipped  int
}

// dir walks a directory. The caller closes fd.
func (w *walk) dir(fd int, rel string, depth int) {
	names, err := readNames(fd, maxEntries-w.entries)
	if err != nil {
		w.skipped++
	}
	slices.Sort(names)
	for _, name := range names {
		if w.entries++; w.entries >= maxEntries || time.Now().After(w.deadline) {
			w.skipped++
			return
		}
		p := path.Join(rel, name)
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue // the entry is gone by now
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if name == "__pycache__" {
				continue
			}
			if depth >= maxDepth || wire.CheckRelative(p) != nil {
				w.skipped++
				continue
			}
			sub, err := openDirAt(fd, name)
			if err != nil {
				w.skipped++
				continue
			}
			w.dir(sub, p, depth+1)
			unix.Close(sub)
		case unix.S_IFREG:
			w.file(fd, name, p, &st)
		}
	}
}

func (w *walk) file(fd int, name, p string, st *unix.Stat_t) {
	if known, ok := w.s.Known[p]; ok && known == stamp(st) {
		return
	}
	if time.Unix(st.Ctim.Unix()).Before(w.s.Since) {
		return
	}
	if wire.CheckRelative(p) != nil || len(w.found) >= w.s.Count || st.Size > w.s.Bytes-w.bytes {
		w.skipped++
		return
	}
	f, err := openFile(fd, name)
	if err != nil {
		w.skipped++
		return
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, w.s.Bytes-w.bytes+1))
	if err != nil || n > w.s.Bytes-w.bytes {
		w.skipped++
		return
	}
	w.bytes += n
	w.found = append(w.found, wire.Artifact{Path: p, Size: n, Mode: st.Mode & 0o777, SHA256: hex.EncodeToString(h.Sum(nil))})
}

// openFile opens a regular file without following a link or blocking on a pipe.
func openFile(fd int, name string) (*os.File, error) {
	got, err := retry(func() (int, error) {
		return unix.Openat(fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(got, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(got)
		return nil, unix.EINVAL
	}
	return os.NewFile(uintptr(got), name), nil
}

// OpenBelow opens the regular file rel below dir, without following links.
func OpenBelow(dir, rel string) (*os.File, error) {
	d, err := OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd := d.fd
	for {
		first, rest, more := strings.Cut(rel, "/")
		if !more {
			break
		}
		next, err := openDirAt(fd, first)
		if fd != d.fd {
			unix.Close(fd)
		}
		if err != nil {
			return nil, Classify(err, "enter", first)
		}
		fd, rel = next, rest
	}
	f, err := openFile(fd, rel)
	if fd != d.fd {
		unix.Close(fd)
	}
	if err != nil {
		return nil, Classify(err, "open", rel)
	}
	return f, nil
}

// readNames returns at most n names in an open directory.
func readNames(fd, n int) ([]string, error) {
	// Use a copy of the descriptor: the finalizer of os.File closes it.
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dup), "directory")
	defer f.Close()
	names, err := f.Readdirnames(max(1, n))
	if err == io.EOF {
		err = nil
	}
	return names, err
}
