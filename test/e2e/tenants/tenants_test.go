package tenants

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

// inside is the variable that is set in the process with a separate network namespace, so that
// tens of thousands of connections affect no other program.
const inside = "ENGI_TEST_TENANTS_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(role) != "" {
		if err := attack(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if env.Missing("ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN") != "" || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // the signal is sent when the thread ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(max(1, exit.ExitCode()))
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	stalled = 22_000 // number of stalled connections
	each    = 5_500  // connections of one process, within its limit of descriptors
	deaf    = 1_000  // number of readers that do not read
	maxRSS  = 600 << 20
	judged  = 5 * time.Minute // minimum duration for a meaningful slowest hundredth
)

// role is the variable that is set in mallory's processes: stall or ask. All their threads get only
// processor time that no other process needs, as if they were on another machine. Where the kernel
// groups processes by session, the group needs a low weight, too: within a group,
// idle only means a lower share than the rest of the session.
const role = "ENGI_TEST_TENANTS_ROLE"

// attack attacks until standard input ends, and prints the count of each kind of attack.
func attack() error {
	m := &mallory{url: os.Getenv("ENGI_URL"), key: os.Getenv("ENGI_KEY"), did: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	if os.Getenv(role) == "stall" {
		for i := range each {
			all.Go(func() { m.stall(ctx, i) })
		}
	} else {
		for range deaf {
			all.Go(func() { m.ignore(ctx) })
		}
		for range 2 {
			all.Go(func() { m.costly(ctx) })
		}
		all.Go(func() { m.leave(ctx) })
		for i := range 1100 { // more programs than may wait
			all.Go(func() { m.run(ctx, i) })
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(m.did)
}

// start starts mallory's processes, and returns a function that ends them and returns their counts.
func start(t *testing.T, url, key string) (end func() map[string]int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var all []*exec.Cmd
	var ends []io.Closer
	var said []*bytes.Buffer
	for i := range stalled/each + 1 {
		cmd := exec.Command("chrt", "--idle", "0", exe)
		cmd.Env = append(os.Environ(), "ENGI_URL="+url, "ENGI_KEY="+key, role+"="+[]string{"ask", "stall"}[min(i, 1)])
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", cmd.Process.Pid), []byte("19"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		all, ends, said = append(all, cmd), append(ends, in), append(said, out)
	}
	return func() map[string]int {
		total := map[string]int{}
		for _, e := range ends {
			e.Close()
		}
		for i, cmd := range all {
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			did := map[string]int{}
			if err := json.Unmarshal(said[i].Bytes(), &did); err != nil {
				t.Error(err)
			}
			for what, n := range did {
				total[what] += n
			}
		}
		return total
	}
}

// A mallory attacks a server, with a key and without.
type mallory struct {
	url, key string
	mu       sync.Mutex
	did      map[string]int // counts by kind of attack; guarded by mu
}

func (m *mallory) count(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.did[what]++
}

func (m *mallory) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(m.url, "http://"))
}

// stall keeps one connection open on which a request does not end.
func (m *mallory) stall(ctx context.Context, i int) {
	parts := []string{
		"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n",
		"GET /v1/execu",
		"POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nAuthor",
		"POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + m.key + "\r\nContent-Length: 100\r\n\r\n{",
	}
	for ; ctx.Err() == nil; pause(ctx, 3*time.Second) {
		conn, err := m.dial(ctx)
		if err != nil {
			continue
		}
		m.count("stalled connections")
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		_, _ = io.WriteString(conn, parts[i%len(parts)]) // refusals are expected
		_, _ = io.Copy(io.Discard, conn)
		stop()
		conn.Close()
	}
}

// ignore sends requests and reads no answers.
func (m *mallory) ignore(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := m.dial(ctx)
		if err != nil {
			pause(ctx, time.Second)
			continue
		}
		m.count("readers that do not read")
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		_, _ = io.WriteString(conn, strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n", 20))
		pause(ctx, 20*time.Second)
		stop()
		conn.Close()
	}
}

// ask sends one request and discards the answer.
func (m *mallory) ask(ctx context.Context, method, path, body string) {
	r, err := http.NewRequestWithContext(ctx, method, m.url+path, strings.NewReader(body))
	if err != nil {
		panic(err) // unreachable: the paths are fixed
	}
	r.Header.Set("Authorization", "Bearer "+m.key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return // the server may close connections
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}

func list(open, close string, n int, item string) string {
	return open + strings.Repeat(item+",", n-1) + item + close
}

// costly sends expensive requests, one after the other.
func (m *mallory) costly(ctx context.Context) {
	var fields strings.Builder
	for i := range 1_000_000 {
		fmt.Fprintf(&fields, `"f%d":0,`, i)
	}
	document, err := json.Marshal(map[string]string{"title": "x", "content": strings.Repeat("# x\n", 2<<20)})
	if err != nil {
		panic(err) // unreachable: text can always be encoded
	}
	requests := []struct{ name, path, body string }{
		{"batches", "/mcp", list("[", "]", 100_000, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)},
		{"unknown fields", "/v1/executions", "{" + strings.TrimSuffix(fields.String(), ",") + "}"},
		{"headings", "/v1/docs", string(document)},
		{"lists", "/v1/chat", `{"message":"x","messages":` + list("[", "]", 2_000_000, "{}") + `}`},
	}
	for i := 0; ctx.Err() == nil; i++ {
		r := requests[i%len(requests)]
		m.ask(ctx, "POST", r.path, r.body)
		m.count(r.name)
	}
}

// leave runs programs that leave many files, which wait among mallory's other programs.
func (m *mallory) leave(ctx context.Context) {
	for ctx.Err() == nil {
		m.ask(ctx, "POST", "/v1/executions", `{"language":"bash","code":"for i in $(seq 10000); do echo x > f$i; done","artifacts":{"max_count":10000}}`)
		m.count("artifacts")
		pause(ctx, time.Second)
	}
}

// programs lists hostile programs that fill the queue.
var programs = []string{
	`{"language":"bash","code":"bomb() { bomb | bomb & }; bomb; sleep 60","timeout":"5s"}`,
	`{"language":"python","code":"a = []\nwhile True: a.append(bytearray(b'x' * (8 << 20)))","timeout":"20s"}`,
	`{"language":"python","code":"while True: pass","timeout":"3s"}`,
	`{"language":"bash","code":"yes 0123456789","timeout":"10s"}`,
	`{"language":"bash","code":"head -c 4G /dev/zero > /tmp/x","timeout":"20s"}`,
	`{"language":"bash","code":"sleep 5","timeout":"10s"}`,
}

func (m *mallory) run(ctx context.Context, i int) {
	for ; ctx.Err() == nil; i++ {
		m.ask(ctx, "POST", "/v1/executions", programs[i%len(programs)])
		m.count("programs")
		pause(ctx, time.Second)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// An ann runs programs and records their durations.
type ann struct {
	api   *client.Client
	seen  map[string]bool // IDs of her executions
	times []time.Duration
}

func (a *ann) once(t *testing.T, i int) {
	t.Helper()
	began := time.Now()
	x, err := a.api.Run(t.Context(), v1.ExecutionRequest{Language: "python", Code: fmt.Sprintf("print(%d * 7)", i)})
	a.times = append(a.times, time.Since(began))
	if err != nil || x.Result == nil || x.Result.Stdout != fmt.Sprintf("%d\n", i*7) || x.Result.Cause != "exited" {
		t.Errorf("ann's program %d: %+v, %v", i, x.Result, err)
		return
	}
	a.seen[x.ID] = true
}

func quantile(all []time.Duration, q float64) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// resident returns the memory of a process in bytes, and the number of its open files.
func resident(t *testing.T, pid int) (rss int64, files int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	if _, err := fmt.Sscanf(rest, "%d", &rss); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return rss << 10, len(entries)
}

// processor returns the processor time that a process has used.
func processor(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var user, system int64
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')'):]))
	if _, err := fmt.Sscan(fields[12]+" "+fields[13], &user, &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * (time.Second / 100)
}

// TestTwoTenants: mallory attacks a node in all ways while ann works, for
// ENGI_TENANTS_TIME. Ann's answers are right, her lists and events show no objects of
// mallory, and the node stays within its limits.
func TestTwoTenants(t *testing.T) {
	env.Slow(t)
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("ENGI_TENANTS_TIME"), "15s"))
	if err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit // limit of this process and of the server
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Max < 2*each {
		env.Need(t, fmt.Sprintf("%d descriptors, not %d: ulimit -n (%v)", 2*each, limit.Max, err))
	}
	descriptors := int(limit.Max)
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := env.Serve(t, env.ServerOptions{
		Args:   []string{},
		Config: "[[pools]]\ntemplate = \"base\"\nlanguage = \"python\"\ntarget = 4\n[quota]\nvcpus = 1\nmemory = \"2GiB\"\nsandboxes = 16\n",
	})
	owner := func(name string) (*client.Client, string) {
		k, err := s.CreateKey(t.Context(), v1.KeyRequest{Name: name, Owner: name})
		if err != nil {
			t.Fatal(err)
		}
		return client.New(s.URL, k.Secret), k.Secret
	}
	a := &ann{seen: map[string]bool{}}
	a.api, _ = owner("ann")
	_, key := owner("mallory")
	pid := s.PID()

	quiet := 60
	if lasts >= judged {
		quiet = 300
	}
	for i := range quiet + 5 {
		a.once(t, i)
	}
	before := a.times[5:]
	a.times = nil

	ctx, cancel := context.WithTimeout(t.Context(), lasts+10*time.Second)
	defer cancel()
	began, used := time.Now(), processor(t, pid)
	end := start(t, s.URL, key)
	pause(ctx, 10*time.Second) // wait until all attacks are under way
	var mostRSS int64
	mostFiles := 0
	for i := 0; ctx.Err() == nil; i++ {
		a.once(t, i)
		rss, files := resident(t, pid)
		mostRSS, mostFiles = max(mostRSS, rss), max(mostFiles, files)
	}
	var did []string
	total := end()
	for what, n := range total {
		did = append(did, fmt.Sprintf("%d %s", n, what))
	}
	for _, what := range []string{"stalled connections", "readers that do not read", "batches", "unknown fields", "programs"} {
		if total[what] == 0 && lasts >= time.Minute { // a busy machine may need this time for all kinds of attacks
			t.Errorf("no %s", what)
		}
	}
	slices.Sort(did)
	ratio := func(q float64) float64 { return float64(quantile(a.times, q)) / float64(quantile(before, q)) }
	t.Logf("mallory, in %s: %s", lasts, strings.Join(did, ", "))
	t.Logf("ann, %d programs, then %d under attack: p50 %s and %s (%.1f times), p99 %s and %s (%.1f times)", len(before), len(a.times),
		quantile(before, 0.5).Round(100*time.Microsecond), quantile(a.times, 0.5).Round(100*time.Microsecond), ratio(0.5),
		quantile(before, 0.99).Round(100*time.Microsecond), quantile(a.times, 0.99).Round(100*time.Microsecond), ratio(0.99))
	t.Logf("the server: %d MiB, %d of %d descriptors, %s of processor time for %s", mostRSS>>20, mostFiles, descriptors,
		(processor(t, pid) - used).Round(time.Second), time.Since(began).Round(time.Second))
	if r := ratio(0.99); r > 3 && lasts >= judged {
		t.Errorf("p99 is %.1f times that of quiet times", r)
	}
	if mostRSS > maxRSS {
		t.Errorf("the server takes %d MiB", mostRSS>>20)
	}
	if mostFiles > descriptors*8/10 {
		t.Errorf("the server has %d descriptors", mostFiles)
	}
	a.seesOnlyHers(t)
}

// seesOnlyHers checks ann's lists and events for objects of other owners.
func (a *ann) seesOnlyHers(t *testing.T) {
	t.Helper()
	n := 0
	for x, err := range a.api.Executions(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if b, err := json.Marshal(x); !a.seen[x.ID] || err != nil || bytes.Contains(b, []byte("mallory")) {
			t.Errorf("ann's list has what she did not run: %s, %v", b, err)
		}
	}
	events, err := a.api.Events(t.Context(), client.EventFilter{Limit: 1000})
	if err != nil || len(events) == 0 {
		t.Errorf("ann's events: %d, %v", len(events), err)
	}
	for _, e := range events {
		if b, err := json.Marshal(e); e.Owner != "ann" || err != nil || bytes.Contains(b, []byte("mallory")) {
			t.Errorf("ann's events have %s, %v", b, err)
		}
	}
	if n == 0 {
		t.Error("ann's list is empty")
	}
}
