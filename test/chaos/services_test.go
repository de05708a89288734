package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"

	"github.com/engi-dev/engi/test/env"
	"github.com/engi-dev/engi/test/seed"
)

const (
	serviceFaults     = 6   // number of faults in make test; make chaos has 1000
	mostServiceFaults = 300 // maximum number of faults, also for make soak: each takes seconds
	databaseName      = "shop"
	documents         = 100 // in the collection of mongodb, to which nothing is written during the faults
	mostRepair        = 10 * time.Second
)

var serviceKinds = []string{"mongodb", "mysql", "nginx", "postgres", "redis"}

// A database is a service to which a client writes numbers, each of them once.
type database struct {
	name  string
	write func(ctx context.Context, c *client.Client, n int) error
	read  func(ctx context.Context, c *client.Client) ([]int, error)

	mu    sync.Mutex
	tried int   // the largest number so far
	acked []int // acknowledged numbers
}

// query runs a text in a service. The service must not refuse it.
func query(ctx context.Context, c *client.Client, service, text string, args ...json.RawMessage) (v1.QueryResult, error) {
	r, err := c.Query(ctx, databaseName, v1.QueryRequest{Service: service, Text: text, Args: args, MaxRows: 100_000, MaxBytes: 16 << 20})
	if err == nil && r.Error != nil {
		err = fmt.Errorf("%s refuses %q: %s", service, text, r.Error.Text)
	}
	return r, err
}

func sqlDatabase(service, insert string) *database {
	return &database{
		name: service,
		write: func(ctx context.Context, c *client.Client, n int) error {
			_, err := query(ctx, c, service, insert, json.RawMessage(fmt.Sprint(n)))
			return err
		},
		read: func(ctx context.Context, c *client.Client) (all []int, err error) {
			r, err := query(ctx, c, service, "select n from t")
			if err == nil && r.Truncated {
				err = fmt.Errorf("%s has more rows than can be read", service)
			}
			for _, row := range r.Rows {
				var n int
				if e := json.Unmarshal(row[0], &n); e != nil {
					return nil, e
				}
				all = append(all, n)
			}
			return all, err
		},
	}
}

func redisDatabase() *database {
	return &database{
		name: "redis",
		write: func(ctx context.Context, c *client.Client, n int) error {
			answer, err := c.RedisCommand(ctx, databaseName, "redis", "RPUSH", "t", fmt.Sprint(n))
			if err == nil && answer.Refused {
				err = fmt.Errorf("redis refuses: %s", answer.Reply)
			}
			return err
		},
		read: func(ctx context.Context, c *client.Client) (all []int, err error) {
			answer, err := c.RedisCommand(ctx, databaseName, "redis", "LRANGE", "t", "0", "-1")
			if err != nil {
				return nil, err
			}
			var words []string
			if err := json.Unmarshal(answer.Reply, &words); err != nil {
				return nil, fmt.Errorf("%v: %.300s", err, answer.Reply)
			}
			for _, w := range words {
				var n int
				if _, err := fmt.Sscan(w, &n); err != nil {
					return nil, err
				}
				all = append(all, n)
			}
			return all, nil
		},
	}
}

// work writes numbers until ctx ends.
func (d *database) work(ctx context.Context, c *client.Client) {
	for ctx.Err() == nil {
		d.mu.Lock()
		d.tried++
		n := d.tried
		d.mu.Unlock()
		one, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := d.write(one, c, n)
		cancel()
		if err == nil {
			d.mu.Lock()
			d.acked = append(d.acked, n)
			d.mu.Unlock()
		}
		pause(ctx, 40*time.Millisecond)
	}
}

// A serviceScenario is a workspace on a real node whose parts are killed.
type serviceScenario struct {
	*server
	t   *testing.T
	rng *rand.Rand
	c   *client.Client
}

// inside runs a command as root in the sandbox of a random service, which may end because of it.
func (s *serviceScenario) inside(script string) {
	all, err := s.c.Services(s.t.Context(), databaseName)
	if err != nil {
		s.t.Errorf("services: %v", err)
		return
	}
	x := all[s.rng.IntN(len(all))]
	if x.SandboxID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.bin, "sandbox", "exec", "--user", "root", x.SandboxID, "--", "sh", "-c", script)
	cmd.Env = append(os.Environ(), "ENGI_DATA_DIR="+s.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Logf("  in the sandbox of %s: %v: %.200s", x.Name, err, out)
	}
}

var serviceMishaps = []struct {
	name string
	hit  func(s *serviceScenario)
}{
	{"kill the node", func(s *serviceScenario) { s.kill(s.t); s.start(s.t) }},
	{"stop the node", func(s *serviceScenario) { s.server.stop(s.t); s.start(s.t) }},
	{"kill a sandbox", func(s *serviceScenario) { s.killOne(s.t, s.rng, "boot") }},
	{"kill a gofer", func(s *serviceScenario) { s.killOne(s.t, s.rng, "gofer") }},
	{"kill a server", func(s *serviceScenario) { s.inside("kill -9 -1") }},
	{"kill a guest", func(s *serviceScenario) { s.inside("kill -9 1") }},
	{"kill a sandbox and the node", func(s *serviceScenario) { s.killOne(s.t, s.rng, "boot"); s.kill(s.t); s.start(s.t) }},
	{"kill the node twice", func(s *serviceScenario) {
		s.kill(s.t)
		s.start(s.t)
		pause(s.t.Context(), time.Duration(s.rng.IntN(1500))*time.Millisecond)
		s.kill(s.t)
		s.start(s.t)
	}},
	{"kill the node as a service restarts", func(s *serviceScenario) {
		done := make(chan struct{})
		name := serviceKinds[s.rng.IntN(len(serviceKinds))]
		go func() {
			defer close(done)
			s.c.RestartService(s.t.Context(), databaseName, name) // the call may be interrupted
		}()
		pause(s.t.Context(), time.Duration(s.rng.IntN(1500))*time.Millisecond)
		s.kill(s.t)
		<-done
		s.start(s.t)
	}},
}

// TestChaosOfServices kills the node, the sandboxes of services and their processes, while
// clients write to their databases: each committed number must be there, once.
func TestChaosOfServices(t *testing.T) {
	env.Slow(t)
	requireReal(t)
	seed, faults := seed.Of(t, "ENGI_CHAOS_SEED", 1), int(min(number("ENGI_CHAOS_FAULTS", serviceFaults), mostServiceFaults))
	t.Logf("ENGI_CHAOS_FAULTS=%d", faults)
	n := newServer(t, "6g")
	n.pools = "none"
	n.start(t)
	s := &serviceScenario{server: n, t: t, rng: rand.New(rand.NewPCG(seed, seed)), c: client.New(n.url, n.key)}
	q := v1.WorkspaceRequest{Name: databaseName}
	for _, kind := range serviceKinds {
		q.Services = append(q.Services, v1.ServiceRequest{Type: kind, Exposed: kind == "mongodb"})
		build := exec.Command(n.bin, "template", "build", "service-"+kind)
		build.Env = append(os.Environ(), "ENGI_DATA_DIR="+n.dir)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	t.Cleanup(func() {
		if t.Failed() { // the test did not reach its end
			cmd := exec.Command(n.bin, "stop", "--destroy")
			cmd.Env = append(os.Environ(), "ENGI_DATA_DIR="+n.dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Logf("stop: %v: %s", err, out)
			}
		}
	})
	if _, err := s.c.CreateWorkspace(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	s.healthy("at first")
	for _, service := range []string{"postgres", "mysql"} {
		if _, err := query(t.Context(), s.c, service, "create table t (n int not null)"); err != nil {
			t.Fatal(err)
		}
	}
	s.fillCollection()
	all := []*database{sqlDatabase("postgres", "insert into t values ($1)"), sqlDatabase("mysql", "insert into t values (?)"), redisDatabase()}
	writing, end := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for _, d := range all {
		writers.Go(func() { d.work(writing, s.c) })
	}
	defer writers.Wait()
	defer end()

	counts := map[string]int{}
	var slow time.Duration
	for i := range faults {
		f := serviceMishaps[s.rng.IntN(len(serviceMishaps))]
		counts[f.name]++
		pause(t.Context(), time.Duration(s.rng.IntN(800))*time.Millisecond)
		began := time.Now()
		f.hit(s)
		s.healthy(f.name)
		took := time.Since(began)
		slow = max(slow, took)
		for _, d := range all {
			s.check(f.name, d)
		}
		s.checkCollection(f.name)
		if t.Failed() {
			t.Fatalf("fault %d, %s", i+1, f.name)
		}
		t.Logf("fault %d, %s: %v", i+1, f.name, took.Round(time.Millisecond))
	}
	end()
	writers.Wait()
	for _, d := range all {
		s.check("at the end", d)
		t.Logf("%s: %d of %d numbers were acknowledged", d.name, len(d.acked), d.tried)
		if len(d.acked) < faults {
			t.Errorf("%s has taken hardly anything", d.name)
		}
	}
	t.Logf("faults: %v; the slowest was over after %v", counts, slow)
	if limit := mostRepair * slack(); slow > limit {
		t.Errorf("a fault was over after %v, the goal is %v", slow, limit)
	}

	if err := s.c.RemoveWorkspace(t.Context(), databaseName); err != nil {
		t.Error(err)
	}
	if left, err := s.c.Volumes(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("the volumes %+v are left (%v)", left, err)
	}
	n.checkLeaks(t)
	n.stop(t)
	n.destroyWarm(t)
}

// healthy waits until all services are healthy. Services that have been killed too often in a row are
// restarted, as their errors advise.
func (s *serviceScenario) healthy(after string) {
	t, ctx := s.t, s.t.Context()
	for began := time.Now(); ; pause(ctx, 50*time.Millisecond) {
		all, err := s.c.Services(ctx, databaseName)
		sick := slices.DeleteFunc(slices.Clone(all), func(x v1.Service) bool { return x.State == v1.ServiceHealthy })
		if err == nil && len(all) == len(serviceKinds) && len(sick) == 0 && s.answer() {
			return
		}
		for _, x := range sick {
			if x.State == v1.ServiceFailed {
				t.Logf("  %s has failed: %v", x.Name, x.Error)
				if _, err := s.c.RestartService(ctx, databaseName, x.Name); err != nil {
					t.Logf("  restart %s: %v", x.Name, err)
				}
			}
		}
		if time.Since(began) > 60*time.Second*slack() {
			t.Fatalf("%s: the services are %+v, %v", after, all, err)
		}
	}
}

// answer reports whether all services answer: a service that does not answer is noticed after a short
// time.
func (s *serviceScenario) answer() bool {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	for _, service := range []string{"postgres", "mysql"} {
		if _, err := query(ctx, s.c, service, "select 1"); err != nil {
			return false
		}
	}
	if _, err := s.count(ctx); err != nil {
		return false
	}
	_, err := s.c.RedisCommand(ctx, databaseName, "redis", "PING")
	return err == nil
}

// fillCollection inserts documents with a client of Python through engi workspace connect.
func (s *serviceScenario) fillCollection() {
	const python = "../e2e/workspace/py/.venv/bin/python"
	if _, err := os.Stat(python); err != nil {
		env.Need(s.t, python+" (make packages)")
	}
	connect := exec.Command(s.bin, "workspace", "connect", databaseName, "mongodb")
	connect.Env = append(os.Environ(), "ENGI_DATA_DIR="+s.dir)
	out, err := connect.StdoutPipe()
	if err == nil {
		err = connect.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		if err := connect.Process.Signal(os.Interrupt); err != nil {
			s.t.Error(err)
		}
		if err := connect.Wait(); err != nil {
			s.t.Errorf("connect: %v", err)
		}
	}()
	at, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	script := fmt.Sprintf("import sys, pymongo; pymongo.MongoClient(sys.argv[1]).get_default_database().t.insert_many([{'n': i} for i in range(%d)])", documents)
	if said, err := exec.CommandContext(s.t.Context(), python, "-c", script, strings.TrimSpace(at)).CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, said)
	}
}

// count returns the number of documents in the collection.
func (s *serviceScenario) count(ctx context.Context) (int, error) {
	r, err := s.c.QueryCollection(ctx, databaseName, v1.CollectionRequest{Service: "mongodb", Collection: "t"})
	if err == nil && r.Error != nil {
		err = fmt.Errorf("mongodb refuses: %s", r.Error.Text)
	}
	return len(r.Documents), err
}

// checkCollection compares the collection with what was inserted.
func (s *serviceScenario) checkCollection(after string) {
	var n int
	var err error
	for range 20 { // the server may have just been restarted
		if n, err = s.count(s.t.Context()); err == nil {
			break
		}
		pause(s.t.Context(), 500*time.Millisecond)
	}
	if err != nil || n != documents {
		s.t.Errorf("%s: mongodb has %d documents of %d: %v", after, n, documents, err)
	}
}

// check compares the contents of a database with the acknowledged numbers.
func (s *serviceScenario) check(after string, d *database) {
	d.mu.Lock()
	acked := slices.Clone(d.acked)
	d.mu.Unlock()
	var have []int
	var err error
	for range 20 { // the server may have just been restarted
		if have, err = d.read(s.t.Context(), s.c); err == nil {
			break
		}
		pause(s.t.Context(), 500*time.Millisecond)
	}
	if err != nil {
		s.t.Errorf("%s: read %s: %v", after, d.name, err)
		return
	}
	d.mu.Lock()
	tried := d.tried
	d.mu.Unlock()
	times := map[int]int{}
	for _, n := range have {
		if times[n]++; times[n] > 1 || n < 1 || n > tried {
			s.t.Errorf("%s: %s has %d, %d times; %d were tried", after, d.name, n, times[n], tried)
		}
	}
	for _, n := range acked {
		if times[n] == 0 {
			s.t.Errorf("%s: %s has lost %d, which it had acknowledged", after, d.name, n)
		}
	}
}
