// Package worktree reads the files below a directory of a sandbox as git reads a working
// tree: a file whose size and time of modification are the same as at the last reading is not
// read again, unless this time is too recent to be trusted.
//
// It does not compare files with other versions, and keeps no contents.
package worktree

import (
	"context"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Tree selects files of a sandbox.
type Tree struct {
	Dir     string // absolute path of the directory
	Tracked func(path string) bool
	// Tracked reports whether the file at path, below Dir, is of interest. For a
	// directory it reports whether any file below can be. The paths may be hostile.

	Files int   // maximum number of files; the maximum number of directories is four times as high
	File  int64 // maximum size of one file in bytes
	All   int64 // maximum size of all files together in bytes
}

// A File describes a file. Of is the value that the reader made of its content.
type File[T any] struct {
	Size       int64
	Executable bool
	Of         T
}

// A Copy remembers the files that were read. It is not safe for concurrent use.
type Copy[T any] struct{ known map[string]known[T] }

// A known is the state of a file at its last reading.
type known[T any] struct {
	File[T]
	modified time.Time
	read     time.Time // time at which the reading began
}

// settled is the time for which a file must be unchanged before its reading, so that another
// change has a different time of modification even with a coarse clock.
const settled = 2 * time.Second

// is reports whether the file cannot have changed since it was read.
func (k known[T]) is(fi engi.FileInfo) bool {
	return k.modified.Equal(fi.Modified) && k.Size == fi.Size && k.read.Sub(k.modified) > settled && !k.modified.IsZero()
}

// Forget makes the next reading read everything.
func (c *Copy[T]) Forget() { c.known = nil }

// Read returns the files by path. It calls look with the content of each file that must be
// read, from several goroutines at once.
func (c *Copy[T]) Read(ctx context.Context, g engi.Guest, t Tree, look func(path string, content []byte) (T, error)) (map[string]File[T], error) {
	found, err := t.walk(ctx, g)
	if err != nil {
		return nil, err
	}
	all := make([]known[T], len(found))
	gone := make([]bool, len(found))
	var size atomic.Int64
	if err := Parallel(len(found), func(i int) error {
		fi := found[i]
		p := t.below(fi.Path)
		k, ok := c.known[p]
		if !ok || !k.is(fi) {
			k = known[T]{modified: fi.Modified, read: time.Now()}
			content, err := t.content(ctx, g, fi.Path)
			if err != nil {
				if gone[i] = engi.Is(err, engi.NotFound); gone[i] {
					return nil // the file was removed since it was listed
				}
				return err
			}
			k.Size = int64(len(content))
			if k.Of, err = look(p, content); err != nil {
				return err
			}
		}
		k.Executable = fi.Mode.Perm()&0o111 != 0
		all[i] = k
		if n := size.Add(k.Size); n > t.All {
			return engi.Errorf(engi.Exhausted, "the files in the sandbox have %d bytes or more; the limit is %d MiB", n, t.All>>20).WithRemedy("leave out generated and downloaded files")
		}
		return nil
	}); err != nil {
		return nil, err
	}
	files, next := make(map[string]File[T], len(found)), make(map[string]known[T], len(found))
	for i, fi := range found {
		if p := t.below(fi.Path); !gone[i] {
			files[p], next[p] = all[i].File, all[i]
		}
	}
	c.known = next
	return files, nil
}

func (t Tree) below(path string) string { return strings.TrimPrefix(path, t.Dir+"/") }

// walk lists the regular files that t selects.
func (t Tree) walk(ctx context.Context, g engi.Guest) (all []engi.FileInfo, err error) {
	for dirs := []string{t.Dir}; len(dirs) > 0; dirs = dirs[1:] {
		found, err := g.List(ctx, dirs[0], 1)
		if err != nil {
			if engi.Is(err, engi.NotFound) {
				continue
			}
			return nil, err
		}
		for _, fi := range found {
			p := t.below(fi.Path)
			if p == fi.Path || !t.Tracked(p) {
				continue
			}
			switch {
			case fi.Mode.IsDir():
				if dirs = append(dirs, fi.Path); len(dirs) > 4*t.Files {
					return nil, engi.Errorf(engi.Exhausted, "the sandbox has more directories than %d", 4*t.Files).WithRemedy("leave out generated and downloaded files")
				}
			case fi.Mode.IsRegular():
				if fi.Size > t.File {
					return nil, t.tooLarge(fi.Path)
				}
				if all = append(all, fi); len(all) > t.Files {
					return nil, engi.Errorf(engi.Exhausted, "the sandbox has more files than %d", t.Files).WithRemedy("leave out generated and downloaded files")
				}
			}
		}
	}
	return all, nil
}

func (t Tree) tooLarge(path string) error {
	return engi.Errorf(engi.Exhausted, "%.200q in the sandbox has more than %d MiB", path, t.File>>20).WithRemedy("remove it there, or keep it outside %s", t.Dir)
}

// content returns the content of a file. It refuses a file of more than t.File bytes.
func (t Tree) content(ctx context.Context, g engi.Guest, path string) (_ []byte, err error) {
	defer engi.Annotate(&err, "read %.200q", path)
	content, err := Answer(ctx, Default.Answer, Default.Remedy, func(ctx context.Context) ([]byte, error) {
		r, err := g.Open(ctx, path)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		content, err := io.ReadAll(io.LimitReader(r, t.File+1))
		if engi.Is(err, engi.Internal) {
			err = engi.Errorf(engi.Unavailable, "%v", err)
		}
		return content, err
	})
	if err == nil && int64(len(content)) > t.File {
		err = t.tooLarge(path)
	}
	return content, err
}

// parallelism is the maximum number of concurrent calls of a guest.
const parallelism = 8

// Parallel calls f for each number below n, several at once, and returns the first error.
func Parallel(n int, f func(i int) error) error {
	var work sync.WaitGroup
	var next atomic.Int64
	var mu sync.Mutex
	var first error
	for range min(n, parallelism) {
		work.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if err := f(int(i)); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					next.Store(int64(n)) // no goroutine begins another call
					return
				}
			}
		})
	}
	work.Wait()
	return first
}
