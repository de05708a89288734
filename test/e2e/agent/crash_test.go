package agent

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"

	"github.com/engi-dev/engi/test/env"
)

// TestCrash kills the server while a model thinks and while a command runs.
// The run continues: finished calls are not repeated, and the model is told about
// interrupted ones.
func TestCrash(t *testing.T) {
	env.Slow(t)
	w := begin(t)
	const steps = 5
	step := func(n int) scripted.Answer {
		return scripted.Answer{Text: fmt.Sprintf("Step %d. ", n), Calls: []scripted.Call{call("run_command", map[string]any{"command": fmt.Sprintf("echo step-%d >> /tmp/steps", n)})}}
	}
	t.Run("while the model thinks", func(t *testing.T) {
		box := w.sandbox(t, "true")
		thinking := make(chan struct{})
		var again atomic.Bool
		w.plays(func(c scripted.Conversation) scripted.Answer {
			switch n := said(c); {
			case n == 3 && !again.Swap(true):
				close(thinking)
				return scripted.Answer{Delay: time.Hour}
			case n < steps:
				return step(n + 1)
			}
			return scripted.Answer{Text: "All done."}
		})
		x, err := w.StartRun(t.Context(), "coder", v1.RunRequest{Input: "Take five steps.", SandboxID: box})
		if err != nil {
			t.Fatal(err)
		}
		<-thinking
		w.Kill()
		w.Start()
		w.over(t, x.ID, box, "All done.", "step-1\nstep-2\nstep-3\nstep-4\nstep-5\n")
	})
	t.Run("while a command runs", func(t *testing.T) {
		box := w.sandbox(t, "true")
		told := ""
		w.plays(func(c scripted.Conversation) scripted.Answer {
			switch said(c) {
			case 0:
				return step(1)
			case 1:
				return scripted.Answer{Calls: []scripted.Call{
					call("run_command", map[string]any{"command": "echo quick >> /tmp/steps"}),
					call("run_command", map[string]any{"command": "sleep 0.5; echo begun >> /tmp/steps; sleep 600; echo late >> /tmp/steps"}),
				}}
			case 2:
				for _, r := range c.Last().Results {
					if r.Failed {
						told = r.Text
					}
				}
				return step(3)
			}
			return scripted.Answer{Text: "All done."}
		})
		x, err := w.StartRun(t.Context(), "coder", v1.RunRequest{Input: "Take steps.", SandboxID: box})
		if err != nil {
			t.Fatal(err)
		}
		soon(t, func() bool {
			all, err := w.RunMessages(t.Context(), x.ID)
			if err != nil {
				t.Fatal(err)
			}
			last := all[len(all)-1]
			return strings.Contains(w.sh(t, box, "cat /tmp/steps 2>/dev/null || true"), "begun") && len(last.Results) == 1
		})
		w.Kill()
		w.Start()
		w.over(t, x.ID, box, "All done.", "step-1\nquick\nbegun\nstep-3\n")
		if !strings.Contains(told, "a restart interrupted the call") {
			t.Errorf("the model was told %q", told)
		}
	})
}

// over checks that a run has ended with an answer and left lines in a sandbox.
func (w *fixture) over(t *testing.T, id, box, text, lines string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	x, _ := w.follow(t, ctx, id)
	if x.State != v1.AgentDone || x.Text != text {
		t.Errorf("%+v", x)
	}
	if got := w.sh(t, box, "cat /tmp/steps"); got != lines {
		t.Errorf("the sandbox has %q", got)
	}
}

func soon(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never came")
		}
	}
}
