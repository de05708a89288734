package app

import (
	"archive/zip"
	"bytes"
	"context"
	"io"
	"io/fs"
	"strings"

	"github.com/engi-dev/engi/internal/app/problems"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/patch"
)

// Rollback implements [engi.Apps].
func (s *Service) Rollback(ctx context.Context, viewer engi.Viewer, idOrName string, number int64) (_ engi.Revision, err error) {
	defer engi.Annotate(&err, "roll app %.70s back to %d", idOrName, number)
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return engi.Revision{}, err
	}
	if err := r.busy(0); err != nil {
		return engi.Revision{}, err
	}
	files, err := s.opt.Store.Files(ctx, r.ID, number)
	if err != nil {
		return engi.Revision{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, applyTime, engi.Errorf(engi.Expired, "it took longer than %v", applyTime))
	defer cancel()
	u, err := s.hold(ctx, s.live(r.ID), how{repair: true, idle: true, capture: true})
	if err != nil {
		return engi.Revision{}, err
	}
	defer u.close()
	now, err := s.opt.Store.Files(ctx, r.ID, u.rec.Revision)
	if err != nil {
		return engi.Revision{}, err
	}
	want, err := s.opt.Store.Revision(ctx, r.ID, number)
	if err != nil {
		return engi.Revision{}, err
	}
	p := plan{message: firstLine("Go back to: " + want.Message), actor: engi.ActorOf(ctx), of: number}
	next := treeOf(files)
	for _, c := range treeOf(now).changes(next) {
		if c.Op == engi.FileRemoved {
			p.removed = append(p.removed, c.Path)
			continue
		}
		data, err := s.content(ctx, r.ID, next[c.Path].Digest)
		if err != nil {
			return engi.Revision{}, err
		}
		p.put = append(p.put, content{c.Path, data, next[c.Path].Mode})
	}
	if len(p.put)+len(p.removed) == 0 {
		return s.opt.Store.Revision(ctx, r.ID, u.rec.Revision)
	}
	if err := s.carryOut(ctx, u, p, s.reporter(ctx, u, 0)); err != nil {
		return engi.Revision{}, err
	}
	return s.opt.Store.Revision(ctx, r.ID, u.rec.Revision)
}

// Revisions implements [engi.Apps].
func (s *Service) Revisions(ctx context.Context, viewer engi.Viewer, idOrName string, p engi.Paging) ([]engi.Revision, error) {
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return nil, err
	}
	revisions, err := s.opt.Store.Revisions(ctx, r.ID, p)
	if err == nil {
		err = s.addSnapshots(ctx, r, revisions)
	}
	return revisions, err
}

// revision returns the ID of an app and the number of one of its revisions. Number 0 selects the last
// revision, after recording the sandbox's current files.
func (s *Service) revision(ctx context.Context, viewer engi.Viewer, idOrName string, number int64) (engi.AppID, int64, error) {
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return "", 0, err
	}
	if number == 0 {
		if r, err = s.fresh(ctx, r); err != nil {
			return "", 0, err
		}
		number = r.Revision
	}
	if number == 0 {
		return "", 0, engi.Errorf(engi.Conflict, "the app has no files yet").WithRemedy("open it first")
	}
	return r.ID, number, nil
}

// Files implements [engi.Apps].
func (s *Service) Files(ctx context.Context, viewer engi.Viewer, idOrName string, number int64) ([]engi.AppFile, error) {
	id, number, err := s.revision(ctx, viewer, idOrName, number)
	if err != nil {
		return nil, err
	}
	files, err := s.opt.Store.Files(ctx, id, number)
	if err != nil {
		return nil, err
	}
	all := make([]engi.AppFile, len(files))
	for i, f := range files {
		all[i] = f.AppFile
	}
	return all, nil
}

// File implements [engi.Apps].
func (s *Service) File(ctx context.Context, viewer engi.Viewer, idOrName, path string, number int64) (io.ReadCloser, error) {
	id, number, err := s.revision(ctx, viewer, idOrName, number)
	if err != nil {
		return nil, err
	}
	files, err := s.opt.Store.Files(ctx, id, number)
	if err != nil {
		return nil, err
	}
	f, ok := treeOf(files)[path]
	if !ok {
		return nil, engi.Errorf(engi.NotFound, "revision %d has no file %.100q", number, path)
	}
	data, err := s.content(ctx, id, f.Digest)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// Zip implements [engi.Apps].
func (s *Service) Zip(ctx context.Context, viewer engi.Viewer, idOrName string, number int64, w io.Writer) (err error) {
	defer engi.Annotate(&err, "archive of app %.70s", idOrName)
	id, number, err := s.revision(ctx, viewer, idOrName, number)
	if err != nil {
		return err
	}
	rev, err := s.opt.Store.Revision(ctx, id, number)
	if err != nil {
		return err
	}
	files, err := s.opt.Store.Files(ctx, id, number)
	if err != nil {
		return err
	}
	out := zip.NewWriter(w)
	for _, f := range files {
		data, err := s.content(ctx, id, f.Digest)
		if err != nil {
			return err
		}
		h := &zip.FileHeader{Name: f.Path, Method: zip.Deflate, Modified: rev.Created}
		h.SetMode(modeOf(f.Mode))
		part, err := out.CreateHeader(h)
		if err == nil {
			_, err = part.Write(data)
		}
		if err != nil {
			return engi.Errorf(engi.Unavailable, "write: %v", err)
		}
	}
	if err := out.Close(); err != nil {
		return engi.Errorf(engi.Unavailable, "write: %v", err)
	}
	return nil
}

// Diff implements [engi.Apps].
func (s *Service) Diff(ctx context.Context, viewer engi.Viewer, idOrName string, from, to int64) (string, error) {
	id, to, err := s.revision(ctx, viewer, idOrName, to)
	if err != nil {
		return "", err
	}
	rev, err := s.opt.Store.Revision(ctx, id, to)
	if err != nil {
		return "", err
	}
	if from == 0 {
		from = rev.Parent
	}
	before := tree{}
	if from != 0 {
		files, err := s.opt.Store.Files(ctx, id, from)
		if err != nil {
			return "", err
		}
		before = treeOf(files)
	}
	files, err := s.opt.Store.Files(ctx, id, to)
	if err != nil {
		return "", err
	}
	after := treeOf(files)
	text := func(t tree, path string) (string, error) {
		f, ok := t[path]
		if !ok {
			return "", nil
		}
		data, err := s.content(ctx, id, f.Digest)
		return string(data), err
	}
	var b strings.Builder
	for _, c := range before.changes(after) {
		old, err := text(before, c.Path)
		if err != nil {
			return "", err
		}
		now, err := text(after, c.Path)
		if err != nil {
			return "", err
		}
		patch.Write(&b, c, old, now, modeOf(before[c.Path].Mode), modeOf(after[c.Path].Mode))
	}
	return b.String(), nil
}

// Logs implements [engi.Apps].
func (s *Service) Logs(ctx context.Context, viewer engi.Viewer, idOrName, after string, most int) (_ engi.AppLogs, err error) {
	defer engi.Annotate(&err, "logs of app %.70s", idOrName)
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return engi.AppLogs{}, err
	}
	if r.Sandbox == "" {
		return engi.AppLogs{}, engi.Errorf(engi.Conflict, "the app has no sandbox").WithRemedy("open it first")
	}
	if most <= 0 || most > maxAnswer {
		most = 64 << 10
	}
	g, leave, err := s.sandboxes.Reconnect(ctx, r.Sandbox)
	if err != nil {
		return engi.AppLogs{}, err
	}
	defer leave()
	p, err := g.Attach(ctx, r.tag(serviceTag))
	if engi.Is(err, engi.NotFound) {
		return engi.AppLogs{}, nil
	}
	if err != nil {
		return engi.AppLogs{}, err
	}
	t, err := s.templateOf(ctx, r)
	if err != nil {
		return engi.AppLogs{}, err
	}
	all, end, cut := lastOutput(ctx, p, most)
	now := mark{p.ID(), end}
	text := parseMark(after).since(all, now)
	logs := engi.AppLogs{Text: strings.ToValidUTF8(text, "\ufffd"), Truncated: cut && len(text) == len(all), Mark: now.String()}
	for _, p := range problems.Parse(logs.Text, t.WorkDir) {
		logs.Faults = append(logs.Faults, engi.AppFault{Source: p.Source, Path: p.File, Line: p.Line, Text: p.Text})
	}
	return logs, nil
}

func modeOf(mode uint32) fs.FileMode { return fs.FileMode(mode).Perm() }
