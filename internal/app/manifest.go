package app

import (
	"context"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/app/project"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxManifests = 64 << 20 // approximate maximum bytes of the readers of all apps
	maxParts     = 20_000   // maximum number of imports, exports, components and routes of a manifest
)

// manifests caches readers of the most recently used apps,
// so that a new revision only costs reading its changed files. It is safe for
// concurrent use.
type manifests struct {
	mu   sync.Mutex
	kept []*reader // least recently used first; guarded by mu
}

// A reader holds the analysed files of an app.
type reader struct {
	app engi.AppID

	mu      sync.Mutex
	builder *project.Builder // guarded by mu, like all fields below
	tree    tree             // files in builder
	weight  int              // bytes; guarded by the mutex of manifests
}

// take returns the reader of an app and marks it as most recently used.
func (m *manifests) take(app engi.AppID) *reader {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.kept, func(r *reader) bool { return r.app == app })
	r := &reader{app: app, builder: project.NewBuilder(), tree: tree{}}
	if i >= 0 {
		r = m.kept[i]
		m.kept = slices.Delete(m.kept, i, i+1)
	}
	m.kept = append(m.kept, r)
	return r
}

// weigh records a reader's weight and drops the least recently used readers while all are too large.
func (m *manifests) weigh(r *reader, weight int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.weight = weight
	total := 0
	for _, r := range m.kept {
		total += r.weight
	}
	for len(m.kept) > 0 && total > maxManifests {
		total -= m.kept[0].weight
		m.kept = slices.Delete(m.kept, 0, 1)
	}
}

// forget drops the reader of a removed app.
func (m *manifests) forget(app engi.AppID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = slices.DeleteFunc(m.kept, func(r *reader) bool { return r.app == app })
}

// Manifest implements [engi.Apps].
func (s *Service) Manifest(ctx context.Context, viewer engi.Viewer, idOrName string, number int64) (_ engi.AppManifest, err error) {
	defer engi.Annotate(&err, "manifest of app %.70s", idOrName)
	id, number, err := s.revision(ctx, viewer, idOrName, number)
	if err != nil {
		return engi.AppManifest{}, err
	}
	files, err := s.opt.Store.Files(ctx, id, number)
	if err != nil {
		return engi.AppManifest{}, err
	}
	r := s.manifests.take(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	next := treeOf(files)
	for _, c := range r.tree.changes(next) {
		if c.Op == engi.FileRemoved {
			r.builder.Remove(c.Path)
			delete(r.tree, c.Path)
			continue
		}
		data, err := s.content(ctx, id, next[c.Path].Digest)
		if err != nil {
			return engi.AppManifest{}, err
		}
		if !utf8.Valid(data) {
			data = nil // binary files have no lines
		}
		r.builder.Update(c.Path, string(data))
		r.tree[c.Path] = next[c.Path]
	}
	s.manifests.weigh(r, r.builder.Weight())
	return manifestOf(id, number, next, r.builder.Manifest()), nil
}

// manifestOf converts a manifest and truncates it to the limits of an answer.
func manifestOf(app engi.AppID, number int64, files tree, m project.Manifest) engi.AppManifest {
	out := engi.AppManifest{App: app, Revision: number, Entry: m.Entry, Styles: m.Styles, Packages: m.Packages}
	left := maxParts
	room := func(n int) int {
		n = min(n, max(left, 0))
		left -= n
		return n
	}
	total := len(m.Components) + len(m.Routes)
	for _, c := range m.Components[:room(len(m.Components))] {
		total += len(c.Uses)
		out.Components = append(out.Components, engi.AppComponent{Name: c.Name, File: c.File, Line: c.Line, Uses: c.Uses[:room(len(c.Uses))]})
	}
	for _, r := range m.Routes[:room(len(m.Routes))] {
		out.Routes = append(out.Routes, engi.AppRoute(r))
	}
	for _, f := range m.Files {
		total += len(f.Imports) + len(f.Exports) + len(f.Uses) + len(f.UsedBy)
		file := engi.AppSource{AppFile: files[f.Path].AppFile, Type: f.Type, Lines: f.Lines}
		for _, im := range f.Imports[:room(len(f.Imports))] {
			file.Imports = append(file.Imports, engi.AppImport(im))
		}
		file.Exports, file.Uses, file.UsedBy = f.Exports[:room(len(f.Exports))], f.Uses[:room(len(f.Uses))], f.UsedBy[:room(len(f.UsedBy))]
		out.Files = append(out.Files, file)
	}
	for _, p := range m.Problems {
		out.Problems = append(out.Problems, engi.AppSyntaxError(p))
	}
	out.Truncated = total > maxParts
	return out
}
