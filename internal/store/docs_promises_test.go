package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
)

func docsRecord(collection, pkg, place string) docs.Record {
	now := time.Date(2026, 11, 20, 20, 0, 0, 5, time.UTC)
	return docs.Record{
		Document: engi.Document{
			ID: engi.NewDocumentID(), Owner: "ann", Package: pkg, Title: "T " + place, URL: "https://a.example/" + place, Fetched: true, Bytes: 10, Chunks: 2,
			Digest: "d", State: engi.DocumentReady, Checked: now, Changed: now,
		},
		Collection: collection, Key: place, Configured: true, ETag: `"e"`, Modified: "yesterday",
	}
}

func docsChunks(texts ...string) []docs.Chunk {
	var list []docs.Chunk
	for i, t := range texts {
		list = append(list, docs.Chunk{
			Hash: t, Headings: []string{"H", t}, Anchor: "a", Text: t, Identifiers: "some parts", Embedder: "e", Vector: []float32{float32(i), 0.5, -1},
		})
	}
	return list
}

// docsPromises tests a [docs.Store]. fresh returns an empty one.
func docsPromises(t *testing.T, fresh func(t *testing.T) docs.Store) {
	put := func(t *testing.T, s docs.Store, r docs.Record, ps []docs.Chunk) docs.Record {
		t.Helper()
		r, err := s.Put(t.Context(), r, ps, docs.Quota{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	match := func(t *testing.T, s docs.Store, q docs.Query) []int64 {
		t.Helper()
		if q.Limit == 0 {
			q.Limit = 10
		}
		ids, err := s.Match(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}

	t.Run("what is put is got", func(t *testing.T) {
		s := fresh(t)
		r := docsRecord("d:ann", "p", "x")
		r.Error = engi.Errorf(engi.Unavailable, "no").WithRemedy("wait")
		module := docsRecord("s:1", "", "lib/a.ts")
		module.Imports = []string{"p"}
		module.Module = &engi.CodeModule{
			Path: "lib/a.ts", Description: "d", Exports: []string{"a"}, Usage: "u", Scope: engi.ModuleUser, Source: "s", Session: engi.NewSessionID(), Saved: r.Checked,
		}
		ps := docsChunks("one", "two")
		put(t, s, r, ps)
		put(t, s, module, nil)
		got, err := s.Records(t.Context(), docs.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		same := cmp.Transformer("error", func(e *engi.Error) string {
			if e == nil {
				return ""
			}
			return e.Kind.String() + e.Text + e.Remedy
		})
		if diff := cmp.Diff([]docs.Record{module, r}, got, same); diff != "" {
			t.Error(diff)
		}
		if ps[0].ID == 0 || ps[0].ID == ps[1].ID || ps[1].Document != r.ID {
			t.Errorf("%+v", ps)
		}
		found, err := s.Chunks(t.Context(), []int64{ps[0].ID, 12345})
		if err != nil {
			t.Fatal(err)
		}
		want := ps[0]
		want.Vector, want.Identifiers = nil, ""
		if diff := cmp.Diff([]docs.Chunk{want}, found); diff != "" {
			t.Error(diff)
		}
		vectors, err := s.Vectors(t.Context(), "d:ann", "")
		if err != nil {
			t.Fatal(err)
		}
		if len(vectors) != 2 || !cmp.Equal(vectors[1].Vector, ps[1].Vector) || vectors[1].Embedder != "e" || vectors[1].Hash != "two" {
			t.Errorf("%+v", vectors)
		}
	})

	t.Run("records are filtered", func(t *testing.T) {
		s := fresh(t)
		a, b, m := put(t, s, docsRecord("d:ann", "p", "x"), nil), put(t, s, docsRecord("d:", "q", "x"), nil), docsRecord("u:ann", "", "x")
		m.Module = &engi.CodeModule{Path: "x"}
		m = put(t, s, m, nil)
		for name, c := range map[string]struct {
			f    docs.Filter
			want []engi.DocumentID
		}{
			"all":           {docs.Filter{}, []engi.DocumentID{m.ID, a.ID, b.ID}},
			"documents":     {docs.Filter{Documents: true}, []engi.DocumentID{a.ID, b.ID}},
			"collection":    {docs.Filter{Collections: []string{"d:", "u:ann"}}, []engi.DocumentID{m.ID, b.ID}},
			"no collection": {docs.Filter{Collections: []string{}}, nil},
			"ID":            {docs.Filter{IDs: []engi.DocumentID{a.ID, "doc_none"}}, []engi.DocumentID{a.ID}},
			"other's":       {docs.Filter{IDs: []engi.DocumentID{a.ID}, Collections: []string{"d:"}}, nil},
			"place":         {docs.Filter{Key: "x", Package: "q"}, []engi.DocumentID{b.ID}},
		} {
			got, err := s.Records(t.Context(), c.f)
			if err != nil {
				t.Fatal(err)
			}
			var ids []engi.DocumentID
			for _, r := range got {
				ids = append(ids, r.ID)
			}
			if diff := cmp.Diff(c.want, ids); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	})

	t.Run("a key is unique", func(t *testing.T) {
		s := fresh(t)
		first := put(t, s, docsRecord("d:ann", "p", "x"), docsChunks("apple", "pear"))
		next := docsRecord("d:ann", "p", "x")
		second := put(t, s, next, nil)
		if second.ID != first.ID {
			t.Errorf("ID %s, then %s", first.ID, second.ID)
		}
		if ids := match(t, s, docs.Query{Collections: []string{"d:ann"}, Words: []string{"apple"}}); len(ids) != 1 {
			t.Errorf("a record without chunks took them away: %v", ids)
		}
		put(t, s, docsRecord("d:ann", "p", "x"), docsChunks("plum"))
		for word, n := range map[string]int{"apple": 0, "pear": 0, "plum": 1} {
			if ids := match(t, s, docs.Query{Collections: []string{"d:ann"}, Words: []string{word}}); len(ids) != n {
				t.Errorf("%s: %v", word, ids)
			}
		}
		put(t, s, docsRecord("d:ann", "p", "x"), []docs.Chunk{})
		if v, err := s.Vectors(t.Context(), "d:ann", ""); err != nil || len(v) != 0 {
			t.Errorf("%v, %v", v, err)
		}
	})

	t.Run("quotas are enforced", func(t *testing.T) {
		s := fresh(t)
		q := docs.Quota{Documents: 2, Bytes: 25}
		for _, place := range []string{"a", "b", "a"} {
			if _, err := s.Put(t.Context(), docsRecord("d:ann", "", place), nil, q); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Put(t.Context(), docsRecord("d:ann", "", "c"), nil, q); !engi.Is(err, engi.Exhausted) {
			t.Errorf("too many: %v", err)
		}
		big := docsRecord("d:ann", "", "b")
		big.Bytes = 16
		if _, err := s.Put(t.Context(), big, nil, q); !engi.Is(err, engi.Exhausted) {
			t.Errorf("too much: %v", err)
		}
		if _, err := s.Put(t.Context(), docsRecord("d:bob", "", "c"), nil, q); err != nil {
			t.Errorf("another collection: %v", err)
		}
	})

	t.Run("words match in the given collections", func(t *testing.T) {
		s := fresh(t)
		a := docsChunks("Calling createIssue makes an issue", "nothing of the kind")
		a[0].Identifiers = "create issue"
		put(t, s, docsRecord("d:ann", "@linear/sdk", "x"), a)
		b, c, m := docsChunks("issues of snake_case_names"), docsChunks("an issue of a session"), docsChunks("a module of issues")
		put(t, s, docsRecord("d:", "other", "y"), b)
		put(t, s, docsRecord("s:1", "", "z"), c)
		module := docsRecord("u:ann", "", "lib/x.ts")
		module.Imports, module.Module = []string{"other"}, &engi.CodeModule{Path: "lib/x.ts"}
		put(t, s, module, m)
		for name, want := range map[string]struct {
			q    docs.Query
			want []int64
		}{
			"own":              {docs.Query{Collections: []string{"d:ann"}, Words: []string{"issue"}}, []int64{a[0].ID}},
			"everywhere":       {docs.Query{Collections: []string{docs.Everywhere}, Words: []string{"issues"}}, []int64{a[0].ID, b[0].ID, m[0].ID}},
			"with a session":   {docs.Query{Collections: []string{docs.Everywhere, "s:1"}, Words: []string{"issues"}}, []int64{a[0].ID, b[0].ID, c[0].ID, m[0].ID}},
			"of a package":     {docs.Query{Collections: []string{"d:ann", "d:", "u:ann"}, Package: "other", Words: []string{"issues"}}, []int64{b[0].ID, m[0].ID}},
			"nowhere":          {docs.Query{Words: []string{"issues"}}, nil},
			"no words":         {docs.Query{Collections: []string{docs.Everywhere}}, nil},
			"an identifier":    {docs.Query{Collections: []string{docs.Everywhere}, Words: []string{"CreateIssue"}}, []int64{a[0].ID}},
			"with underscores": {docs.Query{Collections: []string{docs.Everywhere}, Words: []string{"snake_case_names"}}, []int64{b[0].ID}},
			"syntax":           {docs.Query{Collections: []string{docs.Everywhere}, Words: []string{`" OR *`, "NEAR(", "a:b", "-", "\x00", "^", `""`, "{places}"}}, nil},
			"one":              {docs.Query{Collections: []string{"d:ann", "d:"}, Words: []string{"issue", "snake_case_names"}, Limit: 1}, []int64{b[0].ID}},
		} {
			got := map[int64]bool{}
			for _, id := range match(t, s, want.q) {
				got[id] = true
			}
			expected := map[int64]bool{}
			for _, id := range want.want {
				expected[id] = true
			}
			if diff := cmp.Diff(expected, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	})

	t.Run("removed records are not found", func(t *testing.T) {
		s := fresh(t)
		one, two := docsChunks("alpha"), docsChunks("alpha")
		a, b := put(t, s, docsRecord("d:ann", "", "x"), one), put(t, s, docsRecord("d:ann", "", "y"), two)
		put(t, s, docsRecord("s:1", "", "z"), docsChunks("alpha"))
		if err := s.Remove(t.Context(), "d:bob", []engi.DocumentID{a.ID}); err != nil {
			t.Fatal(err)
		}
		if err := s.Remove(t.Context(), "d:ann", []engi.DocumentID{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Remove(t.Context(), "d:ann", []engi.DocumentID{a.ID}); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Records(t.Context(), docs.Filter{Collections: []string{"d:ann"}}); err != nil || len(got) != 1 || got[0].ID != b.ID {
			t.Errorf("%v, %v", got, err)
		}
		if ids := match(t, s, docs.Query{Collections: []string{"d:ann", "s:1"}, Words: []string{"alpha"}}); len(ids) != 2 {
			t.Errorf("%v", ids)
		}
		if err := s.Remove(t.Context(), "s:1", nil); err != nil {
			t.Fatal(err)
		}
		if ids := match(t, s, docs.Query{Collections: []string{"d:ann", "s:1"}, Words: []string{"alpha"}}); len(ids) != 1 || ids[0] != two[0].ID {
			t.Errorf("%v", ids)
		}
	})

	t.Run("vectors can be set later", func(t *testing.T) {
		s := fresh(t)
		ps := docsChunks("alpha")
		ps[0].Vector, ps[0].Embedder = nil, ""
		r := put(t, s, docsRecord("d:ann", "", "x"), ps)
		v, err := s.Vectors(t.Context(), "d:ann", r.ID)
		if err != nil || len(v) != 1 || v[0].Vector != nil || v[0].Embedder != "" {
			t.Errorf("%+v, %v", v, err)
		}
		if err := s.SetVectors(t.Context(), "f", map[int64][]float32{ps[0].ID: {1, 2}, 12345: {3}}); err != nil {
			t.Fatal(err)
		}
		if v, err = s.Vectors(t.Context(), "d:ann", ""); err != nil || len(v) != 1 || !cmp.Equal(v[0].Vector, []float32{1, 2}) || v[0].Embedder != "f" {
			t.Errorf("%+v, %v", v, err)
		}
	})
}
