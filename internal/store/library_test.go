package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/library"
	"github.com/engi-dev/engi/internal/library/librarytest"
	"github.com/engi-dev/engi/internal/store"
)

func TestLibrary(t *testing.T) {
	librarytest.Promises(t, func(t *testing.T) library.Store { return store.Library(openDB(t)) })
}
