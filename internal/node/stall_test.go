package node

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/envd"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/kernel"
	"github.com/engi-dev/engi/internal/server/rest"
	"github.com/engi-dev/engi/internal/store"
)

// hurry is how much sooner than in earnest the deadlines of connections pass in
// these tests.
const hurry = 50

// hurriedListener accepts connections whose deadlines pass sooner.
type hurriedListener struct{ net.Listener }

func (l hurriedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return hurried{c}, nil
}

type hurried struct{ net.Conn }

func soon(t time.Time) time.Time {
	if left := time.Until(t); !t.IsZero() && left > 0 {
		return time.Now().Add(left / hurry)
	}
	return t
}

func (c hurried) SetDeadline(t time.Time) error      { return c.Conn.SetDeadline(soon(t)) }
func (c hurried) SetReadDeadline(t time.Time) error  { return c.Conn.SetReadDeadline(soon(t)) }
func (c hurried) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(soon(t)) }

// A stalled server counts its open connections.
type stallServer struct {
	plain, secure string // addresses
	busy          atomic.Int64
	mu            sync.Mutex
	open          map[string]bool // by both addresses, the client's first; false once it was closed
}

func serveStalled(t *testing.T, n *Node) *stallServer {
	t.Helper()
	s := &stallServer{open: map[string]bool{}}
	srv := rest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.busy.Add(1)
		defer s.busy.Add(-1)
		n.handler.ServeHTTP(w, r)
	}), slog.New(slog.DiscardHandler))
	srv.HTTP2.SendPingTimeout /= hurry
	srv.HTTP2.PingTimeout /= hurry
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open[c.RemoteAddr().String()+" "+c.LocalAddr().String()] = state != http.StateClosed && state != http.StateHijacked
	}
	c := certificate(t)
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	listen := func(wrap func(net.Listener) net.Listener) string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served.Go(func() { srv.Serve(wrap(hurriedListener{ln})) })
		return ln.Addr().String()
	}
	s.plain = listen(func(l net.Listener) net.Listener { return l })
	s.secure = listen(func(l net.Listener) net.Listener {
		return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}})
	})
	t.Cleanup(func() {
		srv.Close()
		served.Wait()
	})
	return s
}

// ended reports whether the server has closed a connection.
func (s *stallServer) ended(conn net.Conn) bool {
	client := conn.LocalAddr().String() + " " + conn.RemoteAddr().String()
	s.mu.Lock()
	defer s.mu.Unlock()
	open, known := s.open[client]
	if known && !open {
		delete(s.open, client) // another one may get the port
	}
	return known && !open
}

// A stallRoute is a request for one route, without its body.
type stallRoute struct{ method, path, head string }

// stallRoutes returns a request for each route of each surface. What a path names
// is there where that changes what the server does, but for DELETE.
func stallRoutes(t *testing.T, n *Node, names map[string]string, box, token, volumeToken string) (all []stallRoute) {
	t.Helper()
	add := func(pattern, prefix, head string) {
		method, path, ok := strings.Cut(pattern, " ")
		if !ok {
			method, path = "POST", pattern
		}
		elements := strings.Split(path, "/")
		for i, e := range elements {
			if strings.HasPrefix(e, "{") {
				name := names[elements[i-1]]
				if method == "DELETE" || name == "" {
					name = "x"
				}
				elements[i] = name
			}
		}
		path = prefix + strings.Join(elements, "/")
		if strings.HasSuffix(path, "/x/") {
			path += "x"
		}
		all = append(all, stallRoute{method, path + "?path=/tmp/f", "Host: localhost\r\n" + head})
	}
	bearer := "Authorization: Bearer " + n.AdminKey() + "\r\n"
	for _, r := range n.api(rest.Options{Keys: key.New(store.Keys(n.db))}, rest.NodeInfo{}).Routes() {
		add(r.Pattern, "", bearer)
	}
	for _, pattern := range n.e2b.Routes() {
		head := "X-Api-Key: " + n.AdminKey() + "\r\n"
		if strings.Contains(pattern, "volumecontent") {
			head = "Authorization: Bearer " + volumeToken + "\r\n"
		}
		add(pattern, "", head)
	}
	inside := func(port int) string {
		return fmt.Sprintf("E2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: %d\r\nX-Access-Token: %s\r\n", box, port, token)
	}
	for pattern := range envd.New(nil).Routes() {
		add(pattern, "", inside(49983))
	}
	for pattern := range kernel.New(nil).Routes() {
		method, path, _ := strings.Cut(pattern, " ")
		add(method+" "+strings.TrimPrefix(path, strings.TrimSuffix(kernel.Prefix, "/")), "", inside(49999))
	}
	for _, method := range []string{"GET", "POST", "DELETE"} {
		add(method+" /mcp", "", bearer+"Accept: application/json, text/event-stream\r\n")
		add(method+" /", "", inside(9)) // a port where nobody listens
		add(method+" /preview/"+box+"/9/", "", bearer)
	}
	add("POST /nothing", "", bearer)
	return all
}

// input is the route of E2B's dialect whose bodies are what a person types, for as
// long as the program runs. There are few of them for each sandbox.
const input = "/process.Process/StreamInput"

// How a client stalls: what it sends, and then nothing more.
var stalls = []struct{ name, send string }{
	{"in the request line", "METHOD /"},
	{"in a header", "METHOD PATH HTTP/1.1\r\nHEADContent-Le"},
	{"before the end of the headers", "METHOD PATH HTTP/1.1\r\nHEADContent-Length: 10\r\n"},
	{"before the body", "METHOD PATH HTTP/1.1\r\nHEADContent-Length: 10\r\n\r\n"},
	{"in the body", "METHOD PATH HTTP/1.1\r\nHEADContent-Length: 10\r\n\r\n{\"a\""},
	{"before a long body", "METHOD PATH HTTP/1.1\r\nHEADContent-Length: 2097152\r\n\r\n"},
	{"in a long body", "METHOD PATH HTTP/1.1\r\nHEADContent-Length: 2097152\r\n\r\n{\"a\""},
	{"before it is told to continue", "METHOD PATH HTTP/1.1\r\nHEADExpect: 100-continue\r\nContent-Length: 10\r\n\r\n"},
	{"before a chunk", "METHOD PATH HTTP/1.1\r\nHEADTransfer-Encoding: chunked\r\n\r\n"},
	{"in the size of a chunk", "METHOD PATH HTTP/1.1\r\nHEADTransfer-Encoding: chunked\r\n\r\n1"},
	{"in a chunk", "METHOD PATH HTTP/1.1\r\nHEADTransfer-Encoding: chunked\r\n\r\n10\r\n{"},
	{"between chunks", "METHOD PATH HTTP/1.1\r\nHEADTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"},
	{"before the trailer", "METHOD PATH HTTP/1.1\r\nHEADTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n"},
	{"in the trailer", "METHOD PATH HTTP/1.1\r\nHEADTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\nX-Tr"},
	{"before it reads", "METHOD PATH HTTP/1.1\r\nHEADContent-Length: 2\r\n\r\n[]"},
}

// TestEveryRouteEndsStalledConnections sends a part of a request to each route of
// each surface, up to each kind of place, and then nothing more. The server ends
// the connection by its deadline, and keeps nothing of it.
func TestEveryRouteEndsStalledConnections(t *testing.T) {
	c, o := fakeNode(t)
	c.Sessions.Enabled, c.Sessions.Template = true, "host"
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	admin := apiClient{t, n.Endpoint().URL, n.AdminKey()}
	sandbox := admin.make("/v1/sandboxes", `{}`, "id")
	box := strings.TrimPrefix(sandbox, "sbx_")
	names := map[string]string{
		"sandboxes": sandbox, "executions": admin.make("/v1/executions", `{"language":"bash","code":":"}`, "id"),
		"sessions": admin.make("/v1/sessions", `{}`, "id"), "events": admin.make("/v1/events", `{"name":"engi/debug/echo","data":{}}`, "id"),
	}
	t.Cleanup(func() { admin.ask("DELETE", "/v1/sessions/"+names["sessions"], "") })
	volume := admin.make("/v1/volumes", `{"name":"v"}`, "id")
	names["volumes"], names["volumecontent"] = volume, volume
	t.Cleanup(func() { admin.ask("DELETE", "/v1/volumes/"+volume, "") })
	field := func(answer, name string) string {
		_, value, _ := strings.Cut(answer, `"`+name+`":"`)
		value, _, _ = strings.Cut(value, `"`)
		return value
	}
	_, answer := admin.ask("GET", "/volumes/"+volume, "")
	volumeToken := field(answer, "token")
	_, answer = admin.ask("POST", "/sandboxes/"+box+"/connect", `{"timeout":1200}`)
	token := field(answer, "envdAccessToken")
	routes := stallRoutes(t, n, names, box, token, volumeToken)
	for _, r := range routes {
		// What creates something reads the body, if nothing else is wrong.
		if path, _, _ := strings.Cut(r.path, "?"); r.method == "POST" && strings.HasPrefix(path, "/v1/") && strings.Count(path, "/") == 2 && path != "/v1/shutdown" {
			routes = append(routes, stallRoute{r.method, path, r.head})
		}
	}
	if len(routes) < 200 || token == "" || volumeToken == "" {
		t.Fatalf("%d routes, token %q", len(routes), token)
	}
	s := serveStalled(t, n)
	http.DefaultClient.CloseIdleConnections()
	goroutines, files := runtime.NumGoroutine(), openFiles(t)

	type stall struct {
		name, at, send string
		secure         bool
	}
	var todo []stall
	seen := map[string]bool{} // surfaces that were tried with TLS
	for _, r := range routes {
		surface, _, _ := strings.Cut(strings.TrimPrefix(r.path, "/"), "/")
		for i, x := range stalls {
			if strings.HasPrefix(r.path, input) && i > 2 {
				break
			}
			send := strings.NewReplacer("METHOD", r.method, "PATH", r.path, "HEAD", r.head).Replace(x.send)
			todo = append(todo, stall{r.method + " " + r.path + ", " + x.name, s.plain, send, false})
			if !seen[surface] {
				todo = append(todo, stall{r.method + " " + r.path + ", with TLS, " + x.name, s.secure, send, true})
			}
		}
		seen[surface] = true
	}
	todo = append(todo, stall{"nothing", s.plain, "", false}, stall{"no handshake", s.secure, "\x16\x03\x01", false})
	// HTTP/2 with and without TLS.
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	for name, send := range map[string]string{
		"in the preface": preface[:20], "before the settings": preface,
		"before a request":          preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"in a frame":                preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x40\x01\x04\x00",
		"between frames of headers": preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82",
		"before the body":           preface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x0f\x01\x04\x00\x00\x00\x01\x83\x86\x04\x01/\x01\x09localhost"[:24],
	} {
		todo = append(todo, stall{"HTTP/2, " + name, s.plain, send, false})
	}

	work := make(chan stall)
	var all sync.WaitGroup
	for range 2500 {
		all.Go(func() {
			for x := range work {
				if kept := s.stall(x.at, x.send, x.secure); kept != "" {
					t.Errorf("%s: the connection stays: %s", x.name, kept)
				}
			}
		})
	}
	began := time.Now()
	for _, x := range todo {
		work <- x
	}
	close(work)
	all.Wait()
	t.Logf("%d routes, %d stalled connections in %s", len(routes), len(todo), time.Since(began).Round(100*time.Millisecond))

	for range 600 { // streams notice it with their next heartbeat
		s.mu.Lock()
		open := false
		for _, x := range s.open {
			open = open || x
		}
		s.mu.Unlock()
		if !open && s.busy.Load() == 0 && runtime.NumGoroutine() <= goroutines+20 && openFiles(t) <= files+20 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	buf := make([]byte, 1<<20)
	t.Errorf("%d requests, %d goroutines and %d descriptors are left, before %d and %d\n%s", s.busy.Load(), runtime.NumGoroutine(), openFiles(t), goroutines, files,
		buf[:runtime.Stack(buf, true)])
}

// stall sends something and then nothing more. It returns why the connection stays,
// or nothing if the server ended it.
func (s *stallServer) stall(at, send string, secure bool) string {
	raw, err := net.Dial("tcp", at)
	if err != nil {
		return err.Error()
	}
	defer raw.Close()
	conn := raw
	if secure {
		conn = tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
	}
	_, _ = io.WriteString(conn, send) // it may be over already
	began := time.Now()
	for time.Since(began) < time.Minute {
		if s.ended(raw) || time.Since(began) > 10*time.Second && streams(raw) {
			return ""
		}
		time.Sleep(100 * time.Millisecond)
	}
	// Nothing was read so far.
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "without an answer"
	}
	defer resp.Body.Close()
	if isStream(resp) {
		return ""
	}
	return cmp.Or(resp.Status, "no status")
}

// isStream reports whether an answer is a stream: who listens to one need not send
// anything.
func isStream(resp *http.Response) bool {
	return resp.StatusCode == http.StatusOK && slices.Contains([]string{"text/event-stream", "application/x-ndjson"}, resp.Header.Get("Content-Type"))
}

// streams reports whether what the server has sent so far, which stays unread, begins
// a stream.
func streams(conn net.Conn) bool {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return false
	}
	head := make([]byte, 4<<10)
	n := 0
	if err := raw.Control(func(fd uintptr) {
		n, _, _ = unix.Recvfrom(int(fd), head, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	}); err != nil {
		return false
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head[:max(n, 0)])), nil)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return isStream(resp)
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
