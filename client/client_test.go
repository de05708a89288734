package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/rest"
	"github.com/engi-dev/engi/test/apitest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

// A wire is an http.RoundTripper to a handler in this process, so that tests
// can live in a bubble of time of their own. cut says after how many bytes of
// an answer's body the connection breaks; lose whether it breaks before the
// answer has any; negative and false mean never.
type wire struct {
	handler http.Handler
	cut     func(*http.Request) int
	lose    func(*http.Request) bool
	served  sync.WaitGroup
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	in := r.Clone(ctx)
	in.RequestURI, in.Host = r.URL.RequestURI(), "localhost"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	limit := -1
	if w.cut != nil {
		limit = w.cut(r)
	}
	pr, pw := io.Pipe()
	rec := &answering{header: http.Header{}, begun: make(chan int, 1), out: pw, left: limit}
	w.served.Go(func() {
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				pw.CloseWithError(errors.New("connection reset"))
				return
			}
			pw.Close()
		}()
		w.handler.ServeHTTP(rec, in)
		rec.WriteHeader(200)
	})
	if w.lose != nil && w.lose(r) {
		go io.Copy(io.Discard, pr)
		w.served.Wait()
		return nil, errors.New("connection reset")
	}
	select {
	case status := <-rec.begun:
		return &http.Response{
			Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), StatusCode: status, Header: rec.header.Clone(),
			Body: body{pr, cancel}, Request: r, ProtoMajor: 1, ProtoMinor: 1,
		}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type body struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b body) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

type answering struct {
	header http.Header
	begun  chan int
	once   sync.Once
	out    *io.PipeWriter
	left   int
}

func (a *answering) Header() http.Header    { return a.header }
func (a *answering) WriteHeader(status int) { a.once.Do(func() { a.begun <- status }) }
func (a *answering) Flush()                 { a.WriteHeader(200) }
func (a *answering) Write(b []byte) (int, error) {
	a.WriteHeader(200)
	if a.left >= 0 && len(b) > a.left {
		a.out.Write(b[:a.left])
		panic(http.ErrAbortHandler)
	}
	if a.left >= 0 {
		a.left -= len(b)
	}
	return a.out.Write(b)
}

// direct returns a world and a client that needs no network.
func direct(t *testing.T, w *wire, change func(*apitest.Options), opts ...client.Option) (*apitest.Fixture, *client.Client) {
	world := apitest.New(change)
	w.handler = world.Handler
	t.Cleanup(func() {
		world.Close()
		w.served.Wait()
	})
	opts = append([]client.Option{client.WithHTTPClient(&http.Client{Transport: w})}, opts...)
	return world, client.New("http://localhost", world.User, opts...)
}

func python(code string) v1.ExecutionRequest {
	return v1.ExecutionRequest{Language: "python", Code: code}
}

func TestRun(t *testing.T) {
	_, c := direct(t, &wire{}, nil)
	x, err := c.Run(t.Context(), python("print(6*7); echo no >&2; save a.txt hi; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	if r := x.Result; x.State != v1.Done || r.Stdout != "42\n" || r.Stderr != "no\n" || r.ExitCode != 3 || string(r.Artifacts[0].ContentBase64) != "hi" {
		t.Errorf("got %+v", x.Result)
	}
}

// TestBrokenStreamsLoseNothing breaks connections at random places while a
// program prints characters of one to four bytes on both streams, cut
// anywhere, and bytes that are no characters.
func TestBrokenStreamsLoseNothing(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			var code []string
			var want [2]bytes.Buffer
			text := [2]string{strings.Repeat("aß€😀", 20), strings.Repeat("€x\xff", 20)}
			for len(text[0])+len(text[1]) > 0 {
				i := rnd.IntN(2)
				n := min(1+rnd.IntN(7), len(text[i]))
				if n == 0 {
					continue
				}
				code = append(code, []string{"put ", "puterr "}[i]+fmt.Sprintf("%q", text[i][:n]))
				want[i].WriteString(text[i][:n])
				text[i] = text[i][n:]
				if rnd.IntN(4) == 0 {
					code = append(code, "sleep 1ms")
				}
			}
			w := &wire{cut: func(r *http.Request) int {
				if strings.HasSuffix(r.URL.Path, "/events") {
					return 700 + rnd.IntN(2500)
				}
				return -1
			}}
			_, c := direct(t, w, nil, client.WithRetries(100)) // the result alone is longer than most connections carry
			x, err := c.Start(t.Context(), python(strings.Join(code, "\n")))
			if err != nil {
				t.Fatal(err)
			}
			var got [2]bytes.Buffer
			var started int
			var last v1.ExecutionUpdate
			for e, err := range c.Watch(t.Context(), x.ID, 0) {
				if err != nil {
					t.Fatal(err)
				}
				last = e
				switch e.Type {
				case v1.EventStarted:
					started++
				case v1.EventStdout, v1.EventStderr:
					i := strings.Index("stdoutstderr", e.Type) / 6
					got[i].WriteString(e.Data)
					got[i].Write(e.DataBase64)
				}
			}
			if last.Type != v1.EventResult {
				t.Errorf("seed %d: the last event is %+v", seed, last)
			}
			if started != 1 {
				t.Errorf("seed %d: started %d times", seed, started)
			}
			for i := range want {
				if got[i].String() != want[i].String() {
					t.Errorf("seed %d, stream %d:\n got %q\nwant %q", seed, i, &got[i], &want[i])
				}
			}
		})
	}
}

func TestLostAnswerIsNotASecondRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int32
		w := &wire{lose: func(r *http.Request) bool { return r.Method == "POST" && lost.Add(1) <= 3 }}
		world, c := direct(t, w, nil)
		x, err := c.Run(t.Context(), python("echo once"))
		if err != nil || x.Result.Stdout != "once\n" {
			t.Fatalf("%+v, %v", x, err)
		}
		if all, err := world.Executions.List(t.Context(), engi.Everyone, engi.ExecutionFilter{}); err != nil || len(all) != 1 {
			t.Errorf("%d runs, %v", len(all), err)
		}
	})
}

func TestLostKeyIsNotMadeTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{lose: func(r *http.Request) bool { return true }}
		world, _ := direct(t, w, nil)
		c := client.New("http://localhost", world.Admin, client.WithHTTPClient(&http.Client{Transport: w}))
		before, _ := world.Keys.List(t.Context(), engi.Everyone, engi.Paging{})
		if _, err := c.CreateKey(t.Context(), v1.KeyRequest{}); !client.IsKind(err, v1.Unavailable) {
			t.Errorf("%v, want unavailable", err)
		}
		if after, _ := world.Keys.List(t.Context(), engi.Everyone, engi.Paging{}); len(after) != len(before)+1 {
			t.Errorf("%d keys were made, want the one whose answer was lost", len(after)-len(before))
		}
	})
}

func TestRetriesComeWhenAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world, c := direct(t, &wire{}, nil)
		world.Executions.SetCapacity(0)
		start := time.Now()
		go func() {
			time.Sleep(4 * time.Second)
			world.Executions.SetCapacity(1)
		}()
		// The server asks for 1.5 s.
		if _, err := c.Run(t.Context(), python("echo hi")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 4500*time.Millisecond || took > 7*time.Second {
			t.Errorf("came back after %v", took)
		}

		world.Executions.SetCapacity(0)
		_, err := client.New("http://localhost", world.User, client.WithRetries(0),
			client.WithHTTPClient(&http.Client{Transport: &wire{handler: world.Handler}})).Run(t.Context(), python("echo"))
		e, ok := errors.AsType[*client.Error](err)
		if !ok || e.Kind != v1.Exhausted || e.Status != 429 || e.RetryAfter.Std() != 1500*time.Millisecond || e.QueuePosition != 7 || e.Remedy == "" || e.RequestID == "" {
			t.Errorf("got %+v, %v", e, err)
		}
	})
}

func TestLeavingCancels(t *testing.T) {
	for name, leave := range map[string]func(context.Context, *client.Client) error{
		"the loop": func(ctx context.Context, c *client.Client) error {
			for _, err := range c.Stream(ctx, python("echo a; sleep 30s")) {
				return err
			}
			return nil
		},
		"by deadline": func(ctx context.Context, c *client.Client) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := c.Run(ctx, python("sleep 30s")); !client.IsKind(err, v1.Expired) {
				return fmt.Errorf("%w, want expired", err)
			}
			return nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			world, c := direct(t, &wire{}, nil)
			if err := leave(t.Context(), c); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			all, err := world.Executions.List(t.Context(), engi.Everyone, engi.ExecutionFilter{})
			if err != nil || len(all) != 1 || all[0].Result == nil || all[0].Result.Exit.Cause != engi.CauseCancelled {
				t.Errorf("%s: the run is %+v, %v", name, all, err)
			}
		})
	}
}

func TestSilentServerIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var watched atomic.Int32
		w := &wire{}
		_, c := direct(t, w, func(o *apitest.Options) { o.Beat = time.Hour })
		inner := w.handler
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/events") {
				watched.Add(1)
			}
			inner.ServeHTTP(rw, r)
		})
		x, err := c.Run(t.Context(), v1.ExecutionRequest{Language: "bash", Code: "echo a; sleep 2m; echo b", Timeout: v1.Duration(time.Hour)})
		if err != nil || x.Result.Stdout != "a\nb\n" {
			t.Fatalf("%+v, %v", x.Result, err)
		}
		if n := watched.Load(); n != 3 {
			t.Errorf("watched %d times, want again after each 50 s of silence", n)
		}
	})
}

func TestServerThatLeavesIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaving, leave := context.WithCancel(t.Context())
		w := &wire{}
		world, c := direct(t, w, func(o *apitest.Options) { o.Leave = leaving })
		// Another server with the same world behind takes over.
		next := (&apitest.Options{Options: rest.Options{Keys: world.Keys}, Executions: world.Executions, Sandboxes: world.Sandboxes, Templates: world.Templates, Pools: world.Pools}).Serve()
		first := w.handler
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if leaving.Err() != nil {
				next.ServeHTTP(rw, r)
			} else {
				first.ServeHTTP(rw, r)
			}
		})
		go func() {
			time.Sleep(2 * time.Second)
			leave()
		}()
		x, err := c.Run(t.Context(), python("echo a; sleep 5s; echo b"))
		if err != nil || x.Result.Stdout != "a\nb\n" {
			t.Errorf("%+v, %v", x, err)
		}
	})
}

func TestOthersAnswersAreErrorsToo(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		header http.Header
		kind   string
	}{
		"a proxy":             {502, "<html>Bad Gateway</html>", nil, v1.Unavailable},
		"a proxy with limits": {429, "slow down", http.Header{"Retry-After": {"7"}}, v1.Exhausted},
		"another server":      {404, "not here", nil, v1.Internal},
		"no JSON":             {200, "hello", nil, v1.Internal},
	} {
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for k, v := range c.header {
				w.Header()[k] = v
			}
			w.WriteHeader(c.status)
			io.WriteString(w, c.body)
		})
		cl := client.New("http://localhost", "", client.WithRetries(0), client.WithHTTPClient(&http.Client{Transport: &wire{handler: h}}))
		_, err := cl.Node(t.Context())
		e, ok := errors.AsType[*client.Error](err)
		if !ok || e.Kind != c.kind || e.Error() == "" {
			t.Errorf("%s: %+v, %v", name, e, err)
			continue
		}
		if c.header != nil && e.RetryAfter.Std() != 7*time.Second {
			t.Errorf("%s: RetryAfter %v", name, e.RetryAfter)
		}
	}
	cl := client.New("http://127.0.0.1:1", "", client.WithRetries(0))
	if _, err := cl.Node(t.Context()); !client.IsKind(err, v1.Unavailable) {
		t.Errorf("nobody there: %v", err)
	}
	if _, err := client.New("::", "").Node(t.Context()); !client.IsKind(err, v1.Invalid) {
		t.Errorf("no address: %v", err)
	}
	if _, err := cl.Ready(t.Context()); !client.IsKind(err, v1.Unavailable) {
		t.Errorf("nobody there: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	_, c := direct(t, &wire{}, nil)
	_, err := c.Run(t.Context(), v1.ExecutionRequest{Language: "pyton", Code: "x", VCPUs: -1})
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Kind != v1.Invalid || len(e.Faults) != 2 || !strings.Contains(e.Error(), `did you mean "python"?`) {
		t.Errorf("got %+v, %v", e, err)
	}
	for name, err := range map[string]error{
		"execution": second(c.Execution(t.Context(), string(engi.NewExecutionID()))),
		"wait":      second(c.Wait(t.Context(), string(engi.NewExecutionID()))),
		"artifact":  second(c.Artifact(t.Context(), string(engi.NewExecutionID()), "a/b c")),
		"template":  second(c.Template(t.Context(), "nope")),
		"sandbox":   second(c.Sandbox(t.Context(), string(engi.NewSandboxID()))),
		"cancel":    c.Cancel(t.Context(), string(engi.NewExecutionID())),
		"key":       c.RevokeKey(t.Context(), "key_x"),
	} {
		if !client.IsKind(err, v1.NotFound) {
			t.Errorf("%s: %v, want not_found", name, err)
		}
	}
	// What is no JSON is refused here.
	if _, err := c.QueryCollection(t.Context(), "shop", v1.CollectionRequest{Collection: "orders", Filter: json.RawMessage(`{"a":`)}); !client.IsKind(err, v1.Invalid) {
		t.Errorf("a filter that is no JSON: %v", err)
	}
	for _, err := range c.Watch(t.Context(), string(engi.NewExecutionID()), 0) {
		if !client.IsKind(err, v1.NotFound) {
			t.Errorf("watch: %v, want not_found", err)
		}
	}
	for _, err := range c.BuildTemplate(t.Context(), v1.TemplateRequest{Name: "x"}) {
		if !client.IsKind(err, v1.Denied) {
			t.Errorf("build without rights: %v, want denied", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestWholePages reads more than one page holds, over a real connection.
func TestWholePages(t *testing.T) {
	world, srv := apitest.Serve(t, nil)
	c := client.New(srv.URL+"/", world.User, client.WithUserAgent("test"))
	for range 105 {
		if _, err := c.Start(t.Context(), python("echo")); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, err := range c.Executions(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 105 {
		t.Errorf("%d executions, want 105", n)
	}
}

func TestEveryMethodHasAnExample(t *testing.T) {
	var src []byte
	names, err := filepath.Glob("example*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		src = append(src, text...)
	}
	for m := range reflect.TypeFor[*client.Client]().Methods() {
		if !bytes.Contains(src, []byte("func ExampleClient_"+m.Name+"()")) {
			t.Errorf("%s has no example", m.Name)
		}
	}
}
