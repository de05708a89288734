package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/store"
)

func TestLibrary(t *testing.T) {
	docsPromises(t, func(t *testing.T) docs.Store { return store.Docs(openDB(t)) })
}
