package tree

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// MaxListed bounds the entries of one listing.
const MaxListed = 20_000

// Stat describes a file without following a final link. It leaves the names of
// the owners empty.
func Stat(path string) (wire.FileInfo, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return wire.FileInfo{}, Classify(err, "stat", path)
	}
	return info(path, fi), nil
}

// maxUnsized bounds the bytes read of a file of unknown size. Some such files never
// end.
const maxUnsized = 64 << 20

// Unsized returns the content of a file with a reported size of 0, like the files below
// /proc and /sys. It returns nil if the file is really empty.
func Unsized(f *os.File) io.Reader {
	first := make([]byte, 64<<10)
	n, _ := io.ReadFull(f, first)
	if n == 0 {
		return nil
	}
	return io.MultiReader(bytes.NewReader(first[:n]), io.LimitReader(f, maxUnsized))
}

func info(path string, fi fs.FileInfo) wire.FileInfo {
	w := wire.FileInfo{Path: path, Size: fi.Size(), Mode: uint32(fi.Mode()), Modified: fi.ModTime()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		w.UID, w.GID = int(st.Uid), int(st.Gid)
		w.Changed = time.Unix(st.Ctim.Unix())
	}
	if fi.Mode()&fs.ModeSymlink != 0 {
		if target, err := os.Readlink(path); err == nil { // otherwise the link is gone by now
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(path), target)
			}
			w.Target = target
		}
	}
	return w
}

// List describes the files below dir, depth levels deep, in path order. It does
// not follow links, and reports Exhausted for more than MaxListed entries.
func List(dir string, depth int) ([]wire.FileInfo, error) {
	fi, err := os.Stat(dir)
	if err != nil {
		return nil, Classify(err, "list", dir)
	}
	if !fi.IsDir() {
		return nil, engi.Errorf(engi.Invalid, "path is not a directory: %s", dir)
	}
	all := []wire.FileInfo{}
	err = list(dir, max(1, depth), &all)
	return all, err
}

func list(dir string, depth int, all *[]wire.FileInfo) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Classify(err, "list", dir)
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			continue // the file is gone by now
		}
		if len(*all) >= MaxListed {
			return engi.Errorf(engi.Exhausted, "list %s: more than %d entries", dir, MaxListed).WithRemedy("list smaller directories, or with a smaller depth")
		}
		p := filepath.Join(dir, e.Name())
		*all = append(*all, info(p, fi))
		if e.IsDir() && depth > 1 {
			if err := list(p, depth-1, all); engi.Is(err, engi.Exhausted) {
				return err
			}
		}
	}
	return nil
}

// tempPrefix is the beginning of the names of temporary files. Watches ignore
// them.
const tempPrefix = ".engi-"

// Write replaces the file at path with all of r, or leaves it unchanged: the
// content is written to a temporary file, checked, and renamed. digest is called
// once r has ended, and returns the hex SHA-256 that the content must have, or
// "" for any. If path is a link to an existing file, that file is replaced;
// other links are replaced themselves.
func Write(path string, r io.Reader, perm fs.FileMode, o Owner, digest func() string) (n int64, err error) {
	defer engi.Annotate(&err, "write %s", path)
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if fi, err := os.Lstat(path); err == nil {
		if fi.IsDir() {
			return 0, engi.Errorf(engi.Invalid, "path is a directory")
		}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok && fi.Mode().IsRegular() && perm == 0 {
			perm = fs.FileMode(st.Mode).Perm() // unspecified: keep the mode
		}
	}
	if perm == 0 {
		perm = 0o644
	}
	if err := MakeDirAll(filepath.Dir(path), o); err != nil {
		return 0, err
	}
	temp := filepath.Join(filepath.Dir(path), tempPrefix+strings.ToLower(rand.Text()[:12]))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, perm)
	if err != nil {
		return 0, Classify(err, "create beside", path)
	}
	defer func() {
		if err != nil {
			os.Remove(temp)
		}
	}()
	defer f.Close()
	h := sha256.New()
	buf := make([]byte, 256<<10)
	n, err = io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(f, h)}, struct{ io.Reader }{r}, buf)
	if err != nil {
		if pe, ok := err.(*os.PathError); ok {
			return n, Classify(pe, "write beside", path)
		}
		return n, engi.Errorf(engi.Unavailable, "after %d bytes: %v", n, err)
	}
	if want := digest(); want != "" && !strings.EqualFold(want, hex.EncodeToString(h.Sum(nil))) {
		return n, engi.Errorf(engi.Unavailable, "the content was damaged in transit")
	}
	if err := f.Chmod(perm); err != nil {
		return n, Classify(err, "set mode of", path)
	}
	if o.UID >= 0 {
		if err := f.Chown(o.UID, o.GID); err != nil {
			return n, Classify(err, "give away", path)
		}
	}
	if err := os.Rename(temp, path); err != nil {
		return n, Classify(err, "rename to", path)
	}
	return n, nil
}

// Overwrite writes all of r to the file at path in place. Watches see the file written,
// not replaced, and readers may see a partly written file.
func Overwrite(path string, r io.Reader, o Owner) (err error) {
	defer engi.Annotate(&err, "write %s", path)
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		return engi.Errorf(engi.Invalid, "path is a directory")
	}
	if err := MakeDirAll(filepath.Dir(path), o); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return Classify(err, "open", path)
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return engi.Errorf(engi.Invalid, "path is not a regular file")
	}
	if o.UID >= 0 {
		if err := f.Chown(o.UID, o.GID); err != nil {
			return Classify(err, "give away", path)
		}
	}
	if n, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{r}, make([]byte, 256<<10)); err != nil {
		if pe, ok := err.(*os.PathError); ok {
			return Classify(pe, "write", path)
		}
		return engi.Errorf(engi.Unavailable, "after %d bytes: %v", n, err)
	}
	return nil
}

// MakeDir creates a directory and its parents. It reports Conflict if the directory exists.
func MakeDir(path string, o Owner) error {
	if fi, err := os.Lstat(path); err == nil {
		what := "a file"
		if fi.IsDir() {
			what = "a directory"
		}
		return engi.Errorf(engi.Conflict, "%s already exists: %s", what, path)
	}
	return MakeDirAll(path, o)
}

// Move renames from to to, and creates the parents of to.
func Move(from, to string, o Owner) error {
	if _, err := os.Lstat(from); err != nil {
		return Classify(err, "move", from)
	}
	if err := MakeDirAll(filepath.Dir(to), o); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return Classify(err, "move", from)
	}
	return nil
}

// Remove deletes path and everything below it. A missing path is not an error.
func Remove(path string) error {
	if filepath.Clean(path) == "/" {
		return engi.Errorf(engi.Denied, "remove /: the root stays")
	}
	if err := os.RemoveAll(path); err != nil {
		return Classify(err, "remove", path)
	}
	return nil
}
