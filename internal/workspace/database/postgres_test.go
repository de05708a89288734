package database_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestPostgresValues(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	s.must(t, "DROP TYPE IF EXISTS mood; CREATE TYPE mood AS ENUM ('sad', 'o,k', 'happy'); DROP TYPE IF EXISTS pair; CREATE TYPE pair AS (a int, b text)")
	for _, x := range []struct{ sql, kind, want string }{
		{"42", "int4", `42`},
		{"-7::int2", "int2", `-7`},
		{"9007199254740992::int8", "int8", `9007199254740992`},
		{"9007199254740993::int8", "int8", `"9007199254740993"`},
		{"(-9223372036854775808)::int8", "int8", `"-9223372036854775808"`},
		{"0.1::numeric", "numeric", `0.1`},
		{"1.10::numeric", "numeric", `1.10`},
		{"123456789012345678.9::numeric", "numeric", `"123456789012345678.9"`},
		{"0.12345678901234567", "numeric", `"0.12345678901234567"`},
		{"1e400::numeric", "numeric", `"1` + strings.Repeat("0", 400) + `"`},
		{"'NaN'::numeric", "numeric", `"NaN"`},
		{"'-infinity'::float8", "float8", `"-Infinity"`},
		{"0.1::float8 + 0.2::float8", "float8", `0.30000000000000004`},
		{"0.1::float4", "float4", `0.1`},
		{"1e300::float8", "float8", `1e+300`},
		{"true", "bool", `true`},
		{"NULL", "text", `null`},
		{"''::text", "text", `""`},
		{`E'a"\\\n<\u20ac\U0001F600'`, "text", `"a\"\\\n<€😀"`},
		{"'2024-02-29 23:59:59.123456+02'::timestamptz AT TIME ZONE 'UTC'", "timestamp", `"2024-02-29T21:59:59.123456"`},
		{"'2024-02-29 12:00:00.5Z'::timestamptz", "timestamptz", `"2024-02-29T12:00:00.5Z"`},
		{"'2024-07-01 12:00:00Z'::timestamptz", "timestamptz", `"2024-07-01T13:00:00+01:00"`},
		{"'infinity'::timestamptz", "timestamptz", `"infinity"`},
		{"'0044-03-15 12:00:00 BC'::timestamp", "timestamp", `"0044-03-15 12:00:00 BC"`},
		{"'12024-01-01'::timestamp", "timestamp", `"12024-01-01 00:00:00"`},
		{"'1800-01-01 00:00:00Z'::timestamptz", "timestamptz", `"1799-12-31 23:23:15-00:36:45"`},
		{"'2024-02-29'::date", "date", `"2024-02-29"`},
		{"'12:00:00.000001'::time", "time", `"12:00:00.000001"`},
		{"'1 year 2 days 03:00:00.5'::interval", "interval", `"1 year 2 days 03:00:00.5"`},
		{`'{"a": [1, null, 1e400]}'::json`, "json", `{"a": [1, null, 1e400]}`},
		{`'{"b":1}'::jsonb`, "jsonb", `{"b": 1}`},
		{`'null'::jsonb`, "jsonb", `null`},
		{"ARRAY[1,NULL,3]", "_int4", `[1,null,3]`},
		{"ARRAY[[1,2],[3,4]]", "_int4", `[[1,2],[3,4]]`},
		{"'{}'::int[]", "_int4", `[]`},
		{"'[2:3]={7,8}'::int[]", "_int4", `[7,8]`},
		{`ARRAY['a"b','c,d','NULL',NULL,'','{','\']`, "_text", `["a\"b","c,d","NULL",null,"","{","\\"]`},
		{`ARRAY['{"a":1}'::jsonb]`, "_jsonb", `[{"a": 1}]`},
		{"ARRAY[now() > 'epoch', false]", "_bool", `[true,false]`},
		{`ARRAY['\x00ff'::bytea]`, "_bytea", `["AP8="]`},
		{"ARRAY['2024-01-01 00:00'::timestamp]", "_timestamp", `["2024-01-01T00:00:00"]`},
		{`'\xdeadbeef'::bytea`, "bytea", `"3q2+7w=="`},
		{"''::bytea", "bytea", `""`},
		{"'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", "uuid", `"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"`},
		{"'o,k'::mood", "mood", `"o,k"`},
		{"ARRAY['o,k','sad']::mood[]", "_mood", `["o,k","sad"]`},
		{"ROW(1,'x')::pair", "pair", `"(1,x)"`},
		{"B'0101'", "bit", `"0101"`},
		{"'10.0.0.1/8'::inet", "inet", `"10.0.0.1/8"`},
		{"int4range(1,5)", "int4range", `"[1,5)"`},
		{"'12.5'::money", "money", `"$12.50"`},
		{"'pg_class'::regclass", "regclass", `"pg_class"`},
		{"point(1,2)", "point", `"(1,2)"`},
	} {
		t.Run(x.sql, func(t *testing.T) {
			for _, readOnly := range []bool{false, true} {
				r := s.do(t, engi.Query{Text: "SELECT " + x.sql + " AS x", ReadOnly: readOnly})
				if r.Error != nil {
					t.Fatal(*r.Error)
				}
				if diff := cmp.Diff([]engi.Column{{Name: "x", Type: x.kind}}, r.Columns); diff != "" {
					t.Error(diff)
				}
				if got := string(r.Rows[0][0]); got != x.want || !json.Valid([]byte(got)) {
					t.Errorf("got %s, want %s", got, x.want)
				}
			}
		})
	}
}

func TestPostgresArguments(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	for _, x := range []struct {
		sql  string
		args []any
		want string
	}{
		{"SELECT $1::int + $2::int", []any{json.Number("40"), 2.0}, `[[42]]`},
		{"SELECT $1::text, $2::text", []any{nil, "'; DROP TABLE x; --"}, `[[null,"'; DROP TABLE x; --"]]`},
		{"SELECT $1::numeric", []any{json.Number("0.10")}, `[[0.10]]`},
		{"SELECT $1::bool", []any{true}, `[[true]]`},
		{"SELECT $1::jsonb", []any{map[string]any{"a": []any{1.0, "x"}}}, `[[{"a": [1, "x"]}]]`},
		{"SELECT $1::jsonb", []any{[]any{1.0, "x"}}, `[[[1, "x"]]]`},
		{"SELECT $1::int[]", []any{[]any{1.0, nil, 3.0}}, `[[[1,null,3]]]`},
		{"SELECT $1::text[]", []any{[]any{`a"\`, "NULL", "", "{,}"}}, `[[["a\"\\","NULL","","{,}"]]]`},
		{"SELECT 2 = ANY($1::int[])", []any{json.RawMessage(`[1,2]`)}, `[[true]]`},
		{"SELECT $1::timestamptz AT TIME ZONE 'UTC'", []any{"2024-01-01T00:00:00Z"}, `[["2024-01-01T00:00:00"]]`},
		{"SELECT 1 LIMIT $1", []any{1.0}, `[[1]]`},
		{"SELECT $1::float8", []any{1e-7}, `[[1e-07]]`},
	} {
		for _, readOnly := range []bool{false, true} {
			if got := table(t, s.do(t, engi.Query{Text: x.sql, Args: x.args, ReadOnly: readOnly})); got != compact(t, x.want) {
				t.Errorf("%s with %v: got %s, want %s", x.sql, x.args, got, x.want)
			}
		}
	}
	r := s.do(t, engi.Query{Text: "SELECT $1::int[] || 'x", Args: []any{[]any{1.0}}, ReadOnly: true})
	if r.Error == nil || r.Error.Code != "42601" {
		t.Errorf("a wrong query with an array: %+v", r.Error)
	}
	if r := s.do(t, engi.Query{Text: "SELECT $1::int", Args: []any{"1", "2"}}); r.Error == nil || r.Error.Code != "08P01" {
		t.Errorf("too many arguments: %+v", r.Error)
	}
	if _, err := s.Query(t.Context(), engi.Query{Text: "SELECT $1", Args: []any{struct{}{}}}); !engi.Is(err, engi.Invalid) {
		t.Errorf("an argument that is not JSON: %v", err)
	}
}

// compact returns raw JSON in the form of encoding/json.
func compact(t testing.TB, s string) string {
	t.Helper()
	b, err := json.Marshal(json.RawMessage(s))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPostgresStatements(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	s.must(t, "DROP TABLE IF EXISTS stmt; CREATE TABLE stmt (n int)")
	for _, x := range []struct {
		sql      string
		want     string
		affected int64
	}{
		{"INSERT INTO stmt VALUES (1),(2),(3)", `[]`, 3},
		{"UPDATE stmt SET n = n + 1 RETURNING n", `[[2],[3],[4]]`, 3},
		{"SELECT 1; SELECT 2, 3", `[[2,3]]`, 1},
		{"SELECT 1; DELETE FROM stmt WHERE n = 2", `[]`, 1},
		{"CREATE TABLE IF NOT EXISTS stmt2 (n int)", `[]`, -1},
		{"BEGIN; INSERT INTO stmt VALUES (9); ROLLBACK; SELECT count(*) FROM stmt", `[[2]]`, 1},
		{"SELECT 'a;b'", `[["a;b"]]`, 1},
		{"SELECT 1;", `[[1]]`, 1},
		{"-- nothing", `[]`, -1},
		{"COPY (VALUES (1,'x')) TO STDOUT", `[["1\tx\n"]]`, 1},
		{"SELECT FROM stmt", `[[],[]]`, 2},
		{"VACUUM stmt", `[]`, -1},
	} {
		r := s.do(t, engi.Query{Text: x.sql})
		if got := table(t, r); got != x.want || r.Affected != x.affected {
			t.Errorf("%s: got %s and %d rows, want %s and %d", x.sql, got, r.Affected, x.want, x.affected)
		}
	}
	if r := s.do(t, engi.Query{Text: "COPY stmt FROM STDIN"}); r.Error == nil || r.Error.Code != "57014" {
		t.Errorf("COPY FROM STDIN: %+v", r.Error)
	}
	if got := table(t, s.do(t, engi.Query{Text: "SELECT n FROM stmt ORDER BY n"})); got != `[[3],[4]]` {
		t.Errorf("the table has %s", got)
	}
}

func TestPostgresErrors(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	for _, x := range []struct {
		q    engi.Query
		code string
		at   int
	}{
		{engi.Query{Text: "SELECT 'ä€😀', nix"}, "42703", 15},
		{engi.Query{Text: "SELEC 1"}, "42601", 1},
		{engi.Query{Text: "SELECT 1/0"}, "22012", 0},
		{engi.Query{Text: "SELECT 1; SELECT nix"}, "42703", 18},
		{engi.Query{Text: "SELECT 1; SELECT 2", ReadOnly: true}, "42601", 0},
		{engi.Query{Text: "SELECT 1; SELECT $1", Args: []any{1.0}}, "42601", 0},
		{engi.Query{Text: "SELECT 1", Database: "nowhere"}, "3D000", 0},
	} {
		r := s.do(t, x.q)
		if r.Error == nil || r.Error.Code != x.code || r.Error.Position != x.at {
			t.Errorf("%s: got %+v, want %s at %d", x.q.Text, r.Error, x.code, x.at)
		}
	}
	wrong := *s
	wrong.Password = "wr0ng-password"
	_, err := wrong.Query(t.Context(), engi.Query{Text: "SELECT 1"})
	if !engi.Is(err, engi.Unavailable) || strings.Contains(err.Error(), wrong.Password) {
		t.Errorf("with a wrong password: %v", err)
	}
	if r := s.do(t, engi.Query{Text: "SELECT '" + password + "'::int"}); strings.Contains(r.Error.Text, password) {
		t.Errorf("the password is in an error: %s", r.Error.Text)
	}
}

func TestPostgresLimits(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	for _, readOnly := range []bool{false, true} {
		for _, x := range []struct {
			q         engi.Query
			rows      int
			truncated bool
		}{
			{engi.Query{Text: "SELECT generate_series(1, 10000000)"}, 1000, true},
			{engi.Query{Text: "SELECT g FROM generate_series(1, 1000) g"}, 1000, false},
			{engi.Query{Text: "SELECT g FROM generate_series(1, 10) g", MaxRows: 9}, 9, true},
			{engi.Query{Text: "SELECT repeat('x', 1000) FROM generate_series(1, 100)", MaxBytes: 10_120}, 10, true},
			{engi.Query{Text: "SELECT repeat('x', 100000000)"}, 0, true},
			{engi.Query{Text: "SELECT NULL FROM generate_series(1, 1000000)", MaxRows: 100_000, MaxBytes: 800}, 100, true},
		} {
			x.q.ReadOnly = readOnly
			r := s.do(t, x.q)
			if r.Error != nil || len(r.Rows) != x.rows || r.Truncated != x.truncated {
				t.Errorf("%s: %d rows, truncated %v, error %v; want %d, %v", x.q.Text, len(r.Rows), r.Truncated, r.Error, x.rows, x.truncated)
			}
		}
	}
	// Rows beyond the limit are still computed.
	s.must(t, "DROP TABLE IF EXISTS cutoff; CREATE TABLE cutoff (n int)")
	r := s.do(t, engi.Query{Text: "INSERT INTO cutoff SELECT generate_series(1, 500) RETURNING n, repeat('x', 10000)", MaxRows: 5})
	if len(r.Rows) != 5 || !r.Truncated {
		t.Errorf("an insertion returns %d rows", len(r.Rows))
	}
	r = s.do(t, engi.Query{Text: "INSERT INTO cutoff SELECT generate_series(1, 500) RETURNING n, repeat('x', 10000)"})
	if len(r.Rows) == 500 || !r.Truncated {
		t.Errorf("an insertion returns %d rows", len(r.Rows))
	}
	if got := table(t, s.do(t, engi.Query{Text: "SELECT count(*) FROM cutoff"})); got != `[[1000]]` {
		t.Errorf("there are %s rows", got)
	}
	idle(t, s, "engi")
}

// idle waits until the server runs no queries of others.
func idle(t testing.TB, s *server, _ string) {
	t.Helper()
	var got string
	for range 1200 {
		if s.Type == engi.ServicePostgres {
			got = table(t, s.do(t, engi.Query{Text: "SELECT pid, query FROM pg_stat_activity WHERE application_name = 'engi' AND state <> 'idle' AND pid <> pg_backend_pid()"}))
		} else {
			got = table(t, s.do(t, engi.Query{Text: "SELECT id, info FROM information_schema.processlist WHERE command <> 'Sleep' AND command <> 'Daemon' AND id <> connection_id()"}))
		}
		if got == "[]" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("the server still runs %s", got)
}

func TestPostgresTimeout(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	for _, q := range []engi.Query{
		{Text: "SELECT pg_sleep(60)"},
		{Text: "SELECT pg_sleep(60)", ReadOnly: true},
		{Text: "SELECT count(*) FROM generate_series(1, 1000000000)"},
		{Text: "SET statement_timeout = 0; SELECT pg_sleep(60)"},
		{Text: "SET statement_timeout = 0; SELECT g FROM generate_series(1, 1000000000) g"},
		{Text: "SELECT pg_sleep($1)", Args: []any{60.0}},
	} {
		q.Timeout = 300 * time.Millisecond
		_, err := s.Query(t.Context(), q)
		if !engi.Is(err, engi.Expired) {
			t.Errorf("%s: %v", q.Text, err)
		}
		idle(t, s, "engi")
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	if _, err := s.Query(ctx, engi.Query{Text: "SELECT pg_sleep(60)"}); !engi.Is(err, engi.Expired) {
		t.Errorf("a caller who goes: %v", err)
	}
	idle(t, s, "engi")
}

// TestPostgresReadOnly tries changes and accesses that a read-only query must not have.
func TestPostgresReadOnly(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	s.must(t, "DROP TABLE IF EXISTS precious; CREATE TABLE precious (n int); INSERT INTO precious VALUES (1)",
		"CREATE OR REPLACE FUNCTION meddle() RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO precious VALUES (2); RETURN 1; END $$",
		"CREATE OR REPLACE PROCEDURE meddle_more() LANGUAGE plpgsql AS $$ BEGIN COMMIT; INSERT INTO precious VALUES (3); END $$",
		"CREATE SEQUENCE IF NOT EXISTS counter",
		"CREATE SCHEMA IF NOT EXISTS deep; DROP TABLE IF EXISTS deep.t; CREATE TABLE deep.t AS SELECT 1 AS n")
	if got := table(t, s.do(t, engi.Query{Text: "SELECT p.n FROM precious p, deep.t", ReadOnly: true})); got != `[[1]]` {
		t.Errorf("reading gives %s", got)
	}
	s.must(t, "CREATE TABLE IF NOT EXISTS later AS SELECT 1 AS n")
	if got := table(t, s.do(t, engi.Query{Text: "SELECT n FROM later", ReadOnly: true})); got != `[[1]]` {
		t.Errorf("reading what came later gives %s", got)
	}
	for _, x := range []struct{ sql, code string }{
		{"INSERT INTO precious VALUES (9)", "25006"},
		{"DROP TABLE precious", "25006"},
		{"COMMIT; DROP TABLE precious", "42601"},
		{"ROLLBACK; INSERT INTO precious VALUES (9)", "42601"},
		{"DO $$ BEGIN COMMIT; INSERT INTO precious VALUES (9); END $$", "2D000"},
		{"DO $$ BEGIN SET TRANSACTION READ WRITE; INSERT INTO precious VALUES (9); END $$", "25001"},
		{"DO $$ BEGIN PERFORM set_config('transaction_read_only', 'off', false); INSERT INTO precious VALUES (9); END $$", "25001"},
		{"DO $$ BEGIN SET ROLE engi; COPY (SELECT 1) TO PROGRAM 'true'; END $$", "42501"},
		{"DO $$ BEGIN RESET ROLE; RESET SESSION AUTHORIZATION; COPY (SELECT 1) TO PROGRAM 'true'; END $$", "42501"},
		{"SELECT set_config('transaction_read_only', 'off', false), meddle()", "25001"},
		{"SELECT meddle()", "25006"},
		{"CALL meddle_more()", "2D000"},
		{"SELECT nextval('counter')", "42501"},
		{"SELECT setval('counter', 7)", "42501"},
		{"COPY precious TO PROGRAM 'cat'", "42501"},
		{"COPY precious TO '/tmp/engi-stolen'", "42501"},
		{"COPY precious FROM PROGRAM 'echo 1'", "42501"},
		{"SELECT pg_read_file('/etc/passwd')", "42501"},
		{"SELECT pg_read_binary_file('postgresql.conf')", "42501"},
		{"SELECT pg_ls_dir('/')", "42501"},
		{"SELECT lo_import('/etc/passwd')", "42501"},
		{"SELECT lo_export(1, '/tmp/engi-stolen')", "42501"},
		{"SELECT pg_reload_conf()", "42501"},
		{"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'engi'", "42501"},
		{"SELECT pg_create_physical_replication_slot('x')", "42501"},
		{"ALTER ROLE engi_reader SUPERUSER", "25006"},
		{"CREATE TEMP TABLE x (n int)", "25006"},
		{"CREATE EXTENSION plpython3u", "25006"},
		{"SELECT * FROM precious FOR UPDATE", "25006"},
		{"EXPLAIN ANALYZE DELETE FROM precious", "25006"},
		{`\copy precious to '/tmp/x'`, "42601"},
		{"SELECT dblink_connect('dbname=postgres')", "42883"},
	} {
		r := s.do(t, engi.Query{Text: x.sql, ReadOnly: true})
		if r.Error == nil || r.Error.Code != x.code {
			t.Errorf("%s: got %+v, want %s", x.sql, r.Error, x.code)
		}
	}
	// These are allowed and change nothing.
	for _, sql := range []string{"COMMIT", "ROLLBACK", "SET TRANSACTION READ WRITE", "SET default_transaction_read_only = off", "SELECT pg_advisory_lock(1)", "NOTIFY x"} {
		s.do(t, engi.Query{Text: sql, ReadOnly: true})
	}
	if got := table(t, s.do(t, engi.Query{Text: "SELECT n FROM precious"})); got != `[[1]]` {
		t.Errorf("the table has %s", got)
	}
}

// TestPostgresReader recreates the user of read-only queries.
func TestPostgresReader(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	for _, sql := range []string{"SELECT 1", "DROP ROLE engi_reader", "ALTER ROLE engi_reader PASSWORD 'other'", "ALTER ROLE engi_reader NOLOGIN", "REVOKE pg_read_all_data FROM engi_reader; ALTER ROLE engi_reader PASSWORD NULL"} {
		s.do(t, engi.Query{Text: sql}) // the first may have nothing to drop
		if got := table(t, s.do(t, engi.Query{Text: "SELECT count(*) > 0 FROM pg_class", ReadOnly: true})); got != `[[true]]` {
			t.Errorf("after %s: %s", sql, got)
		}
	}
	errs := make(chan error)
	s.must(t, "DROP ROLE engi_reader")
	for range 8 {
		go func() {
			_, err := s.Query(t.Context(), engi.Query{Text: "SELECT 1", ReadOnly: true})
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Errorf("at once with others: %v", err)
		}
	}
	printed, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil || strings.Contains(string(printed), "ALTER ROLE engi_reader LOGIN") {
		t.Errorf("making the user fails at times: %v\n%s", err, printed)
	}
}

func TestPostgresCatalog(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	s.must(t, `DROP SCHEMA IF EXISTS cat CASCADE; CREATE SCHEMA cat;
CREATE TABLE cat.owners (id int PRIMARY KEY);
CREATE TABLE cat."Cats" (id serial PRIMARY KEY, name varchar(20) NOT NULL DEFAULT 'Tom', age numeric(4,1), owner int REFERENCES cat.owners, UNIQUE (name), CHECK (age > 0));
CREATE VIEW cat.names AS SELECT name FROM cat."Cats";
CREATE MATERIALIZED VIEW cat.ages AS SELECT age FROM cat."Cats"`)
	for _, readOnly := range []bool{false, true} {
		all, err := s.Tables(t.Context(), engi.Query{ReadOnly: readOnly})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, x := range all {
			if x.Schema == "cat" {
				got = append(got, x.Name+" "+x.Kind)
			}
			if x.Schema == "pg_catalog" || x.Schema == "information_schema" {
				t.Errorf("%s.%s is listed", x.Schema, x.Name)
			}
		}
		if diff := cmp.Diff([]string{"Cats table", "ages materialized view", "names view", "owners table"}, got); diff != "" {
			t.Error(diff)
		}
		d, err := s.Describe(t.Context(), engi.Query{ReadOnly: readOnly}, "cat.Cats")
		if err != nil {
			t.Fatal(err)
		}
		want := engi.TableDescription{
			Table: engi.Table{Schema: "cat", Name: "Cats", Kind: "table", Rows: -1, Bytes: d.Bytes},
			Columns: []engi.TableColumn{
				{Name: "id", Type: "integer", Default: `nextval('cat."Cats_id_seq"'::regclass)`},
				{Name: "name", Type: "character varying(20)", Default: "'Tom'::character varying"},
				{Name: "age", Type: "numeric(4,1)", Nullable: true},
				{Name: "owner", Type: "integer", Nullable: true},
			},
			Indexes: []engi.TableIndex{
				{Name: "Cats_name_key", Definition: `CREATE UNIQUE INDEX "Cats_name_key" ON cat."Cats" USING btree (name)`, Unique: true},
				{Name: "Cats_pkey", Definition: `CREATE UNIQUE INDEX "Cats_pkey" ON cat."Cats" USING btree (id)`, Unique: true, Primary: true},
			},
			Constraints: []engi.TableConstraint{
				{Name: "Cats_age_check", Kind: "check", Definition: "CHECK ((age > (0)::numeric))"},
				{Name: "Cats_name_key", Kind: "unique", Definition: "UNIQUE (name)"},
				{Name: "Cats_owner_fkey", Kind: "foreign key", Definition: "FOREIGN KEY (owner) REFERENCES cat.owners(id)"},
				{Name: "Cats_pkey", Kind: "primary key", Definition: "PRIMARY KEY (id)"},
			},
		}
		if diff := cmp.Diff(want, d); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := s.Describe(t.Context(), engi.Query{}, "cats'; DROP TABLE x"); !engi.Is(err, engi.NotFound) {
		t.Errorf("a table that is not there: %v", err)
	}
}

func TestPostgresExplain(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	s.must(t, "DROP TABLE IF EXISTS planned; CREATE TABLE planned (n int); INSERT INTO planned VALUES (1)")
	for _, x := range []struct{ sql, want string }{
		{"SELECT * FROM planned WHERE n > 1", "Seq Scan on planned"},
		{"DELETE FROM planned", "Delete on planned"},
		{"(SELECT 1) UNION (SELECT 2)", "Unique"},
	} {
		plan, err := s.Explain(t.Context(), engi.Query{Text: x.sql})
		if err != nil || !strings.Contains(plan, x.want) || !strings.Contains(plan, "\n") {
			t.Errorf("the plan of %s is %q, %v", x.sql, plan, err)
		}
	}
	for _, sql := range []string{"ANALYZE DELETE FROM planned", "(ANALYZE) DELETE FROM planned", "SELECT 1; DELETE FROM planned", "VACUUM planned", "SELECT nix"} {
		plan, err := s.Explain(t.Context(), engi.Query{Text: sql})
		if !engi.Is(err, engi.Invalid) {
			t.Errorf("the plan of %s is %q, %v", sql, plan, err)
		}
	}
	if plan, err := s.Explain(t.Context(), engi.Query{Text: "SELECT * FROM planned WHERE n = $1", Args: []any{7.0}, ReadOnly: true}); err != nil || !strings.Contains(plan, "7") {
		t.Errorf("the plan of a query with arguments is %q, %v", plan, err)
	}
	if got := table(t, s.do(t, engi.Query{Text: "SELECT n FROM planned"})); got != `[[1]]` {
		t.Errorf("the table has %s", got)
	}
}

func TestPostgresLost(t *testing.T) {
	s := started(t, engi.ServicePostgres)
	_, err := s.Query(t.Context(), engi.Query{Text: "SELECT pg_terminate_backend(pg_backend_pid())"})
	if !engi.Is(err, engi.Unavailable) {
		t.Errorf("a connection that is ended: %v", err)
	}
	if r := s.do(t, engi.Query{Text: "SELECT 1"}); r.Error != nil {
		t.Errorf("after that: %v", r.Error)
	}
}
