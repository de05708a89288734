package store_test

import (
	"testing"

	"github.com/engi-dev/engi/store"
	"github.com/engi-dev/engi/store/storetest"
	"github.com/engi-dev/engi/workspace/workspacetest"
)

func TestWorkspacesKeepThePromises(t *testing.T) {
	workspacetest.Run(t, func(t *testing.T) workspacetest.Fixture {
		db := storetest.Open(t)
		return workspacetest.Fixture{Store: store.Workspaces(db), Events: store.Events(db)}
	})
}
