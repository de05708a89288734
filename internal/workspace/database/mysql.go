package database

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A mysql is a connection to a MySQL server. It uses no driver: the usual Go driver panics at
// short greetings and leaks a goroutine, allocates as many columns
// as a server claims, and reads results to their end.
type mysql struct {
	*link
	r          *bufio.Reader
	seq        byte // sequence number of the last packet
	deprecated bool // results have no EOF between columns and rows
	extended   bool // columns have extended type information
	id         uint32
}

// Commands, first bytes of packets, and flags of clients and servers.
const (
	comQuit        = 0x01
	comQuery       = 0x03
	comStmtPrepare = 0x16
	comStmtExecute = 0x17

	packetOK     = 0x00
	packetMore   = 0x01
	packetInfile = 0xfb
	packetEOF    = 0xfe
	packetErr    = 0xff

	moreResults = 0x0008 // flag of the status

	capMySQL        = 1 << 0 // the server is not MariaDB
	capDatabase     = 1 << 3
	capProtocol41   = 1 << 9
	capTransactions = 1 << 13
	capSecure       = 1 << 15
	capStatements   = 1 << 16
	capResults      = 1<<17 | 1<<18
	capPlugins      = 1 << 19
	capDeprecateEOF = 1 << 24
	capExtended     = 1 << 3 // flag of MariaDB

	utf8mb4 = 45
)

const (
	maxPacket      = 1<<24 - 1
	nativePassword = "mysql_native_password"
)

// connectMySQL connects as s's user. It supports only the login of MariaDB's users, and
// never sends files of the client.
func (s Server) connectMySQL(ctx context.Context, q engi.Query, several bool) (*mysql, error) {
	c, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer guard(ctx, c, nil)()
	m := &mysql{link: c, r: bufio.NewReaderSize(c, 32<<10), seq: 0xff}
	if err := m.login(s, q.Database, several); err != nil {
		c.Close()
		return nil, err
	}
	c.left.Store(maxTraffic)
	return m, nil
}

func (m *mysql) login(s Server, database string, several bool) error {
	greeting, err := m.packet(4096)
	if err != nil {
		return err
	}
	if greeting[0] == packetErr {
		return &refusal{*parseErr(greeting)}
	}
	end := bytes.IndexByte(greeting, 0) // end of the version
	if greeting[0] != 10 || end < 0 || len(greeting) < end+1+4+8+1+2+1+2+2+1+10+13 {
		return nonsense("it greets like no server of MySQL")
	}
	rest := greeting[end+1:]
	m.id = binary.LittleEndian.Uint32(rest)
	nonce := append(append([]byte{}, rest[4:12]...), rest[31:43]...)
	offered := uint32(binary.LittleEndian.Uint16(rest[13:])) | uint32(binary.LittleEndian.Uint16(rest[18:]))<<16

	caps := uint32(capProtocol41 | capTransactions | capSecure | capResults | capPlugins)
	if offered&caps != caps {
		return nonsense("it is older than servers of MySQL are")
	}
	caps |= offered & (capMySQL | capDeprecateEOF)
	if database != "" {
		caps |= capDatabase
	}
	if several {
		caps |= capStatements
	}
	m.deprecated = caps&capDeprecateEOF != 0
	m.extended = caps&capMySQL == 0 && binary.LittleEndian.Uint32(rest[27:])&capExtended != 0

	b := binary.LittleEndian.AppendUint32(nil, caps)
	b = binary.LittleEndian.AppendUint32(b, maxPacket)
	b = append(append(b, utf8mb4), make([]byte, 19)...)
	extended := uint32(0)
	if m.extended {
		extended = capExtended
	}
	b = binary.LittleEndian.AppendUint32(b, extended)
	proof := scramble(s.Password, nonce)
	b = append(append(append(b, s.User...), 0, byte(len(proof))), proof...)
	if database != "" {
		b = append(append(b, database...), 0)
	}
	if err := m.write(append(append(b, nativePassword...), 0)); err != nil {
		return err
	}
	return m.loggedIn(s)
}

// loggedIn reads the answer to a login, in which the server may ask for another method.
func (m *mysql) loggedIn(s Server) error {
	for range 2 {
		answer, err := m.packet(4096)
		if err != nil {
			return err
		}
		switch answer[0] {
		case packetOK:
			return nil
		case packetErr:
			return &refusal{*parseErr(answer)}
		}
		plugin, nonce, ok := bytes.Cut(answer[1:], []byte{0})
		if answer[0] != packetEOF || !ok || string(plugin) != nativePassword || len(nonce) < 20 {
			return nonsense("it wants a way to log in other than " + nativePassword)
		}
		if err := m.write(scramble(s.Password, nonce[:20])); err != nil {
			return err
		}
	}
	return nonsense("it wants to know the user without end")
}

// scramble returns the proof that a client knows a password.
func scramble(password string, nonce []byte) []byte {
	if password == "" {
		return nil
	}
	once := sha1.Sum([]byte(password))
	twice := sha1.Sum(once[:])
	proof := sha1.Sum(append(append([]byte{}, nonce...), twice[:]...))
	for i := range proof {
		proof[i] ^= once[i]
	}
	return proof[:]
}

// close ends the session.
func (m *mysql) close() {
	_ = m.SetDeadline(time.Now().Add(goodbye))
	_ = m.send(comQuit, nil)
	_ = m.link.Close()
}

// openMySQL connects as the user for q, and creates that user if necessary.
func (s Server) openMySQL(ctx context.Context, q engi.Query, several bool) (*mysql, error) {
	if !q.ReadOnly {
		return s.connectMySQL(ctx, q, several)
	}
	m, err := s.reader().connectMySQL(ctx, q, false)
	var r *refusal
	if !errors.As(err, &r) || r.Detail != "error 1045" && r.Detail != "error 1044" {
		return m, err
	}
	madeErr := s.makeMySQLReader(ctx, q)
	if m, err = s.reader().connectMySQL(ctx, q, false); err != nil && madeErr != nil {
		return nil, madeErr
	}
	return m, err
}

// makeMySQLReader creates the user of read-only queries, or resets its settings,
// and grants it reading the database of q.
func (s Server) makeMySQLReader(ctx context.Context, q engi.Query) error {
	switch strings.ToLower(q.Database) {
	case "mysql", "sys", "performance_schema":
		return engi.Errorf(engi.Denied, "the database %s is not for read-only queries", q.Database)
	}
	q.Timeout = DefaultTimeout
	m, err := s.connectMySQL(ctx, q, true)
	if err != nil {
		return err
	}
	defer m.close()
	defer guard(ctx, m, m.canceller(s))()
	user := "'" + readerName + "'@'%'"
	once := sha1.Sum([]byte(s.reader().Password))
	is := fmt.Sprintf("%s IDENTIFIED BY PASSWORD '*%X'", user, sha1.Sum(once[:])) // logs may show the hash
	sql := "CREATE USER IF NOT EXISTS " + is + "; ALTER USER " + is
	if q.Database != "" {
		database := strings.NewReplacer("`", "``", "_", `\_`, "%", `\%`).Replace(q.Database)
		sql += "; GRANT SELECT, SHOW VIEW ON `" + database + "`.* TO " + user
	}
	a, err := m.query(q, sql)
	if err == nil && a.err != nil {
		return engi.Errorf(engi.Denied, "make the user %s, who may only read: %s", readerName, a.err.Text).WithRemedy("give the user of the service the right to create users")
	}
	return err
}

func (s Server) queryMySQL(ctx context.Context, q engi.Query, several bool) (engi.QueryResult, error) {
	args, err := arguments(q.Args)
	if err != nil {
		return engi.QueryResult{}, err
	}
	m, err := s.openMySQL(ctx, q, several)
	var r *refusal
	if errors.As(err, &r) && r.Detail == "error 1049" { // the database does not exist
		return engi.QueryResult{Affected: -1, Error: &r.QueryError}, nil
	}
	if err != nil {
		return engi.QueryResult{}, err
	}
	defer m.close()
	as := s
	if q.ReadOnly {
		as = s.reader()
	}
	defer guard(ctx, m, m.canceller(as))()

	// The server ends queries itself if no node is there to cancel them, and computes no more
	// rows than requested.
	setup := []string{fmt.Sprintf("SET time_zone = '+00:00', /*M! max_statement_time = %d, */ sql_select_limit = %d", seconds(q.Timeout+patience), q.MaxRows+1)}
	if q.ReadOnly {
		setup[0] += ", tx_read_only = 1"
		setup = append(setup, "START TRANSACTION READ ONLY")
	}
	for _, sql := range setup {
		a, err := m.query(q, sql)
		if err == nil && a.err != nil {
			err = &refusal{*a.err}
		}
		if err != nil {
			return engi.QueryResult{}, err
		}
	}
	began := time.Now()
	var a myAnswer
	if len(args) == 0 {
		a, err = m.query(q, q.Text)
	} else {
		a, err = m.execute(q, args)
	}
	if err != nil {
		return engi.QueryResult{}, err
	}
	result := engi.QueryResult{Affected: a.affected, Took: time.Since(began), Error: a.err}
	if a.err != nil && (a.err.Detail == "error 1053" || a.err.Detail == "error 1927") { // the server or the connection ends
		return engi.QueryResult{}, &refusal{*a.err}
	}
	if a.err != nil {
		result.Affected = -1
		return result, nil
	}
	if a.stopped {
		askCtx, end := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer end()
		m.canceller(as)(askCtx)
	}
	result.Truncated = a.rows.full
	convert := make([]func([]byte) json.RawMessage, len(a.columns))
	for i, c := range a.columns {
		result.Columns = append(result.Columns, engi.Column{Name: clip.Text(c.name, maxErrText), Type: c.typeName()})
		convert[i] = c.convert()
	}
	result.Rows = a.rows.table(convert)
	return result, nil
}

// canceller returns a function that makes the server end m's running command.
func (m *mysql) canceller(s Server) func(context.Context) {
	return func(ctx context.Context) {
		other, err := s.connectMySQL(ctx, engi.Query{}, false)
		if err != nil {
			return // guard closes m, and the server has its own time limit
		}
		defer other.close()
		defer guard(ctx, other, nil)()
		_, _ = other.query(engi.Query{MaxRows: 1, MaxBytes: 1}, "KILL QUERY "+strconv.FormatUint(uint64(m.id), 10))
	}
}

// send starts a command.
func (m *mysql) send(command byte, body []byte) error {
	m.seq = 0xff
	return m.write(append([]byte{command}, body...))
}

// write sends a packet.
func (m *mysql) write(body []byte) error {
	if len(body) >= maxPacket {
		return engi.Errorf(engi.Invalid, "the query has %d bytes, %d at most", len(body), maxPacket-1)
	}
	m.seq++
	packet := binary.LittleEndian.AppendUint32(nil, uint32(len(body))|uint32(m.seq)<<24)
	_, err := m.Write(append(packet, body...))
	return err
}

// next reads the length of a packet's content, and its first byte, which stays unread.
// Longer packets come in parts, which read and skip join.
func (m *mysql) next() (size int, first byte, err error) {
	head, err := m.r.Peek(4)
	if err != nil {
		return 0, 0, err
	}
	size = int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	if head[3] != m.seq+1 {
		return 0, 0, nonsense("a packet is out of sequence")
	}
	m.seq++
	if _, err := m.r.Discard(4); err != nil || size == 0 {
		return size, 0, err
	}
	b, err := m.r.Peek(1)
	if err != nil {
		return 0, 0, err
	}
	return size, b[0], nil
}

// packet reads a packet of at most max bytes.
func (m *mysql) packet(max int) ([]byte, error) {
	size, _, err := m.next()
	if err != nil {
		return nil, err
	}
	body, ok, err := m.body(size, func(n int) bool { return n <= max })
	if err == nil && (!ok || len(body) == 0) {
		return nil, nonsense("a packet is too long or empty")
	}
	return body, err
}

// body reads a packet whose first part has size bytes, if may allows its total size. A longer
// packet is skipped, and ok is false.
func (m *mysql) body(size int, may func(n int) bool) (body []byte, ok bool, err error) {
	ok = true
	for {
		if ok = ok && may(len(body)+size); !ok {
			body = nil
			if _, err := m.r.Discard(size); err != nil {
				return nil, false, err
			}
		} else {
			from := len(body)
			body = append(body, make([]byte, size)...)
			if _, err := io.ReadFull(m.r, body[from:]); err != nil {
				return nil, false, err
			}
		}
		if size < maxPacket {
			return body, ok, nil
		}
		if size, _, err = m.next(); err != nil {
			return nil, false, err
		}
	}
}

// A myAnswer is the answer of a server to a command.
type myAnswer struct {
	columns  []myColumn
	rows     *rows
	affected int64
	err      *engi.QueryError
	stopped  bool // the server sends more, which is not read
}

func (m *mysql) query(q engi.Query, sql string) (myAnswer, error) {
	if err := m.send(comQuery, []byte(sql)); err != nil {
		return myAnswer{}, err
	}
	return m.answer(q, false)
}

// execute runs one statement with arguments. Its result is in binary form.
func (m *mysql) execute(q engi.Query, args []argument) (myAnswer, error) {
	if err := m.send(comStmtPrepare, []byte(q.Text)); err != nil {
		return myAnswer{}, err
	}
	head, err := m.packet(maxMessage)
	if err != nil {
		return myAnswer{}, err
	}
	if head[0] == packetErr {
		return myAnswer{err: parseErr(head)}, nil
	}
	if head[0] != packetOK || len(head) < 12 {
		return myAnswer{}, nonsense("a statement is not prepared")
	}
	id, columnCount, parameters := head[1:5], int(binary.LittleEndian.Uint16(head[5:])), int(binary.LittleEndian.Uint16(head[7:]))
	if parameters > 0 {
		if _, err := m.columns(parameters); err != nil {
			return myAnswer{}, err
		}
	}
	if columnCount > 0 { // the columns come again with the result
		if _, err = m.columns(columnCount); err != nil {
			return myAnswer{}, err
		}
	}
	if parameters != len(args) {
		return myAnswer{err: &engi.QueryError{Code: "07001", Text: fmt.Sprintf("the statement has %d parameters, and there are %d arguments", parameters, len(args))}}, nil
	}
	body := append(append([]byte{}, id...), 0, 1, 0, 0, 0)
	nulls, types, values := make([]byte, (len(args)+7)/8), []byte{}, []byte{}
	for i, a := range args {
		code := byte(0xfd) // string
		switch a.kind {
		case 0:
			nulls[i/8] |= 1 << (i % 8)
			code = 6
		case 'i':
			code = 8
			n, err := strconv.ParseInt(string(a.text), 10, 64)
			if err != nil {
				return myAnswer{}, engi.Errorf(engi.Internal, "argument %d: %v", i+1, err)
			}
			values = binary.LittleEndian.AppendUint64(values, uint64(n))
		case 'b':
			code = 1
			values = append(values, map[bool]byte{true: 1}[string(a.text) == "true"])
		case 'n':
			if code = 0xf6; bytes.ContainsAny(a.text, "eE") { // decimal, which has no exponents
				code = 0xfd
			}
			values = appendString(values, a.text)
		default:
			values = appendString(values, a.text)
		}
		types = append(types, code, 0)
	}
	body = append(append(append(append(body, nulls...), 1), types...), values...)
	if err := m.send(comStmtExecute, body); err != nil {
		return myAnswer{}, err
	}
	return m.answer(q, true)
}

// answer reads results and keeps the last one. A read-only result is only read up to
// its limits.
func (m *mysql) answer(q engi.Query, binaryRows bool) (myAnswer, error) {
	for {
		a := myAnswer{rows: newRows(q), affected: -1}
		head, err := m.packet(maxMessage)
		if err != nil {
			return a, err
		}
		var status uint16
		switch head[0] {
		case packetErr:
			a.err = parseErr(head)
			return a, nil
		case packetInfile:
			return a, nonsense("it asks for a file of the client, which offers none")
		case packetOK:
			affected, n := readInt(head[1:])
			_, n2 := readInt(head[1+min(n, len(head)-1):])
			at := 1 + n + n2
			if n == 0 || n2 == 0 || len(head) < at+2 {
				return a, nonsense("a result cannot be read")
			}
			a.affected, status = int64(min(affected, 1<<62)), binary.LittleEndian.Uint16(head[at:])
		default:
			count, n := readInt(head)
			if n == 0 || count == 0 || count > maxColumns {
				return a, nonsense("it has no number of columns that there could be")
			}
			if a.columns, err = m.columns(int(count)); err != nil {
				return a, err
			}
			if status, err = m.readRows(&a, q, binaryRows); err != nil || a.err != nil || a.stopped {
				return a, err
			}
		}
		if status&moreResults == 0 {
			return a, nil
		}
		if binaryRows { // from a procedure: its own end has no count, its result does
			next, err := m.answer(q, true)
			if err != nil || next.err != nil || next.columns != nil {
				return next, err
			}
			return a, nil
		}
	}
}

// readRows reads the rows of a result to its end and returns the status there.
func (m *mysql) readRows(a *myAnswer, q engi.Query, binaryRows bool) (status uint16, err error) {
	skipped := 0
	for {
		size, kind, err := m.next()
		if err != nil {
			return 0, err
		}
		if size == 0 {
			return 0, nonsense("a row is empty")
		}
		end := kind == packetErr || kind == packetEOF && (m.deprecated && size < maxPacket || size < 9)
		if !end {
			body, ok, err := m.body(size, func(n int) bool { return a.rows.fits(len(a.columns), int64(n)) })
			if err != nil {
				return 0, err
			}
			if !ok || !a.rows.take(len(a.columns), int64(len(body))) {
				// The server itself ends after one row too many, if it respects
				// the limit.
				if skipped++; q.ReadOnly && (skipped > 1 || len(a.rows.values) < q.MaxRows) {
					a.stopped = true
				}
				if a.rows.full = true; a.stopped {
					return 0, nil
				}
				continue
			}
			split := splitText
			if binaryRows {
				split = splitBinary
			}
			row, err := split(body, a.columns)
			if err != nil {
				return 0, err
			}
			a.rows.values = append(a.rows.values, row)
			continue
		}
		body, ok, err := m.body(size, func(n int) bool { return n <= maxMessage })
		switch {
		case err != nil:
			return 0, err
		case !ok:
			return 0, nonsense("a packet is too long")
		case kind == packetErr:
			a.err = parseErr(body)
			return 0, nil
		case !m.deprecated:
			if len(body) < 5 {
				return 0, nonsense("a result does not end as it should")
			}
			return binary.LittleEndian.Uint16(body[3:]), nil
		}
		_, n := readInt(body[1:])
		_, n2 := readInt(body[1+n:])
		if at := 1 + n + n2; n > 0 && n2 > 0 && len(body) >= at+2 {
			return binary.LittleEndian.Uint16(body[at:]), nil
		}
		return 0, nonsense("a result does not end as it should")
	}
}

// parseErr parses an error packet.
func parseErr(b []byte) *engi.QueryError {
	e := &engi.QueryError{Code: "HY000", Text: "the server says nothing about its error"}
	if len(b) < 3 {
		return e
	}
	e.Detail = fmt.Sprintf("error %d", binary.LittleEndian.Uint16(b[1:]))
	if b = b[3:]; len(b) >= 6 && b[0] == '#' {
		e.Code, b = string(b[1:6]), b[6:]
	}
	e.Text = string(b)
	return e
}
