package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const (
	cancelTime = 10 * time.Second // maximum time to cancel a run whose caller has left
	inlineSize = 1 << 20          // maximum number of bytes of artifacts included in a result
)

type executions struct {
	engi.Executions
}

type anExecution = byID[engi.ExecutionID]

type createExecution struct {
	LastEvent string `header:"Last-Event-ID" doc:"For a stream with a repeated Idempotency-Key: the offset of the last event received"`
	prefer
}

type listExecutions struct {
	State  string `query:"state" enum:"queued,running,done,refused" doc:"Only objects in this state"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Maximum number of items in a page"`
	Cursor string `query:"cursor" doc:"next_cursor of the previous page"`
}

type getExecution struct {
	anExecution
	Wait string `query:"wait" example:"30s" doc:"Maximum time to wait until the run ends; at most 60s"`
}

type watchExecution struct {
	anExecution
	Offset    int64  `query:"offset" minimum:"0" doc:"Offset to resume from: the offset of the last event received"`
	LastEvent string `header:"Last-Event-ID" doc:"Alias of offset, as browsers send it; takes precedence over offset"`
}

type anArtifact struct {
	anExecution
	Path string `path:"path" doc:"Path of the artifact; slashes are not escaped"`
}

// Executions returns the routes that run code.
func Executions(service engi.Executions) Resource {
	x := &executions{service}
	const path = "/v1/executions"
	exampleEvent := json.RawMessage(`{"type": "stdout", "offset": 3, "data": "42\\n"}`)
	located := map[string]string{"Location": "path of the execution"}
	done, later := jsonOf[v1.Execution](http.StatusOK, exampleExecution), jsonOf[v1.Execution](http.StatusAccepted, nil)
	done.headers, later.headers = located, located
	return Resource{tag: "executions", about: "runs of code, each in a sandbox that no other program has used", routes: []Route{
		raw(Route{
			Pattern: "POST " + path, ID: "create-execution", Summary: "Run code", Access: writes(engi.ScopeExecutions), Objects: Owned,
			Text: "Runs a program in a sandbox that no other program has used. The Accept header selects the form of the answer: one JSON document when the program has ended, " +
				"or a stream of events while it runs. With async, the answer is 202 at once. " +
				"If a client that waits for JSON disconnects, the run is cancelled, unless the request had an Idempotency-Key. Disconnecting from a stream cancels nothing.",
			Creates: "a repeated key returns the first execution instead of starting another; a run with a key continues if the client disconnects",
			Bodies: []example{
				{"a line", "a line of Python", `{"language": "python", "code": "print(6*7)"}`},
				{"files", "several files, with limits", `{
			"language": "go", "entry": "main.go", "args": ["world"], "timeout": "30s", "memory": "512MiB",
			"files": [
				{"path": "go.mod", "content": "module example\n\ngo 1.26\n"},
				{"path": "main.go", "content": "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(\"hello\", os.Args[1]) }\n"}
			]}`},
				{"later", "without waiting", `{"language": "bash", "code": "sleep 5; date", "async": true}`},
			},
			Answers: append([]answer{done, later}, streamOf[v1.ExecutionUpdate](exampleEvent, httpio.SSE, httpio.NDJSON)...),
		}, x.create),
		fetch(Route{
			Pattern: "GET " + path, ID: "list-executions", Summary: "List executions", Access: reads(engi.ScopeExecutions),
			Text: "The newest come first.",
		}, x.list),
		fetch(Route{
			Pattern: "GET " + path + "/{id}", ID: "get-execution", Summary: "Get an execution", Access: reads(engi.ScopeExecutions),
			Text:    "Returns the record as it is now; with wait, once the run has ended or the time is over.",
			Example: exampleExecution,
		}, x.get),
		act(Route{
			Pattern: "DELETE " + path + "/{id}", ID: "cancel-execution", Summary: "Cancel an execution", Access: writes(engi.ScopeExecutions),
			Text: "Ends the run with the cause cancelled. The record stays. Cancelling a run that has ended is no error.",
		}, ending(service, engi.Executions.Cancel)),
		raw(Route{
			Pattern: "GET " + path + "/{id}/events", ID: "watch-execution", Summary: "Watch an execution", Access: reads(engi.ScopeExecutions),
			Text: "Streams the run's events from an offset: started if the offset is 0, then output as it arrives, and the result as the last event. " +
				"A client that reconnects with the offset of the last event it received loses nothing. Idle streams send heartbeats: events of type heartbeat in NDJSON, comments in SSE.",
			Answers: streamOf[v1.ExecutionUpdate](exampleEvent, httpio.NDJSON, httpio.SSE),
		}, x.watch),
		raw(Route{
			Pattern: "GET " + path + "/{id}/artifacts/{path...}", ID: "get-artifact", Summary: "Download an artifact of an execution", Access: reads(engi.ScopeExecutions),
			Text:    "Returns the file, always as an attachment of type application/octet-stream, because programs in sandboxes write these files. The ETag is the file's SHA-256.",
			Answers: []answer{bytesOf(http.StatusOK, "application/octet-stream", map[string]string{"ETag": "SHA-256 of the file, in hex and quotes"})},
		}, x.artifact),
	}}
}

var exampleExecution = json.RawMessage(`{
	"id": "exe_u2dmwmlezjgprkqrgppgcz2mgu", "state": "done", "language": "python", "template": "base", "sandbox_id": "sbx_qjpm5zk6v3nqc7xw2a4tdroeyi",
	"created_at": "2026-11-20T20:00:00Z", "started_at": "2026-11-20T20:00:00.002Z", "ended_at": "2026-11-20T20:00:00.008Z",
	"result": {
		"exit_code": 0, "cause": "exited", "stdout": "42\n", "stderr": "", "stdout_truncated": false, "stderr_truncated": false, "artifacts": [],
		"duration": "5.1ms", "queue_time": "0s", "claim_time": "412µs", "warm": true, "tier": "gvisor", "not_enforced": []
	}}`)

func (x *executions) create(c *call, in *createExecution, q v1.ExecutionRequest) error {
	from, err := lastEvent(in.LastEvent, 0)
	if err != nil {
		return err
	}
	spec, err := specOf(c.owner(), c.key, q)
	if err != nil {
		return err
	}
	started, err := x.Start(c, spec)
	if err != nil {
		return err
	}
	c.location("/v1/executions", string(started.ID))
	switch {
	case q.Async || in.async():
		return c.reply(http.StatusAccepted, executionOf(started))
	case c.form == httpio.JSON:
		return x.await(c, started.ID)
	}
	return x.stream(c, started.ID, from)
}

// await answers with the run's result. If the caller leaves before the run ends,
// await cancels the run, unless it has an idempotency key with which the caller can
// ask again.
func (x *executions) await(c *call, id engi.ExecutionID) error {
	ctx, cancel := c.waiting()
	defer cancel()
	done, err := x.Wait(ctx, c.viewer(), id)
	if err != nil {
		if c.gone() && c.key == "" {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c), cancelTime)
			defer cancel()
			if err := engi.Ignore(x.Cancel(ctx, c.viewer(), id), engi.NotFound); err != nil {
				return engi.Errorf(engi.Internal, "cancel %s, whose caller left: %w", id, err)
			}
		}
		return orEnded(ctx, err)
	}
	return c.reply(http.StatusOK, x.whole(c, done))
}

// whole returns a record with its small artifacts included. An artifact that cannot be
// read keeps its URL, which reports the error. All are read with one call: reading each
// alone would load the record again, and there may be thousands.
func (x *executions) whole(c *call, of engi.Execution) v1.Execution {
	e := executionOf(of)
	if of.Result == nil || len(of.Result.Artifacts) == 0 {
		return e
	}
	contents, err := x.Artifacts(c, c.viewer(), of.ID, inlineSize)
	if err != nil {
		return e
	}
	for i := range min(len(contents), len(e.Result.Artifacts)) {
		e.Result.Artifacts[i].ContentBase64 = contents[i]
	}
	return e
}

func (x *executions) list(c *call, in *listExecutions) (v1.List[v1.ExecutionSummary], error) {
	f := engi.ExecutionFilter{State: engi.ExecutionState(in.State), Limit: in.Limit}
	if in.Cursor != "" {
		before, err := engi.ParseExecutionID(in.Cursor)
		if err != nil {
			return v1.List[v1.ExecutionSummary]{}, errCursor
		}
		f.Before = before
	}
	xs, err := x.List(c, c.viewer(), f)
	page := listOf(xs, summaryOf)
	if len(xs) == in.Limit {
		page.NextCursor = string(xs[len(xs)-1].ID)
	}
	return page, err
}

var errCursor = invalid("query.cursor", "this is not a next_cursor of a page before")

func (x *executions) get(c *call, in *getExecution) (v1.Execution, error) {
	// If the run was refused, its record says so.
	if err := await(c, in.Wait, in.ID, x.Wait); err != nil {
		return v1.Execution{}, err
	}
	found, err := x.Get(c, c.viewer(), in.ID)
	if err != nil {
		return v1.Execution{}, err
	}
	return x.whole(c, found), nil
}

func (x *executions) watch(c *call, in *watchExecution, _ none) error {
	from, err := lastEvent(in.LastEvent, in.Offset)
	if err != nil {
		return err
	}
	// NotFound is reported before the stream starts.
	if _, err := x.Get(c, c.viewer(), in.ID); err != nil {
		return err
	}
	return x.stream(c, in.ID, from)
}

// stream answers with the events of a run from an offset on. The run goes on if the
// caller leaves.
func (x *executions) stream(c *call, id engi.ExecutionID, from int64) error {
	joiner := httpio.NewJoiner(from)
	return stream(c, func(ctx context.Context) iter.Seq2[engi.ExecutionUpdate, error] {
		return x.Watch(ctx, c.viewer(), id, from)
	},
		func(out *httpio.EventWriter, e engi.ExecutionUpdate) (last bool, err error) {
			send := func(e v1.ExecutionUpdate) error { return out.Send(e.Type, atOffset(e.Offset), e) }
			output := func(p httpio.Chunk) error {
				return send(v1.ExecutionUpdate{Type: p.Stream, Offset: p.Offset, Data: p.Text, DataBase64: p.Bytes})
			}
			switch e.Type {
			case engi.EventStdout, engi.EventStderr:
				return false, joiner.Split(string(e.Type), e.Offset, e.Data, output)
			case engi.EventResult:
				last = true
				for _, rest := range joiner.Flush() {
					if err := output(rest); err != nil {
						return false, err
					}
				}
			}
			event := v1.ExecutionUpdate{Type: string(e.Type), Offset: joiner.Resume()}
			switch {
			case e.Execution == nil:
			case last:
				// The event's record has no output, because earlier events had it; a
				// result has all output.
				of := *e.Execution
				if found, err := x.Get(c, c.viewer(), of.ID); err == nil {
					of = found
				}
				event.Execution = new(x.whole(c, of))
			default: // the record may be newer than this event, which marks the start
				wire := executionOf(*e.Execution)
				wire.State, wire.EndedAt, wire.Result = v1.Running, nil, nil
				event.Execution = &wire
			}
			return last, send(event)
		},
		func(kind string, p *v1.Problem) any {
			return v1.ExecutionUpdate{Type: kind, Offset: joiner.Resume(), Error: p}
		})
}

func (x *executions) artifact(c *call, in *anArtifact, _ none) error {
	of, err := x.Get(c, c.viewer(), in.ID)
	if err != nil {
		return err
	}
	a, err := artifactOf(of, in.Path)
	if err != nil {
		return err
	}
	f, err := x.Artifact(c, c.viewer(), in.ID, in.Path)
	if err != nil {
		return err
	}
	defer f.Close()

	// Programs make these files, so a browser must not show one as a page.
	h := c.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", disposition(a.Path))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Content-Length", strconv.FormatInt(a.Size, 10))
	h.Set("ETag", `"`+a.SHA256+`"`)
	if c.r.Header.Get("If-None-Match") == `"`+a.SHA256+`"` {
		h.Del("Content-Length")
		c.WriteHeader(http.StatusNotModified)
		return nil
	}
	if c.r.Method == http.MethodHead {
		return nil
	}
	n, err := io.Copy(httpio.DeadlineWriter{W: c}, io.LimitReader(f, a.Size))
	if err == nil && n < a.Size {
		err = engi.Errorf(engi.Internal, "artifact %.80q of %s ends %d bytes early", a.Path, in.ID, a.Size-n)
	}
	if c.gone() {
		return nil
	}
	return err
}

func artifactOf(x engi.Execution, name string) (engi.Artifact, error) {
	if x.Result == nil {
		return engi.Artifact{}, engi.Errorf(engi.NotFound, "%s has no artifacts yet: it is %s", x.ID, x.State).
			WithRemedy("wait until it is done")
	}
	for _, a := range x.Result.Artifacts {
		if a.Path == name {
			return a, nil
		}
	}
	return engi.Artifact{}, engi.Errorf(engi.NotFound, "%s left no artifact %.200q", x.ID, name).
		WithRemedy("the execution lists its artifacts")
}

func disposition(name string) string {
	if d := mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}); d != "" {
		return d
	}
	return "attachment"
}

// otherNames maps common names of languages to ours. It is used for suggestions only: a
// request must use our names.
var otherNames = map[string]engi.Language{
	"py": engi.Python, "python3": engi.Python, "js": engi.JavaScript, "node": engi.JavaScript, "nodejs": engi.JavaScript,
	"ts": engi.TypeScript, "deno": engi.TypeScript, "golang": engi.Go, "sh": engi.Bash, "shell": engi.Bash,
}

// specOf converts a request. If the conversion finds a fault, specOf reports Invalid with
// every fault of the request; else the service checks the rest.
func specOf(who engi.Owner, idempotency string, q v1.ExecutionRequest) (engi.ExecutionSpec, error) {
	var c checker
	p := program(&c, &q)

	var network engi.NetworkPolicy
	if q.Network != nil {
		network = networkOf(&c, "network", (*v1.NetworkPolicy)(q.Network))
	}
	c.oneOf("min_tier", q.MinTier, tiers)
	c.oneOf("on_empty", q.OnEmpty, words(engi.PoolWait, engi.PoolBootSync, engi.PoolReject))
	spec := engi.ExecutionSpec{
		Owner:    who,
		Program:  p,
		Template: q.Template,
		Limits: engi.Limits{
			Size: engi.Size{
				VCPUs: q.VCPUs, Memory: int64(q.Memory), Disk: int64(q.Disk), Inodes: q.Inodes,
				Processes: q.Processes, OpenFiles: q.OpenFiles,
			},
			Timeout:       q.Timeout.Std(),
			Output:        int64(q.Output),
			ArtifactBytes: int64(q.Artifacts.MaxBytes),
			ArtifactCount: q.Artifacts.MaxCount,
		},
		Network:      network,
		MinTier:      engi.Tier(q.MinTier),
		OnEmpty:      engi.EmptyPool(q.OnEmpty),
		ClaimTimeout: q.ClaimTimeout.Std(),
		OutputDir:    q.OutputDir,
		Idempotency:  idempotency,
	}
	if len(c.Faults) > 0 {
		c.also(spec.Faults(engi.Bounds{}))
	}
	return spec, c.err()
}

func program(c *checker, q *v1.ExecutionRequest) engi.Program {
	language := engi.Language(q.Language)
	if q.Language == "" {
		c.addf("language", "it is missing; use one of %s", strings.Join(languages(), ", "))
	} else if meant, ok := otherNames[strings.ToLower(q.Language)]; ok {
		c.addf("language", "%q is not one of %s; did you mean %q?", q.Language, strings.Join(languages(), ", "), meant)
	} else {
		c.oneOf("language", q.Language, languages())
	}

	p := engi.Program{Language: language, Entry: q.Entry, Args: q.Args, Env: q.Env, Stdin: q.StdinBase64}
	if q.Stdin != "" {
		if len(q.StdinBase64) > 0 {
			c.addf("stdin_base64", "there is stdin already; send one of them")
		}
		p.Stdin = []byte(q.Stdin)
	}
	sources(c, q, &p)

	return p
}

// sources collects the files of a program, with code as the last one.
func sources(c *checker, q *v1.ExecutionRequest, p *engi.Program) {
	name := cmp.Or(p.Language.MainFile(), "main")
	for i, f := range q.Files {
		field := fmt.Sprintf("files[%d]", i)
		if f.Content != "" && len(f.ContentBase64) > 0 {
			c.addf(field, "it has both content and content_base64; send one of them")
		}
		if q.Code != "" && f.Path == name {
			c.addf(field+".path", "%.80q is listed twice: the code is saved under this name", f.Path)
		}
		data := f.ContentBase64
		if f.Content != "" {
			data = []byte(f.Content)
		}
		p.Files = append(p.Files, engi.SourceFile{Path: f.Path, Data: data, Mode: uint32(f.Mode)})
	}
	if q.Code == "" {
		return
	}
	if q.Entry != "" && q.Entry != name {
		c.addf("entry", "the code is saved as %q and run from there; leave entry out, or send the program in files", name)
	}
	p.Entry = name
	p.Files = append(p.Files, engi.SourceFile{Path: name, Data: []byte(q.Code)})
}

func languages() []string { return words(engi.Languages()...) }

var tiers = words(engi.TierScript, engi.TierGVisor, engi.TierMicroVM)

// artifactURL returns a path relative to the server, whose name in the caller's
// network is not known.
func artifactURL(id engi.ExecutionID, name string) string {
	u := url.URL{Path: "/v1/executions/" + string(id) + "/artifacts/" + name}
	return u.EscapedPath()
}

// executionOf converts a record completely, except for the contents of artifacts.
func executionOf(x engi.Execution) v1.Execution {
	e := v1.Execution{
		ID:        string(x.ID),
		Owner:     string(x.Owner),
		State:     string(x.State),
		Language:  string(x.Language),
		Template:  x.Template,
		SandboxID: string(x.Sandbox),
		CreatedAt: x.Created.UTC(),
		StartedAt: moment(x.Started),
		EndedAt:   moment(x.Ended),
		Refusal:   problemOf(x.Refusal),
	}
	if x.Result != nil {
		r := resultOf(x.ID, *x.Result)
		e.Result = &r
	}
	return e
}

func summaryOf(x engi.Execution) v1.ExecutionSummary {
	e := v1.ExecutionSummary{
		ID:        string(x.ID),
		Owner:     string(x.Owner),
		State:     string(x.State),
		Language:  string(x.Language),
		Template:  x.Template,
		SandboxID: string(x.Sandbox),
		CreatedAt: x.Created.UTC(),
		StartedAt: moment(x.Started),
		EndedAt:   moment(x.Ended),
		Refusal:   problemOf(x.Refusal),
	}
	if x.Result != nil {
		code := x.Result.Exit.Code
		e.ExitCode, e.Cause, e.Duration = &code, string(x.Result.Exit.Cause), length(x.Result.Duration)
	}
	return e
}

func resultOf(id engi.ExecutionID, x engi.Result) v1.Result {
	r := v1.Result{
		ExitCode:        x.Exit.Code,
		Signal:          x.Exit.Signal,
		Cause:           string(x.Exit.Cause),
		Remedy:          x.Exit.Cause.Remedy(),
		Error:           x.Error,
		StdoutTruncated: x.StdoutTruncated,
		StderrTruncated: x.StderrTruncated,
		Artifacts:       []v1.Artifact{},
		ArtifactsLeft:   x.ArtifactsLeft,
		Duration:        length(x.Duration),
		QueueTime:       length(x.Queued),
		ClaimTime:       length(x.Claim),
		Warm:            x.Warm,
		Tier:            string(x.Tier),
		NotEnforced:     append([]string{}, x.NotEnforced...),
	}
	r.Stdout, r.StdoutBase64 = textOf(x.Stdout)
	r.Stderr, r.StderrBase64 = textOf(x.Stderr)
	for _, a := range x.Artifacts {
		r.Artifacts = append(r.Artifacts, v1.Artifact{
			Path: a.Path, Size: v1.Bytes(a.Size), Mode: v1.Mode(a.Mode), SHA256: a.SHA256, URL: artifactURL(id, a.Path),
		})
	}
	return r
}

// textOf returns output as text, and also as bytes if it is not valid
// UTF-8.
func textOf(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), b
}
