package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
	"github.com/engi-dev/engi/internal/workspace/workspacetest"
)

func TestWorkspacesKeepThePromises(t *testing.T) {
	workspacetest.Run(t, func(t *testing.T) workspacetest.Fixture {
		db := storetest.Open(t)
		return workspacetest.Fixture{Store: store.Workspaces(db), Events: store.Events(db)}
	})
}
