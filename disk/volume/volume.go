// Package volume keeps volumes: directories with a capacity that outlive the
// sandboxes that mount them. As root, each is a sparse image with a file system
// of its own, so that the kernel enforces the capacity and nothing in a volume
// can reach the node's disk; else it is a directory, and [Manager.NotEnforced]
// says what that costs. docs/decisions/0005 says why.
//
// It does not put volumes into sandboxes (the provider binds the directory that
// Mount returns) and does not decide who may have them (package fleet).
package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// A Record is what is remembered of a volume.
type Record struct {
	engi.Volume               // Expires is not stored: it follows from TTL
	TTL         time.Duration // 0 means for ever
	Image       bool          // it is an image, not a directory
}

// A Store remembers volumes. What a method has written survives a kill. Lookups
// see only what owner owns, or everything for the empty owner, and no removed
// volumes.
type Store interface {
	// Put records a new volume; Conflict if its owner has one of its name.
	Put(ctx context.Context, r Record) error
	// Find returns a volume by ID or name; NotFound. A name that several
	// owners use is Conflict for the empty owner, unless it is its own.
	Find(ctx context.Context, owner engi.Owner, idOrName string) (Record, error)
	// List returns volumes by name, then owner.
	List(ctx context.Context, owner engi.Owner) ([]Record, error)
	// Pass gives a volume that from has to to; empty is nobody. It reports
	// NotFound, and Conflict, naming the holder, if neither of the two has it.
	Pass(ctx context.Context, id engi.VolumeID, from, to engi.SandboxID, at time.Time) error
	// Touch sets what a volume uses and when it was last used; none is no error.
	Touch(ctx context.Context, id engi.VolumeID, used int64, at time.Time) error
	// Remove marks a volume as removed, which frees its name. It reports
	// Conflict, naming the holder, if a sandbox has it, NotFound, and, unless
	// before is zero, Conflict if it was used then or later.
	Remove(ctx context.Context, id engi.VolumeID, before time.Time) error
	// Removed returns the removed ones, oldest first.
	Removed(ctx context.Context) ([]engi.VolumeID, error)
	// Forget deletes the record of a removed volume; none is no error.
	Forget(ctx context.Context, id engi.VolumeID) error
}

// Options say where volumes live. Only Dir and Store are needed.
type Options struct {
	Dir      string // private directory of the keeper; made if missing
	Store    Store
	Log      *slog.Logger                                     // nil discards
	Capacity int64                                            // of volumes that do not say; 0 means 1 GiB
	Quota    func(engi.Owner) engi.Quota                      // its Volumes and Disk are kept to; nil means no limits
	Disk     func(context.Context, engi.Owner) (int64, error) // bytes of the owner's other things, for Quota; nil means none
	Plain    bool                                             // use directories even where images would do
}

const (
	defaultCapacity = 1 << 30
	minCapacity     = 16 << 20 // a file system needs some of it for itself
	maxCapacity     = 16 << 40
	maxTTL          = 100 * 365 * 24 * time.Hour
	reserve         = 256 << 20 // bytes of the node's disk that are never promised
	tidyEvery       = 15 * time.Second
)

// A Manager keeps volumes in a directory. It implements [engi.Volumes] and is
// safe for concurrent use. One process at a time may have it open.
//
// Its directory holds one directory for each volume:
//
//	ID/image     the file system, if it is one
//	ID/at        where that is mounted; else a plain directory
//	ID/at/data   what sandboxes see
//	ID/at/tmp    files that are being written from outside
type Manager struct {
	o    Options
	now  func() time.Time
	mkfs string // path of mkfs.ext4; empty if volumes are directories
	why  error  // they are

	listed int // entries of one listing

	creating sync.Mutex // held from the check of quotas to the record

	mu    sync.Mutex
	slots map[engi.VolumeID]*slot // guarded by mu
}

var _ engi.Volumes = (*Manager)(nil)

// A slot is the state of one volume in this process.
type slot struct {
	mu    sync.Mutex // held while the volume is mounted, unmounted or removed
	users int        // guarded by mu; open Files and readers
	clean bool       // guarded by mu; what an earlier process was writing is gone
	gone  bool       // guarded by mu; removed
	used  int64      // guarded by mu; bytes in a plain directory, as far as we know
}

// Open prepares o.Dir and brings it in line with the records: volumes half made
// or half removed go, and what is mounted without need is unmounted. Volumes
// that sandboxes have stay as they are. Nothing must be closed.
func Open(ctx context.Context, o Options) (_ *Manager, err error) {
	defer engi.Annotate(&err, "open volumes in %s", o.Dir)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Capacity == 0 {
		o.Capacity = defaultCapacity
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fault("make directory", o.Dir, err)
	}
	// As the kernel will name it.
	if o.Dir, err = filepath.EvalSymlinks(o.Dir); err == nil {
		o.Dir, err = filepath.Abs(o.Dir)
	}
	if err != nil {
		return nil, fault("resolve", o.Dir, err)
	}
	k := &Manager{o: o, now: time.Now, listed: maxListed, slots: map[engi.VolumeID]*slot{}}
	if o.Plain {
		k.why = engi.Errorf(engi.Unsupported, "volumes are plain directories, whose capacity programs inside can exceed: the configuration says so").
			WithRemedy("take volumes.plain out of it")
	} else {
		k.mkfs, k.why = probe()
	}
	if k.why != nil {
		o.Log.InfoContext(ctx, "capacities of volumes are not enforced", "why", k.why, "remedy", engi.RemedyOf(k.why))
	}
	return k, k.sweep(ctx)
}

func (k *Manager) sweep(ctx context.Context) error {
	all, err := k.o.Store.List(ctx, "")
	if err != nil {
		return err
	}
	known := map[string]Record{}
	for _, r := range all {
		known[string(r.ID)] = r
	}
	entries, err := os.ReadDir(k.o.Dir)
	if err != nil {
		return fault("list", k.o.Dir, err)
	}
	for _, e := range entries {
		at := filepath.Join(k.o.Dir, e.Name())
		r, ok := known[e.Name()]
		switch {
		case !ok:
			k.o.Log.InfoContext(ctx, "remove the files of no volume", "volume", e.Name())
			if err := discard(at); err != nil {
				return err
			}
		case r.Holder == "":
			if err := detach(filepath.Join(at, "at")); err != nil {
				k.o.Log.WarnContext(ctx, "unmount a volume", "volume", r.ID, "err", err)
			}
		}
	}
	// Their directories had no record among the living.
	removed, err := k.o.Store.Removed(ctx)
	if err != nil {
		return err
	}
	for _, id := range removed {
		if err := k.o.Store.Forget(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// NotEnforced says what is not enforced here, each with its remedy.
func (k *Manager) NotEnforced() []string {
	if k.mkfs != "" {
		return nil
	}
	return []string{fmt.Sprintf("capacity of volumes (%v: %s)", k.why, engi.RemedyOf(k.why))}
}

func (k *Manager) dir(id engi.VolumeID) string  { return filepath.Join(k.o.Dir, string(id)) }
func (k *Manager) at(id engi.VolumeID) string   { return filepath.Join(k.dir(id), "at") }
func (k *Manager) data(id engi.VolumeID) string { return filepath.Join(k.at(id), "data") }

// lock returns the slot of a volume, locked.
func (k *Manager) lock(id engi.VolumeID) *slot {
	k.mu.Lock()
	s := k.slots[id]
	if s == nil {
		s = &slot{}
		k.slots[id] = s
	}
	k.mu.Unlock()
	s.mu.Lock()
	return s
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

func checkName(name string) error {
	_, err := engi.ParseVolumeID(name)
	if err == nil || !namePattern.MatchString(name) || name == "." || name == ".." {
		return engi.Errorf(engi.Invalid, "%.140q is not the name of a volume", name).
			WithRemedy("use letters, digits, '.', '_' and '-', at most 128")
	}
	return nil
}

// Create implements [engi.Volumes].
func (k *Manager) Create(ctx context.Context, spec engi.VolumeSpec) (_ engi.Volume, err error) {
	defer engi.Annotate(&err, "create volume %.140s", spec.Name)
	if err := checkName(spec.Name); err != nil {
		return engi.Volume{}, err
	}
	if spec.Capacity == 0 {
		spec.Capacity = k.o.Capacity
	}
	if spec.Capacity < minCapacity || spec.Capacity > maxCapacity {
		return engi.Volume{}, engi.Errorf(engi.Invalid, "a capacity of %d bytes", spec.Capacity).
			WithRemedy("ask for %d bytes at least and %d at most", minCapacity, maxCapacity)
	}
	if spec.TTL < 0 || spec.TTL > maxTTL {
		return engi.Volume{}, engi.Errorf(engi.Invalid, "a time to live of %v", spec.TTL).WithRemedy("ask for at most 100 years, or 0 for ever")
	}
	k.creating.Lock()
	defer k.creating.Unlock()
	if _, err := k.o.Store.Find(ctx, spec.Owner, spec.Name); err == nil && spec.Owner != "" {
		return engi.Volume{}, engi.Errorf(engi.Conflict, "there is one of that name").WithRemedy("use it, remove it, or choose another name")
	} else if err != nil && engi.KindOf(err) != engi.NotFound && spec.Owner != "" {
		return engi.Volume{}, err
	}
	if err := k.room(ctx, spec); err != nil {
		return engi.Volume{}, err
	}
	now := k.now().UTC().Truncate(time.Millisecond)
	r := Record{TTL: spec.TTL, Image: k.mkfs != "", Volume: engi.Volume{
		ID: cmp.Or(spec.ID, engi.NewVolumeID()), Owner: spec.Owner, Name: spec.Name, Capacity: spec.Capacity, Created: now, Accessed: now,
	}}
	recorded := false
	defer func() {
		if recorded {
			return
		}
		if e := discard(k.dir(r.ID)); e != nil {
			k.o.Log.ErrorContext(ctx, "remove the files of a failed volume", "volume", r.ID, "err", e)
		}
	}()
	if err := k.build(ctx, r); err != nil {
		return engi.Volume{}, err
	}
	if err := k.o.Store.Put(ctx, r); err != nil {
		// It may be on record in spite of the error: then its files must be there.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, e := k.o.Store.Find(late, "", string(r.ID)); e == nil || engi.KindOf(e) != engi.NotFound {
			recorded = true
			if e == nil {
				_ = k.remove(late, r.ID, time.Time{}) // it stays, unasked for, at worst
			}
		}
		return engi.Volume{}, err
	}
	recorded = true
	return r.shown(), nil
}

// room reports Exhausted if spec exceeds its owner's quota, or what the disk
// still has when every volume is filled to its capacity.
func (k *Manager) room(ctx context.Context, spec engi.VolumeSpec) error {
	all, err := k.o.Store.List(ctx, "")
	if err != nil {
		return err
	}
	var count int
	var disk, promised int64
	for _, r := range all {
		if r.Owner == spec.Owner {
			count++
			disk += r.Capacity
		}
		promised += max(0, r.Capacity-k.allocated(r))
	}
	if k.o.Quota != nil {
		q := k.o.Quota(spec.Owner)
		if q.Volumes > 0 && count >= q.Volumes {
			return engi.Errorf(engi.Exhausted, "the owner has %d volumes, which is the quota", count).WithRemedy("remove one, or raise the quota")
		}
		if q.Disk > 0 {
			if k.o.Disk != nil {
				more, err := k.o.Disk(ctx, spec.Owner)
				if err != nil {
					return err
				}
				disk += more
			}
			if disk+spec.Capacity > q.Disk {
				return engi.Errorf(engi.Exhausted, "%d bytes more than the %d in use exceed the owner's quota of %d", spec.Capacity, disk, q.Disk).
					WithRemedy("ask for a smaller capacity, remove volumes or snapshots, or raise the quota")
			}
		}
	}
	free, err := freeBytes(k.o.Dir)
	if err != nil {
		return err
	}
	if spec.Capacity > free-promised-reserve {
		return engi.Errorf(engi.Exhausted, "the disk has %d bytes left, of which %d are promised to volumes", free, promised).
			WithRemedy("ask for a smaller capacity, remove volumes, or put the data directory on a larger disk")
	}
	return nil
}

// shown is the volume as others see it.
func (r Record) shown() engi.Volume {
	v := r.Volume
	v.Expires = time.Time{}
	if r.TTL > 0 {
		v.Expires = v.Accessed.Add(r.TTL)
	}
	return v
}

// Get implements [engi.Volumes].
func (k *Manager) Get(ctx context.Context, owner engi.Owner, idOrName string) (_ engi.Volume, err error) {
	defer engi.Annotate(&err, "volume %.140s", idOrName)
	r, err := k.o.Store.Find(ctx, owner, idOrName)
	if err != nil {
		return engi.Volume{}, err
	}
	return k.measured(r).shown(), nil
}

// List implements [engi.Volumes].
func (k *Manager) List(ctx context.Context, owner engi.Owner) (_ []engi.Volume, err error) {
	defer engi.Annotate(&err, "list volumes")
	all, err := k.o.Store.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	list := []engi.Volume{}
	for _, r := range all {
		list = append(list, k.measured(r).shown())
	}
	return list, nil
}

// measured brings Used up to date, where that costs nothing.
func (k *Manager) measured(r Record) Record {
	if r.Image {
		if used, ok := usedBytes(k.at(r.ID)); ok {
			r.Used = used
		}
	}
	return r
}

// Remove implements [engi.Volumes].
func (k *Manager) Remove(ctx context.Context, owner engi.Owner, idOrName string) (err error) {
	defer engi.Annotate(&err, "remove volume %.140s", idOrName)
	r, err := k.o.Store.Find(ctx, owner, idOrName)
	if err != nil {
		return err
	}
	return k.remove(ctx, r.ID, time.Time{})
}

// remove marks a volume as removed, deletes its files, then its record. What is
// left by a failure goes with the next tidying.
func (k *Manager) remove(ctx context.Context, id engi.VolumeID, before time.Time) error {
	s := k.lock(id)
	defer s.mu.Unlock()
	if s.gone {
		return unknown()
	}
	if err := k.o.Store.Remove(ctx, id, before); err != nil {
		return err
	}
	s.gone = true
	if err := k.bury(context.WithoutCancel(ctx), id); err != nil {
		k.o.Log.ErrorContext(ctx, "delete the files of a volume", "volume", id, "err", err)
	}
	return nil
}

// bury deletes the files and the record of a removed volume, whose slot is
// locked.
func (k *Manager) bury(ctx context.Context, id engi.VolumeID) error {
	if err := discard(k.dir(id)); err != nil {
		return err
	}
	if err := k.o.Store.Forget(ctx, id); err != nil {
		return err
	}
	k.mu.Lock()
	delete(k.slots, id)
	k.mu.Unlock()
	return nil
}

func unknown() *engi.Error {
	return engi.Errorf(engi.NotFound, "there is no such volume").WithRemedy("'engi volume list' shows yours")
}

// Mount gives a volume to holder and returns the directory of the node that
// sandboxes see. For the same holder it may be called again, and must be after
// the node has started anew. It reports Conflict, naming the holder, if another
// sandbox has it.
func (k *Manager) Mount(ctx context.Context, owner engi.Owner, idOrName string, holder engi.SandboxID) (_ engi.Volume, source string, err error) {
	defer engi.Annotate(&err, "mount volume %.140s", idOrName)
	r, err := k.o.Store.Find(ctx, owner, idOrName)
	if err != nil {
		return engi.Volume{}, "", err
	}
	s := k.lock(r.ID)
	defer s.mu.Unlock()
	if s.gone {
		return engi.Volume{}, "", unknown()
	}
	before := r.Holder
	r.Accessed = k.now().UTC().Truncate(time.Millisecond)
	if err := k.o.Store.Pass(ctx, r.ID, "", holder, r.Accessed); err != nil {
		return engi.Volume{}, "", err
	}
	r.Holder = holder
	if err := k.attach(ctx, s, r); err != nil {
		if before == "" {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if e := k.o.Store.Pass(late, r.ID, holder, "", r.Accessed); e != nil {
				k.o.Log.ErrorContext(ctx, "let go of a volume that could not be mounted", "volume", r.ID, "err", e)
			}
		}
		return engi.Volume{}, "", err
	}
	return k.measured(r).shown(), k.data(r.ID), nil
}

// Unmount lets go of all volumes of holder, which is gone or about to start
// without them. Having none is no error.
func (k *Manager) Unmount(ctx context.Context, holder engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "unmount the volumes of %s", holder)
	all, err := k.o.Store.List(ctx, "")
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.Holder != holder {
			continue
		}
		if err := k.letGo(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (k *Manager) letGo(ctx context.Context, r Record) error {
	s := k.lock(r.ID)
	defer s.mu.Unlock()
	k.note(ctx, s, r)
	k.rest(ctx, s, r)
	err := k.o.Store.Pass(ctx, r.ID, r.Holder, "", k.now().UTC())
	if kind := engi.KindOf(err); err != nil && (kind == engi.Conflict || kind == engi.NotFound) {
		return nil // somebody else let go of it first
	}
	return err
}

// note records what a volume uses, and that it was used.
func (k *Manager) note(ctx context.Context, s *slot, r Record) {
	used := r.Used
	if r.Image {
		used = k.measured(r).Used
	} else if n, err := treeBytes(k.data(r.ID)); err == nil {
		used, s.used = n, n
	}
	if err := k.o.Store.Touch(ctx, r.ID, used, k.now().UTC()); err != nil {
		k.o.Log.ErrorContext(ctx, "record the use of a volume", "volume", r.ID, "err", err)
	}
}

// rest unmounts a volume nobody needs. Its slot is locked, and no sandbox will
// have it.
func (k *Manager) rest(ctx context.Context, s *slot, r Record) {
	if !r.Image || s.users > 0 || s.gone {
		return
	}
	if err := detach(k.at(r.ID)); err != nil {
		// Somebody is slow to leave; tidy tries again.
		k.o.Log.DebugContext(ctx, "unmount a volume", "volume", r.ID, "err", err)
	}
}

// Holders returns the sandboxes that have volumes.
func (k *Manager) Holders(ctx context.Context) (_ []engi.SandboxID, err error) {
	defer engi.Annotate(&err, "list who has volumes")
	all, err := k.o.Store.List(ctx, "")
	if err != nil {
		return nil, err
	}
	seen := map[engi.SandboxID]bool{"": true}
	var holders []engi.SandboxID
	for _, r := range all {
		if !seen[r.Holder] {
			seen[r.Holder] = true
			holders = append(holders, r.Holder)
		}
	}
	return holders, nil
}

// Run removes volumes whose time is over and finishes what was left undone,
// until ctx ends. It never touches one that a sandbox has.
func (k *Manager) Run(ctx context.Context, ready func()) error {
	ready()
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		if err := k.tidy(ctx); err != nil && ctx.Err() == nil {
			k.o.Log.ErrorContext(ctx, "tidy volumes", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (k *Manager) tidy(ctx context.Context) error {
	all, err := k.o.Store.List(ctx, "")
	if err != nil {
		return err
	}
	for _, r := range all {
		if ctx.Err() != nil {
			return nil
		}
		if r.Holder != "" {
			continue
		}
		expired := r.TTL > 0 && r.Accessed.Add(r.TTL).Before(k.now())
		s := k.lock(r.ID)
		idle := s.users == 0
		if idle && !expired {
			// It may have got a holder meanwhile.
			if now, err := k.o.Store.Find(ctx, "", string(r.ID)); err == nil && now.Holder == "" {
				k.rest(ctx, s, now)
			}
		}
		s.mu.Unlock()
		if !idle || !expired {
			continue
		}
		err := k.remove(ctx, r.ID, k.now().Add(-r.TTL))
		if err == nil {
			k.o.Log.InfoContext(ctx, "removed a volume whose time was over", "volume", r.ID, "accessed", r.Accessed)
		} else if kind := engi.KindOf(err); kind != engi.Conflict && kind != engi.NotFound {
			return err
		}
	}
	removed, err := k.o.Store.Removed(ctx)
	if err != nil {
		return err
	}
	for _, id := range removed {
		s := k.lock(id)
		s.gone = true
		err := k.bury(ctx, id)
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// discard deletes the directory of a volume, unmounting what is in it.
func discard(dir string) error {
	if err := detachAll(dir); err != nil {
		return err
	}
	if err := empty(filepath.Join(dir, "image")); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault("remove", dir, err)
	}
	return nil
}
