package apitest

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// Sessions is a fake. Code prints itself, except "throw", which fails, "lost",
// whose run is lost, and "wait", which runs until it is cancelled. It is safe
// for concurrent use.
type Sessions struct {
	mu    sync.Mutex
	all   []engi.Session
	specs map[string]repeated // by owner and Idempotency-Key
	Last  engi.CodeSpec       // most recent
}

// repeated is a request with an Idempotency-Key and what it created.
type repeated struct {
	spec    engi.SessionSpec
	session engi.Session
}

var _ engi.Sessions = (*Sessions)(nil)

// Create implements engi.Sessions.
func (s *Sessions) Create(_ context.Context, spec engi.SessionSpec) (engi.Session, error) {
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
	now := time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
	x := engi.Session{
		ID: engi.NewSessionID(), Owner: spec.Owner, Name: spec.Name, State: engi.SessionIdle, Mode: engi.SessionLazy, Persistence: engi.PersistSession,
		Template: spec.Template, Size: spec.Size, Capacity: spec.Capacity, TTL: 30 * time.Minute, Dormancy: 5 * time.Minute, Network: spec.Network,
		Metadata: spec.Metadata, Env: spec.Env, Created: now, Used: now, Expires: now.Add(30 * time.Minute),
	}
	s.all = append(s.all, x)
	if s.specs == nil {
		s.specs = map[string]repeated{}
	}
	s.specs[key] = repeated{spec, x}
	return x, nil
}

func (s *Sessions) find(owner engi.Owner, idOrName string) (*engi.Session, error) {
	for i, x := range s.all {
		if (string(x.ID) == idOrName || x.Name == idOrName && idOrName != "") && (owner == "" || x.Owner == owner) {
			return &s.all[i], nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "there is no such session")
}

// Get implements engi.Sessions.
func (s *Sessions) Get(_ context.Context, owner engi.Owner, idOrName string) (engi.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.find(owner, idOrName)
	if err != nil {
		return engi.Session{}, err
	}
	return *x, nil
}

// List implements engi.Sessions.
func (s *Sessions) List(_ context.Context, owner engi.Owner) (list []engi.Session, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		if owner == "" || x.Owner == owner {
			list = append(list, x)
		}
	}
	return list, nil
}

// Enter implements engi.Sessions.
func (s *Sessions) Enter(context.Context, engi.Owner, string) (engi.Guest, func(), error) {
	return nil, nil, engi.Errorf(engi.Unsupported, "the fake has no guest")
}

// RunCode implements engi.Sessions.
func (s *Sessions) RunCode(ctx context.Context, owner engi.Owner, idOrName string, spec engi.CodeSpec, out func(engi.Chunk)) (engi.CodeResult, error) {
	s.mu.Lock()
	x, err := s.find(owner, idOrName)
	if err != nil {
		s.mu.Unlock()
		return engi.CodeResult{}, err
	}
	x.Sandbox, x.State, s.Last = engi.NewSandboxID(), engi.SessionRunning, spec
	r := engi.CodeResult{OK: true, Stdout: spec.Code, Duration: time.Millisecond, Sandbox: x.Sandbox}
	s.mu.Unlock()
	if out != nil {
		// In two pieces, which may split a character.
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
func (s *Sessions) Release(_ context.Context, owner engi.Owner, idOrName string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.find(owner, idOrName)
	if err == nil {
		x.State, x.Sandbox = engi.SessionIdle, ""
	}
	return err
}

// Terminate implements engi.Sessions.
func (s *Sessions) Terminate(_ context.Context, owner engi.Owner, idOrName string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.find(owner, idOrName)
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
