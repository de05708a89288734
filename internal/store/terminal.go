package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/terminal"
)

type terminalStore struct {
	table[engi.TerminalInfo, engi.TerminalID]
	links table[engi.TerminalLink, engi.TerminalLinkID]
}

var _ terminal.Store = terminalStore{}

// Terminals returns the store of terminals and of links to them.
func Terminals(db *DB) terminal.Store {
	return terminalStore{table[engi.TerminalInfo, engi.TerminalID]{
		// A program's arguments may be secret, so only its name is stored.
		db: db, name: "terminals", noun: "terminal", columns: `id, owner, session, sandbox, program, cols, rows, created`,
		fields: func(x *engi.TerminalInfo) []any {
			if len(x.Args) == 0 {
				x.Args = make([]string, 1)
			}
			return []any{&x.ID, &x.Owner, &x.Session, &x.Sandbox, &x.Args[0], &x.Size.Cols, &x.Size.Rows, (*stamp)(&x.Created)}
		},
		missing: engi.Errorf(engi.NotFound, "there is no such terminal").WithRemedy("'engi terminal list' shows the terminals of a session or sandbox"),
	}, table[engi.TerminalLink, engi.TerminalLinkID]{
		db: db, name: "terminal_links", noun: "link", columns: `id, owner, terminal, name, write, created, expires`,
		fields: func(l *engi.TerminalLink) []any {
			return []any{&l.ID, &l.Owner, &l.Terminal, &l.Name, &l.Write, (*stamp)(&l.Created), (*stamp)(&l.Expires)}
		},
		missing: engi.Errorf(engi.NotFound, "there is no such link"),
	}}
}

// terminalEvent is the data of events about terminals.
type terminalEvent struct {
	Session engi.SessionID      `json:"session_id,omitempty"`
	Sandbox engi.SandboxID      `json:"sandbox_id,omitempty"`
	Reason  string              `json:"reason,omitempty"`
	Link    engi.TerminalLinkID `json:"link_id,omitempty"`
	Write   bool                `json:"write,omitempty"`
	Expires *time.Time          `json:"expires_at,omitempty"`
}

func (s terminalStore) Put(ctx context.Context, x engi.TerminalInfo) (err error) {
	defer engi.Annotate(&err, "record terminal %s", x.ID)
	return s.add(ctx, &x, engi.EventTerminalCreated, terminalEvent{Session: x.Session, Sandbox: x.Sandbox})
}

func (s terminalStore) Find(ctx context.Context, viewer engi.Viewer, id engi.TerminalID) (engi.TerminalInfo, error) {
	return s.Get(ctx, viewer, id)
}

func (s terminalStore) List(ctx context.Context, viewer engi.Viewer, session engi.SessionID, sandbox engi.SandboxID) ([]engi.TerminalInfo, error) {
	var w where
	w.owned(viewer)
	w.and(session != "", `session = ?`, session)
	w.and(session == "" && sandbox != "", `sandbox = ?`, sandbox)
	return s.all(ctx, w, `seq DESC`, 0)
}

func (s terminalStore) Remove(ctx context.Context, id engi.TerminalID, reason string) (err error) {
	defer engi.Annotate(&err, "remove terminal %s", id)
	err = s.remove(ctx, when(`id = ?`, id), engi.EventTerminalEnded, func(x engi.TerminalInfo) any {
		return terminalEvent{Session: x.Session, Sandbox: x.Sandbox, Reason: reason}
	})
	return engi.Ignore(err, engi.NotFound)
}

func (s terminalStore) PutLink(ctx context.Context, l engi.TerminalLink, hash []byte) (err error) {
	defer engi.Annotate(&err, "record link %s", l.ID)
	links := s.links.with("hash", func(*engi.TerminalLink) any { return hash })
	return s.db.tx(ctx, func(t *tx) error {
		if err := links.put(ctx, t, &l); err != nil {
			return err
		}
		return t.record(ctx, l.Owner, string(l.Terminal), engi.EventTerminalShared, terminalEvent{Link: l.ID, Write: l.Write, Expires: &l.Expires})
	})
}

func (s terminalStore) FindLink(ctx context.Context, hash []byte) (engi.TerminalLink, error) {
	return s.links.one(ctx, s.db.read, when(`hash = ?`, hash))
}

func (s terminalStore) Links(ctx context.Context, id engi.TerminalID) ([]engi.TerminalLink, error) {
	return s.links.all(ctx, when(`terminal = ?`, id), `seq DESC`, 0)
}

func (s terminalStore) RemoveLink(ctx context.Context, terminal engi.TerminalID, id engi.TerminalLinkID) error {
	return change(ctx, s.db, s.links.missing, s.links.scan, func(t *tx, l engi.TerminalLink) error {
		return t.record(ctx, l.Owner, string(terminal), engi.EventTerminalUnshared, terminalEvent{Link: id})
	}, `DELETE FROM terminal_links WHERE id = ? AND terminal = ? RETURNING `+s.links.columns, id, terminal)
}
