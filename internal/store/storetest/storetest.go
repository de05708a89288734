// Package storetest opens empty databases for tests, in one or two milliseconds:
// each test program builds the schema once and copies it from then on. Running
// servers call [store.Open] instead.
package storetest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/engi-dev/engi/internal/store"
)

// Open returns an empty database that is closed at the end of t.
func Open(t testing.TB) *store.DB {
	t.Helper()
	db, err := Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// Create returns an empty database whose files are in dir, for tests without a
// [testing.TB]. The caller closes it.
func Create(dir string) (*store.DB, error) {
	schema, err := empty()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "engi.db")
	if err := os.WriteFile(path, schema, 0o600); err != nil {
		return nil, err
	}
	return store.Open(context.Background(), path)
}

// empty returns the contents of a database without rows.
var empty = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "storetest-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "engi.db")
	db, err := store.Open(context.Background(), path)
	if err != nil {
		return nil, err
	}
	if err := db.Close(); err != nil { // Close moves the write-ahead log into the file
		return nil, err
	}
	return os.ReadFile(path)
})
