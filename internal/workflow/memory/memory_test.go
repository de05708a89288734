package memory_test

import (
	"testing"

	"github.com/engi-dev/engi/internal/workflow"
	"github.com/engi-dev/engi/internal/workflow/memory"
	"github.com/engi-dev/engi/internal/workflow/workflowtest"
)

func TestPromises(t *testing.T) {
	workflowtest.Promises(t, func(*testing.T) func() workflow.Engine {
		e := &memory.Engine{}
		return func() workflow.Engine { return e }
	})
}
