package apitest

import (
	"cmp"
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Sessions is a fake. Code prints itself, except "throw", which fails, "lost",
// whose run is lost, and "wait", which runs until it is cancelled. It is safe
// for concurrent use.
type Sessions struct {
	mu    sync.Mutex
	all   []engi.Session
	specs map[string]repeated // repeatable requests, by owner and Idempotency-Key
	Last  engi.CodeSpec       // most recent spec of RunCode

	Sandboxes  engi.Sandboxes // sandboxes that Enter creates and enters
	Workspaces *Workspaces    // workspaces in which sessions may work, in a sandbox of their own here; nil for none
}

// repeated is a request with an Idempotency-Key and the session that it created.
type repeated struct {
	spec    engi.SessionSpec
	session engi.Session
}

var (
	_ engi.Sessions     = (*Sessions)(nil)
	_ engi.SessionFiles = (*Sessions)(nil)

	_ engi.SessionLifecycle = (*Sessions)(nil)
)

// Create implements engi.Sessions.
func (s *Sessions) Create(ctx context.Context, spec engi.SessionSpec) (engi.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := string(spec.Owner) + "\x00" + spec.Idempotency
	if first, ok := s.specs[key]; ok && spec.Idempotency != "" {
		if !reflect.DeepEqual(first.spec, spec) {
			return engi.Session{}, errRepeated
		}
		return first.session, nil
	}
	for _, x := range s.all {
		if spec.Name != "" && x.Name == spec.Name && x.Owner == spec.Owner {
			return engi.Session{}, engi.Errorf(engi.Conflict, "there is one of that name")
		}
	}
	var within engi.Workspace
	if spec.Workspace != "" {
		if s.Workspaces == nil {
			return engi.Session{}, engi.Errorf(engi.Unsupported, "sessions do not work in workspaces here")
		}
		var err error
		if within, err = s.Workspaces.Get(ctx, spec.Owner.Viewer(), spec.Workspace); err != nil {
			return engi.Session{}, err
		}
	}
	now := time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
	x := engi.Session{
		ID: engi.NewSessionID(), Owner: spec.Owner, Name: spec.Name, State: engi.SessionIdle, Mode: engi.SessionLazy, Persistence: cmp.Or(spec.Persistence, engi.PersistSession),
		Template: spec.Template, Workspace: within.ID, Size: spec.Size, Capacity: spec.Capacity, TTL: 30 * time.Minute, Dormancy: 5 * time.Minute, Network: spec.Network, MaxDuration: spec.MaxDuration,
		Metadata: spec.Metadata, Env: spec.Env, Git: spec.Git, Created: now, Used: now, Expires: now.Add(30 * time.Minute),
	}
	s.all = append(s.all, x)
	if s.specs == nil {
		s.specs = map[string]repeated{}
	}
	s.specs[key] = repeated{spec, x}
	return x, nil
}

func (s *Sessions) find(viewer engi.Viewer, idOrName string) (*engi.Session, error) {
	for i, x := range s.all {
		if (string(x.ID) == idOrName || x.Name == idOrName && idOrName != "") && viewer.Sees(x.Owner) {
			return &s.all[i], nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "there is no session %.80q", idOrName)
}

// Get implements engi.Sessions.
func (s *Sessions) Get(_ context.Context, viewer engi.Viewer, idOrName string) (engi.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.find(viewer, idOrName)
	if err != nil {
		return engi.Session{}, err
	}
	return *x, nil
}

// List implements engi.Sessions.
func (s *Sessions) List(_ context.Context, viewer engi.Viewer, p engi.Paging) (list []engi.Session, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		if viewer.Sees(x.Owner) {
			list = append(list, x)
		}
	}
	return engi.Cut(p, list, func(x engi.Session) string { return string(x.ID) })
}

// PushGit implements engi.SessionFiles.
func (s *Sessions) PushGit(_ context.Context, viewer engi.Viewer, idOrName string, p engi.GitPush) (engi.GitPushed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.find(viewer, idOrName)
	switch {
	case err != nil:
		return engi.GitPushed{}, err
	case x.Git == nil:
		return engi.GitPushed{}, engi.Errorf(engi.Conflict, "the session has no repository")
	case x.Git.Push == nil:
		return engi.GitPushed{}, engi.Errorf(engi.Denied, "the session may not push")
	}
	branch := cmp.Or(p.Branch, x.Git.Push.Branch, "engi/"+x.Name)
	return engi.GitPushed{Branch: branch, Commit: strings.Repeat("a1", 20)}, nil
}

// SaveWorkspace implements engi.SessionFiles.
func (s *Sessions) SaveWorkspace(_ context.Context, viewer engi.Viewer, idOrName string) (engi.WorkspaceCopy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.find(viewer, idOrName)
	switch {
	case err != nil:
		return engi.WorkspaceCopy{}, err
	case x.Persistence != engi.PersistWorkspace:
		return engi.WorkspaceCopy{}, engi.Errorf(engi.Conflict, "a session of persistence %s has no copy", x.Persistence)
	}
	x.Saved = x.Created
	return engi.WorkspaceCopy{Files: 3, Bytes: 2048, Uploaded: 1024, Skipped: 1}, nil
}

// Enter implements engi.Sessions.
func (s *Sessions) Enter(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Guest, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.find(viewer, idOrName)
	if err != nil {
		return nil, nil, err
	}
	if err := s.start(ctx, x); err != nil {
		return nil, nil, err
	}
	return s.Sandboxes.Enter(ctx, engi.Everyone, x.Sandbox)
}

// start creates the session's sandbox if it has none. The caller holds s.mu.
func (s *Sessions) start(ctx context.Context, x *engi.Session) error {
	if x.Sandbox != "" {
		return nil
	}
	sandbox, err := s.Sandboxes.Create(ctx, engi.SandboxSpec{Owner: x.Owner})
	if err == nil {
		x.Sandbox, x.State = sandbox.ID, engi.SessionRunning
	}
	return err
}

// RunCode implements engi.Sessions.
func (s *Sessions) RunCode(ctx context.Context, viewer engi.Viewer, idOrName string, spec engi.CodeSpec, out func(engi.Chunk)) (engi.CodeResult, error) {
	s.mu.Lock()
	x, err := s.find(viewer, idOrName)
	if err != nil {
		s.mu.Unlock()
		return engi.CodeResult{}, err
	}
	if s.Last = spec; s.Sandboxes == nil {
		x.Sandbox = engi.NewSandboxID()
	} else if err := s.start(ctx, x); err != nil {
		s.mu.Unlock()
		return engi.CodeResult{}, err
	}
	x.State = engi.SessionRunning
	r := engi.CodeResult{OK: true, Stdout: spec.Code, Duration: time.Millisecond, Sandbox: x.Sandbox}
	s.mu.Unlock()
	if out != nil {
		// Send the code in two pieces, which may split a character.
		n := len(spec.Code) / 2
		out(engi.Chunk{Stream: engi.Stdout, Data: []byte(spec.Code[:n])})
		out(engi.Chunk{Stream: engi.Stdout, Offset: int64(n), Data: []byte(spec.Code[n:])})
	}
	switch {
	case strings.HasPrefix(spec.Code, "throw"):
		r.OK, r.Error = false, &engi.CodeError{Cause: engi.CauseExited, Name: "TypeError", Message: "m", Line: 2, Column: 3}
	case spec.Code == "lost":
		return engi.CodeResult{}, engi.Errorf(engi.Unavailable, "the sandbox could not be started")
	case spec.Code == "wait":
		<-ctx.Done()
		return engi.CodeResult{}, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	default:
		r.Value, _ = json.Marshal(len(spec.Code))
	}
	return r, nil
}

// Release implements engi.Sessions.
func (s *Sessions) Release(_ context.Context, viewer engi.Viewer, idOrName string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.find(viewer, idOrName)
	if err == nil {
		x.State, x.Sandbox = engi.SessionIdle, ""
	}
	return err
}

// Terminate implements engi.Sessions.
func (s *Sessions) Terminate(_ context.Context, viewer engi.Viewer, idOrName string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.find(viewer, idOrName)
	if err == nil {
		x.State = engi.SessionTerminated
	}
	return err
}

// Dependencies implements engi.Sessions.
func (s *Sessions) Dependencies(context.Context) (engi.Dependencies, error) {
	return engi.Dependencies{
		State: engi.DependenciesReady, Wanted: "deps-1", Template: "deps-1",
		Packages: []engi.Dependency{{Package: "@acme/sdk", Version: "1.2.0", Secret: "ACME_KEY", Hosts: []string{"api.acme.example"}}},
	}, nil
}

// Attach implements engi.SessionLifecycle.
func (s *Sessions) Attach(_ context.Context, viewer engi.Viewer, idOrName, client string) (engi.Session, error) {
	return s.become(viewer, idOrName, engi.SessionRunning, func(x *engi.Session) {
		x.Attached = append(x.Attached, engi.SessionClient{Name: client, Since: x.Created})
	})
}

// Detach implements engi.SessionLifecycle.
func (s *Sessions) Detach(_ context.Context, viewer engi.Viewer, idOrName, client string) (engi.Session, error) {
	return s.become(viewer, idOrName, "", func(x *engi.Session) {
		x.Attached = slices.DeleteFunc(x.Attached, func(c engi.SessionClient) bool { return c.Name == client })
	})
}

// Suspend implements engi.SessionLifecycle.
func (s *Sessions) Suspend(_ context.Context, viewer engi.Viewer, idOrName string) (engi.Session, error) {
	return s.become(viewer, idOrName, engi.SessionSuspended, nil)
}

// Hibernate implements engi.SessionLifecycle.
func (s *Sessions) Hibernate(_ context.Context, viewer engi.Viewer, idOrName string) (engi.Session, error) {
	return s.become(viewer, idOrName, engi.SessionHibernated, nil)
}

// Resume implements engi.SessionLifecycle.
func (s *Sessions) Resume(_ context.Context, viewer engi.Viewer, idOrName string) (engi.Session, error) {
	return s.become(viewer, idOrName, engi.SessionRunning, nil)
}

func (s *Sessions) become(viewer engi.Viewer, idOrName string, to engi.SessionState, then func(*engi.Session)) (engi.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.find(viewer, idOrName)
	if err != nil {
		return engi.Session{}, err
	}
	x.State = cmp.Or(to, x.State)
	if then != nil {
		then(x)
	}
	return *x, nil
}
