package workspace

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/patch"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// Limits of the files of a workspace.
const (
	maxFile    = repo.MaxObject
	maxTree    = 256 << 20
	maxHistory = 2 << 30  // maximum bytes of the history of all workspaces of an owner
	maxHeld    = 1 << 30  // maximum bytes in memory that are not recorded yet, of all owners
	maxDiff    = 64 << 20 // maximum bytes of texts that are compared
	maxBlame   = 512 << 20
	maxTouched = 5000 // maximum number of revisions of a file that a blame reads
	maxMessage = 4096 // maximum bytes of a message
)

// source returns the objects of a workspace.
func (s *Service) source(id engi.WorkspaceID) repo.Source {
	return func(ctx context.Context, hash string) (repo.Object, error) { return s.opt.Store.Object(ctx, id, hash) }
}

// version returns a revision with its files; number 0 is the empty version before the first.
func (s *Service) version(ctx context.Context, id engi.WorkspaceID, number int64) (v repo.Version, rev engi.WorkspaceRevision, err error) {
	if number != 0 {
		if rev, err = s.opt.Store.Revision(ctx, id, number); err != nil {
			return v, rev, err
		}
	}
	v, err = repo.Read(ctx, s.source(id), rev.Commit, func(string) error { return nil })
	return v, rev, err
}

// content returns the content of a blob.
func (s *Service) content(ctx context.Context, id engi.WorkspaceID, hash string) ([]byte, error) {
	o, err := s.opt.Store.Object(ctx, id, hash)
	if err != nil {
		return nil, err
	}
	return o.Content()
}

// Write implements [engi.Workspaces].
func (s *Service) Write(ctx context.Context, spec engi.WriteSpec) (_ engi.WorkspaceRevision, err error) {
	defer engi.Annotate(&err, "write files of workspace %.70s", spec.Workspace)
	if err := checkFiles(spec.Files); err != nil {
		return engi.WorkspaceRevision{}, err
	}
	if len(spec.Files) == 0 {
		return engi.WorkspaceRevision{}, engi.Errorf(engi.Invalid, "there are no files to write")
	}
	rev := engi.WorkspaceRevision{Message: spec.Message, Actor: cmp.Or(spec.Actor, engi.ActorOf(ctx))}
	return s.edit(ctx, spec.Viewer, spec.Workspace, spec.Base, rev, func(last repo.Version) (repo.Files, []repo.Object, []engi.WorkspaceFile, error) {
		next, objects, err := put(last, spec.Files)
		return next, objects, spec.Files, err
	})
}

// edit records a revision with the files that alter returns and with new objects for them. If base is not 0, the
// edited files must be as they were in revision base.
func (s *Service) edit(ctx context.Context, viewer engi.Viewer, workspace string, base int64, rev engi.WorkspaceRevision,
	alter func(last repo.Version) (next repo.Files, objects []repo.Object, edited []engi.WorkspaceFile, err error),
) (engi.WorkspaceRevision, error) {
	r, release, err := s.hold(ctx, viewer, workspace, engi.RoleEditor)
	if err != nil {
		return engi.WorkspaceRevision{}, err
	}
	defer release()
	u, err := s.use(ctx, r, true)
	if err != nil {
		return engi.WorkspaceRevision{}, err
	}
	defer u.leave()
	next, objects, edited, err := alter(u.last)
	if err != nil {
		return engi.WorkspaceRevision{}, err
	}
	if base != 0 {
		if err := s.unchanged(ctx, u, edited, base); err != nil {
			return engi.WorkspaceRevision{}, err
		}
	}
	return s.change(ctx, u, next, objects, rev)
}

// Move implements [engi.Workspaces].
func (s *Service) Move(ctx context.Context, spec engi.MoveSpec) (_ engi.WorkspaceRevision, err error) {
	defer engi.Annotate(&err, "move files of workspace %.70s", spec.Workspace)
	for _, p := range []string{spec.From, spec.To} {
		if err := CheckPath(p); err != nil {
			return engi.WorkspaceRevision{}, err
		}
	}
	message := cmp.Or(spec.Message, fmt.Sprintf("Move %s to %s", spec.From, spec.To))
	rev := engi.WorkspaceRevision{Message: message, Actor: cmp.Or(spec.Actor, engi.ActorOf(ctx))}
	return s.edit(ctx, spec.Viewer, spec.Workspace, spec.Base, rev, func(last repo.Version) (repo.Files, []repo.Object, []engi.WorkspaceFile, error) {
		next, moved, err := move(last.Files, spec.From, spec.To)
		return next, nil, moved, err
	})
}

// within reports whether a path is dir itself or below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// move returns files after a file or a directory is moved, and the files that were moved, as they were.
func move(files repo.Files, from, to string) (next repo.Files, moved []engi.WorkspaceFile, err error) {
	if from != to && within(to, from) {
		return nil, nil, engi.Errorf(engi.Invalid, "%.100q cannot be moved into itself", from)
	}
	next = maps.Clone(files)
	for p, f := range files {
		if within(p, to) {
			return nil, nil, engi.Errorf(engi.Conflict, "%.100q exists", to).WithRemedy("choose another path, or delete it first")
		}
		if !within(p, from) {
			continue
		}
		moved = append(moved, engi.WorkspaceFile{Path: p})
		delete(next, p)
		f.Path = to + strings.TrimPrefix(p, from)
		if err := CheckPath(f.Path); err != nil {
			return nil, nil, err
		}
		next[f.Path] = f
	}
	if len(moved) == 0 {
		return nil, nil, engi.Errorf(engi.NotFound, "there is no %.100q", from).WithRemedy("list the files")
	}
	return next, moved, nil
}

// checkFiles validates files to write, without regard to existing files.
func checkFiles(files []engi.WorkspaceFile) error {
	if len(files) > repo.MaxFiles {
		return engi.Errorf(engi.Invalid, "there are %d files, %d at most can be written at once", len(files), repo.MaxFiles)
	}
	var all int64
	seen := make(map[string]bool, len(files))
	for _, f := range files {
		if err := CheckPath(f.Path); err != nil {
			return err
		}
		switch {
		case seen[f.Path]:
			return engi.Errorf(engi.Invalid, "%.100q is listed twice", f.Path)
		case f.Mode != 0 && f.Mode != repo.FileMode && f.Mode != repo.ProgramMode:
			return engi.Errorf(engi.Invalid, "%.100q has the mode %o", f.Path, f.Mode).WithRemedy("use 644, or 755 for programs")
		case f.Removed && len(f.Content) > 0:
			return engi.Errorf(engi.Invalid, "%.100q is to go, but has a content", f.Path)
		case len(f.Content) > maxFile:
			return engi.TooLarge("%.100q has %d bytes; the limit is %d MiB", f.Path, len(f.Content), maxFile>>20).WithRemedy("keep large files on a volume")
		}
		seen[f.Path] = true
		all += int64(len(f.Content))
	}
	if all > maxTree {
		return tooLarge(all)
	}
	return nil
}

func tooLarge(n int64) error {
	return engi.Errorf(engi.Exhausted, "the files have %d bytes; the limit is %d MiB", n, maxTree>>20).WithRemedy("keep large files on a volume")
}

// put returns the files of a version after files are written or removed, and the
// objects of the new contents.
func put(v repo.Version, files []engi.WorkspaceFile) (next repo.Files, objects []repo.Object, err error) {
	next = maps.Clone(v.Files)
	for _, f := range files {
		if f.Removed {
			delete(next, f.Path)
			continue
		}
		o, err := repo.New(repo.Blob, f.Content)
		if err != nil {
			return nil, nil, err
		}
		objects = append(objects, o)
		next[f.Path] = repo.File{Path: f.Path, Mode: cmp.Or(f.Mode, v.Files[f.Path].Mode, repo.FileMode), Hash: o.Hash}
	}
	return next, objects, nil
}

// unchanged reports Conflict if any of the files has changed since the revision base.
func (s *Service) unchanged(ctx context.Context, u *use, files []engi.WorkspaceFile, base int64) error {
	v, _, err := s.version(ctx, u.rec.ID, base)
	if err != nil {
		return err
	}
	for _, f := range files {
		if v.Files[f.Path] != u.last.Files[f.Path] {
			return engi.Errorf(engi.Conflict, "%.100q has changed since revision %d", f.Path, base).
				WithRemedy("read the file again: the last revision is %d", u.rec.Revision)
		}
	}
	return nil
}

// change records files as the next revision, unless they equal the last one, and
// writes them to the sandbox.
func (s *Service) change(ctx context.Context, u *use, next repo.Files, objects []repo.Object, rev engi.WorkspaceRevision) (engi.WorkspaceRevision, error) {
	before := u.last.Files
	if len(before.Changes(next)) == 0 {
		if u.rec.Revision == 0 {
			return rev, engi.Errorf(engi.Invalid, "no file changes, and the workspace has no revision yet")
		}
		return s.opt.Store.Revision(ctx, u.rec.ID, u.rec.Revision)
	}
	rev, err := s.revise(ctx, u, next, objects, rev, nil)
	if err != nil {
		return rev, err
	}
	return rev, s.follow(ctx, u, before)
}

// follow writes the last revision to the sandbox, if there is one. before are the files in
// the sandbox.
func (s *Service) follow(ctx context.Context, u *use, before repo.Files) error {
	if u.g == nil {
		return nil
	}
	if err := s.fill(ctx, u, before); err != nil {
		return fmt.Errorf("revision %d is recorded, but the sandbox does not have it yet: %w", u.rec.Revision, err)
	}
	return nil
}

// revise records files as the next revision, and applies also in the same
// transaction.
func (s *Service) revise(ctx context.Context, u *use, next repo.Files, objects []repo.Object, rev engi.WorkspaceRevision, also func(r *Record)) (_ engi.WorkspaceRevision, err error) {
	if err := next.Check(); err != nil {
		return rev, err
	}
	var size int64
	if rev.Changed, size, err = s.measure(ctx, u, next, objects); err != nil {
		return rev, err
	}
	rev.Created = now()
	rev.Message = cmp.Or(messageOf(rev.Message), summary(rev.Changed))
	v, made, err := u.last.Next(next, repo.Note{Message: rev.Message, Actor: rev.Actor, Time: rev.Created})
	if err != nil {
		return rev, err
	}
	return s.commit(ctx, u, v, size, append(objects, made...), rev, also)
}

// now returns the time of a new revision: times of commits have whole seconds.
func now() time.Time { return time.Now().UTC().Truncate(time.Second) }

// commit records a version as the next revision; size is the total size of its files in bytes.
func (s *Service) commit(ctx context.Context, u *use, v repo.Version, size int64, objects []repo.Object, rev engi.WorkspaceRevision, also func(r *Record)) (engi.WorkspaceRevision, error) {
	rev.Number, rev.Parent, rev.Commit = u.rec.Revision+1, u.rec.Revision, v.Commit
	r, err := s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, tx Tx) error {
		if r.Revision != rev.Parent {
			return engi.Errorf(engi.Conflict, "workspace %s has another revision by now", r.ID).WithRemedy("try it again")
		}
		if r.Size = size; also != nil {
			also(r)
		}
		return record(r, tx, rev, objects)
	})
	if err != nil {
		return rev, err
	}
	u.rec, u.last = r, v
	return rev, nil
}

// record adds a revision in a transaction.
func record(r *Record, tx Tx, rev engi.WorkspaceRevision, objects []repo.Object) error {
	if err := tx.Revise(rev, objects, maxHistory); err != nil {
		return err
	}
	r.Revision, r.Used = rev.Number, time.Now().UTC()
	return tx.Emit(engi.EventWorkspaceRevised, eventData{Revision: rev.Number, Of: rev.Of, Commit: rev.Commit, Text: rev.Message, Actor: rev.Actor, Files: len(rev.Changed)})
}

// measure returns the changes of a workspace's files, and their new total
// size in bytes. It reports Exhausted if the new files exceed a limit.
func (s *Service) measure(ctx context.Context, u *use, next repo.Files, objects []repo.Object) (changed []engi.AppChange, size int64, err error) {
	sizes := make(map[string]int64, len(objects))
	for _, o := range objects {
		sizes[o.Hash] = o.Size
	}
	changed = u.last.Files.Changes(next)
	var ask []string
	for _, c := range changed {
		for _, files := range []repo.Files{u.last.Files, next} {
			if f, ok := files[c.Path]; ok {
				ask = append(ask, f.Hash)
			}
		}
	}
	kept, err := s.opt.Store.Sizes(ctx, u.rec.ID, repo.Blob, ask)
	if err != nil {
		return nil, 0, err
	}
	maps.Copy(sizes, kept)
	size = u.rec.Size
	for i, c := range changed {
		if f, ok := u.last.Files[c.Path]; ok {
			size -= sizes[f.Hash]
		}
		if f, ok := next[c.Path]; ok {
			n, ok := sizes[f.Hash]
			if !ok {
				return nil, 0, engi.Errorf(engi.Internal, "the content of %.100q is not there", c.Path)
			}
			changed[i].Size = n
			size += n
		}
	}
	if size > maxTree {
		return nil, 0, tooLarge(size)
	}
	return changed, size, nil
}

// messageOf converts a text to a valid message of a commit.
func messageOf(text string) string {
	return clip.Bytes(strings.TrimSpace(strings.ReplaceAll(text, "\x00", "")), maxMessage)
}

// summary describes changes in one line.
func summary(changed []engi.AppChange) string {
	verb := map[engi.FileOp]string{engi.FileCreated: "Add", engi.FileWritten: "Change", engi.FileRemoved: "Remove"}
	switch len(changed) {
	case 0:
		return "Change no files"
	case 1:
		return verb[changed[0].Op] + " " + changed[0].Path
	}
	for _, c := range changed {
		if c.Op != changed[0].Op {
			return fmt.Sprintf("Change %d files", len(changed))
		}
	}
	return fmt.Sprintf("%s %d files", verb[changed[0].Op], len(changed))
}

// at returns a workspace and one of its revisions. Number 0 selects the last revision, after recording
// changes made in the sandbox.
func (s *Service) at(ctx context.Context, viewer engi.Viewer, idOrName string, number int64) (r Record, v repo.Version, rev engi.WorkspaceRevision, err error) {
	if number == 0 {
		var release func()
		if r, release, err = s.hold(ctx, viewer, idOrName, engi.RoleViewer); err != nil {
			return r, v, rev, err
		}
		defer release()
		u, err := s.use(ctx, r, false)
		if err != nil {
			return r, v, rev, err
		}
		defer u.leave()
		r, v = u.rec, u.last
		if r.Revision > 0 {
			rev, err = s.opt.Store.Revision(ctx, r.ID, r.Revision)
		}
		return r, v, rev, err
	}
	if r, err = s.find(ctx, viewer, idOrName, engi.RoleViewer); err != nil {
		return r, v, rev, err
	}
	v, rev, err = s.version(ctx, r.ID, number)
	return r, v, rev, err
}

// Files implements [engi.Workspaces].
func (s *Service) Files(ctx context.Context, viewer engi.Viewer, idOrName string, revision int64) (_ []engi.WorkspaceFile, err error) {
	defer engi.Annotate(&err, "files of workspace %.70s", idOrName)
	r, v, _, err := s.at(ctx, viewer, idOrName, revision)
	if err != nil {
		return nil, err
	}
	files := v.Files.Sorted()
	hashes := make([]string, len(files))
	for i, f := range files {
		hashes[i] = f.Hash
	}
	sizes, err := s.opt.Store.Sizes(ctx, r.ID, repo.Blob, hashes)
	if err != nil {
		return nil, err
	}
	all := make([]engi.WorkspaceFile, len(files))
	for i, f := range files {
		all[i] = engi.WorkspaceFile{Path: f.Path, Mode: f.Mode, Size: sizes[f.Hash], Digest: f.Hash}
	}
	return all, nil
}

// File implements [engi.Workspaces].
func (s *Service) File(ctx context.Context, viewer engi.Viewer, idOrName, path string, revision int64) (_ io.ReadCloser, err error) {
	defer engi.Annotate(&err, "file of workspace %.70s", idOrName)
	r, v, rev, err := s.at(ctx, viewer, idOrName, revision)
	if err != nil {
		return nil, err
	}
	f, err := fileOf(v, rev, path)
	if err != nil {
		return nil, err
	}
	data, err := s.content(ctx, r.ID, f.Hash)
	return io.NopCloser(bytes.NewReader(data)), err
}

// fileOf returns a file of a revision, or NotFound.
func fileOf(v repo.Version, rev engi.WorkspaceRevision, path string) (repo.File, error) {
	f, ok := v.Files[path]
	if !ok {
		return f, engi.Errorf(engi.NotFound, "revision %d has no file %.100q", rev.Number, path).WithRemedy("list its files")
	}
	return f, nil
}

// Revisions implements [engi.Workspaces].
func (s *Service) Revisions(ctx context.Context, viewer engi.Viewer, idOrName string, p engi.Paging) ([]engi.WorkspaceRevision, error) {
	r, err := s.find(ctx, viewer, idOrName, engi.RoleViewer)
	if err != nil {
		return nil, err
	}
	return s.opt.Store.Revisions(ctx, r.ID, p)
}

// Diff implements [engi.Workspaces].
func (s *Service) Diff(ctx context.Context, viewer engi.Viewer, idOrName string, from, to int64) (_ string, err error) {
	defer engi.Annotate(&err, "diff of workspace %.70s", idOrName)
	r, after, rev, err := s.at(ctx, viewer, idOrName, to)
	if err != nil {
		return "", err
	}
	if from == 0 {
		from = rev.Parent
	}
	before, _, err := s.version(ctx, r.ID, from)
	if err != nil {
		return "", err
	}
	left := int64(maxDiff)
	text := func(f repo.File) (string, error) {
		if f.Hash == "" {
			return "", nil
		}
		data, err := s.content(ctx, r.ID, f.Hash)
		if left -= int64(len(data)); err == nil && left < 0 {
			err = engi.Errorf(engi.Exhausted, "what differs has more than %d MiB", int64(maxDiff)>>20).WithRemedy("compare revisions that are nearer to each other")
		}
		return string(data), err
	}
	var b strings.Builder
	for _, c := range before.Files.Changes(after.Files) {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		f, g := before.Files[c.Path], after.Files[c.Path]
		old, err := text(f)
		if err != nil {
			return "", err
		}
		now, err := text(g)
		if err != nil {
			return "", err
		}
		patch.Write(&b, c, old, now, fs.FileMode(f.Mode), fs.FileMode(g.Mode))
	}
	return b.String(), nil
}

// Restore implements [engi.Workspaces].
func (s *Service) Restore(ctx context.Context, viewer engi.Viewer, idOrName string, revision int64, below string) (_ engi.WorkspaceRevision, err error) {
	defer engi.Annotate(&err, "restore workspace %.70s", idOrName)
	if below != "" {
		if err := CheckPath(below); err != nil {
			return engi.WorkspaceRevision{}, err
		}
	}
	r, release, err := s.hold(ctx, viewer, idOrName, engi.RoleEditor)
	if err != nil {
		return engi.WorkspaceRevision{}, err
	}
	defer release()
	if revision == 0 {
		return engi.WorkspaceRevision{}, engi.Errorf(engi.Invalid, "there is no revision 0").WithRemedy("list the revisions")
	}
	want, _, err := s.version(ctx, r.ID, revision)
	if err != nil {
		return engi.WorkspaceRevision{}, err
	}
	u, err := s.use(ctx, r, true)
	if err != nil {
		return engi.WorkspaceRevision{}, err
	}
	defer u.leave()
	is := func(p string) bool { return below == "" || within(p, below) }
	next, found := repo.Files{}, below == ""
	for p, f := range u.last.Files {
		if !is(p) {
			next[p] = f
		} else {
			found = true
		}
	}
	for p, f := range want.Files {
		if is(p) {
			next[p], found = f, true
		}
	}
	if !found {
		return engi.WorkspaceRevision{}, engi.Errorf(engi.NotFound, "there is no %.100q, and was none in revision %d", below, revision)
	}
	message := fmt.Sprintf("Restore revision %d", revision)
	if below != "" {
		message = fmt.Sprintf("Restore %s of revision %d", below, revision)
	}
	return s.change(ctx, u, next, nil, engi.WorkspaceRevision{Message: message, Actor: engi.ActorOf(ctx), Of: revision})
}

// Blame implements [engi.Workspaces].
func (s *Service) Blame(ctx context.Context, viewer engi.Viewer, idOrName, path string, revision int64) (_ []engi.BlameLine, err error) {
	defer engi.Annotate(&err, "blame in workspace %.70s", idOrName)
	r, v, rev, err := s.at(ctx, viewer, idOrName, revision)
	if err != nil {
		return nil, err
	}
	f, err := fileOf(v, rev, path)
	if err != nil {
		return nil, err
	}
	left := int64(maxBlame)
	text := func(hash string) (string, error) {
		data, err := s.content(ctx, r.ID, hash)
		if left -= int64(len(data)); err == nil && left < 0 {
			err = engi.Errorf(engi.Exhausted, "the history of the file has more than %d MiB", int64(maxBlame)>>20).WithRemedy("compare single revisions")
		}
		return string(data), err
	}
	now, err := text(f.Hash)
	if err != nil {
		return nil, err
	}
	if strings.ContainsRune(now, 0) || !utf8.ValidString(now) {
		return nil, engi.Errorf(engi.Invalid, "%.100q is no text", path)
	}
	touched, err := s.opt.Store.Touched(ctx, r.ID, path, rev.Number, maxTouched+1)
	if err != nil {
		return nil, err
	}
	if len(touched) > maxTouched {
		return nil, engi.Errorf(engi.Exhausted, "more than %d revisions have changed the file", maxTouched).WithRemedy("compare single revisions")
	}
	lines := patch.Lines(now)
	all := make([]engi.BlameLine, len(lines))
	at := make([]int, len(lines)) // index in all, by line of the revision that is looked at; -1 for none
	for i, line := range lines {
		all[i].Text, at[i] = line, i
	}
	for i, by := range touched {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		older := ""
		if i+1 < len(touched) {
			f, err := repo.Find(ctx, s.source(r.ID), touched[i+1].Commit, path)
			if err == nil {
				older, err = text(f.Hash)
			}
			if err != nil && !engi.Is(err, engi.NotFound) {
				return nil, err
			}
		}
		before, open := slices.Repeat([]int{-1}, len(patch.Lines(older))), false
		for j, k := range patch.Kept(older, now) {
			switch {
			case at[j] < 0:
			case k < 0:
				b := &all[at[j]]
				b.Revision, b.Actor, b.Created = by.Number, by.Actor, by.Created
			default:
				before[k], open = at[j], true
			}
		}
		if !open {
			break
		}
		now, at = older, before
	}
	return all, nil
}

// A held holds objects that were read from a sandbox and are not recorded yet.
type held struct {
	s     *Service
	owner engi.Owner

	mu      sync.Mutex
	objects []repo.Object // guarded by mu, like all fields below
	bytes   int64
	seen    map[string]bool
}

// look returns the hash of a content. It keeps the content unless it is already known.
func (h *held) look(content []byte) (string, error) {
	hash := repo.HashOf(repo.Blob, content)
	h.mu.Lock()
	old := h.seen[hash]
	h.seen[hash] = true
	h.mu.Unlock()
	if old {
		return hash, nil
	}
	o, err := repo.New(repo.Blob, content)
	if err != nil {
		return "", err
	}
	if err := h.take(int64(len(o.Packed))); err != nil {
		return "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.objects = append(h.objects, o)
	return hash, nil
}

// take reserves n bytes of memory, or reports Exhausted.
func (h *held) take(n int64) error {
	if !h.s.held.Take(h.owner, n) {
		return engi.Errorf(engi.Exhausted, "too many recordings are being written at once").WithRemedy("try it again in a moment")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bytes += n
	return nil
}

// drop releases the memory of the contents.
func (h *held) drop() { h.s.held.Give(h.owner, h.bytes) }

// parents returns the parent directories of a path.
func parents(p string) (all []string) {
	for d := path.Dir(p); d != "."; d = path.Dir(d) {
		all = append(all, d)
	}
	return all
}
