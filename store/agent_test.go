package store_test

import (
	"testing"

	"github.com/engi-dev/engi/agent"
	"github.com/engi-dev/engi/agent/agenttest"
	"github.com/engi-dev/engi/store"
)

func TestAgents(t *testing.T) {
	agenttest.Promises(t, func(t *testing.T) (agent.Store, agent.Results) {
		db := openDB(t)
		return store.Agents(db), store.AgentResults(db)
	})
}
