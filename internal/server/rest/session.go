package rest

import (
	"cmp"
	"context"
	"iter"
	"net/http"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const sessionPath = "/v1/sessions"

type sessions struct {
	engi.Sessions
	files engi.SessionFiles
	cycle engi.SessionLifecycle
}

// defaultClient is the name of a client that attaches without a name.
const defaultClient = "default"

type aSession struct {
	ID string `path:"id" maxLength:"128" doc:"ID or name of the session"`
}

// Sessions returns the routes of sessions, in which code runs; service may be nil.
func Sessions(service engi.Sessions) Resource {
	files, _ := service.(engi.SessionFiles)
	cycle, _ := service.(engi.SessionLifecycle)
	s := &sessions{service, files, cycle}
	absent := absentUnless(service != nil, "this node has no sessions", "use /v1/executions, /v1/scripts or /v1/sandboxes")
	look, change := reads(engi.ScopeSandboxes), writes(engi.ScopeSandboxes)
	const about = "long-lived contexts that code runs in, with packages and files that outlive sandboxes"
	return Resource{tag: "sessions", about: about, missing: absent, routes: []Route{
		send(Route{
			Pattern: "POST " + sessionPath, ID: "create-session", Summary: "Create a session", Access: change, Objects: Owned,
			Text:    "A session gets a sandbox when code runs in it, and releases the sandbox after a while without use. Files below /workspace are kept until the session has been unused for its time to live.",
			Creates: "a repeated key returns the first session instead of creating another",
			Status:  http.StatusCreated, Location: "address of the session", Optional: true,
		}, s.create),
		paged(Route{Pattern: "GET " + sessionPath, ID: "list-sessions", Summary: "List sessions", Text: "The newest come first. Sessions that have ended are not listed.", Access: look},
			paging(service, engi.Sessions.List), sessionOf, func(x v1.Session) string { return x.ID }),
		fetch(Route{Pattern: "GET " + sessionPath + "/{id}", ID: "get-session", Summary: "Get a session", Text: "Returns sessions that have ended for one more day.", Access: look},
			func(c *call, in *aSession) (v1.Session, error) { return to(sessionOf)(s.Get(c, c.viewer(), in.ID)) }),
		act(Route{
			Pattern: "DELETE " + sessionPath + "/{id}", ID: "terminate-session", Summary: "Terminate a session", Access: change,
			Text: "Destroys the session's sandbox and volume. Terminating a session twice is no error.",
		}, func(c *call, in *aSession, _ none) error { return s.Terminate(c, c.viewer(), in.ID) }),
		raw(Route{
			Pattern: "POST " + sessionPath + "/{id}/run_code", ID: "run-code", Summary: "Run code in a session", Access: change,
			Text: "The code is a TypeScript module and runs under Deno in its own process; it can import the node's packages and modules below /workspace. " +
				"A session runs one program at a time; others wait for their turn. If the code fails, the answer has success false. " +
				"With an Accept header for NDJSON or SSE, output arrives while the code runs. If the client disconnects, the run ends.",
			Bodies: []example{
				{"value", "a value", `{"code": "const n: number = 6; n * 7"}`},
				{"package", "a package", `{"code": "import { LinearClient } from \"@linear/sdk\";\nconst linear = new LinearClient({ apiKey: Deno.env.get(\"LINEAR_API_KEY\") });\n(await linear.issues()).nodes.map((i) => i.title)", "description": "titles of all issues"}`},
			},
			Answers: append([]answer{jsonOf[v1.CodeResult](200, nil)}, streamOf[v1.CodeUpdate](nil, httpio.NDJSON, httpio.SSE)...),
		}, s.run),
		fetch(Route{
			Pattern: "POST " + sessionPath + "/{id}/release", ID: "release-session", Summary: "Release the sandbox of a session", Access: change,
			Text: "Releases the sandbox as if the session had been unused for a while: the volume stays, and the next use gets a new sandbox. With persistence snapshot the sandbox is written to disk, and with persistence workspace the files are copied to the node's file store.",
		}, func(c *call, in *aSession) (v1.Session, error) {
			if err := s.Release(c, c.viewer(), in.ID); err != nil {
				return v1.Session{}, err
			}
			return to(sessionOf)(s.Get(c, c.viewer(), in.ID))
		}),
		send(Route{
			Pattern: "POST " + sessionPath + "/{id}/attach", ID: "attach-session", Summary: "Attach to a session", Access: change, Optional: true,
			Text: "Resumes the session, or boots its sandbox, and records the client as attached. An attached client does not keep the sandbox awake. Attaching twice is no error.",
		}, func(c *call, in *aSession, q v1.AttachRequest) (v1.Session, error) {
			return to(sessionOf)(s.cycle.Attach(c, c.viewer(), in.ID, cmp.Or(q.Client, defaultClient)))
		}),
		send(Route{
			Pattern: "POST " + sessionPath + "/{id}/detach", ID: "detach-session", Summary: "Detach from a session", Access: change, Optional: true,
			Text: "Programs keep running. When the last client detaches and nothing uses the sandbox, it is stopped (persistence none), saved and stopped (overlay) or hibernated (snapshot), or its files are saved (workspace).",
		}, func(c *call, in *aSession, q v1.AttachRequest) (v1.Session, error) {
			return to(sessionOf)(s.cycle.Detach(c, c.viewer(), in.ID, cmp.Or(q.Client, defaultClient)))
		}),
		fetch(Route{
			Pattern: "POST " + sessionPath + "/{id}/suspend", ID: "suspend-session", Summary: "Suspend a session", Access: change,
			Text: "Pauses the session's sandbox in memory. Any use resumes it; an unused session ends after its time to live. A sandbox that is in use is a conflict.",
		}, func(c *call, in *aSession) (v1.Session, error) {
			return to(sessionOf)(s.cycle.Suspend(c, c.viewer(), in.ID))
		}),
		fetch(Route{
			Pattern: "POST " + sessionPath + "/{id}/hibernate", ID: "hibernate-session", Summary: "Hibernate a session", Access: change,
			Text: "Writes the session's sandbox with its processes to disk, whatever the session's persistence, and frees its memory. Any use resumes it. A sandbox that is in use is a conflict.",
		}, func(c *call, in *aSession) (v1.Session, error) {
			return to(sessionOf)(s.cycle.Hibernate(c, c.viewer(), in.ID))
		}),
		fetch(Route{
			Pattern: "POST " + sessionPath + "/{id}/resume", ID: "resume-session", Summary: "Resume a session", Access: change,
			Text: "Resumes a suspended or hibernated sandbox; a session without a sandbox gets one.",
		}, func(c *call, in *aSession) (v1.Session, error) {
			return to(sessionOf)(s.cycle.Resume(c, c.viewer(), in.ID))
		}),
		fetch(Route{
			Pattern: "POST " + sessionPath + "/{id}/save", ID: "save-session", Summary: "Save the files of a session", Access: change,
			Text: "Copies the files below /workspace (persistence workspace) or the changes of the disk (persistence overlay) to the node's file store. Only data that the store does not have is sent. " +
				"The same happens whenever the sandbox is released. Files that programs are writing are copied as they are.",
		}, func(c *call, in *aSession) (v1.WorkspaceCopy, error) {
			x, err := s.files.SaveWorkspace(c, c.viewer(), in.ID)
			return v1.WorkspaceCopy{Files: x.Files, Bytes: v1.Bytes(x.Bytes), Uploaded: v1.Bytes(x.Uploaded), Skipped: x.Skipped}, err
		}),
		send(Route{
			Pattern: "POST " + sessionPath + "/{id}/git/push", ID: "push-session", Summary: "Push the repository of a session", Access: change, Optional: true,
			Text: "Commits the changes in the session's repository and pushes them to a branch. If somebody else has pushed to the branch, a new branch is pushed, and conflict is true. " +
				"The credential is added to the requests outside of the sandbox.",
		}, func(c *call, in *aSession, q v1.GitPush) (v1.GitPushed, error) {
			if q.OnRelease {
				return v1.GitPushed{}, engi.Errorf(engi.Invalid, "on_release is said when the session is created").WithRemedy("leave it out")
			}
			x, err := s.files.PushGit(c, c.viewer(), in.ID, engi.GitPush{Branch: q.Branch, Author: q.Author, Message: q.Message})
			return v1.GitPushed{Branch: x.Branch, Commit: x.Commit, Conflict: x.Conflict, Unchanged: x.Unchanged}, err
		}),
		fetch(Route{
			Pattern: "GET /v1/dependencies", ID: "get-dependencies", Summary: "List the packages that sessions can import", Access: look, Objects: Shared,
			Text: "Lists the packages of the node's configuration, and the state of their installation.",
		}, func(c *call, _ *none) (v1.Dependencies, error) { return to(dependenciesOf)(s.Dependencies(c)) }),
	}}
}

func (s *sessions) create(c *call, _ *none, q v1.SessionRequest) (v1.Session, error) {
	var check checker
	check.text("template", q.Template)
	check.text("workspace", q.Workspace)
	check.oneOf("mode", q.Mode, words(engi.SessionLazy, engi.SessionWarm))
	check.oneOf("persistence", q.Persistence, words(engi.Persistences()...))
	check.natural("vcpus", q.VCPUs)
	check.natural("cpu_quota", q.CPUQuota)
	check.natural("processes", float64(q.Processes))
	check.natural("inodes", float64(q.Inodes))
	check.Metadata("metadata", q.Metadata)
	check.Env("env", q.Env)
	spec := engi.SessionSpec{
		Owner: c.owner(), Name: q.Name, Template: q.Template, Workspace: q.Workspace, Mode: engi.SessionMode(q.Mode), Persistence: engi.Persistence(q.Persistence),
		Size:     engi.Size{VCPUs: q.VCPUs, Memory: int64(q.Memory), Disk: int64(q.Disk), Inodes: q.Inodes, Processes: q.Processes},
		CPUQuota: q.CPUQuota, Capacity: int64(q.Capacity), TTL: q.TTL.Std(), Dormancy: q.Dormancy.Std(), MaxDuration: q.MaxDuration.Std(), Metadata: q.Metadata, Env: q.Env, Idempotency: c.key,
	}
	if q.Network != nil {
		spec.Network = networkOf(&check, "network", q.Network)
	}
	if g := q.Git; g != nil {
		spec.Git = &engi.GitSpec{
			URL: g.URL, Ref: g.Ref, Depth: g.Depth, Submodules: g.Submodules, Secret: g.Secret, User: g.User, Dir: g.Dir, Push: (*engi.GitPush)(g.Push),
		}
	}
	if err := check.err(); err != nil {
		return v1.Session{}, err
	}
	x, err := s.Create(c, spec)
	if err == nil {
		c.location(sessionPath, string(x.ID))
	}
	return sessionOf(x), err
}

func (s *sessions) run(c *call, in *aSession, q v1.CodeRequest) error {
	var check checker
	if q.Code == "" {
		check.addf("code", "it is missing")
	}
	check.oneOf("language", q.Language, words(engi.TypeScript, engi.JavaScript))
	check.Env("env", q.Env)
	if err := check.err(); err != nil {
		return err
	}
	if _, err := s.Get(c, c.viewer(), in.ID); err != nil {
		return err // the stream has not started
	}
	spec := engi.CodeSpec{Code: q.Code, Language: engi.Language(q.Language), Timeout: q.Timeout.Std(), Env: q.Env}
	if c.form != httpio.JSON {
		return s.stream(c, in.ID, spec)
	}
	ctx, cancel := c.waiting()
	defer cancel()
	x, err := s.RunCode(ctx, c.viewer(), in.ID, spec, nil)
	if err != nil {
		return orEnded(ctx, err)
	}
	return c.reply(http.StatusOK, codeOf(x))
}

// A codeStep is a piece of output, or the result.
type codeStep struct {
	chunk  engi.Chunk
	result *engi.CodeResult
}

// stream answers with events. The run ends if the caller leaves.
func (s *sessions) stream(c *call, id string, spec engi.CodeSpec) error {
	joiner := httpio.NewJoiner(0)
	return stream(c, func(ctx context.Context) iter.Seq2[codeStep, error] { return s.steps(ctx, c.viewer(), id, spec) },
		func(out *httpio.EventWriter, step codeStep) (bool, error) {
			send := func(p httpio.Chunk) error {
				return out.Send(p.Stream, "", v1.CodeUpdate{Type: p.Stream, Offset: p.Offset, Data: p.Text, DataBase64: p.Bytes})
			}
			if step.result == nil {
				return false, joiner.Split(string(step.chunk.Stream), step.chunk.Offset, step.chunk.Data, send)
			}
			for _, p := range joiner.Flush() {
				if err := send(p); err != nil {
					return false, err
				}
			}
			return true, out.Send(v1.EventResult, "", v1.CodeUpdate{Type: v1.EventResult, Offset: joiner.Resume(), Result: new(codeOf(*step.result))})
		},
		func(kind string, p *v1.Problem) any {
			return v1.CodeUpdate{Type: kind, Offset: joiner.Resume(), Error: p}
		})
}

// steps yields the output of code while it runs, and then its result.
func (s *sessions) steps(ctx context.Context, viewer engi.Viewer, id string, spec engi.CodeSpec) iter.Seq2[codeStep, error] {
	return func(yield func(codeStep, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		left := false
		x, err := s.RunCode(ctx, viewer, id, spec, func(c engi.Chunk) {
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

func sessionOf(x engi.Session) v1.Session {
	out := v1.Session{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, State: string(x.State), Mode: string(x.Mode), Persistence: string(x.Persistence),
		Template: x.Template, WorkspaceID: string(x.Workspace), Size: sizeOf(x.Size), CPUQuota: x.CPUQuota, VolumeID: string(x.Volume), SandboxID: string(x.Sandbox), Capacity: v1.Bytes(x.Capacity),
		TTL: v1.Duration(x.TTL), Dormancy: v1.Duration(x.Dormancy), MaxDuration: v1.Duration(x.MaxDuration), Metadata: x.Metadata, SavedAt: moment(x.Saved), CreatedAt: x.Created, UsedAt: x.Used, ExpiresAt: x.Expires,
	}
	for _, a := range x.Attached {
		out.Attached = append(out.Attached, v1.SessionClient{Client: a.Name, Via: a.Via, Since: a.Since})
	}
	if x.Workspace == "" && !emptyNetwork(x.Network) {
		out.Network = new(policyOf(x.Network))
	}
	if g := x.Git; g != nil {
		out.Git = &v1.Git{URL: g.URL, Ref: g.Ref, Depth: g.Depth, Submodules: g.Submodules, Secret: g.Secret, User: g.User, Dir: g.Dir, Push: (*v1.GitPush)(g.Push)}
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

func dependenciesOf(x engi.Dependencies) v1.Dependencies {
	out := v1.Dependencies{
		State: string(x.State), Packages: []v1.Dependency{}, Wanted: x.Wanted, Template: x.Template, Digest: x.Digest, BuiltAt: moment(x.Built),
		Step: x.Step, Log: orEmpty(x.Log), Error: x.Error, Remedy: x.Remedy,
	}
	for _, d := range x.Packages {
		out.Packages = append(out.Packages, v1.Dependency{Package: d.Package, Version: d.Version, Docs: d.Docs, SecretEnv: d.Secret, Hosts: d.Hosts})
	}
	return out
}
