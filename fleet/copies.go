package fleet

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet/pool"
	"github.com/engi-dev/engi/provider"
)

const (
	maxForks  = 64 // copies of one call
	forkBoots = 4  // copies that start at the same time
)

func (l lifecycle) Snapshot(ctx context.Context, owner engi.Owner, id engi.SandboxID, s engi.SnapshotSpec) (_ engi.Snapshot, err error) {
	defer engi.Annotate(&err, "snapshot sandbox %s", id)
	m := l.m
	if m.opt.Snapshots == nil {
		return engi.Snapshot{}, errNoSnapshots
	}
	if s.TTL < 0 {
		return engi.Snapshot{}, engi.Errorf(engi.Invalid, "a snapshot cannot be kept %v", s.TTL)
	}
	x, err := l.find(ctx, owner, id)
	if err != nil {
		return engi.Snapshot{}, err
	}
	if err := m.mayKeep(ctx, x.owner); err != nil {
		return engi.Snapshot{}, err
	}
	var kept engi.Snapshot
	err = m.perform(ctx, x, func(ctx context.Context) (err error) {
		defer m.timed("snapshot", time.Now(), &err)
		rec := x.record()
		if len(rec.Volumes) > 0 && !s.DiskOnly {
			return engi.Errorf(engi.Unsupported, "the memory of a sandbox with volumes cannot be copied").
				WithRemedy("make a snapshot of the disk only; volumes are not in it")
		}
		diskOnly := s.DiskOnly || rec.State == engi.Hibernated && rec.Disk
		want := engi.Snapshot{
			ID: cmp.Or(s.ID, engi.NewSnapshotID()), Owner: x.owner, Name: s.Name, Sandbox: x.id, Template: rec.Template, Digest: rec.Digest,
			Tier: rec.Tier, Size: rec.Size, Env: rec.Env, Disk: diskOnly, Created: time.Now().UTC(),
		}
		if s.TTL > 0 {
			want.Expires = want.Created.Add(s.TTL)
		}
		kept, err = m.opt.Snapshots.Create(ctx, want, func(dir string) error { return m.copyTo(ctx, x, dir, diskOnly) })
		return err
	})
	if err == nil {
		m.pinSnapshots(ctx)
	}
	return kept, err
}

// copyTo writes a box to an empty directory. The box goes on as it was.
func (m *Manager) copyTo(ctx context.Context, x *sandbox, dir string, diskOnly bool) (err error) {
	rec := x.record()
	switch rec.State {
	case engi.Hibernated:
		if diskOnly && !rec.Disk {
			return engi.Errorf(engi.Conflict, "sandbox %s hibernates with its memory: its disk alone cannot be copied", x.id).
				WithRemedy("resume it first, or copy its memory too")
		}
		return linkTree(m.files.image(x.id), dir)
	case engi.Running, engi.Paused:
	default:
		return engi.Errorf(engi.Conflict, "sandbox %s is %s", x.id, rec.State)
	}
	x.close()
	defer x.open()
	if rec.State == engi.Paused {
		if err := m.thaw(ctx, x); err != nil {
			return err
		}
		defer func() {
			if e := m.refreeze(ctx, x); err == nil {
				err = e
			}
		}()
	}
	if diskOnly {
		return provider.SaveDisk(ctx, x.machine().machine, dir)
	}
	err = m.save(ctx, x, dir, provider.Snapshot)
	if e := m.reenter(ctx, x); e != nil {
		m.log.Error("a sandbox does not answer after it was copied: it ends", "sandbox", x.id, "error", e)
		x.condemn(engi.CauseSandboxLost)
		m.stirTime()
		return errors.Join(err, e)
	}
	return err
}

// linkTree makes the files of an image appear in another directory too. They
// are never written again.
func linkTree(from, to string) error {
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == from {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			fi, err := d.Info()
			if err != nil {
				return err
			}
			return os.Mkdir(filepath.Join(to, rel), fi.Mode().Perm())
		}
		return os.Link(path, filepath.Join(to, rel))
	})
	if err != nil {
		return full("copy an image", err)
	}
	return nil
}

func (m *Manager) dropFork(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		m.log.Error("remove what a sandbox was copied through; the next start removes it", "error", err)
	}
}

func (l lifecycle) Fork(ctx context.Context, owner engi.Owner, id engi.SandboxID, spec engi.ForkSpec) (_ []engi.Forked, err error) {
	defer engi.Annotate(&err, "fork sandbox %s", id)
	m := l.m
	switch {
	case spec.Count < 1 || spec.Count > maxForks:
		return nil, engi.Errorf(engi.Invalid, "%d copies: there may be 1 to %d", spec.Count, maxForks)
	case spec.IDs != nil && len(spec.IDs) != spec.Count:
		return nil, engi.Errorf(engi.Invalid, "%d IDs for %d copies", len(spec.IDs), spec.Count)
	case spec.Timeout < 0 || spec.Timeout > m.opt.Lifetime.Max:
		return nil, engi.Errorf(engi.Invalid, "a timeout of %v is not between 0 and %v", spec.Timeout, m.opt.Lifetime.Max)
	}
	x, err := l.find(ctx, owner, id)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	dir, err := m.files.newFork()
	if err != nil {
		return nil, err
	}
	defer m.dropFork(dir)
	var rec SandboxRecord
	err = m.perform(ctx, x, func(ctx context.Context) error {
		if rec = x.record(); len(rec.Volumes) > 0 {
			return engi.Errorf(engi.Unsupported, "a sandbox with volumes cannot be copied: a volume is in one at a time")
		}
		return m.copyTo(ctx, x, dir, rec.State == engi.Hibernated && rec.Disk)
	})
	if err != nil {
		return nil, err
	}
	t, release, err := m.opt.Templates.Use(ctx, rec.Digest)
	if err != nil {
		return nil, err
	}
	defer release()
	all := make([]engi.Forked, spec.Count)
	var copies sync.WaitGroup
	gate := make(chan struct{}, forkBoots)
	for i := range all {
		gate <- struct{}{}
		id := engi.NewSandboxID()
		if spec.IDs != nil {
			id = spec.IDs[i]
		}
		copies.Go(func() {
			defer func() { <-gate }()
			all[i].Sandbox, all[i].Err = m.forkOne(ctx, id, rec, t, dir, spec.Timeout)
		})
	}
	copies.Wait()
	m.metrics.moves.WithLabelValues("fork").Observe(time.Since(began).Seconds())
	return all, nil
}

// forkOne starts one copy of the sandbox with the given record from dir.
func (m *Manager) forkOne(ctx context.Context, id engi.SandboxID, rec SandboxRecord, t engi.Template, dir string, timeout time.Duration) (engi.Sandbox, error) {
	began := time.Now()
	d := &design{rec: rec, was: rec.Size, template: t, key: pool.Key{Tier: rec.Tier, Template: rec.Template, Size: rec.Fixed}}
	if d.image = dir; rec.State == engi.Hibernated && rec.Disk {
		d.image, d.disk = "", dir
	}
	d.rec.State, d.rec.Disk, d.rec.Idempotency, d.rec.Fingerprint, d.rec.Pool = engi.Starting, false, "", "", ""
	d.timeout = timeout
	var err error
	if d.booking, err = m.book(ctx, rec.Owner, rec.Size); err != nil {
		return engi.Sandbox{}, err
	}
	defer m.unbook(d.booking)
	ctx, cancel := context.WithTimeout(ctx, createTime)
	defer cancel()
	x, err := m.createCold(ctx, d, id)
	return m.created(x, "fork", began, err)
}

// pinSnapshots keeps the templates that snapshots need from being removed, and
// lets go of those no snapshot needs any more.
func (m *Manager) pinSnapshots(ctx context.Context) {
	if m.opt.Snapshots == nil {
		return
	}
	m.pinning.Lock()
	defer m.pinning.Unlock()
	digests, err := m.opt.Snapshots.Digests(ctx)
	if err != nil {
		m.log.Error("look for templates that snapshots need", "error", err)
		return
	}
	needed := map[string]bool{}
	for _, digest := range digests {
		needed[digest] = true
		if m.pinned[digest] != nil {
			continue
		}
		_, unpin, err := m.opt.Templates.Use(ctx, digest)
		if err != nil {
			m.log.Error("keep a template that a snapshot needs", "digest", digest, "error", err)
			continue
		}
		m.pinned[digest] = unpin
	}
	for digest, unpin := range m.pinned {
		if !needed[digest] {
			unpin()
			delete(m.pinned, digest)
		}
	}
}
