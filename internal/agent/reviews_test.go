package agent_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
)

// TestReviewsHaveFewTools checks that a run that reviews gets neither tools that run programs nor those of other servers, also
// if the model calls them.
func TestReviewsHaveFewTools(t *testing.T) {
	var made [8]atomic.Int32
	var mu sync.Mutex
	var tools []string
	play := numbered("run_command", "read_workspace", "connect")
	f := runnerSpec{agent: engi.AgentSpec{Tools: []string{"*"}}, tools: []tool.Tool{counted(t, "run_command", &made, nil, nil), counted(t, "read_workspace", &made, nil, nil), counted(t, "connect", &made, nil, nil)},
		play: func(c scripted.Conversation) scripted.Answer {
			mu.Lock()
			defer mu.Unlock()
			tools = c.Tools
			return play(c)
		}}.open(t)
	for _, reviews := range []bool{true, false} {
		if r, _ := f.finish(t, engi.RunSpec{Owner: "ann", Input: "go", Reviews: reviews}); r.State != engi.RunDone {
			t.Errorf("%+v", r)
		}
		want := "connect read_workspace run_command"
		if reviews {
			want = "read_workspace"
		}
		mu.Lock()
		if got := strings.Join(tools, " "); got != want {
			t.Errorf("a run that reviews (%t) has the tools %s, want %s", reviews, got, want)
		}
		mu.Unlock()
		if reviews && (made[0].Load() != 0 || made[2].Load() != 0 || made[1].Load() == 0) {
			t.Error("a tool was used that the run does not have, or none")
		}
	}
}
