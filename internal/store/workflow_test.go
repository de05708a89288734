package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
)

func TestWorkflowsKeepThePromises(t *testing.T) {
	workflowPromises(t, func(t *testing.T) workflowFixture {
		db := storetest.Open(t)
		return workflowFixture{store.Workflows(db), store.Workspaces(db), store.Events(db)}
	})
}
