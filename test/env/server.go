package env

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/client"
)

// ServerOptions configures a Server. The zero value means a server without warm
// sandboxes.
type ServerOptions struct {
	Config    string   // text of config.toml
	Env       []string // variables in addition to this process's environment
	Without   []string // prefixes of variables that the server does not inherit
	Args      []string // arguments of "engi serve", instead of --pools none
	Templates []string // templates that must be built, besides base

	// Start starts the server's commands elsewhere, for example in a network namespace; nil means
	// (*exec.Cmd).Start.
	Start func(*exec.Cmd) error
	// Ended is called when the server has ended with the test, before its
	// data are removed; nil for none.
	Ended func(*Server)
}

// A Server is an engi in a separate process, with a client that has its admin
// key. It ends with its test, and its sandboxes with it. It belongs to one
// goroutine.
type Server struct {
	*client.Client
	Dir      string // data directory
	URL, Key string

	t      testing.TB
	o      ServerOptions
	listen string
	cmd    *exec.Cmd
	ended  chan error // receives the error of cmd's end
}

// Serve starts a server and waits until it is ready.
func Serve(t testing.TB, o ServerOptions) *Server {
	t.Helper()
	Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	s := &Server{t: t, o: o, Dir: Dir(t), listen: "127.0.0.1:0"}
	if o.Config != "" {
		if err := os.WriteFile(filepath.Join(s.Dir, "config.toml"), []byte(o.Config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range append([]string{"base"}, o.Templates...) {
		if out, err := s.Engi("template", "show", name).CombinedOutput(); err != nil || bytes.Contains(out, []byte("not built")) {
			Need(t, "the template "+name+" (make template): "+string(out))
		}
	}
	t.Cleanup(s.end)
	s.Start()
	return s
}

// Dir returns a new directory that is removed with the test. Its name is short: the
// path of a socket may have 107 bytes.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "engi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Engi returns a command of engi that uses the server.
func (s *Server) Engi(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Getenv("ENGI_BIN"), args...)
	cmd.Env = s.Env()
	return cmd
}

// Env returns the environment of the server and its commands.
func (s *Server) Env() []string {
	var vars []string
	for _, v := range os.Environ() {
		inherited := true
		for _, prefix := range s.o.Without {
			inherited = inherited && !strings.HasPrefix(v, prefix)
		}
		if inherited {
			vars = append(vars, v)
		}
	}
	return append(append(vars, "ENGI_DATA_DIR="+s.Dir), s.o.Env...)
}

// Run runs a command of engi that uses the server and returns its output, without the last
// line's end.
func (s *Server) Run(args ...string) string {
	s.t.Helper()
	out, said, err := s.output(s.Engi(args...))
	if err != nil {
		s.t.Fatalf("engi %s: %v\n%s", strings.Join(args, " "), err, said)
	}
	return strings.TrimSpace(out)
}

func (s *Server) output(cmd *exec.Cmd) (out, said string, err error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err = s.begin(cmd); err == nil {
		err = cmd.Wait()
	}
	return stdout.String(), stderr.String(), err
}

func (s *Server) begin(cmd *exec.Cmd) error {
	if s.o.Start != nil {
		return s.o.Start(cmd)
	}
	return cmd.Start()
}

// Start starts the server again, after Kill or Stop, at the same address.
func (s *Server) Start() {
	s.t.Helper()
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	args := s.o.Args
	if args == nil {
		args = []string{"--pools", "none"}
	}
	s.cmd = s.Engi(append([]string{"serve", "--listen", s.listen}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.begin(s.cmd); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	s.ended = ended
	go func(cmd *exec.Cmd) { ended <- cmd.Wait() }(s.cmd)
	out, said, err := s.output(s.Engi("status", "--wait", "60s", "--json"))
	if err != nil {
		s.t.Fatalf("the server is not ready: %v %s\n%s", err, said, s.Log())
	}
	var status struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		s.t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(s.Dir, "admin.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.URL, s.Key = status.URL, strings.TrimSpace(string(key))
	s.listen = s.URL[strings.Index(s.URL, "//")+2:]
	s.Client = client.New(s.URL, s.Key)
}

// PID returns the ID of the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Kill ends the server as kill -9 does.
func (s *Server) Kill() {
	s.cmd.Process.Kill() // the process may have ended
	s.wait()
}

// Stop ends the server; its sandboxes keep running.
func (s *Server) Stop() {
	s.t.Helper()
	if out, said, err := s.output(s.Engi("stop")); err != nil {
		s.t.Errorf("engi stop: %v\n%s%s", err, out, said)
	}
	s.wait()
}

// wait waits for the end of the process and returns its error; nil if the end
// was reported before.
func (s *Server) wait() error {
	if s.ended == nil {
		return nil
	}
	select {
	case err := <-s.ended:
		s.ended = nil
		return err
	case <-time.After(time.Minute):
		s.cmd.Process.Kill()
		return context.DeadlineExceeded
	}
}

func (s *Server) end() {
	if s.cmd == nil {
		return
	}
	if s.ended == nil && !s.t.Failed() {
		s.Start() // sandboxes outlive a server that was killed or stopped
	}
	running := s.ended != nil
	if out, said, err := s.output(s.Engi("stop", "--destroy")); err != nil && running {
		s.t.Errorf("engi stop --destroy: %v\n%s%s", err, out, said)
		s.cmd.Process.Kill()
	}
	if err := s.wait(); err != nil {
		s.t.Errorf("engi serve: %v", err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(" "+s.Dir+"/")) {
		s.t.Errorf("something is still mounted below %s: %v", s.Dir, err)
	}
	if s.o.Ended != nil {
		s.o.Ended(s)
	}
	if s.t.Failed() {
		log := s.Log()
		s.t.Logf("the end of the server's log:\n%s", log[max(0, len(log)-8<<10):])
	}
}

func (s *Server) logFile() string { return filepath.Join(s.Dir, "serve.log") }

// Log returns the log of the server, restarts included.
func (s *Server) Log() string {
	log, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(log)
}
