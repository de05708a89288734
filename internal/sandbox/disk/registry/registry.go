// Package registry manages the records of templates that are built under a name: their
// builds, the tags that point at builds, and the logs of builds. Package store
// implements [Store].
package registry

import (
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Template is a name with builds, and tags that point at some of the builds. The result
// of a build is an [engi.Template], or a snapshot.
type Template struct {
	ID      string // ID of 20 letters and digits
	Owner   engi.Owner
	Name    string // name, unique for each owner
	Created time.Time
	Updated time.Time
	Builds  []Build // oldest first
	Tags    []Tag
}

// A Build is one attempt to build a template.
type Build struct {
	ID       string // ID in the form of a UUID, because E2B's clients require it
	State    BuildState
	Template string          // name of the resulting [engi.Template]; unique to this build
	Snapshot engi.SnapshotID // sandboxes start from this snapshot; empty if they start from Template
	Tags     []string        // the build gets these tags once it is ready
	Size     engi.Size
	Reason   string // cause of the failure; empty unless the build failed
	Step     string // failed step; empty if none failed
	Created  time.Time
	Updated  time.Time
}

// A BuildState is the state of a build.
type BuildState string

const (
	BuildWaiting  BuildState = "waiting" // its steps have not been sent
	BuildBuilding BuildState = "building"
	BuildReady    BuildState = "ready"
	BuildFailed   BuildState = "error"
)

// A Tag is a name of a build.
type Tag struct {
	Name    string
	Build   string
	Created time.Time
}

// A LogLine is one line of a build's log.
type LogLine struct {
	Time  time.Time
	Level string // debug, info, warn or error
	Step  string // may be empty
	Text  string
}

// A Store keeps templates and logs of builds. It is safe for concurrent use.
//
//  1. Put stores a new or changed template. It reports Conflict if another template of its owner
//     has the name. It deletes the logs of builds that were removed.
//  2. Get returns a template that viewer sees by ID or name, or reports NotFound. A template
//     with this ID takes precedence over one with this name. For Everyone, the node's template
//     of a name takes precedence.
//  3. List returns the templates that viewer sees, by name.
//  4. Remove deletes a template and its logs, if it exists.
//  5. AddLines appends to a build's log; Lines returns up to limit lines that
//     follow the first skip lines, in order.
type Store interface {
	Put(ctx context.Context, t Template) error
	Get(ctx context.Context, viewer engi.Viewer, idOrName string) (Template, error)
	List(ctx context.Context, viewer engi.Viewer) ([]Template, error)
	Remove(ctx context.Context, id string) error
	AddLines(ctx context.Context, template, build string, lines []LogLine) error
	Lines(ctx context.Context, build string, skip, limit int) ([]LogLine, error)
}

// Build returns the build with an ID, or nil.
func (t *Template) Build(id string) *Build {
	for i := range t.Builds {
		if t.Builds[i].ID == id {
			return &t.Builds[i]
		}
	}
	return nil
}

// Tagged returns the build that a tag points at, or nil.
func (t *Template) Tagged(tag string) *Build {
	for _, g := range t.Tags {
		if g.Name == tag {
			return t.Build(g.Build)
		}
	}
	return nil
}

// Latest returns the newest build that is ready, or nil.
func (t *Template) Latest() *Build {
	for i := range slices.Backward(t.Builds) {
		if t.Builds[i].State == BuildReady {
			return &t.Builds[i]
		}
	}
	return nil
}

// Tag points tags at a build.
func (t *Template) Tag(names []string, build string, now time.Time) {
	for _, n := range names {
		t.Untag([]string{n})
		t.Tags = append(t.Tags, Tag{n, build, now})
	}
}

// Untag removes tags.
func (t *Template) Untag(names []string) {
	t.Tags = slices.DeleteFunc(t.Tags, func(g Tag) bool { return slices.Contains(names, g.Name) })
}

// keepBuilds is the number of builds without tags that a template keeps.
const keepBuilds = 10

// Forget removes old builds without tags, and returns them.
func (t *Template) Forget() (gone []Build) {
	free := 0
	for i := range slices.Backward(t.Builds) {
		b := &t.Builds[i]
		if b.State == BuildBuilding || slices.ContainsFunc(t.Tags, func(g Tag) bool { return g.Build == b.ID }) {
			continue
		}
		if free++; free > keepBuilds {
			gone = append(gone, *b)
		}
	}
	t.Builds = slices.DeleteFunc(t.Builds, func(b Build) bool {
		return slices.ContainsFunc(gone, func(g Build) bool { return g.ID == b.ID })
	})
	return gone
}

// Keys of [engi.Sandbox.Notes] with the build of a sandbox.
const (
	NoteTemplate = "e2b.template" // ID of the template
	NoteBuild    = "e2b.build"    // ID of the build that uses the sandbox; owners do not see the sandbox
	NoteFrom     = "e2b.from"     // ID of the build that the sandbox began from
)

// EventNotes returns the notes that a sandbox's events carry, so that readers
// can find the sandbox's build after the sandbox is gone.
func EventNotes(notes map[string]string) map[string]string {
	var some map[string]string
	for _, name := range []string{NoteTemplate, NoteBuild, NoteFrom} {
		if v := notes[name]; v != "" {
			if some == nil {
				some = map[string]string{}
			}
			some[name] = v
		}
	}
	return some
}
