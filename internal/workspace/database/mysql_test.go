package database_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestMySQLValues(t *testing.T) {
	s := started(t, engi.ServiceMySQL)
	s.must(t, `DROP TABLE IF EXISTS vals; CREATE TABLE vals (
ti tinyint, tu tinyint unsigned, si smallint, mi mediumint, i int, iz int(8) zerofill, b bigint, bu bigint unsigned, d decimal(30,10), f float, dd double,
da date, dt datetime(6), ts timestamp(3) NULL, tm time(6), y year, bi bit(10), c char(3), v varchar(50), bin binary(2), vb varbinary(5), tx text, bl blob,
e enum('a','b,c'), st set('x','y'), js json, u uuid, ip inet6) CHARACTER SET utf8mb4`,
		`INSERT INTO vals VALUES (-128, 255, -32768, 8388607, -2147483648, 42, 9007199254740993, 18446744073709551615, 12345678901234567890.5, 0.1, 0.30000000000000004,
'2024-02-29', '2024-02-29 23:59:59.123456', '2024-02-29 23:59:59.5', '-838:59:58.000001', 2024, b'1000000011', 'ä', '€😀"\\', x'00ff', x'dead', 'text', x'00',
'b,c', 'x,y', '{"a": 1}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '::1')`,
		"INSERT INTO vals (i) VALUES (NULL)", "SET sql_mode = ''; INSERT INTO vals (i, dt) VALUES (7, '0000-00-00')")
	want := compact(t, `[-128,255,-32768,8388607,-2147483648,42,"9007199254740993","18446744073709551615","12345678901234567890.5000000000",0.1,0.30000000000000004,
"2024-02-29","2024-02-29T23:59:59.123456","2024-02-29T22:59:59.500Z","-838:59:58.000001",2024,"0000001000000011","ä","€😀\"\\","AP8=","3q0=","text","AA==",
"b,c","x,y",{"a": 1},"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","::1"]`)
	want = strings.Replace(want, "22:59:59.500Z", "23:59:59.500Z", 1) // it was written in UTC
	types := "tinyint,tinyint unsigned,smallint,mediumint,int,int unsigned,bigint,bigint unsigned,decimal,float,double,date,datetime,timestamp,time,year,bit,char,varchar,binary,varbinary,text,blob,enum,set,json,uuid,inet6"
	for _, q := range []engi.Query{
		{Text: "SELECT * FROM vals WHERE i < 0"},
		{Text: "SELECT * FROM vals WHERE i < ?", Args: []any{0.0}},
		{Text: "SELECT * FROM vals WHERE i < 0", ReadOnly: true},
		{Text: "SELECT * FROM vals WHERE i < ?", Args: []any{json.Number("0")}, ReadOnly: true},
	} {
		r := s.do(t, q)
		if diff := cmp.Diff("["+want+"]", table(t, r)); diff != "" {
			t.Errorf("%s with %v: %s", q.Text, q.Args, diff)
		}
		var names []string
		for _, c := range r.Columns {
			names = append(names, c.Type)
		}
		if diff := cmp.Diff(types, strings.Join(names, ",")); diff != "" {
			t.Error(diff)
		}
	}
	for _, q := range []engi.Query{{Text: "SELECT i, dt FROM vals WHERE coalesce(i, 7) = 7 ORDER BY i"}, {Text: "SELECT i, dt FROM vals WHERE coalesce(i, 7) = ? ORDER BY i", Args: []any{7.0}}} {
		if got := table(t, s.do(t, q)); got != `[[null,null],[7,"0000-00-00 00:00:00.000000"]]` {
			t.Errorf("%s: %s", q.Text, got)
		}
	}
}

func TestMySQLArguments(t *testing.T) {
	s := started(t, engi.ServiceMySQL)
	for _, x := range []struct {
		sql  string
		args []any
		want string
	}{
		{"SELECT ? + ?", []any{json.Number("40"), 2.0}, `[[42]]`},
		{"SELECT ?, ?", []any{nil, "'; DROP TABLE x; --"}, `[[null,"'; DROP TABLE x; --"]]`},
		{"SELECT ? + 0", []any{json.Number("0.10")}, `[[0.10]]`},
		{"SELECT ? = true, ? = false", []any{true, false}, `[[1,1]]`},
		{"SELECT json_value(?, '$.a[1]')", []any{map[string]any{"a": []any{1.0, "x"}}}, `[["x"]]`},
		{"SELECT 1 UNION SELECT 2 ORDER BY 1 LIMIT ?", []any{1.0}, `[[1]]`},
		{"SELECT length(?)", []any{strings.Repeat("x", 300_000)}, `[[300000]]`},
		{"SELECT ?", []any{json.Number("-9223372036854775808")}, `[["-9223372036854775808"]]`},
		{"SELECT ? + 0.0", []any{json.Number("1e3")}, `[[1000]]`},
		{"SELECT length(concat(?, ?))", []any{strings.Repeat("x", 70_000), strings.Repeat("y", 300)}, `[[70300]]`},
	} {
		for _, readOnly := range []bool{false, true} {
			if got := table(t, s.do(t, engi.Query{Text: x.sql, Args: x.args, ReadOnly: readOnly})); got != x.want {
				t.Errorf("%s with %.100v: got %s, want %s", x.sql, x.args, got, x.want)
			}
		}
	}
	if r := s.do(t, engi.Query{Text: "SELECT ?", Args: []any{1.0, 2.0}}); r.Error == nil || r.Error.Code != "07001" {
		t.Errorf("too many arguments: %+v", r.Error)
	}
}

func TestMySQLStatements(t *testing.T) {
	s := started(t, engi.ServiceMySQL)
	s.must(t, "DROP TABLE IF EXISTS stmt; CREATE TABLE stmt (n int)",
		"CREATE OR REPLACE PROCEDURE two(x int) BEGIN SELECT x; SELECT x + 1, 'b'; END")
	for _, x := range []struct {
		q        engi.Query
		want     string
		affected int64
	}{
		{engi.Query{Text: "INSERT INTO stmt VALUES (1),(2),(3)"}, `[]`, 3},
		{engi.Query{Text: "INSERT INTO stmt VALUES (?) RETURNING n", Args: []any{4.0}}, `[[4]]`, -1},
		{engi.Query{Text: "SELECT 1; SELECT 2, 3"}, `[[2,3]]`, -1},
		{engi.Query{Text: "SELECT 1; DELETE FROM stmt WHERE n = 2"}, `[]`, 1},
		{engi.Query{Text: "BEGIN; INSERT INTO stmt VALUES (9); ROLLBACK; SELECT count(*) FROM stmt"}, `[[3]]`, -1},
		{engi.Query{Text: "SELECT 'a;b';"}, `[["a;b"]]`, -1},
		{engi.Query{Text: "CALL two(1)"}, `[]`, 0},
		{engi.Query{Text: "CALL two(?)", Args: []any{1.0}}, `[[2,"b"]]`, -1},
	} {
		r := s.do(t, x.q)
		if got := table(t, r); got != x.want || r.Affected != x.affected {
			t.Errorf("%s: got %s and %d rows, want %s and %d", x.q.Text, got, r.Affected, x.want, x.affected)
		}
	}
}

func TestMySQLErrors(t *testing.T) {
	s := started(t, engi.ServiceMySQL)
	for _, x := range []struct {
		q    engi.Query
		code string
	}{
		{engi.Query{Text: "SELECT nix"}, "42S22"},
		{engi.Query{Text: "SELEC 1"}, "42000"},
		{engi.Query{Text: "SELECT 1; SELECT nix"}, "42S22"},
		{engi.Query{Text: "SELECT nix + ?", Args: []any{1.0}}, "42S22"},
		{engi.Query{Text: "SELECT 1; SELECT 2", ReadOnly: true}, "42000"},
		{engi.Query{Text: "SELECT ?; SELECT 2", Args: []any{1.0}}, "42000"},
		{engi.Query{Text: "SELECT (SELECT 1 UNION SELECT 2)"}, "21000"},
		{engi.Query{Text: "SELECT 1", Database: "nowhere"}, "42000"},
		{engi.Query{Text: "SELECT 1", Database: "nowhere", ReadOnly: true}, "42000"},
	} {
		r := s.do(t, x.q)
		if r.Error == nil || r.Error.Code != x.code {
			t.Errorf("%s: got %+v, want %s", x.q.Text, r.Error, x.code)
		}
	}
	wrong := *s
	wrong.Password = "wr0ng-password"
	_, err := wrong.Query(t.Context(), engi.Query{Text: "SELECT 1"})
	if !engi.Is(err, engi.Unavailable) || strings.Contains(err.Error(), wrong.Password) {
		t.Errorf("with a wrong password: %v", err)
	}
	ended := make(chan error)
	go func() {
		_, err := s.Query(t.Context(), engi.Query{Text: "SELECT sleep(30) /* to be ended */"})
		ended <- err
	}()
	for {
		r := s.do(t, engi.Query{Text: "SELECT id FROM information_schema.processlist WHERE info LIKE ? AND id <> connection_id()", Args: []any{"%to be ended%"}})
		if len(r.Rows) > 0 {
			s.must(t, "KILL CONNECTION "+string(r.Rows[0][0]))
			break
		}
	}
	if err := <-ended; !engi.Is(err, engi.Unavailable) {
		t.Errorf("a connection that is ended: %v", err)
	}
}

func TestMySQLLimits(t *testing.T) {
	s := started(t, engi.ServiceMySQL)
	for _, readOnly := range []bool{false, true} {
		for _, x := range []struct {
			q         engi.Query
			rows      int
			truncated bool
		}{
			{engi.Query{Text: "SELECT seq FROM seq_1_to_10000000"}, 1000, true},
			{engi.Query{Text: "SELECT seq FROM seq_1_to_1000"}, 1000, false},
			{engi.Query{Text: "SELECT seq FROM seq_1_to_10", MaxRows: 9}, 9, true},
			{engi.Query{Text: "SELECT seq FROM seq_1_to_10000000 WHERE seq > ?", Args: []any{0.0}}, 1000, true},
			{engi.Query{Text: "SELECT seq FROM seq_1_to_1000000 LIMIT 1000000"}, 1000, true},
			{engi.Query{Text: "SELECT repeat('x', 10000) FROM seq_1_to_1000", MaxBytes: 100_200}, 10, true},
			{engi.Query{Text: "SELECT repeat('x', 15000000), 2"}, 0, true},
		} {
			x.q.ReadOnly = readOnly
			r := s.do(t, x.q)
			if r.Error != nil || len(r.Rows) != x.rows || r.Truncated != x.truncated {
				t.Errorf("%s: %d rows, truncated %v, error %v; want %d, %v", x.q.Text, len(r.Rows), r.Truncated, r.Error, x.rows, x.truncated)
			}
		}
	}
	s.must(t, "SET GLOBAL max_allowed_packet = 67108864")
	r := s.do(t, engi.Query{Text: "SELECT 1, repeat('x', 16777215), 2 UNION ALL SELECT 3, repeat('y', 40000000), 4"})
	if len(r.Rows) != 0 || !r.Truncated {
		t.Errorf("rows of several packets: %d rows, truncated %v", len(r.Rows), r.Truncated)
	}
	r = s.do(t, engi.Query{Text: "SELECT repeat('x', 16777211) UNION ALL SELECT 'y'", MaxBytes: 16 << 20})
	if len(r.Rows) != 0 || !r.Truncated || r.Error != nil {
		t.Errorf("a row of a whole packet: %d rows, truncated %v, error %v", len(r.Rows), r.Truncated, r.Error)
	}
	// Rows beyond the limit are still computed.
	s.must(t, "DROP TABLE IF EXISTS cutoff; CREATE TABLE cutoff (n int)")
	r = s.do(t, engi.Query{Text: "INSERT INTO cutoff SELECT seq FROM seq_1_to_500 RETURNING n, repeat('x', 10000)"})
	if len(r.Rows) == 500 || !r.Truncated {
		t.Errorf("an insertion returns %d rows", len(r.Rows))
	}
	if got := table(t, s.do(t, engi.Query{Text: "SELECT count(*) FROM cutoff"})); got != `[[500]]` {
		t.Errorf("there are %s rows", got)
	}
	idle(t, s, "engi")
}

func TestMySQLTimeout(t *testing.T) {
	s := started(t, engi.ServiceMySQL)
	for _, q := range []engi.Query{
		{Text: "SELECT sleep(60)"},
		{Text: "SELECT sleep(60)", ReadOnly: true},
		{Text: "SELECT benchmark(10000000000, md5('x'))"},
		{Text: "SET max_statement_time = 0; SELECT sleep(60)"},
		{Text: "SELECT a.seq FROM seq_1_to_1000000 a, seq_1_to_1000000 b LIMIT 1000000000000"},
		{Text: "SELECT sleep(?)", Args: []any{60.0}},
	} {
		q.Timeout = 300 * time.Millisecond
		r, err := s.Query(t.Context(), q)
		if !engi.Is(err, engi.Expired) {
			t.Errorf("%s: %+v, %v", q.Text, r, err)
		}
		idle(t, s, "engi")
	}
}

// TestMySQLReadOnly tries changes and accesses that a read-only query must not have.
func TestMySQLReadOnly(t *testing.T) {
	s := started(t, engi.ServiceMySQL)
	secret := filepath.Join(s.dir, "pw-of-the-server")
	if err := os.WriteFile(secret, []byte("stolen"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.must(t, "DROP TABLE IF EXISTS precious; CREATE TABLE precious (n int); INSERT INTO precious VALUES (1)",
		"CREATE OR REPLACE FUNCTION meddle() RETURNS int MODIFIES SQL DATA BEGIN INSERT INTO precious VALUES (2); RETURN 1; END",
		"CREATE OR REPLACE PROCEDURE meddle_more() BEGIN COMMIT; SET SESSION tx_read_only = 0; INSERT INTO precious VALUES (3); END",
		"CREATE OR REPLACE VIEW meddling AS SELECT meddle() AS n",
		"CREATE DATABASE IF NOT EXISTS other; DROP TABLE IF EXISTS other.t; CREATE TABLE other.t AS SELECT 1 AS n")
	if got := table(t, s.do(t, engi.Query{Text: "SELECT n FROM precious", ReadOnly: true})); got != `[[1]]` {
		t.Errorf("reading gives %s", got)
	}
	if got := table(t, s.do(t, engi.Query{Text: "SELECT n FROM t", ReadOnly: true, Database: "other"})); got != `[[1]]` {
		t.Errorf("reading another database gives %s", got)
	}
	if got := table(t, s.do(t, engi.Query{Text: "SELECT load_file('" + secret + "') IS NULL", ReadOnly: true})); got != `[[1]]` {
		t.Errorf("a file of the server is %s", got)
	}
	for _, sql := range []string{
		"INSERT INTO precious VALUES (9)",
		"DROP TABLE precious",
		"TRUNCATE precious",
		"COMMIT; DROP TABLE precious",
		"BEGIN NOT ATOMIC COMMIT; SET SESSION tx_read_only = 0; INSERT INTO precious VALUES (9); END",
		"BEGIN NOT ATOMIC COMMIT; DROP TABLE precious; END",
		"BEGIN NOT ATOMIC ROLLBACK; SET SESSION tx_read_only = 0; START TRANSACTION READ WRITE; DELETE FROM precious; COMMIT; END",
		"EXECUTE IMMEDIATE 'DROP TABLE precious'",
		"SELECT meddle()", "CALL meddle_more()", "SELECT n FROM meddling",
		"SELECT n FROM precious INTO OUTFILE '" + s.dir + "/out'",
		"SELECT n FROM precious INTO DUMPFILE '" + s.dir + "/out'",
		"LOAD DATA INFILE '" + secret + "' INTO TABLE precious",
		"LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE precious",
		"SET GLOBAL max_connections = 1", "FLUSH TABLES WITH READ LOCK", "KILL 1", "SHUTDOWN",
		"GRANT ALL ON *.* TO engi_reader", "CREATE USER x", "ALTER USER engi_reader IDENTIFIED BY 'x'", "SET ROLE admin",
		"CREATE TEMPORARY TABLE x (n int)", "LOCK TABLES precious WRITE", "SELECT n FROM precious FOR UPDATE",
		"SELECT * FROM mysql.global_priv", "INSTALL SONAME 'x'", "ANALYZE TABLE precious", "EXPLAIN DELETE FROM precious",
		"HANDLER precious OPEN; HANDLER precious READ FIRST", "CREATE FUNCTION sys_exec RETURNS int SONAME 'x.so'", "DO release_lock('x'), meddle()",
	} {
		r, err := s.Query(t.Context(), engi.Query{Text: sql, ReadOnly: true})
		if err == nil && r.Error == nil {
			t.Errorf("%s: got %s and %d rows", sql, table(t, r), r.Affected)
		} else if err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	for _, sql := range []string{"COMMIT", "SET SESSION TRANSACTION READ WRITE", "SET tx_read_only = 0", "SELECT get_lock('x', 0)", "USE app"} {
		s.do(t, engi.Query{Text: sql, ReadOnly: true})
	}
	if got := table(t, s.do(t, engi.Query{Text: "SELECT n FROM precious"})); got != `[[1]]` {
		t.Errorf("the table has %s", got)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "out")); !os.IsNotExist(err) {
		t.Errorf("a file was written: %v", err)
	}
	if _, err := s.Query(t.Context(), engi.Query{Text: "SELECT 1", ReadOnly: true, Database: "mysql"}); !engi.Is(err, engi.Denied) {
		t.Errorf("the database of the server: %v", err)
	}
	// The user may change its own password, which is then reset.
	s.do(t, engi.Query{Text: "BEGIN NOT ATOMIC COMMIT; SET SESSION tx_read_only = 0; SET PASSWORD = PASSWORD('x'); END", ReadOnly: true})
	if got := table(t, s.do(t, engi.Query{Text: "SELECT 1", ReadOnly: true})); got != `[[1]]` {
		t.Errorf("after a change of the password: %s", got)
	}
}

// TestMySQLInfile makes the server request a file of this machine.
func TestMySQLInfile(t *testing.T) {
	s := started(t, engi.ServiceMySQL)
	s.must(t, "DROP TABLE IF EXISTS stolen; CREATE TABLE stolen (line text)", "SET GLOBAL local_infile = 1")
	for _, text := range []string{"LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE stolen", "LOAD DATA LOCAL INFILE 'Reader::x' INTO TABLE stolen"} {
		if r := s.do(t, engi.Query{Text: text}); r.Error == nil {
			t.Errorf("%s: %+v", text, r)
		}
	}
	if got := table(t, s.do(t, engi.Query{Text: "SELECT count(*) FROM stolen"})); got != `[[0]]` {
		t.Errorf("%s lines are there", got)
	}
}

func TestMySQLCatalog(t *testing.T) {
	s := started(t, engi.ServiceMySQL)
	s.must(t, "DROP DATABASE IF EXISTS cat; CREATE DATABASE cat; USE cat; CREATE TABLE owners (id int PRIMARY KEY); "+
		"CREATE TABLE cats (id int AUTO_INCREMENT PRIMARY KEY, name varchar(20) NOT NULL DEFAULT 'Tom', age decimal(4,1), owner int, UNIQUE named (name), CONSTRAINT grown CHECK (age > 0), CONSTRAINT owned FOREIGN KEY (owner) REFERENCES owners (id)); "+
		"CREATE VIEW names AS SELECT name FROM cats")
	for _, readOnly := range []bool{false, true} {
		q := engi.Query{ReadOnly: readOnly, Database: "cat"}
		all, err := s.Tables(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, x := range all {
			got = append(got, x.Schema+"."+x.Name+" "+x.Kind)
		}
		if diff := cmp.Diff([]string{"cat.cats table", "cat.names view", "cat.owners table"}, got); diff != "" {
			t.Error(diff)
		}
		for _, name := range []string{"cats", "cat.cats"} {
			d, err := s.Describe(t.Context(), q, name)
			if err != nil {
				t.Fatal(err)
			}
			want := engi.TableDescription{
				Table: engi.Table{Schema: "cat", Name: "cats", Kind: "table", Rows: d.Rows, Bytes: d.Bytes},
				Columns: []engi.TableColumn{
					{Name: "id", Type: "int(11)"},
					{Name: "name", Type: "varchar(20)", Default: "'Tom'"},
					{Name: "age", Type: "decimal(4,1)", Nullable: true},
					{Name: "owner", Type: "int(11)", Nullable: true},
				},
				Indexes: []engi.TableIndex{
					{Name: "named", Definition: "BTREE (name)", Unique: true},
					{Name: "owned", Definition: "BTREE (owner)"},
					{Name: "PRIMARY", Definition: "BTREE (id)", Unique: true, Primary: true},
				},
				Constraints: []engi.TableConstraint{
					{Name: "grown", Kind: "check", Definition: "CHECK (`age` > 0)"},
					{Name: "named", Kind: "unique", Definition: "(name)"},
					{Name: "owned", Kind: "foreign key", Definition: "(owner) REFERENCES owners (id)"},
					{Name: "PRIMARY", Kind: "primary key", Definition: "(id)"},
				},
			}
			if diff := cmp.Diff(want, d); diff != "" {
				t.Error(diff)
			}
		}
	}
	if _, err := s.Describe(t.Context(), engi.Query{}, "nowhere"); !engi.Is(err, engi.NotFound) {
		t.Errorf("a table that is not there: %v", err)
	}
	plan, err := s.Explain(t.Context(), engi.Query{Text: "SELECT * FROM cats WHERE id = ?", Args: []any{1.0}, Database: "cat", ReadOnly: true})
	if err != nil || !json.Valid([]byte(plan)) {
		t.Errorf("the plan is %q, %v", plan, err)
	}
	for _, sql := range []string{"SELECT 1; DROP TABLE cats", "ANALYZE DELETE FROM cats", "DROP TABLE cats"} {
		if plan, err := s.Explain(t.Context(), engi.Query{Text: sql, Database: "cat"}); !engi.Is(err, engi.Invalid) {
			t.Errorf("the plan of %s is %q, %v", sql, plan, err)
		}
	}
}
