package disk

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
)

// A freeSpace is the disk space left for a build. It belongs to one goroutine. The zero
// freeSpace is for the node's own builds, which have no limit.
type freeSpace struct {
	owner   engi.Owner
	left    int64
	limited bool   // a quota limits the build
	refused func() // called when no space is left; may be nil
}

// freeSpace returns the space left for a build of an owner.
func (t *Templates) freeSpace(ctx context.Context, owner engi.Owner) (*freeSpace, error) {
	r := &freeSpace{owner: owner}
	if owner == "" || t.o.Owners.Room == nil {
		return r, nil
	}
	room, err := t.o.Owners.Room(ctx, owner)
	if err != nil || room == math.MaxInt64 {
		return r, err
	}
	r.limited = true
	if t.o.Owners.Refused != nil {
		r.refused = func() { t.o.Owners.Refused(owner, "disk bytes") }
	}
	used, err := t.dir.usedBy(owner)
	if err == nil && used > room/2 {
		// Remove files that are kept only to speed up a repeated build.
		if err = t.pruneOf(ctx, owner); err == nil {
			used, err = t.dir.usedBy(owner)
		}
	}
	if r.left = room - used; err == nil && r.left <= 0 {
		err = r.full()
	}
	return r, err
}

// full returns the error of a build for which too little space is left.
func (r *freeSpace) full() error {
	if r.refused != nil {
		r.refused()
	}
	return engi.Errorf(engi.Exhausted, "the build needs more disk than the owner's quota leaves").WithRemedy(makeRoom)
}

const makeRoom = "remove templates, snapshots, volumes or sandboxes, let the build write less, or ask the node's administrator for a larger quota"

// take counts bytes that the build has added.
func (r *freeSpace) take(bytes int64) error {
	if r.limited {
		if r.left -= bytes; r.left < 0 {
			return r.full()
		}
	}
	return nil
}

// budget returns the limits for the content of an archive.
func (r *freeSpace) budget() *tree.Budget {
	b := newBudget()
	if r.limited {
		// Every entry takes an inode, even an empty one.
		b.Bytes, b.Entries = min(b.Bytes, r.left), min(b.Entries, int(r.left/512)+1000)
	}
	return b
}

// explain adds advice to the error about an archive that is larger than its budget.
func (r *freeSpace) explain(err error) error {
	if r.limited && engi.Is(err, engi.Exhausted) {
		return engi.Errorf(engi.Exhausted, "%w", err).WithRemedy(makeRoom)
	}
	return err
}

// watchEvery is the interval at which the directory of a running step is measured, unless
// a measurement takes long.
const watchEvery = 500 * time.Millisecond

// during calls f, which writes to dir. It ends f when f has written more than the space
// left. It returns the growth of dir in bytes, unless the build is the node's.
func (r *freeSpace) during(ctx context.Context, dir string, f func(context.Context) error) (grown int64, err error) {
	if r.owner == "" {
		return 0, f(ctx)
	}
	before, err := measure(ctx, dir)
	if err != nil {
		return 0, err
	}
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	var stopped error // valid once watched is closed
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer cancel()
		for pause := watchEvery; ; {
			if clock.Sleep(work, pause) != nil {
				return
			}
			began := time.Now()
			now, err := measure(work, dir)
			if work.Err() != nil {
				return
			}
			if err == nil && r.limited && now-before > r.left {
				err = r.full()
			}
			if err != nil {
				stopped = err
				return
			}
			pause = max(watchEvery, 10*time.Since(began))
		}
	}()
	err = f(work)
	cancel()
	<-watched
	if stopped != nil {
		return 0, stopped
	}
	if err != nil {
		return 0, r.explain(err)
	}
	after, err := measure(ctx, dir)
	if err != nil {
		return 0, err
	}
	return after - before, r.take(after - before)
}

// maxDepth is the maximum depth of nested directories.
const maxDepth = 500

// measure returns the bytes on disk below a directory that others are writing to. It
// follows no links. Every entry counts at least as one inode.
func measure(ctx context.Context, dir string) (int64, error) {
	fd, err := openDir(unix.AT_FDCWD, dir)
	if err != nil {
		return 0, err
	}
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	var total int64
	var below func(fd, depth int) error
	below = func(fd, depth int) error {
		d := os.NewFile(uintptr(fd), dir)
		defer d.Close()
		if depth > maxDepth {
			return engi.Errorf(engi.Exhausted, "directories are nested deeper than %d", maxDepth).WithRemedy("remove the directories that the template does not need")
		}
		for {
			if ctx.Err() != nil {
				return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
			}
			names, err := d.Readdirnames(1024)
			for _, name := range names {
				var st unix.Stat_t
				if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
					continue // the entry is gone
				}
				if st.Mode&unix.S_IFMT == unix.S_IFDIR {
					if next, err := openDir(fd, name); err == nil {
						if err := below(next, depth+1); err != nil {
							return err
						}
					}
				} else if id := (inode{uint64(st.Dev), st.Ino}); st.Nlink > 1 {
					if seen[id] {
						continue
					}
					seen[id] = true
				}
				total += st.Blocks*512 + 512
			}
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return fileError(err)
			}
		}
	}
	return total, below(fd, 0)
}

// usedBy returns the bytes of an owner's templates, without the parts built by the node,
// and of cached steps that the owner's builds have added.
func (d templateDir) usedBy(owner engi.Owner) (total int64, err error) {
	layers := map[string]int64{}
	err = d.eachBuild(owner, func(e buildEntry) error { maps.Copy(layers, e.Layers); return nil })
	if err != nil {
		return 0, err
	}
	err = d.eachLayer(owner, func(e layerEntry) error { layers[e.ID] = e.Bytes; return nil })
	for _, bytes := range layers {
		total += bytes
	}
	return total, err
}

// eachBuild calls f for each build that an owner's builds have added.
func (d templateDir) eachBuild(owner engi.Owner, f func(buildEntry) error) error {
	hexes, err := d.builds()
	if err != nil {
		return err
	}
	for _, hex := range hexes {
		e, err := d.entry(hex)
		if err == nil && e.Owner == owner {
			err = f(e)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// eachLayer calls f for each cached step that an owner's builds have added.
func (d templateDir) eachLayer(owner engi.Owner, f func(layerEntry) error) error {
	list, err := os.ReadDir(filepath.Join(d.dir, "layers"))
	if err != nil {
		return fileError(err)
	}
	for _, l := range list {
		var e layerEntry
		err := readJSON(filepath.Join(d.layerDir(l.Name()), "index.json"), &e)
		if err == nil && e.Owner == owner {
			err = f(e)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// pruneOf removes an owner's builds without a name that nothing uses, and cached steps
// that are in no build: removing others would free nothing.
func (t *Templates) pruneOf(ctx context.Context, owner engi.Owner) error {
	needed := map[string]int64{}
	err := t.dir.eachBuild(owner, func(e buildEntry) error {
		users, err := t.dir.namesOf(e.Digest)
		gone := false
		if err == nil && len(users) == 0 {
			_, gone, err = t.dir.remove(strings.TrimPrefix(e.Digest, digestPrefix))
		}
		if !gone {
			maps.Copy(needed, e.Layers)
		}
		return err
	})
	if err != nil {
		return err
	}
	return t.dir.eachLayer(owner, func(e layerEntry) error {
		if _, ok := needed[e.ID]; ok {
			return nil
		}
		_, err := t.dir.pruneLayer(ctx, e.ID, 0)
		return err
	})
}
