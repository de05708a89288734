package fleet_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
)

// create creates a sandbox of alice.
func (n *node) create(spec engi.SandboxSpec) engi.Sandbox {
	n.t.Helper()
	if spec.Owner == "" {
		spec.Owner = "alice"
	}
	s, err := n.Sandboxes().Create(n.t.Context(), spec)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// sandbox returns the current state of a sandbox of alice.
func (n *node) sandbox(id engi.SandboxID) engi.Sandbox {
	n.t.Helper()
	s, err := n.Sandboxes().Get(n.t.Context(), "alice", id)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// run runs a shell command in a sandbox of alice and returns its output.
func (n *node) run(id engi.SandboxID, command string) (string, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	g, release, err := n.Sandboxes().Enter(ctx, "alice", id)
	if err != nil {
		return "", err
	}
	defer release()
	p, err := g.Start(ctx, engi.Command{Args: []string{"sh", "-c", command}})
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for c, err := range p.Output(ctx, 0) {
		if err != nil {
			return out.String(), err
		}
		out.Write(c.Data)
	}
	exit, err := p.Wait(ctx)
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("exit %+v: %s", exit, out.String())
	}
	return out.String(), err
}

func (n *node) mustRun(id engi.SandboxID, command string) string {
	n.t.Helper()
	out, err := n.run(id, command)
	if err != nil {
		n.t.Fatalf("%s: %v", command, err)
	}
	return out
}

func (n *node) wantState(id engi.SandboxID, want engi.State) engi.Sandbox {
	n.t.Helper()
	s := n.sandbox(id)
	if s.State != want {
		n.t.Errorf("sandbox is %s (%s), want %s", s.State, s.End, want)
	}
	return s
}

var bare = fleet.PoolConfig{Target: 2}

func TestCreateTakesFromThePool(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(bare)).warm()
	before := fx.machines()
	s := n.create(engi.SandboxSpec{Env: map[string]string{"GREETING": "hello"}, Metadata: map[string]string{"a": "b"}})
	if s.State != engi.Running || s.Owner != "alice" || s.Template != "base" || s.Digest != "d1" || s.Metadata["a"] != "b" {
		t.Errorf("%+v", s)
	}
	if left := time.Until(s.Deadline); left < 4*time.Minute || left > 5*time.Minute {
		t.Errorf("the deadline is %v away", left)
	}
	found := false
	for _, id := range before {
		found = found || id == s.ID
	}
	if !found {
		t.Error("it is not an instance of the pool")
	}
	if got := n.mustRun(s.ID, `echo "$GREETING $ENGI_SANDBOX_ID"`); got != "hello "+string(s.ID)+"\n" {
		t.Errorf("output %q", got)
	}
	if err := n.Sandboxes().Stop(t.Context(), "alice", s.ID); err != nil {
		t.Fatal(err)
	}
	if got := n.wantState(s.ID, engi.Stopped); got.End != engi.CauseCancelled || got.Stopped.IsZero() {
		t.Errorf("%+v", got)
	}
	if _, _, err := n.Sandboxes().Enter(t.Context(), "alice", s.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("enter a stopped sandbox: %v", err)
	}
	if err := n.Sandboxes().Stop(t.Context(), "alice", s.ID); err != nil {
		t.Error("stop again: ", err)
	}
	fx.onlyPools(n, 0)
}

func TestCreateBootsWhatNoPoolHas(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	s := n.create(engi.SandboxSpec{Size: engi.Size{Disk: 64 << 20, Memory: 1 << 30}})
	if s.Size.Disk != 64<<20 || s.Size.Memory != 1<<30 || s.Size.VCPUs != 1 {
		t.Errorf("size %+v", s.Size)
	}
	n.mustRun(s.ID, "echo x > file")
	if got := n.mustRun(s.ID, "cat file"); got != "x\n" {
		t.Errorf("output %q", got)
	}
	samples, err := n.Sandboxes().Samples(t.Context(), "alice", s.ID, time.Time{}, time.Time{})
	if err != nil || len(samples) == 0 || samples[0].MemoryLimit != 1<<30 || samples[0].Time.IsZero() ||
		samples[0].MemoryCache <= 0 || samples[0].DiskUsed <= 0 {
		t.Errorf("samples %+v, %v", samples, err)
	}
}

func TestBadSpecs(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(func(o *fleet.Options) { o.Lifetime.Max = time.Hour })
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint(i)] = ""
	}
	for name, c := range map[string]struct {
		spec engi.SandboxSpec
		want engi.Kind
	}{
		"template":        {engi.SandboxSpec{Template: "nope"}, engi.NotFound},
		"both":            {engi.SandboxSpec{Template: "base", Snapshot: engi.NewSnapshotID()}, engi.Invalid},
		"snapshot":        {engi.SandboxSpec{Snapshot: engi.NewSnapshotID()}, engi.Unsupported},
		"volume":          {engi.SandboxSpec{Volumes: []engi.VolumeMount{{Volume: "v", Path: "/v"}}}, engi.Unsupported},
		"volume at proc":  {engi.SandboxSpec{Volumes: []engi.VolumeMount{{Volume: "v", Path: "/proc/x"}}}, engi.Invalid},
		"volume twice":    {engi.SandboxSpec{Volumes: []engi.VolumeMount{{Volume: "v", Path: "/v"}, {Volume: "w", Path: "/v/w"}}}, engi.Invalid},
		"metadata":        {engi.SandboxSpec{Metadata: many}, engi.Invalid},
		"metadata's key":  {engi.SandboxSpec{Metadata: map[string]string{strings.Repeat("x", 300): ""}}, engi.Invalid},
		"env":             {engi.SandboxSpec{Env: map[string]string{"A=B": ""}}, engi.Invalid},
		"env NUL":         {engi.SandboxSpec{Env: map[string]string{"A": "\x00"}}, engi.Invalid},
		"negative":        {engi.SandboxSpec{Lifetime: engi.Lifetime{Timeout: -1}}, engi.Invalid},
		"too long":        {engi.SandboxSpec{Lifetime: engi.Lifetime{Timeout: 2 * time.Hour}}, engi.Invalid},
		"policy":          {engi.SandboxSpec{Lifetime: engi.Lifetime{OnTimeout: "explode"}}, engi.Invalid},
		"too much memory": {engi.SandboxSpec{Size: engi.Size{Memory: 1 << 50}}, engi.Invalid},
		"network":         {engi.SandboxSpec{Network: engi.NetworkPolicy{Mode: "all"}}, engi.Invalid},
		"key":             {engi.SandboxSpec{Idempotency: strings.Repeat("k", 256)}, engi.Invalid},
	} {
		c.spec.Owner = "alice"
		_, err := n.Sandboxes().Create(t.Context(), c.spec)
		wantKind(t, name, err, c.want)
	}
	if got := fx.machines(); len(got) != 0 {
		t.Errorf("machines left: %v", got)
	}
}

func TestIdempotentCreate(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	spec := engi.SandboxSpec{Owner: "alice", Idempotency: "once", Env: map[string]string{"A": "1"}}
	var wg sync.WaitGroup
	ids := make([]engi.SandboxID, 5)
	for i := range ids {
		wg.Go(func() {
			s, err := n.Sandboxes().Create(t.Context(), spec)
			if err != nil {
				t.Error(err)
			}
			ids[i] = s.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("sandboxes %v, want one", ids)
		}
	}
	other := spec
	other.Env = nil
	_, err := n.Sandboxes().Create(t.Context(), other)
	wantKind(t, "another request with the key", err, engi.Conflict)
	other.Owner = "bob"
	if s, err := n.Sandboxes().Create(t.Context(), other); err != nil || s.ID == ids[0] {
		t.Errorf("bob's request with the same key: %+v, %v", s, err)
	}
	n.kill()
	n = fx.start(nil)
	if s := n.create(spec); s.ID != ids[0] {
		t.Errorf("after a crash the key leads to %s, want %s", s.ID, ids[0])
	}

	// A node that is killed before it has recorded the sandbox leaves the key free.
	spec.Idempotency = "killed"
	fx.store.Fail(func(string) error { n.dead.Store(true); return errDead })
	if s, err := n.Sandboxes().Create(t.Context(), spec); err == nil {
		t.Errorf("a killed node created %s", s.ID)
	}
	n.kill()
	fx.store.Fail(nil)
	n = fx.start(nil)
	s := n.create(spec)
	if again := n.create(spec); again.ID != s.ID || s.State != engi.Running {
		t.Errorf("after a crash the key leads to %s, which is %s, and to %s", s.ID, s.State, again.ID)
	}
}

func TestListSandboxes(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(bare)).warm()
	var ids []engi.SandboxID
	for i := range 5 {
		ids = append(ids, n.create(engi.SandboxSpec{Metadata: map[string]string{"n": fmt.Sprint(i), "all": "yes"}}).ID)
	}
	bobs := n.create(engi.SandboxSpec{Owner: "bob"})
	if err := n.Sandboxes().Stop(t.Context(), "alice", ids[4]); err != nil {
		t.Fatal(err)
	}
	list := func(viewer engi.Viewer, f engi.SandboxFilter) string {
		t.Helper()
		all, err := n.Sandboxes().List(t.Context(), viewer, f)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range all {
			for i, id := range ids {
				if s.ID == id {
					got = append(got, fmt.Sprint(i))
				}
			}
			if s.ID == bobs.ID {
				got = append(got, "bob")
			}
		}
		return strings.Join(got, " ")
	}
	for _, c := range []struct {
		viewer engi.Viewer
		f      engi.SandboxFilter
		want   string
	}{
		{"alice", engi.SandboxFilter{}, "3 2 1 0"},
		{"alice", engi.SandboxFilter{Oldest: true}, "0 1 2 3"},
		{"alice", engi.SandboxFilter{Limit: 2}, "3 2"},
		{"alice", engi.SandboxFilter{Limit: 2, After: ids[2]}, "1 0"},
		{"alice", engi.SandboxFilter{Limit: 2, After: ids[4]}, "3 2"},
		{"alice", engi.SandboxFilter{Oldest: true, Limit: 2, After: ids[1]}, "2 3"},
		{"alice", engi.SandboxFilter{States: []engi.State{engi.Stopped}}, "4"},
		{"alice", engi.SandboxFilter{States: []engi.State{engi.Stopped, engi.Running}}, "4 3 2 1 0"},
		{"alice", engi.SandboxFilter{Metadata: map[string]string{"n": "2", "all": "yes"}}, "2"},
		{"alice", engi.SandboxFilter{Metadata: map[string]string{"n": "2", "all": "no"}}, ""},
		{"alice", engi.SandboxFilter{Template: "d1"}, "3 2 1 0"},
		{"alice", engi.SandboxFilter{Template: "other"}, ""},
		{"alice", engi.SandboxFilter{Since: time.Now().Add(time.Hour)}, ""},
		{engi.Everyone, engi.SandboxFilter{Owned: true}, "bob 3 2 1 0"},
		{"", engi.SandboxFilter{Owned: true}, ""},
		{"carol", engi.SandboxFilter{}, ""},
	} {
		if got := list(c.viewer, c.f); got != c.want {
			t.Errorf("%q %+v: %q, want %q", c.viewer, c.f, got, c.want)
		}
	}
	_, err := n.Sandboxes().Get(t.Context(), "bob", ids[0])
	wantKind(t, "bob's look at alice's", err, engi.NotFound)
	_, _, err = n.Sandboxes().Enter(t.Context(), "bob", ids[0])
	wantKind(t, "bob's way into alice's", err, engi.NotFound)
	wantKind(t, "bob's stop of alice's", n.Sandboxes().Stop(t.Context(), "bob", ids[0]), engi.NotFound)
	wantKind(t, "bob's pause of alice's", n.Lifecycle().Pause(t.Context(), "bob", ids[0]), engi.NotFound)
	_, err = n.Sandboxes().Update(t.Context(), "bob", ids[0], engi.SandboxUpdate{})
	wantKind(t, "bob's update of alice's", err, engi.NotFound)
}

func TestListSandboxesByStart(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(bare)).warm()
	woken := n.create(engi.SandboxSpec{}).ID
	slept := n.create(engi.SandboxSpec{}).ID
	n.hibernate(woken, false)
	n.hibernate(slept, false)
	began := time.Now().UTC()
	n.resume(woken, false)
	all, err := n.Sandboxes().List(t.Context(), "alice", engi.SandboxFilter{Started: began})
	if err != nil || len(all) != 1 || all[0].ID != woken {
		t.Errorf("started since: %v, %v", all, err)
	}
	if all, err = n.Sandboxes().List(t.Context(), "alice", engi.SandboxFilter{Since: began}); err != nil || len(all) != 0 {
		t.Errorf("created since: %v, %v", all, err)
	}
}

func TestDeadlines(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	short := n.create(engi.SandboxSpec{Lifetime: engi.Lifetime{Timeout: 50 * time.Millisecond}})
	// A slow machine may miss a short time. Then the time is doubled.
	inTime := func(what string, try func(time.Duration) error) time.Duration {
		t.Helper()
		for d := 300 * time.Millisecond; ; d *= 2 {
			err := try(d)
			if err == nil {
				return d
			}
			if d > time.Minute {
				t.Fatalf("%s in %v: %v", what, d, err)
			}
		}
	}
	var longer engi.Sandbox
	most := 2 * inTime("extend", func(d time.Duration) (err error) {
		id := n.create(engi.SandboxSpec{Lifetime: engi.Lifetime{Timeout: d, Max: 2 * d}}).ID
		far := time.Hour
		longer, err = n.Sandboxes().Update(t.Context(), "alice", id, engi.SandboxUpdate{Extend: &far})
		return err
	})
	if got := longer.Deadline.Sub(longer.Started); got != most {
		t.Errorf("extended to %v after its start; want its maximum of %v", got, most)
	}
	n.eventually("the short one ends", func() bool { return n.sandbox(short.ID).State == engi.Stopped })
	if got := n.sandbox(short.ID); got.End != engi.CauseTimeout {
		t.Errorf("it ended with %s", got.End)
	}
	// A sandbox with a user is not idle.
	var idle engi.Sandbox
	var release func()
	limit := inTime("enter", func(d time.Duration) (err error) {
		idle = n.create(engi.SandboxSpec{Lifetime: engi.Lifetime{Idle: d}})
		_, release, err = n.Sandboxes().Enter(t.Context(), "alice", idle.ID)
		return err
	})
	entered := time.Now()
	time.Sleep(time.Until(entered.Add(2*limit + limit/2)))
	n.wantState(idle.ID, engi.Running)
	release()
	release() // release may be called again
	n.eventually("the idle one ends", func() bool { return n.sandbox(idle.ID).State == engi.Stopped })
	n.eventually("the longer one ends", func() bool { return n.sandbox(longer.ID).State == engi.Stopped })
	if got := n.sandbox(longer.ID); got.Stopped.Sub(got.Created) < most*9/10 {
		t.Errorf("it ended after %v", got.Stopped.Sub(got.Created))
	}
	n.eventually("nothing is left", func() bool { return len(fx.machines()) == 0 })

	nearer := n.create(engi.SandboxSpec{})
	soon := 20 * time.Millisecond
	if _, err := n.Sandboxes().Update(t.Context(), "alice", nearer.ID, engi.SandboxUpdate{Timeout: &soon}); err != nil {
		t.Fatal(err)
	}
	n.eventually("the nearer deadline counts", func() bool { return n.sandbox(nearer.ID).State == engi.Stopped })
}

func TestPauseAndResume(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	s := n.create(engi.SandboxSpec{})
	n.mustRun(s.ID, "echo kept > file")
	life := n.Lifecycle()
	for range 2 {
		if err := life.Pause(t.Context(), "alice", s.ID); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.wantState(s.ID, engi.Paused); !got.Deadline.IsZero() {
		t.Errorf("a paused sandbox has the deadline %v", got.Deadline)
	}
	_, _, err := n.Sandboxes().Enter(t.Context(), "alice", s.ID)
	wantKind(t, "enter a paused sandbox", err, engi.Conflict)
	d := time.Minute
	_, err = n.Sandboxes().Update(t.Context(), "alice", s.ID, engi.SandboxUpdate{Timeout: &d})
	wantKind(t, "a deadline for a paused sandbox", err, engi.Conflict)
	md := map[string]string{"x": "y"}
	if got, err := n.Sandboxes().Update(t.Context(), "alice", s.ID, engi.SandboxUpdate{Metadata: &md}); err != nil || got.Metadata["x"] != "y" {
		t.Errorf("%+v, %v", got, err)
	}
	got, err := life.Resume(t.Context(), "alice", s.ID, time.Hour, false)
	if err != nil || got.State != engi.Running || time.Until(got.Deadline) < 59*time.Minute {
		t.Fatalf("%+v, %v", got, err)
	}
	if out := n.mustRun(s.ID, "cat file"); out != "kept\n" {
		t.Errorf("output %q", out)
	}
	if got, err = life.Resume(t.Context(), "alice", s.ID, time.Minute, false); err != nil || time.Until(got.Deadline) < 59*time.Minute {
		t.Errorf("a running one got nearer: %v, %v", got.Deadline, err)
	}
}

func TestSandboxEndsWithItsMachine(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	for want, die := range map[engi.Cause]func(engi.SandboxID){
		engi.CauseSandboxLost: fx.host.Kill,
		engi.CauseMemory:      fx.host.FillMemory,
	} {
		s := n.create(engi.SandboxSpec{})
		die(s.ID)
		n.eventually("it has stopped", func() bool { return n.sandbox(s.ID).State == engi.Stopped })
		if got := n.sandbox(s.ID); got.End != want {
			t.Errorf("it ended with %s, want %s", got.End, want)
		}
	}
	n.eventually("nothing is left", func() bool { return len(fx.machines()) == 0 })
}

// TestMemoryEndsAProcess checks that a process that ends together with its sandbox is reported as
// a result, and not as a broken connection.
func TestMemoryEndsAProcess(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	for try := range 10 {
		s := n.create(engi.SandboxSpec{})
		g, release, err := n.Sandboxes().Enter(t.Context(), "alice", s.ID)
		if err != nil {
			t.Fatal(err)
		}
		p, err := g.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "echo begun; sleep 60"}})
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for c, err := range p.Output(t.Context(), 0) {
			if err != nil {
				t.Fatalf("try %d: output: %v", try, err)
			}
			out.Write(c.Data)
			fx.host.FillMemory(s.ID)
		}
		exit, err := p.Wait(t.Context())
		if err != nil || exit.Cause != engi.CauseMemory || exit.Signal != "KILL" || out.String() != "begun\n" {
			t.Errorf("try %d: %+v, %v, output %q", try, exit, err, out.String())
		}
		release()
	}
}

func TestQuotas(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(func(o *fleet.Options) {
		o.Quota = func(owner engi.Owner) engi.Quota {
			switch owner {
			case "two":
				return engi.Quota{Sandboxes: 2}
			case "daily":
				return engi.Quota{PerDay: 2}
			case "memory":
				return engi.Quota{Memory: 1 << 30}
			case "vcpus":
				return engi.Quota{VCPUs: 1}
			case "disk":
				return engi.Quota{Disk: 512 << 20}
			}
			return engi.Quota{}
		}
	})
	room := map[engi.Owner]int{"two": 2, "daily": 2, "memory": 2, "vcpus": 1, "disk": 1, "free": 4}
	for owner, want := range room {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var made []engi.SandboxID
		for range 4 {
			wg.Go(func() {
				s, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: owner})
				if err == nil {
					mu.Lock()
					made = append(made, s.ID)
					mu.Unlock()
				} else if e, ok := err.(*engi.Error); !engi.Is(err, engi.Exhausted) || ok && e.Retry.AfterMillis <= 0 {
					t.Errorf("%s: %v", owner, err)
				}
			})
		}
		wg.Wait()
		if len(made) != want {
			t.Errorf("%s got %d sandboxes, want %d", owner, len(made), want)
		}
		if len(made) == 0 {
			continue
		}
		if err := n.Sandboxes().Stop(t.Context(), owner.Viewer(), made[0]); err != nil {
			t.Fatal(err)
		}
		_, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: owner})
		if owner == "daily" {
			wantKind(t, "a third one on a day", err, engi.Exhausted)
		} else if err != nil {
			t.Errorf("%s: after one has stopped: %v", owner, err)
		}
	}
	for owner, quota := range map[engi.Owner]int64{"disk": 512 << 20, "free": math.MaxInt64} {
		all, err := n.Sandboxes().List(t.Context(), owner.Viewer(), engi.SandboxFilter{Owned: true})
		if err != nil {
			t.Fatal(err)
		}
		want := quota
		for _, s := range all {
			if owner == "disk" {
				want -= s.Size.Disk
			}
		}
		if left, err := n.DiskLeft(t.Context(), owner); left != want || err != nil {
			t.Errorf("%s has %d bytes left, %v; want %d", owner, left, err, want)
		}
	}
}

// TestQuotasBindExecutions starts executions that run, that wait for an instance,
// and that an earlier process has accepted.
func TestQuotasBindExecutions(t *testing.T) {
	fx := newFixture(t)
	options := func(o *fleet.Options) {
		o.Pools = []fleet.PoolConfig{{Language: engi.Bash, Target: 1, Max: 1}}
		o.Quota = func(owner engi.Owner) engi.Quota {
			if owner == "alice" {
				return engi.Quota{Sandboxes: 2}
			}
			return engi.Quota{}
		}
	}
	n := fx.start(options).warm()
	long, short := script("echo 1; sleep 30"), script(":")
	running := n.start(long)
	n.printed(running.ID, 2)
	n.start(long)
	refused := func() {
		t.Helper()
		_, err := n.x.Start(t.Context(), short)
		wantKind(t, "an execution beyond the quota", err, engi.Exhausted)
		_, err = n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice"})
		wantKind(t, "a sandbox beyond the quota", err, engi.Exhausted)
	}
	refused()
	other := short
	other.Owner = "bert"
	n.start(other)
	n.kill()
	n = fx.start(options)
	refused()
	for range 3 {
		if err := n.x.Cancel(t.Context(), "alice", running.ID); err != nil {
			t.Fatal(err)
		}
		n.wait(running.ID)
		running = n.start(long)
		refused()
	}
}

// TestWaitingProgramsAreShared: one owner fills the memory for waiting programs, and
// some is left for another owner.
func TestWaitingProgramsAreShared(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(fleet.PoolConfig{Language: engi.Bash, Target: 1, Max: 1})).warm()
	n.QueueBytes(64 << 10)
	running := n.start(script("echo 1; sleep 30"))
	n.printed(running.ID, 2)
	fill := func(owner engi.Owner) (waiting int) {
		spec := script(":" + strings.Repeat(" ", 7<<10))
		spec.Owner = owner
		for waiting < 100 {
			if _, err := n.x.Start(t.Context(), spec); err != nil {
				wantKind(t, "a program too many", err, engi.Exhausted)
				break
			}
			waiting++
		}
		return waiting
	}
	if a, b := fill("alice"), fill("bert"); a != 6 || b != 1 {
		t.Errorf("one owner has %d programs waiting, the next one %d", a, b)
	}
}

func TestFullNodeRefuses(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(func(o *fleet.Options) {
		o.MaxSandboxes = 2
		o.Pools = []fleet.PoolConfig{{Language: engi.Bash, Target: 2}}
	}).warm()
	a := n.create(engi.SandboxSpec{}) // uses a place of the pool
	n.create(engi.SandboxSpec{})
	_, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice"})
	wantKind(t, "a third sandbox", err, engi.Exhausted)
	if err := n.Sandboxes().Stop(t.Context(), "alice", a.ID); err != nil {
		t.Fatal(err)
	}
	n.eventually("there is room again", func() bool {
		_, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "alice"})
		return err == nil
	})
}

func TestSandboxesAreAdopted(t *testing.T) {
	for name, die := range deaths {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t)
			n := fx.start(pools(bare)).warm()
			s := n.create(engi.SandboxSpec{Env: map[string]string{"A": "1"}, Lifetime: engi.Lifetime{Timeout: time.Hour}})
			paused := n.create(engi.SandboxSpec{Lifetime: engi.Lifetime{AutoResume: true}})
			lost := n.create(engi.SandboxSpec{})
			n.mustRun(s.ID, "echo kept > file")
			n.mustRun(paused.ID, "echo cold > file")
			if err := n.Lifecycle().Pause(t.Context(), "alice", paused.ID); err != nil {
				t.Fatal(err)
			}
			before := n.sandbox(s.ID)
			die(n)
			fx.host.Kill(lost.ID)

			n = fx.start(pools(bare))
			after := n.wantState(s.ID, engi.Running)
			if !after.Deadline.Equal(before.Deadline) || after.Env["A"] != "1" {
				t.Errorf("before %+v\nafter %+v", before, after)
			}
			if got := n.mustRun(s.ID, "cat file; echo $A"); got != "kept\n1\n" {
				t.Errorf("output %q", got)
			}
			n.wantState(paused.ID, engi.Paused)
			if got := n.mustRun(paused.ID, "cat file"); got != "cold\n" {
				t.Errorf("output in the paused one: %q", got)
			}
			if got := n.wantState(lost.ID, engi.Stopped); got.End != engi.CauseSandboxLost {
				t.Errorf("the lost one ended with %s", got.End)
			}
			n.Reconcile(t.Context())
			n.wantState(s.ID, engi.Running)
			fx.onlyPools(n, 2)
		})
	}
}

// TestEnter sends a request in a dialect.
func TestEnter(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(nil)
	s := n.create(engi.SandboxSpec{})
	g, release, err := n.Sandboxes().Enter(t.Context(), "alice", s.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := g.Write(t.Context(), "/tmp/x", strings.NewReader("hello"), engi.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := g.Open(t.Context(), "/tmp/x")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	if _, ok := g.(engi.GuestHTTP); !ok {
		t.Error("it is no Agent")
	}
}

func TestSpares(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(func(o *fleet.Options) { o.Spare, o.DemandIdle = 1, 3*time.Second })
	first := n.create(engi.SandboxSpec{})
	n.eventually("one is kept ready", func() bool { return n.Pools(t.Context())[0].Ready == 1 })
	ready := fx.machines()
	second := n.create(engi.SandboxSpec{})
	found := false
	for _, id := range ready {
		found = found || id == second.ID && id != first.ID
	}
	if !found {
		t.Error("it was not used")
	}
	n.eventually("another one is", func() bool { return n.Pools(t.Context())[0].Ready == 1 })
	n.eventually("it goes when nobody asks", func() bool { return len(fx.machines()) == 2 && n.Pools(t.Context())[0].Ready == 0 })
}
