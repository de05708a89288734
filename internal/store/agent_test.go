package store_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/store"
)

func TestAgents(t *testing.T) {
	agentPromises(t, func(t *testing.T) (agent.Store, agent.Results) {
		db := openDB(t)
		return store.Agents(db), store.AgentResults(db)
	})
}
