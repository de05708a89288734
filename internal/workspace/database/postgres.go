package database

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A postgres is a connection to a Postgres server. The driver connects and logs in;
// afterwards this package reads the messages, because the driver allocates whatever length a
// server claims, and cannot skip the rest of a result.
type postgres struct {
	*link
	r   *bufio.Reader
	out []byte // messages to be sent
	pid uint32
	key []byte

	extended bool // the messages in out end with a Sync
}

func (s Server) connectPostgres(ctx context.Context, q engi.Query) (*postgres, error) {
	// The driver only accepts configurations of its parser, which reads
	// the environment: the settings from there are removed.
	cfg, err := pgconn.ParseConfig("host=127.0.0.1 sslmode=disable")
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "configure the client of Postgres: %v", err)
	}
	var c *link
	var r io.Reader // reader of the driver, which may still read from it in the background
	cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database = "127.0.0.1", 5432, s.User, s.Password, q.Database
	cfg.TLSConfig, cfg.Fallbacks, cfg.ValidateConnect, cfg.AfterConnect, cfg.AfterNetConnect, cfg.OnNotice = nil, nil, nil, nil, nil, nil
	cfg.OAuthTokenProvider, cfg.ConnectTimeout, cfg.MinProtocolVersion, cfg.MaxProtocolVersion = nil, 0, "3.0", "3.0"
	cfg.RequireAuth = "!password" // a plain password would be readable
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	cfg.RuntimeParams = map[string]string{
		"application_name": "engi",
		"client_encoding":  "UTF8",
		"DateStyle":        "ISO",
		// The server ends queries itself if no node is there to cancel them.
		"statement_timeout":                strconv.FormatInt((q.Timeout + patience).Milliseconds(), 10),
		"client_connection_check_interval": "1000",
	}
	if q.ReadOnly {
		cfg.RuntimeParams["default_transaction_read_only"] = "on"
	}
	var dialed atomic.Bool
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		if !dialed.CompareAndSwap(false, true) {
			return nil, net.ErrClosed // rejects the driver's cancellation, in the background, of a failed login
		}
		var err error
		if c, err = s.dial(ctx); err != nil {
			return nil, err
		}
		return c, nil
	}
	cfg.BuildFrontend = func(from io.Reader, w io.Writer) *pgproto3.Frontend {
		r = from
		f := pgproto3.NewFrontend(r, w)
		f.SetMaxBodyLen(maxGreeting)
		return f
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		var e *pgconn.PgError
		var ours *engi.Error
		switch {
		case errors.As(err, &ours):
			return nil, ours
		case errors.As(err, &e):
			return nil, &refusal{engi.QueryError{Code: e.Code, Text: e.Message, Detail: e.Detail, Hint: e.Hint}}
		}
		return nil, err
	}
	taken, err := conn.Hijack()
	if err != nil {
		c.Close()
		return nil, engi.Errorf(engi.Internal, "take over a connection to Postgres: %v", err)
	}
	c.left.Store(maxTraffic)
	return &postgres{link: c, r: bufio.NewReaderSize(r, 32<<10), pid: taken.PID, key: taken.SecretKey}, nil
}

// close ends the session.
func (p *postgres) close() {
	_ = p.SetDeadline(time.Now().Add(goodbye))
	_, _ = p.Write([]byte{'X', 0, 0, 0, 4})
	_ = p.Close()
}

// openPostgres connects as the user for q, and creates that user if necessary.
func (s Server) openPostgres(ctx context.Context, q engi.Query) (*postgres, error) {
	if !q.ReadOnly {
		return s.connectPostgres(ctx, q)
	}
	p, err := s.reader().connectPostgres(ctx, q)
	var r *refusal
	if !errors.As(err, &r) || r.Code != "28P01" && r.Code != "28000" {
		return p, err
	}
	madeErr := s.makePostgresReader(ctx)
	if p, err = s.reader().connectPostgres(ctx, q); err != nil && madeErr != nil {
		return nil, madeErr
	}
	return p, err
}

// makePostgresReader creates the user of read-only queries, or resets its settings.
func (s Server) makePostgresReader(ctx context.Context) error {
	q := engi.Query{Database: s.Database, Timeout: DefaultTimeout}
	p, err := s.connectPostgres(ctx, q)
	if err != nil {
		return err
	}
	defer p.close()
	defer guard(ctx, p, p.canceller(s))()
	_, err = p.simple(q, fmt.Sprintf(`SELECT pg_catalog.pg_advisory_xact_lock(hashtextextended('%[1]s', 0));
DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = '%[1]s') THEN CREATE ROLE %[1]s; END IF; END $$;
ALTER ROLE %[1]s LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD '%[2]s';
GRANT pg_read_all_data TO %[1]s`, readerName, s.reader().verifier()))
	var r *refusal
	if errors.As(err, &r) && r.Code == "42501" {
		return engi.Errorf(engi.Denied, "make the user %s, who may only read: %s", readerName, r.Text).WithRemedy("give the user of the service the right to create roles")
	}
	return err
}

// verifier returns the value that Postgres stores for a password. Logs may show it, but never the password.
// Its salt is constant, because resetting the user would otherwise break concurrent logins.
func (s Server) verifier() string {
	const rounds = 4096
	salt := sha256.Sum256([]byte(s.User + s.Password))
	key, err := pbkdf2.Key(sha256.New, s.Password, salt[:16], rounds, sha256.Size)
	if err != nil {
		return "" // unreachable: the lengths are valid
	}
	mac := func(text string) []byte {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	stored := sha256.Sum256(mac("Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, b64(salt[:16]), b64(stored[:]), b64(mac("Server Key")))
}

func (s Server) queryPostgres(ctx context.Context, q engi.Query, several bool) (engi.QueryResult, error) {
	args, err := arguments(q.Args)
	if err != nil {
		return engi.QueryResult{}, err
	}
	p, err := s.openPostgres(ctx, q)
	var r *refusal
	if errors.As(err, &r) && r.Code == "3D000" { // the database does not exist
		return engi.QueryResult{Affected: -1, Error: &r.QueryError}, nil
	}
	if err != nil {
		return engi.QueryResult{}, err
	}
	defer p.close()
	defer guard(ctx, p, p.canceller(s))()
	return p.query(ctx, s, q, args, several)
}

// canceller returns a function that asks the server to cancel p's running query.
func (p *postgres) canceller(s Server) func(context.Context) {
	return func(ctx context.Context) {
		c, err := s.Dial(ctx)
		if err != nil {
			return // guard closes p
		}
		defer c.Close()
		defer guard(ctx, c, nil)()
		request, err := (&pgproto3.CancelRequest{ProcessID: p.pid, SecretKey: p.key}).Encode(nil)
		if err != nil {
			return
		}
		if _, err := c.Write(request); err == nil {
			_, _ = c.Read(make([]byte, 1)) // the server closes the connection after cancelling
		}
	}
}

func (p *postgres) query(ctx context.Context, s Server, q engi.Query, args []argument, several bool) (engi.QueryResult, error) {
	if q.ReadOnly {
		if _, err := p.simple(q, "BEGIN READ ONLY"); err != nil {
			return engi.QueryResult{}, err
		}
	}
	if err := p.listArguments(q, args); err != nil {
		return engi.QueryResult{}, err
	}
	bind := &pgproto3.Bind{Parameters: make([][]byte, len(args))}
	for i, a := range args {
		bind.Parameters[i] = a.text
	}
	began := time.Now()
	p.send(&pgproto3.Parse{Query: q.Text}, bind, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{MaxRows: uint32(q.MaxRows) + 1}, &pgproto3.Sync{})
	a, err := p.answer(q)
	if err == nil && a.several && several {
		p.send(&pgproto3.Query{String: q.Text})
		a, err = p.answer(q)
	}
	if err != nil {
		return engi.QueryResult{}, err
	}
	r := engi.QueryResult{Affected: a.affected, Truncated: a.rows.full, Took: time.Since(began), Error: a.err}
	if a.several && a.err != nil {
		a.err.Hint = "a query that is read-only or has arguments is one statement"
	}
	if a.err != nil {
		r.Affected = -1
		return r, nil
	}
	if a.stopped {
		askCtx, end := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer end()
		p.canceller(s)(askCtx)
	}
	types, err := p.types(q, a)
	if err != nil {
		return engi.QueryResult{}, err
	}
	convert := make([]func([]byte) json.RawMessage, len(a.columns))
	for i, c := range a.columns {
		t := types[c.oid]
		r.Columns = append(r.Columns, engi.Column{Name: clip.Text(c.name, maxErrText), Type: t.name})
		convert[i] = t.convert
	}
	r.Rows = a.rows.table(convert)
	return r, nil
}

// listArguments converts arguments to array literals where the parameter is an array.
func (p *postgres) listArguments(q engi.Query, args []argument) error {
	lists := false
	for _, a := range args {
		lists = lists || a.kind == 'j' && a.text[0] == '['
	}
	if !lists {
		return nil
	}
	p.send(&pgproto3.Parse{Query: q.Text}, &pgproto3.Describe{ObjectType: 'S'}, &pgproto3.Sync{})
	a, err := p.answer(q)
	if err != nil || a.err != nil {
		if a.err != nil && q.ReadOnly { // the query returns the same error, in a new transaction
			_, err = p.simple(q, "ROLLBACK; BEGIN READ ONLY")
		}
		return err
	}
	var oids []uint32
	for i := range args {
		if args[i].kind == 'j' && args[i].text[0] == '[' && i < len(a.parameters) {
			oids = append(oids, a.parameters[i])
		}
	}
	isArray := map[uint32]bool{}
	found, err := p.simple(q, "SELECT oid FROM pg_catalog.pg_type WHERE typcategory = 'A' AND oid IN ("+join(oids)+")")
	if err != nil {
		return err
	}
	for _, row := range found {
		if oid, err := strconv.ParseUint(string(row[0]), 10, 32); err == nil {
			isArray[uint32(oid)] = true
		}
	}
	for i := range args {
		if i < len(a.parameters) && args[i].kind == 'j' && isArray[a.parameters[i]] {
			if args[i].text, err = arrayLiteral(args[i].list); err != nil {
				return err
			}
		}
	}
	return nil
}

func join(oids []uint32) string {
	words := make([]string, len(oids))
	for i, oid := range oids {
		words[i] = strconv.FormatUint(uint64(oid), 10)
	}
	return strings.Join(append(words, "0"), ",")
}

func (p *postgres) send(messages ...pgproto3.FrontendMessage) {
	for _, m := range messages {
		out, err := m.Encode(p.out)
		if err != nil { // larger than a message may be, which is impossible with the limits of texts and arguments
			continue
		}
		p.out = out
		_, p.extended = m.(*pgproto3.Sync)
	}
}

// simple runs statements of this package and returns the rows of the last one. Errors of the
// server are refusals.
func (p *postgres) simple(q engi.Query, sql string) ([][][]byte, error) {
	p.send(&pgproto3.Query{String: sql})
	q.MaxRows, q.MaxBytes = engi.MaxQueryRows, engi.MaxQueryBytes
	a, err := p.answer(q)
	switch {
	case err != nil:
		return nil, err
	case a.err != nil:
		return nil, &refusal{*a.err}
	case a.rows.full:
		return nil, errFlood
	}
	for _, row := range a.rows.values {
		if len(row) != len(a.columns) {
			return nil, nonsense("a row has the wrong number of values")
		}
	}
	return a.rows.values, nil
}

// An answer is the answer of a server until it was ready for another query.
type answer struct {
	columns    []pgColumn
	parameters []uint32
	rows       *rows
	affected   int64
	err        *engi.QueryError
	several    bool // the error is that the text has several statements
	described  bool // columns describes the running statement
	stopped    bool // the server sends more, which is not read
}

type pgColumn struct {
	name string
	oid  uint32
}

// answer sends the messages in out and reads until the server is ready. It keeps the last of several
// results. A read-only result is only read up to its limits.
func (p *postgres) answer(q engi.Query) (answer, error) {
	a := answer{rows: newRows(q), affected: -1}
	if _, err := p.Write(p.out); err != nil {
		return a, err
	}
	p.out = p.out[:0]
	for {
		var head [5]byte
		if _, err := io.ReadFull(p.r, head[:]); err != nil {
			return a, err
		}
		size := int64(binary.BigEndian.Uint32(head[1:])) - 4
		if size < 0 || size > 1<<31 {
			return a, nonsense("a message has no length that there could be")
		}
		switch kind := head[0]; kind {
		case 'D', 'd':
			if !a.rows.take(len(a.columns), max(0, size-2-4*int64(len(a.columns)))) { // without the lengths of values
				if q.ReadOnly && len(a.rows.values) < q.MaxRows { // otherwise the server ends the result itself
					a.stopped = true
					return a, nil
				}
				if err := p.skip(size); err != nil {
					return a, err
				}
				continue
			}
			body := make([]byte, size)
			if _, err := io.ReadFull(p.r, body); err != nil {
				return a, err
			}
			row := [][]byte{body} // one line of COPY
			if kind == 'D' {
				var err error
				if row, err = splitRow(body, len(a.columns)); err != nil {
					return a, err
				}
			} else if len(a.columns) != 1 {
				return a, nonsense("it copies what was not to be copied")
			}
			a.rows.values = append(a.rows.values, row)
			continue
		case 'Z':
			if err := p.skip(size); err != nil {
				return a, err
			}
			return a, nil
		case 'T', 't', 'C', 'E', 'G', 'H', 's':
		case '1', '2', '3', 'n', 'I', 'N', 'A', 'S', 'c':
			if err := p.skip(size); err != nil {
				return a, err
			}
			continue
		default:
			return a, nonsense(fmt.Sprintf("it has a message %q", kind))
		}
		if size > maxMessage {
			return a, nonsense("a message is too long")
		}
		body := make([]byte, size)
		if _, err := io.ReadFull(p.r, body); err != nil {
			return a, err
		}
		if err := a.take(p, q, head[0], body); err != nil {
			return a, err
		}
	}
}

func (p *postgres) skip(size int64) error {
	_, err := io.CopyN(io.Discard, p.r, size)
	return err
}

// take handles a message that is not a row.
func (a *answer) take(p *postgres, q engi.Query, kind byte, body []byte) error {
	var err error
	switch kind {
	case 'T':
		var m pgproto3.RowDescription
		if err = m.Decode(body); err == nil {
			if len(m.Fields) > maxColumns {
				return nonsense("it has too many columns")
			}
			a.rows, a.columns, a.described = newRows(q), make([]pgColumn, len(m.Fields)), true
			for i, f := range m.Fields {
				if f.Format != 0 {
					return nonsense("a column is not text")
				}
				a.columns[i] = pgColumn{name: string(f.Name), oid: f.DataTypeOID}
			}
		}
	case 't':
		var m pgproto3.ParameterDescription
		err = m.Decode(body)
		a.parameters = m.ParameterOIDs
	case 'H':
		a.rows, a.columns, a.described = newRows(q), []pgColumn{{name: "copy", oid: textOID}}, true
	case 'G':
		extended := p.extended
		p.send(&pgproto3.CopyFail{Message: "there is nothing to copy from: use INSERT"})
		if extended { // the server has discarded the Sync
			p.send(&pgproto3.Sync{})
		}
		_, err = p.Write(p.out)
		p.out = p.out[:0]
		return err
	case 's':
		a.rows.full = true
	case 'C':
		var m pgproto3.CommandComplete
		if err = m.Decode(body); err == nil {
			a.affected = -1
			words := strings.Fields(string(m.CommandTag))
			if n := len(words); n > 1 {
				if rows, err := strconv.ParseInt(words[n-1], 10, 64); err == nil && rows >= 0 {
					a.affected = rows
				}
			}
			if !a.described { // a statement without rows, after one with rows
				a.rows, a.columns = newRows(q), nil
			}
			a.described = false
		}
	case 'E':
		var m pgproto3.ErrorResponse
		if err = m.Decode(body); err == nil {
			a.err = &engi.QueryError{Code: m.Code, Text: m.Message, Position: int(max(m.Position, 0)), Detail: m.Detail, Hint: m.Hint}
			a.several = m.Code == "42601" && m.Routine == "exec_parse_message"
			if strings.HasPrefix(m.Code, "57P") {
				return &refusal{*a.err} // the session ends
			}
		}
	}
	if err != nil {
		return nonsense("a message cannot be read")
	}
	return nil
}
