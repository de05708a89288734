package store

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workflow"
	"github.com/engi-dev/engi/internal/workspace/repo"
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

// upgrade runs statements in a database of an older engi, and opens it with this one.
func upgrade(t *testing.T, version int64, statements ...string) *DB {
	t.Helper()
	file := filepath.Join(t.TempDir(), "engi.db")
	old := openAt(t, file, version)
	for _, q := range statements {
		if _, err := old.ExecContext(t.Context(), q); err != nil {
			t.Fatal(q, err)
		}
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := Open(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// TestEventsOfPagesAreRenamed opens a database of a node that called pages "ui".
func TestEventsOfPagesAreRenamed(t *testing.T) {
	ctx := t.Context()
	add := func(seq int, kind, key string) string {
		return fmt.Sprintf(`INSERT INTO events VALUES (%d, 'evt_%d', 'ann', 'ses_a', %d, '%s', 1, '', '', %s, '{}')`, seq, seq, seq-1, kind, key)
	}
	db := upgrade(t, 43,
		add(1, "session.created", "''"), add(2, "ui.acted", "'ui' || char(31) || 'k'"), add(3, "ui.done", "''"), add(4, "uid.x", "'ui-k'"),
		`INSERT INTO webhooks (id, owner, name, url, types, format, secret, enabled, reason, created, updated)
			VALUES ('whk_a', 'ann', 'a', 'https://example.com', '["ui.*","app.created"]', '', x'', 1, '', 1, 1)`,
		`INSERT INTO event_totals SELECT owner, max(seq), count(*), `+eventBytes+`, 0, 0 FROM events GROUP BY owner`,
	)
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

// TestTablesAreRenamed opens a database whose tables had the names library, workflow and
// uis, and checks that their rows, indexes and triggers still work.
func TestTablesAreRenamed(t *testing.T) {
	ctx := t.Context()
	db := upgrade(t, 44,
		`INSERT INTO library_records VALUES (1, 'doc_a', 'd:ann', 'left-pad', 'a', 'Padding', 10, 0, '{}')`,
		`INSERT INTO library_pieces VALUES (7, 1, 'h', '', '', 'pads a text on the left', '', NULL)`,
		`INSERT INTO library_words (rowid, headings, body, names, places) VALUES (7, '', 'pads a text on the left', '', 'x')`,
		`INSERT INTO workflow_runs VALUES (1, 'fnr_a', 'ann', 'f', 'evt_a', 'x', 't', 'completed', 1, '{}')`,
		`INSERT INTO workflow_steps VALUES ('fnr_a', 'one', 0, '{}')`,
		`INSERT INTO uis VALUES ('ses_a', 'ann', 1, 1, 0, 1, '{}', '<p>page</p>')`,
	)
	if _, err := db.exec(ctx, `INSERT INTO docs VALUES (2, 'doc_b', 'd:ann', 'left-pad', 'b', 'More', 5, 0, '{}')`); err != nil {
		t.Fatal(err)
	}
	for q, want := range map[string]string{
		`SELECT count || ' ' || bytes FROM docs_totals WHERE shelf = 'd:ann'`:                                                                              "2 15",
		`SELECT body FROM docs_pieces WHERE id IN (SELECT rowid FROM docs_words WHERE docs_words MATCH 'text')`:                                            "pads a text on the left",
		`SELECT r.id || s.name FROM function_runs r JOIN function_steps s ON s.run = r.id`:                                                                 "fnr_aone",
		`SELECT html FROM pages WHERE session = 'ses_a'`:                                                                                                   "<p>page</p>",
		`SELECT count(*) FROM sqlite_master WHERE name LIKE 'library%' OR name IN ('workflow_runs', 'workflow_steps') OR name LIKE 'uis%'`:                 "0",
		`SELECT count(*) FROM sqlite_master WHERE sql LIKE '%library%' OR sql LIKE '%workflow_runs%' OR sql LIKE '%workflow_steps%' OR sql LIKE '% uis %'`: "0",
	} {
		var got string
		if err := db.read.QueryRowContext(ctx, q).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", q, got, err, want)
		}
	}
}

// TestFingerprintsMatchAnyRequest opens a database with a run whose fingerprint was computed in another way.
func TestFingerprintsMatchAnyRequest(t *testing.T) {
	ctx := t.Context()
	db := upgrade(t, 46,
		`INSERT INTO agent_runs VALUES (1, 'run_a', 'ann', 'run_a', 'running', 1, 0, 'k', '{"fingerprint":"00ff","agent":"coder"}')`,
		`INSERT INTO agent_runs VALUES (2, 'run_b', 'ann', 'run_b', 'running', 1, 0, '', '{"fingerprint":"00ff"}')`,
	)
	for id, want := range map[string]string{"run_a": `{"fingerprint":"","agent":"coder"}`, "run_b": `{"fingerprint":"00ff"}`} {
		var got string
		if err := db.read.QueryRowContext(ctx, `SELECT detail FROM agent_runs WHERE id = ?`, id).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %s, %v", id, got, err)
		}
	}
}

// TestOldRevisionsGetHashes opens a database with revisions without the hash of their files, and asks who has made them.
func TestOldRevisionsGetHashes(t *testing.T) {
	ctx := t.Context()
	blob, err := repo.New(repo.Blob, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	v, objects, err := repo.Version{}.Next(repo.Files{"a": {Path: "a", Mode: repo.FileMode, Hash: blob.Hash}}, repo.Note{Message: "m", Time: time.Unix(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	statements := []string{
		`INSERT INTO workspaces (id, owner, name, created, used, idempotency, fingerprint, detail) VALUES ('wsp_a', 'ann', 'shop', 1, 1, '', '', '{"state":"stopped","revision":1}')`,
		`INSERT INTO workspace_revisions (workspace, number, created, detail) VALUES ('wsp_a', 1, 1, '{"message":"m","actor":"key_a","commit":"` + v.Commit + `"}')`,
	}
	tree := ""
	for _, o := range append(objects, blob) {
		if o.Kind == repo.Tree {
			tree = o.Hash
		}
		statements = append(statements, fmt.Sprintf(`INSERT INTO workspace_objects (workspace, hash, kind, size, data) VALUES ('wsp_a', '%s', '%s', %d, X'%x')`, o.Hash, o.Kind, o.Size, o.Packed))
	}
	db := upgrade(t, 47, statements...)
	w := engi.Workflow{ID: engi.NewWorkflowID(), Owner: "ann", Workspace: "wsp_a", Name: "w", Stage: engi.WorkflowCreation}
	if err := Workflows(db).Put(ctx, w, engi.WorkflowEvent{Action: engi.ActCreate}, workflow.Bounds{Workspace: 1, Owner: 1}); err != nil {
		t.Fatal(err)
	}
	_, err = Workflows(db).Change(ctx, w.ID, func(_ *engi.Workflow, tx workflow.Tx) (engi.WorkflowEvent, error) {
		head, err := tx.Content(0)
		if err != nil || head != (workflow.Content{Revision: 1, Hash: tree}) {
			t.Errorf("%+v %v, want the hash %s", head, err, tree)
		}
		makers, err := tx.Makers(tree)
		if err != nil || len(makers) != 1 || makers[0] != "key_a" {
			t.Errorf("%v %v", makers, err)
		}
		return engi.WorkflowEvent{Action: engi.ActEscalate}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
