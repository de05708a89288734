package workspace

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

const (
	lookPause = time.Second     // minimum time between refreshes of changed files for previews
	lookTime  = 5 * time.Second // maximum time of a refresh
)

// checkPreview validates a preview; nil leaves the preview unchanged.
func checkPreview(p *engi.WorkspacePreview) error {
	if p == nil {
		return nil
	}
	switch p.Type {
	case engi.PreviewNone, engi.PreviewStatic:
		if p.Port != 0 {
			return engi.Errorf(engi.Invalid, "a preview of type %q has no port", p.Type).WithRemedy("use the type proxy for a server")
		}
	case engi.PreviewProxy, engi.PreviewWebSocket:
		if p.Port < 1 || p.Port > 65535 {
			return engi.Errorf(engi.Invalid, "%d is not a port", p.Port).WithRemedy("name the port that the server listens on")
		}
	default:
		return engi.Errorf(engi.Invalid, "%.70q is not a type of previews", p.Type).WithRemedy("use static, proxy or websocket")
	}
	if p.Type != engi.PreviewStatic && p.Root != "" {
		return engi.Errorf(engi.Invalid, "a preview of type %q has no directory", p.Type).WithRemedy("use the type static for files")
	}
	if p.Root != "" {
		return CheckPath(p.Root)
	}
	return nil
}

// previewSummary describes in one line the files that a preview shows, and its audience.
func previewSummary(p engi.WorkspacePreview) string {
	if p.Type == engi.PreviewNone {
		return "it shows nothing"
	}
	who := "who works in it"
	if p.Public {
		who = "everybody"
	}
	what := "files below " + cmp.Or(p.Root, "its directory")
	if p.Port != 0 {
		what = fmt.Sprintf("port %d", p.Port)
	}
	return fmt.Sprintf("it shows %s to %s", what, who)
}

// PreviewFile implements [engi.Workspaces].
func (s *Service) PreviewFile(ctx context.Context, viewer engi.Viewer, idOrName, name string) (f engi.PublishedFile, err error) {
	defer engi.Annotate(&err, "preview of workspace %.70s", idOrName)
	r, err := s.find(ctx, viewer, idOrName, engi.RoleViewer)
	if err != nil {
		return f, err
	}
	missing := engi.Errorf(engi.NotFound, "there is no file %.100q", name)
	if r.Preview.Type != engi.PreviewStatic || CheckPath(name) != nil {
		return f, missing
	}
	if s.refresh(ctx, r) {
		if r, err = s.find(ctx, viewer, string(r.ID), engi.RoleViewer); err != nil {
			return f, err
		}
	}
	if r.Revision == 0 {
		return f, missing
	}
	rev, err := s.opt.Store.Revision(ctx, r.ID, r.Revision)
	if err != nil {
		return f, err
	}
	file, err := repo.Find(ctx, s.source(r.ID), rev.Commit, path.Join(r.Preview.Root, name))
	if err != nil {
		return f, err
	}
	o, err := s.opt.Store.Object(ctx, r.ID, file.Hash)
	if err != nil {
		return f, err
	}
	if !s.held.Take(r.Owner, o.Size) {
		return f, engi.Errorf(engi.Exhausted, "too much data is being sent").WithRetry(engi.Retry{AfterMillis: 1000})
	}
	data, err := o.Content()
	if err != nil {
		s.held.Give(r.Owner, o.Size)
		return f, err
	}
	return engi.PublishedFile{
		Path: name, Size: int64(len(data)), Digest: file.Hash,
		Content: &sentFile{Reader: bytes.NewReader(data), drop: func() { s.held.Give(r.Owner, o.Size) }},
	}, nil
}

// A sentFile is a file in memory, whose memory is released by Close.
type sentFile struct {
	*bytes.Reader
	drop func()
}

// Close implements [io.Closer]. It must be called once.
func (f *sentFile) Close() error {
	f.drop()
	return nil
}

// refresh records the changes that programs made in the sandbox of a workspace as a revision, unless
// a refresh was just done or the sandbox hibernates. It reports whether it did; previews do not need it.
func (s *Service) refresh(ctx context.Context, r Record) bool {
	if r.Sandbox == "" {
		return false
	}
	s.mu.Lock()
	fresh := time.Since(s.looked[r.ID]) < lookPause
	if !fresh {
		s.looked[r.ID] = time.Now()
	}
	s.mu.Unlock()
	if fresh {
		return false
	}
	if !s.sandboxes.Runs(ctx, r.Sandbox) {
		return false
	}
	looking, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	if _, _, _, err := s.at(looking, engi.Everyone, string(r.ID), 0); err != nil {
		if ctx.Err() == nil {
			s.opt.Log.WarnContext(ctx, "look for what has changed in the sandbox of a workspace with a preview", "workspace", r.ID, "error", err)
		}
		return false
	}
	return true
}
