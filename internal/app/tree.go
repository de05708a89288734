package app

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/app/output"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/worktree"
)

// Bounds of an app's files.
const (
	maxFiles = 1000
	maxFile  = output.MaxFile
	maxTree  = 32 << 20 // bytes
	maxPath  = 512      // bytes
	maxDepth = 32       // directories

	fileMode    = 0o644
	programMode = 0o755
)

// untracked lists directories that are never part of an app, at any depth, and
// untrackedRoot those that are not at the top level.
var (
	untracked     = []string{".git", "node_modules", ".vite", "__pycache__", ".venv"}
	untrackedRoot = []string{"dist", "build"}
	// Databases change while the app runs, and restoring earlier files must not
	// undo the work of its users.
	untrackedFiles = []string{".db", ".db-wal", ".db-shm", ".db-journal", ".sqlite", ".sqlite3", ".pyc", ".tsbuildinfo"}
)

// stageDir is the directory of files before they are moved into place. It is below a
// directory that is not tracked, and on the same file system.
const stageDir = ".git/engi-stage"

// isTracked reports whether a clean path can be one of an app's files.
func isTracked(p string) bool {
	parts := strings.Split(p, "/")
	if len(parts) > 1 && slices.Contains(untrackedRoot, parts[0]) {
		return false
	}
	for _, name := range parts[:len(parts)-1] {
		if slices.Contains(untracked, name) {
			return false
		}
	}
	name := parts[len(parts)-1]
	return !slices.Contains(untracked, name) && !slices.ContainsFunc(untrackedFiles, func(end string) bool { return strings.HasSuffix(name, end) })
}

// CheckPath reports Invalid for a path that cannot be the path of an app's file.
func CheckPath(p string) error {
	err := checkName(p)
	if err == nil && !isTracked(p) {
		err = invalidPath(p, "is of what is made or installed, not of what is written")
	}
	return err
}

func invalidPath(p, why string) error {
	return engi.Errorf(engi.Invalid, "the path %.100q %s", p, why).WithRemedy("name a file below the app's directory, like src/App.tsx")
}

// checkName reports Invalid for a path that cannot be the path of any file.
func checkName(p string) error {
	parts := strings.Split(p, "/")
	switch {
	case p == "" || len(p) > maxPath || !utf8.ValidString(p):
		return invalidPath(p, "is empty, too long or no text")
	case strings.ContainsFunc(p, func(r rune) bool { return unicode.IsControl(r) || r == '\\' }):
		return invalidPath(p, "has a backslash or a control character")
	case path.IsAbs(p) || path.Clean(p) != p || parts[0] == ".." || p == ".":
		return invalidPath(p, "leads outside the app or is not clean")
	case len(parts) > maxDepth || slices.ContainsFunc(parts, func(name string) bool { return len(name) > 255 }):
		return invalidPath(p, "is too deep, or has too long a name")
	}
	return nil
}

// describe returns the File for a path and its content.
func describe(p string, content []byte, mode uint32) File {
	sum := sha256.Sum256(content)
	if mode&0o111 != 0 {
		mode = programMode
	} else {
		mode = fileMode
	}
	return File{engi.AppFile{Path: p, Size: int64(len(content)), Mode: mode, Digest: hex.EncodeToString(sum[:])}, gitID("blob", content)}
}

// gitID returns the ID of a git object.
func gitID(kind string, content []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "%s %d\x00", kind, len(content))
	h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// A tree holds the files of an app by path.
type tree map[string]File

func treeOf(files []File) tree {
	t := make(tree, len(files))
	for _, f := range files {
		t[f.Path] = f
	}
	return t
}

// sorted returns the files, ordered by path.
func (t tree) sorted() []File {
	return slices.SortedFunc(maps.Values(t), func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
}

// check reports Exhausted for more files or bytes than an app may have.
func (t tree) check() error {
	var size int64
	for _, f := range t.sorted() {
		if f.Size > maxFile {
			return tooLarge(f.Path, f.Size)
		}
		size += f.Size
	}
	if len(t) > maxFiles || size > maxTree {
		return tooMuch(len(t), size)
	}
	return nil
}

func tooMuch(files int, size int64) error {
	return engi.Errorf(engi.Exhausted, "the app has %d files of %d bytes or more; the limits are %d files and %d MiB", files, size, maxFiles, maxTree>>20).
		WithRemedy("leave out generated and downloaded files")
}

func tooLarge(p string, size int64) error {
	return engi.Errorf(engi.Exhausted, "%s has %d bytes; the limit is %d MiB", p, size, maxFile>>20).WithRemedy("split it, or load large content from another server")
}

// changes returns the changes from t to next, ordered by path.
func (t tree) changes(next tree) (all []engi.AppChange) {
	for p, f := range next {
		switch old, ok := t[p]; {
		case !ok:
			all = append(all, engi.AppChange{Path: p, Op: engi.FileCreated, Size: f.Size})
		case old.Digest != f.Digest || old.Mode != f.Mode:
			all = append(all, engi.AppChange{Path: p, Op: engi.FileWritten, Size: f.Size})
		}
	}
	for p := range t {
		if _, ok := next[p]; !ok {
			all = append(all, engi.AppChange{Path: p, Op: engi.FileRemoved})
		}
	}
	slices.SortFunc(all, func(a, b engi.AppChange) int { return cmp.Compare(a.Path, b.Path) })
	return all
}

// A workingCopy is the node's knowledge of the files in an app's sandbox. It is
// not safe for concurrent use, except for ratio and usual.
type workingCopy struct {
	known map[string]known

	mu    sync.Mutex
	reads []reading       // recent reads that could have used the cache; guarded by mu, like all fields below
	took  []time.Duration // times of recent reads and writes
}

// A reading counts the files of one read, and those that came from the cache.
type reading struct{ files, saved int }

// lately appends to a bounded list of recent operations.
func lately[T any](all []T, x T) []T {
	all = append(all, x)
	return all[max(0, len(all)-outcomes):]
}

// timed records the time of an operation with files.
func (w *workingCopy) timed(began time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = lately(w.took, time.Since(began))
}

// usual returns the mean time of recent operations with files.
func (w *workingCopy) usual() (d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.took {
		d += t / time.Duration(len(w.took))
	}
	return d
}

// A known is a file at its last read.
type known struct {
	file     File
	modified time.Time
	changed  time.Time
	read     time.Time // start of the read
}

// guestTemp is the prefix of names of files that a guest is still writing.
const guestTemp = ".engi-"

// settled is the time for which a file must have been unchanged before it was read, so that a later
// change has another modification time, however coarse the clock.
const settled = 2 * time.Second

// is reports whether the file certainly has not changed since it was read.
func (k known) is(fi engi.FileInfo) bool {
	return k.modified.Equal(fi.Modified) && k.changed.Equal(fi.Changed) && k.file.Size == fi.Size && k.read.Sub(k.modified) > settled && k.read.Sub(k.changed) > settled && !k.modified.IsZero()
}

// ratio returns the share of files that recently came from the cache, and the number of
// reads. A read that could not use the cache does not count.
func (w *workingCopy) ratio() (share float64, readings int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var sum reading
	for _, r := range w.reads {
		sum.files, sum.saved = sum.files+r.files, sum.saved+r.saved
	}
	if sum.files == 0 {
		return 0, 0
	}
	return float64(sum.saved) / float64(sum.files), len(w.reads)
}

// forget makes the next read read every file.
func (w *workingCopy) forget() { w.known = nil }

// read returns the tracked files below dir, and the content of the files that it read, by digest.
func (w *workingCopy) read(ctx context.Context, g engi.Guest, dir string) (tree, map[string][]byte, error) {
	began := time.Now()
	found, err := walk(ctx, g, dir)
	if err != nil {
		return nil, nil, err
	}
	t, contents, next := make(tree, len(found)), map[string][]byte{}, make(map[string]known, len(found))
	all, texts := make([]known, len(found)), make([][]byte, len(found))
	var size, hits atomic.Int64
	if err := worktree.Parallel(len(found), func(i int) (err error) {
		fi := found[i]
		p := strings.TrimPrefix(fi.Path, dir+"/")
		k, ok := w.known[p]
		saved := ok && k.is(fi)
		if saved {
			hits.Add(1)
		} else {
			k = known{modified: fi.Modified, changed: fi.Changed, read: time.Now()}
			if texts[i], err = readFile(ctx, g, fi.Path); err != nil {
				if engi.Is(err, engi.NotFound) {
					return nil // the file was deleted meanwhile
				}
				return err
			}
			k.file = describe(p, texts[i], uint32(fi.Mode.Perm()))
		}
		all[i] = k
		if size := size.Add(k.file.Size); size > maxTree {
			return tooMuch(len(found), size)
		}
		return nil
	}); err != nil {
		return nil, nil, err
	}
	for i, fi := range found {
		k, p := all[i], all[i].file.Path
		if p == "" {
			continue
		}
		if texts[i] != nil {
			contents[k.file.Digest] = texts[i]
		}
		k.file.Mode = fileMode
		if fi.Mode.Perm()&0o111 != 0 {
			k.file.Mode = programMode
		}
		t[p], next[p] = k.file, k
	}
	if w.known != nil {
		w.mu.Lock()
		w.reads = lately(w.reads, reading{len(found), int(hits.Load())})
		w.mu.Unlock()
	}
	w.known = next
	w.timed(began)
	return t, contents, t.check()
}

// walk lists the tracked regular files below dir.
func walk(ctx context.Context, g engi.Guest, dir string) (all []engi.FileInfo, err error) {
	for dirs := []string{dir}; len(dirs) > 0; dirs = dirs[1:] {
		found, err := g.List(ctx, dirs[0], 1)
		if engi.Is(err, engi.NotFound) && dirs[0] != dir {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, fi := range found {
			p := strings.TrimPrefix(fi.Path, dir+"/")
			if CheckPath(p) != nil || strings.HasPrefix(path.Base(p), guestTemp) {
				continue
			}
			switch {
			case fi.Mode.IsDir() && strings.Count(p, "/") < maxDepth && !(path.Dir(p) == "." && slices.Contains(untrackedRoot, p)):
				if dirs = append(dirs, fi.Path); len(dirs) > 4*maxFiles {
					return nil, engi.Errorf(engi.Exhausted, "the app has more directories than %d", 4*maxFiles).WithRemedy("leave out generated and downloaded files")
				}
			case fi.Mode.IsRegular():
				if fi.Size > maxFile {
					return nil, tooLarge(p, fi.Size)
				}
				if all = append(all, fi); len(all) > maxFiles {
					return nil, tooMuch(len(all), 0)
				}
			}
		}
	}
	return all, nil
}

// readFile returns the content of a file of at most maxFile bytes.
func readFile(ctx context.Context, g engi.Guest, p string) (_ []byte, err error) {
	defer engi.Annotate(&err, "read %s", p)
	content, err := answer(ctx, guestTime, func(ctx context.Context) ([]byte, error) {
		r, err := g.Open(ctx, p)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		content, err := io.ReadAll(io.LimitReader(r, maxFile+1))
		if err != nil {
			return nil, guestError(err)
		}
		return content, nil
	})
	if err != nil {
		return nil, err
	}
	if len(content) > maxFile {
		return nil, tooLarge(p, int64(len(content)))
	}
	return content, nil
}

// guestError classifies an error of a stream from a guest.
func guestError(err error) error {
	if !engi.Is(err, engi.Internal) {
		return err
	}
	return engi.Errorf(engi.Unavailable, "%v", err)
}
