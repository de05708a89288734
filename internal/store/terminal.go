package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/terminal"
)

type terminalStore struct{ db *DB }

var _ terminal.Store = terminalStore{}

// Terminals returns the store of terminals and of links to them.
func Terminals(db *DB) terminal.Store { return terminalStore{db} }

var (
	errNoTerminal     = engi.Errorf(engi.NotFound, "there is no such terminal").WithRemedy("'engi terminal list' shows the terminals of a session or sandbox")
	errNoTerminalLink = engi.Errorf(engi.NotFound, "there is no such link")
)

// terminalEvent is the data of events about terminals.
type terminalEvent struct {
	Session engi.SessionID      `json:"session_id,omitempty"`
	Sandbox engi.SandboxID      `json:"sandbox_id,omitempty"`
	Reason  string              `json:"reason,omitempty"`
	Link    engi.TerminalLinkID `json:"link_id,omitempty"`
	Write   bool                `json:"write,omitempty"`
	Expires *time.Time          `json:"expires_at,omitempty"`
}

// A program's arguments may be secret, so only its name is stored.
const terminalColumns = `id, owner, session, sandbox, program, cols, rows, created`

func (s terminalStore) Put(ctx context.Context, x engi.TerminalInfo) (err error) {
	defer engi.Annotate(&err, "record terminal %s", x.ID)
	return s.db.tx(ctx, func(t *tx) error {
		if _, err := t.exec(ctx, `INSERT INTO terminals (`+terminalColumns+`) VALUES (`+marks(8)+`)`,
			x.ID, x.Owner, x.Session, x.Sandbox, x.Args[0], x.Size.Cols, x.Size.Rows, nanos(x.Created)); err != nil {
			return err
		}
		return t.recordFirst(ctx, x.Owner, string(x.ID), engi.EventTerminalCreated, terminalEvent{Session: x.Session, Sandbox: x.Sandbox})
	})
}

func (s terminalStore) Find(ctx context.Context, viewer engi.Viewer, id engi.TerminalID) (engi.TerminalInfo, error) {
	return first(ctx, s.db.read, errNoTerminal, scanTerminal, `SELECT `+terminalColumns+` FROM terminals WHERE id = ? AND (? = '*' OR owner = ?)`, id, viewer, viewer)
}

func (s terminalStore) List(ctx context.Context, viewer engi.Viewer, session engi.SessionID, sandbox engi.SandboxID) ([]engi.TerminalInfo, error) {
	var w where
	w.owned(viewer)
	w.and(session != "", `session = ?`, session)
	w.and(session == "" && sandbox != "", `sandbox = ?`, sandbox)
	return list(ctx, s.db.read, scanTerminal, `SELECT `+terminalColumns+` FROM terminals`+w.String()+` ORDER BY seq DESC`, w.args...)
}

func (s terminalStore) Remove(ctx context.Context, id engi.TerminalID, reason string) (err error) {
	defer engi.Annotate(&err, "remove terminal %s", id)
	return s.db.tx(ctx, func(t *tx) error {
		gone, err := list(ctx, t, scanTerminal, `DELETE FROM terminals WHERE id = ? RETURNING `+terminalColumns, id)
		if err != nil || len(gone) == 0 {
			return err
		}
		return t.record(ctx, gone[0].Owner, string(id), engi.EventTerminalEnded, terminalEvent{Session: gone[0].Session, Sandbox: gone[0].Sandbox, Reason: reason})
	})
}

func scanTerminal(row scanner) (x engi.TerminalInfo, err error) {
	x.Args = make([]string, 1)
	err = row.Scan(&x.ID, &x.Owner, &x.Session, &x.Sandbox, &x.Args[0], &x.Size.Cols, &x.Size.Rows, (*stamp)(&x.Created))
	return x, err
}

const terminalLinkColumns = `id, terminal, owner, name, write, created, expires`

func (s terminalStore) PutLink(ctx context.Context, l engi.TerminalLink, hash []byte) (err error) {
	defer engi.Annotate(&err, "record link %s", l.ID)
	return s.db.tx(ctx, func(t *tx) error {
		if _, err := t.exec(ctx, `INSERT INTO terminal_links (`+terminalLinkColumns+`, hash) VALUES (`+marks(8)+`)`,
			l.ID, l.Terminal, l.Owner, l.Name, l.Write, nanos(l.Created), nanos(l.Expires), hash); err != nil {
			return err
		}
		return t.record(ctx, l.Owner, string(l.Terminal), engi.EventTerminalShared, terminalEvent{Link: l.ID, Write: l.Write, Expires: &l.Expires})
	})
}

func (s terminalStore) FindLink(ctx context.Context, hash []byte) (engi.TerminalLink, error) {
	return first(ctx, s.db.read, errNoTerminalLink, scanTerminalLink, `SELECT `+terminalLinkColumns+` FROM terminal_links WHERE hash = ?`, hash)
}

func (s terminalStore) Links(ctx context.Context, id engi.TerminalID) ([]engi.TerminalLink, error) {
	return list(ctx, s.db.read, scanTerminalLink, `SELECT `+terminalLinkColumns+` FROM terminal_links WHERE terminal = ? ORDER BY seq DESC`, id)
}

func (s terminalStore) RemoveLink(ctx context.Context, terminal engi.TerminalID, id engi.TerminalLinkID) error {
	return change(ctx, s.db, errNoTerminalLink, scanTerminalLink, func(t *tx, l engi.TerminalLink) error {
		return t.record(ctx, l.Owner, string(terminal), engi.EventTerminalUnshared, terminalEvent{Link: id})
	}, `DELETE FROM terminal_links WHERE id = ? AND terminal = ? RETURNING `+terminalLinkColumns, id, terminal)
}

func scanTerminalLink(row scanner) (l engi.TerminalLink, err error) {
	err = row.Scan(&l.ID, &l.Terminal, &l.Owner, &l.Name, &l.Write, (*stamp)(&l.Created), (*stamp)(&l.Expires))
	return l, err
}
