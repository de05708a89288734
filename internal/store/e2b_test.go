package store_test

import (
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi/internal/server/compat/e2b"
	"github.com/engi-dev/engi/internal/store"
)

func TestE2BKeepsThePromises(t *testing.T) {
	e2bPromises(t, func(t *testing.T) e2b.Store {
		db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
		return store.E2B(db)
	})
}
