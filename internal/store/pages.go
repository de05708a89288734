package store

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/page"
)

// pageStore implements [page.Store].
type pageStore struct{ db *DB }

var _ page.Store = pageStore{}

// Pages returns the store of the pages of sessions.
func Pages(db *DB) page.Store { return pageStore{db} }

const pageColumns = `session, owner, html, seq, first, updated, detail`

// pageDetail holds the fields of a page that no query selects by.
type pageDetail struct {
	Waiting []page.Action  `json:"waiting,omitempty"`
	Batch   *page.Batch    `json:"batch,omitempty"`
	Modules []page.Modules `json:"modules,omitempty"`
}

// pageKey returns the key in the log of an action with a key, which differs from keys of
// other events.
func pageKey(session engi.SessionID, key string) string {
	return "page\x1f" + string(session) + "\x1f" + key
}

var errNoPage = engi.Errorf(engi.NotFound, "the session has no page yet")

func (s pageStore) Get(ctx context.Context, session engi.SessionID) (page.Record, error) {
	return first(ctx, s.db.read, errNoPage, scanPage, `SELECT `+pageColumns+` FROM pages WHERE session = ?`, session)
}

func (s pageStore) Change(ctx context.Context, session engi.SessionID, f func(r *page.Record, emit page.Emit) error) (r page.Record, err error) {
	defer engi.Annotate(&err, "record the page of session %s", session)
	err = s.db.tx(ctx, func(t *tx) error {
		owner, err := first(ctx, t, errNoSession, value[engi.Owner], `SELECT owner FROM sessions WHERE id = ? AND ended = 0`, session)
		if err != nil {
			return err
		}
		found, err := list(ctx, t, scanPage, `SELECT `+pageColumns+` FROM pages WHERE session = ?`, session)
		if err != nil {
			return err
		}
		if r = (page.Record{Session: session, Owner: owner}); len(found) > 0 {
			r = found[0]
		}
		before := r.HTML
		if err := f(&r, func(kind string, data json.RawMessage, q idempotency.Request) (int64, error) {
			if q.Key != "" {
				q.Key = pageKey(session, q.Key)
			}
			e, err := t.append(ctx, engi.EventSpec{Owner: owner, Subject: string(session), Type: kind, Data: data, Idempotency: q.Key, Fingerprint: q.Fingerprint})
			return e.Seq, err
		}); err != nil {
			return err
		}
		r.Updated = time.Now().UTC()
		var detail strings.Builder
		e := json.NewEncoder(&detail)
		e.SetEscapeHTML(false) // models read the text of users unescaped
		if err := e.Encode(pageDetail{r.Waiting, r.Batch, r.Modules}); err != nil {
			return engi.Errorf(engi.Invalid, "encode page: %v", err)
		}
		if len(found) == 0 {
			_, err = t.exec(ctx, `INSERT INTO pages (`+pageColumns+`, busy) VALUES (`+marks(8)+`)`, session, owner, r.HTML, r.Seq, r.First, nanos(r.Updated), detail.String(), r.Busy())
			return err
		}
		if _, err := t.exec(ctx, `UPDATE pages SET seq = ?, first = ?, updated = ?, detail = ?, busy = ? WHERE session = ?`, r.Seq, r.First, nanos(r.Updated), detail.String(), r.Busy(), session); err != nil {
			return err
		}
		if r.HTML != before {
			_, err = t.exec(ctx, `UPDATE pages SET html = ? WHERE session = ?`, r.HTML, session)
		}
		return err
	})
	return r, err
}

func (s pageStore) Busy(ctx context.Context) ([]engi.SessionID, error) {
	return list(ctx, s.db.read, value[engi.SessionID], `SELECT session FROM pages WHERE busy = 1 ORDER BY session`)
}

func (s pageStore) EventByIdempotencyKey(ctx context.Context, owner engi.Owner, session engi.SessionID, key string) (idempotency.Event, error) {
	return s.db.eventOf(ctx, owner, pageKey(session, key))
}

func scanPage(row scanner) (r page.Record, err error) {
	var text string
	if err := row.Scan(&r.Session, &r.Owner, &r.HTML, &r.Seq, &r.First, (*stamp)(&r.Updated), &text); err != nil {
		return r, err
	}
	var d pageDetail
	if err := decode("page of "+string(r.Session), text, &d); err != nil {
		return r, err
	}
	r.Waiting, r.Batch, r.Modules = d.Waiting, d.Batch, d.Modules
	return r, nil
}
