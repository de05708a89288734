package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
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
	lifecycleFaults = 12              // number of faults in make test; make chaos has 1000
	recoveryTime    = 5 * time.Second // maximum time from the start of a node to an answer from a sandbox
)

// TestLifecycle pauses, hibernates, resumes and copies sandboxes, and writes to
// them, while their processes and the node are killed. Every acknowledged write
// must have survived afterwards, unless the sandbox has ended for a reason that a
// fault explains.
func TestLifecycle(t *testing.T) {
	env.Slow(t)
	requireReal(t)
	seed := seed.Of(t, "ENGI_CHAOS_SEED", 1)
	faults := number("ENGI_CHAOS_FAULTS", lifecycleFaults)
	t.Logf("ENGI_CHAOS_FAULTS=%d", faults)
	rng := rand.New(rand.NewPCG(seed, seed))

	s := newServer(t, "2g")
	s.pools = "none"
	s.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := &scenario{server: s, t: t, ctx: ctx, explained: map[string]string{}, done: map[string]int{}}
	owners := make([]*owner, 4)
	var work sync.WaitGroup
	for i := range owners {
		owners[i] = &owner{scenario: l, name: fmt.Sprint("owner-", i), rng: rand.New(rand.NewPCG(seed, uint64(i+1)))}
		if i == 0 {
			owners[i].volume = l.newVolume()
		}
		work.Go(owners[i].live)
	}
	for range faults {
		pause(ctx, time.Duration(200+rng.IntN(800))*time.Millisecond)
		switch n := rng.IntN(10); {
		case n < 4:
			s.kill(t)
			pause(ctx, time.Duration(rng.IntN(300))*time.Millisecond)
			began := time.Now()
			s.start(t)
			l.note("killed the node")
			for _, o := range owners {
				o.checkRecovery(began)
			}
		case n < 5:
			s.stop(t)
			s.start(t)
			l.note("stopped the node")
		case n < 7:
			l.killOne(rng, "boot")
		case n < 9:
			l.killOne(rng, "gofer")
		default:
			owners[rng.IntN(len(owners))].killGuest.Store(true)
		}
		if t.Failed() {
			break
		}
	}
	cancel()
	work.Wait()
	for _, o := range owners {
		o.settle()
	}
	t.Logf("%v", l.done)
	if slices.Sort(l.found); len(l.found) > 0 {
		t.Logf("found again: median %v, longest %v", l.found[len(l.found)/2], l.found[len(l.found)-1])
	}
	if l.done["wrote"] == 0 || l.done["verified"] == 0 {
		t.Error("nothing was written or verified: the test tested nothing")
	}
	l.clear()
	s.checkLeaks(t)
	s.stop(t)
	s.destroyWarm(t)
}

// slack returns the factor by which operations may be slower than on an idle machine.
func slack() time.Duration {
	raw, err := os.ReadFile("/proc/loadavg")
	var load float64
	if err == nil {
		_, err = fmt.Sscan(string(raw), &load)
	}
	if err != nil {
		return 1
	}
	return time.Duration(max(1, load/float64(runtime.NumCPU())) + 0.5)
}

// A scenario holds the state that all owners share.
type scenario struct {
	server *server
	t      *testing.T
	ctx    context.Context

	mu        sync.Mutex // guards all fields below
	explained map[string]string
	done      map[string]int
	found     []time.Duration // measured times from the start of a node to an answer from a sandbox
}

func (l *scenario) note(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[what]++
}

// explain records a reason for the end of a sandbox.
func (l *scenario) explain(id, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.explained[id] = why
	l.done[why]++
	l.t.Logf("%s %s: %s", time.Now().UTC().Format("15:04:05.000"), id, why)
}

var sandboxID = regexp.MustCompile(`sbx_[a-z2-7]{26}`)

// killOne kills a random process of a machine whose command line has the word.
func (l *scenario) killOne(rng *rand.Rand, word string) {
	procs := l.server.sandboxProcesses(l.t)
	for _, pid := range slices.Sorted(maps.Keys(procs)) {
		if !slices.Contains(strings.Fields(procs[pid]), word) {
			delete(procs, pid)
		}
	}
	if len(procs) == 0 {
		return
	}
	pid := slices.Sorted(maps.Keys(procs))[rng.IntN(len(procs))]
	l.explain(sandboxID.FindString(procs[pid]), "killed a "+word)
	// The process may have ended after the listing.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		l.t.Error(err)
	}
}

// request sends one request and returns its status, 0 if there was no answer.
func (l *scenario) request(method, path string, body any) (int, []byte) {
	raw, ok := body.([]byte)
	if !ok && body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			l.t.Error(err)
			return 0, nil
		}
	}
	limit := slowest * slack()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, l.server.url+path, bytes.NewReader(raw))
	if err != nil {
		l.t.Error(err)
		return 0, nil
	}
	req.Header.Set("Authorization", "Bearer "+l.server.key)
	if !ok {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	var answer []byte
	if err == nil {
		answer, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if took := time.Since(begun); took > limit {
		l.t.Errorf("%s %s took %s, more than %s", method, path, took, limit)
	}
	if err != nil {
		return 0, nil // the node was killed during the request
	}
	return resp.StatusCode, answer
}

// A disk lists the possible contents of each file: the last acknowledged one, and those
// sent after it without an answer.
type disk map[string][]string

// absent is the content of a file that does not exist.
const absent = "\x00absent"

func (d disk) clone() disk {
	c := disk{}
	for name, texts := range d {
		c[name] = slices.Clone(texts)
	}
	return c
}

// An owner has one sandbox at a time. An owner with a volume gives the volume to one
// sandbox after the other, and makes no copies. It belongs to one goroutine,
// except for the fields that mu guards.
type owner struct {
	*scenario
	name      string
	volume    string // name of the volume; empty for none
	rng       *rand.Rand
	killGuest flag
	snaps     map[string]disk // contents of the disk, by snapshot
	files     disk
	written   int

	mu sync.Mutex
	id string // ID of the sandbox; empty for none
}

// newVolume creates a volume and returns its name.
func (l *scenario) newVolume() string {
	status, answer := l.request("POST", "/v1/volumes", v1.VolumeRequest{Name: "chaos", Capacity: 64 << 20})
	if status != http.StatusCreated {
		l.t.Fatalf("make a volume: %d %s", status, answer)
	}
	return "chaos"
}

func (o *owner) sandbox() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.id
}

func (o *owner) live() {
	o.snaps, o.files = map[string]disk{}, disk{}
	for o.ctx.Err() == nil && !o.t.Failed() {
		if o.sandbox() == "" {
			if !o.create() {
				pause(o.ctx, 100*time.Millisecond)
			}
			continue
		}
		if o.killGuest.take() {
			o.explain(o.id, "killed a guest")
			o.request("POST", o.path("/processes"), map[string]any{"args": []string{"kill", "-9", "1"}, "user": "root"})
		}
		n := o.rng.IntN(100)
		if o.volume != "" {
			n = o.rng.IntN(91) // a number for which no copies are made
		}
		switch {
		case n < 50:
			o.write()
		case n < 65:
			o.verifyOne()
		case n < 71:
			o.move("paused", "/pause", nil)
		case n < 79:
			o.move("hibernated", "/hibernate", nil)
		case n < 83:
			o.move("hibernated without memory", "/hibernate", v1.HibernateRequest{DiskOnly: true})
		case n < 91:
			o.move("resumed", "/resume", nil)
		case n < 96:
			o.snapshot()
		default:
			o.fork()
		}
		pause(o.ctx, time.Duration(o.rng.IntN(100))*time.Millisecond)
	}
}

func (o *owner) path(rest string) string { return "/v1/sandboxes/" + o.sandbox() + rest }

// onVolume reports whether a file is on the volume and so outlives sandboxes.
func onVolume(name string) bool { return strings.HasPrefix(name, "v") }

func filePath(id, name string) string {
	dir := "/workspace/"
	if onVolume(name) {
		dir = "/volume/"
	}
	return "/v1/sandboxes/" + id + "/files?path=" + url.QueryEscape(dir+name)
}

func sandboxRequest(snapshot string) v1.SandboxRequest {
	q := v1.SandboxRequest{Template: "base", Lifetime: v1.Lifetime{AutoResume: true, OnTimeout: "hibernate"}}
	if snapshot != "" {
		q.Template, q.Snapshot = "", snapshot
	}
	return q
}

func (o *owner) create() bool {
	q := sandboxRequest("")
	if o.volume != "" {
		q.Volumes = []v1.VolumeMount{{Volume: o.volume, Path: "/volume"}}
	}
	status, answer := o.request("POST", "/v1/sandboxes", q)
	var x v1.Sandbox
	if status != http.StatusCreated {
		if status == http.StatusConflict {
			o.endUnacknowledged()
		}
		return false
	}
	if err := json.Unmarshal(answer, &x); err != nil {
		o.t.Errorf("a sandbox %q: %v", answer, err)
		return false
	}
	o.mu.Lock()
	o.id = x.ID
	o.mu.Unlock()
	maps.DeleteFunc(o.files, func(name string, _ []string) bool { return !onVolume(name) })
	o.note("created")
	return true
}

// endUnacknowledged ends a sandbox that holds the volume because its creation
// was not acknowledged.
func (o *owner) endUnacknowledged() {
	status, answer := o.request("GET", "/v1/volumes/"+o.volume, nil)
	var v v1.Volume
	if status == http.StatusOK && json.Unmarshal(answer, &v) == nil && v.SandboxID != "" {
		o.request("DELETE", "/v1/sandboxes/"+v.SandboxID, nil)
		o.note("ended one that was not acknowledged")
	}
}

// failed checks the sandbox after a request that failed: if it has ended, there
// must be a reason.
func (o *owner) failed(status int) {
	if status == 0 {
		pause(o.ctx, 50*time.Millisecond)
		return
	}
	status, answer := o.request("GET", o.path(""), nil)
	var x v1.Sandbox
	switch {
	case status == http.StatusOK && json.Unmarshal(answer, &x) != nil:
		o.t.Errorf("a sandbox %q", answer)
	case status == http.StatusNotFound:
		o.t.Errorf("%s: sandbox %s was acknowledged and is not known", o.name, o.sandbox())
	case status == http.StatusOK && x.State == v1.SandboxStopped:
		o.ended(x)
	}
}

func (o *owner) ended(x v1.Sandbox) {
	o.scenario.mu.Lock()
	why := o.explained[x.ID]
	o.scenario.mu.Unlock()
	if why == "" || x.Cause != "sandbox_lost" {
		o.t.Errorf("%s: sandbox %s ended with cause %q, and what was done to it is %q", o.name, x.ID, x.Cause, why)
	}
	o.note("ended")
	o.mu.Lock()
	o.id = ""
	o.mu.Unlock()
}

func (o *owner) write() {
	o.written++
	kind := "f"
	if o.volume != "" && o.rng.IntN(2) == 0 {
		kind = "v"
	}
	name, text := fmt.Sprintf("%s%d", kind, o.rng.IntN(8)), fmt.Sprintf("%s %d %s", o.name, o.written, strings.Repeat("x", o.rng.IntN(20_000)))
	switch status, _ := o.request("PUT", filePath(o.sandbox(), name), []byte(text)); {
	case status/100 == 2:
		o.files[name] = []string{text}
		o.note("wrote")
	case status/100 == 4:
		o.failed(status) // refused, so there was no change
	default:
		if o.files[name] == nil {
			o.files[name] = []string{absent}
		}
		o.files[name] = append(o.files[name], text)
		o.failed(status)
	}
}

// verify compares a file with its possible contents. It returns false if there is
// no answer to compare.
func (o *owner) verify(id, name string, files disk) bool {
	status, answer := o.request("GET", filePath(id, name), nil)
	texts := files[name]
	switch {
	case status == http.StatusOK && slices.Contains(texts, string(answer)):
		files[name] = []string{string(answer)}
		o.note("verified")
		return true
	case status == http.StatusOK:
		o.t.Errorf("%s: %s in %s has %.60q (%d bytes), want %.60q", o.name, name, id, answer, len(answer), texts)
		return true
	case status == http.StatusNotFound && o.alive(id):
		if !slices.Contains(texts, absent) {
			o.t.Errorf("%s: %s in %s is gone: %s", o.name, name, id, answer)
		}
		return true
	}
	if id == o.sandbox() {
		o.failed(status)
	}
	return false
}

func (o *owner) alive(id string) bool {
	status, answer := o.request("GET", "/v1/sandboxes/"+id, nil)
	var x v1.Sandbox
	return status == http.StatusOK && json.Unmarshal(answer, &x) == nil && x.State != v1.SandboxStopped
}

func (o *owner) verifyOne() {
	if names := slices.Sorted(maps.Keys(o.files)); len(names) > 0 {
		o.verify(o.sandbox(), names[o.rng.IntN(len(names))], o.files)
	}
}

// verifyAll verifies every file of a copy, or of the sandbox itself, for as long
// as it takes. It returns false if there was no answer.
func (o *owner) verifyAll(id string, files disk) bool {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		deadline := time.Now().Add(settled)
		for !o.verify(id, name, files) {
			if !o.alive(id) && o.reachable() || time.Now().After(deadline) {
				return false
			}
			pause(o.t.Context(), 100*time.Millisecond)
		}
	}
	return true
}

func (o *owner) reachable() bool {
	status, _ := o.request("GET", "/healthz", nil)
	return status == http.StatusOK
}

func (o *owner) move(done, to string, body any) {
	if status, _ := o.request("POST", o.path(to), body); status/100 == 2 {
		o.note(done)
	} else {
		o.failed(status)
	}
}

func (o *owner) snapshot() {
	before := o.files.clone()
	status, answer := o.request("POST", o.path("/snapshot"), v1.SnapshotRequest{DiskOnly: o.rng.IntN(3) == 0})
	if status != http.StatusCreated {
		o.failed(status)
		return
	}
	var x v1.Snapshot
	if err := json.Unmarshal(answer, &x); err != nil {
		o.t.Errorf("a snapshot %q: %v", answer, err)
		return
	}
	o.note("kept")
	if len(o.snaps) < 3 {
		o.snaps[x.ID] = before
	} else {
		o.request("DELETE", "/v1/snapshots/"+x.ID, nil)
	}
}

// checkCopy verifies a sandbox that was created as a copy, and ends it.
func (o *owner) checkCopy(id string, files disk) {
	ok := o.verifyAll(id, files)
	o.scenario.mu.Lock()
	why := o.explained[id]
	o.scenario.mu.Unlock()
	if !ok && why == "" {
		o.t.Errorf("%s: the copy %s cannot be read, and nothing was done to it", o.name, id)
	}
	o.request("DELETE", "/v1/sandboxes/"+id, nil)
	o.note("checked a copy")
}

func (o *owner) fork() {
	status, answer := o.request("POST", o.path("/fork"), v1.ForkRequest{Count: 1})
	if status/100 != 2 {
		o.failed(status)
		return
	}
	var list struct {
		Items []v1.Fork `json:"items"`
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		o.t.Errorf("forks %q: %v", answer, err)
		return
	}
	for _, f := range list.Items {
		if f.Sandbox != nil {
			o.note("forked")
			o.checkCopy(f.Sandbox.ID, o.files.clone())
		}
	}
}

// checkRecovery checks that a sandbox that was running answers soon after the
// start of the node. It runs concurrently with the owner.
func (o *owner) checkRecovery(began time.Time) {
	id := o.sandbox()
	if id == "" {
		return
	}
	limit := recoveryTime * slack()
	for {
		status, answer := o.request("GET", "/v1/sandboxes/"+id, nil)
		var x v1.Sandbox
		if status == http.StatusOK && json.Unmarshal(answer, &x) == nil {
			switch x.State {
			case v1.SandboxRunning:
				status, _ := o.request("GET", "/v1/sandboxes/"+id+"/files/stat?path=/workspace", nil)
				if status == http.StatusOK {
					o.note("found again")
					o.scenario.mu.Lock()
					o.found = append(o.found, time.Since(began))
					o.scenario.mu.Unlock()
					return
				}
			case v1.SandboxHibernated, v1.SandboxPaused, v1.SandboxStopped:
				return
			}
		}
		if o.sandbox() != id || o.ctx.Err() != nil {
			return
		}
		o.scenario.mu.Lock()
		why := o.explained[id]
		o.scenario.mu.Unlock()
		if time.Since(began) > limit {
			if why == "" {
				o.t.Errorf("%s: sandbox %s (%s) does not answer %s after the node was started", o.name, id, x.State, time.Since(began))
			}
			return
		}
		pause(o.ctx, 20*time.Millisecond)
	}
}

// settle checks all remaining objects of an owner.
func (o *owner) settle() {
	// A volume outlives the sandbox that wrote to it.
	for deadline := time.Now().Add(settled); o.volume != "" && o.sandbox() == "" && time.Now().Before(deadline); {
		if !o.create() {
			pause(o.t.Context(), 100*time.Millisecond)
		}
	}
	if id := o.sandbox(); id != "" {
		if !o.verifyAll(id, o.files) && o.sandbox() == id {
			o.failed(http.StatusInternalServerError)
			if o.sandbox() == id {
				o.t.Errorf("%s: sandbox %s is there and cannot be read", o.name, id)
			}
		}
	}
	for _, snap := range slices.Sorted(maps.Keys(o.snaps)) {
		status, answer := o.request("POST", "/v1/sandboxes", sandboxRequest(snap))
		var x v1.Sandbox
		if status != http.StatusCreated || json.Unmarshal(answer, &x) != nil {
			o.t.Errorf("%s: nothing starts from snapshot %s: %d %s", o.name, snap, status, answer)
			continue
		}
		o.checkCopy(x.ID, o.snaps[snap])
		o.request("DELETE", "/v1/snapshots/"+snap, nil)
	}
}

// clear ends every sandbox, even those whose creation was not acknowledged.
func (l *scenario) clear() {
	status, answer := l.request("GET", "/v1/sandboxes?limit=1000", nil)
	var list struct {
		Items []v1.Sandbox `json:"items"`
	}
	if status != http.StatusOK || json.Unmarshal(answer, &list) != nil {
		l.t.Errorf("list: %d %.300s", status, answer)
	}
	for _, x := range list.Items {
		if status, answer := l.request("DELETE", "/v1/sandboxes/"+x.ID, nil); status/100 != 2 {
			l.t.Errorf("end %s: %d %s", x.ID, status, answer)
		}
	}
	if status, answer := l.request("DELETE", "/v1/volumes/chaos", nil); status/100 != 2 {
		l.t.Errorf("remove the volume: %d %s", status, answer)
	}
	status, answer = l.request("GET", "/v1/snapshots", nil)
	var snaps struct {
		Items []v1.Snapshot `json:"items"`
	}
	if status != http.StatusOK || json.Unmarshal(answer, &snaps) != nil {
		l.t.Errorf("list snapshots: %d %.300s", status, answer)
	}
	for _, x := range snaps.Items {
		if status, answer := l.request("DELETE", "/v1/snapshots/"+x.ID, nil); status/100 != 2 {
			l.t.Errorf("remove %s: %d %s", x.ID, status, answer)
		}
	}
}
