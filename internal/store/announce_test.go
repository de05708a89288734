package store_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

// typesAndData are the events of a log, oldest first.
func typesAndData(t *testing.T, db *store.DB) (all []string) {
	t.Helper()
	events, err := store.Events(db).List(t.Context(), engi.Everyone, engi.EventFilter{Oldest: true, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		all = append(all, e.Type+" "+string(e.Owner)+" "+string(e.Data))
	}
	return all
}

func TestAnnounce(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	announce := func(all ...engi.Template) {
		t.Helper()
		if err := store.Announce(t.Context(), db, all); err != nil {
			t.Fatal(err)
		}
	}
	base := engi.Template{Name: "base", Digest: "sha256:1", Bytes: 7}
	announce(base, engi.Template{Name: "never built"})
	announce(base)
	base.Digest = "sha256:2"
	announce(base)
	private := engi.Template{Name: "private", Owner: "ann", Digest: "sha256:3", Bytes: 8}
	announce(base, private)
	announce(private)
	announce()
	want := []string{
		`template.built  {"bytes":7,"digest":"sha256:1","name":"base"}`, `template.built  {"bytes":7,"digest":"sha256:2","name":"base"}`,
		`template.built ann {"bytes":8,"digest":"sha256:3","name":"private"}`,
		`template.removed  {"digest":"sha256:2","name":"base"}`, `template.removed ann {"digest":"sha256:3","name":"private"}`,
	}
	if got := typesAndData(t, db); !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
}

func TestRefusals(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	r := store.NewRefusals(db)
	for range 1000 {
		r.Add("ann", "sandboxes")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx, func() {}) }()
	stop() // what was counted is not lost
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := typesAndData(t, db); len(got) != 1 || got[0] != `quota.refused ann {"count":1000,"quota":"sandboxes"}` {
		t.Errorf("%q", got)
	}
}
