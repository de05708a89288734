package app

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/app/project"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/worktree"
	"github.com/engi-dev/engi/internal/sandbox/holder"
)

// A use is an app with its running sandbox, valid while the app's lock is held.
type use struct {
	app   *app
	rec   Record
	t     engi.Template
	g     engi.Guest
	dir   string // directory of the app in the sandbox
	down  bool   // the app's server does not start
	leave func() // leaves the sandbox
	free  func() // releases the app's lock; nil for a use that enter returned
}

// close ends a use that hold has begun.
func (u *use) close() {
	u.leave()
	u.free()
}

// Users find the sandboxes of an app by its name in their metadata. A sandbox belongs to the
// app if it has the ID as a note.
const (
	noteApp = "app"
	metaApp = "app"
)

const projectTries = 4

// A how says how an app is to be used.
type how struct {
	repair  bool // the server of the app need not start
	idle    bool // no apply or edit may be under way
	capture bool // changes that somebody made in the sandbox become a revision first
}

// hold waits for the lock of an app, and enters its sandbox. The caller closes the use.
func (s *Service) hold(ctx context.Context, a *app, h how) (_ *use, err error) {
	free, err := a.locked.Acquire(ctx, "app")
	if err != nil {
		return nil, err
	}
	u, err := s.enter(ctx, a, h.repair)
	if err != nil {
		free()
		return nil, err
	}
	u.free = free
	if h.idle {
		err = u.rec.busy(0)
	}
	if err == nil && h.capture {
		u.rec, err = s.capture(ctx, a, u.rec, u.g, u.dir)
	}
	if err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

// enter returns an app with the files of its last revision, or with later manual changes
// of them, once its server answers; with repair, the server need not start. The
// caller holds the app's lock, and calls leave.
func (s *Service) enter(ctx context.Context, a *app, repair bool) (_ *use, err error) {
	id := a.id
	r, err := s.opt.Store.Find(ctx, engi.Everyone, string(id))
	if err != nil {
		return nil, err
	}
	t, err := s.templateOf(ctx, r)
	if err == nil && r.Directory == "" {
		err = fit(t, r.Owner)
	}
	if err != nil {
		return nil, err
	}
	u := &use{app: a, rec: r, t: t, dir: t.WorkDir, leave: func() {}}
	began := time.Now()
	defer func() {
		if err == nil {
			return
		}
		u.leave()
		if ctx.Err() != nil {
			return
		}
		late, cancel := s.late(ctx)
		defer cancel()
		if _, e := s.setState(late, id, engi.AppFailed, err); e != nil && !engi.Is(e, engi.NotFound, engi.Conflict) {
			s.opt.Log.WarnContext(ctx, "record that an app has failed", "app", id, "error", e)
		}
	}()
	booted, err := s.boot(ctx, u)
	if err != nil {
		return nil, err
	}
	if err := s.restore(ctx, u); err != nil {
		return nil, err
	}
	if err := u.probe(ctx); err != nil {
		if u.rec.State == engi.AppReady {
			if u.rec, err = s.setState(ctx, id, engi.AppStarting, nil); err != nil {
				return nil, err
			}
		}
		if err := u.restart(ctx); err != nil {
			if !repair || ctx.Err() != nil || !engi.Is(err, engi.Unavailable) {
				return nil, err
			}
			u.down = true
			if u.rec.State == engi.AppStarting {
				if u.rec, err = s.setState(ctx, id, engi.AppFailed, err); err != nil {
					return nil, err
				}
			}
		}
	}
	if booted {
		a.setStartup(time.Since(began))
		s.meter.starts.Observe(time.Since(began).Seconds())
	}
	if u.rec.Revision == 0 {
		if u.rec, err = s.capture(ctx, a, u.rec, u.g, u.dir); err != nil {
			return nil, err
		}
	}
	if u.rec.State != engi.AppReady && !u.down {
		if u.rec, err = s.setState(ctx, id, engi.AppReady, nil); err != nil {
			return nil, err
		}
	}
	s.projectLater(ctx, a, u.dir)
	return u, nil
}

// boot enters the sandbox of an app. If there is none, boot creates one; booted is true then.
func (s *Service) boot(ctx context.Context, u *use) (booted bool, err error) {
	if u.rec.Directory != "" {
		return s.join(ctx, u)
	}
	var snapshot engi.SnapshotID // snapshot from which a new sandbox starts
	booted, err = s.sandboxes.Open(ctx, holder.Claim{
		Thing: string(u.rec.ID), Key: string(u.rec.ID), Sandbox: u.rec.Sandbox, Boots: u.rec.Boots,
		Begin: func() (spec engi.SandboxSpec, err error) {
			u.app.copy.forget()
			if u.rec, err = s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, tx Tx) error {
				r.Sandbox = ""
				return become(r, tx, engi.AppStarting, nil)
			}); err != nil {
				return spec, err
			}
			spec = s.sandboxOf(u.rec)
			if u.rec.Undo != nil {
				snapshot = u.rec.Undo.Snapshot
			}
			if spec.Snapshot = snapshot; snapshot == "" {
				spec.Template, spec.Size = u.rec.Template, u.t.Size.Or(size)
			}
			return spec, nil
		},
		Record: func(id engi.SandboxID, boots int) error {
			return s.change(ctx, u, func(r *Record) {
				r.Sandbox, r.Boots, r.Undo = id, boots, nil
				if r.Revision > 0 {
					r.Undo = &Undo{All: true} // the sandbox has the files of the template
				}
			})
		},
		Enter: func(id engi.SandboxID, _ bool) (err error) {
			u.g, u.leave, err = s.sandboxes.Reconnect(ctx, id)
			return err
		},
	})
	if snapshot != "" && u.rec.Sandbox == "" && engi.Is(err, engi.NotFound) {
		err = engi.Errorf(engi.NotFound, "the snapshot %s, with which the app was to start, no longer exists", snapshot).WithRemedy("remove the app, and branch again from an existing revision")
	}
	return booted, err
}

// sandboxOf returns the common part of the specifications of an app's sandboxes.
func (s *Service) sandboxOf(r Record) engi.SandboxSpec {
	return engi.SandboxSpec{
		Owner: r.Owner, Env: r.Env, Network: r.Network, Notes: map[string]string{noteApp: string(r.ID)}, Metadata: map[string]string{metaApp: r.Name},
		Lifetime: engi.Lifetime{Timeout: s.opt.MaxAwake, Max: s.opt.MaxAwake, Idle: s.opt.Idle, OnTimeout: engi.EndHibernate, AutoResume: true},
	}
}

// change changes the record of an app in use. If that fails, the record in u stays unchanged.
func (s *Service) change(ctx context.Context, u *use, f func(r *Record)) error {
	r, err := s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, _ Tx) error {
		f(r)
		return nil
	})
	if err == nil {
		u.rec = r
	}
	return err
}

// restore undoes the unfinished changes that the record lists: all files of a new
// sandbox, or the files that an interrupted apply may have changed.
func (s *Service) restore(ctx context.Context, u *use) error {
	if u.rec.Undo == nil {
		return nil
	}
	if err := u.end(ctx, u.rec.tag(commandTag)); err != nil {
		return err
	}
	if _, err := u.clearStage(ctx); err != nil {
		return err
	}
	if u.rec.Revision > 0 {
		if err := s.putBack(ctx, u, *u.rec.Undo); err != nil {
			return err
		}
	} else if u.rec.Undo.Packages {
		if err := s.install(ctx, u, nil, func(string) {}); err != nil {
			return err
		}
	}
	return s.change(ctx, u, func(r *Record) { r.Undo = nil })
}

// putBack restores the files in undo to those of the last revision.
func (s *Service) putBack(ctx context.Context, u *use, undo Undo) error {
	files, err := s.opt.Store.Files(ctx, u.rec.ID, u.rec.Revision)
	if err != nil {
		return err
	}
	u.app.copy.forget()
	have, _, err := u.app.copy.read(ctx, u.g, u.dir)
	if err != nil && !engi.Is(err, engi.Exhausted) {
		return err // the files to restore exceed the limits of an app
	}
	want, next := treeOf(files), tree{}
	for p, f := range have {
		if !undo.All && !slices.Contains(undo.Paths, p) {
			next[p] = f
		}
	}
	for p, f := range want {
		if undo.All || slices.Contains(undo.Paths, p) {
			next[p] = f
		}
	}
	var names []string
	for _, c := range have.changes(next) {
		names = append(names, c.Path)
	}
	packages := undo.Packages || slices.ContainsFunc(names, isManifest)
	restart := undo.Restart || len(names) > 0 && u.mustRestart(names)
	if packages != undo.Packages || restart != undo.Restart {
		// Record both first: once the files are restored, later attempts could not tell that they are needed.
		undo.Packages, undo.Restart = packages, restart
		if err := s.change(ctx, u, func(r *Record) { r.Undo = &undo }); err != nil {
			return err
		}
	}
	if err := s.makeSo(ctx, u, have, next); err != nil {
		return err
	}
	if packages {
		if err := s.install(ctx, u, nil, func(string) {}); err != nil {
			return err
		}
	}
	switch {
	case restart && u.down:
		// The server did not answer with these files before the apply, so waiting for it
		// is useless. The next use of the app waits.
		_, err := u.start(ctx)
		return err
	case restart:
		return u.restart(ctx)
	}
	return nil
}

// makeSo changes the files in the sandbox from have to next.
func (s *Service) makeSo(ctx context.Context, u *use, have, next tree) error {
	var put []content
	var removed []string
	for _, c := range have.changes(next) {
		if c.Op == engi.FileRemoved {
			removed = append(removed, c.Path)
			continue
		}
		data, err := s.content(ctx, u.rec.ID, next[c.Path].Digest)
		if err != nil {
			return err
		}
		put = append(put, content{c.Path, data, next[c.Path].Mode})
	}
	return u.write(ctx, put, removed)
}

// A content is a file to write.
type content struct {
	path string
	data []byte
	mode uint32
}

// write writes and removes files. It first writes new contents to a staging directory,
// so that each file is either old or new, and a full disk causes an error before any file
// changes. Files that did not exist are moved first, since other files may import them.
func (u *use) write(ctx context.Context, put []content, removed []string) (err error) {
	defer u.app.copy.timed(time.Now())
	if len(put) > 0 {
		err := u.stage(ctx, put)
		if engi.Is(err, engi.Exhausted) { // no file was moved into place
			if err = u.clearCaches(ctx); err == nil {
				err = u.stage(ctx, put)
			}
		}
		if err != nil {
			return err
		}
	}
	for _, p := range removed {
		if err := u.checkParents(ctx, p); err != nil {
			return err
		}
		if err := u.g.Remove(ctx, u.dir+"/"+p); err != nil {
			return err
		}
	}
	return nil
}

// clearStage empties the staging directory, which holds files before they are moved
// into place, and returns its path.
func (u *use) clearStage(ctx context.Context) (stage string, err error) {
	if stage = u.dir + "/" + stageDir; u.rec.Directory != "" {
		stage = sharedStage + string(u.rec.ID)
	} else if _, err := u.g.Stat(ctx, path.Dir(stage)); engi.Is(err, engi.NotFound) {
		stage = u.dir + "/.vite/engi-stage"
	}
	return stage, u.g.Remove(ctx, stage)
}

func (u *use) stage(ctx context.Context, put []content) (err error) {
	stage, err := u.clearStage(ctx)
	if err != nil {
		return err
	}
	dirs := map[string]bool{}
	for _, c := range put {
		if d := path.Dir(c.path); !dirs[d] {
			dirs[d] = true
			if err := u.checkParents(ctx, c.path); err != nil {
				return err
			}
		}
	}
	exists := make([]bool, len(put))
	if err := worktree.Parallel(len(put), func(i int) error {
		p := put[i].path
		fi, err := u.g.Stat(ctx, u.dir+"/"+p)
		if err != nil && !engi.Is(err, engi.NotFound) {
			return err
		}
		if exists[i] = err == nil; exists[i] && !fi.Mode.IsRegular() {
			return engi.Errorf(engi.Conflict, "%s is a directory or a link in the sandbox", p).WithRemedy("remove it there first")
		}
		return nil
	}); err != nil {
		return err
	}
	defer func() {
		if err != nil { // an incomplete stage takes disk space
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
			defer cancel()
			if _, e := u.clearStage(late); e != nil {
				err = fmt.Errorf("%w; the staged files stay for now: %v", err, e)
			}
		}
	}()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, c := range put {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Mode: int64(c.mode), Size: int64(len(c.data)), Typeflag: tar.TypeReg, ModTime: time.Now()}); err != nil {
			return engi.Errorf(engi.Internal, "write an archive: %v", err)
		}
		if _, err := w.Write(c.data); err != nil {
			return engi.Errorf(engi.Internal, "write an archive: %v", err)
		}
	}
	if err := w.Close(); err != nil {
		return engi.Errorf(engi.Internal, "write an archive: %v", err)
	}
	if err := u.g.Unpack(ctx, stage, &b); err != nil {
		return err
	}
	for _, old := range []bool{false, true} {
		if err := worktree.Parallel(len(put), func(i int) error {
			if exists[i] != old {
				return nil
			}
			return u.g.Move(ctx, stage+"/"+fmt.Sprint(i), u.dir+"/"+put[i].path)
		}); err != nil {
			return err
		}
	}
	return u.g.Remove(ctx, stage)
}

// checkParents reports Conflict if a directory in the path of a file is a symbolic link,
// because the file could be outside of the app's directory.
func (u *use) checkParents(ctx context.Context, p string) error {
	for d := path.Dir(p); d != "."; d = path.Dir(d) {
		fi, err := u.g.Stat(ctx, u.dir+"/"+d)
		switch {
		case engi.Is(err, engi.NotFound):
		case err != nil:
			return err
		case !fi.Mode.IsDir():
			return engi.Errorf(engi.Conflict, "%s is no directory in the sandbox", d).WithRemedy("remove it there first")
		}
	}
	return nil
}

// capture records the sandbox's files as a revision, unless they equal the last one.
func (s *Service) capture(ctx context.Context, a *app, r Record, g engi.Guest, dir string) (Record, error) {
	began := time.Now()
	now, contents, err := a.copy.read(ctx, g, dir)
	if err != nil {
		return r, err
	}
	s.meter.files.Observe(time.Since(began).Seconds())
	s.meter.reads.WithLabelValues("sandbox").Add(float64(len(contents)))
	s.meter.reads.WithLabelValues("cache").Add(float64(max(0, len(now)-len(contents))))
	message := "Changed in the sandbox"
	if r.Revision == 0 {
		message = "Begin with the template " + r.Template
		if r.Directory != "" {
			message = "Begin with the files of " + r.Directory
		}
	}
	before := r.Revision
	r, _, err = s.revise(ctx, r, now, contents, engi.Revision{Message: message}, nil)
	if err != nil {
		a.copy.forget() // the files that were read are not recorded
	} else if r.Directory != "" && r.Revision != before {
		s.projectLater(ctx, a, dir)
	}
	return r, err
}

// revise records the files in now as a revision, unless they equal the last one, and
// applies the changes of also in the same transaction.
func (s *Service) revise(ctx context.Context, r Record, now tree, contents map[string][]byte, rev engi.Revision, also func(r *Record, tx Tx, rev engi.Revision) error) (_ Record, _ engi.Revision, err error) {
	before, parent := tree{}, ""
	if r.Revision > 0 {
		files, err := s.opt.Store.Files(ctx, r.ID, r.Revision)
		if err != nil {
			return r, rev, err
		}
		last, err := s.opt.Store.Revision(ctx, r.ID, r.Revision)
		if err != nil {
			return r, rev, err
		}
		before, parent = treeOf(files), last.Commit
		if len(before.changes(now)) == 0 {
			rev = last
		}
	}
	changed := before.changes(now)
	if len(changed) > 0 || r.Revision == 0 {
		rev.App, rev.Number, rev.Parent, rev.Created, rev.Changed = r.ID, r.Revision+1, r.Revision, time.Now().UTC().Truncate(time.Second), changed
		rev.Commit = commitOf(rev, parent, now.sorted()).id()
	} else if also == nil {
		return r, rev, nil
	}
	var put []File
	var removed []string
	for _, c := range changed {
		if c.Op == engi.FileRemoved {
			removed = append(removed, c.Path)
		} else {
			put = append(put, now[c.Path])
		}
	}
	r, err = s.opt.Store.Change(ctx, r.ID, func(r *Record, tx Tx) error {
		if rev.Number != r.Revision {
			if err := tx.Revise(rev, put, removed, contents, Bounds{maxRevisions, maxHistory, maxStored}); err != nil {
				return err
			}
			r.Revision, r.Ahead = rev.Number, r.Directory != ""
		}
		if also != nil {
			return also(r, tx, rev)
		}
		_, err := tx.Emit(engi.EventAppApplied, eventData{Revision: rev.Number, Text: rev.Message, Commit: rev.Commit})
		return err
	})
	return r, rev, err
}

// projectLater updates the git repository in the background, or the history of the app's workspace.
func (s *Service) projectLater(ctx context.Context, a *app, dir string) {
	id := a.id
	select {
	case a.gitNext <- struct{}{}:
	default:
		return // a caller that already waits will update the repository to the latest state
	}
	if !s.begin(ctx, func(ctx context.Context) {
		unlock, err := a.git.Acquire(ctx, "app")
		<-a.gitNext
		if err != nil {
			return
		}
		defer unlock()
		err = retry(ctx, projectTries, func() error {
			rec, err := s.opt.Store.Find(ctx, engi.Everyone, string(id))
			if err == nil && rec.Directory != "" {
				return s.handOver(ctx, rec)
			}
			if err != nil || rec.Sandbox == "" {
				return err
			}
			g, leave, err := s.sandboxes.Enter(ctx, rec.Sandbox)
			if err != nil {
				return err
			}
			defer leave()
			return s.project(ctx, rec, g, dir)
		})
		if err != nil && ctx.Err() == nil && !engi.Is(err, engi.NotFound) {
			s.opt.Log.WarnContext(ctx, "update the git repository of an app, or the history of its workspace; the next revision tries again", "app", id, "error", err)
		}
	}) {
		<-a.gitNext
	}
}

// isManifest reports whether a file declares the packages of an app.
func isManifest(p string) bool {
	return p == "package.json" || p == "package-lock.json" || p == "requirements.txt"
}

// mustRestart reports whether the server needs a restart to see a change.
func (u *use) mustRestart(changed []string) bool {
	return u.down || !u.vite() || project.Restarts(changed)
}

// vite reports whether the server is Vite's, which detects changes itself.
func (u *use) vite() bool {
	return slices.ContainsFunc([]string{"ts", "js", "mts", "mjs"}, func(ext string) bool {
		_, ok := u.app.copy.known["vite.config."+ext]
		return ok
	})
}

// outputOf returns the last most bytes of a process's output so far.
func outputOf(ctx context.Context, p engi.Process, most int) string {
	text, _, _ := lastOutput(ctx, p, most)
	return strings.TrimSpace(strings.ToValidUTF8(text, "\ufffd"))
}

// quiet is the time without output after which the output of a running process counts as
// complete.
const quiet = 50 * time.Millisecond

// lastOutput returns the last most bytes of a process's output so far, the offset after them,
// and whether there was more before them.
func lastOutput(ctx context.Context, p engi.Process, most int) (text string, end int64, cut bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
	defer cancel()
	timer := time.AfterFunc(time.Second, cancel)
	defer timer.Stop()
	var tail []byte
	for c, err := range p.Output(ctx, engi.OldestOutput) {
		if err != nil {
			break
		}
		cut = cut || len(tail) == 0 && c.Offset > 0
		end = c.Offset + int64(len(c.Data))
		tail = append(tail, c.Data...)
		if n := len(tail) - most; n > 0 {
			tail, cut = tail[n:], true
		}
		timer.Reset(quiet)
	}
	return string(tail), end, cut
}

// drain passes each line of a process's output to line until the process ends.
func drain(ctx context.Context, p engi.Process, line func(string)) error {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		eachLine(r, line)
	}()
	var err error
	for c, e := range p.Output(ctx, 0) {
		if err = e; err != nil {
			break
		}
		if _, err = w.Write(c.Data); err != nil {
			break
		}
	}
	w.Close()
	<-done
	return err
}
