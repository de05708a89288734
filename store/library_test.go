package store_test

import (
	"testing"

	"github.com/engi-dev/engi/library"
	"github.com/engi-dev/engi/library/librarytest"
	"github.com/engi-dev/engi/store"
)

func TestLibrary(t *testing.T) {
	librarytest.Promises(t, func(t *testing.T) library.Store { return store.Library(openDB(t)) })
}
