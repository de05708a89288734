package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

func TestWorkspacesKeepThePromises(t *testing.T) {
	workspacePromises(t, func(t *testing.T) workspaceFixture {
		db := storetest.Open(t)
		return workspaceFixture{Store: store.Workspaces(db), Events: store.Events(db)}
	})
}
