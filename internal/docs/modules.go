package docs

import (
	"context"
	"encoding/json"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	workspace      = "/workspace"
	maxModules     = 500       // maximum number of modules of a session, and of scope user per owner
	maxSaved       = 50        // maximum number of modules in one call
	maxSource      = 256 << 10 // maximum bytes of a module
	maxDescription = 2000      // maximum bytes of a description or a usage
	maxExports     = 100
	maxName        = 200 // maximum bytes of a path or an export
	maxLine        = 256 << 10
)

// ModulesIn returns the modules that a model announces in its answer, in
// lines with JSON objects of type code_modules. It skips invalid ones.
func ModulesIn(text string) []engi.CodeModule {
	var list []engi.CodeModule
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if len(line) > maxLine || !strings.HasPrefix(line, "{") || !strings.Contains(line, "code_modules") {
			continue
		}
		var said struct {
			Type    string            `json:"type"`
			Modules []json.RawMessage `json:"modules"`
		}
		if json.Unmarshal([]byte(line), &said) != nil || said.Type != "code_modules" {
			continue
		}
		for _, raw := range said.Modules {
			var m struct {
				Path, Description, Usage, Scope string
				Exports                         []string
			}
			if json.Unmarshal(raw, &m) != nil {
				continue
			}
			c := engi.CodeModule{Path: m.Path, Description: clip.Bytes(m.Description, maxDescription), Usage: clip.Bytes(m.Usage, maxDescription), Exports: m.Exports, Scope: engi.ModuleSession}
			if engi.ModuleScope(m.Scope) == engi.ModuleUser {
				c.Scope = engi.ModuleUser
			}
			c.Exports = c.Exports[:min(len(c.Exports), maxExports)]
			c, err := validateModule(c)
			if err != nil {
				continue
			}
			// The last module of a path counts.
			list = slices.DeleteFunc(list, func(o engi.CodeModule) bool { return o.Path == c.Path })
			if list = append(list, c); len(list) == maxSaved {
				return list
			}
		}
	}
	return list
}

// validateModule returns m with a clean path below the workspace. It reports
// Invalid.
func validateModule(m engi.CodeModule) (engi.CodeModule, error) {
	p := strings.TrimPrefix(m.Path, workspace+"/")
	if p == "" || len(p) > maxName || !utf8.ValidString(p) || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return m, engi.Errorf(engi.Invalid, "%.80q is not a path of a module", m.Path)
	}
	p = path.Clean(p)
	if path.IsAbs(p) || p == "." || p == ".." || strings.HasPrefix(p, "../") {
		return m, engi.Errorf(engi.Invalid, "%.80q is not below %s", m.Path, workspace)
	}
	m.Path = p
	if m.Scope == "" {
		m.Scope = engi.ModuleSession
	}
	switch {
	case m.Scope != engi.ModuleSession && m.Scope != engi.ModuleUser:
		return m, engi.Errorf(engi.Invalid, "module %s: unknown scope %.40q", p, m.Scope).WithRemedy("use session or user")
	case len(m.Description) > maxDescription || len(m.Usage) > maxDescription || len(m.Exports) > maxExports:
		return m, engi.Errorf(engi.Invalid, "module %s: its description or usage has more than %d bytes, or it has more than %d exports", p, maxDescription, maxExports)
	case !utf8.ValidString(m.Description) || !utf8.ValidString(m.Usage):
		return m, engi.Errorf(engi.Invalid, "module %s: its description or usage is not UTF-8", p)
	}
	for _, e := range m.Exports {
		if e == "" || len(e) > maxName || !utf8.ValidString(e) {
			return m, engi.Errorf(engi.Invalid, "module %s: %.40q is not a name of an export", p, e)
		}
	}
	return m, nil
}

// SaveModules implements [engi.Docs].
func (l *Index) SaveModules(ctx context.Context, viewer engi.Viewer, session string, modules []engi.CodeModule) (err error) {
	defer engi.Annotate(&err, "save modules of session %s", session)
	if l.opt.Sessions == nil {
		return engi.Errorf(engi.Unsupported, "this node has no sessions")
	}
	if len(modules) > maxSaved {
		return engi.Errorf(engi.Invalid, "%d modules at once, %d at most", len(modules), maxSaved)
	}
	modules = slices.Clone(modules)
	for i := range modules {
		if modules[i], err = validateModule(modules[i]); err != nil {
			return err
		}
	}
	if len(modules) == 0 {
		return nil
	}
	s, err := l.opt.Sessions.Get(ctx, viewer, session)
	if err != nil {
		return err
	}
	if s.State == engi.SessionTerminated {
		return engi.Errorf(engi.Conflict, "it has ended")
	}
	uses, err := l.readModules(ctx, viewer, s, modules)
	if err != nil {
		return err
	}
	// Reading the files may have created the volume.
	if s, err = l.opt.Sessions.Get(ctx, viewer, string(s.ID)); err != nil {
		return err
	}
	if s.Volume == "" || s.State == engi.SessionTerminated {
		return engi.Errorf(engi.Conflict, "it has no volume to keep files in").WithRemedy("use a session of persistence session or snapshot")
	}
	now := time.Now().UTC()
	for i, m := range modules {
		m.Session, m.Saved = s.ID, now
		r := Record{Collection: sessionCollection(s.ID), Key: m.Path, Imports: uses[i], Module: &m}
		if m.Scope == engi.ModuleUser {
			r.Collection = userCollection(s.Owner)
		}
		r.Document = engi.Document{
			ID: engi.NewDocumentID(), Owner: s.Owner, Title: m.Path, Bytes: int64(len(m.Source)), Chunks: 1, State: engi.DocumentReady, Checked: now, Changed: now,
		}
		text := moduleText(m)
		p := Chunk{Text: text, Identifiers: identifierParts(text), Hash: hash(text)}
		chunks := []Chunk{p}
		l.embedMissing(ctx, s.Owner, "", chunks)
		if _, err := l.store(ctx, r, chunks); err != nil {
			return err
		}
	}
	return nil
}

// moduleText returns the text of a module for searching.
func moduleText(m engi.CodeModule) string {
	text := m.Path + "\n" + m.Description
	if len(m.Exports) > 0 {
		text += "\nexports " + strings.Join(m.Exports, ", ")
	}
	if m.Usage != "" {
		text += "\n" + m.Usage
	}
	return text
}

// readModules reads the files of modules. It copies the source of modules of scope
// user, and returns the imports of each module. It reports NotFound for missing files.
func (l *Index) readModules(ctx context.Context, viewer engi.Viewer, s engi.Session, modules []engi.CodeModule) ([][]string, error) {
	guest, release, err := l.opt.Sessions.Enter(ctx, viewer, string(s.ID))
	if err != nil {
		return nil, err
	}
	defer release()
	uses := make([][]string, len(modules))
	var missing []string
	for i := range modules {
		source, err := readSource(ctx, guest, modules[i].Path)
		switch {
		case err == nil:
		case engi.Is(err, engi.NotFound):
			missing = append(missing, modules[i].Path)
			continue
		default:
			return nil, err
		}
		uses[i] = imports(source)
		if modules[i].Source = ""; modules[i].Scope == engi.ModuleUser {
			modules[i].Source = source
		}
	}
	if len(missing) > 0 {
		return nil, engi.Errorf(engi.NotFound, "%.500s: no such file", strings.Join(missing, ", ")).WithRemedy("write it below %s first", workspace)
	}
	return uses, nil
}

func readSource(ctx context.Context, guest engi.Guest, p string) (string, error) {
	f, err := guest.Open(ctx, path.Join(workspace, p))
	if err != nil {
		return "", err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxSource+1))
	switch {
	case err != nil:
		return "", engi.Errorf(engi.Unavailable, "read %s: %v", p, err)
	case len(raw) > maxSource:
		return "", engi.Errorf(engi.Invalid, "module %s has more than %d bytes", p, maxSource)
	case !utf8.Valid(raw):
		return "", engi.Errorf(engi.Invalid, "module %s is not UTF-8", p)
	}
	return string(raw), nil
}

var (
	importForm  = regexp.MustCompile(`(?m)(?:\bfrom|\bimport|\brequire)\s*\(?\s*["']([^"'\n]{1,200})["']|^[ \t]*(?:import[ \t]+([A-Za-z_]\w{0,99})[.\w]*[ \t]*(?:$|,|#|as\b)|from[ \t]+([A-Za-z_]\w{0,99})[.\w]*[ \t]+import\b)`)
	packageForm = regexp.MustCompile(`^(?:npm:|jsr:)?(@[^/@\s]+/[^/@\s]+|[^./@\s][^/@\s]*)`)
)

// imports returns the packages that a JavaScript or Python source imports.
func imports(source string) []string {
	var list []string
	for _, m := range importForm.FindAllStringSubmatch(source, 200) {
		name := m[2] + m[3]
		if m[1] != "" {
			p := packageForm.FindStringSubmatch(m[1])
			if p == nil || strings.Contains(p[1], ":") {
				continue
			}
			name = p[1]
		}
		if !slices.Contains(list, name) && len(list) < 50 {
			list = append(list, name)
		}
	}
	return list
}

// Modules implements [engi.Docs].
func (l *Index) Modules(ctx context.Context, viewer engi.Viewer, session string) ([]engi.CodeModule, error) {
	collection, err := l.sessionModules(ctx, viewer, session)
	if err != nil {
		return nil, err
	}
	f := Filter{Collections: []string{userCollection(viewer.Owner())}}
	if viewer == engi.Everyone {
		f.Collections = nil
	} else if collection != "" {
		f.Collections = append(f.Collections, collection)
	}
	records, err := l.opt.Store.Records(ctx, f)
	if err != nil {
		return nil, err
	}
	var list []engi.CodeModule
	for _, r := range records {
		if r.Module != nil && (!IsSessionCollection(r.Collection) || r.Collection == collection) {
			m := *r.Module
			m.Owner = r.Owner
			list = append(list, m)
		}
	}
	return list, nil
}

// sessionModules returns the collection of a session's modules. It is empty if
// session is empty, or if the session's volume is gone; then the modules are removed.
func (l *Index) sessionModules(ctx context.Context, viewer engi.Viewer, session string) (string, error) {
	if session == "" {
		return "", nil
	}
	if l.opt.Sessions == nil {
		return "", engi.Errorf(engi.NotFound, "there is no such session").WithRemedy("this node has no sessions")
	}
	s, err := l.opt.Sessions.Get(ctx, viewer, session)
	if err != nil {
		return "", err
	}
	collection := sessionCollection(s.ID)
	if s.Volume != "" && s.State != engi.SessionTerminated {
		return collection, nil
	}
	l.forgetCollection(ctx, collection)
	return "", nil
}

// forgetCollection removes a collection, if it exists.
func (l *Index) forgetCollection(ctx context.Context, collection string) {
	l.mu.Lock()
	_, known := l.collections[collection]
	l.mu.Unlock()
	if !known {
		return
	}
	if err := l.remove(ctx, collection, nil); err != nil {
		l.log.Warn("remove modules of a session whose volume is gone", "error", err)
		return
	}
	l.mu.Lock()
	delete(l.collections, collection)
	l.mu.Unlock()
}

// sweepSessions removes modules of sessions whose volume is gone.
func (l *Index) sweepSessions(ctx context.Context) {
	if l.opt.Sessions == nil {
		return
	}
	l.mu.Lock()
	var sessions []string
	for s := range l.collections {
		if id, ok := strings.CutPrefix(s, sessionPrefix); ok {
			sessions = append(sessions, id)
		}
	}
	l.mu.Unlock()
	for _, id := range sessions {
		_, err := l.sessionModules(ctx, engi.Everyone, id)
		if engi.Is(err, engi.NotFound) {
			l.forgetCollection(ctx, sessionPrefix+id)
		}
	}
}
