// Package agent tests agents as their users meet them: a server in a process of
// its own, real sandboxes, and a model that follows a script behind a real
// provider's wire format.
package agent

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/agent/llm/scripted"
	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

// modelKey is what the provider takes.
const modelKey = "canary-model-key-8d1f0c"

// world is a server and its model.
type world struct {
	*client.Client
	url, key, dir string
	model         *scripted.Server

	mu     sync.Mutex
	play   func(scripted.Conversation) scripted.Answer
	server *exec.Cmd
	listen string
}

const agents = `
[models]
default = "anthropic:m1"

[providers.anthropic]
url = "MODEL"
api_key_env = "ENGI_TEST_MODEL_KEY"

[[agents]]
name = "coder"
tools = ["*"]

[[agents]]
name = "explore"
system = "You find things out and change nothing."
tools = ["read_file", "list_files", "glob", "grep"]

[[agents]]
name = "code"
system = "You change files."
tools = ["read_file", "list_files", "glob", "grep", "write_file", "edit_file"]
`

func begin(t *testing.T) *world {
	t.Helper()
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	// The path of a socket below it may have 107 bytes.
	dir, err := os.MkdirTemp("", "engi-agent-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{dir: dir}
	w.model = &scripted.Server{Play: func(c scripted.Conversation) scripted.Answer {
		w.mu.Lock()
		play := w.play
		w.mu.Unlock()
		return play(c)
	}}
	web := httptest.NewServer(w.model)
	t.Cleanup(web.Close)
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(strings.Replace(agents, "MODEL", web.URL, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := w.engi("template", "show", "base").CombinedOutput(); err != nil || strings.Contains(string(out), "not built") {
		env.Need(t, "the template base (make template): "+string(out))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.listen = l.Addr().String()
	w.url = "http://" + w.listen
	l.Close()
	t.Cleanup(func() {
		if out, err := w.engi("stop", "--destroy").CombinedOutput(); err != nil {
			t.Errorf("stop: %v\n%s", err, out)
			w.kill()
		}
		w.server.Wait()
		if t.Failed() {
			log := w.log(t)
			t.Logf("the end of the server's log:\n%s", log[max(0, len(log)-8<<10):])
		}
	})
	w.serve(t)
	return w
}

// engi is a command at the server.
func (w *world) engi(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Getenv("ENGI_BIN"), args...)
	cmd.Env = append(os.Environ(), "ENGI_DATA_DIR="+w.dir, "ENGI_TEST_MODEL_KEY="+modelKey)
	return cmd
}

// serve starts the server, again after kill.
func (w *world) serve(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(w.dir, "serve.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	w.server = w.engi("serve", "--listen", w.listen, "--pools", "none", "--set", "log_level=debug")
	w.server.Stdout, w.server.Stderr = log, log
	if err := w.server.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if resp, err := http.Get(w.url + "/health"); err == nil {
			resp.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server does not answer:\n%s", w.log(t))
		}
	}
	key, err := os.ReadFile(filepath.Join(w.dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	w.key = strings.TrimSpace(string(key))
	w.Client = client.New(w.url, w.key)
}

// kill ends the server as a power cut does.
func (w *world) kill() {
	w.server.Process.Kill()
	w.server.Wait()
}

func (w *world) log(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(w.dir, "serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (w *world) plays(play func(scripted.Conversation) scripted.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.play = play
}

// sandbox makes one and runs a line in it.
func (w *world) sandbox(t *testing.T, line string) string {
	t.Helper()
	s, err := w.CreateSandbox(t.Context(), v1.SandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.sh(t, s.ID, line)
	return s.ID
}

func (w *world) sh(t *testing.T, sandbox, line string) string {
	t.Helper()
	r, err := w.Exec(t.Context(), sandbox, v1.ProcessRequest{Args: []string{"/bin/bash", "-c", line}})
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode != 0 {
		t.Fatalf("%s: %+v\n%s%s", line, r.Exit, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// run has an agent work to the end.
func (w *world) run(t *testing.T, agent string, q v1.RunRequest) (v1.AgentRun, []v1.AgentEvent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	x, err := w.StartRun(ctx, agent, q)
	if err != nil {
		t.Fatal(err)
	}
	return w.follow(t, ctx, x.ID)
}

func (w *world) follow(t *testing.T, ctx context.Context, id string) (v1.AgentRun, []v1.AgentEvent) {
	t.Helper()
	var all []v1.AgentEvent
	for e, err := range w.WatchRun(ctx, id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
		if e.Run != nil {
			return *e.Run, all
		}
	}
	t.Fatalf("run %s has no end", id)
	return v1.AgentRun{}, nil
}

func call(name string, args map[string]any) scripted.Call {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // made of our own strings
	}
	return scripted.Call{Name: name, Arguments: string(raw)}
}

// said counts the model's answers in a conversation.
func said(c scripted.Conversation) (n int) {
	for _, t := range c.Turns {
		if t.Role == "assistant" {
			n++
		}
	}
	return n
}
