package e2b

import (
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Template is a template of E2B: a name with builds, and tags that point at some
// of them. The result of a build is a template of engi, or a snapshot.
type Template struct {
	ID      string // 20 letters and digits
	Owner   engi.Owner
	Name    string // unique per owner
	Created time.Time
	Updated time.Time
	Builds  []Build // oldest first
	Tags    []Tag
}

// A Build is one attempt to build a template.
type Build struct {
	ID       string // a UUID, because clients require it
	State    BuildState
	Template string          // of engi; unique to this build
	Snapshot engi.SnapshotID // that sandboxes start from; empty if they start from Template
	Tags     []string        // that it gets once it is ready
	Size     engi.Size
	Reason   string // why it failed
	Step     string // that failed
	Created  time.Time
	Updated  time.Time
}

// A BuildState is the state of a build.
type BuildState string

const (
	BuildWaiting  BuildState = "waiting" // for its steps
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

// A Line is one line of a build's log.
type LogLine struct {
	Time  time.Time
	Level string // debug, info, warn or error
	Step  string // may be empty
	Text  string
}

// A Store keeps templates and logs of builds. It is safe for concurrent use.
// Package e2btest tests its promises.
//
//  1. Put stores a template, new or not; Conflict if another one of its owner
//     has the name. It deletes the logs of builds that were removed.
//  2. Get returns a template of owner's by ID or name, or NotFound; the one
//     that has the ID before one that is named like it. The empty owner may get
//     any; by name, its own before another's.
//  3. List returns the templates of owner, or everybody's if owner is empty,
//     by name.
//  4. Remove deletes a template and its logs, if it exists.
//  5. AddLines appends to a build's log; Lines returns up to limit lines that
//     follow the first skip, in order.
type Store interface {
	Put(ctx context.Context, t Template) error
	Get(ctx context.Context, owner engi.Owner, idOrName string) (Template, error)
	List(ctx context.Context, owner engi.Owner) ([]Template, error)
	Remove(ctx context.Context, id string) error
	AddLines(ctx context.Context, template, build string, lines []LogLine) error
	Lines(ctx context.Context, build string, skip, limit int) ([]LogLine, error)
}

// build returns the build with an ID, or nil.
func (t *Template) build(id string) *Build {
	for i := range t.Builds {
		if t.Builds[i].ID == id {
			return &t.Builds[i]
		}
	}
	return nil
}

// tagged returns the build that a tag points at, or nil.
func (t *Template) tagged(tag string) *Build {
	for _, g := range t.Tags {
		if g.Name == tag {
			return t.build(g.Build)
		}
	}
	return nil
}

// latest returns the newest build that is ready, or nil.
func (t *Template) latest() *Build {
	for i := range slices.Backward(t.Builds) {
		if t.Builds[i].State == BuildReady {
			return &t.Builds[i]
		}
	}
	return nil
}

// tag points names at a build.
func (t *Template) tag(names []string, build string, now time.Time) {
	for _, n := range names {
		t.untag([]string{n})
		t.Tags = append(t.Tags, Tag{n, build, now})
	}
}

func (t *Template) untag(names []string) {
	t.Tags = slices.DeleteFunc(t.Tags, func(g Tag) bool { return slices.Contains(names, g.Name) })
}

// keepBuilds is how many builds without tags a template keeps.
const keepBuilds = 10

// forget drops old builds that no tag points at and returns them.
func (t *Template) forget() (gone []Build) {
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

// change loads a template, changes it with f and stores it.
func (s *Server) change(ctx context.Context, owner engi.Owner, idOrName string, f func(*Template) error) (Template, error) {
	s.naming.Lock()
	defer s.naming.Unlock()
	t, err := s.Store.Get(ctx, owner, idOrName)
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
