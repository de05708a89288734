package store_test

import (
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
	"github.com/engi-dev/engi/internal/store"
)

func TestRegistryKeepsThePromises(t *testing.T) {
	registryPromises(t, func(t *testing.T) registry.Store {
		db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
		return store.Registry(db)
	})
}
