package apitest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/preview"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// Sandboxes is a fake whose sandboxes have a guest in this process. Each running
// execution has a sandbox, too, which cannot be entered. It is safe for
// concurrent use.
type Sandboxes struct {
	x *Executions

	creating sync.Mutex // held by Create

	mu    sync.Mutex
	all   []*sandbox // all sandboxes, oldest first
	kept  []engi.Snapshot
	limit int // maximum number of sandboxes; 0 means no limit
}

var _ engi.Sandboxes = (*Sandboxes)(nil)

// NewSandboxes returns a fake with only the sandboxes of x.
func NewSandboxes(x *Executions) *Sandboxes { return &Sandboxes{x: x} }

// SetLimit sets the maximum number of sandboxes; beyond it Create returns
// Exhausted.
func (s *Sandboxes) SetLimit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = n
}

// Close stops all sandboxes.
func (s *Sandboxes) Close() {
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	for _, r := range all {
		r.close()
	}
}

// A sandbox is a record and a guest.
type sandbox struct {
	rec    engi.Sandbox     // guarded by Sandboxes.mu
	spec   engi.SandboxSpec // spec of its creation; immutable
	dir    string
	server *guestd.Server
	guest  *guest.Client
	cancel context.CancelFunc
	once   sync.Once

	dialing sync.Mutex
	closed  bool // set at the end, while clients may still dial; guarded by dialing
	work    sync.WaitGroup
}

func newSandbox(ctx context.Context, env map[string]string) (*sandbox, error) {
	dir, err := os.MkdirTemp("", "engi-apitest-")
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	r := &sandbox{dir: dir, server: guestd.New(guestd.Options{Root: dir, Token: "secret", InProcess: true})}
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	r.guest, err = guest.Open(ctx, func(context.Context) (net.Conn, error) {
		r.dialing.Lock()
		defer r.dialing.Unlock()
		if r.closed {
			return nil, net.ErrClosed
		}
		ours, theirs := net.Pipe()
		r.work.Go(func() { r.server.Serve(long, theirs) })
		return ours, nil
	}, "secret")
	if err == nil {
		err = r.guest.Setup(ctx, wire.Setup{Env: env, WorkDir: "/workspace", Home: "/home/user"})
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "home/user"), 0o755)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *sandbox) close() {
	r.once.Do(func() {
		if r.guest != nil {
			r.guest.Close()
		}
		r.cancel()
		r.dialing.Lock()
		r.closed = true
		r.dialing.Unlock()
		r.work.Wait()
		r.server.Close()
		os.RemoveAll(r.dir)
	})
}

// Create creates a sandbox. The template "nope" does not exist.
func (s *Sandboxes) Create(ctx context.Context, spec engi.SandboxSpec) (engi.Sandbox, error) {
	if err := spec.Faults(engi.Bounds{}).Err(); err != nil {
		return engi.Sandbox{}, err
	}
	if spec.Template == "nope" {
		return engi.Sandbox{}, engi.Errorf(engi.NotFound, "no template %q", spec.Template)
	}
	if err := checkNetwork(spec.Network); err != nil {
		return engi.Sandbox{}, err
	}
	s.creating.Lock()
	defer s.creating.Unlock()
	if first, err := s.repeated(spec); err != nil || first.ID != "" {
		return first, err
	}
	return s.create(ctx, engi.NewSandboxID(), spec)
}

// repeated returns the sandbox that the same request created before.
func (s *Sandboxes) repeated(spec engi.SandboxSpec) (first engi.Sandbox, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		if spec.Idempotency == "" || r.spec.Idempotency != spec.Idempotency || r.rec.Owner != spec.Owner {
			continue
		}
		if !reflect.DeepEqual(r.spec, spec) {
			return first, errRepeated
		}
		return r.rec, nil
	}
	return first, nil
}

var errRepeated = engi.Errorf(engi.Conflict, "this Idempotency-Key was used for another request")

func (s *Sandboxes) create(ctx context.Context, id engi.SandboxID, spec engi.SandboxSpec) (engi.Sandbox, error) {
	asked := spec
	s.mu.Lock()
	full := s.limit > 0 && len(s.all) >= s.limit
	s.mu.Unlock()
	if full {
		return engi.Sandbox{}, engi.Errorf(engi.Exhausted, "there are %d sandboxes already", s.limit).WithRetry(engi.Retry{AfterMillis: 1000})
	}
	r, err := newSandbox(ctx, spec.Env)
	if err != nil {
		return engi.Sandbox{}, err
	}
	l := spec.Lifetime
	if l.Timeout == 0 {
		l.Timeout = 5 * time.Minute
	}
	if l.OnTimeout == "" {
		l.OnTimeout = engi.EndKill
	}
	if spec.Template == "" {
		spec.Template = "base"
	}
	now := time.Now().UTC()
	r.spec = asked
	r.rec = engi.Sandbox{
		ID: id, Owner: spec.Owner, Template: spec.Template, Digest: "sha256:ba5e", Tier: engi.TierMemory,
		Size: spec.Size.Or(engi.Size{VCPUs: 1, Memory: 512 << 20, Disk: 512 << 20}), State: engi.Running, Created: now,
		Lifetime: l, Deadline: now.Add(l.Timeout), Started: now, Active: now, Snapshot: spec.Snapshot, Metadata: spec.Metadata, Env: spec.Env,
		Volumes: spec.Volumes, Network: spec.Network, Ports: spec.Ports,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, r)
	return r.rec, nil
}

func (s *Sandboxes) runs(ctx context.Context, viewer engi.Viewer) ([]engi.Sandbox, error) {
	xs, err := s.x.List(ctx, viewer, engi.ExecutionFilter{State: engi.ExecutionRunning})
	var list []engi.Sandbox
	for _, x := range xs {
		list = append(list, engi.Sandbox{
			ID: x.Sandbox, Owner: x.Owner, Template: x.Template, Digest: "sha256:ba5e", Pool: "base/python", Tier: engi.TierMemory,
			Size: engi.Size{VCPUs: 1, Memory: 512 << 20}, State: engi.Running, Execution: x.ID, Created: x.Created,
		})
	}
	return list, err
}

// find returns a sandbox; the caller holds mu.
func (s *Sandboxes) find(viewer engi.Viewer, id engi.SandboxID) (*sandbox, error) {
	for _, r := range s.all {
		if r.rec.ID == id && viewer.Sees(r.rec.Owner) {
			return r, nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "there is no sandbox %s", id)
}

// Get returns a sandbox.
func (s *Sandboxes) Get(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Sandbox, error) {
	runs, err := s.runs(ctx, viewer)
	if err != nil {
		return engi.Sandbox{}, err
	}
	for _, b := range runs {
		if b.ID == id {
			return b, nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.find(viewer, id)
	if err != nil {
		return engi.Sandbox{}, err
	}
	return r.rec, nil
}

// List returns the sandboxes that f selects.
func (s *Sandboxes) List(ctx context.Context, viewer engi.Viewer, f engi.SandboxFilter) ([]engi.Sandbox, error) {
	all, err := s.runs(ctx, viewer)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	for _, r := range s.all {
		if viewer.Sees(r.rec.Owner) {
			all = append(all, r.rec)
		}
	}
	s.mu.Unlock()
	all = slices.DeleteFunc(all, func(b engi.Sandbox) bool {
		for k, v := range f.Metadata {
			if b.Metadata[k] != v {
				return true
			}
		}
		return len(f.States) == 0 && b.State == engi.Stopped || len(f.States) > 0 && !slices.Contains(f.States, b.State) ||
			f.Owned && b.Execution != "" || f.Template != "" && b.Template != f.Template && b.Digest != f.Template || b.Created.Before(f.Since) || b.Started.Before(f.Started)
	})
	slices.SortStableFunc(all, func(a, b engi.Sandbox) int {
		if f.Oldest {
			a, b = b, a
		}
		return b.Created.Compare(a.Created)
	})
	if f.After != "" {
		all = all[slices.IndexFunc(all, func(b engi.Sandbox) bool { return b.ID == f.After })+1:]
	}
	if f.Limit == 0 {
		f.Limit = 100
	}
	if f.Limit > 0 && len(all) > f.Limit {
		all = all[:f.Limit]
	}
	return all, nil
}

// Update changes a sandbox.
func (s *Sandboxes) Update(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, u engi.SandboxUpdate) (engi.Sandbox, error) {
	if err := u.Faults(engi.Bounds{}).Err(); err != nil {
		return engi.Sandbox{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.find(viewer, id)
	if err != nil {
		return engi.Sandbox{}, err
	}
	if r.rec.State != engi.Running && (u.Timeout != nil || u.Extend != nil) {
		return engi.Sandbox{}, engi.Errorf(engi.Conflict, "sandbox %s is %s", id, r.rec.State)
	}
	if u.Timeout != nil {
		r.rec.Deadline = time.Now().Add(*u.Timeout).UTC()
	}
	if u.Extend != nil {
		if d := time.Now().Add(*u.Extend).UTC(); d.After(r.rec.Deadline) {
			r.rec.Deadline = d
		}
	}
	if u.Lifetime != nil {
		r.rec.Lifetime = *u.Lifetime
	}
	if u.Metadata != nil {
		r.rec.Metadata = *u.Metadata
	}
	if u.Network != nil {
		if err := checkNetwork(*u.Network); err != nil {
			return engi.Sandbox{}, err
		}
		r.rec.Network = *u.Network
	}
	if u.Ports != nil {
		r.rec.Ports = *u.Ports
	}
	return r.rec, nil
}

// Stop stops a sandbox, or the execution in it.
func (s *Sandboxes) Stop(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) error {
	b, err := s.Get(ctx, viewer, id)
	if err != nil {
		return err
	}
	if b.Execution != "" {
		return s.x.Cancel(ctx, viewer, b.Execution)
	}
	s.mu.Lock()
	r, err := s.find(viewer, id)
	if err == nil && r.rec.State != engi.Stopped {
		r.rec.State, r.rec.End, r.rec.Stopped, r.rec.Deadline = engi.Stopped, engi.CauseCancelled, time.Now().UTC(), time.Time{}
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	r.close()
	return nil
}

// Enter returns the guest of a sandbox.
func (s *Sandboxes) Enter(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Guest, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.find(viewer, id)
	switch {
	case err != nil:
		return nil, nil, err
	case r.rec.State == engi.Stopped:
		return nil, nil, engi.Errorf(engi.NotFound, "sandbox %s has stopped", id)
	case r.rec.State != engi.Running && !r.rec.Lifetime.AutoResume:
		return nil, nil, engi.Errorf(engi.Conflict, "sandbox %s is %s", id, r.rec.State).WithRemedy("resume it first")
	}
	r.rec.State = engi.Running
	r.rec.Active = time.Now().UTC()
	return r.guest, func() {}, nil
}

// Samples returns one sample.
func (s *Sandboxes) Samples(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, from, to time.Time) ([]engi.Sample, error) {
	b, err := s.Get(ctx, viewer, id)
	if err != nil {
		return nil, err
	}
	return []engi.Sample{{Time: b.Created, VCPUs: 1, CPUPercent: 12.5, Memory: 1 << 20, MemoryLimit: 512 << 20, MemoryCache: 1 << 10, DiskUsed: 1 << 12, DiskCapacity: 512 << 20, Processes: 2}}, nil
}

// Lifecycle returns a fake that only changes the states of
// sandboxes.
func (s *Sandboxes) Lifecycle() engi.Lifecycle { return lifecycle{s} }

type lifecycle struct{ s *Sandboxes }

func (l lifecycle) to(viewer engi.Viewer, id engi.SandboxID, from []engi.State, to engi.State) (*sandbox, error) {
	r, err := l.s.find(viewer, id)
	if err != nil {
		return nil, err
	}
	if r.rec.State == to {
		return r, nil
	}
	if !slices.Contains(from, r.rec.State) {
		return nil, engi.Errorf(engi.Conflict, "a %s sandbox cannot become %s", r.rec.State, to)
	}
	r.rec.State = to
	return r, nil
}

func (l lifecycle) Pause(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	_, err := l.to(viewer, id, []engi.State{engi.Running}, engi.Paused)
	return err
}

func (l lifecycle) Hibernate(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, diskOnly bool) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	r, err := l.s.find(viewer, id)
	if err == nil && r.rec.State == engi.Hibernated {
		return engi.Errorf(engi.Conflict, "sandbox %s sleeps already", id)
	}
	r, err = l.to(viewer, id, []engi.State{engi.Running, engi.Paused}, engi.Hibernated)
	if err == nil {
		r.rec.Disk, r.rec.Deadline = diskOnly, time.Time{}
	}
	return err
}

func (l lifecycle) Resume(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, timeout time.Duration, cold bool) (engi.Sandbox, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	r, err := l.to(viewer, id, []engi.State{engi.Paused, engi.Hibernated}, engi.Running)
	if err != nil {
		return engi.Sandbox{}, err
	}
	if timeout == 0 {
		timeout = r.rec.Lifetime.Timeout
	}
	r.rec.Disk, r.rec.Started, r.rec.Deadline = false, time.Now().UTC(), time.Now().Add(timeout).UTC()
	return r.rec, nil
}

func (l lifecycle) Snapshot(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, spec engi.SnapshotSpec) (engi.Snapshot, error) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	r, err := l.s.find(viewer, id)
	if err != nil {
		return engi.Snapshot{}, err
	}
	x := engi.Snapshot{
		ID: cmp.Or(spec.ID, engi.NewSnapshotID()), Owner: r.rec.Owner, Name: spec.Name, Sandbox: id, Template: r.rec.Template, Digest: r.rec.Digest, Tier: r.rec.Tier,
		Size: r.rec.Size, Disk: spec.DiskOnly, Bytes: 1 << 20, Created: time.Now().UTC(),
	}
	if spec.TTL > 0 {
		x.Expires = x.Created.Add(spec.TTL)
	}
	l.s.kept = append(l.s.kept, x)
	return x, nil
}

// Fork creates fresh sandboxes; the third one of a request fails.
func (l lifecycle) Fork(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, spec engi.ForkSpec) ([]engi.Forked, error) {
	b, err := l.s.Get(ctx, viewer, id)
	if err != nil {
		return nil, err
	}
	var forks []engi.Forked
	for i := range spec.Count {
		if i == 2 {
			forks = append(forks, engi.Forked{Err: engi.Errorf(engi.Exhausted, "there is capacity for two copies")})
			continue
		}
		id := engi.NewSandboxID()
		if spec.IDs != nil {
			id = spec.IDs[i]
		}
		c, err := l.s.create(ctx, id, engi.SandboxSpec{Owner: b.Owner, Template: b.Template, Lifetime: b.Lifetime})
		forks = append(forks, engi.Forked{Sandbox: c, Err: err})
	}
	return forks, nil
}

// Snapshots returns the snapshots that Lifecycle created.
func (s *Sandboxes) Snapshots() engi.Snapshots { return snapshots{s} }

type snapshots struct{ s *Sandboxes }

func (k snapshots) at(viewer engi.Viewer, name string) (int, error) {
	for i, x := range slices.Backward(k.s.kept) {
		if (string(x.ID) == name || x.Name == name && name != "") && viewer.Sees(x.Owner) {
			return i, nil
		}
	}
	return 0, engi.Errorf(engi.NotFound, "no snapshot %q", name)
}

func (k snapshots) Get(ctx context.Context, viewer engi.Viewer, name string) (engi.Snapshot, error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	i, err := k.at(viewer, name)
	if err != nil {
		return engi.Snapshot{}, err
	}
	return k.s.kept[i], nil
}

func (k snapshots) List(ctx context.Context, viewer engi.Viewer, sandbox engi.SandboxID, p engi.Paging) ([]engi.Snapshot, error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	var list []engi.Snapshot
	for _, x := range slices.Backward(k.s.kept) {
		if viewer.Sees(x.Owner) && (sandbox == "" || x.Sandbox == sandbox) {
			list = append(list, x)
		}
	}
	return engi.Cut(p, list, func(x engi.Snapshot) string { return string(x.ID) })
}

func (k snapshots) Remove(ctx context.Context, viewer engi.Viewer, name string) error {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	i, err := k.at(viewer, name)
	if err == nil {
		k.s.kept = slices.Delete(k.s.kept, i, i+1)
	}
	return err
}

// ports is a fake engi.Ports.
type ports struct{ s *Sandboxes }

func (p ports) Listening(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) ([]preview.Port, error) {
	if _, err := p.s.Get(ctx, viewer, id); err != nil {
		return nil, err
	}
	return []preview.Port{{Port: 8080, Process: "node", URL: p.URL(id, 8080)}}, nil
}

func (p ports) URL(id engi.SandboxID, port int) string {
	return "http://localhost/" + id.Label() + "/8080/"
}

func (p ports) Sign(id engi.SandboxID, port int, good time.Duration) (string, time.Time, error) {
	return p.URL(id, port) + "?token=x", time.Now().Add(good), nil
}

func (p ports) AppURL(id engi.AppID, port int) string {
	return fmt.Sprintf("http://%d-app-%s.localhost/", port, id.Label())
}

func (p ports) SignApp(id engi.AppID, port int, good time.Duration) (string, time.Time, error) {
	return p.AppURL(id, port) + "?token=x", time.Now().Add(good), nil
}

// PrivateApp returns true for apps with "private" in their metadata.
func (p ports) PrivateApp(_ context.Context, a engi.App) (bool, error) {
	return a.Metadata["private"] != "", nil
}

func (p ports) PageURL(id engi.AppID) string { return "http://app-" + id.Label() + ".localhost/" }

func (p ports) SignPage(id engi.AppID, good time.Duration) (string, time.Time, error) {
	return p.PageURL(id) + "?token=x", time.Now().Add(good), nil
}

func (p ports) WorkspaceURL(id engi.WorkspaceID, service string) string {
	name := "ws-" + id.Label()
	if service != "" {
		name += "-" + service
	}
	return "http://" + name + ".localhost/"
}

func (p ports) SignWorkspace(id engi.WorkspaceID, service string, good time.Duration) (string, time.Time, error) {
	return p.WorkspaceURL(id, service) + "?token=x", time.Now().Add(good), nil
}
