package rest

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

const sessions = "/v1/sessions"

type aSession struct {
	ID string `path:"id" maxLength:"128" doc:"ID or name of the session"`
}

type postSession struct {
	Idempotency string `header:"Idempotency-Key" maxLength:"255" doc:"a repeated key returns the first session instead of making another"`
}

func (s *server) serveSessions() {
	handle(s, s.opCreateSession(), s.createSession)
	handle(s, s.opListSessions(), s.listSessions)
	handle(s, s.opGetSession(), s.getSession)
	handle(s, s.opTerminateSession(), s.terminateSession)
	handle(s, s.opRunCode(), s.runCode)
	handle(s, s.opReleaseSession(), s.releaseSession)
	handle(s, s.opDependencies(), s.getDependencies)
}

var errNoSessions = engi.Errorf(engi.Unsupported, "this node has no sessions").
	WithRemedy("give its configuration a section [sandbox]; for code that needs none, use /v1/executions or /v1/scripts")

func (s *server) createSession(w http.ResponseWriter, r *http.Request, in *postSession) error {
	if s.sessions == nil {
		return errNoSessions
	}
	q, err := decodeIfAny[v1.SessionRequest](s, w, r)
	if err != nil {
		return err
	}
	var c checker
	c.text("template", q.Template)
	c.oneOf("mode", q.Mode, []string{string(engi.SessionLazy), string(engi.SessionWarm)})
	c.oneOf("persistence", q.Persistence, []string{string(engi.PersistNone), string(engi.PersistSession), string(engi.PersistSnapshot)})
	c.natural("vcpus", q.VCPUs)
	c.natural("processes", float64(q.Processes))
	c.metadata(q.Metadata)
	c.env(q.Env)
	if text := checkIdempotency(in.Idempotency); text != "" {
		c.addf("header.Idempotency-Key", "%s", text)
	}
	spec := engi.SessionSpec{
		Owner: callOf(r.Context()).key.Owner, Name: q.Name, Template: q.Template, Mode: engi.SessionMode(q.Mode), Persistence: engi.Persistence(q.Persistence),
		Size:     engi.Size{VCPUs: q.VCPUs, Memory: int64(q.Memory), Disk: int64(q.Disk), Processes: q.Processes},
		Capacity: int64(q.Capacity), TTL: q.TTL.Std(), Dormancy: q.Dormancy.Std(), Metadata: q.Metadata, Env: q.Env, Idempotency: in.Idempotency,
	}
	if q.Network != nil {
		spec.Network = networkOf(&c, "network", q.Network)
	}
	if err := httpio.Invalid(c.faults); err != nil {
		return err
	}
	x, err := s.sessions.Create(r.Context(), spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", sessions+"/"+string(x.ID))
	return s.reply(w, http.StatusCreated, sessionOf(x))
}

func (s *server) listSessions(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	if s.sessions == nil {
		return errNoSessions
	}
	xs, err := s.sessions.List(r.Context(), callOf(r.Context()).viewer())
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, sessionOf))
}

func (s *server) getSession(w http.ResponseWriter, r *http.Request, in *aSession) error {
	if s.sessions == nil {
		return errNoSessions
	}
	x, err := s.sessions.Get(r.Context(), callOf(r.Context()).viewer(), in.ID)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, sessionOf(x))
}

func (s *server) terminateSession(w http.ResponseWriter, r *http.Request, in *aSession) error {
	if s.sessions == nil {
		return errNoSessions
	}
	if err := s.sessions.Terminate(r.Context(), callOf(r.Context()).viewer(), in.ID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) releaseSession(w http.ResponseWriter, r *http.Request, in *aSession) error {
	if s.sessions == nil {
		return errNoSessions
	}
	viewer := callOf(r.Context()).viewer()
	if err := s.sessions.Release(r.Context(), viewer, in.ID); err != nil {
		return err
	}
	x, err := s.sessions.Get(r.Context(), viewer, in.ID)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, sessionOf(x))
}

func (s *server) runCode(w http.ResponseWriter, r *http.Request, in *aSession) error {
	if s.sessions == nil {
		return errNoSessions
	}
	form, err := httpio.Negotiate(r, httpio.JSON, httpio.NDJSON, httpio.SSE)
	if err != nil {
		return err
	}
	q, err := decode[v1.CodeRequest](s, w, r)
	if err != nil {
		return err
	}
	var c checker
	if q.Code == "" {
		c.addf("code", "it is missing")
	}
	c.oneOf("language", q.Language, []string{string(engi.TypeScript), string(engi.JavaScript)})
	c.env(q.Env)
	if err := httpio.Invalid(c.faults); err != nil {
		return err
	}
	viewer := callOf(r.Context()).viewer()
	if _, err := s.sessions.Get(r.Context(), viewer, in.ID); err != nil {
		return err // before a stream begins
	}
	ctx, cancel := s.waiting(r)
	defer cancel()
	spec := engi.CodeSpec{Code: q.Code, Language: engi.Language(q.Language), Timeout: q.Timeout.Std(), Env: q.Env}
	if form != httpio.JSON {
		return s.streamCode(ctx, cancel, w, r, form, viewer, in.ID, spec)
	}
	x, err := s.sessions.RunCode(ctx, viewer, in.ID, spec, nil)
	if err != nil {
		return whole(ctx, err)
	}
	return s.reply(w, http.StatusOK, codeOf(x))
}

// A codeStep is output, or the result.
type codeStep struct {
	chunk  engi.Chunk
	result *engi.CodeResult
}

// codeSteps yields what code prints while it runs, and its result.
func (s *server) codeSteps(ctx context.Context, cancel context.CancelFunc, viewer engi.Owner, id string, spec engi.CodeSpec) iter.Seq2[codeStep, error] {
	return func(yield func(codeStep, error) bool) {
		left := false
		x, err := s.sessions.RunCode(ctx, viewer, id, spec, func(c engi.Chunk) {
			if !left && !yield(codeStep{chunk: c}, nil) {
				left = true
				cancel()
			}
		})
		if !left {
			yield(codeStep{result: &x}, err)
		}
	}
}

// streamCode answers with events. A caller that leaves ends the run.
func (s *server) streamCode(ctx context.Context, cancel context.CancelFunc, w http.ResponseWriter, r *http.Request, f httpio.Format, viewer engi.Owner, id string, spec engi.CodeSpec) error {
	source := httpio.Pull(s.codeSteps(ctx, cancel, viewer, id, spec))
	defer source.Stop()
	defer cancel()
	out := httpio.NewEventWriter(w, f)
	if err := out.Begin(); err != nil {
		return nil // the caller has left
	}
	beat := time.NewTicker(s.beat)
	defer beat.Stop()
	seam := httpio.NewJoiner(0)
	send := func(e v1.CodeEvent) bool {
		if out.Send(e.Type, "", e) != nil {
			s.gone(r)
			return false
		}
		return true
	}
	pieces := func(all ...httpio.Chunk) bool {
		for _, p := range all {
			if !send(v1.CodeEvent{Type: p.Stream, Offset: p.Offset, Data: p.Text, DataBase64: p.Bytes}) {
				return false
			}
		}
		return true
	}
	for {
		select {
		case <-beat.C:
			if out.Beat(v1.CodeEvent{Type: v1.EventHeartbeat, Offset: seam.Resume()}, s.beat) != nil {
				s.gone(r)
				return nil
			}
		case e, ok := <-source.Events:
			if !ok {
				return nil
			}
			switch {
			case e.Err != nil:
				if s.gone(r) {
					return nil
				}
				err := whole(ctx, e.Err)
				s.logInternal(r, err)
				send(v1.CodeEvent{Type: v1.EventError, Offset: seam.Resume(), Error: new(httpio.Describe(err, callOf(r.Context()).id))})
				return nil
			case e.Event.result != nil:
				if pieces(seam.Flush()...) {
					send(v1.CodeEvent{Type: v1.EventResult, Offset: seam.Resume(), Result: new(codeOf(*e.Event.result))})
				}
				return nil
			}
			for offset, data := e.Event.chunk.Offset, e.Event.chunk.Data; len(data) > 0; {
				n := min(len(data), httpio.ChunkSize)
				if piece, ok := seam.Add(string(e.Event.chunk.Stream), offset, data[:n]); ok && !pieces(piece) {
					return nil
				}
				offset, data = offset+int64(n), data[n:]
			}
			source.Release()
		}
	}
}

func (s *server) getDependencies(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	if s.sessions == nil {
		return errNoSessions
	}
	x, err := s.sessions.Dependencies(r.Context())
	if err != nil {
		return err
	}
	out := v1.Dependencies{
		State: string(x.State), Packages: []v1.Dependency{}, Wanted: x.Wanted, Template: x.Template, Digest: x.Digest, BuiltAt: moment(x.Built),
		Step: x.Step, Log: list(x.Log), Error: x.Error, Remedy: x.Remedy,
	}
	for _, d := range x.Packages {
		out.Packages = append(out.Packages, v1.Dependency{Package: d.Package, Version: d.Version, Docs: d.Docs, SecretEnv: d.Secret, Hosts: d.Hosts})
	}
	return s.reply(w, http.StatusOK, out)
}

func sessionOf(x engi.Session) v1.Session {
	out := v1.Session{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, State: string(x.State), Mode: string(x.Mode), Persistence: string(x.Persistence),
		Template: x.Template, Size: sizeOf(x.Size), VolumeID: string(x.Volume), SandboxID: string(x.Sandbox), Capacity: v1.Bytes(x.Capacity),
		TTL: v1.Duration(x.TTL), Dormancy: v1.Duration(x.Dormancy), Metadata: x.Metadata, CreatedAt: x.Created, UsedAt: x.Used, ExpiresAt: x.Expires,
	}
	if !emptyNetwork(x.Network) {
		out.Network = new(policyOf(x.Network))
	}
	return out
}

func codeOf(x engi.CodeResult) v1.CodeResult {
	out := v1.CodeResult{
		Success: x.OK, Result: x.Value, Stdout: x.Stdout, Stderr: x.Stderr, Truncated: x.Truncated, Warnings: x.Warnings,
		Duration: v1.Duration(x.Duration), Booted: v1.Duration(x.BootTime), Queued: v1.Duration(x.QueueTime.Truncate(time.Millisecond)), SandboxID: string(x.Sandbox),
	}
	if e := x.Error; e != nil {
		out.Error = e.Error()
		out.Detail = &v1.CodeError{Cause: string(e.Cause), Name: e.Name, Message: e.Message, Line: e.Line, Column: e.Column, Stack: e.Stack}
	}
	return out
}

func (s *server) opCreateSession() huma.Operation {
	op := s.operation(http.MethodPost, sessions, "create-session", "sessions", "Create a session",
		"A session gets a sandbox when code runs in it, loses it after a while without use, and keeps what is below /workspace until nobody used it for its time to live.", http.StatusCreated)
	mayAccept[v1.SessionRequest](s, &op)
	answers[v1.Session](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	header(&op, http.StatusCreated, "Location", "address of the session")
	return op
}

func (s *server) opListSessions() huma.Operation {
	op := s.operation(http.MethodGet, sessions, "list-sessions", "sessions", "List sessions", "The newest come first; those that are over are left out.", http.StatusOK)
	answers[v1.List[v1.Session]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetSession() huma.Operation {
	op := s.operation(http.MethodGet, sessions+"/{id}", "get-session", "sessions", "Get a session", "One that is over is remembered for a day.", http.StatusOK)
	answers[v1.Session](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opTerminateSession() huma.Operation {
	return s.operation(http.MethodDelete, sessions+"/{id}", "terminate-session", "sessions", "Terminate a session",
		"Its sandbox and its volume go. Terminating it twice is no error.", http.StatusNoContent)
}

func (s *server) opReleaseSession() huma.Operation {
	op := s.operation(http.MethodPost, sessions+"/{id}/release", "release-session", "sessions", "Let a session's sandbox go",
		"What dormancy does, now: the volume stays, and the next use gets a new sandbox. With persistence snapshot the sandbox is written to disk.", http.StatusOK)
	answers[v1.Session](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opRunCode() huma.Operation {
	op := s.operation(http.MethodPost, sessions+"/{id}/run_code", "run-code", "sessions", "Run code in a session",
		"The code is a module of TypeScript and runs under Deno in a process of its own; it may import the node's packages and modules below /workspace. "+
			"One run at a time: others wait for their turn. Code that fails is an answer with success false. "+
			"As NDJSON or SSE what it prints comes while it runs; a caller that leaves ends the run.", http.StatusOK)
	accepts[v1.CodeRequest](s, &op, map[string]*huma.Example{
		"value":   {Summary: "a value", Value: json.RawMessage(`{"code": "const n: number = 6; n * 7"}`)},
		"package": {Summary: "a package", Value: json.RawMessage(`{"code": "import { LinearClient } from \"@linear/sdk\";\nconst linear = new LinearClient({ apiKey: Deno.env.get(\"LINEAR_API_KEY\") });\n(await linear.issues()).nodes.map((i) => i.title)", "description": "titles of all issues"}`)},
	})
	answers[v1.CodeResult](s, &op, http.StatusOK, string(httpio.JSON), nil)
	answers[v1.CodeEvent](s, &op, http.StatusOK, string(httpio.NDJSON), nil)
	answers[v1.CodeEvent](s, &op, http.StatusOK, string(httpio.SSE), nil)
	return op
}

func (s *server) opDependencies() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/dependencies", "get-dependencies", "sessions", "See what code in sessions may import",
		"The packages of the node's configuration, and how their installation is.", http.StatusOK)
	answers[v1.Dependencies](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}
