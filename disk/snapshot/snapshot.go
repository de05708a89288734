// Package snapshot keeps copies of sandboxes that others start from: a
// directory of files for each, and a record of what they are. Files stay for as
// long as somebody starts from them, and no longer than their record.
//
// It does not know what is in the files (the provider writes and reads them),
// nor how a sandbox is started (package fleet).
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

	"github.com/engi-dev/engi"
)

// A Store remembers snapshots. What a method has written survives a kill. All
// lookups see only what owner owns, or everything for the empty owner, and
// neither removed snapshots nor those that expired before now.
type Store interface {
	// Put records a new snapshot. An older one of its owner and name loses
	// the name in the same step.
	Put(ctx context.Context, s engi.Snapshot) error
	// Find returns a snapshot by ID or name; NotFound. A name that several
	// owners use is Conflict for the empty owner, unless it is its own.
	Find(ctx context.Context, owner engi.Owner, idOrName string, now time.Time) (engi.Snapshot, error)
	// List returns the newest first; of one sandbox unless that is empty.
	List(ctx context.Context, owner engi.Owner, sandbox engi.SandboxID, now time.Time) ([]engi.Snapshot, error)
	// Touch sets when a snapshot was last used; none is no error.
	Touch(ctx context.Context, id engi.SnapshotID, at time.Time) error
	// Remove marks a snapshot as removed and takes its name; NotFound.
	Remove(ctx context.Context, id engi.SnapshotID) error
	// Expire removes all that expired before now.
	Expire(ctx context.Context, now time.Time) error
	// Removed returns those marked, oldest first.
	Removed(ctx context.Context) ([]engi.Snapshot, error)
	// Forget deletes the record of a removed snapshot; none is no error.
	Forget(ctx context.Context, id engi.SnapshotID) error
}

// Options say where snapshots live. Hold and Log may be nil.
type Options struct {
	Dir   string // private directory of the registry; made if missing
	Store Store
	Log   *slog.Logger

	// Hold keeps a template for as long as path exists.
	Hold func(ctx context.Context, digest, path string) error
}

// sweepEvery is how often expired snapshots are looked for.
const sweepEvery = 15 * time.Second

// A Registry keeps snapshots in a directory. It implements [engi.Snapshots]
// and is safe for concurrent use. One process at a time may have it open.
type Registry struct {
	o    Options
	now  func() time.Time
	kick chan struct{} // asks Run to collect; holds one request

	mu    sync.Mutex
	users map[engi.SnapshotID]int      // guarded by mu; no zeros
	going map[engi.SnapshotID]struct{} // guarded by mu: files are being deleted
}

var _ engi.Snapshots = (*Registry)(nil)

// Open prepares o.Dir and removes what has no record there: what a kill left of
// snapshots that were being made. Removed ones stay until Run, so that those who
// still start from them can say so. Nothing must be closed.
func Open(ctx context.Context, o Options) (_ *Registry, err error) {
	defer engi.Annotate(&err, "open snapshots in %s", o.Dir)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fault(err)
	}
	r := &Registry{
		o: o, now: time.Now, kick: make(chan struct{}, 1),
		users: map[engi.SnapshotID]int{}, going: map[engi.SnapshotID]struct{}{},
	}
	return r, r.sweep(ctx)
}

// sweep removes directories without record, and records without directory,
// which a power cut may leave.
func (r *Registry) sweep(ctx context.Context) error {
	// Those that expired are still on record.
	kept, err := r.o.Store.List(ctx, "", "", time.Time{})
	if err != nil {
		return err
	}
	removed, err := r.o.Store.Removed(ctx)
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
			r.o.Log.ErrorContext(ctx, "the files of a snapshot are gone", "snapshot", s.ID)
			if err := r.o.Store.Remove(ctx, s.ID); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(r.o.Dir)
	if err != nil {
		return fault(err)
	}
	for _, e := range entries {
		if known[e.Name()] {
			continue
		}
		r.o.Log.InfoContext(ctx, "remove the files of an unfinished snapshot", "snapshot", e.Name())
		if err := os.RemoveAll(filepath.Join(r.o.Dir, e.Name())); err != nil {
			return fault(err)
		}
	}
	return nil
}

func (r *Registry) dir(id engi.SnapshotID) string { return filepath.Join(r.o.Dir, string(id)) }

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$`)

// CheckName reports Invalid unless name is empty or can be a snapshot's.
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

// Create keeps what fill writes into a fresh directory, described by s, and
// returns s as it is recorded: with an ID, if it has none, its time and its
// size. An older snapshot of the same owner and name loses the name. When
// Create or the process fails, nothing is left.
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
			return engi.Snapshot{}, engi.Errorf(engi.Conflict, "it is there already")
		}
		return engi.Snapshot{}, fault(err)
	}
	recorded := false
	defer func() {
		if recorded {
			return
		}
		if e := os.RemoveAll(dir); e != nil {
			r.o.Log.ErrorContext(ctx, "remove the files of a failed snapshot", "snapshot", s.ID, "err", e)
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
	// The record must not outlive a power cut that the files do not.
	if s.Bytes, err = settle(ctx, dir); err != nil {
		return engi.Snapshot{}, err
	}
	if err := settleDir(r.o.Dir); err != nil {
		return engi.Snapshot{}, err
	}
	s.Created = r.now().UTC().Truncate(time.Millisecond)
	s.Used = s.Created
	if !s.Expires.IsZero() {
		s.Expires = s.Expires.UTC()
	}
	if err := r.o.Store.Put(ctx, s); err != nil {
		// It may be on record in spite of the error.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if e := r.o.Store.Remove(late, s.ID); e == nil {
			recorded = true
			r.collect(late, s.ID)
		} else if engi.KindOf(e) != engi.NotFound {
			recorded = true // the next Open knows better
		}
		return engi.Snapshot{}, err
	}
	recorded = true
	return s, nil
}

// Use returns a snapshot with the directory of its files, which stay until
// release is called (twice is fine), even if the snapshot is removed. It sees as
// [engi.Snapshots]; the empty owner finds by ID what is removed but still there,
// too, so that users can come back after a restart.
func (r *Registry) Use(ctx context.Context, owner engi.Owner, idOrName string) (_ engi.Snapshot, dir string, release func(), err error) {
	defer engi.Annotate(&err, "use snapshot %s", idOrName)
	s, err := r.find(ctx, owner, idOrName)
	if err != nil {
		return engi.Snapshot{}, "", nil, err
	}
	if !r.enter(s.ID) {
		return engi.Snapshot{}, "", nil, unknown()
	}
	release = sync.OnceFunc(func() { r.leave(s.ID) })
	// Between find and enter it may have gone.
	if s, err = r.find(ctx, owner, string(s.ID)); err == nil {
		s.Used = r.now().UTC().Truncate(time.Millisecond)
		err = r.o.Store.Touch(ctx, s.ID, s.Used)
	}
	if err != nil {
		release()
		return engi.Snapshot{}, "", nil, err
	}
	return s, r.dir(s.ID), release, nil
}

func (r *Registry) find(ctx context.Context, owner engi.Owner, idOrName string) (engi.Snapshot, error) {
	s, err := r.o.Store.Find(ctx, owner, idOrName, r.now())
	if err == nil || engi.KindOf(err) != engi.NotFound || owner != "" {
		return s, err
	}
	removed, e := r.o.Store.Removed(ctx)
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

// enter counts a user, unless the files are going.
func (r *Registry) enter(id engi.SnapshotID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, going := r.going[id]; going {
		return false
	}
	r.users[id]++
	return true
}

func (r *Registry) leave(id engi.SnapshotID) {
	r.mu.Lock()
	last := r.users[id] == 1
	if r.users[id]--; last {
		delete(r.users, id)
	}
	r.mu.Unlock()
	if last {
		select {
		case r.kick <- struct{}{}:
		default:
		}
	}
}

// Get implements [engi.Snapshots].
func (r *Registry) Get(ctx context.Context, owner engi.Owner, idOrName string) (_ engi.Snapshot, err error) {
	defer engi.Annotate(&err, "snapshot %s", idOrName)
	return r.o.Store.Find(ctx, owner, idOrName, r.now())
}

// List implements [engi.Snapshots].
func (r *Registry) List(ctx context.Context, owner engi.Owner, sandbox engi.SandboxID) (_ []engi.Snapshot, err error) {
	defer engi.Annotate(&err, "list snapshots")
	return r.o.Store.List(ctx, owner, sandbox, r.now())
}

// Remove implements [engi.Snapshots].
func (r *Registry) Remove(ctx context.Context, owner engi.Owner, idOrName string) (err error) {
	defer engi.Annotate(&err, "remove snapshot %s", idOrName)
	s, err := r.o.Store.Find(ctx, owner, idOrName, r.now())
	if err != nil {
		return err
	}
	if err := r.o.Store.Remove(ctx, s.ID); err != nil {
		return err
	}
	r.collect(ctx, s.ID)
	return nil
}

// Usage returns how many snapshots an owner has and the bytes of their files,
// which may be more than the listed ones'.
func (r *Registry) Usage(ctx context.Context, owner engi.Owner) (count int, bytes int64, err error) {
	defer engi.Annotate(&err, "measure snapshots")
	kept, err := r.o.Store.List(ctx, owner, "", time.Time{})
	if err != nil {
		return 0, 0, err
	}
	removed, err := r.o.Store.Removed(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, s := range kept {
		bytes += s.Bytes
	}
	for _, s := range removed {
		if owner == "" || s.Owner == owner {
			bytes += s.Bytes
		}
	}
	return len(kept), bytes, nil
}

// Digests returns the templates that snapshots need.
func (r *Registry) Digests(ctx context.Context) (_ []string, err error) {
	defer engi.Annotate(&err, "list the templates of snapshots")
	kept, err := r.o.Store.List(ctx, "", "", time.Time{})
	if err != nil {
		return nil, err
	}
	removed, err := r.o.Store.Removed(ctx)
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

// Run removes what expires and deletes the files of what was removed, until
// ctx ends. Whoever uses removed snapshots after a restart says so before.
func (r *Registry) Run(ctx context.Context, ready func()) error {
	ready()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := r.tidy(ctx); err != nil && ctx.Err() == nil {
			r.o.Log.ErrorContext(ctx, "tidy snapshots", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.kick:
		case <-tick.C:
		}
	}
}

func (r *Registry) tidy(ctx context.Context) error {
	if err := r.o.Store.Expire(ctx, r.now()); err != nil {
		return err
	}
	removed, err := r.o.Store.Removed(ctx)
	if err != nil {
		return err
	}
	for _, s := range removed {
		r.collect(ctx, s.ID)
	}
	return nil
}

// collect deletes the files of a removed snapshot, then its record, unless
// somebody uses it. What fails is tried again later.
func (r *Registry) collect(ctx context.Context, id engi.SnapshotID) {
	r.mu.Lock()
	_, going := r.going[id]
	if going || r.users[id] > 0 {
		r.mu.Unlock()
		return
	}
	r.going[id] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.going, id)
		r.mu.Unlock()
	}()
	err := os.RemoveAll(r.dir(id))
	if err == nil {
		err = r.o.Store.Forget(ctx, id)
	}
	if err != nil && ctx.Err() == nil {
		r.o.Log.ErrorContext(ctx, "delete the files of a snapshot", "snapshot", id, "err", err)
	}
}

// settle brings everything below dir to disk and returns its bytes there.
func settle(ctx context.Context, dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fault(err)
		}
		if ctx.Err() != nil {
			return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		if !d.IsDir() && !d.Type().IsRegular() {
			return nil
		}
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return fault(err)
		}
		defer f.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return fault(err)
		}
		total += st.Blocks * 512
		if err := f.Sync(); err != nil {
			return fault(err)
		}
		return nil
	})
	return total, err
}

func settleDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fault(err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fault(err)
	}
	return nil
}

// fault classifies an error of our own files.
func fault(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return engi.Errorf(engi.Exhausted, "the disk of the data directory is full: %v", err).
			WithRemedy("free space, for instance by removing snapshots nobody needs: 'engi snapshot list'")
	case errors.Is(err, fs.ErrPermission):
		return engi.Errorf(engi.Denied, "%v", err).WithRemedy("run as the user who owns the data directory")
	}
	return engi.Errorf(engi.Internal, "%v", err)
}
