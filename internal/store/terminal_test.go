package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

func TestTerminalsAndLinks(t *testing.T) {
	db := storetest.Open(t)
	s := store.Terminals(db)
	now := time.Now().UTC().Truncate(time.Millisecond)
	mine := engi.TerminalInfo{
		ID: engi.NewTerminalID(), Owner: "ann", Session: engi.NewSessionID(), Sandbox: engi.NewSandboxID(), Args: []string{"psql", "postgres://secret"}, Dir: "/x",
		Size: engi.TerminalSize{Cols: 80, Rows: 24}, Created: now,
	}
	other := mine
	other.ID, other.Owner, other.Session, other.Sandbox = engi.NewTerminalID(), "bob", "", engi.NewSandboxID()
	for _, x := range []engi.TerminalInfo{mine, other} {
		if err := s.Put(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	want := mine
	want.Args, want.Dir = []string{"psql"}, "" // arguments may have secrets in them
	got, err := s.Find(t.Context(), "ann", mine.ID)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if _, err := s.Find(t.Context(), "bob", mine.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("somebody else's: %v", err)
	}
	for what, try := range map[string]struct {
		viewer  engi.Viewer
		session engi.SessionID
		sandbox engi.SandboxID
		want    int
	}{
		"all":           {engi.Everyone, "", "", 2},
		"an owner's":    {"ann", "", "", 1},
		"a session's":   {"ann", mine.Session, "", 1},
		"a sandbox's":   {engi.Everyone, "", other.Sandbox, 1},
		"the node's":    {"", "", "", 0},
		"of the others": {"bob", mine.Session, "", 0},
	} {
		if all, err := s.List(t.Context(), try.viewer, try.session, try.sandbox); err != nil || len(all) != try.want {
			t.Errorf("%s: %v, %v", what, all, err)
		}
	}

	link := engi.TerminalLink{ID: engi.NewTerminalLinkID(), Terminal: mine.ID, Owner: "ann", Name: "guest", Write: true, Created: now, Expires: now.Add(time.Hour)}
	second := link
	second.ID = engi.NewTerminalLinkID()
	if err := s.PutLink(t.Context(), link, []byte("hash")); err != nil {
		t.Fatal(err)
	}
	if err := s.PutLink(t.Context(), second, []byte("other")); err != nil {
		t.Fatal(err)
	}
	found, err := s.FindLink(t.Context(), []byte("hash"))
	if diff := cmp.Diff(link, found); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if err := s.RemoveLink(t.Context(), other.ID, link.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("a link of another terminal: %v", err)
	}
	if err := s.RemoveLink(t.Context(), mine.ID, link.ID); err != nil {
		t.Error(err)
	}
	if all, err := s.Links(t.Context(), mine.ID); err != nil || len(all) != 1 || all[0].ID != second.ID {
		t.Errorf("%v, %v", all, err)
	}
	// A terminal goes with its links.
	for range 2 {
		if err := s.Remove(t.Context(), mine.ID, "on request"); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.FindLink(t.Context(), []byte("other")); !engi.Is(err, engi.NotFound) {
		t.Errorf("a link to what has ended: %v", err)
	}
	var types []string
	events, err := store.Events(db).List(t.Context(), "ann", engi.EventFilter{Subject: string(mine.ID)})
	for _, e := range events {
		types = append(types, e.Type)
	}
	if err != nil || !cmp.Equal(types, []string{engi.EventTerminalCreated, engi.EventTerminalShared, engi.EventTerminalShared, engi.EventTerminalUnshared, engi.EventTerminalEnded}) &&
		!cmp.Equal(types, []string{engi.EventTerminalEnded, engi.EventTerminalUnshared, engi.EventTerminalShared, engi.EventTerminalShared, engi.EventTerminalCreated}) {
		t.Errorf("%v, %v", types, err)
	}
}
