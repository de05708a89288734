// Package snapshot stores snapshots, which are copies of sandboxes that new sandboxes can
// start from. Each snapshot is a directory of files and a record. Files are not deleted
// while in use, and never outlive their record.
//
// It does not know the content of the files, which the provider writes and reads,
// or how sandboxes start (see package fleet).
package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// A Store keeps records of snapshots. Data written by a method that has returned survives a kill.
// Look-ups find only the snapshots that viewer sees. They find neither removed snapshots nor
// snapshots that expired before now.
type Store interface {
	// Put stores a new snapshot. In the same transaction, an older snapshot of the
	// same owner loses the name.
	Put(ctx context.Context, s engi.Snapshot) error
	// Find returns a snapshot by ID or name, or reports NotFound. For [engi.Everyone], it reports
	// Conflict for a name that several owners use, but not the node.
	Find(ctx context.Context, viewer engi.Viewer, idOrName string, now time.Time) (engi.Snapshot, error)
	// List returns snapshots, newest first. It reports Invalid for a page after a snapshot
	// that is not selected.
	List(ctx context.Context, viewer engi.Viewer, q Filter) ([]engi.Snapshot, error)
	// Usage returns the number of an owner's snapshots, including expired ones, and the
	// bytes of their files and of the files of removed snapshots. Its cost does not depend
	// on the number of snapshots.
	Usage(ctx context.Context, owner engi.Owner) (count int, bytes int64, err error)
	// Touch sets the time of a snapshot's last use. A missing snapshot is not an
	// error.
	Touch(ctx context.Context, id engi.SnapshotID, at time.Time) error
	// Remove marks a snapshot as removed and frees its name. It reports NotFound.
	Remove(ctx context.Context, id engi.SnapshotID) error
	// Expire removes all snapshots that expired before now.
	Expire(ctx context.Context, now time.Time) error
	// Forget deletes the record of a removed snapshot. A missing record is not an
	// error.
	Forget(ctx context.Context, id engi.SnapshotID) error
}

// A Filter selects snapshots. The zero value selects all snapshots that are not removed.
type Filter struct {
	Sandbox engi.SandboxID // snapshots of this sandbox; empty means any
	Now     time.Time      // exclude snapshots that expired before this time; zero excludes none
	Removed bool           // removed snapshots instead of others
	Page    engi.Paging
}

// Options configures a Registry. Hold and Log may be nil.
type Options struct {
	Dir   string // private directory of the registry; created if missing
	Store Store
	Log   *slog.Logger

	// Hold protects a template from removal as long as path exists.
	Hold func(ctx context.Context, digest, path string) error
}

// sweepEvery is the interval at which Run looks for expired snapshots.
const sweepEvery = 15 * time.Second

// A Registry stores snapshots in a directory. It implements [engi.Snapshots] and is
// safe for concurrent use. Only one process at a time may use the directory.
type Registry struct {
	o    Options
	now  func() time.Time
	wake chan struct{} // makes Run clean up; buffers one request

	mu       sync.Mutex
	users    map[engi.SnapshotID]int      // number of users of each snapshot; never 0; guarded by mu
	deleting map[engi.SnapshotID]struct{} // snapshots whose files are being deleted; guarded by mu
}

var _ engi.Snapshots = (*Registry)(nil)

// Open prepares o.Dir and removes files without a record, left by a kill during the creation of
// snapshots. Files of removed snapshots stay until Run, so
// that callers that still need them can call Use. The Registry need not be closed.
func Open(ctx context.Context, o Options) (_ *Registry, err error) {
	defer engi.Annotate(&err, "open snapshots in %s", o.Dir)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fileError(err)
	}
	r := &Registry{
		o: o, now: time.Now, wake: make(chan struct{}, 1),
		users: map[engi.SnapshotID]int{}, deleting: map[engi.SnapshotID]struct{}{},
	}
	return r, r.sweep(ctx)
}

// sweep removes directories without a record, and records without a directory,
// which a power failure may leave.
func (r *Registry) sweep(ctx context.Context) error {
	kept, err := r.o.Store.List(ctx, engi.Everyone, Filter{})
	if err != nil {
		return err
	}
	removed, err := r.o.Store.List(ctx, engi.Everyone, Filter{Removed: true})
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, s := range removed {
		known[string(s.ID)] = true
	}
	for _, s := range kept {
		known[string(s.ID)] = true
		if _, err := os.Stat(r.dir(s.ID)); errors.Is(err, fs.ErrNotExist) {
			r.o.Log.ErrorContext(ctx, "the files of a snapshot are missing", "snapshot", s.ID)
			if err := r.o.Store.Remove(ctx, s.ID); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(r.o.Dir)
	if err != nil {
		return fileError(err)
	}
	for _, e := range entries {
		if known[e.Name()] {
			continue
		}
		r.o.Log.InfoContext(ctx, "remove the files of an unfinished snapshot", "snapshot", e.Name())
		if err := os.RemoveAll(filepath.Join(r.o.Dir, e.Name())); err != nil {
			return fileError(err)
		}
	}
	return nil
}

func (r *Registry) dir(id engi.SnapshotID) string { return filepath.Join(r.o.Dir, string(id)) }

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$`)

// CheckName reports Invalid unless name is empty or a valid name for a snapshot.
func CheckName(name string) error {
	if name == "" {
		return nil
	}
	_, err := engi.ParseSnapshotID(name)
	if err == nil || !namePattern.MatchString(name) {
		return engi.Errorf(engi.Invalid, "%.140q is not the name of a snapshot", name).
			WithRemedy("use letters, digits, '.', '_', ':', '/' and '-', at most 128, and begin with a letter or a digit")
	}
	return nil
}

// Create stores the files that fill writes to a new directory as a snapshot described by s. It
// returns s with time, size and, unless s has one, an ID filled in. An older snapshot
// of the same owner loses the name. If Create fails or the process dies, nothing is
// left.
func (r *Registry) Create(ctx context.Context, s engi.Snapshot, fill func(dir string) error) (_ engi.Snapshot, err error) {
	if s.ID == "" {
		s.ID = engi.NewSnapshotID()
	}
	defer engi.Annotate(&err, "create snapshot %s", s.ID)
	if _, err := engi.ParseSnapshotID(string(s.ID)); err != nil {
		return engi.Snapshot{}, err
	}
	if err := CheckName(s.Name); err != nil {
		return engi.Snapshot{}, err
	}
	dir := r.dir(s.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return engi.Snapshot{}, engi.Errorf(engi.Conflict, "it exists already")
		}
		return engi.Snapshot{}, fileError(err)
	}
	recorded := false
	defer func() {
		if recorded {
			return
		}
		if e := os.RemoveAll(dir); e != nil {
			r.o.Log.ErrorContext(ctx, "remove the files of a failed snapshot", "snapshot", s.ID, "error", e)
		}
	}()
	if r.o.Hold != nil && s.Digest != "" {
		if err := r.o.Hold(ctx, s.Digest, dir); err != nil {
			return engi.Snapshot{}, err
		}
	}
	if err := fill(dir); err != nil {
		return engi.Snapshot{}, err
	}
	// The files must be on disk before the record.
	if s.Bytes, err = syncTree(ctx, dir); err != nil {
		return engi.Snapshot{}, err
	}
	if err := syncDir(r.o.Dir); err != nil {
		return engi.Snapshot{}, err
	}
	s.Created = r.now().UTC().Truncate(time.Millisecond)
	s.Used = s.Created
	if !s.Expires.IsZero() {
		s.Expires = s.Expires.UTC()
	}
	if err := r.o.Store.Put(ctx, s); err != nil {
		// The record may have been stored in spite of the error.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if e := r.o.Store.Remove(late, s.ID); e == nil {
			recorded = true
			r.collect(late, s.ID)
		} else if !engi.Is(e, engi.NotFound) {
			recorded = true // the outcome is unknown: the next Open decides
		}
		return engi.Snapshot{}, err
	}
	recorded = true
	return s, nil
}

// Use returns a snapshot and the directory of its files, which are not deleted until release is
// called, even if the snapshot is removed; release may be repeated. [engi.Everyone] also finds
// removed snapshots by ID if their files still exist, so that they can be used again after a
// restart.
func (r *Registry) Use(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.Snapshot, dir string, release func(), err error) {
	defer engi.Annotate(&err, "use snapshot %s", idOrName)
	s, err := r.find(ctx, viewer, idOrName)
	if err != nil {
		return engi.Snapshot{}, "", nil, err
	}
	if !r.addUser(s.ID) {
		return engi.Snapshot{}, "", nil, unknown()
	}
	release = sync.OnceFunc(func() { r.removeUser(s.ID) })
	// The snapshot may have been deleted between find and addUser.
	if s, err = r.find(ctx, viewer, string(s.ID)); err == nil {
		s.Used = r.now().UTC().Truncate(time.Millisecond)
		err = r.o.Store.Touch(ctx, s.ID, s.Used)
	}
	if err != nil {
		release()
		return engi.Snapshot{}, "", nil, err
	}
	return s, r.dir(s.ID), release, nil
}

func (r *Registry) find(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Snapshot, error) {
	s, err := r.o.Store.Find(ctx, viewer, idOrName, r.now())
	if !engi.Is(err, engi.NotFound) || viewer != engi.Everyone {
		return s, err
	}
	removed, e := r.o.Store.List(ctx, engi.Everyone, Filter{Removed: true})
	if e != nil {
		return s, e
	}
	for _, s := range removed {
		if string(s.ID) == idOrName {
			return s, nil
		}
	}
	return s, err
}

func unknown() error {
	return engi.Errorf(engi.NotFound, "there is no such snapshot").WithRemedy("'engi snapshot list' shows yours")
}

// addUser counts one more user of a snapshot. It returns false if the files are being deleted.
func (r *Registry) addUser(id engi.SnapshotID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, going := r.deleting[id]; going {
		return false
	}
	r.users[id]++
	return true
}

func (r *Registry) removeUser(id engi.SnapshotID) {
	r.mu.Lock()
	last := r.users[id] == 1
	if r.users[id]--; last {
		delete(r.users, id)
	}
	r.mu.Unlock()
	if last {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// Get implements [engi.Snapshots].
func (r *Registry) Get(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.Snapshot, err error) {
	defer engi.Annotate(&err, "snapshot %s", idOrName)
	return r.o.Store.Find(ctx, viewer, idOrName, r.now())
}

// List implements [engi.Snapshots].
func (r *Registry) List(ctx context.Context, viewer engi.Viewer, sandbox engi.SandboxID, p engi.Paging) (_ []engi.Snapshot, err error) {
	defer engi.Annotate(&err, "list snapshots")
	return r.o.Store.List(ctx, viewer, Filter{Sandbox: sandbox, Now: r.now(), Page: p})
}

// Remove implements [engi.Snapshots].
func (r *Registry) Remove(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "remove snapshot %s", idOrName)
	s, err := r.o.Store.Find(ctx, viewer, idOrName, r.now())
	if err != nil {
		return err
	}
	if err := r.o.Store.Remove(ctx, s.ID); err != nil {
		return err
	}
	r.collect(ctx, s.ID)
	return nil
}

// Usage returns the number of an owner's snapshots and the bytes of their files,
// including removed snapshots whose files still exist.
func (r *Registry) Usage(ctx context.Context, owner engi.Owner) (count int, bytes int64, err error) {
	defer engi.Annotate(&err, "measure snapshots")
	return r.o.Store.Usage(ctx, owner)
}

// Digests returns the digests of templates that snapshots need.
func (r *Registry) Digests(ctx context.Context) (_ []string, err error) {
	defer engi.Annotate(&err, "list the templates of snapshots")
	kept, err := r.o.Store.List(ctx, engi.Everyone, Filter{})
	if err != nil {
		return nil, err
	}
	removed, err := r.o.Store.List(ctx, engi.Everyone, Filter{Removed: true})
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var digests []string
	for _, s := range append(kept, removed...) {
		if s.Digest != "" && !seen[s.Digest] {
			seen[s.Digest] = true
			digests = append(digests, s.Digest)
		}
	}
	return digests, nil
}

// Run removes expired snapshots and deletes the files of removed ones until ctx ends.
// Callers that still need removed snapshots after a restart must call Use before.
func (r *Registry) Run(ctx context.Context, ready func()) error {
	ready()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := r.cleanUp(ctx); err != nil && ctx.Err() == nil {
			r.o.Log.ErrorContext(ctx, "clean up snapshots", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-tick.C:
		}
	}
}

func (r *Registry) cleanUp(ctx context.Context) error {
	if err := r.o.Store.Expire(ctx, r.now()); err != nil {
		return err
	}
	removed, err := r.o.Store.List(ctx, engi.Everyone, Filter{Removed: true})
	if err != nil {
		return err
	}
	for _, s := range removed {
		r.collect(ctx, s.ID)
	}
	return nil
}

// collect deletes the files of a removed snapshot and then its record, unless the snapshot is
// in use. It retries after failures later.
func (r *Registry) collect(ctx context.Context, id engi.SnapshotID) {
	r.mu.Lock()
	_, going := r.deleting[id]
	if going || r.users[id] > 0 {
		r.mu.Unlock()
		return
	}
	r.deleting[id] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.deleting, id)
		r.mu.Unlock()
	}()
	err := os.RemoveAll(r.dir(id))
	if err == nil {
		err = r.o.Store.Forget(ctx, id)
	}
	if err != nil && ctx.Err() == nil {
		r.o.Log.ErrorContext(ctx, "delete the files of a snapshot", "snapshot", id, "error", err)
	}
}

// syncTree syncs all files below dir and returns their bytes on disk.
func syncTree(ctx context.Context, dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fileError(err)
		}
		if ctx.Err() != nil {
			return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		if !d.IsDir() && !d.Type().IsRegular() {
			return nil
		}
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return fileError(err)
		}
		defer f.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return fileError(err)
		}
		total += st.Blocks * 512
		if err := f.Sync(); err != nil {
			return fileError(err)
		}
		return nil
	})
	return total, err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fileError(err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fileError(err)
	}
	return nil
}

// fileError classifies an error of files in the data directory.
func fileError(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return engi.Errorf(engi.Exhausted, "the disk of the data directory is full: %v", err).
			WithRemedy("free space, for instance by removing unused snapshots: 'engi snapshot list'")
	case errors.Is(err, fs.ErrPermission):
		return engi.Errorf(engi.Denied, "%v", err).WithRemedy("run as the user who owns the data directory")
	}
	return engi.Errorf(engi.Internal, "%v", err)
}
