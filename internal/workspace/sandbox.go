package workspace

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/worktree"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// dir is the directory of a workspace's files in its sandbox.
const dir = "/workspace"

const (
	filesTime = 10 * time.Minute // maximum time for reading or writing the files in a sandbox
)

// tree selects the files of a sandbox that belong to the workspace.
var tree = worktree.Tree{Dir: dir, Tracked: func(p string) bool { return CheckPath(p) == nil }, Files: repo.MaxFiles, File: maxFile, All: maxTree}

// A use is a locked workspace, with its sandbox if it has one.
type use struct {
	rec   Record
	last  repo.Version // last revision
	g     engi.Guest   // nil without a sandbox
	leave func()
}

// use returns a locked workspace after recording the changes made in its sandbox as a revision.
// With catchUp, it also writes the last revision to the sandbox. The caller must call leave.
func (s *Service) use(ctx context.Context, r Record, catchUp bool) (_ *use, err error) {
	u := &use{rec: r, leave: func() {}}
	defer func() {
		if err != nil {
			u.leave()
		}
	}()
	if u.last, _, err = s.version(ctx, r.ID, r.Revision); err != nil {
		return nil, err
	}
	if r.Sandbox == "" || r.Base == unfurnished {
		return u, nil // the sandbox is not in use yet
	}
	u.g, u.leave, err = s.sandboxes.Reconnect(ctx, r.Sandbox)
	if engi.Is(err, engi.NotFound) {
		u.g = nil
		return u, s.lost(ctx, u)
	}
	if err != nil {
		return nil, err
	}
	here, err := s.capture(ctx, u)
	if err == nil && catchUp && u.rec.Base != u.rec.Revision {
		err = s.fill(ctx, u, here)
	}
	return u, err
}

// Collect records the changes made in the sandbox of a workspace as a revision. Without wake, it
// leaves a sandbox that is not awake as it is.
func (s *Service) Collect(ctx context.Context, id engi.WorkspaceID, wake bool) (err error) {
	defer engi.Annotate(&err, "record what has changed in workspace %s", id)
	if !wake {
		r, err := s.find(ctx, engi.Everyone, string(id), engi.RoleViewer)
		if err != nil || r.Sandbox == "" || !s.sandboxes.Runs(ctx, r.Sandbox) {
			return err
		}
	}
	_, _, _, err = s.at(ctx, engi.Everyone, string(id), 0)
	return err
}

// Shared returns sandboxes that collaborators can enter: its Enter admits
// the editors of a workspace to the workspace's sandbox. In the sandbox they have the rights
// of its owner. They cannot manage the sandbox itself.
func (s *Service) Shared(all engi.Sandboxes) engi.Sandboxes { return shared{all, s} }

type shared struct {
	engi.Sandboxes
	s *Service
}

// Enter implements [engi.Sandboxes].
func (x shared) Enter(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Guest, func(), error) {
	g, release, err := x.Sandboxes.Enter(ctx, viewer, id)
	if viewer == engi.Everyone || !engi.Is(err, engi.NotFound) {
		return g, release, err
	}
	sb, e := x.Sandboxes.Get(ctx, engi.Everyone, id)
	if e != nil || sb.Notes[noteWorkspace] == "" || sb.Notes[noteService] != "" {
		return nil, nil, err
	}
	r, e := x.s.opt.Store.Find(ctx, viewer, sb.Notes[noteWorkspace])
	switch {
	case engi.Is(e, engi.NotFound), e == nil && r.Sandbox != id:
		return nil, nil, err
	case e == nil:
		e = r.Allow(viewer, engi.RoleEditor)
	}
	if e != nil {
		return nil, nil, e
	}
	return x.Sandboxes.Enter(ctx, engi.Everyone, id)
}

// lost records that the sandbox of a workspace no longer exists.
func (s *Service) lost(ctx context.Context, u *use) (err error) {
	s.forget(u.rec.ID)
	u.rec, err = s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, tx Tx) error {
		r.Sandbox, r.Base = "", 0
		return become(r, tx, engi.WorkspaceStopped, nil)
	})
	return err
}

// working returns the cached state of the files in a sandbox.
func (s *Service) working(id engi.WorkspaceID) *worktree.Copy[string] {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.copies[id]
	if c == nil {
		c = &worktree.Copy[string]{}
		s.copies[id] = c
	}
	return c
}

// forget drops the cached state of the files in a sandbox.
func (s *Service) forget(id engi.WorkspaceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.copies, id)
	delete(s.looked, id)
}

// read returns the files in the sandbox, and the contents of those that none of the
// versions has. The caller must call drop.
func (s *Service) read(ctx context.Context, u *use, versions ...repo.Version) (repo.Files, *held, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, filesTime, engi.Errorf(engi.Unavailable, "the sandbox has not sent its files for %v", filesTime))
	defer cancel()
	h := &held{s: s, owner: u.rec.Owner, seen: map[string]bool{}}
	for _, v := range versions {
		for _, f := range v.Files {
			h.seen[f.Hash] = true
		}
	}
	found, err := s.working(u.rec.ID).Read(ctx, u.g, tree, func(_ string, content []byte) (string, error) { return h.look(content) })
	if err != nil {
		h.drop()
		return nil, nil, err
	}
	here := make(repo.Files, len(found))
	for p, f := range found {
		mode := uint32(repo.FileMode)
		if f.Executable {
			mode = repo.ProgramMode
		}
		here[p] = repo.File{Path: p, Mode: mode, Hash: f.Of}
	}
	return here, h, nil
}

// capture records changes made in the sandbox as a revision, and returns
// the files in the sandbox.
//
// Files that differ from revision Base were changed in the sandbox. Other files
// that differ from the last revision are still to be written to the sandbox.
func (s *Service) capture(ctx context.Context, u *use) (here repo.Files, err error) {
	base := u.last
	if u.rec.Base != u.rec.Revision {
		if base, _, err = s.version(ctx, u.rec.ID, u.rec.Base); err != nil {
			return nil, err
		}
	}
	here, h, err := s.read(ctx, u, base, u.last)
	if err != nil {
		return nil, err
	}
	defer h.drop()
	defer func() {
		if err != nil {
			s.forget(u.rec.ID) // otherwise files that are not recorded would not be read again
		}
	}()
	next := overlay(u.last.Files, base.Files.Changes(here), here)
	if len(u.last.Files.Changes(next)) == 0 {
		return here, nil
	}
	all := len(next.Changes(here)) == 0
	_, err = s.revise(ctx, u, next, h.objects, engi.WorkspaceRevision{Message: "Changed in the sandbox"}, func(r *Record) {
		if all {
			r.Base = r.Revision + 1
		}
	})
	return here, err
}

// overlay applies changes, which have led to the files here, to files. Changed files replace
// directories that have the path of a file, and the reverse.
func overlay(files repo.Files, changes []engi.AppChange, here repo.Files) repo.Files {
	next := maps.Clone(files)
	var dirs, leaves map[string]bool
	for _, c := range changes {
		if c.Op == engi.FileRemoved {
			delete(next, c.Path)
			continue
		}
		next[c.Path] = here[c.Path]
		if dirs == nil {
			dirs, leaves = map[string]bool{}, map[string]bool{}
		}
		leaves[c.Path] = true
		for _, d := range parents(c.Path) {
			dirs[d] = true
		}
	}
	maps.DeleteFunc(next, func(p string, _ repo.File) bool {
		return dirs[p] || slices.ContainsFunc(parents(p), func(d string) bool { return leaves[d] })
	})
	return next
}

// fill changes the files in the sandbox from here to those of the last revision, and
// records that it has.
func (s *Service) fill(ctx context.Context, u *use, here repo.Files) error {
	ctx, cancel := context.WithTimeoutCause(ctx, filesTime, engi.Errorf(engi.Unavailable, "the sandbox has not accepted its files for %v", filesTime))
	defer cancel()
	want := u.last.Files
	var puts []repo.File
	var removed []string
	for _, c := range here.Changes(want) {
		if c.Op == engi.FileRemoved {
			removed = append(removed, dir+"/"+c.Path)
		} else {
			puts = append(puts, want[c.Path])
		}
	}
	if err := worktree.Parallel(len(removed), func(i int) error { return u.g.Remove(ctx, removed[i]) }); err != nil {
		return err
	}
	write := s.writeEach
	if u.rec.Base == unfurnished {
		write = s.unpack // if unpacking is interrupted, all files are written again
	}
	if u.rec.Base != unfurnished || len(here) > 0 {
		if err := makeWay(ctx, u.g, puts); err != nil {
			return err
		}
	}
	if err := write(ctx, u, puts); err != nil {
		return err
	}
	return s.furnished(ctx, u)
}

// furnished records that the sandbox has the files of the last revision.
func (s *Service) furnished(ctx context.Context, u *use) error {
	r, err := s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, _ Tx) error {
		r.Base = r.Revision
		return nil
	})
	if err == nil {
		u.rec = r
	}
	return err
}

// makeWay removes obstacles to files: symbolic links in place of their directories, because links
// may lead anywhere, and anything but a file at their own paths.
func makeWay(ctx context.Context, g engi.Guest, files []repo.File) error {
	remove := func(p string, ok func(engi.FileInfo) bool) error {
		fi, err := g.Stat(ctx, dir+"/"+p)
		if engi.Is(err, engi.NotFound) {
			return nil
		}
		if err != nil || ok(fi) {
			return err
		}
		return g.Remove(ctx, dir+"/"+p)
	}
	dirs := map[string]bool{}
	for _, f := range files {
		for _, d := range parents(f.Path) {
			dirs[d] = true
		}
	}
	for _, d := range slices.Sorted(maps.Keys(dirs)) { // parents come first
		if err := remove(d, func(fi engi.FileInfo) bool { return fi.Mode.IsDir() }); err != nil {
			return err
		}
	}
	return worktree.Parallel(len(files), func(i int) error {
		return remove(files[i].Path, func(fi engi.FileInfo) bool { return fi.Mode.IsRegular() })
	})
}

// writeEach writes files one by one; each file is either old or new.
func (s *Service) writeEach(ctx context.Context, u *use, files []repo.File) error {
	return worktree.Parallel(len(files), func(i int) error {
		data, err := s.content(ctx, u.rec.ID, files[i].Hash)
		if err != nil {
			return err
		}
		return u.g.Write(ctx, dir+"/"+files[i].Path, bytes.NewReader(data), engi.WriteOptions{Mode: fs.FileMode(files[i].Mode)})
	})
}

// unpack writes all files at once. If it is interrupted, any of them may be
// incomplete.
func (s *Service) unpack(ctx context.Context, u *use, files []repo.File) error {
	if len(files) == 0 {
		return nil
	}
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := s.archive(ctx, u.rec.ID, files, w)
		w.CloseWithError(err)
		sent <- err
	}()
	err := u.g.Unpack(ctx, dir, r)
	r.Close() // makes the sender fail
	if e := <-sent; err == nil {
		err = e
	}
	return err
}

// archive writes files as a tar archive to a writer.
func (s *Service) archive(ctx context.Context, id engi.WorkspaceID, files []repo.File, to io.Writer) error {
	w, now := tar.NewWriter(to), time.Now()
	for _, f := range files {
		data, err := s.content(ctx, id, f.Hash)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: f.Path, Mode: int64(f.Mode), Size: int64(len(data)), Typeflag: tar.TypeReg, ModTime: now}
		if err = w.WriteHeader(h); err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			return engi.Errorf(engi.Unavailable, "send the files: %v", err)
		}
	}
	if err := w.Close(); err != nil {
		return engi.Errorf(engi.Unavailable, "send the files: %v", err)
	}
	return nil
}
