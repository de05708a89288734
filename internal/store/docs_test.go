package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/docs/docstest"
	"github.com/engi-dev/engi/internal/store"
)

func TestLibrary(t *testing.T) {
	docstest.Promises(t, func(t *testing.T) docs.Store { return store.Docs(openDB(t)) })
}
