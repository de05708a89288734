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

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

const (
	forkBoots = 4 // maximum number of concurrent boots of one fork
)

// Snapshot implements engi.Lifecycle.
func (s *sandboxes) Snapshot(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, spec engi.SnapshotSpec) (_ engi.Snapshot, err error) {
	defer engi.Annotate(&err, "snapshot sandbox %s", id)
	if s.opt.Snapshots == nil {
		return engi.Snapshot{}, errNoSnapshots
	}
	if spec.TTL < 0 {
		return engi.Snapshot{}, engi.Errorf(engi.Invalid, "a snapshot cannot be kept for %v", spec.TTL)
	}
	sb, err := s.find(ctx, viewer, id)
	if err != nil {
		return engi.Snapshot{}, err
	}
	release, err := s.reserveSnapshot(ctx, sb.owner)
	if err != nil {
		return engi.Snapshot{}, err
	}
	defer release()
	var snap engi.Snapshot
	err = s.transition(ctx, sb, func(ctx context.Context) (err error) {
		defer s.timed("snapshot", time.Now(), &err)
		rec := sb.record()
		if len(rec.Volumes) > 0 && !spec.DiskOnly {
			return engi.Errorf(engi.Unsupported, "the memory of a sandbox with volumes cannot be copied").
				WithRemedy("make a snapshot of the disk only; volumes are not in it")
		}
		diskOnly := spec.DiskOnly || rec.State == engi.Hibernated && rec.Disk
		want := engi.Snapshot{
			ID: cmp.Or(spec.ID, engi.NewSnapshotID()), Owner: sb.owner, Name: spec.Name, Sandbox: sb.id, Template: rec.Template, Digest: rec.Digest,
			Tier: rec.Tier, Size: rec.Size, Env: rec.Env, Disk: diskOnly, Created: time.Now().UTC(),
		}
		if spec.TTL > 0 {
			want.Expires = want.Created.Add(spec.TTL)
		}
		snap, err = s.opt.Snapshots.Create(ctx, want, func(dir string) error { return s.copyTo(ctx, sb, dir, diskOnly) })
		return err
	})
	if err == nil {
		s.pinSnapshots(ctx)
	}
	return snap, err
}

// copyTo writes a sandbox to an empty directory. Afterwards the sandbox continues in its
// previous state.
func (s *sandboxes) copyTo(ctx context.Context, sb *sandbox, dir string, diskOnly bool) (err error) {
	rec := sb.record()
	switch rec.State {
	case engi.Hibernated:
		if diskOnly && !rec.Disk {
			return engi.Errorf(engi.Conflict, "sandbox %s hibernates with its memory: its disk alone cannot be copied", sb.id).
				WithRemedy("resume it first, or copy its memory too")
		}
		return linkTree(s.files.image(sb.id), dir)
	case engi.Running, engi.Paused:
	default:
		return engi.Errorf(engi.Conflict, "sandbox %s is %s", sb.id, rec.State)
	}
	sb.block()
	defer sb.unblock()
	if rec.State == engi.Paused {
		if err := s.unpause(ctx, sb); err != nil {
			return err
		}
		defer func() {
			if e := provider.Pause(ctx, sb.instance().machine); err == nil {
				err = e
			}
		}()
	}
	if diskOnly {
		return provider.SaveDisk(ctx, sb.instance().machine, dir)
	}
	err = s.saveMemory(ctx, sb, dir, provider.Snapshot)
	if e := s.reconnect(ctx, sb); e != nil {
		s.log.Error("a sandbox does not answer after it was copied, so it ends", "sandbox", sb.id, "error", e)
		sb.endSoon(engi.CauseSandboxLost)
		s.deadlineChanged()
		return errors.Join(err, e)
	}
	return err
}

// linkTree hard-links the files of an image, which are never written again, into
// another directory.
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

// dropTemp removes a temporary directory.
func (s *sandboxes) dropTemp(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		s.log.Error("remove temporary files; the next start removes them", "error", err)
	}
}

// Fork implements engi.Lifecycle.
func (s *sandboxes) Fork(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, spec engi.ForkSpec) (_ []engi.Forked, err error) {
	defer engi.Annotate(&err, "fork sandbox %s", id)
	switch {
	case spec.Count < 1 || spec.Count > engi.MaxForks:
		return nil, engi.Errorf(engi.Invalid, "the number of copies is %d, not 1 to %d", spec.Count, engi.MaxForks)
	case spec.IDs != nil && len(spec.IDs) != spec.Count:
		return nil, engi.Errorf(engi.Invalid, "%d IDs for %d copies", len(spec.IDs), spec.Count)
	}
	if err := s.checkTimeout(spec.Timeout); err != nil {
		return nil, err
	}
	sb, err := s.find(ctx, viewer, id)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	dir, err := s.files.newTemp()
	if err != nil {
		return nil, err
	}
	defer s.dropTemp(dir)
	var rec SandboxRecord
	err = s.transition(ctx, sb, func(ctx context.Context) error {
		if rec = sb.record(); len(rec.Volumes) > 0 {
			return engi.Errorf(engi.Unsupported, "a sandbox with volumes cannot be copied: a volume belongs to one at a time")
		}
		return s.copyTo(ctx, sb, dir, rec.State == engi.Hibernated && rec.Disk)
	})
	if err != nil {
		return nil, err
	}
	t, release, err := s.opt.Templates.Use(ctx, rec.Digest)
	if err != nil {
		return nil, err
	}
	defer release()
	all := make([]engi.Forked, spec.Count)
	var copies sync.WaitGroup
	limit := make(chan struct{}, forkBoots)
	for i := range all {
		limit <- struct{}{}
		id := engi.NewSandboxID()
		if spec.IDs != nil {
			id = spec.IDs[i]
		}
		copies.Go(func() {
			defer func() { <-limit }()
			all[i].Sandbox, all[i].Err = s.forkOne(ctx, id, rec, t, dir, spec.Timeout)
		})
	}
	copies.Wait()
	s.metrics.moves.WithLabelValues("fork").Observe(time.Since(began).Seconds())
	return all, nil
}

// forkOne starts one copy of the sandbox with the given record from dir.
func (s *sandboxes) forkOne(ctx context.Context, id engi.SandboxID, rec SandboxRecord, t engi.Template, dir string, timeout time.Duration) (_ engi.Sandbox, err error) {
	began := time.Now()
	c := &creation{rec: rec, template: t, timeout: timeout}
	if rec.State == engi.Hibernated && rec.Disk {
		c.disk = dir
	} else {
		c.image, c.imageSize = dir, rec.Size
	}
	c.rec.State, c.rec.Disk, c.rec.Idempotency, c.rec.Fingerprint, c.rec.Pool = engi.Starting, false, "", "", ""
	if c.booking, err = s.book(ctx, &booking{owner: rec.Owner, size: rec.Size}); err != nil {
		return engi.Sandbox{}, err
	}
	defer s.unbook(c.booking)
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	sb, err := s.createFresh(ctx, c, id)
	r, err := s.created(sb, "fork", began, err)
	return r.Sandbox, err
}

// pinSnapshots prevents the removal of the templates that snapshots need, and
// releases the templates that no snapshot needs any more.
func (s *sandboxes) pinSnapshots(ctx context.Context) {
	if s.opt.Snapshots == nil {
		return
	}
	s.pinning.Lock()
	defer s.pinning.Unlock()
	digests, err := s.opt.Snapshots.Digests(ctx)
	if err != nil {
		s.log.Error("look for templates that snapshots need", "error", err)
		return
	}
	needed := map[string]bool{}
	for _, digest := range digests {
		needed[digest] = true
		if s.pinned[digest] != nil {
			continue
		}
		_, unpin, err := s.opt.Templates.Use(ctx, digest)
		if err != nil {
			s.log.Error("keep a template that a snapshot needs", "digest", digest, "error", err)
			continue
		}
		s.pinned[digest] = unpin
	}
	for digest, unpin := range s.pinned {
		if !needed[digest] {
			unpin()
			delete(s.pinned, digest)
		}
	}
}
