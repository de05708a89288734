// Package e2btest holds the promises of [e2b.Store] as tests, and a store in
// memory that keeps them. It is not for running servers: what it holds dies
// with the process.
package e2btest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/compat/e2b"
)

// Memory is an e2b.Store in memory. The zero value is empty. It is safe for
// concurrent use.
type Memory struct {
	mu    sync.Mutex
	all   map[string]e2b.Template
	lines map[string]map[string][]e2b.LogLine // by template, then build
}

var _ e2b.Store = (*Memory)(nil)

func clone(t e2b.Template) e2b.Template {
	t.Builds, t.Tags = slices.Clone(t.Builds), slices.Clone(t.Tags)
	return t
}

// Put stores a template.
func (m *Memory) Put(ctx context.Context, t e2b.Template) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, other := range m.all {
		if other.ID != t.ID && other.Owner == t.Owner && other.Name == t.Name {
			return engi.Errorf(engi.Conflict, "there is a template %q", t.Name)
		}
	}
	if m.all == nil {
		m.all, m.lines = map[string]e2b.Template{}, map[string]map[string][]e2b.LogLine{}
	}
	m.all[t.ID] = clone(t)
	for build := range m.lines[t.ID] {
		if !slices.ContainsFunc(t.Builds, func(b e2b.Build) bool { return b.ID == build }) {
			delete(m.lines[t.ID], build)
		}
	}
	return nil
}

// Get returns a template by ID or name.
func (m *Memory) Get(ctx context.Context, owner engi.Owner, idOrName string) (e2b.Template, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []e2b.Template
	for _, t := range m.all {
		if (owner == "" || t.Owner == owner) && (t.ID == idOrName || t.Name == idOrName) {
			found = append(found, t)
		}
	}
	if len(found) == 0 {
		return e2b.Template{}, engi.Errorf(engi.NotFound, "no such template")
	}
	return clone(slices.MinFunc(found, func(a, b e2b.Template) int { return cmp.Compare(a.Owner, b.Owner) })), nil
}

// List returns templates by name.
func (m *Memory) List(ctx context.Context, owner engi.Owner) ([]e2b.Template, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []e2b.Template
	for _, t := range m.all {
		if owner == "" || t.Owner == owner {
			list = append(list, clone(t))
		}
	}
	slices.SortFunc(list, func(a, b e2b.Template) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return list, nil
}

// Remove deletes a template.
func (m *Memory) Remove(ctx context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, id)
	delete(m.lines, id)
	return nil
}

// AddLines appends to a build's log.
func (m *Memory) AddLines(ctx context.Context, template, build string, lines []e2b.LogLine) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.all[template]; !ok {
		return engi.Errorf(engi.NotFound, "no such template")
	}
	if m.lines[template] == nil {
		m.lines[template] = map[string][]e2b.LogLine{}
	}
	m.lines[template][build] = append(m.lines[template][build], lines...)
	return nil
}

// Lines returns a part of a build's log.
func (m *Memory) Lines(ctx context.Context, build string, skip, limit int) ([]e2b.LogLine, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, builds := range m.lines {
		if all := builds[build]; all != nil {
			all = all[min(skip, len(all)):]
			return slices.Clone(all[:min(limit, len(all))]), nil
		}
	}
	return nil, nil
}

// Run holds a store to its promises; open returns an empty one.
func Run(t *testing.T, open func(*testing.T) e2b.Store) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	one := e2b.Template{ID: "one", Owner: "ann", Name: "app", Created: at, Updated: at,
		Builds: []e2b.Build{{ID: "b1", State: e2b.BuildReady, Template: "e2b-one-1", Snapshot: "snp_x", Tags: []string{"default"},
			Size: engi.Size{VCPUs: 2, Memory: 1 << 20}, Created: at, Updated: at}, {ID: "b2", State: e2b.BuildFailed, Reason: "why", Step: "3", Created: at, Updated: at}},
		Tags: []e2b.Tag{{Name: "default", Build: "b1", Created: at}}}
	two := e2b.Template{ID: "two", Owner: "ben", Name: "app", Created: at, Updated: at}
	put := func(t *testing.T, s e2b.Store, all ...e2b.Template) {
		t.Helper()
		for _, v := range all {
			if err := s.Put(t.Context(), v); err != nil {
				t.Fatal(err)
			}
		}
	}
	kind := func(t *testing.T, err error, want engi.Kind) {
		t.Helper()
		if err == nil || engi.KindOf(err) != want {
			t.Fatalf("error %v, want kind %s", err, want)
		}
	}

	t.Run("comes back as it went", func(t *testing.T) {
		s := open(t)
		put(t, s, one, two)
		for _, ref := range []string{"one", "app"} {
			got, err := s.Get(t.Context(), "ann", ref)
			if err != nil {
				t.Fatal(err)
			}
			if d := gocmp.Diff(one, got); d != "" {
				t.Errorf("%s: %s", ref, d)
			}
		}
		changed := one
		changed.Name, changed.Builds = "other", changed.Builds[:1]
		put(t, s, changed)
		got, err := s.Get(t.Context(), "", "one")
		if err != nil || got.Name != "other" || len(got.Builds) != 1 {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	t.Run("owners", func(t *testing.T) {
		s := open(t)
		put(t, s, one, two)
		_, err := s.Get(t.Context(), "ben", "one")
		kind(t, err, engi.NotFound)
		_, err = s.Get(t.Context(), "cleo", "app")
		kind(t, err, engi.NotFound)
		if got, err := s.Get(t.Context(), "", "two"); err != nil || got.Owner != "ben" {
			t.Errorf("got %+v, %v", got, err)
		}
		put(t, s, e2b.Template{ID: "zzz", Name: "app"})
		if got, err := s.Get(t.Context(), "", "app"); err != nil || got.ID != "zzz" {
			t.Errorf("the node's own comes first: got %+v, %v", got, err)
		}
		for owner, want := range map[engi.Owner]int{"ann": 1, "ben": 1, "cleo": 0, "": 3} {
			if list, err := s.List(t.Context(), owner); err != nil || len(list) != want {
				t.Errorf("%q has %d templates, want %d (%v)", owner, len(list), want, err)
			}
		}
		kind(t, s.Put(t.Context(), e2b.Template{ID: "three", Owner: "ann", Name: "app"}), engi.Conflict)
	})
	t.Run("logs", func(t *testing.T) {
		s := open(t)
		put(t, s, one)
		var want []e2b.LogLine
		for i := range 7 {
			want = append(want, e2b.LogLine{Time: at.Add(time.Duration(i) * time.Second), Level: "info", Step: "1", Text: fmt.Sprintf("line %d ä", i)})
		}
		for _, part := range [][]e2b.LogLine{want[:3], want[3:]} {
			if err := s.AddLines(t.Context(), "one", "b1", part); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct{ skip, limit, from, to int }{{0, 100, 0, 7}, {2, 3, 2, 5}, {5, 3, 5, 7}, {7, 3, 7, 7}, {99, 1, 7, 7}} {
			got, err := s.Lines(t.Context(), "b1", c.skip, c.limit)
			if err != nil {
				t.Fatal(err)
			}
			if d := gocmp.Diff(want[c.from:c.to], got[:len(got):len(got)]); d != "" && len(got)+c.to-c.from > 0 {
				t.Errorf("skip %d limit %d: %s", c.skip, c.limit, d)
			}
		}
		fewer := one
		fewer.Builds = fewer.Builds[1:]
		put(t, s, fewer)
		if got, err := s.Lines(t.Context(), "b1", 0, 10); err != nil || len(got) != 0 {
			t.Errorf("a forgotten build has %d lines (%v)", len(got), err)
		}
	})
	t.Run("removal", func(t *testing.T) {
		s := open(t)
		put(t, s, one)
		if err := s.AddLines(t.Context(), "one", "b1", []e2b.LogLine{{Time: at, Text: "x"}}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Remove(t.Context(), "one"); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.Get(t.Context(), "", "one")
		kind(t, err, engi.NotFound)
		if got, err := s.Lines(t.Context(), "b1", 0, 10); err != nil || len(got) != 0 {
			t.Errorf("a removed template has %d lines (%v)", len(got), err)
		}
		if err := s.AddLines(t.Context(), "one", "b1", []e2b.LogLine{{Time: at, Text: "x"}}); err == nil {
			t.Error("a removed template takes lines")
		}
	})
}
