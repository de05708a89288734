package apitest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/workspace/repo"
	"github.com/engi-dev/engi/internal/workspace/transfer"
)

// Workspaces is a fake whose services have no sandboxes. A service whose version is
// broken fails. Databases accept "select VALUE as NAME", refuse a text with "fail" in
// it, and report one affected row for all other texts; redis services know PING, GET
// and SET. It is safe for concurrent use.
type Workspaces struct {
	Sandboxes engi.Sandboxes // sandboxes of working copies, which have no files; nil for none

	mu  sync.Mutex
	all []*workspace
}

type workspace struct {
	engi.Workspace
	key       string // Idempotency-Key
	print     string // fingerprint of the request with the key
	revisions []workspaceRevision
	keys      map[string]string // values of redis services, by service and key
}

type workspaceRevision struct {
	engi.WorkspaceRevision
	files  map[string]workspaceFile
	pushed []repo.Object // objects pushed by git; nil for revisions of which history makes a commit
}

type workspaceFile struct {
	content string
	mode    uint32
	since   int64
}

var _ engi.Workspaces = (*Workspaces)(nil)

var (
	serviceNames = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	selects      = regexp.MustCompile(`(?i)^\s*select\s+(\S+)\s+as\s+(\w+)\s*;?\s*$`)
	servers      = map[engi.ServiceType]engi.Service{
		engi.ServicePostgres: {Version: "15.14", Server: "PostgreSQL 15", Port: 5432},
		engi.ServiceMySQL:    {Version: "10.11.14", Server: "MariaDB 10.11", Port: 3306},
		engi.ServiceRedis:    {Version: "7.0.15", Server: "Redis 7", Port: 6379},
		engi.ServiceMongoDB:  {Version: "1.24.0", Server: "FerretDB 1.24", Port: 27017},
		engi.ServiceNginx:    {Version: "1.22.1", Server: "nginx 1.22", Port: 80},
	}
	roles = []engi.WorkspaceRole{engi.RoleViewer, engi.RoleReviewer, engi.RoleEditor, engi.RoleOwner}
)

// find returns a workspace in which owner has a role. The caller must hold the lock.
func (w *Workspaces) find(viewer engi.Viewer, name string, role engi.WorkspaceRole) (*workspace, error) {
	for _, x := range w.all {
		has := engi.RoleOwner
		if !viewer.Sees(x.Owner) {
			i := slices.IndexFunc(x.Collaborators, func(c engi.Collaborator) bool { return c.Owner.Viewer() == viewer })
			if i < 0 || x.Name == name {
				continue
			}
			has = x.Collaborators[i].Role
		}
		switch {
		case string(x.ID) != name && x.Name != name && string(x.Owner)+"/"+x.Name != name:
		case slices.Index(roles, has) < slices.Index(roles, role):
			return nil, engi.Errorf(engi.Denied, "a %s of workspace %s may not do this", has, x.ID).WithRemedy("ask its owner for the role %s", role)
		default:
			return x, nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "there is no workspace %.80q", name)
}

// copyOf returns a copy that callers may keep.
func (x *workspace) copyOf() engi.Workspace {
	out := x.Workspace
	out.Services, out.Collaborators = slices.Clone(x.Services), slices.Clone(x.Collaborators)
	return out
}

// Create implements engi.Workspaces.
func (w *Workspaces) Create(_ context.Context, spec engi.WorkspaceSpec) (engi.Workspace, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	print := idempotency.Fingerprint(spec)
	spec.Template, spec.Name = cmp.Or(spec.Template, "base"), cmp.Or(spec.Name, fmt.Sprint("workspace-", len(w.all)+1))
	if !appNames.MatchString(spec.Name) {
		return engi.Workspace{}, engi.Errorf(engi.Invalid, "%.80q is not the name of a workspace", spec.Name)
	}
	for _, x := range w.all {
		switch {
		case x.Owner != spec.Owner:
		case spec.Idempotency != "" && x.key == spec.Idempotency && x.print != print:
			return engi.Workspace{}, errRepeated
		case spec.Idempotency != "" && x.key == spec.Idempotency:
			return x.copyOf(), nil
		case x.Name == spec.Name:
			return engi.Workspace{}, engi.Errorf(engi.Conflict, "there is a workspace %q already", spec.Name).WithRemedy("choose another name")
		}
	}
	x := &workspace{key: spec.Idempotency, print: print, keys: map[string]string{}, Workspace: engi.Workspace{
		ID: engi.NewWorkspaceID(), Owner: spec.Owner, Name: spec.Name, Template: spec.Template, State: engi.WorkspaceStopped,
		Collaborators: spec.Collaborators, Metadata: spec.Metadata, Created: appMoment,
	}}
	for _, s := range spec.Services {
		if _, err := x.add(s); err != nil {
			return engi.Workspace{}, err
		}
	}
	if len(spec.Files) > 0 {
		if _, err := x.write(engi.WriteSpec{Files: spec.Files, Message: "Created"}); err != nil {
			return engi.Workspace{}, err
		}
	}
	w.all = append(w.all, x)
	return x.copyOf(), nil
}

// Get implements engi.Workspaces.
func (w *Workspaces) Get(_ context.Context, viewer engi.Viewer, name string) (engi.Workspace, error) {
	return with(w, viewer, name, engi.RoleViewer, func(x *workspace) (engi.Workspace, error) { return x.copyOf(), nil })
}

// with calls do with a workspace, if owner has the role.
func with[T any](w *Workspaces, viewer engi.Viewer, name string, role engi.WorkspaceRole, do func(*workspace) (T, error)) (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x, err := w.find(viewer, name, role)
	if err != nil {
		var none T
		return none, err
	}
	return do(x)
}

// List implements engi.Workspaces.
func (w *Workspaces) List(_ context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Workspace, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []engi.Workspace
	for _, x := range slices.Backward(w.all) {
		if _, err := w.find(viewer, string(x.ID), engi.RoleViewer); err == nil {
			list = append(list, x.copyOf())
		}
	}
	return engi.Cut(p, list, func(x engi.Workspace) string { return string(x.ID) })
}

// Change implements engi.Workspaces.
func (w *Workspaces) Change(_ context.Context, viewer engi.Viewer, name string, c engi.WorkspaceChange) (engi.Workspace, error) {
	return with(w, viewer, name, engi.RoleOwner, func(x *workspace) (engi.Workspace, error) {
		all, err := c.Of(x.Collaborators)
		if err != nil {
			return engi.Workspace{}, err
		}
		if x.Collaborators = all; c.Preview != nil {
			x.Preview = *c.Preview
		}
		if c.Metadata != nil {
			x.Metadata = c.Metadata
		}
		return x.copyOf(), nil
	})
}

// Start implements engi.Workspaces.
func (w *Workspaces) Start(ctx context.Context, viewer engi.Viewer, name string) (engi.Workspace, error) {
	return with(w, viewer, name, engi.RoleEditor, func(x *workspace) (engi.Workspace, error) {
		if x.State == engi.WorkspaceRunning && !w.lost(ctx, x) {
			return x.copyOf(), nil
		}
		x.Sandbox = engi.NewSandboxID()
		if w.Sandboxes != nil {
			b, err := w.Sandboxes.Create(ctx, engi.SandboxSpec{Owner: x.Owner})
			if err != nil {
				return engi.Workspace{}, err
			}
			x.Sandbox = b.ID
		}
		x.State, x.Used = engi.WorkspaceRunning, appMoment
		for i := range x.Services {
			serve(&x.Services[i])
		}
		return x.copyOf(), nil
	})
}

// lost reports whether the sandbox of a workspace is gone.
func (w *Workspaces) lost(ctx context.Context, x *workspace) bool {
	if w.Sandboxes == nil {
		return false
	}
	b, err := w.Sandboxes.Get(ctx, engi.Everyone, x.Sandbox)
	return err != nil || b.State == engi.Stopped
}

// Stop implements engi.Workspaces.
func (w *Workspaces) Stop(ctx context.Context, viewer engi.Viewer, name string) error {
	_, err := with(w, viewer, name, engi.RoleEditor, func(x *workspace) (engi.Workspace, error) {
		if w.Sandboxes != nil && x.Sandbox != "" {
			if err := w.Sandboxes.Stop(ctx, x.Owner.Viewer(), x.Sandbox); err != nil {
				return engi.Workspace{}, err
			}
		}
		x.State, x.Sandbox = engi.WorkspaceStopped, ""
		for i := range x.Services {
			x.Services[i].State, x.Services[i].Sandbox = engi.ServiceStopped, ""
		}
		return x.Workspace, nil
	})
	return err
}

// Remove implements engi.Workspaces.
func (w *Workspaces) Remove(_ context.Context, viewer engi.Viewer, name string) error {
	_, err := with(w, viewer, name, engi.RoleOwner, func(x *workspace) (engi.Workspace, error) {
		w.all = slices.DeleteFunc(w.all, func(y *workspace) bool { return x == y })
		return x.Workspace, nil
	})
	return err
}

// revision returns a revision; 0 means the last one.
func (x *workspace) revision(n int64) (workspaceRevision, error) {
	switch {
	case n == 0 && len(x.revisions) == 0:
		return workspaceRevision{}, nil
	case n == 0:
		n = x.Revision
	case n < 0 || n > int64(len(x.revisions)):
		return workspaceRevision{}, engi.Errorf(engi.NotFound, "workspace %s has no revision %d", x.Name, n)
	}
	return x.revisions[n-1], nil
}

// revise adds a revision with files.
func (x *workspace) revise(r engi.WorkspaceRevision, files map[string]workspaceFile) engi.WorkspaceRevision {
	last, _ := x.revision(0) // zero if there is no revision
	r.Number, r.Parent, r.Created = x.Revision+1, x.Revision, appMoment
	r.Commit = fmt.Sprintf("%040x", r.Number)
	for _, p := range slices.Sorted(maps.Keys(files)) {
		f := files[p]
		old, ok := last.files[p]
		if ok && old.content == f.content && old.mode == f.mode {
			continue
		}
		op := engi.FileCreated
		if ok {
			op = engi.FileWritten
		}
		f.since = r.Number
		files[p] = f
		r.Changed = append(r.Changed, engi.AppChange{Path: p, Op: op, Size: int64(len(f.content))})
	}
	for _, p := range slices.Sorted(maps.Keys(last.files)) {
		if _, ok := files[p]; !ok {
			r.Changed = append(r.Changed, engi.AppChange{Path: p, Op: engi.FileRemoved})
		}
	}
	x.revisions, x.Revision = append(x.revisions, workspaceRevision{WorkspaceRevision: r, files: files}), r.Number
	return r
}

func (x *workspace) write(spec engi.WriteSpec) (engi.WorkspaceRevision, error) {
	last, _ := x.revision(0) // zero if there is no revision
	files := maps.Clone(last.files)
	if files == nil {
		files = map[string]workspaceFile{}
	}
	for _, f := range spec.Files {
		old, ok := files[f.Path]
		switch {
		case f.Path == "" || path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || strings.HasPrefix(f.Path, ".."):
			return engi.WorkspaceRevision{}, engi.Errorf(engi.Invalid, "%.100q is not the path of a file in a workspace", f.Path).WithRemedy("use a relative path with slashes")
		case spec.Base > 0 && old.since > spec.Base:
			return engi.WorkspaceRevision{}, engi.Errorf(engi.Conflict, "%s has changed since revision %d", f.Path, spec.Base).WithRemedy("read the file again")
		case f.Removed && !ok:
			return engi.WorkspaceRevision{}, engi.Errorf(engi.NotFound, "workspace %s has no file %.100q", x.Name, f.Path)
		case f.Removed:
			delete(files, f.Path)
		default:
			files[f.Path] = workspaceFile{string(f.Content), cmp.Or(f.Mode, old.mode, 0o644), old.since}
		}
	}
	return x.revise(engi.WorkspaceRevision{Message: cmp.Or(spec.Message, "Changed "+spec.Files[0].Path), Actor: spec.Actor}, files), nil
}

// Write implements engi.Workspaces.
func (w *Workspaces) Write(_ context.Context, spec engi.WriteSpec) (engi.WorkspaceRevision, error) {
	return with(w, spec.Viewer, spec.Workspace, engi.RoleEditor, func(x *workspace) (engi.WorkspaceRevision, error) { return x.write(spec) })
}

// Move implements engi.Workspaces.
func (w *Workspaces) Move(_ context.Context, spec engi.MoveSpec) (engi.WorkspaceRevision, error) {
	return with(w, spec.Viewer, spec.Workspace, engi.RoleEditor, func(x *workspace) (engi.WorkspaceRevision, error) {
		last, _ := x.revision(0) // zero if there is no revision
		files := map[string]workspaceFile{}
		found := false
		for p, f := range last.files {
			rest, moves := strings.CutPrefix(p+"/", spec.From+"/")
			switch {
			case strings.HasPrefix(p+"/", spec.To+"/"):
				return engi.WorkspaceRevision{}, engi.Errorf(engi.Conflict, "%.100q exists", spec.To).WithRemedy("choose another path")
			case moves && spec.Base > 0 && f.since > spec.Base:
				return engi.WorkspaceRevision{}, engi.Errorf(engi.Conflict, "%s has changed since revision %d", p, spec.Base).WithRemedy("read the file again")
			case moves:
				p, found = path.Join(spec.To, rest), true
			}
			files[p] = f
		}
		if !found {
			return engi.WorkspaceRevision{}, engi.Errorf(engi.NotFound, "workspace %s has no file %.100q", x.Name, spec.From).WithRemedy("list its files")
		}
		return x.revise(engi.WorkspaceRevision{Message: cmp.Or(spec.Message, "Moved "+spec.From), Actor: spec.Actor}, files), nil
	})
}

// Files implements engi.Workspaces.
func (w *Workspaces) Files(_ context.Context, viewer engi.Viewer, name string, revision int64) ([]engi.WorkspaceFile, error) {
	return with(w, viewer, name, engi.RoleViewer, func(x *workspace) ([]engi.WorkspaceFile, error) {
		r, err := x.revision(revision)
		var list []engi.WorkspaceFile
		for _, p := range slices.Sorted(maps.Keys(r.files)) {
			f := r.files[p]
			sum := sha256.Sum256([]byte(f.content))
			list = append(list, engi.WorkspaceFile{Path: p, Mode: f.mode, Size: int64(len(f.content)), Digest: hex.EncodeToString(sum[:])})
		}
		return list, err
	})
}

// content is an open file that knows its size.
type content struct{ *bytes.Reader }

func (content) Close() error { return nil }

// File implements engi.Workspaces.
func (w *Workspaces) File(_ context.Context, viewer engi.Viewer, name, path string, revision int64) (io.ReadCloser, error) {
	return with(w, viewer, name, engi.RoleViewer, func(x *workspace) (io.ReadCloser, error) {
		f, err := x.file(path, revision)
		return content{bytes.NewReader([]byte(f.content))}, err
	})
}

// Dial implements engi.Workspaces: the connection echoes all data.
func (w *Workspaces) Dial(_ context.Context, viewer engi.Viewer, name, service string) (net.Conn, error) {
	return with(w, viewer, name, engi.RoleEditor, func(x *workspace) (net.Conn, error) {
		i := slices.IndexFunc(x.Services, func(s engi.Service) bool { return s.Name == service })
		switch {
		case i < 0:
			return nil, engi.Errorf(engi.NotFound, "workspace %s has no service %.70q", x.Name, service).WithRemedy("list its services")
		case !x.Services[i].Exposed:
			return nil, engi.Errorf(engi.Conflict, "the service is not exposed").WithRemedy("add one with 'exposed'")
		}
		near, far := net.Pipe()
		go func() {
			_, _ = io.Copy(far, far) // until the other end is closed
			far.Close()
		}()
		return near, nil
	})
}

// PreviewFile implements engi.Workspaces.
func (w *Workspaces) PreviewFile(_ context.Context, viewer engi.Viewer, name, path string) (engi.PublishedFile, error) {
	return with(w, viewer, name, engi.RoleViewer, func(x *workspace) (engi.PublishedFile, error) {
		if x.Preview.Type != engi.PreviewStatic {
			return engi.PublishedFile{}, engi.Errorf(engi.NotFound, "workspace %s shows no files", x.Name)
		}
		f, err := x.file(strings.TrimPrefix(x.Preview.Root+"/"+path, "/"), 0)
		return engi.PublishedFile{Path: path, Size: int64(len(f.content)), Content: strings.NewReader(f.content)}, err
	})
}

func (x *workspace) file(path string, revision int64) (workspaceFile, error) {
	r, err := x.revision(revision)
	if err != nil {
		return workspaceFile{}, err
	}
	f, ok := r.files[path]
	if !ok {
		return f, engi.Errorf(engi.NotFound, "workspace %s has no file %.100q", x.Name, path).WithRemedy("list its files")
	}
	return f, nil
}

// Revisions implements engi.Workspaces.
func (w *Workspaces) Revisions(_ context.Context, viewer engi.Viewer, name string, p engi.Paging) ([]engi.WorkspaceRevision, error) {
	return with(w, viewer, name, engi.RoleViewer, func(x *workspace) ([]engi.WorkspaceRevision, error) {
		var list []engi.WorkspaceRevision
		for _, r := range slices.Backward(x.revisions) {
			list = append(list, r.WorkspaceRevision)
		}
		return engi.Cut(p, list, func(r engi.WorkspaceRevision) string { return strconv.FormatInt(r.Number, 10) })
	})
}

// Diff implements engi.Workspaces. Each file that has changed is one hunk.
func (w *Workspaces) Diff(_ context.Context, viewer engi.Viewer, name string, from, to int64) (string, error) {
	return with(w, viewer, name, engi.RoleViewer, func(x *workspace) (string, error) {
		after, err := x.revision(to)
		if err != nil {
			return "", err
		}
		var before workspaceRevision
		if from = cmp.Or(from, after.Parent); from > 0 {
			if before, err = x.revision(from); err != nil {
				return "", err
			}
		}
		paths := map[string]bool{}
		for p := range before.files {
			paths[p] = true
		}
		for p := range after.files {
			paths[p] = true
		}
		var b strings.Builder
		for _, p := range slices.Sorted(maps.Keys(paths)) {
			if before.files[p] == after.files[p] {
				continue
			}
			fmt.Fprintf(&b, "--- a/%s\n+++ b/%s\n", p, p)
			for line := range strings.Lines(before.files[p].content) {
				b.WriteString("-" + line)
			}
			for line := range strings.Lines(after.files[p].content) {
				b.WriteString("+" + line)
			}
		}
		return b.String(), nil
	})
}

// Restore implements engi.Workspaces.
func (w *Workspaces) Restore(ctx context.Context, viewer engi.Viewer, name string, revision int64, below string) (engi.WorkspaceRevision, error) {
	return with(w, viewer, name, engi.RoleEditor, func(x *workspace) (engi.WorkspaceRevision, error) {
		then, err := x.revision(revision)
		if err != nil {
			return engi.WorkspaceRevision{}, err
		}
		last, _ := x.revision(0) // there is a last revision
		files := maps.Clone(last.files)
		within := func(p string) bool { return below == "" || p == below || strings.HasPrefix(p, below+"/") }
		maps.DeleteFunc(files, func(p string, _ workspaceFile) bool { return within(p) })
		for p, f := range then.files {
			if within(p) {
				files[p] = f
			}
		}
		return x.revise(engi.WorkspaceRevision{Of: revision, Message: fmt.Sprintf("Restored %d", revision), Actor: engi.ActorOf(ctx)}, files), nil
	})
}

// history returns the revisions as commits of git.
func (x *workspace) history() (repo.Source, []transfer.Ref, error) {
	objects := map[string]repo.Object{}
	var last repo.Version
	source := func(_ context.Context, hash string) (repo.Object, error) {
		o, ok := objects[hash]
		if !ok {
			return o, engi.Errorf(engi.NotFound, "there is no object %s", hash)
		}
		return o, nil
	}
	for _, r := range x.revisions {
		if r.pushed != nil {
			for _, o := range r.pushed {
				objects[o.Hash] = o
			}
			var err error
			if last, err = repo.Read(context.Background(), source, r.Commit, func(string) error { return nil }); err != nil {
				return nil, nil, err
			}
			continue
		}
		files := repo.Files{}
		for p, f := range r.files {
			o, err := repo.New(repo.Blob, []byte(f.content))
			if err != nil {
				return nil, nil, err
			}
			objects[o.Hash], files[p] = o, repo.File{Path: p, Mode: f.mode, Hash: o.Hash}
		}
		next, made, err := last.Next(files, repo.Note{Message: r.Message, Actor: r.Actor, Time: r.Created})
		if err != nil {
			return nil, nil, err
		}
		for _, o := range made {
			objects[o.Hash] = o
		}
		last = next
	}
	var refs []transfer.Ref
	if last.Commit != "" {
		refs = append(refs, transfer.Ref{Name: "refs/heads/main", Hash: last.Commit})
	}
	return source, refs, nil
}

// GitRefs implements engi.Workspaces.
func (w *Workspaces) GitRefs(_ context.Context, viewer engi.Viewer, name string, push bool, to io.Writer) error {
	need, advertise := engi.RoleViewer, transfer.Advertise
	if push {
		need, advertise = engi.RoleEditor, transfer.AdvertisePush
	}
	refs, err := with(w, viewer, name, need, func(x *workspace) ([]transfer.Ref, error) {
		_, refs, err := x.history()
		return refs, err
	})
	if err != nil {
		return err
	}
	return advertise(to, refs)
}

// GitPush implements engi.Workspaces.
func (w *Workspaces) GitPush(ctx context.Context, viewer engi.Viewer, name string, request io.Reader, to io.Writer) error {
	if _, err := w.find(viewer, name, engi.RoleEditor); err != nil {
		return err
	}
	p, err := transfer.ReadPush(request)
	if err != nil {
		return err
	}
	u, _ := p.Of("refs/heads/main")
	_, failed := with(w, viewer, name, engi.RoleEditor, func(x *workspace) (engi.WorkspaceRevision, error) { return x.push(ctx, u, request) })
	return p.Report(to, func(u transfer.Update) error {
		if u.Name != "refs/heads/main" {
			return engi.Errorf(engi.Invalid, "a workspace has the branch main, and no tags").WithRemedy("push to main")
		}
		return failed
	})
}

func (x *workspace) push(ctx context.Context, u transfer.Update, in io.Reader) (r engi.WorkspaceRevision, err error) {
	if u.New == "" {
		return r, engi.Errorf(engi.Invalid, "the branch main cannot be deleted")
	}
	source, refs, err := x.history()
	if err != nil {
		return r, err
	}
	pack, err := transfer.Unpack(ctx, in, source, func(int64) error { return nil })
	if err != nil {
		return r, err
	}
	both := pack.Before(source)
	added, err := pack.Added(ctx, u.Old, u.New, func(ctx context.Context, kind repo.Kind, hashes []string) (map[string]int64, error) {
		sizes := map[string]int64{}
		for _, h := range hashes {
			if o, err := source(ctx, h); err == nil && o.Kind == kind {
				sizes[h] = o.Size
			}
		}
		return sizes, nil
	})
	if err != nil {
		return r, err
	}
	if len(refs) > 0 && refs[0].Hash != u.Old || len(refs) == 0 && u.Old != "" {
		return r, engi.Errorf(engi.Conflict, "there is another revision").WithRemedy("pull first")
	}
	v, err := repo.Read(ctx, both, u.New, func(string) error { return nil })
	if err != nil {
		return r, err
	}
	files := map[string]workspaceFile{}
	for p, f := range v.Files {
		o, err := both(ctx, f.Hash)
		if err != nil {
			return r, err
		}
		data, err := o.Content()
		if err != nil {
			return r, err
		}
		files[p] = workspaceFile{content: string(data), mode: f.Mode}
	}
	x.revise(engi.WorkspaceRevision{Message: strings.TrimSpace(added.Message), Actor: engi.ActorOf(ctx)}, files)
	last := &x.revisions[len(x.revisions)-1]
	last.Commit, last.pushed = u.New, added.Objects
	return last.WorkspaceRevision, nil
}

// GitFetch implements engi.Workspaces.
func (w *Workspaces) GitFetch(ctx context.Context, viewer engi.Viewer, name string, request io.Reader, to io.Writer) error {
	source, err := with(w, viewer, name, engi.RoleViewer, func(x *workspace) (repo.Source, error) {
		source, _, err := x.history()
		return source, err
	})
	if err != nil {
		return err
	}
	q, err := transfer.Read(request)
	if err != nil {
		return err
	}
	return q.Answer(ctx, to, source)
}

// Blame implements engi.Workspaces. All lines come from the revision that wrote the file.
func (w *Workspaces) Blame(_ context.Context, viewer engi.Viewer, name, path string, revision int64) ([]engi.BlameLine, error) {
	return with(w, viewer, name, engi.RoleViewer, func(x *workspace) ([]engi.BlameLine, error) {
		f, err := x.file(path, revision)
		if err != nil {
			return nil, err
		}
		var lines []engi.BlameLine
		for line := range strings.Lines(f.content) {
			r := x.revisions[f.since-1]
			lines = append(lines, engi.BlameLine{Revision: r.Number, Actor: r.Actor, Created: r.Created, Text: strings.TrimSuffix(line, "\n")})
		}
		return lines, nil
	})
}

// serve starts the server of a service, or marks the service as failed.
func serve(s *engi.Service) {
	s.State, s.Sandbox, s.Started, s.Error = engi.ServiceHealthy, engi.NewSandboxID(), appMoment, nil
	if s.Version == "broken" {
		s.State, s.Sandbox, s.Error = engi.ServiceFailed, "", engi.Errorf(engi.Unavailable, "%s has ended with exit code 1", s.Server).WithRemedy("see its logs")
	}
}
