package agent_test

import (
	"sync"
	"testing"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"
)

// TestConversationsGoOnAtOnce has several that ask again as soon as they see the end of
// an answer.
func TestConversationsGoOnAtOnce(t *testing.T) {
	f := runnerSpec{play: func(scripted.Conversation) scripted.Answer { return scripted.Answer{Text: "yes"} }}.open(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			spec := engi.RunSpec{Owner: "ann", Input: "and?"}
			for i := range 20 {
				r, err := f.Start(t.Context(), spec)
				if err != nil {
					t.Errorf("after %d answers: %v", i, err)
					return
				}
				for e, err := range f.Watch(t.Context(), "ann", r.ID, 0) {
					if err != nil {
						t.Error(err)
					}
					if e.Kind == engi.RunEnd {
						break
					}
				}
				spec.Conversation = r.Conversation
			}
		})
	}
	all.Wait()
}
