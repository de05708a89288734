package store

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// openAt creates a database of an older engi, whose newest migration is the one with the given version.
func openAt(t *testing.T, file string, version int64) *sql.DB {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := connect(file, "rw", 1)
	if err == nil {
		err = migrate(t.Context(), db, version)
	}
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// TestEventsOfPagesAreRenamed opens a database of a node that called pages "ui".
func TestEventsOfPagesAreRenamed(t *testing.T) {
	file, ctx := filepath.Join(t.TempDir(), "engi.db"), t.Context()
	old := openAt(t, file, 43)
	add := func(seq int, kind, key string) string {
		return fmt.Sprintf(`INSERT INTO events VALUES (%d, 'evt_%d', 'ann', 'ses_a', %d, '%s', 1, '', '', %s, '{}')`, seq, seq, seq-1, kind, key)
	}
	for _, q := range []string{
		add(1, "session.created", "''"), add(2, "ui.acted", "'ui' || char(31) || 'k'"), add(3, "ui.done", "''"), add(4, "uid.x", "'ui-k'"),
		`INSERT INTO webhooks (id, owner, name, url, types, format, secret, enabled, reason, created, updated)
			VALUES ('whk_a', 'ann', 'a', 'https://example.com', '["ui.*","app.created"]', '', x'', 1, '', 1, 1)`,
		`INSERT INTO event_totals SELECT owner, max(seq), count(*), ` + eventBytes + `, 0, 0 FROM events GROUP BY owner`,
	} {
		if _, err := old.ExecContext(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := Open(ctx, file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for q, want := range map[string]string{
		`SELECT group_concat(type) FROM (SELECT type FROM events WHERE owner = 'ann' ORDER BY seq)`:    "session.created,page.acted,page.done,uid.x",
		`SELECT replace(group_concat(idempotency), char(31), '|') FROM events WHERE idempotency <> ''`: "page|k,ui-k",
		`SELECT types FROM webhooks`: `["page.*","app.created"]`,
		`SELECT bytes = (SELECT ` + eventBytes + ` FROM events WHERE owner = 'ann') FROM event_totals WHERE owner = 'ann'`: "1",
	} {
		var got string
		if err := db.read.QueryRowContext(ctx, q).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", q, got, err, want)
		}
	}
	events, err := Events(db).List(ctx, "ann", engi.EventFilter{Types: []string{"page.*"}})
	if err != nil || len(events) != 2 {
		t.Errorf("%v, %v", events, err)
	}
}
