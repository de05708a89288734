package store_test

import (
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/store"
)

func TestKeysKeepThePromises(t *testing.T) {
	keyPromises(t, func(t *testing.T) key.Store {
		db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
		return store.Keys(db)
	})
}
