package database

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// Explain returns the plan of a query, as the server prints it. The query is not run.
func (s Server) Explain(ctx context.Context, q engi.Query) (string, error) {
	// With options in parentheses, or a format, the server does not accept ANALYZE, which
	// would run the query.
	prefix := "EXPLAIN (FORMAT TEXT) "
	if s.Type == engi.ServiceMySQL {
		prefix = "EXPLAIN FORMAT=JSON "
	}
	if err := q.Faults().Err(); err != nil {
		return "", err
	}
	q.Text, q.MaxRows, q.MaxBytes = prefix+q.Text, 100_000, 4<<20
	r, err := s.query(ctx, q, false) // one statement, so that no others are run
	if err != nil {
		return "", err
	}
	if e := r.Error; e != nil {
		at := ""
		if e.Position > len(prefix) {
			at = " at character " + strconv.Itoa(e.Position-len(prefix))
		}
		return "", engi.Errorf(engi.Invalid, "explain the query: %s (%s)%s", e.Text, e.Code, at)
	}
	var lines []string
	for _, row := range r.Rows {
		var line string
		if len(row) != 1 || json.Unmarshal(row[0], &line) != nil {
			return "", engi.Errorf(engi.Invalid, "explain the query: this kind of statement has no plan")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n"), nil
}

// maxObjects is the maximum number of tables in a list, and of columns and other parts of a table.
const maxObjects = 10_000

// fetch runs a query of this package.
func (s Server) fetch(ctx context.Context, q engi.Query, what, sql string, args ...any) ([][]json.RawMessage, error) {
	q.Text, q.Args, q.MaxRows, q.MaxBytes = sql, args, maxObjects, engi.MaxQueryBytes
	r, err := s.Query(ctx, q)
	if err != nil {
		return nil, err
	}
	if r.Error != nil {
		return nil, engi.Errorf(engi.Conflict, "%s: %s (%s)", what, r.Error.Text, r.Error.Code)
	}
	return r.Rows, nil
}

// scan unmarshals the values of a row; NULLs leave the destination unchanged.
func scan(row []json.RawMessage, to ...any) error {
	if len(row) != len(to) {
		return engi.Errorf(engi.Unavailable, "the catalog of the server has %d values where there should be %d", len(row), len(to))
	}
	for i := range row {
		if err := json.Unmarshal(row[i], to[i]); err != nil {
			return engi.Errorf(engi.Unavailable, "the catalog of the server has an invalid value: %v", err)
		}
	}
	return nil
}

// A catalog holds the queries that read the structure of a database.
type catalog struct{ tables, table, columns, indexes, constraints string }

var postgresCatalog = catalog{
	tables: postgresTable + `AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' ORDER BY 1, 2`,
	table: postgresTable + `AND ($1 = n.nspname || '.' || c.relname OR $1 = c.relname AND pg_catalog.pg_table_is_visible(c.oid))
ORDER BY $1 = c.relname DESC LIMIT 1`,
	columns: `SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, pg_catalog.pg_get_expr(d.adbin, d.adrelid)
FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attrelid = ` + postgresNamed + ` ORDER BY a.attnum`,
	indexes: `SELECT c.relname, pg_catalog.pg_get_indexdef(i.indexrelid), i.indisunique, i.indisprimary
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = ` + postgresNamed + ` ORDER BY 1`,
	constraints: `SELECT conname, CASE contype WHEN 'p' THEN 'primary key' WHEN 'f' THEN 'foreign key' WHEN 'u' THEN 'unique' WHEN 'c' THEN 'check'
WHEN 'x' THEN 'exclusion' ELSE 'trigger' END, pg_catalog.pg_get_constraintdef(oid)
FROM pg_catalog.pg_constraint WHERE conrelid = ` + postgresNamed + ` ORDER BY 1`,
}

const (
	postgresTable = `SELECT n.nspname, c.relname,
CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table' ELSE 'table' END,
CASE WHEN c.relkind IN ('r', 'm', 'p') THEN c.reltuples::bigint ELSE -1 END,
CASE WHEN c.relkind IN ('r', 'm') THEN coalesce(pg_catalog.pg_total_relation_size(c.oid), -1) ELSE -1 END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') `
	postgresNamed = `(SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'v', 'm', 'f'))`
)

var mysqlCatalog = catalog{
	tables: mysqlTable + `AND table_schema = coalesce(database(), table_schema) ORDER BY 1, 2`,
	table: mysqlTable + `AND (concat(table_schema, '.', table_name) = ? OR table_schema = database() AND table_name = ?)
ORDER BY table_schema = database() DESC LIMIT 1`,
	columns: `SELECT column_name, column_type, if(is_nullable = 'YES', 'true', 'false'), nullif(column_default, 'NULL')
FROM information_schema.columns WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position`,
	indexes: `SELECT index_name, concat(index_type, ' (', group_concat(concat(column_name, if(sub_part IS NULL, '', concat('(', sub_part, ')'))) ORDER BY seq_in_index SEPARATOR ', '), ')'),
if(min(non_unique) = 0, 'true', 'false'), if(index_name = 'PRIMARY', 'true', 'false')
FROM information_schema.statistics WHERE table_schema = ? AND table_name = ? GROUP BY index_name, index_type ORDER BY 1`,
	constraints: `SELECT c.constraint_name, lower(c.constraint_type), coalesce(k.definition, concat('CHECK (', x.check_clause, ')'), '')
FROM information_schema.table_constraints c
LEFT JOIN (SELECT k.constraint_name, k.table_schema, k.table_name, concat('(', group_concat(k.column_name ORDER BY k.ordinal_position SEPARATOR ', '), ')',
if(max(k.referenced_table_name) IS NULL, '', concat(' REFERENCES ', max(k.referenced_table_name), ' (', group_concat(k.referenced_column_name ORDER BY k.ordinal_position SEPARATOR ', '), ')'))) AS definition
FROM information_schema.key_column_usage k GROUP BY 1, 2, 3) k
ON k.constraint_name = c.constraint_name AND k.table_schema = c.table_schema AND k.table_name = c.table_name
LEFT JOIN information_schema.check_constraints x
ON x.constraint_name = c.constraint_name AND x.constraint_schema = c.table_schema AND x.table_name = c.table_name
WHERE c.table_schema = ? AND c.table_name = ? ORDER BY 1`,
}

const mysqlTable = `SELECT table_schema, table_name, CASE table_type WHEN 'BASE TABLE' THEN 'table' ELSE lower(table_type) END,
coalesce(table_rows, -1), coalesce(data_length + index_length, -1)
FROM information_schema.tables WHERE table_schema NOT IN ('mysql', 'sys', 'performance_schema', 'information_schema') `

func (s Server) catalog() catalog {
	if s.Type == engi.ServiceMySQL {
		return mysqlCatalog
	}
	return postgresCatalog
}

// Tables lists the tables of a database by schema and name, without the server's own.
func (s Server) Tables(ctx context.Context, q engi.Query) ([]engi.Table, error) {
	if s.Type == engi.ServiceMongoDB {
		return s.collections(ctx, q)
	}
	rows, err := s.fetch(ctx, q, "list the tables", s.catalog().tables)
	if err != nil {
		return nil, err
	}
	tables := make([]engi.Table, len(rows))
	for i, row := range rows {
		if err := scanTable(row, &tables[i]); err != nil {
			return nil, err
		}
	}
	return tables, nil
}

func scanTable(row []json.RawMessage, t *engi.Table) error {
	return scan(row, &t.Schema, &t.Name, &t.Kind, &t.Rows, &t.Bytes)
}

// Describe returns the structure of a table. The name, as in the catalog, may have a
// schema.
func (s Server) Describe(ctx context.Context, q engi.Query, table string) (d engi.TableDescription, err error) {
	cat := s.catalog()
	args := []any{table}
	if s.Type == engi.ServiceMySQL {
		args = append(args, table)
	}
	rows, err := s.fetch(ctx, q, "find the table", cat.table, args...)
	if err != nil {
		return d, err
	}
	if len(rows) == 0 {
		return d, engi.Errorf(engi.NotFound, "there is no table %s", clip.Text(table, maxErrText)).WithRemedy("list the tables; a name may have a schema in front, and is written as it is there")
	}
	if err := scanTable(rows[0], &d.Table); err != nil {
		return d, err
	}
	if rows, err = s.fetch(ctx, q, "read the columns", cat.columns, d.Schema, d.Name); err != nil {
		return d, err
	}
	d.Columns = make([]engi.TableColumn, len(rows))
	for i, row := range rows {
		c := &d.Columns[i]
		if err := scan(row, &c.Name, &c.Type, (*truth)(&c.Nullable), &c.Default); err != nil {
			return d, err
		}
	}
	if rows, err = s.fetch(ctx, q, "read the indexes", cat.indexes, d.Schema, d.Name); err != nil {
		return d, err
	}
	d.Indexes = make([]engi.TableIndex, len(rows))
	for i, row := range rows {
		x := &d.Indexes[i]
		if err := scan(row, &x.Name, &x.Definition, (*truth)(&x.Unique), (*truth)(&x.Primary)); err != nil {
			return d, err
		}
	}
	if rows, err = s.fetch(ctx, q, "read the constraints", cat.constraints, d.Schema, d.Name); err != nil {
		return d, err
	}
	d.Constraints = make([]engi.TableConstraint, len(rows))
	for i, row := range rows {
		c := &d.Constraints[i]
		if err := scan(row, &c.Name, &c.Kind, &c.Definition); err != nil {
			return d, err
		}
	}
	return d, nil
}

// truth is a bool that may be encoded as a string, because MySQL has no bool.
type truth bool

func (t *truth) UnmarshalJSON(b []byte) error {
	switch strings.Trim(string(b), `"`) {
	case "true":
		*t = true
	case "false":
		*t = false
	default:
		return strconv.ErrSyntax
	}
	return nil
}
