// Package store stores the records of a node in SQL. Each package declares the
// storage that it needs as an interface; this package has one file for each
// implementation, and the migrations.
//
// It stores no files, which packages keep in their own directories, and decides no
// policies. Only package node opens a DB.
//
// One connection writes, several read (SQLite in WAL mode, in which readers never wait
// for the writer). A completed write survives a kill -9; a power failure
// may lose the last transactions, but never reorders them.
//
// Every method that changes a record appends an event in the same transaction (see
// event.go), and followers receive it after the commit.
//
// To add a resource, add a numbered file migrations/NNNNN_name.sql with its goose
// "-- +goose Up" part (numbers are never reused, and files never edited after a
// release), and a file name.go with a type that embeds a table, whose statements most
// methods need, and a constructor named after the resource.
package store

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

//go:embed migrations/*.sql
var migrations embed.FS

// readers is the number of connections for reading.
const readers = 4

// Run drops events beyond their limits every trimEvery, and when trimBytes of data
// were appended since the last time.
const (
	trimEvery = time.Minute
	trimBytes = 32 << 20
)

// checkpointEvery is the interval at which Run moves the write-ahead log into the
// database, so that no commit of a caller has to.
const checkpointEvery = 5 * time.Second

// A DB is an open database. It is safe for concurrent use.
type DB struct {
	read  *sql.DB
	write *writer
	hub   *hub // tells followers of new events

	appended atomic.Int64 // bytes of events' data since Run last trimmed the log

	// Keep limits the event log of each owner, and Log receives errors of
	// Run; nil discards them. Set both before Run.
	Keep EventBounds
	Log  *slog.Logger

	// Sealer encrypts fields of records of sandboxes, sessions and
	// snapshots that may be secret: environments, headers, proxies. Set it before these are used.
	// Without it they are stored unencrypted, and encrypted ones are not read.
	Sealer Sealer
}

// Open opens the database at target, an absolute path or a URL "sqlite:PATH".
// It creates the database if there is none, and migrates its schema. It
// reports Unsupported for other kinds of URL and Conflict for a database of a
// newer version of engi. The caller closes it.
func Open(ctx context.Context, target string) (_ *DB, err error) {
	path := strings.TrimPrefix(target, "sqlite:")
	if kind, _, ok := strings.Cut(path, "://"); ok {
		return nil, engi.Errorf(engi.Unsupported, "open store: %s databases are not supported", kind).
			WithRemedy("use the path of a file, or sqlite:PATH")
	}
	if !filepath.IsAbs(path) {
		return nil, engi.Errorf(engi.Invalid, "open store %.80q: not an absolute path", target)
	}
	defer engi.Annotate(&err, "open store %s", path)
	// SQLite would create the file with the mode of the umask, but programs and
	// hashes of keys must not be readable by other users.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	if err := f.Close(); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}

	return open(ctx, path)
}

// open opens a file that exists, and migrates it.
func open(ctx context.Context, path string) (_ *DB, err error) {
	pool, err := connect(path, "rw", 1)
	if err != nil {
		return nil, err
	}
	db := &DB{}
	defer func() {
		if err == nil {
			return
		}
		if db.read != nil {
			err = errors.Join(err, db.read.Close())
		}
		if db.write != nil {
			err = errors.Join(err, db.write.conn.Close())
		}
		err = errors.Join(err, pool.Close())
	}()
	if err := migrate(ctx, pool, 0); err != nil {
		return nil, err
	}
	if db.write, err = newWriter(ctx, pool); err != nil {
		return nil, err
	}
	if db.read, err = connect(path, "ro", readers); err != nil {
		return nil, err
	}
	last, err := Events(db).Last(ctx)
	if err != nil {
		return nil, err
	}
	db.hub = newHub(last)
	return db, nil
}

// connect opens a pool of connections. The pragmas are part of the data source
// name, because every new connection needs them.
func connect(path, mode string, conns int) (*sql.DB, error) {
	q := url.Values{
		"mode": {mode},
		"_pragma": {
			"busy_timeout(5000)",
			"journal_mode(WAL)",
			"synchronous(NORMAL)",
			"foreign_keys(1)",
			"wal_autocheckpoint(8000)",
			"cache_size(-8192)",
		},
	}
	if mode == "rw" {
		q.Set("_txlock", "immediate")
	} else {
		q["_pragma"] = []string{"busy_timeout(5000)", "query_only(1)", "cache_size(-4096)"}
	}
	name := (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// migrate migrates a database up to a version; 0 means the newest.
func migrate(ctx context.Context, db *sql.DB, version int64) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, dir)
	if err != nil {
		return engi.Errorf(engi.Internal, "migrations: %v", err)
	}
	have, want, err := p.GetVersions(ctx)
	if err != nil {
		return engi.Errorf(engi.Internal, "migrations: %v", err)
	}
	if have > want {
		return engi.Errorf(engi.Conflict, "schema version %d is newer than this engi, which supports %d", have, want).
			WithRemedy("run the version of engi that wrote it or a newer one, or choose another data directory")
	}
	if _, err := p.UpTo(ctx, cmp.Or(version, want)); err != nil {
		return engi.Errorf(engi.Internal, "migrations: %v", err)
	}
	return nil
}

// Run checkpoints the write-ahead log, so that commits need not, and trims the event
// log until ctx ends. A database also works without Run.
func (db *DB) Run(ctx context.Context, ready func()) error {
	log := cmp.Or(db.Log, slog.New(slog.DiscardHandler))
	ready()
	trimmed := time.Now()
	for range clock.Later(ctx, checkpointEvery) {
		if time.Since(trimmed) >= trimEvery || db.appended.Load() > trimBytes {
			trimmed = time.Now()
			db.appended.Store(0)
			if _, err := TrimEvents(ctx, db, db.Keep); err != nil && ctx.Err() == nil {
				log.WarnContext(ctx, "trim the log of events; it is tried again", "error", err)
			}
		}
		// A passive checkpoint does not wait for other connections. The next one moves
		// the rest.
		_, _ = db.exec(ctx, `PRAGMA wal_checkpoint(PASSIVE)`)
	}
	return nil
}

// Close closes the database.
func (db *DB) Close() error {
	err := db.read.Close()
	if e := db.write.Close(); err == nil {
		err = e
	}
	if err != nil {
		return engi.Errorf(engi.Internal, "close store: %v", err)
	}
	return nil
}
