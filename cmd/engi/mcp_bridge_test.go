package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A farServer is an MCP server of which nothing is left when it is killed but
// what is in it.
type farServer struct {
	t      *testing.T
	listen string
	mu     sync.Mutex
	web    *http.Server
	serve  func(w http.ResponseWriter, r *http.Request, m rpc)
	seen   []string // methods, and the sessions they came in
}

func newFarServer(t *testing.T, serve func(w http.ResponseWriter, r *http.Request, m rpc)) *farServer {
	f := &farServer{t: t, listen: "127.0.0.1:0", serve: serve}
	f.start()
	t.Cleanup(f.kill)
	return f
}

func (f *farServer) start() {
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		f.t.Fatal(err)
	}
	f.listen = l.Addr().String()
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m rpc
		if raw, err := io.ReadAll(r.Body); err == nil && len(raw) > 0 {
			if err := json.Unmarshal(raw, &m); err != nil {
				f.t.Error(err)
			}
		}
		f.mu.Lock()
		f.seen = append(f.seen, strings.TrimSpace(r.Method+" "+m.Method+" "+r.Header.Get("Mcp-Session-Id")))
		f.mu.Unlock()
		f.serve(w, r, m)
	})}
	f.mu.Lock()
	f.web = web
	f.mu.Unlock()
	go web.Serve(l)
}

func (f *farServer) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.web.Close()
}

// A nearClient talks to a bridge as a client does.
type nearClient struct {
	t    *testing.T
	in   io.WriteCloser
	out  *bufio.Reader
	done chan error
}

func bridgeTo(t *testing.T, f *farServer) *nearClient {
	fromClient, in := io.Pipe()
	out, toClient := io.Pipe()
	c := &nearClient{t: t, in: in, out: bufio.NewReader(out), done: make(chan error, 1)}
	go func() {
		c.done <- passOn(t.Context(), "http://"+f.listen, "secret", fromClient, toClient)
		toClient.Close()
	}()
	t.Cleanup(func() {
		in.Close()
		if err := <-c.done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *nearClient) say(message string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, message+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *nearClient) hear() string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func (c *nearClient) want(parts ...string) {
	c.t.Helper()
	got := c.hear()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			c.t.Errorf("%s lacks %s", got, p)
		}
	}
}

func answer(w http.ResponseWriter, m rpc, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// TestBridgeOutlivesServers kills the server between calls, in a call whose
// answer can be come back to, and in one whose cannot, and has it lose the
// session.
func TestBridgeOutlivesServers(t *testing.T) {
	var f *farServer
	var sessions atomic.Int32
	var looked atomic.Bool
	cut := make(chan bool, 1)
	f = newFarServer(t, func(w http.ResponseWriter, r *http.Request, m rpc) {
		session := r.Header.Get("Mcp-Session-Id")
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusUnauthorized)
		case m.Method == "initialize":
			w.Header().Set("Mcp-Session-Id", fmt.Sprintf("s%d", sessions.Add(1)))
			answer(w, m, `{"protocolVersion":"2025-06-18"}`)
		case session != fmt.Sprintf("s%d", sessions.Load()):
			w.WriteHeader(http.StatusNotFound)
		case r.Method == "GET":
			if r.Header.Get("Last-Event-ID") != "e7" {
				t.Errorf("resumes at %q", r.Header.Get("Last-Event-ID"))
			}
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "id: e8\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"long\",\ndata: \"result\":{\"said\":\"at last\"}}\n\n")
		case r.Method == "DELETE" || len(m.ID) == 0:
			w.WriteHeader(http.StatusAccepted)
		case m.Method == "tools/list":
			answer(w, m, `{"ok":true,"tools":[{"name":"look","annotations":{"readOnlyHint":true}},{"name":"short"}]}`)
		case m.Params.Name == "long" || m.Params.Name == "short" || m.Params.Name == "look" && !looked.Swap(true):
			w.Header().Set("Content-Type", "text/event-stream")
			if m.Params.Name == "long" {
				fmt.Fprint(w, ": \r\nid: e7\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\r\n\r\n")
			}
			http.NewResponseController(w).Flush()
			cut <- true
			<-r.Context().Done()
		default:
			answer(w, m, `{"ok":true}`)
		}
	})
	c := bridgeTo(t, f)
	c.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`)
	c.want(`"id":0`, "2025-06-18")
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for i := range 3 {
		f.kill()
		c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`, i))
		time.Sleep(50 * time.Millisecond)
		f.start()
		c.want(fmt.Sprintf(`"id":%d`, i), `"ok":true`)
	}
	restart := func() {
		<-cut
		f.kill()
		f.start()
	}
	c.say(`{"jsonrpc":"2.0","id":"long","method":"tools/call","params":{"name":"long"}}`)
	c.want("notifications/progress")
	restart()
	c.want(`"id":"long"`, "at last")
	c.say(`{"jsonrpc":"2.0","id":"short","method":"tools/call","params":{"name":"short"}}`)
	restart()
	c.want(`"id":"short"`, `"isError":true`, "is unknown")
	c.say(`{"jsonrpc":"2.0","id":"look","method":"tools/call","params":{"name":"look"}}`)
	restart()
	c.want(`"id":"look"`, `"ok":true`)
	f.mu.Lock()
	sessions.Add(1) // the server has lost it
	f.seen = nil
	f.mu.Unlock()
	c.say(`{"jsonrpc":"2.0","id":9,"method":"ping"}`)
	c.want(`"id":9`, `"ok":true`)
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := strings.Join(f.seen, ", "); got != "POST ping s1, POST initialize, POST notifications/initialized s3, POST ping s3" {
		t.Error(got)
	}
}

// TestBridgeSpeaksEveryRevision passes on messages of the revision without
// sessions, with the headers that it asks for, and hangs up to cancel.
func TestBridgeSpeaksEveryRevision(t *testing.T) {
	hung := make(chan bool, 1)
	f := newFarServer(t, func(w http.ResponseWriter, r *http.Request, m rpc) {
		if r.Header.Get("Mcp-Session-Id") != "" || r.Header.Get("Mcp-Protocol-Version") != "2026-07-28" || r.Header.Get("Mcp-Method") != m.Method {
			t.Errorf("%s: %v", m.Method, r.Header)
		}
		switch m.Method {
		case "resources/read":
			answer(w, m, fmt.Sprintf(`{"name":%q}`, r.Header.Get("Mcp-Name")))
		case "tools/call":
			hung <- true
			<-r.Context().Done()
			hung <- true
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
		}
	})
	c := bridgeTo(t, f)
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
	c.say(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"engi://ö",` + meta + `}}`)
	c.want(`"id":1`, "=?base64?ZW5naTovL8O2?=")
	c.say(`{"jsonrpc":"2.0","id":2,"method":"no/such","params":{` + meta + `}}`)
	c.want(`"id":2`, "-32601")
	c.say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"long",` + meta + `}}`)
	<-hung
	c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	<-hung
	c.say(`this is no message`)
	c.want("-32700")
}

// TestBridgeGivesUp tells the client about a server that does not come back, or
// that refuses the key.
func TestBridgeGivesUp(t *testing.T) {
	f := newFarServer(t, func(w http.ResponseWriter, r *http.Request, m rpc) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"detail":"the key is not known","remedy":"set ENGI_KEY"}`)
	})
	c := bridgeTo(t, f)
	c.say(`{"jsonrpc":"2.0","id":1,"method":"initialize"}`)
	c.want(`"id":1`, `"error"`, "the key is not known (set ENGI_KEY)")
	f.kill()
	var out strings.Builder
	b := newBridge("http://"+f.listen, "secret", &out)
	b.patience = 200 * time.Millisecond
	b.carry(t.Context(), &rpc{ID: json.RawMessage("2"), Method: "tools/call", raw: []byte(`{}`)})
	if !strings.Contains(out.String(), "does not answer") {
		t.Error(out.String())
	}
}
