// Package volume manages volumes: directories with a capacity that outlive the
// sandboxes that mount them. If the manager runs as root, each volume is a sparse image with its own file
// system, so that the kernel enforces the capacity and files in a volume cannot
// reach the node's disk. Otherwise a volume is a directory, and [Manager.NotEnforced]
// lists the consequences. docs/decisions/0005 gives the reasons.
//
// It does not mount volumes in sandboxes (the provider binds the directory that
// Mount returns) and does not decide which sandbox may have them (see package fleet).
package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// A Record is the stored state of a volume.
type Record struct {
	engi.Volume               // Expires is not stored: it follows from TTL
	TTL         time.Duration // time to live after the last use; 0 means forever
	Image       bool          // the volume is an image, not a plain directory
}

// A Store keeps records of volumes. Data written by a method that has returned survives a kill.
// Look-ups find only the volumes that viewer sees, and no removed volumes.
type Store interface {
	// Put stores a new volume. It reports Conflict if the owner has a volume with the same name.
	Put(ctx context.Context, r Record) error
	// Find returns a volume by ID or name, or reports NotFound. For [engi.Everyone], it reports
	// Conflict for a name that several owners use, but not the node.
	Find(ctx context.Context, viewer engi.Viewer, idOrName string) (Record, error)
	// List returns volumes in the order of name, then owner. It reports Invalid for a page after
	// a volume that is not selected.
	List(ctx context.Context, viewer engi.Viewer, q Filter) ([]Record, error)
	// Usage returns the number of an owner's volumes, and the sum of their capacities in bytes.
	// Its cost does not depend on the number of volumes.
	Usage(ctx context.Context, owner engi.Owner) (count int, capacity int64, err error)
	// Pass changes the holder of a volume from sandbox from to sandbox to; empty means no holder. It
	// reports NotFound, and Conflict with the holder's ID if neither sandbox holds the volume.
	Pass(ctx context.Context, id engi.VolumeID, from, to engi.SandboxID, at time.Time) error
	// Touch sets a volume's usage and time of access. It returns no error if the
	// volume does not exist.
	Touch(ctx context.Context, id engi.VolumeID, used int64, at time.Time) error
	// Remove marks a volume as removed, which frees its name. It reports
	// Conflict with the holder's ID if a sandbox holds the volume, and NotFound. Unless
	// before is zero, it also reports Conflict if the volume was used then or later.
	Remove(ctx context.Context, id engi.VolumeID, before time.Time) error
	// Forget deletes the record of a removed volume. A missing record is not an
	// error.
	Forget(ctx context.Context, id engi.VolumeID) error
}

// A Filter selects volumes. The zero value selects all volumes that are not removed.
type Filter struct {
	Holder  engi.SandboxID // volumes held by this sandbox; empty means any
	Held    bool           // only volumes held by sandboxes
	Expired time.Time      // only volumes without holder whose time to live had ended by this time
	Removed bool           // removed volumes instead of others
	Page    engi.Paging
}

// Options configures a Manager. Only Dir and Store are required.
type Options struct {
	Dir      string // private directory of the manager; created if missing
	Store    Store
	Log      *slog.Logger                // nil discards
	Capacity int64                       // default capacity of volumes in bytes; 0 means 1 GiB
	Quota    func(engi.Owner) engi.Quota // returns an owner's quota, of which Volumes is enforced; nil means no limits
	Refused  func(engi.Owner, string)    // called with the quota's name for each refusal; may be nil; must be quick
	Plain    bool                        // use plain directories even where images work

	// Book counts a new volume's capacity against its owner's quota of disk until
	// release is called, or reports Exhausted. store calls put, which stores the
	// volume, so that it is counted once. Nil means no limits.
	Book func(ctx context.Context, owner engi.Owner, capacity int64) (store func(put func() error) error, release func(), err error)
}

const (
	defaultCapacity = 1 << 30
	minCapacity     = 16 << 20 // bytes; a file system needs some of the capacity itself
	maxCapacity     = 16 << 40
	maxTTL          = 100 * 365 * 24 * time.Hour
	reservedBytes   = 256 << 20 // bytes of the node's disk that are never given to volumes
	cleanUpEvery    = 15 * time.Second
)

// A Manager stores volumes in a directory. It implements [engi.Volumes] and is safe
// for concurrent use. Only one process at a time may use the directory.
//
// The directory has one directory for each volume:
//
//	ID/image     the file system, if the volume is an image
//	ID/at        the mount point of the image, or a plain directory
//	ID/at/data   the directory that sandboxes see
//	ID/at/tmp    files that are being written through Files
type Manager struct {
	o           Options
	now         func() time.Time
	mkfs        string // path of mkfs.ext4; empty if volumes are directories
	notEnforced error  // reason for which volumes are directories; nil if they are images

	maxListed int // maximum number of entries of one listing

	creating sync.Mutex         // held while quotas are checked
	pending  map[engi.Owner]int // number of volumes being created; guarded by creating

	mu     sync.Mutex
	states map[engi.VolumeID]*state // guarded by mu

	// The remaining growth of a volume is measured once, and again while the volume changes.
	grows    map[engi.VolumeID]int64  // bytes by which each volume may still grow; guarded by mu
	promised int64                    // sum of grows; guarded by mu
	active   map[engi.VolumeID]Record // volumes that were mounted and may still be; guarded by mu
}

var _ engi.Volumes = (*Manager)(nil)

// A state is the state of one volume in this process.
type state struct {
	mu      sync.Mutex // held during a mount, unmount or removal of the volume
	users   int        // number of open Files and readers; guarded by mu
	cleaned bool       // leftovers of earlier processes were removed; guarded by mu
	removed bool       // the volume was removed; guarded by mu
	used    int64      // approximate number of bytes in a plain directory; guarded by mu
}

// Open prepares o.Dir and reconciles it with the store: it deletes volumes that were
// not completely created or removed, and unmounts volumes that no sandbox holds. The
// Manager need not be closed.
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
	// Use the form in which the kernel lists mounts.
	if o.Dir, err = filepath.EvalSymlinks(o.Dir); err == nil {
		o.Dir, err = filepath.Abs(o.Dir)
	}
	if err != nil {
		return nil, fault("resolve", o.Dir, err)
	}
	m := &Manager{o: o, now: time.Now, maxListed: maxListed, states: map[engi.VolumeID]*state{}, grows: map[engi.VolumeID]int64{}, active: map[engi.VolumeID]Record{}, pending: map[engi.Owner]int{}}
	if o.Plain {
		m.notEnforced = engi.Errorf(engi.Unsupported, "volumes are plain directories, whose capacity programs can exceed, because the configuration says so").
			WithRemedy("remove volumes.plain from the configuration")
	} else {
		m.mkfs, m.notEnforced = probe()
	}
	if m.notEnforced != nil {
		o.Log.InfoContext(ctx, "capacities of volumes are not enforced", "why", m.notEnforced, "remedy", engi.RemedyOf(m.notEnforced))
	}
	return m, m.sweep(ctx)
}

func (m *Manager) sweep(ctx context.Context) error {
	all, err := m.o.Store.List(ctx, engi.Everyone, Filter{})
	if err != nil {
		return err
	}
	known := map[string]Record{}
	for _, r := range all {
		known[string(r.ID)] = r
		m.promise(r)
	}
	entries, err := os.ReadDir(m.o.Dir)
	if err != nil {
		return fault("list", m.o.Dir, err)
	}
	for _, e := range entries {
		at := filepath.Join(m.o.Dir, e.Name())
		r, ok := known[e.Name()]
		switch {
		case !ok:
			m.o.Log.InfoContext(ctx, "remove files that belong to no volume", "volume", e.Name())
			if err := removeDir(at); err != nil {
				return err
			}
		case r.Holder != "":
			m.setActive(r)
		default:
			if err := unmount(filepath.Join(at, "at")); err != nil {
				m.o.Log.WarnContext(ctx, "unmount a volume", "volume", r.ID, "error", err)
				m.setActive(r) // unmounting is tried again
			}
		}
	}
	// The directories of these volumes were removed above.
	removed, err := m.o.Store.List(ctx, engi.Everyone, Filter{Removed: true})
	if err != nil {
		return err
	}
	for _, r := range removed {
		if err := m.o.Store.Forget(ctx, r.ID); err != nil {
			return err
		}
	}
	return nil
}

// NotEnforced returns the limits that are not enforced on this host, with remedies.
func (m *Manager) NotEnforced() []string {
	if m.mkfs != "" {
		return nil
	}
	return []string{fmt.Sprintf("capacity of volumes (%v: %s)", m.notEnforced, engi.RemedyOf(m.notEnforced))}
}

func (m *Manager) dir(id engi.VolumeID) string        { return filepath.Join(m.o.Dir, string(id)) }
func (m *Manager) mountPoint(id engi.VolumeID) string { return filepath.Join(m.dir(id), "at") }
func (m *Manager) dataDir(id engi.VolumeID) string    { return filepath.Join(m.mountPoint(id), "data") }

// lock returns the locked state of a volume.
func (m *Manager) lock(id engi.VolumeID) *state {
	m.mu.Lock()
	s := m.states[id]
	if s == nil {
		s = &state{}
		m.states[id] = s
	}
	m.mu.Unlock()
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
func (m *Manager) Create(ctx context.Context, spec engi.VolumeSpec) (_ engi.Volume, err error) {
	defer engi.Annotate(&err, "create volume %.140s", spec.Name)
	if err := checkName(spec.Name); err != nil {
		return engi.Volume{}, err
	}
	if spec.Capacity == 0 {
		spec.Capacity = m.o.Capacity
	}
	if spec.Capacity < minCapacity || spec.Capacity > maxCapacity {
		return engi.Volume{}, engi.Errorf(engi.Invalid, "a capacity of %d bytes", spec.Capacity).
			WithRemedy("ask for %d to %d bytes", minCapacity, maxCapacity)
	}
	if spec.TTL < 0 || spec.TTL > maxTTL {
		return engi.Volume{}, engi.Errorf(engi.Invalid, "a time to live of %v", spec.TTL).WithRemedy("ask for at most 100 years, or 0 for no limit")
	}
	now := m.now().UTC().Truncate(time.Millisecond)
	r := Record{TTL: spec.TTL, Image: m.mkfs != "", Volume: engi.Volume{
		ID: cmp.Or(spec.ID, engi.NewVolumeID()), Owner: spec.Owner, Name: spec.Name, Capacity: spec.Capacity, Created: now, Accessed: now,
	}}
	if err := m.reserve(ctx, r); err != nil {
		return engi.Volume{}, err
	}
	begun, recorded := false, false
	made := sync.OnceFunc(func() { // called with m.creating held
		if m.pending[r.Owner]--; m.pending[r.Owner] == 0 {
			delete(m.pending, r.Owner)
		}
	})
	defer func() {
		if recorded {
			return
		}
		m.creating.Lock()
		made()
		m.creating.Unlock()
		if begun { // a search for mounts takes time
			if e := removeDir(m.dir(r.ID)); e != nil {
				m.o.Log.ErrorContext(ctx, "remove the files of a failed volume", "volume", r.ID, "error", e)
			}
		}
		m.forget(r.ID)
	}()
	store := func(put func() error) error { return put() }
	if m.o.Book != nil {
		book, release, err := m.o.Book(ctx, spec.Owner, spec.Capacity)
		if err != nil {
			return engi.Volume{}, err
		}
		defer release()
		store = book
	}
	begun = true
	if err := m.create(ctx, r); err != nil {
		return engi.Volume{}, err
	}
	if spec.Content != nil {
		if err := m.fill(ctx, r, spec.Content); err != nil {
			return engi.Volume{}, err
		}
	}
	m.measure(r)
	m.creating.Lock()
	err = store(func() error { return m.o.Store.Put(ctx, r) })
	made() // the volume is counted only once
	m.creating.Unlock()
	if err != nil {
		// The record may have been stored in spite of the error. Then the volume's files must exist.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, e := m.o.Store.Find(late, engi.Everyone, string(r.ID)); !engi.Is(e, engi.NotFound) {
			recorded = true
			if e == nil {
				_ = m.remove(late, r.ID, time.Time{}) // if this fails, the volume remains
			}
		}
		return engi.Volume{}, err
	}
	recorded = true
	return r.public(), nil
}

// reserve checks that a new volume is permitted, and counts it. The creation of its files takes a
// while, during which other calls need not wait.
func (m *Manager) reserve(ctx context.Context, r Record) error {
	m.creating.Lock()
	defer m.creating.Unlock()
	if _, err := m.o.Store.Find(ctx, r.Owner.Viewer(), r.Name); err == nil && r.Owner != "" {
		return engi.Errorf(engi.Conflict, "the name is already used").WithRemedy("use it, remove it, or choose another name")
	} else if err != nil && !engi.Is(err, engi.NotFound) && r.Owner != "" {
		return err
	}
	m.mu.Lock()
	_, known := m.grows[r.ID]
	m.mu.Unlock()
	if known { // the files of the existing volume must not be taken for the new one's
		return engi.Errorf(engi.Conflict, "the ID %s is already used", r.ID).WithRemedy("leave the ID out")
	}
	if err := m.checkSpace(ctx, r); err != nil {
		return err
	}
	m.pending[r.Owner]++
	m.promise(r)
	return nil
}

// promise adds the capacity of a new volume to the promised growth.
func (m *Manager) promise(r Record) {
	m.mu.Lock()
	m.grows[r.ID] = 0
	m.mu.Unlock()
	m.measure(r)
}

// measure sets the remaining growth of a volume, unless the volume was forgotten: its growth would be
// counted for ever.
func (m *Manager) measure(r Record) {
	grows := max(0, r.Capacity-m.allocated(r))
	m.mu.Lock()
	defer m.mu.Unlock()
	before, known := m.grows[r.ID]
	if !known {
		return
	}
	m.promised += grows - before
	m.grows[r.ID] = grows
}

// growth returns the number of bytes by which all volumes together may still grow.
func (m *Manager) growth() int64 {
	for _, r := range m.allActive() {
		if r.Image { // recordUse measures directories
			m.measure(r)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.promised
}

// setActive marks a volume for measurement at each check of the disk, and for unmounting by cleanUp
// once it has no users.
func (m *Manager) setActive(r Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active[r.ID] = r
}

// allActive returns the records of volumes that may be mounted, from the time of setActive.
func (m *Manager) allActive() []Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.active))
}

// checkSpace reports Exhausted if a new volume exceeds the owner's maximum number of volumes, or the space that
// would be left on the disk if every volume were full.
func (m *Manager) checkSpace(ctx context.Context, r Record) error {
	if m.o.Quota != nil {
		count, _, err := m.o.Store.Usage(ctx, r.Owner)
		if err != nil {
			return err
		}
		count += m.pending[r.Owner]
		if q := m.o.Quota(r.Owner); q.Volumes > 0 && count >= q.Volumes {
			if m.o.Refused != nil {
				m.o.Refused(r.Owner, "volumes")
			}
			return engi.Errorf(engi.Exhausted, "the owner has %d volumes, which is the quota", count).WithRemedy("remove one, or have the operator raise the quota")
		}
	}
	promised := m.growth()
	free, err := freeBytes(m.o.Dir)
	if err != nil {
		return err
	}
	if r.Capacity > free-promised-reservedBytes {
		return engi.Errorf(engi.Exhausted, "the disk has %d free bytes, of which %d are reserved for volumes", free, promised).
			WithRemedy("ask for a smaller capacity, remove volumes, or put the data directory on a larger disk")
	}
	return nil
}

// public returns the volume with Expires filled in.
func (r Record) public() engi.Volume {
	v := r.Volume
	v.Expires = time.Time{}
	if r.TTL > 0 {
		v.Expires = v.Accessed.Add(r.TTL)
	}
	return v
}

// Get implements [engi.Volumes].
func (m *Manager) Get(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.Volume, err error) {
	defer engi.Annotate(&err, "volume %.140s", idOrName)
	r, err := m.o.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return engi.Volume{}, err
	}
	return m.withUsage(r).public(), nil
}

// List implements [engi.Volumes].
func (m *Manager) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) (_ []engi.Volume, err error) {
	defer engi.Annotate(&err, "list volumes")
	all, err := m.o.Store.List(ctx, viewer, Filter{Page: p})
	if err != nil {
		return nil, err
	}
	list := []engi.Volume{}
	for _, r := range all {
		list = append(list, m.withUsage(r).public())
	}
	return list, nil
}

// withUsage updates Used if the measurement is cheap.
func (m *Manager) withUsage(r Record) Record {
	if r.Image {
		if used, ok := usedBytes(m.mountPoint(r.ID)); ok {
			r.Used = used
		}
	}
	return r
}

// Usage returns the number of an owner's volumes, and the sum of their capacities in bytes.
func (m *Manager) Usage(ctx context.Context, owner engi.Owner) (count int, capacity int64, err error) {
	defer engi.Annotate(&err, "add up volumes")
	return m.o.Store.Usage(ctx, owner)
}

// Remove implements [engi.Volumes].
func (m *Manager) Remove(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "remove volume %.140s", idOrName)
	r, err := m.o.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return err
	}
	return m.remove(ctx, r.ID, time.Time{})
}

// remove marks a volume as removed and deletes its files, then its record. After a
// failure, cleanUp tries again.
func (m *Manager) remove(ctx context.Context, id engi.VolumeID, before time.Time) error {
	s := m.lock(id)
	defer s.mu.Unlock()
	if s.removed {
		return unknown()
	}
	if err := m.o.Store.Remove(ctx, id, before); err != nil {
		return err
	}
	s.removed = true
	if err := m.deleteFiles(context.WithoutCancel(ctx), id); err != nil {
		m.o.Log.ErrorContext(ctx, "delete the files of a volume", "volume", id, "error", err)
	}
	return nil
}

// deleteFiles deletes the files and the record of a removed volume. The caller holds
// the lock of its state.
func (m *Manager) deleteFiles(ctx context.Context, id engi.VolumeID) error {
	if err := removeDir(m.dir(id)); err != nil {
		return err
	}
	if err := m.o.Store.Forget(ctx, id); err != nil {
		return err
	}
	m.forget(id)
	return nil
}

// forget drops the in-memory state of a deleted volume.
func (m *Manager) forget(id engi.VolumeID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.promised -= m.grows[id]
	delete(m.grows, id)
	delete(m.active, id)
	delete(m.states, id)
}

func unknown() *engi.Error {
	return engi.Errorf(engi.NotFound, "there is no such volume").WithRemedy("'engi volume list' shows yours")
}

// Mount makes holder the holder of a volume and returns the directory that sandboxes
// see. It may be repeated for the same holder, and must be repeated after a reboot of the
// node. It reports Conflict with the holder's ID if another sandbox holds the volume.
func (m *Manager) Mount(ctx context.Context, viewer engi.Viewer, idOrName string, holder engi.SandboxID) (_ engi.Volume, source string, err error) {
	defer engi.Annotate(&err, "mount volume %.140s", idOrName)
	r, err := m.o.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return engi.Volume{}, "", err
	}
	s := m.lock(r.ID)
	defer s.mu.Unlock()
	if s.removed {
		return engi.Volume{}, "", unknown()
	}
	before := r.Holder
	r.Accessed = m.now().UTC().Truncate(time.Millisecond)
	if err := m.o.Store.Pass(ctx, r.ID, "", holder, r.Accessed); err != nil {
		return engi.Volume{}, "", err
	}
	r.Holder = holder
	if err := m.mount(ctx, s, r); err != nil {
		if before == "" {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if e := m.o.Store.Pass(late, r.ID, holder, "", r.Accessed); e != nil {
				m.o.Log.ErrorContext(ctx, "release a volume that could not be mounted", "volume", r.ID, "error", e)
			}
		}
		return engi.Volume{}, "", err
	}
	return m.withUsage(r).public(), m.dataDir(r.ID), nil
}

// Unmount releases all volumes of holder, which has ended or will start without
// them. It returns no error if holder has no volumes.
func (m *Manager) Unmount(ctx context.Context, holder engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "unmount the volumes of %s", holder)
	all, err := m.o.Store.List(ctx, engi.Everyone, Filter{Holder: holder})
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := m.release(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) release(ctx context.Context, r Record) error {
	s := m.lock(r.ID)
	defer s.mu.Unlock()
	m.recordUse(ctx, s, r)
	m.unmountIdle(ctx, s, r)
	err := m.o.Store.Pass(ctx, r.ID, r.Holder, "", m.now().UTC())
	if engi.Is(err, engi.Conflict, engi.NotFound) {
		return nil // the volume was released already
	}
	return err
}

// recordUse stores the usage and the time of access of a volume.
func (m *Manager) recordUse(ctx context.Context, s *state, r Record) {
	used := r.Used
	if r.Image {
		used = m.withUsage(r).Used
	} else if n, err := treeBytes(m.dataDir(r.ID)); err == nil {
		used, s.used = n, n
	}
	r.Used = used
	m.measure(r)
	if err := m.o.Store.Touch(ctx, r.ID, used, m.now().UTC()); err != nil {
		m.o.Log.ErrorContext(ctx, "record the use of a volume", "volume", r.ID, "error", err)
	}
}

// unmountIdle unmounts a volume that is not in use, and reports whether the volume is now
// unmounted. The caller holds the lock of its state, and no sandbox holds the
// volume.
func (m *Manager) unmountIdle(ctx context.Context, s *state, r Record) bool {
	if s.users > 0 || s.removed {
		return false
	}
	if !r.Image {
		return true
	}
	err := unmount(m.mountPoint(r.ID))
	if err != nil {
		// The volume is still busy; cleanUp tries again.
		m.o.Log.DebugContext(ctx, "unmount a volume", "volume", r.ID, "error", err)
	}
	return err == nil
}

// Holders returns the sandboxes that hold volumes.
func (m *Manager) Holders(ctx context.Context) (_ []engi.SandboxID, err error) {
	defer engi.Annotate(&err, "list holders of volumes")
	all, err := m.o.Store.List(ctx, engi.Everyone, Filter{Held: true})
	if err != nil {
		return nil, err
	}
	seen := map[engi.SandboxID]bool{}
	var holders []engi.SandboxID
	for _, r := range all {
		if !seen[r.Holder] {
			seen[r.Holder] = true
			holders = append(holders, r.Holder)
		}
	}
	return holders, nil
}

// Run removes expired volumes and completes interrupted removals until ctx ends. It
// does not touch volumes that sandboxes hold.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	ready()
	for range clock.Every(ctx, cleanUpEvery) {
		if err := m.cleanUp(ctx); err != nil && ctx.Err() == nil {
			m.o.Log.ErrorContext(ctx, "clean up volumes", "error", err)
		}
	}
	return nil
}

func (m *Manager) cleanUp(ctx context.Context) error {
	for _, r := range m.allActive() {
		if ctx.Err() != nil {
			return nil
		}
		s := m.lock(r.ID)
		if now, err := m.o.Store.Find(ctx, engi.Everyone, string(r.ID)); err == nil && now.Holder == "" && s.users == 0 && m.unmountIdle(ctx, s, now) {
			m.measure(now)
			m.mu.Lock()
			delete(m.active, r.ID)
			m.mu.Unlock()
		}
		s.mu.Unlock()
	}
	expired, err := m.o.Store.List(ctx, engi.Everyone, Filter{Expired: m.now()})
	if err != nil {
		return err
	}
	for _, r := range expired {
		if ctx.Err() != nil {
			return nil
		}
		s := m.lock(r.ID)
		idle := s.users == 0
		s.mu.Unlock()
		if !idle {
			continue
		}
		err := m.remove(ctx, r.ID, m.now().Add(-r.TTL))
		if err == nil {
			m.o.Log.InfoContext(ctx, "removed an expired volume", "volume", r.ID, "accessed", r.Accessed)
		} else if !engi.Is(err, engi.Conflict, engi.NotFound) {
			return err
		}
	}
	removed, err := m.o.Store.List(ctx, engi.Everyone, Filter{Removed: true})
	if err != nil {
		return err
	}
	for _, r := range removed {
		s := m.lock(r.ID)
		s.removed = true
		err := m.deleteFiles(ctx, r.ID)
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// removeDir deletes the directory of a volume and unmounts all file systems mounted in it.
func removeDir(dir string) error {
	if err := unmountAll(dir); err != nil {
		return err
	}
	if err := freeBlocks(filepath.Join(dir, "image")); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault("remove", dir, err)
	}
	return nil
}
