package apitest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Docs is a fake. Search ranks passages by the number of words of the query that they
// contain. No page is fetched: a URL has a page about its own last element,
// except for URLs of denied.example and down.example, which fail. The text "full"
// exceeds the quota, and files of modules exist unless they are called
// missing.ts. It is safe for concurrent use.
type Docs struct {
	Sessions engi.Sessions // sessions; nil means that every session exists, and names are IDs

	mu      sync.Mutex
	all     []text
	modules []module
}

type text struct {
	engi.Document
	text string
}

type module struct {
	engi.CodeModule
	owner engi.Owner
}

var _ engi.Docs = (*Docs)(nil)

var shelved = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

// visible reports whether a viewer may see an owner's object.
func visible(viewer engi.Viewer, owner engi.Owner) bool { return owner == "" || viewer.Sees(owner) }

// Add implements engi.Docs.
func (l *Docs) Add(_ context.Context, spec engi.DocumentSpec) (engi.Document, error) {
	d := text{engi.Document{
		ID: engi.NewDocumentID(), Owner: spec.Owner, Package: spec.Package, Title: spec.Title, URL: spec.URL, Fetched: spec.Text == "", State: engi.DocumentReady, Checked: shelved, Changed: shelved,
	}, spec.Text}
	if d.Fetched {
		u, err := url.Parse(spec.URL)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https":
			return engi.Document{}, engi.Errorf(engi.Invalid, "%.100q is no address of a page", spec.URL)
		case u.Host == "denied.example":
			return engi.Document{}, engi.Errorf(engi.Denied, "documents may not be fetched from %s", u.Host).WithRemedy("send the text")
		case u.Host == "down.example":
			return engi.Document{}, engi.Errorf(engi.Unavailable, "fetch %s: it does not answer", u.Host)
		}
		d.text = "# " + path.Base(u.Path) + "\n\nAbout " + path.Base(u.Path) + ".\n"
	}
	if d.text == "full" {
		return engi.Document{}, engi.Errorf(engi.Exhausted, "the documents of %s take all of their share", spec.Owner).WithRemedy("remove some")
	}
	if d.Title == "" {
		d.Title = strings.TrimLeft(strings.SplitN(d.text, "\n", 2)[0], "# ")
	}
	sum := sha256.Sum256([]byte(d.text))
	d.Digest, d.Bytes, d.Chunks = hex.EncodeToString(sum[:]), int64(len(d.text)), len(pieces(d.text))
	l.mu.Lock()
	defer l.mu.Unlock()
	same := func(x text) bool {
		return x.Owner == d.Owner && x.Package == d.Package && x.URL == d.URL && (d.URL != "" || x.Title == d.Title)
	}
	if i := slices.IndexFunc(l.all, same); i >= 0 {
		d.ID = l.all[i].ID
		l.all[i] = d
	} else {
		l.all = append(l.all, d)
	}
	return d.Document, nil
}

// pieces splits a text at headings of the second level.
func pieces(s string) []string { return strings.Split(s, "\n## ") }

// Documents implements engi.Docs.
func (l *Docs) Documents(_ context.Context, viewer engi.Viewer, p engi.Paging, ids ...engi.DocumentID) (all []engi.Document, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.all {
		if visible(viewer, d.Owner) && (len(ids) == 0 || slices.Contains(ids, d.ID)) {
			all = append(all, d.Document)
		}
	}
	slices.SortFunc(all, func(a, b engi.Document) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Title, b.Title))
	})
	return engi.Cut(p, all, func(x engi.Document) string { return string(x.ID) })
}

// Packages implements engi.Docs.
func (l *Docs) Packages(ctx context.Context, viewer engi.Viewer) (all []engi.DocumentPackage, _ error) {
	docs, err := l.Documents(ctx, viewer, engi.Paging{})
	for _, d := range docs {
		if d.Package == "" {
			continue
		}
		if len(all) == 0 || all[len(all)-1].Name != d.Package {
			all = append(all, engi.DocumentPackage{Name: d.Package})
		}
		p := &all[len(all)-1]
		p.Documents, p.Chunks = p.Documents+1, p.Chunks+d.Chunks
	}
	return all, err
}

// Search implements engi.Docs.
func (l *Docs) Search(ctx context.Context, spec engi.SearchSpec) (f engi.SearchResult, _ error) {
	if strings.TrimSpace(spec.Text) == "" {
		return f, engi.Errorf(engi.Invalid, "nothing is asked")
	}
	modules, err := l.Modules(ctx, spec.Viewer, spec.Session)
	if err != nil {
		return f, err
	}
	words := strings.Fields(strings.ToLower(spec.Text))
	count := func(s string) (n float64) {
		for _, w := range words {
			if strings.Contains(strings.ToLower(s), w) {
				n++
			}
		}
		return n
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.all {
		if !visible(spec.Viewer, d.Owner) || spec.Package != "" && d.Package != spec.Package {
			continue
		}
		for _, p := range pieces(d.text) {
			heading, _, _ := strings.Cut(p, "\n")
			if n := count(p); n > 0 {
				f.Hits = append(f.Hits, engi.SearchHit{Document: d.ID, Package: d.Package, Title: d.Title, Headings: []string{strings.TrimLeft(heading, "# ")}, URL: d.URL, Text: p, Score: n})
			}
		}
	}
	for _, m := range modules {
		if n := count(m.Description); n > 0 && spec.Package == "" {
			f.Hits = append(f.Hits, engi.SearchHit{Text: m.Description, Module: &m, Score: n})
		}
	}
	slices.SortStableFunc(f.Hits, func(a, b engi.SearchHit) int { return cmp.Compare(b.Score, a.Score) })
	f.Hits = f.Hits[:min(len(f.Hits), cmp.Or(spec.Limit, 5))]
	if spec.Mode != engi.SearchKeyword {
		f.Embedder, f.Note = "fake:words", "the fake counts words"
	}
	return f, nil
}

// Refresh implements engi.Docs. Documents never change.
func (l *Docs) Refresh(_ context.Context, viewer engi.Viewer, id engi.DocumentID) (all []engi.Document, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, d := range l.all {
		if (id == "" && d.Owner == viewer.Owner() && d.Fetched) || d.ID == id && viewer.Sees(d.Owner) {
			l.all[i].Checked = d.Checked.Add(time.Hour)
			all = append(all, l.all[i].Document)
		}
	}
	if id != "" && len(all) == 0 {
		return nil, engi.Errorf(engi.NotFound, "there is no such document")
	}
	return all, nil
}

// Remove implements engi.Docs.
func (l *Docs) Remove(_ context.Context, viewer engi.Viewer, id engi.DocumentID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.all, func(d text) bool { return d.ID == id && visible(viewer, d.Owner) })
	if i < 0 {
		return engi.Errorf(engi.NotFound, "there is no such document")
	}
	if !viewer.Sees(l.all[i].Owner) {
		return engi.Errorf(engi.Denied, "it is the node's")
	}
	l.all = slices.Delete(l.all, i, i+1)
	return nil
}

// session returns the ID and the owner of a session.
func (l *Docs) session(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.SessionID, engi.Owner, error) {
	if l.Sessions == nil {
		return engi.SessionID(idOrName), viewer.Owner(), nil
	}
	s, err := l.Sessions.Get(ctx, viewer, idOrName)
	return s.ID, s.Owner, err
}

// SaveModules implements engi.Docs.
func (l *Docs) SaveModules(ctx context.Context, viewer engi.Viewer, session string, modules []engi.CodeModule) error {
	id, owner, err := l.session(ctx, viewer, session)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range modules {
		if path.Base(m.Path) == "missing.ts" {
			return engi.Errorf(engi.NotFound, "there is no file %s in the session", m.Path)
		}
		m.Session, m.Saved, m.Scope = id, shelved, cmp.Or(m.Scope, engi.ModuleSession)
		if m.Scope == engi.ModuleUser {
			m.Source = "export const source = '" + m.Path + "'\n"
		}
		l.modules = slices.DeleteFunc(l.modules, func(x module) bool { return x.Session == id && x.Path == m.Path })
		l.modules = append(l.modules, module{m, owner})
	}
	return nil
}

// Modules implements engi.Docs.
func (l *Docs) Modules(ctx context.Context, viewer engi.Viewer, session string) (all []engi.CodeModule, _ error) {
	var id engi.SessionID
	if session != "" {
		var err error
		if id, _, err = l.session(ctx, viewer, session); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.modules {
		if viewer.Sees(m.owner) && (m.Scope == engi.ModuleUser || m.Session == id) {
			m.Owner = m.owner
			all = append(all, m.CodeModule)
		}
	}
	return all, nil
}
