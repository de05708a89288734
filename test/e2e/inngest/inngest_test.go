// Package inngest_test runs durable functions on a real Inngest server, with
// keys and without, and across its restarts.
package inngest_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
	"github.com/engi-dev/engi/internal/function/functiontest"
	"github.com/engi-dev/engi/internal/function/inngest"
	"github.com/engi-dev/engi/test/env"
)

const (
	signingKey = "0123456789abcdef0123456789abcdef"
	eventKey   = "an-event-key"
)

// ports returns n free ports of this machine.
func ports(t *testing.T, n int) []string {
	t.Helper()
	all := make([]string, n)
	for i := range all {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // after the last port is found, so that all are different
		_, all[i], _ = net.SplitHostPort(l.Addr().String())
	}
	return all
}

// A server is a process of the Inngest server.
type server struct {
	url string
	log *bytes.Buffer
}

// start starts a server, with keys or for development, until the test ends.
func start(t *testing.T, keys bool) *server {
	t.Helper()
	path := os.Getenv("ENGI_TEST_INNGEST")
	if _, err := os.Stat(path); err != nil {
		env.Need(t, "an Inngest server in ENGI_TEST_INNGEST (.ci/inngest builds one)")
	}
	p := ports(t, 4)
	args := []string{"dev", "--no-discovery", "--no-poll"}
	if keys {
		args = []string{"start", "--signing-key", signingKey, "--event-key", eventKey, "--sqlite-dir", t.TempDir(), "--no-ui"}
	}
	args = append(args, "--host", "127.0.0.1", "--port", p[0], "--connect-gateway-port", p[1], "--connect-gateway-grpc-port", p[2],
		"--connect-executor-grpc-port", p[3], "--retry-interval", "1", "--tick", "20", "--log-level", "warn")
	s := &server{url: "http://127.0.0.1:" + p[0], log: &bytes.Buffer{}}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), s.log, s.log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + cmd.Dir, "DO_NOT_TRACK=1", "CI=true"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the process may have ended by itself, as the log shows
		<-gone
		if t.Failed() {
			text := s.log.String()
			t.Logf("the server says:\n%s", text[max(0, len(text)-4000):])
		}
	})
	deadline := time.Now().Add(time.Minute)
	for {
		resp, err := http.Get(s.url + "/health")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s
			}
		}
		select {
		case err := <-gone:
			gone <- err
			t.Fatalf("the server has ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server is not there after a minute: %v", err)
		}
	}
}

// opener returns a function that opens engines one after the other at one address.
func opener(t *testing.T, s *server, keys bool) func() function.Engine {
	t.Helper()
	now := &atomic.Pointer[inngest.Engine]{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e := now.Load(); e != nil {
			e.ServeHTTP(w, r)
			return
		}
		http.Error(w, "nobody is here", http.StatusBadGateway)
	}))
	t.Cleanup(srv.Close)
	app := "engi-" + strings.ToLower(rand.Text())
	return func() function.Engine {
		o := inngest.Options{URL: s.url, ServeURL: srv.URL + "/api/inngest", App: app}
		if keys {
			o.EventKey, o.SigningKey = eventKey, "signkey-test-"+signingKey
		}
		e, err := inngest.New(o)
		if err != nil {
			t.Fatal(err)
		}
		now.Store(e)
		return e
	}
}

// TestPromises checks the promises of every engine.
func TestPromises(t *testing.T) {
	env.Slow(t)
	for _, keys := range []bool{false, true} {
		t.Run("keys "+strconv.FormatBool(keys), func(t *testing.T) {
			s := start(t, keys)
			functiontest.Promises(t, func(t *testing.T) func() function.Engine { return opener(t, s, keys) })
		})
	}
}

// TestResultsComeBackAsTheyWere checks that no result of a step changes on its
// way through the server, and that many long ones are found again.
func TestResultsComeBackAsTheyWere(t *testing.T) {
	env.Slow(t)
	s := start(t, true)
	long := strings.Repeat("ä\u2028\"\\<&>\x7f𝄞 ", 25_000)
	type result struct {
		Number int64
		Text   string
		Any    any
	}
	give := func(i int) result {
		return result{Number: 1<<62 + int64(i), Text: long, Any: map[string]any{"": nil, "z": 1e300, "a": []any{-0.1, true}}}
	}
	o := functiontest.Open(t, opener(t, s, true), functiontest.On("f", 0, func(ctx context.Context, r *function.Run) (any, error) {
		for i := range 12 {
			x, err := function.Step(ctx, r, fmt.Sprintf("step %d ä/<&>", i), func(context.Context) (result, error) { return give(i), nil })
			if err != nil {
				return nil, err
			}
			if got, want := fmt.Sprint(x), fmt.Sprint(give(i)); got != want {
				return nil, function.Final(engi.Errorf(engi.Internal, "step %d came back with %d bytes, want %d", i, len(got), len(want)))
			}
		}
		return json.RawMessage(`{"n":9007199254740993}`), nil
	}))
	r := o.Await(o.Send("anna", "f", `{}`))
	if r.State != engi.FunctionDone || string(r.Output) != `{"n":9007199254740993}` {
		t.Errorf("%s %s %v", r.State, r.Output, r.Error)
	}
}

// TestWrongKeys checks that a server with keys accepts no engine without them.
func TestWrongKeys(t *testing.T) {
	env.Slow(t)
	s := start(t, true)
	e, err := inngest.New(inngest.Options{URL: s.url, ServeURL: "http://127.0.0.1:1/x", EventKey: "another", SigningKey: signingKey})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), engi.NewFunctionRunID(), "f"); !engi.Is(err, engi.Unavailable) || strings.Contains(err.Error(), "another") {
		t.Errorf("%v", err)
	}
}
