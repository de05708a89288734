package mcp

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/test/env"
)

// A guestClient is a client of the protocol in a separate process, which stays
// connected.
type guestClient struct {
	t    *testing.T
	name string
	in   io.Writer
	said chan happening
}

// A happening is a line that a guestClient prints.
type happening struct {
	Connected, Version  *string
	Progress, Did, Text string
	Session             string
	Failed              bool
}

func stay(t *testing.T, s *env.Server, name string, args ...string) *guestClient {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(s.Env(), "ENGI_URL="+s.URL, "ENGI_KEY="+s.Key)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &guestClient{t: t, name: name, in: in, said: make(chan happening, 100)}
	read := make(chan bool)
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var h happening
			if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
				h = happening{Text: lines.Text(), Failed: true}
			}
			c.said <- h
		}
	}()
	t.Cleanup(func() {
		in.Close()
		<-read
		_ = cmd.Wait() // the client may fail because its server has ended
	})
	return c
}

func (c *guestClient) do(what string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, what+"\n"); err != nil {
		c.t.Fatalf("%s: %v", c.name, err)
	}
}

// until waits for a line for which is returns true.
func (c *guestClient) until(is func(happening) bool) happening {
	c.t.Helper()
	for deadline := time.After(2 * time.Minute); ; {
		select {
		case h := <-c.said:
			if is(h) {
				return h
			}
			if h.Failed {
				c.t.Fatalf("%s: %+v", c.name, h)
			}
		case <-deadline:
			c.t.Fatalf("%s waits for ever", c.name)
		}
	}
}

const durable = `
[models]
default = "anthropic:m1"

[providers.anthropic]
url = "MODEL"
api_key_env = "ENGI_TEST_MODEL_KEY"

[[agents]]
name = "counter"
tools = ["execute_code"]

[[functions]]
name = "slow"
event = "slow"
run = { language = "bash", code = "sleep 20; echo '{\"over\":true}'" }
`

// TestThreeRestarts kills the server three times. Clients that stay connected keep
// their sessions of the protocol, and the calls that they wait for; a stream of an
// agent's run loses and repeats nothing, and a function's run succeeds.
func TestThreeRestarts(t *testing.T) {
	env.Slow(t)
	settings(t)
	model := httptest.NewServer(&scripted.Server{Play: func(c scripted.Conversation) scripted.Answer {
		n := 0
		for _, turn := range c.Turns {
			if turn.Role == "assistant" {
				n++
			}
		}
		if n == 4 {
			return scripted.Answer{Text: "All is counted."}
		}
		return scripted.Answer{Calls: []scripted.Call{{Name: "execute_code", Arguments: `{"language":"bash","code":"sleep 3; echo counted"}`}}}
	}})
	defer model.Close()
	s := env.Serve(t, env.ServerOptions{Config: strings.Replace(durable, "MODEL", model.URL, 1), Env: []string{"ENGI_TEST_MODEL_KEY=k"}})

	event, err := s.SendEvent(t.Context(), v1.EventRequest{Name: "slow", Data: json.RawMessage(`{}`)}, "")
	if err != nil || len(event.RunIDs) != 1 {
		t.Fatalf("%+v %v", event, err)
	}
	run, err := s.StartRun(t.Context(), "counter", v1.RunRequest{Input: "Count."})
	if err != nil {
		t.Fatal(err)
	}
	type ending struct {
		seen []int64
		last v1.AgentUpdate
		err  error
	}
	watched := make(chan ending, 1)
	patient := client.New(s.URL, s.Key, client.WithRetries(100))
	go func() {
		var e ending
		for u, err := range patient.WatchRun(t.Context(), run.ID, 0) {
			if e.err = err; err != nil {
				break
			}
			e.seen, e.last = append(e.seen, u.Offset), u
		}
		watched <- e
	}()

	bin, err := filepath.Abs(os.Getenv("ENGI_BIN"))
	if err != nil {
		t.Fatal(err)
	}
	js := func(name string, args ...string) *guestClient {
		return stay(t, s, name, append([]string{node22, "js/stay.mjs"}, args...)...)
	}
	web := []string{"http", s.URL + "/mcp", s.Key}
	all := map[*guestClient]bool{ // whether the client resumes a call for which it waits
		js("sdk http", append([]string{"sdk", "legacy"}, web...)...):                                            true,
		js("sdk stdio", "sdk", "legacy", "stdio", bin):                                                          true,
		js("newest legacy http", append([]string{"client", "legacy"}, web...)...):                               true,
		js("newest http", append([]string{"client", "auto"}, web...)...):                                        false, // this revision of the protocol cannot resume calls
		js("newest stdio", "client", "auto", "stdio", bin):                                                      false,
		stay(t, s, "python legacy http", append([]string{python, "py/client.py", "stay", "legacy"}, web...)...): false, // the client gives up after two seconds
		stay(t, s, "python legacy stdio", python, "py/client.py", "stay", "legacy", "stdio", bin):               true,
		stay(t, s, "python stdio", python, "py/client.py", "stay", "auto", "stdio", bin):                        false,
	}
	sessions := map[*guestClient]string{}
	for c := range all {
		sessions[c] = *c.until(func(h happening) bool { return h.Connected != nil }).Connected
	}
	for range 3 {
		for c, resumes := range all {
			if resumes {
				c.do("long")
				c.until(func(h happening) bool { return strings.Contains(h.Progress, "begun") })
			}
		}
		s.Kill()
		s.Start()
		for c, resumes := range all {
			if resumes {
				if h := c.until(func(h happening) bool { return h.Did == "long" }); h.Failed || !strings.Contains(h.Text, "begun\nover") {
					t.Errorf("%s: %+v", c.name, h)
				}
			}
			c.do("quick")
			if h := c.until(func(h happening) bool { return h.Did == "quick" }); h.Failed || h.Session != "" && h.Session != sessions[c] {
				t.Errorf("%s: %+v in session %s", c.name, h, sessions[c])
			}
		}
	}

	select {
	case e := <-watched:
		if e.err != nil || e.last.Run == nil || e.last.Run.State != v1.AgentDone || e.last.Run.Text != "All is counted." {
			t.Errorf("the stream of the run ends with %+v %v", e.last, e.err)
		}
		for i := range e.seen[1:] {
			if e.seen[i+1] <= e.seen[i] {
				t.Errorf("the stream repeats: %v", e.seen)
				break
			}
		}
	case <-time.After(2 * time.Minute):
		t.Error("the stream of the run does not end")
	}
	if f, err := s.WaitFunctionRun(t.Context(), event.RunIDs[0]); err != nil || f.State != v1.FunctionDone || !strings.Contains(string(f.Output), "over") || f.Attempt != 1 {
		t.Errorf("%+v %v", f, err)
	}
	ran := 0
	for _, err := range s.Executions(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		ran++
	}
	if want := 3*4 + 4 + 1; ran != want { // calls of clients, of the agent, of the function
		t.Errorf("%d programs ran, not %d", ran, want)
	}
}
