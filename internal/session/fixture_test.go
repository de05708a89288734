package session

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/holder"
	"github.com/engi-dev/engi/internal/session/backup"
)

// A fixture is the environment of sessions that survives a power cut: completed steps
// persist. While the power is off, no step has an effect.
type fixture struct {
	mu        sync.Mutex
	left      int // number of calls until the power is cut; negative means never. guarded by mu, like all fields below
	off       bool
	records   map[engi.SessionID]Record
	sandboxes map[engi.SandboxID]*liveSandbox
	volumes   map[engi.VolumeID]*volume
	stopped   map[engi.SandboxID]bool
	ended     engi.Cause // cause of the end of stopped sandboxes
	template  string
	why       error // error because there is no template
	boots     int
	dying     int // number of times that Get still reports dead sandboxes as running
	running   int // number of pieces of code running now
	copies    map[backup.Key]map[string]string
	noStore   bool // the store of workspaces fails
	refused   int  // number of refused copies
	snapshots map[engi.SnapshotID]map[string]bool
	steps     []Step
	notes     []Note
	faults    []string // faulty events
	lab       engi.Workspace
	starting  holder.Lock // of lab
}

type liveSandbox struct {
	engi.Sandbox
	processes []*process
	uses      int
	files     map[string]bool
	data      map[string]string // data of its volume, or its own
}

type volume struct {
	engi.Volume
	data map[string]string
}

func newFixture() *fixture {
	return &fixture{
		left: -1, records: map[engi.SessionID]Record{}, sandboxes: map[engi.SandboxID]*liveSandbox{}, volumes: map[engi.VolumeID]*volume{},
		stopped: map[engi.SandboxID]bool{}, ended: engi.CauseTimeout, template: "base",
		copies: map[backup.Key]map[string]string{}, snapshots: map[engi.SnapshotID]map[string]bool{}, starting: holder.NewLock(),
	}
}

func (f *fixture) count() (sandboxes, volumes, boots, running int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sandboxes), len(f.volumes), f.boots, f.running
}

func (f *fixture) booted() int {
	_, _, n, _ := f.count()
	return n
}

// lack removes the template.
func (f *fixture) lack(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.why = why
}

// act performs one step, unless the power is off.
func (f *fixture) act(do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off || f.left == 0 {
		f.off = true
		return engi.Errorf(engi.Unavailable, "power cut")
	}
	if f.left > 0 {
		f.left--
	}
	return do()
}

// ---- store

func (f *fixture) Put(_ context.Context, r Record) error {
	return f.act(func() error {
		for _, x := range f.records {
			if r.Name != "" && x.Name == r.Name && x.Owner == r.Owner && x.Ended.IsZero() {
				return engi.Errorf(engi.Conflict, "there is one of that name")
			}
		}
		f.records[r.ID] = r
		return nil
	})
}

func (f *fixture) Save(_ context.Context, r Record) error {
	return f.act(func() error {
		before, ok := f.records[r.ID]
		if !ok {
			return engi.Errorf(engi.NotFound, "there is no such session")
		}
		// The events of a session must follow the table of states.
		at := before.State
		for _, x := range r.Steps {
			if _, err := x.From.To(x.To); err != nil || x.From != at || x.Cause == "" {
				f.faults = append(f.faults, fmt.Sprintf("%s: %+v after %s: %v", r.ID, x, at, err))
			}
			at = x.To
		}
		if at != r.State {
			f.faults = append(f.faults, fmt.Sprintf("%s: the last event says %s, the record %s", r.ID, at, r.State))
		}
		f.steps = append(f.steps, r.Steps...)
		if r.Note != nil {
			f.notes = append(f.notes, *r.Note)
		}
		r.Steps, r.Note = nil, nil
		f.records[r.ID] = r
		return nil
	})
}

func (f *fixture) Find(_ context.Context, viewer engi.Viewer, idOrName string) (r Record, err error) {
	err = f.act(func() error {
		for _, x := range f.records {
			if (string(x.ID) == idOrName || x.Name == idOrName && x.Ended.IsZero()) && viewer.Sees(x.Owner) {
				r = x
				return nil
			}
		}
		return engi.Errorf(engi.NotFound, "there is no such session")
	})
	return r, err
}

func (f *fixture) All(context.Context) (all []Record, err error) {
	err = f.act(func() error { all = slices.Collect(maps.Values(f.records)); return nil })
	return all, err
}

func (f *fixture) ByIdempotencyKey(_ context.Context, owner engi.Owner, key string) (r Record, err error) {
	err = f.act(func() error {
		for _, x := range f.records {
			if x.Owner == owner && x.Idempotency == key {
				r = x
				return nil
			}
		}
		return engi.Errorf(engi.NotFound, "there is no such session")
	})
	return r, err
}

func (f *fixture) Forget(_ context.Context, id engi.SessionID) error {
	return f.act(func() error { delete(f.records, id); return nil })
}

// ---- sandboxes

type liveSandboxes struct{ *fixture }

// settle ends sandboxes whose time has passed. The caller holds mu.
func (f *fixture) settle() {
	for id, b := range f.sandboxes {
		if b.State == engi.Running && b.uses == 0 && time.Since(b.Active) >= b.Lifetime.Idle {
			if b.Lifetime.OnTimeout == engi.EndHibernate {
				b.State = engi.Hibernated
			} else {
				f.drop(id)
			}
		}
	}
}

func (f *fixture) drop(id engi.SandboxID) {
	for _, v := range f.volumes {
		if v.Holder == id {
			v.Holder, v.Accessed = "", time.Now()
		}
	}
	delete(f.sandboxes, id)
	f.stopped[id] = true
}

func (s liveSandboxes) Create(ctx context.Context, spec engi.SandboxSpec) (x engi.Sandbox, err error) {
	time.Sleep(100 * time.Millisecond)
	err = s.act(func() error {
		s.settle()
		b := &liveSandbox{files: map[string]bool{}, data: map[string]string{}, Sandbox: engi.Sandbox{
			ID: engi.NewSandboxID(), Owner: spec.Owner, Template: spec.Template, State: engi.Running, Size: spec.Size, Lifetime: spec.Lifetime,
			CPUQuota: spec.CPUQuota, Notes: spec.Notes, Network: spec.Network, Env: spec.Env, Created: time.Now(), Active: time.Now(), Volumes: spec.Volumes,
		}}
		if spec.Snapshot != "" {
			if s.snapshots[spec.Snapshot] == nil || spec.Template != "" || spec.Onto == "" {
				return engi.Errorf(engi.NotFound, "there is no such snapshot, or no template to put it on")
			}
			b.files, b.Template, b.Snapshot = maps.Clone(s.snapshots[spec.Snapshot]), spec.Onto, spec.Snapshot
		}
		for _, m := range spec.Volumes {
			v := s.volumes[engi.VolumeID(m.Volume)]
			if v == nil {
				return engi.Errorf(engi.NotFound, "there is no such volume")
			}
			if v.Holder != "" {
				return engi.Errorf(engi.Conflict, "volume %s is in sandbox %s", v.ID, v.Holder)
			}
			v.Holder, b.data = b.ID, v.data
		}
		s.sandboxes[b.ID] = b
		s.boots++
		x = b.Sandbox
		return nil
	})
	return x, err
}

func (s liveSandboxes) Get(_ context.Context, _ engi.Viewer, id engi.SandboxID) (x engi.Sandbox, err error) {
	err = s.act(func() error {
		s.settle()
		if b := s.sandboxes[id]; b != nil {
			x = b.Sandbox
			return nil
		}
		if s.stopped[id] && s.dying > 0 {
			s.dying--
			x = engi.Sandbox{ID: id, State: engi.Running}
			if s.dying == 0 {
				s.ended = engi.CauseMemory
			}
			return nil
		}
		if s.stopped[id] {
			x = engi.Sandbox{ID: id, State: engi.Stopped, End: s.ended}
			return nil
		}
		return engi.Errorf(engi.NotFound, "there is no such sandbox")
	})
	return x, err
}

func (s liveSandboxes) List(context.Context, engi.Viewer, engi.SandboxFilter) (all []engi.Sandbox, err error) {
	err = s.act(func() error {
		s.settle()
		for _, b := range s.sandboxes {
			all = append(all, b.Sandbox)
		}
		return nil
	})
	return all, err
}

func (s liveSandboxes) Update(context.Context, engi.Viewer, engi.SandboxID, engi.SandboxUpdate) (engi.Sandbox, error) {
	return engi.Sandbox{}, engi.Errorf(engi.Internal, "sessions update no sandboxes")
}

func (s liveSandboxes) Samples(context.Context, engi.Viewer, engi.SandboxID, time.Time, time.Time) ([]engi.Sample, error) {
	return nil, nil
}

func (s liveSandboxes) Stop(_ context.Context, _ engi.Viewer, id engi.SandboxID) error {
	return s.act(func() error {
		if s.sandboxes[id] == nil {
			return engi.Errorf(engi.NotFound, "there is no such sandbox")
		}
		s.drop(id)
		return nil
	})
}

func (s liveSandboxes) Enter(_ context.Context, _ engi.Viewer, id engi.SandboxID) (g engi.Guest, release func(), err error) {
	err = s.act(func() error {
		s.settle()
		b := s.sandboxes[id]
		switch {
		case b == nil:
			return engi.Errorf(engi.NotFound, "sandbox %s is stopped", id)
		case b.State != engi.Running && !b.Lifetime.AutoResume:
			return engi.Errorf(engi.Conflict, "it sleeps")
		}
		b.State, b.Active = engi.Running, time.Now()
		b.uses++
		g = guest{s.fixture, id}
		release = func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if b := s.sandboxes[id]; b != nil {
				b.uses--
				b.Active = time.Now()
			}
		}
		return nil
	})
	return g, release, err
}

type sleeper struct {
	engi.Lifecycle
	*fixture
}

func (n sleeper) Hibernate(_ context.Context, _ engi.Viewer, id engi.SandboxID, _ bool) error {
	return n.act(func() error {
		b := n.sandboxes[id]
		switch {
		case b == nil:
			return engi.Errorf(engi.NotFound, "there is no such sandbox")
		case b.State == engi.Hibernated:
			return engi.Errorf(engi.Conflict, "it sleeps already")
		}
		b.State = engi.Hibernated
		return nil
	})
}

func (n sleeper) Pause(_ context.Context, _ engi.Viewer, id engi.SandboxID) error {
	return n.act(func() error {
		b := n.sandboxes[id]
		switch {
		case b == nil:
			return engi.Errorf(engi.NotFound, "there is no such sandbox")
		case b.State == engi.Hibernated:
			return engi.Errorf(engi.Conflict, "it sleeps")
		}
		b.State = engi.Paused
		return nil
	})
}

func (n sleeper) Resume(_ context.Context, _ engi.Viewer, id engi.SandboxID, _ time.Duration, _ bool) (x engi.Sandbox, err error) {
	err = n.act(func() error {
		b := n.sandboxes[id]
		if b == nil {
			return engi.Errorf(engi.NotFound, "there is no such sandbox")
		}
		b.State, x = engi.Running, b.Sandbox
		return nil
	})
	return x, err
}

func (n sleeper) Snapshot(_ context.Context, _ engi.Viewer, id engi.SandboxID, spec engi.SnapshotSpec) (engi.Snapshot, error) {
	return engi.Snapshot{ID: spec.ID, Bytes: 1}, n.act(func() error {
		b := n.sandboxes[id]
		switch {
		case b == nil:
			return engi.Errorf(engi.NotFound, "there is no such sandbox")
		case b.State == engi.Hibernated || !spec.DiskOnly:
			return engi.Errorf(engi.Conflict, "its disk alone cannot be copied")
		}
		n.snapshots[spec.ID] = maps.Clone(b.files)
		return nil
	})
}

type snapshots struct {
	engi.Snapshots
	*fixture
}

func (s snapshots) Get(_ context.Context, _ engi.Viewer, id string) (x engi.Snapshot, err error) {
	err = s.act(func() error {
		if s.snapshots[engi.SnapshotID(id)] == nil {
			return engi.Errorf(engi.NotFound, "there is no such snapshot")
		}
		x.ID = engi.SnapshotID(id)
		return nil
	})
	return x, err
}

func (s snapshots) Remove(_ context.Context, _ engi.Viewer, id string) error {
	return s.act(func() error {
		if s.snapshots[engi.SnapshotID(id)] == nil {
			return engi.Errorf(engi.NotFound, "there is no such snapshot")
		}
		delete(s.snapshots, engi.SnapshotID(id))
		return nil
	})
}

// ---- volumes

type volumes struct {
	engi.Volumes
	*fixture
}

func (v volumes) Create(_ context.Context, spec engi.VolumeSpec) (x engi.Volume, err error) {
	err = v.act(func() error {
		for _, o := range v.volumes {
			if o.Name == spec.Name && o.Owner == spec.Owner {
				return engi.Errorf(engi.Conflict, "there is one of that name")
			}
		}
		x = engi.Volume{ID: engi.NewVolumeID(), Owner: spec.Owner, Name: spec.Name, Capacity: spec.Capacity, Created: time.Now(), Accessed: time.Now()}
		v.volumes[x.ID] = &volume{x, map[string]string{}}
		return nil
	})
	return x, err
}

func (v volumes) Get(_ context.Context, viewer engi.Viewer, idOrName string) (x engi.Volume, err error) {
	err = v.act(func() error {
		for _, o := range v.volumes {
			if (string(o.ID) == idOrName || o.Name == idOrName) && viewer.Sees(o.Owner) {
				x = o.Volume
				return nil
			}
		}
		return engi.Errorf(engi.NotFound, "there is no such volume")
	})
	return x, err
}

func (v volumes) Remove(_ context.Context, _ engi.Viewer, id string) error {
	return v.act(func() error {
		o := v.volumes[engi.VolumeID(id)]
		switch {
		case o == nil:
			return engi.Errorf(engi.NotFound, "there is no such volume")
		case o.Holder != "":
			return engi.Errorf(engi.Conflict, "sandbox %s has it", o.Holder)
		}
		delete(v.volumes, o.ID)
		return nil
	})
}

func (v volumes) Files(_ context.Context, _ engi.Viewer, id string) (f engi.VolumeFiles, err error) {
	err = v.act(func() error {
		o := v.volumes[engi.VolumeID(id)]
		if o == nil {
			return engi.Errorf(engi.NotFound, "there is no such volume")
		}
		f = volumeFiles{volume: o}
		return nil
	})
	return f, err
}

type volumeFiles struct {
	engi.VolumeFiles
	volume *volume
}

func (volumeFiles) Close() error { return nil }

// ---- workspaces

type workspaces struct{ *fixture }

func (w workspaces) Save(_ context.Context, k backup.Key, files engi.VolumeFiles, _ int64) (engi.WorkspaceCopy, error) {
	return engi.WorkspaceCopy{}, w.act(func() error {
		if w.noStore {
			w.refused++
			return engi.Errorf(engi.Unavailable, "the store is down")
		}
		w.copies[k] = maps.Clone(files.(volumeFiles).volume.data)
		return nil
	})
}

func (w workspaces) Restore(_ context.Context, k backup.Key, files engi.VolumeFiles) (engi.WorkspaceCopy, error) {
	return engi.WorkspaceCopy{}, w.act(func() error {
		data, ok := w.copies[k]
		if !ok {
			return engi.Errorf(engi.NotFound, "there is no copy")
		}
		maps.Copy(files.(volumeFiles).volume.data, data)
		return nil
	})
}

func (w workspaces) Remove(_ context.Context, k backup.Key) error {
	return w.act(func() error { delete(w.copies, k); return nil })
}

// shared has one workspace, lab.
type shared struct{ *fixture }

func (w shared) Get(_ context.Context, viewer engi.Viewer, idOrName string) (x engi.Workspace, err error) {
	err = w.act(func() error {
		x = w.lab
		if named := idOrName == x.Name && viewer.Sees(x.Owner); x.ID == "" || !named && idOrName != string(x.ID) {
			return engi.Errorf(engi.NotFound, "there is no such workspace")
		}
		return x.Allow(viewer, engi.RoleViewer)
	})
	return x, err
}

func (w shared) Start(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Workspace, error) {
	unlock, err := w.starting.Acquire(ctx, "workspace")
	if err != nil {
		return engi.Workspace{}, err
	}
	defer unlock()
	x, err := w.Get(ctx, viewer, idOrName)
	if err != nil {
		return x, err
	}
	if b, err := liveSandboxes(w).Get(ctx, engi.Everyone, x.Sandbox); err != nil || b.State == engi.Stopped {
		b, err := liveSandboxes(w).Create(ctx, engi.SandboxSpec{
			Owner: x.Owner, Template: x.Template, Size: engi.Size{Memory: 1 << 29}, Network: engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"c.example"}},
			Lifetime: engi.Lifetime{Idle: 10 * time.Minute, OnTimeout: engi.EndHibernate, AutoResume: true},
		})
		if err != nil {
			return x, err
		}
		x.Sandbox = b.ID
	}
	x.State = engi.WorkspaceRunning
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lab = x
	return x, nil
}

// ---- packages

type packages struct{ *fixture }

func (p packages) Template(context.Context) (string, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.template, "/opt/deps/deno.json", p.why
}

func (packages) Status() engi.Dependencies { return engi.Dependencies{State: engi.DependenciesReady} }

// ---- the guest

// A guest runs programs of tests instead of Deno: lines of "set KEY
// VALUE", "get KEY", "print TEXT", "sleep DURATION", "throw", "exit", and
// "die", which ends the sandbox as well.
type guest struct {
	w  *fixture
	id engi.SandboxID
}

func (g guest) with(f func(*liveSandbox) error) error {
	return g.w.act(func() error {
		b := g.w.sandboxes[g.id]
		if b == nil || b.State != engi.Running {
			return engi.Errorf(engi.Unavailable, "sandbox %s is gone", g.id)
		}
		return f(b)
	})
}

func (g guest) Stat(_ context.Context, path string) (engi.FileInfo, error) {
	return engi.FileInfo{Path: path}, g.with(func(b *liveSandbox) error {
		if path != WorkDir && !b.files[path] {
			return engi.Errorf(engi.NotFound, "no %s", path)
		}
		return nil
	})
}

func (g guest) Write(_ context.Context, path string, r io.Reader, _ engi.WriteOptions) error {
	_, _ = io.Copy(io.Discard, r)
	return g.with(func(b *liveSandbox) error { b.files[path] = true; return nil })
}

func (g guest) Start(_ context.Context, cmd engi.Command) (engi.Process, error) {
	time.Sleep(20 * time.Millisecond)
	if cmd.Args[0] == "git" {
		return nil, engi.Errorf(engi.NotFound, "no git")
	}
	p := &process{guest: g, tag: cmd.Tag, env: cmd.Env, killed: make(chan struct{}), ready: make(chan struct{}), done: make(chan struct{})}
	return p, g.with(func(b *liveSandbox) error {
		for _, a := range cmd.Args {
			if strings.HasSuffix(a, ".mjs") && !b.files[a] {
				return engi.Errorf(engi.Invalid, "there is no %s", a)
			}
		}
		b.processes = append(b.processes, p)
		p.id = fmt.Sprint(len(b.processes))
		return nil
	})
}

func (g guest) Attach(_ context.Context, id string) (found engi.Process, err error) {
	err = g.with(func(b *liveSandbox) error {
		for _, p := range b.processes {
			if p.id == id {
				found = p
				return nil
			}
		}
		return engi.Errorf(engi.NotFound, "there is no such process")
	})
	return found, err
}

func (g guest) Processes(context.Context) (all []engi.ProcessInfo, err error) {
	err = g.with(func(b *liveSandbox) error {
		for _, p := range b.processes {
			all = append(all, engi.ProcessInfo{ID: p.id, Tag: p.tag, Ended: p.ended.Load()})
		}
		return nil
	})
	return all, err
}
func (g guest) Open(context.Context, string) (io.ReadCloser, error)        { panic("unused") }
func (g guest) List(context.Context, string, int) ([]engi.FileInfo, error) { panic("unused") }
func (g guest) MakeDir(context.Context, string) error                      { panic("unused") }
func (g guest) Move(context.Context, string, string) error                 { panic("unused") }
func (g guest) Remove(context.Context, string) error                       { return nil }
func (g guest) Watch(context.Context, string, bool) iter.Seq2[engi.FileChange, error] {
	panic("unused")
}
func (g guest) Pack(context.Context, string) (io.ReadCloser, error) { panic("unused") }
func (g guest) Unpack(context.Context, string, io.Reader) error     { panic("unused") }
func (g guest) Dial(context.Context, int) (net.Conn, error)         { panic("unused") }

type process struct {
	id     string
	tag    string
	ended  atomic.Bool
	guest  guest
	env    map[string]string
	once   sync.Once
	killed chan struct{}
	ready  chan struct{} // closed when the input has arrived
	done   chan struct{} // closed when the output has ended
	input  struct{ Code, Mark string }
	output []engi.Chunk
	exit   engi.Exit
	lost   bool
}

func (p *process) ID() string { return p.id }
func (p *process) PID() int   { return 1 }

func (p *process) Input(_ context.Context, data []byte) error {
	if err := p.guest.with(func(*liveSandbox) error { return nil }); err != nil {
		return err
	}
	if err := json.Unmarshal(bytes.TrimSpace(data), &p.input); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	close(p.ready)
	return nil
}

func (p *process) CloseInput(context.Context) error { return nil }

func (p *process) Output(ctx context.Context, _ int64) iter.Seq2[engi.Chunk, error] {
	return func(yield func(engi.Chunk, error) bool) {
		p.run(ctx)
		for _, c := range p.output {
			if !yield(c, nil) {
				return
			}
		}
		if p.lost {
			yield(engi.Chunk{}, engi.Errorf(engi.Unavailable, "sandbox %s is gone", p.guest.id))
		}
	}
}

// run is the program.
func (p *process) run(ctx context.Context) {
	p.guest.w.mu.Lock()
	p.guest.w.running++
	p.guest.w.mu.Unlock()
	defer func() {
		p.ended.Store(true)
		p.guest.w.mu.Lock()
		p.guest.w.running--
		p.guest.w.mu.Unlock()
	}()
	var value any
	print := func(text string) {
		p.output = append(p.output, engi.Chunk{Stream: engi.Stdout, Data: []byte(text)})
	}
	for line := range strings.Lines(p.input.Code) {
		words := strings.Fields(line)
		var failed string
		err := p.guest.with(func(b *liveSandbox) error {
			switch words[0] {
			case "set":
				b.data[words[1]] = words[2]
			case "get":
				value = b.data[words[1]]
			case "env":
				value = p.env[words[1]]
			case "print":
				print(strings.Join(words[1:], " ") + "\n")
			case "throw":
				failed = "boom"
			case "exit":
				p.exit = engi.Exit{Code: 3, Cause: engi.CauseExited}
			case "die":
				p.guest.w.drop(p.guest.id)
			case "burst":
				p.guest.w.drop(p.guest.id)
				p.guest.w.dying = 3
			}
			return nil
		})
		if words[0] == "sleep" {
			d, _ := time.ParseDuration(words[1])
			select {
			case <-time.After(d):
			case <-p.killed:
				p.exit = engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseExited}
				return
			case <-ctx.Done():
				p.lost = true
				return
			}
		}
		switch {
		case err != nil || words[0] == "die" || words[0] == "burst":
			p.lost = true
			return
		case p.exit.Code != 0:
			return
		case failed != "":
			print(fmt.Sprintf("\x1e%s{\"ok\":false,\"error\":{\"name\":\"Error\",\"message\":%q,\"line\":1,\"column\":2}}\n", p.input.Mark, failed))
			return
		}
	}
	text, _ := json.Marshal(value)
	print(fmt.Sprintf("\x1e%s{\"ok\":true,\"value\":%s}\n", p.input.Mark, text))
}

func (p *process) Signal(context.Context, string) error {
	p.ended.Store(true)
	p.once.Do(func() { close(p.killed) })
	return nil
}
func (p *process) Resize(context.Context, engi.TerminalSize) error { return nil }
func (p *process) Wait(context.Context) (engi.Exit, error)         { return p.exit, nil }
