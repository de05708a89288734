package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
)

// registryPromises tests a [registry.Store]; open returns an empty one.
func registryPromises(t *testing.T, open func(*testing.T) registry.Store) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	one := registry.Template{ID: "one", Owner: "ann", Name: "app", Created: at, Updated: at,
		Builds: []registry.Build{{ID: "b1", State: registry.BuildReady, Template: "e2b-one-1", Snapshot: "snp_x", Tags: []string{"default"},
			Size: engi.Size{VCPUs: 2, Memory: 1 << 20}, Created: at, Updated: at}, {ID: "b2", State: registry.BuildFailed, Reason: "why", Step: "3", Created: at, Updated: at}},
		Tags: []registry.Tag{{Name: "default", Build: "b1", Created: at}}}
	two := registry.Template{ID: "two", Owner: "ben", Name: "app", Created: at, Updated: at}
	put := func(t *testing.T, s registry.Store, all ...registry.Template) {
		t.Helper()
		for _, v := range all {
			if err := s.Put(t.Context(), v); err != nil {
				t.Fatal(err)
			}
		}
	}
	kind := func(t *testing.T, err error, want engi.Kind) {
		t.Helper()
		if !engi.Is(err, want) {
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
			if d := cmp.Diff(one, got); d != "" {
				t.Errorf("%s: %s", ref, d)
			}
		}
		changed := one
		changed.Name, changed.Builds = "other", changed.Builds[:1]
		put(t, s, changed)
		got, err := s.Get(t.Context(), engi.Everyone, "one")
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
		if got, err := s.Get(t.Context(), engi.Everyone, "two"); err != nil || got.Owner != "ben" {
			t.Errorf("got %+v, %v", got, err)
		}
		put(t, s, registry.Template{ID: "zzz", Name: "app"})
		if got, err := s.Get(t.Context(), engi.Everyone, "app"); err != nil || got.ID != "zzz" {
			t.Errorf("the node's own comes first: got %+v, %v", got, err)
		}
		for viewer, want := range map[engi.Viewer]int{"ann": 1, "ben": 1, "cleo": 0, "": 1, engi.Everyone: 3} {
			if list, err := s.List(t.Context(), viewer); err != nil || len(list) != want {
				t.Errorf("%q has %d templates, want %d (%v)", viewer, len(list), want, err)
			}
		}
		kind(t, s.Put(t.Context(), registry.Template{ID: "three", Owner: "ann", Name: "app"}), engi.Conflict)
	})
	t.Run("an ID goes before a name", func(t *testing.T) {
		s := open(t)
		put(t, s, registry.Template{ID: "a", Owner: "aaa", Name: "one"}, registry.Template{ID: "b", Name: "one"}, one, registry.Template{ID: "c", Owner: "ann", Name: "one"})
		for _, viewer := range []engi.Viewer{engi.Everyone, "ann"} {
			if got, err := s.Get(t.Context(), viewer, "one"); err != nil || got.ID != "one" {
				t.Errorf("%q gets %+v, %v", viewer, got, err)
			}
		}
		if got, err := s.Get(t.Context(), "aaa", "one"); err != nil || got.ID != "a" {
			t.Errorf("by its name, an owner's own: got %+v, %v", got, err)
		}
	})
	t.Run("logs", func(t *testing.T) {
		s := open(t)
		put(t, s, one)
		var want []registry.LogLine
		for i := range 7 {
			want = append(want, registry.LogLine{Time: at.Add(time.Duration(i) * time.Second), Level: "info", Step: "1", Text: fmt.Sprintf("line %d ä", i)})
		}
		for _, part := range [][]registry.LogLine{want[:3], want[3:]} {
			if err := s.AddLines(t.Context(), "one", "b1", part); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct{ skip, limit, from, to int }{{0, 100, 0, 7}, {2, 3, 2, 5}, {5, 3, 5, 7}, {7, 3, 7, 7}, {99, 1, 7, 7}} {
			got, err := s.Lines(t.Context(), "b1", c.skip, c.limit)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want[c.from:c.to], got[:len(got):len(got)]); d != "" && len(got)+c.to-c.from > 0 {
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
		if err := s.AddLines(t.Context(), "one", "b1", []registry.LogLine{{Time: at, Text: "x"}}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Remove(t.Context(), "one"); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.Get(t.Context(), engi.Everyone, "one")
		kind(t, err, engi.NotFound)
		if got, err := s.Lines(t.Context(), "b1", 0, 10); err != nil || len(got) != 0 {
			t.Errorf("a removed template has %d lines (%v)", len(got), err)
		}
		if err := s.AddLines(t.Context(), "one", "b1", []registry.LogLine{{Time: at, Text: "x"}}); err == nil {
			t.Error("a removed template takes lines")
		}
	})
}
