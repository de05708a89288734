// Package database queries the databases of workspaces over their own protocols: Postgres,
// MySQL (MariaDB) and Redis. A server runs in a sandbox, so whatever it sends is hostile:
// what is read is bounded in bytes and time, and answers that make no sense are errors.
//
// Each call has a connection of its own. What a call leaves behind in a session (settings,
// locks, temporary tables) ends with it, an idle database has no connection that would keep
// its sandbox awake, and connecting costs less than the start of a client would.
//
// Read-only means three things that hold by themselves: the text is one statement, in a
// transaction that is read-only and never commits, of a user who may only read (see
// [readerName]). The first two keep data from being changed, the third keeps the server's
// files, programs and settings out of reach.
//
// It does not know workspaces, roles or sandboxes.
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
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// Limits of a query. The first are those of queries that name none.
const (
	DefaultRows    = 1000
	DefaultBytes   = 1 << 20
	DefaultTimeout = 30 * time.Second

	MaxRows    = 1_000_000
	MaxBytes   = 16 << 20
	MaxTimeout = 10 * time.Minute
	MaxText    = 1 << 20 // bytes of a query, and of its arguments together
	MaxArgs    = 65535
)

const (
	valueCost   = 8        // bytes that a value counts beside what it consists of, so that NULLs are not free
	maxTraffic  = 1 << 30  // bytes that a server may send in a call
	maxGreeting = 1 << 20  // and until the user is known
	maxMessage  = 4 << 20  // bytes of what is not a row
	maxColumns  = 4096     // of a result; servers allow as many or fewer
	maxErrText  = 16 << 10 // bytes of a text in an error
)

// patience is how long a server may take to act on a request to cancel, before its
// connection is closed.
const patience = 2 * time.Second

// goodbye is how long a server may take to read that its client goes.
const goodbye = 100 * time.Millisecond

// readerName is the user of read-only queries. It is made when it is first needed. On
// Postgres it may read all tables; on MariaDB the tables of those databases that have been
// queried so, without calling stored functions, whose bodies may do what their authors may.
const readerName = "engi_reader"

// A Server is a database server and how to reach it. It is a value; its methods are safe for
// concurrent use.
type Server struct {
	Type engi.ServiceType // postgres, mysql or redis
	// Dial connects to the server. It leads into its sandbox.
	Dial     func(ctx context.Context) (net.Conn, error)
	User     string // who may do everything; for read-only queries it makes another
	Password string
	Database string // unless a query names another
}

// Query runs a text as [engi.WorkspaceDatabases] says. Owner, Workspace and Service of q mean
// nothing here. If rows are cut off, the server may not have made the others.
func (s Server) Query(ctx context.Context, q engi.Query) (r engi.QueryResult, err error) {
	return s.query(ctx, q, !q.ReadOnly && len(q.Args) == 0)
}

// query is Query, of one statement or of several.
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
		err = ctx.Err() // what is cancelled may have a result, which is none
	}
	if err != nil {
		return engi.QueryResult{}, s.classify(ctx, "query the database", err)
	}
	return r, nil
}

// engine returns the function that queries a server of s's type. A server that makes a driver
// panic has sent nonsense.
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

// prepare returns q with its defaults, or Invalid.
func (s Server) prepare(q engi.Query) (engi.Query, error) {
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
	switch {
	case q.MaxRows < 0 || q.MaxRows > MaxRows:
		return q, engi.Errorf(engi.Invalid, "a query may return 1 to %d rows, not %d", MaxRows, q.MaxRows)
	case q.MaxBytes < 0 || q.MaxBytes > MaxBytes:
		return q, engi.Errorf(engi.Invalid, "a query may return 1 to %d bytes, not %d", int64(MaxBytes), q.MaxBytes)
	case q.Timeout < 0 || q.Timeout > MaxTimeout:
		return q, engi.Errorf(engi.Invalid, "a query may take up to %v, not %v", MaxTimeout, q.Timeout)
	case len(q.Args) > MaxArgs:
		return q, engi.Errorf(engi.Invalid, "a query may have %d arguments, not %d", MaxArgs, len(q.Args))
	case len(q.Text) > MaxText:
		return q, engi.Errorf(engi.Invalid, "a query may have %d bytes, not %d", MaxText, len(q.Text))
	case strings.TrimSpace(q.Text) == "":
		return q, engi.Errorf(engi.Invalid, "the query is empty")
	case !utf8.ValidString(q.Text) || strings.ContainsRune(q.Text, 0) || strings.ContainsRune(q.Database, 0):
		return q, engi.Errorf(engi.Invalid, "the query is not UTF-8, or has a NUL")
	}
	return q, nil
}

// reader returns s as the user of read-only queries sees it. The password is made from that
// of s, so that nobody need keep it.
func (s Server) reader() Server {
	mac := hmac.New(sha256.New, []byte(s.Password))
	mac.Write([]byte(readerName))
	s.User, s.Password = readerName, hex.EncodeToString(mac.Sum(nil))
	return s
}

// A link is a connection whose server may send only so much.
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

// guard closes a connection after ctx has ended. If cancel is not nil, it is called before,
// and the server gets some time to end by itself what it does. The caller calls release when
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

// nonsense is why an answer of a server cannot be read.
type nonsense string

func (n nonsense) Error() string { return string(n) }

// A refusal is an error of a server that is not the answer to a query, like one about a
// password.
type refusal struct{ engi.QueryError }

func (r *refusal) Error() string { return r.Text + " (" + r.Code + ")" }

// classify turns what went wrong during a call into an error of ours.
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
		return engi.Errorf(engi.Unavailable, "%s: the connection was lost: %s", act, text).WithRemedy("read the logs of the service; what was changed may or may not be kept")
	}
}

// hide takes passwords out of a text of a server, which knows them.
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

// rows collects the rows of a result within the limits of a query.
type rows struct {
	q      engi.Query
	left   int64
	values [][][]byte // nil is NULL
	full   bool
}

func newRows(q engi.Query) *rows { return &rows{q: q, left: q.MaxBytes} }

// take reports whether a row of so many values and bytes fits, and counts it. After one that
// does not, none does.
func (r *rows) take(values int, size int64) bool {
	if !r.fits(values, size) {
		r.full = true
		return false
	}
	r.left -= size + int64(values)*valueCost
	return true
}

// fits reports whether there is space, and takes none.
func (r *rows) fits(values int, size int64) bool {
	return !r.full && len(r.values) < r.q.MaxRows && r.left >= size+int64(values)*valueCost
}

// table converts rows by a function for each column.
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

// seconds rounds up, since 0 often means for ever.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }
