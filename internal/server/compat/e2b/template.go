package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
)

// defaultTag is the tag of a reference without one.
const defaultTag = "default"

var (
	namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._/-]{0,127}$`)
	tagPattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
)

func (s *Server) serveTemplates() {
	s.handle("POST /v3/templates", s.newBuild)
	s.handle("POST /v2/templates/{id}/builds/{build}", s.startBuild)
	s.handle("GET /templates/{id}/builds/{build}/status", s.buildStatus)
	s.handle("GET /templates/{id}/builds/{build}/logs", s.buildLogs)
	s.handle("GET /templates/{id}/files/{hash}", s.fileLink)
	s.control.HandleFunc("PUT /templates/{id}/files/{hash}", s.putFile)
	s.handle("POST /templates/tags", s.assignTags)
	s.handle("DELETE /templates/tags", s.removeTags)
	for _, path := range []string{"/templates", "/v2/templates"} {
		s.handle("GET "+path, s.listTemplates)
		s.handle("PATCH "+path+"/{id}", s.patchTemplate)
	}
	s.handle("GET /default-templates", func(w http.ResponseWriter, r *http.Request, who caller) error {
		all, err := s.Templates.List(r.Context())
		if err != nil {
			return err
		}
		list := []map[string]any{}
		for _, t := range all {
			if t.Owner == "" && t.Digest != "" {
				list = append(list, builtIn(t))
			}
		}
		return respond(w, http.StatusOK, list)
	})
	s.handle("GET /templates/{id}", s.getTemplate)
	s.handle("DELETE /templates/{id}", s.removeTemplate)
	// aliases/NAME and ID/tags have the same shape.
	s.handle("GET /templates/{id}/{what}", func(w http.ResponseWriter, r *http.Request, who caller) error {
		switch id, what := r.PathValue("id"), r.PathValue("what"); {
		case id == "aliases":
			return s.alias(w, r, who, what)
		case what == "tags":
			return s.tags(w, r, who, id)
		}
		return engi.Errorf(engi.NotFound, "%.200q does not exist", r.URL.Path)
	})
}

// reference splits NAME:TAG, with defaultTag if there is no tag.
func reference(ref string) (name, tag string) {
	name, tag, ok := strings.Cut(ref, ":")
	if !ok || tag == "" {
		tag = defaultTag
	}
	return strings.ToLower(name), tag
}

func errTemplate(ref string) error {
	return engi.Errorf(engi.NotFound, "template %.80q not found", ref)
}

func missing(err error) bool { return engi.Is(err, engi.NotFound) }

// resolve sets the template or snapshot in spec that reference ref stands for.
func (s *Server) resolve(ctx context.Context, who caller, ref string, spec *engi.SandboxSpec) error {
	if ref == "" {
		return engi.Errorf(engi.Invalid, "templateID is missing")
	}
	name, tag := reference(ref)
	t, err := s.Store.Get(ctx, who.viewer, name)
	if err == nil {
		b := t.Tagged(tag)
		if b == nil && tag == defaultTag {
			b = t.Latest()
		}
		if b == nil || b.State != registry.BuildReady {
			return errTemplate(ref)
		}
		spec.Notes[registry.NoteTemplate], spec.Notes[noteAlias], spec.Notes[registry.NoteFrom] = t.ID, t.Name, b.ID
		if spec.Snapshot = b.Snapshot; b.Snapshot == "" {
			spec.Template = b.Template
		}
		return nil
	}
	if !missing(err) {
		return err
	}
	if s.Snapshots != nil && tag == defaultTag {
		p, err := s.Snapshots.Get(ctx, who.viewer, strings.TrimSuffix(ref, ":"+defaultTag))
		if err == nil && !strings.HasPrefix(p.Name, buildSnapshots) {
			spec.Snapshot, spec.Notes[registry.NoteTemplate], spec.Notes[noteAlias] = p.ID, string(p.ID), p.Name
			return nil
		}
		if err != nil && !missing(err) && !engi.Is(err, engi.Invalid) {
			return err
		}
	}
	b, err := s.Templates.Get(ctx, name)
	if missing(err) || err == nil && (tag != defaultTag || b.Owner != "" && !who.viewer.Sees(b.Owner)) {
		return errTemplate(ref)
	}
	if err != nil {
		return err
	}
	spec.Template, spec.Notes[registry.NoteTemplate], spec.Notes[noteAlias] = name, name, name
	return nil
}

// ours returns a template of the registry.
func (s *Server) ours(ctx context.Context, who caller, ref string) (registry.Template, error) {
	name, _ := reference(ref)
	t, err := s.Store.Get(ctx, who.viewer, name)
	if missing(err) {
		return t, errTemplate(ref)
	}
	return t, err
}

// newUUID returns an ID for a build, which clients require to be a UUID.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// built returns the name of engi's template for a build. The name has a part that is
// unique to this node, because nodes may share their templates.
func (s *Server) built(template, build string) string {
	return s.builtPrefix() + template + "-" + build[:8]
}

func (s *Server) builtPrefix() string { return "e2b-" + s.derive("node", "")[:8] + "-" }

func (s *Server) newBuild(w http.ResponseWriter, r *http.Request, who caller) error {
	var q struct {
		Name     string   `json:"name"`
		Alias    string   `json:"alias"`
		Tags     []string `json:"tags"`
		CPUCount int      `json:"cpuCount"`
		MemoryMB int64    `json:"memoryMB"`
		FreeDisk int64    `json:"minFreeDiskMb"`
	}
	if err := body(w, r, &q); err != nil {
		return err
	}
	if s.Builder == nil {
		return errNone("builds of templates by steps")
	}
	if q.Name == "" {
		q.Name = q.Alias
	}
	name, tag := reference(q.Name)
	if strings.Contains(q.Name, ":") && !slices.Contains(q.Tags, tag) {
		q.Tags = append(q.Tags, tag)
	}
	if len(q.Tags) == 0 {
		q.Tags = []string{defaultTag}
	}
	if !namePattern.MatchString(name) {
		return engi.Errorf(engi.Invalid, "%.80q cannot be a template's name: use lower-case letters, digits and any of . _ - /", q.Name)
	}
	if err := checkTags(q.Tags); err != nil {
		return err
	}
	if q.CPUCount < 0 || q.MemoryMB < 0 || q.FreeDisk < 0 || q.MemoryMB > 1<<30 || q.FreeDisk > 1<<30 {
		return engi.Errorf(engi.Invalid, "cpuCount, memoryMB or minFreeDiskMb is out of range")
	}
	asked := registry.Build{State: registry.BuildWaiting, Tags: q.Tags, Size: engi.Size{VCPUs: float64(q.CPUCount), Memory: q.MemoryMB << 20, Disk: q.FreeDisk << 20}}
	t, err := once(s, r, who, q, idempotency.Creation[built]{
		IDs: []string{newUUID()},
		Work: func(ids []string) (built, error) {
			b := asked
			b.ID = cmp.Or(idempotency.FirstID[string](ids), newUUID())
			return s.addBuild(r.Context(), who, name, b)
		},
		Find: func(ids []string, _ bool) (built, error) {
			t, err := s.Store.Get(r.Context(), who.viewer, name)
			if err == nil && t.Build(ids[0]) == nil {
				err = errTemplate(name)
			}
			return built{t, ids[0]}, err
		},
	})
	if err != nil {
		return err
	}
	return respond(w, http.StatusAccepted, map[string]any{
		"templateID": t.ID, "buildID": t.build, "public": false, "names": []string{t.Name}, "aliases": []string{t.Name}, "tags": q.Tags,
	})
}

// A built is a template with the ID of one of its builds.
type built struct {
	registry.Template
	build string
}

// addBuild adds a build to the template with a name, which it creates if there is none.
func (s *Server) addBuild(ctx context.Context, who caller, name string, b registry.Build) (built, error) {
	s.naming.Lock()
	defer s.naming.Unlock()
	t, err := s.Store.Get(ctx, who.viewer, name)
	if missing(err) {
		t, err = registry.Template{ID: strings.ToLower(rand.Text()[:20]), Owner: who.owner, Name: name, Created: now()}, nil
	}
	if err != nil {
		return built{}, err
	}
	b.Created, b.Updated, b.Template = now(), now(), s.built(t.ID, b.ID)
	t.Updated = now()
	t.Builds = append(t.Builds, b)
	gone := t.Forget()
	if err := s.Store.Put(ctx, t); err != nil {
		return built{}, err
	}
	s.discard(ctx, t.Owner.Viewer(), gone)
	return built{t, b.ID}, nil
}

func checkTags(tags []string) error {
	if len(tags) > 50 {
		return engi.Errorf(engi.Invalid, "more than 50 tags")
	}
	for _, g := range tags {
		if !tagPattern.MatchString(g) {
			return engi.Errorf(engi.Invalid, "%.80q cannot be a tag: use letters, digits and any of . _ -", g)
		}
	}
	return nil
}

type logEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Message   string    `json:"message"`
	Step      string    `json:"step,omitempty"`
}

// maxLines is the maximum number of log lines in one response.
const maxLines = 100

// linesOf returns a page of a build's log, in both formats.
func (s *Server) linesOf(r *http.Request, build string) ([]string, []logEntry, error) {
	skip := 0
	for _, key := range []string{"logsOffset", "cursor"} {
		if text := r.URL.Query().Get(key); text != "" {
			var err error
			if skip, err = strconv.Atoi(text); err != nil || skip < 0 {
				return nil, nil, engi.Errorf(engi.Invalid, "%s %.20q is not a number", key, text)
			}
		}
	}
	lines, err := s.Store.Lines(r.Context(), build, skip, maxLines)
	if err != nil {
		return nil, nil, err
	}
	texts, entries := make([]string, len(lines)), make([]logEntry, len(lines))
	for i, l := range lines {
		texts[i], entries[i] = l.Text, logEntry{l.Time, l.Level, l.Text, l.Step}
	}
	return texts, entries, nil
}

func (s *Server) findBuild(r *http.Request, who caller) (registry.Template, *registry.Build, error) {
	t, err := s.ours(r.Context(), who, r.PathValue("id"))
	if err != nil {
		return t, nil, err
	}
	b := t.Build(r.PathValue("build"))
	if b == nil {
		return t, nil, engi.Errorf(engi.NotFound, "build %.40q not found", r.PathValue("build"))
	}
	return t, b, nil
}

func (s *Server) buildStatus(w http.ResponseWriter, r *http.Request, who caller) error {
	t, b, err := s.findBuild(r, who)
	if err != nil {
		return err
	}
	texts, entries, err := s.linesOf(r, b.ID)
	if err != nil {
		return err
	}
	v := map[string]any{"templateID": t.ID, "buildID": b.ID, "status": b.State, "logs": texts, "logEntries": entries}
	if b.State == registry.BuildFailed {
		reason := map[string]any{"message": b.Reason, "logEntries": []logEntry{}}
		if b.Step != "" {
			reason["step"] = b.Step
		}
		v["reason"] = reason
	}
	return respond(w, http.StatusOK, v)
}

func (s *Server) buildLogs(w http.ResponseWriter, r *http.Request, who caller) error {
	_, b, err := s.findBuild(r, who)
	if err != nil {
		return err
	}
	_, entries, err := s.linesOf(r, b.ID)
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, map[string]any{"logs": entries})
}

// view returns a template in the form of lists.
func view(t registry.Template) map[string]any {
	v := map[string]any{
		"templateID": t.ID, "buildID": "", "cpuCount": 1, "memoryMB": 0, "diskSizeMB": 0, "public": false,
		"aliases": []string{t.Name}, "names": []string{t.Name}, "createdAt": t.Created, "updatedAt": t.Updated,
		"createdBy": nil, "lastSpawnedAt": nil, "spawnCount": 0, "buildCount": len(t.Builds), "envdVersion": EnvdVersion, "buildStatus": registry.BuildWaiting,
	}
	if len(t.Builds) > 0 {
		v["buildStatus"] = t.Builds[len(t.Builds)-1].State
	}
	if b := t.Latest(); b != nil {
		v["buildID"], v["cpuCount"], v["memoryMB"], v["diskSizeMB"] = b.ID, cpus(b.Size.VCPUs), b.Size.Memory>>20, b.Size.Disk>>20
	}
	return v
}

// builtIn returns one of the node's templates in the form of lists.
func builtIn(t engi.Template) map[string]any {
	return map[string]any{
		"templateID": t.Name, "buildID": "00000000-0000-4000-8000-000000000000", "cpuCount": cpus(t.Size.VCPUs), "memoryMB": t.Size.Memory >> 20,
		"diskSizeMB": t.Size.Disk >> 20, "public": true, "aliases": []string{t.Name}, "names": []string{t.Name}, "createdAt": t.Built, "updatedAt": t.Built,
		"createdBy": nil, "lastSpawnedAt": nil, "spawnCount": 0, "buildCount": 1, "envdVersion": EnvdVersion, "buildStatus": registry.BuildReady, "isDefault": true,
	}
}

func (s *Server) listTemplates(w http.ResponseWriter, r *http.Request, who caller) error {
	all, err := s.Store.List(r.Context(), who.viewer)
	if err != nil {
		return err
	}
	if all, err = paginate(w, r, all, func(t registry.Template) string { return t.ID }); err != nil {
		return err
	}
	list := make([]map[string]any, len(all))
	for i, t := range all {
		list[i] = view(t)
	}
	return respond(w, http.StatusOK, list)
}

func (s *Server) getTemplate(w http.ResponseWriter, r *http.Request, who caller) error {
	t, err := s.ours(r.Context(), who, r.PathValue("id"))
	if err != nil {
		return err
	}
	v := view(t)
	builds := make([]map[string]any, len(t.Builds))
	for i, b := range t.Builds {
		builds[i] = map[string]any{"buildID": b.ID, "status": b.State, "createdAt": b.Created, "updatedAt": b.Updated,
			"cpuCount": cpus(b.Size.VCPUs), "memoryMB": b.Size.Memory >> 20, "envdVersion": EnvdVersion}
		if b.State == registry.BuildReady || b.State == registry.BuildFailed {
			builds[i]["finishedAt"] = b.Updated
		}
	}
	v["builds"] = builds
	return respond(w, http.StatusOK, v)
}

// patchTemplate refuses to publish a template, which engi does not support.
func (s *Server) patchTemplate(w http.ResponseWriter, r *http.Request, who caller) error {
	var q struct {
		Public bool `json:"public"`
	}
	if err := body(w, r, &q); err != nil {
		return err
	}
	t, err := s.ours(r.Context(), who, r.PathValue("id"))
	if err != nil {
		return err
	}
	if q.Public {
		return engi.Errorf(engi.Unsupported, "templates cannot be public").WithRemedy("to share a template with all owners, build it from YAML with 'engi template build'")
	}
	return respond(w, http.StatusOK, map[string]any{"names": []string{t.Name}})
}

// alias responds with the template of a name, which is the caller's or the node's.
func (s *Server) alias(w http.ResponseWriter, r *http.Request, who caller, ref string) error {
	t, err := s.ours(r.Context(), who, ref)
	if err == nil && (t.Latest() == nil || strings.Contains(ref, ":") && t.Tagged(ref[strings.Index(ref, ":")+1:]) == nil) {
		return errTemplate(ref)
	}
	if err == nil {
		return respond(w, http.StatusOK, map[string]any{"templateID": t.ID, "public": false})
	}
	if !missing(err) {
		return err
	}
	name, tag := reference(ref)
	b, err := s.Templates.Get(r.Context(), name)
	if err != nil || b.Owner != "" || tag != defaultTag {
		return errTemplate(ref)
	}
	return respond(w, http.StatusOK, map[string]any{"templateID": name, "public": true})
}

func (s *Server) tags(w http.ResponseWriter, r *http.Request, who caller, id string) error {
	t, err := s.ours(r.Context(), who, id)
	if err != nil {
		return err
	}
	list := []map[string]any{}
	for _, g := range t.Tags {
		list = append(list, map[string]any{"tag": g.Name, "buildID": g.Build, "createdAt": g.Created})
	}
	return respond(w, http.StatusOK, list)
}

func (s *Server) assignTags(w http.ResponseWriter, r *http.Request, who caller) error {
	var q struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := body(w, r, &q); err != nil {
		return err
	}
	if len(q.Tags) == 0 {
		return engi.Errorf(engi.Invalid, "the tags are missing")
	}
	if err := checkTags(q.Tags); err != nil {
		return err
	}
	name, tag := reference(q.Target)
	build := ""
	_, err := s.change(r.Context(), who.viewer, name, func(t *registry.Template) error {
		b := t.Tagged(tag)
		if b == nil {
			return errTemplate(q.Target)
		}
		build = b.ID
		t.Tag(q.Tags, b.ID, now())
		return nil
	})
	if missing(err) {
		return errTemplate(q.Target)
	}
	if err != nil {
		return err
	}
	return respond(w, http.StatusCreated, map[string]any{"buildID": build, "tags": q.Tags})
}

func (s *Server) removeTags(w http.ResponseWriter, r *http.Request, who caller) error {
	var q struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := body(w, r, &q); err != nil {
		return err
	}
	name, _ := reference(q.Name)
	_, err := s.change(r.Context(), who.viewer, name, func(t *registry.Template) error {
		for _, g := range q.Tags {
			if t.Tagged(g) == nil {
				return engi.Errorf(engi.NotFound, "tag %.80q not found", g)
			}
		}
		t.Untag(q.Tags)
		return nil
	})
	if err != nil {
		return err
	}
	return respond(w, http.StatusNoContent, nil)
}

// removeTemplate deletes a template, or a snapshot, which clients treat alike.
func (s *Server) removeTemplate(w http.ResponseWriter, r *http.Request, who caller) error {
	ref := r.PathValue("id")
	t, err := s.ours(r.Context(), who, ref)
	if missing(err) && s.Snapshots != nil {
		id := strings.TrimSuffix(ref, ":"+defaultTag)
		p, perr := s.Snapshots.Get(r.Context(), who.viewer, id)
		if perr == nil && !strings.HasPrefix(p.Name, buildSnapshots) {
			return done(w, s.Snapshots.Remove(r.Context(), who.viewer, id))
		}
	}
	if err != nil {
		return err
	}
	s.naming.Lock()
	defer s.naming.Unlock()
	s.mu.Lock()
	for _, b := range t.Builds {
		if cancel := s.builds[b.ID]; cancel != nil {
			cancel()
		}
	}
	s.mu.Unlock()
	if err := s.Store.Remove(r.Context(), t.ID); err != nil {
		return err
	}
	s.discard(r.Context(), t.Owner.Viewer(), t.Builds)
	return respond(w, http.StatusNoContent, nil)
}

// discard deletes the results of builds that are not in use; sweepTemplates deletes
// the others later.
func (s *Server) discard(ctx context.Context, viewer engi.Viewer, builds []registry.Build) {
	for _, b := range builds {
		if b.Snapshot != "" && s.Snapshots != nil {
			if err := s.Snapshots.Remove(ctx, viewer, string(b.Snapshot)); err != nil && !missing(err) {
				s.Log.Warn("remove the snapshot of a template", "snapshot", b.Snapshot, "error", err)
			}
		}
		if err := s.Templates.Remove(ctx, b.Template); err != nil && !missing(err) && !engi.Is(err, engi.Conflict) {
			s.Log.Warn("remove a build", "template", b.Template, "error", err)
		}
	}
}

// sweepTemplates deletes the results of this node's builds that failed or have no record, including
// results that could not be deleted while sandboxes used them.
func (s *Server) sweepTemplates(ctx context.Context) error {
	all, err := s.Templates.List(ctx)
	if err != nil {
		return err
	}
	// Read the records after the list of templates: a build is recorded before it creates one.
	known, err := s.Store.List(ctx, engi.Everyone)
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, t := range known {
		for _, b := range t.Builds {
			used[b.Template] = b.State != registry.BuildFailed
		}
	}
	for _, t := range all {
		if strings.HasPrefix(t.Name, s.builtPrefix()) && !used[t.Name] {
			s.discard(ctx, t.Owner.Viewer(), []registry.Build{{Template: t.Name}})
		}
	}
	return nil
}

// change loads a template, changes it with f and stores it.
func (s *Server) change(ctx context.Context, viewer engi.Viewer, idOrName string, f func(*registry.Template) error) (registry.Template, error) {
	s.naming.Lock()
	defer s.naming.Unlock()
	t, err := s.Store.Get(ctx, viewer, idOrName)
	if err != nil {
		return t, err
	}
	if err := f(&t); err != nil {
		return t, err
	}
	t.Updated = now()
	return t, s.Store.Put(ctx, t)
}

// now returns the time with the precision of stores.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
