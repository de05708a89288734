// Package database queries the databases of workspaces over their own protocols: Postgres,
// MySQL (MariaDB), Redis and MongoDB (FerretDB and mongod). A server runs in a sandbox, so its answers are hostile:
// their size and time are limited, and malformed answers are errors.
//
// Each call has a connection of its own. So the state of a session (settings,
// locks, temporary tables) ends with the call, an idle database has no connection that would keep
// its sandbox awake, and connecting costs less than starting a client program.
//
// Read-only queries have three independent safeguards: the text is one statement, in a
// read-only transaction that never commits, of a user who may only read (see
// [readerName]). The first two protect the data, the third protects the server's
// files, programs and settings.
//
// This package does not know workspaces, roles or sandboxes.
package database

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// Defaults of queries.
const (
	DefaultRows    = 1000
	DefaultBytes   = 1 << 20
	DefaultTimeout = 30 * time.Second
)

const (
	valueCost   = 8        // bytes that each value counts in addition to its content, so that NULLs are not free
	maxTraffic  = 1 << 30  // maximum bytes that a server may send in a call
	maxGreeting = 1 << 20  // maximum bytes before the login is complete
	maxMessage  = 4 << 20  // maximum bytes of a message that is not a row
	maxColumns  = 4096     // maximum number of columns of a result; no server allows more
	maxErrText  = 16 << 10 // maximum bytes of a text in an error
)

// patience is the time in which a server must act on a request to cancel, before its
// connection is closed.
const patience = 2 * time.Second

// goodbye is the time in which a server can read the end of the session.
const goodbye = 100 * time.Millisecond

// readerName is the name of the user of read-only queries. The user is created on first use. On
// Postgres it may read all tables; on MariaDB the tables of databases with earlier read-only
// queries. It may not call stored functions, because they may run with their authors' rights.
const readerName = "engi_reader"

// A Server is a database server with its address and user. It is a value; its methods are safe for
// concurrent use.
type Server struct {
	Type engi.ServiceType
	// Dial connects to the server in its sandbox.
	Dial     func(ctx context.Context) (net.Conn, error)
	User     string // administrator, who creates the user of read-only queries
	Password string
	Database string // default database of queries
	// Users is the database with the users of a mongod; empty means that they belong to Database,
	// as those of FerretDB do.
	Users string
}

// Query runs a text, see [engi.WorkspaceDatabases]. It ignores Owner, Workspace and Service of
// q. If rows are cut off, the server may not have computed the others.
func (s Server) Query(ctx context.Context, q engi.Query) (r engi.QueryResult, err error) {
	return s.query(ctx, q, !q.ReadOnly && len(q.Args) == 0)
}

// query is Query, for one statement or for several.
func (s Server) query(ctx context.Context, q engi.Query, several bool) (r engi.QueryResult, err error) {
	run, err := s.engine()
	if err != nil {
		return r, err
	}
	if q, err = s.prepare(q); err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	r, err = run(ctx, q, several)
	if s.scrub(r.Error); err == nil {
		err = ctx.Err() // a cancelled query may have a partial result
	}
	if err != nil {
		return engi.QueryResult{}, s.classify(ctx, "query the database", err)
	}
	return r, nil
}

// engine returns the function that queries a server of s's type. It reports malformed answers if a
// driver panics.
func (s Server) engine() (func(context.Context, engi.Query, bool) (engi.QueryResult, error), error) {
	run := s.queryPostgres
	switch s.Type {
	case engi.ServicePostgres:
	case engi.ServiceMySQL:
		run = s.queryMySQL
	default:
		return nil, engi.Errorf(engi.Unsupported, "a service of type %s does not speak SQL", s.Type).WithRemedy("name a service of type postgres or mysql")
	}
	return func(ctx context.Context, q engi.Query, several bool) (r engi.QueryResult, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = nonsense("the client stopped at it")
			}
		}()
		return run(ctx, q, several)
	}, nil
}

// prepare returns q with its defaults set, or Invalid.
func (s Server) prepare(q engi.Query) (engi.Query, error) {
	if err := q.Faults().Err(); err != nil {
		return q, err
	}
	if q.MaxRows == 0 {
		q.MaxRows = DefaultRows
	}
	if q.MaxBytes == 0 {
		q.MaxBytes = DefaultBytes
	}
	if q.Timeout == 0 {
		q.Timeout = DefaultTimeout
	}
	if q.Database == "" {
		q.Database = s.Database
	}
	return q, nil
}

// reader returns s for the user of read-only queries. The password is derived from that
// of s, so that it need not be stored.
func (s Server) reader() Server {
	mac := hmac.New(sha256.New, []byte(s.Password))
	mac.Write([]byte(readerName))
	s.User, s.Password = readerName, hex.EncodeToString(mac.Sum(nil))
	return s
}

// A link is a connection with a limit of bytes that the server may send.
type link struct {
	net.Conn
	left atomic.Int64
}

var errFlood = errors.New("the server has sent too much")

func (l *link) Read(p []byte) (int, error) {
	left := l.left.Load()
	if left <= 0 {
		return 0, errFlood
	}
	n, err := l.Conn.Read(p[:min(int64(len(p)), left)])
	l.left.Add(-int64(n))
	return n, err
}

func linkTo(c net.Conn, left int64) *link {
	l := &link{Conn: c}
	l.left.Store(left)
	return l
}

func (s Server) dial(ctx context.Context) (*link, error) {
	c, err := s.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return linkTo(c, maxGreeting), nil
}

// guard closes a connection after ctx has ended. If cancel is not nil, it is called first,
// and the server gets some time to end its work. The caller calls release when
// it no longer waits for the server.
func guard(ctx context.Context, c net.Conn, cancel func(context.Context)) (release func()) {
	released, ended := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		if cancel != nil {
			askCtx, end := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer end()
			cancel(askCtx)
			select {
			case <-released:
				return
			case <-askCtx.Done():
			}
		}
		c.Close()
	})
	return func() {
		close(released)
		if !stop() {
			<-ended
		}
	}
}

// A nonsense is the reason why an answer of a server is malformed.
type nonsense string

func (n nonsense) Error() string { return string(n) }

// A refusal is an error of a server that is not the answer to a query, for example about a
// password.
type refusal struct{ engi.QueryError }

func (r *refusal) Error() string { return r.Text + " (" + r.Code + ")" }

// classify converts an error of a call to an [engi.Error].
func (s Server) classify(ctx context.Context, act string, err error) error {
	var r *refusal
	var n nonsense
	var ours *engi.Error
	var expired net.Error
	switch text := s.hide(err.Error()); {
	case ctx.Err() != nil:
		return engi.Errorf(engi.Expired, "%s: it took too long and was cancelled", act).WithRemedy("make it do less, or raise its timeout")
	case errors.As(err, &ours):
		return err
	case errors.Is(err, errFlood):
		return engi.Errorf(engi.Exhausted, "%s: the server has sent more than is read", act).WithRemedy("ask for less")
	case errors.As(err, &r):
		return engi.Errorf(engi.Unavailable, "%s: the server refuses: %s", act, text).WithRemedy("read the logs of the service")
	case errors.As(err, &n):
		return engi.Errorf(engi.Unavailable, "%s: the answer of the server makes no sense: %s", act, text).WithRemedy("read the logs of the service")
	case errors.As(err, &expired) && expired.Timeout():
		return engi.Errorf(engi.Expired, "%s: the server did not answer in time", act)
	default:
		return engi.Errorf(engi.Unavailable, "%s: the connection was lost: %s", act, text).WithRemedy("read the logs of the service; the changes of the query may or may not be stored")
	}
}

// hide removes passwords from a text of a server, which knows them.
func (s Server) hide(text string) string {
	for _, secret := range []string{s.Password, s.reader().Password} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "*****")
		}
	}
	return clip.Text(text, maxErrText)
}

func (s Server) scrub(e *engi.QueryError) {
	if e != nil {
		e.Code, e.Text, e.Detail, e.Hint = s.hide(e.Code), s.hide(e.Text), s.hide(e.Detail), s.hide(e.Hint)
	}
}

// rows collects the rows of a result up to the limits of a query.
type rows struct {
	q      engi.Query
	left   int64
	values [][][]byte // nil means NULL
	full   bool
}

func newRows(q engi.Query) *rows { return &rows{q: q, left: q.MaxBytes} }

// take reports whether a row with a number of values and bytes fits, and counts it. After the first
// row that does not fit, no other fits.
func (r *rows) take(values int, size int64) bool {
	if !r.fits(values, size) {
		r.full = true
		return false
	}
	r.left -= size + int64(values)*valueCost
	return true
}

// fits reports whether a row fits, without counting it.
func (r *rows) fits(values int, size int64) bool {
	return !r.full && len(r.values) < r.q.MaxRows && r.left >= size+int64(values)*valueCost
}

// table converts rows with one function for each column.
func (r *rows) table(convert []func([]byte) json.RawMessage) [][]json.RawMessage {
	table := make([][]json.RawMessage, len(r.values))
	for i, row := range r.values {
		table[i] = make([]json.RawMessage, len(row))
		for j, v := range row {
			if v == nil {
				table[i][j] = null
			} else {
				table[i][j] = convert[j](v)
			}
		}
	}
	return table
}

// seconds returns seconds, rounded up, because 0 often means no limit.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }
