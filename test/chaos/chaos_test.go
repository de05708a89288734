package chaos

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"

	"github.com/engi-dev/engi/test/env"
	"github.com/engi-dev/engi/test/seed"
)

const (
	shortFaults = 30               // number of faults in make test; make chaos has 1000
	slowest     = 30 * time.Second // maximum time of any request
	settled     = 60 * time.Second // time after the last fault at which nothing may be left
)

// TestChaos runs executions with known answers while faults hit the node, the
// sandboxes' processes, the clients and the disk.
func TestChaos(t *testing.T) {
	env.Slow(t)
	requireReal(t)
	seed := seed.Of(t, "ENGI_CHAOS_SEED", 1)
	faults := number("ENGI_CHAOS_FAULTS", shortFaults)
	t.Logf("ENGI_CHAOS_FAULTS=%d", faults)
	rng := rand.New(rand.NewPCG(seed, seed))

	s := newServer(t, "2g")
	s.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &workload{server: s, t: t, ctx: ctx}
	var workers sync.WaitGroup
	for i := range 4 {
		workers.Go(func() { w.work(rand.New(rand.NewPCG(seed, uint64(i)))) })
	}

	counts := map[string]int{}
	for range faults {
		pause(ctx, time.Duration(50+rng.IntN(400))*time.Millisecond)
		f := pick(rng)
		counts[f.name]++
		f.hit(t, s, w, rng)
		if t.Failed() {
			break
		}
	}
	cancel()
	workers.Wait()
	t.Logf("faults: %v", counts)
	w.settle(t)
	s.checkLeaks(t)
	s.stop(t)
	s.destroyWarm(t)
}

// A fault is one injected failure.
type fault struct {
	name   string
	weight int // frequency relative to other faults
	hit    func(*testing.T, *server, *workload, *rand.Rand)
}

var faults = []fault{
	{"kill the node", 3, func(t *testing.T, s *server, _ *workload, rng *rand.Rand) {
		s.kill(t)
		pause(t.Context(), time.Duration(rng.IntN(300))*time.Millisecond)
		s.start(t)
	}},
	{"stop the node", 1, func(t *testing.T, s *server, _ *workload, _ *rand.Rand) {
		s.stop(t)
		s.start(t)
	}},
	{"kill a sandbox", 6, func(t *testing.T, s *server, _ *workload, rng *rand.Rand) { s.killOne(t, rng, "boot") }},
	{"kill a gofer", 5, func(t *testing.T, s *server, _ *workload, rng *rand.Rand) { s.killOne(t, rng, "gofer") }},
	{"kill a guest", 5, func(_ *testing.T, _ *server, w *workload, _ *rand.Rand) { w.killGuest.Store(true) }},
	{"cancel a run", 5, func(_ *testing.T, _ *server, w *workload, _ *rand.Rand) { w.cancel.Store(true) }},
	{"hang up on a stream", 5, func(_ *testing.T, _ *server, w *workload, _ *rand.Rand) { w.hangup.Store(true) }},
	{"fill the disk", 1, func(t *testing.T, s *server, _ *workload, rng *rand.Rand) {
		release := s.fillDisk(t)
		pause(t.Context(), time.Duration(200+rng.IntN(800))*time.Millisecond)
		release()
	}},
}

func pick(rng *rand.Rand) fault {
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	n := rng.IntN(total)
	for _, f := range faults {
		if n -= f.weight; n < 0 {
			return f
		}
	}
	panic("unreachable: weights add up")
}

// A server is a real node with a data directory on a separate file system, so
// that filling it harms no other program. The file system has a size in the kernel's format.
type server struct {
	bin, dir, url, key string
	pools              string
	env                []string
	log                *os.File
	mu                 sync.Mutex // guards cmd
	cmd                *exec.Cmd
}

func newServer(t *testing.T, size string) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "engi-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if log, err := os.ReadFile(filepath.Join(dir, "log")); err == nil {
				if keep := os.Getenv("ENGI_CHAOS_LOG"); keep != "" {
					if err := os.WriteFile(keep, log, 0o600); err != nil {
						t.Error(err)
					}
				}
				t.Logf("end of the node's log:\n%s", log[max(0, len(log)-3000):])
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("the data directory cannot be removed: %v", err)
		}
	})
	data := filepath.Join(dir, "d")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("engi-chaos", data, "tmpfs", 0, "size="+size+",mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(data, 0); err != nil {
			t.Errorf("something still uses the data directory: %v", err)
			if err := syscall.Unmount(data, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	})
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return &server{bin: os.Getenv("ENGI_BIN"), dir: data, log: log, pools: "python=3,bash=1"}
}

// start starts the node and waits until it serves. It must come up after every
// fault.
func (s *server) start(t *testing.T) {
	t.Helper()
	listen := "127.0.0.1:0"
	if s.url != "" {
		listen = strings.TrimPrefix(s.url, "http://")
	}
	cmd := exec.Command(s.bin, "serve", "--listen", listen, "--data-dir", s.dir)
	cmd.Env = append(os.Environ(), "ENGI_POOLS="+s.pools, "ENGI_LOG_LEVEL=debug", "ENGI_ADMISSION_MAX_SANDBOXES=16")
	cmd.Env = append(cmd.Env, s.env...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	os.Remove(filepath.Join(s.dir, "server.json"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.cmd = cmd
	s.mu.Unlock()
	begun := time.Now()
	for time.Since(begun) < 30*time.Second {
		if s.url == "" {
			if data, err := os.ReadFile(filepath.Join(s.dir, "server.json")); err == nil {
				var e struct{ URL string }
				if json.Unmarshal(data, &e) == nil {
					s.url = e.URL
				}
			}
		}
		if key, err := os.ReadFile(filepath.Join(s.dir, "admin.key")); err == nil && s.url != "" {
			s.key = strings.TrimSpace(string(key))
			if resp, err := http.Get(s.url + "/healthz"); err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					return
				}
			}
		}
		pause(t.Context(), 20*time.Millisecond)
	}
	t.Fatal("the node did not come up in 30 s")
}

func (s *server) kill(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Errorf("the node was already dead: %v", err)
	}
	s.cmd.Wait()
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("the node was already dead: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the node left with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the node did not stop within a minute of SIGTERM")
		s.cmd.Process.Kill()
		<-done
	}
}

// sandboxProcesses returns the processes of this server's machines.
func (s *server) sandboxProcesses(t *testing.T) map[int]string {
	t.Helper()
	all := map[int]string{}
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil || !bytes.Contains(text, []byte(s.dir)) || bytes.Contains(text, []byte("\x00serve\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if err != nil {
			t.Fatal(err)
		}
		all[pid] = strings.ReplaceAll(string(text), "\x00", " ")
	}
	return all
}

// killOne kills a random process of a machine whose command line has the
// word: boot is gVisor's kernel, gofer its file server.
func (s *server) killOne(t *testing.T, rng *rand.Rand, word string) {
	t.Helper()
	var pids []int
	for pid, cmd := range s.sandboxProcesses(t) {
		if slices.Contains(strings.Fields(cmd), word) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return
	}
	slices.Sort(pids)
	// The process may have ended after the listing.
	if err := syscall.Kill(pids[rng.IntN(len(pids))], syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
}

// fillDisk leaves the data directory without a free byte until release.
func (s *server) fillDisk(t *testing.T) (release func()) {
	t.Helper()
	path := filepath.Join(s.dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &st); err != nil {
		t.Fatal(err)
	}
	// Other writers may take the last pages meanwhile.
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	io.Copy(f, bytes.NewReader(make([]byte, 1<<20)))
	return func() {
		f.Close()
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// checkLeaks waits until 'engi doctor --leaks' finds nothing but warm instances.
func (s *server) checkLeaks(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(settled)
	var out []byte
	for time.Now().Before(deadline) {
		cmd := exec.Command(s.bin, "doctor", "--leaks", "--json", "--data-dir", s.dir)
		cmd.Env = os.Environ()
		var err error
		if out, err = cmd.CombinedOutput(); err == nil {
			return
		}
		pause(t.Context(), time.Second)
	}
	t.Errorf("left behind %s after the last fault:\n%s", settled, out)
}

// destroyWarm starts the node once more, without pools, so that it destroys the
// warm instances it recovers, and checks that no process is left.
func (s *server) destroyWarm(t *testing.T) {
	t.Helper()
	s.pools = "none"
	s.start(t)
	deadline := time.Now().Add(settled)
	for len(s.sandboxProcesses(t)) > 0 && time.Now().Before(deadline) {
		pause(t.Context(), 200*time.Millisecond)
	}
	s.stop(t)
	for pid, cmd := range s.sandboxProcesses(t) {
		t.Errorf("process %d is left: %.200s", pid, cmd)
	}
}

// A job is one execution with a known answer.
type job struct {
	id        string
	want      string // expected standard output
	explained bool   // a fault targets the job: it was cancelled, or kills its guest
	accepted  time.Time
}

// A workload starts executions and records the acknowledged ones.
type workload struct {
	server    *server
	t         *testing.T
	ctx       context.Context
	killGuest flag // the next job kills its guest
	cancel    flag // the next job is cancelled
	hangup    flag // the next stream is left and resumed

	mu    sync.Mutex // guards all fields below
	jobs  []job
	tried int
}

type flag struct {
	mu sync.Mutex
	v  bool
}

func (f *flag) Store(v bool) { f.mu.Lock(); f.v = v; f.mu.Unlock() }

// take returns the flag and clears it.
func (f *flag) take() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.v
	f.v = false
	return v
}

func (w *workload) work(rng *rand.Rand) {
	for w.ctx.Err() == nil {
		n := rng.IntN(1000)
		switch {
		case w.killGuest.take():
			w.start(v1.ExecutionRequest{Language: "bash", Code: "sudo -n kill -9 1; sleep 1; echo alive"}, "alive\n", true)
		case w.cancel.take():
			if id := w.start(v1.ExecutionRequest{Language: "python", Code: "import time; time.sleep(60); print('no')"}, "", true); id != "" {
				w.request("DELETE", "/v1/executions/"+id, nil)
			}
		case w.hangup.take():
			w.stream(n)
		case n < 300:
			w.start(v1.ExecutionRequest{Language: "bash", Code: fmt.Sprintf("echo $((%d*3))", n)}, fmt.Sprintln(n*3), false)
		case n < 600:
			w.start(v1.ExecutionRequest{Language: "python", Code: fmt.Sprintf("import time\nfor i in range(5): print(i * %d); time.sleep(0.2)\n", n)},
				fmt.Sprintf("0\n%d\n%d\n%d\n%d\n", n, 2*n, 3*n, 4*n), false)
		default:
			line := strings.Repeat(strconv.Itoa(n), 50)
			w.start(v1.ExecutionRequest{Language: "python", Code: fmt.Sprintf("for i in range(1000): print(%q)\n", line)}, strings.Repeat(line+"\n", 1000), false)
		}
		pause(w.ctx, time.Duration(rng.IntN(150))*time.Millisecond)
	}
}

// start starts an execution asynchronously, and records it when it is
// acknowledged. It returns its ID, or "" if it was not acknowledged.
func (w *workload) start(r v1.ExecutionRequest, want string, explained bool) string {
	r.Async, r.Template = true, "base"
	body, err := json.Marshal(r)
	if err != nil {
		w.t.Error(err)
		return ""
	}
	w.mu.Lock()
	w.tried++
	w.mu.Unlock()
	status, answer := w.request("POST", "/v1/executions", body)
	if status != http.StatusAccepted {
		return "" // refused with a reason, or the node was dead: there is no promise to check
	}
	var x v1.Execution
	if err := json.Unmarshal(answer, &x); err != nil {
		w.t.Errorf("acknowledgement %q: %v", answer, err)
		return ""
	}
	w.mu.Lock()
	w.jobs = append(w.jobs, job{id: x.ID, want: want, explained: explained, accepted: time.Now()})
	w.mu.Unlock()
	return x.ID
}

// stream starts a job, reads a part of its stream, hangs up, and comes back
// with the last offset until it has all output.
func (w *workload) stream(n int) {
	var want strings.Builder
	for i := range 40 {
		fmt.Fprintf(&want, "%d line %d\n", n, i)
	}
	id := w.start(v1.ExecutionRequest{Language: "python",
		Code: fmt.Sprintf("import time\nfor i in range(40): print(%d, 'line', i, flush=True); time.sleep(0.02)\n", n)}, want.String(), false)
	if id == "" {
		return
	}
	var got strings.Builder
	var offset int64
	deadline := time.Now().Add(2 * time.Minute)
	for try := 0; time.Now().Before(deadline); try++ {
		end, err := w.readSome(id, &offset, &got, 5+try*5)
		if end != nil {
			if end.Result != nil && end.Result.Cause == "exited" && got.String() != want.String() {
				w.t.Errorf("execution %s: the resumed stream gave %q, want %q", id, got.String(), want.String())
			}
			return
		}
		if err != nil {
			pause(w.t.Context(), 50*time.Millisecond)
		}
	}
	w.t.Errorf("execution %s: its stream did not end", id)
}

// readSome reads a number of events of a stream from *offset on. It returns the
// execution if the stream has ended.
func (w *workload) readSome(id string, offset *int64, got *strings.Builder, events int) (*v1.Execution, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s/v1/executions/%s/events?offset=%d", w.server.url, id, *offset), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+w.server.key)
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var e v1.ExecutionUpdate
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, err
		}
		switch e.Type {
		case v1.EventStdout:
			got.WriteString(e.Data)
			*offset = e.Offset
		case v1.EventResult:
			return e.Execution, nil
		case v1.EventError:
			return &v1.Execution{}, nil
		}
		if events--; events <= 0 {
			return nil, nil
		}
	}
	return nil, lines.Err()
}

// request sends one request and returns its status, 0 if there was no answer.
// The answer must come soon.
func (w *workload) request(method, path string, body []byte) (int, []byte) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 2*slowest)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, w.server.url+path, bytes.NewReader(body))
	if err != nil {
		w.t.Error(err)
		return 0, nil
	}
	req.Header.Set("Authorization", "Bearer "+w.server.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if took := time.Since(begun); took > slowest {
		w.t.Errorf("%s %s took %s", method, path, took)
	}
	if err != nil {
		return 0, nil // the node was killed during the request
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, answer
}

// settle checks that every acknowledged execution has ended, with the right
// answer or with a cause that a fault explains.
func (w *workload) settle(t *testing.T) {
	t.Helper()
	ends, refusals := map[string]int{}, map[string]int{}
	right := 0
	for _, j := range w.jobs {
		x := w.final(t, j)
		if x == nil {
			continue
		}
		switch {
		case x.State == v1.Refused:
			ends["refused"]++
			if x.Refusal != nil {
				refusals[digits.ReplaceAllString(x.Refusal.Detail, "N")]++
			}
			if x.Refusal == nil || x.Refusal.Remedy == "" {
				t.Errorf("execution %s was refused without a remedy: %+v", j.id, x.Refusal)
			}
			continue
		case x.Result == nil:
			t.Errorf("execution %s is %s without a result", j.id, x.State)
			continue
		}
		r := x.Result
		ends[r.Cause]++
		switch r.Cause {
		case "exited":
			if j.explained && r.ExitCode != 0 {
				break
			}
			if r.ExitCode != 0 || r.Stdout != j.want {
				a, b := sha256.Sum256([]byte(r.Stdout)), sha256.Sum256([]byte(j.want))
				t.Errorf("execution %s: wrong answer: exit %d, %d bytes %s, want %d bytes %s; stderr %.300q", j.id, r.ExitCode,
					len(r.Stdout), hex.EncodeToString(a[:4]), len(j.want), hex.EncodeToString(b[:4]), r.Stderr)
			}
			right++
		case "sandbox_lost", "disk":
			if r.Remedy == "" {
				t.Errorf("execution %s: cause %s without a remedy", j.id, r.Cause)
			}
		case "cancelled":
			if !j.explained {
				t.Errorf("execution %s was cancelled by nobody", j.id)
			}
		default:
			if !j.explained {
				t.Errorf("execution %s: cause %s (%s) explains no fault", j.id, r.Cause, r.Error)
			}
		}
	}
	t.Logf("%d tried, %d acknowledged, %d answered right, ends: %v", w.tried, len(w.jobs), right, ends)
	for why, n := range refusals {
		t.Logf("%d refused: %s", n, why)
	}
	if right == 0 {
		t.Error("not one execution was answered: the test tested nothing")
	}
}

// final waits for the end of a job.
func (w *workload) final(t *testing.T, j job) *v1.Execution {
	t.Helper()
	deadline := time.Now().Add(settled)
	for time.Now().Before(deadline) {
		status, answer := w.request("GET", "/v1/executions/"+j.id, nil)
		if status == http.StatusNotFound {
			t.Errorf("execution %s was acknowledged at %s and is lost", j.id, j.accepted.Format(time.TimeOnly))
			return nil
		}
		var x v1.Execution
		if status == http.StatusOK {
			if err := json.Unmarshal(answer, &x); err != nil {
				t.Errorf("execution %s: %v", j.id, err)
				return nil
			}
			if x.State == v1.Done || x.State == v1.Refused {
				return &x
			}
		}
		pause(t.Context(), 100*time.Millisecond)
	}
	t.Errorf("execution %s has not ended %s after the last fault", j.id, settled)
	return nil
}

// requireReal skips the test unless it can run a real node.
func requireReal(t *testing.T) {
	t.Helper()
	lacks := ""
	if os.Geteuid() != 0 {
		lacks = "root"
	}
	for _, v := range []string{"ENGI_BIN", "ENGI_RUNSC", "ENGI_GUEST"} {
		if _, err := os.Stat(os.Getenv(v)); err != nil {
			lacks = "a program named by " + v + " (make build)"
		}
	}
	if lacks == "" {
		return
	}
	if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
		t.Fatalf("needs %s", lacks)
	}
	t.Skipf("needs %s", lacks)
}

// digits matches the IDs and numbers that differ between otherwise equal texts.
var digits = regexp.MustCompile(`(sbx|exe)_[a-z2-7]{26}|[0-9]+`)

func number(name string, def uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return def
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
