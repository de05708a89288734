package store_test

import (
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/store"
)

func TestSecretsKeepThePromises(t *testing.T) {
	secretPromises(t, func(t *testing.T) secret.Store {
		db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "engi.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
		return store.Secrets(db)
	})
}
