package rest

import (
	"cmp"
	"context"
	"iter"
	"net/http"
	"strconv"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const runPath = "/v1/runs"

type agents struct{ service engi.Agents }

// ErrNoAgents is the error of routes that need agents on a node that has none.
var ErrNoAgents = engi.Errorf(engi.Unsupported, "this node has no agents").WithRemedy("switch them on in its configuration, section [models]")

type aRun = byID[engi.RunID]

type watchRun struct {
	aRun
	After     int64  `query:"after" minimum:"0" doc:"Only events after this offset: the offset of the last event received"`
	LastEvent string `header:"Last-Event-ID" doc:"Alias of after, as browsers send it; takes precedence over after"`
}

type aCall struct {
	aRun
	Call string `path:"call" maxLength:"200" doc:"ID of the call"`
}

type anAgent struct {
	Name string `path:"name" maxLength:"64" doc:"Name of the agent"`
}

type listRuns struct {
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

// Agents returns the routes of agents, their runs and conversations; service may be nil.
func Agents(service engi.Agents) Resource {
	a := &agents{service}
	var absent error
	if service == nil {
		absent = ErrNoAgents
	}
	const (
		streamed = "With an Accept header for SSE or NDJSON, the answer is a stream: text and tool calls as the model writes them, output of programs while they run, tool results, and the run as the last event. If the client disconnects, the run continues."
		repeated = "a repeated key returns the first run instead of starting another"
	)
	started := jsonOf[v1.AgentRun](http.StatusAccepted, nil)
	started.headers = map[string]string{"Location": "address of the run"}
	look, change := reads(engi.ScopeAgents), writes(engi.ScopeAgents)
	return Resource{tag: "agents", about: "agents (language models with tools), and their runs", missing: absent, routes: []Route{
		list(Route{Pattern: "GET /v1/agents", ID: "list-agents", Summary: "List agents", Text: "The operator of the node configures the agents.", Access: look, Objects: Shared},
			func(*call, *none) ([]engi.AgentSpec, error) { return service.Agents(), nil }, agentOf),
		raw(Route{
			Pattern: "POST /v1/agents/{name}/runs", ID: "start-run", Summary: "Start a run of an agent", Access: change, Objects: Owned,
			Text:    "The run continues after this answer, and after a restart of the node. " + streamed,
			Creates: repeated, Answers: append([]answer{started}, streamOf[v1.AgentUpdate](nil, httpio.NDJSON, httpio.SSE)...),
		}, a.start),
		raw(Route{
			Pattern: "POST /v1/chat", ID: "chat", Summary: "Send a message to an agent", Access: change, Objects: Owned,
			Text:    "Waits for the agent's answer. Send the answer's conversation_id with the next message to continue the conversation. " + streamed,
			Creates: repeated, Answers: append([]answer{jsonOf[v1.ChatAnswer](200, nil)}, streamOf[v1.AgentUpdate](nil, httpio.NDJSON, httpio.SSE)...),
		}, a.chat),
		list(Route{Pattern: "GET " + runPath, ID: "list-runs", Summary: "List runs of agents", Text: "The newest come first.", Access: look},
			func(c *call, in *listRuns) ([]engi.Run, error) { return service.List(c, c.viewer(), in.Limit) }, runOf),
		fetch(Route{Pattern: "GET " + runPath + "/{id}", ID: "get-run", Summary: "Get a run", Text: "Returns the current state of the run.", Access: look}, getting(service, engi.Agents.Get, runOf)),
		act(Route{Pattern: "DELETE " + runPath + "/{id}", ID: "cancel-run", Summary: "Cancel a run", Text: "Programs that its tools started end with it. Cancelling twice is no error.", Access: change},
			ending(service, engi.Agents.Cancel)),
		list(Route{Pattern: "GET " + runPath + "/{id}/messages", ID: "get-run-messages", Summary: "Get the transcript of a run", Text: "Returns every message since the beginning of the conversation.", Access: look},
			func(c *call, in *aRun) ([]engi.Message, error) { return service.Messages(c, c.viewer(), in.ID) }, messageOf),
		raw(Route{
			Pattern: "GET " + runPath + "/{id}/events", ID: "watch-run", Summary: "Watch a run", Access: look,
			Text:    "To resume, send the offset of the last event that you received. For runs that ended a while ago, the stream has whole texts, calls, results and the end, but no deltas.",
			Answers: streamOf[v1.AgentUpdate](nil, httpio.SSE, httpio.NDJSON),
		}, a.watch),
		raw(Route{
			Pattern: "GET " + runPath + "/{id}/results/{call}", ID: "get-run-result", Summary: "Get a long result of a tool call", Access: look,
			Text:    "Returns a tool result that was too long to show to the model at once.",
			Answers: []answer{bytesOf(http.StatusOK, "application/octet-stream", nil)},
		}, a.result),
		act(Route{
			Pattern: "POST " + runPath + "/{id}/calls/{call}/decision", ID: "decide-run-call", Summary: "Allow or refuse a tool call", Access: writes(engi.ScopeApprovals),
			Text: "Calls of the tools that the agent lists under confirm wait for this decision until the run ends, also across a restart of the node. If the call is allowed it starts; if not, the model is told that it was refused. " +
				"Needs an admin key, or a key that was created with the scope approvals. A call that is not waiting is a conflict.",
			Bodies: []example{{"refuse", "with a word to the model", `{"allow": false, "reason": "not on a Friday"}`}},
		}, a.decide),
	}}
}

// ToolServers returns the routes that list the MCP servers of agents; service may be nil.
func ToolServers(service engi.ToolServers) Resource {
	return Resource{tag: "agents", routes: []Route{
		list(Route{
			Pattern: "GET /v1/mcp-servers", ID: "list-mcp-servers", Summary: "List the MCP servers of agents", Access: reads(engi.ScopeAgents), Objects: Shared,
			Text: "The operator of the node configures the servers. The state of each server is from the last time that an agent used it.",
		}, func(*call, *none) ([]engi.ToolServer, error) {
			if service == nil {
				return nil, nil
			}
			return service.Servers(), nil
		}, toolServerOf),
	}}
}

// spec converts the request of a run.
func (a *agents) spec(c *call, agent string, q v1.RunRequest) (engi.RunSpec, error) {
	var check checker
	spec := engi.RunSpec{
		Agent: agent, Model: q.Model, System: q.System, Input: q.Input, Images: imagesFrom(q.Images),
		Session: q.Session, Workspace: q.Workspace, Output: q.Output, Choice: q.ToolChoice, Results: resultsFrom(q.Results),
		Confirm:  q.Confirm,
		Sampling: engi.Sampling{MaxTokens: q.MaxTokens, Temperature: q.Temperature, TopP: q.TopP, Stop: q.Stop, Effort: engi.Effort(q.Effort)},
	}
	for _, t := range q.Tools {
		spec.Tools = append(spec.Tools, engi.Tool(t))
	}
	if n := len(q.Messages); q.Input == "" && len(q.Images) == 0 && len(q.Results) == 0 && (n == 0 || q.Messages[n-1].Role != string(engi.RoleTool)) {
		check.addf("input", "it is missing")
	}
	if q.SandboxID != "" {
		id, err := engi.ParseSandboxID(q.SandboxID)
		if err != nil {
			check.addf("sandbox_id", "%v", err)
		}
		spec.Sandbox = id
	}
	if q.ConversationID != "" {
		id, err := engi.ParseConversationID(q.ConversationID)
		if err != nil {
			check.addf("conversation_id", "%v", err)
		}
		spec.Conversation = id
	}
	for _, p := range q.Context {
		spec.Context = append(spec.Context, engi.ContextPart(p))
	}
	for _, m := range q.Messages {
		spec.Messages = append(spec.Messages, messageFrom(m))
	}
	return spec, check.err()
}

func (a *agents) start(c *call, in *anAgent, q v1.RunRequest) error {
	spec, err := a.spec(c, in.Name, q)
	if err != nil {
		return err
	}
	x, err := startRun(c, a.service, spec)
	if err != nil {
		return err
	}
	c.location(runPath, string(x.ID))
	if c.form != httpio.JSON {
		return a.stream(c, x.ID, 0)
	}
	return c.reply(http.StatusAccepted, runOf(x))
}

// startRun starts a run whose tools are restricted to the scopes of the caller's key.
func startRun(c *call, service engi.Agents, spec engi.RunSpec) (engi.Run, error) {
	if spec.Sandbox != "" || spec.Session != "" || spec.Workspace != "" {
		if err := c.auth.May(engi.ScopeSandboxes, true); err != nil {
			return engi.Run{}, err
		}
	}
	spec.Owner, spec.Scopes, spec.Idempotency = c.owner(), c.auth.Scopes, cmp.Or(spec.Idempotency, c.key)
	return service.Start(c, spec)
}

func (a *agents) chat(c *call, _ *none, q v1.ChatRequest) error {
	if q.Message != "" {
		if q.Input != "" {
			return invalid("message", "it repeats input; send one of the two")
		}
		q.Input = q.Message
	}
	spec, err := a.spec(c, q.Agent, q.RunRequest)
	if err != nil {
		return err
	}
	x, err := startRun(c, a.service, spec)
	if err != nil {
		return err
	}
	c.location(runPath, string(x.ID))
	if c.form != httpio.JSON {
		return a.stream(c, x.ID, 0)
	}
	if x, err = waitRun(c, a.service, x, func(engi.RunUpdate) {}); err != nil {
		return err
	}
	return c.reply(http.StatusOK, v1.ChatAnswer{Response: x.Text, Output: x.Output, ConversationID: string(x.Conversation), Run: runOf(x)})
}

// waitRun waits for the end of a run and passes each update before it to see. The run goes
// on if the caller leaves. waitRun returns the error of a failed run.
func waitRun(c *call, service engi.Agents, x engi.Run, see func(engi.RunUpdate)) (engi.Run, error) {
	ctx, cancel := c.waiting()
	defer cancel()
	for e, err := range service.Watch(ctx, x.Owner.Viewer(), x.ID, 0) {
		switch {
		case err != nil:
			return x, orEnded(ctx, err)
		case e.Kind != engi.RunEnd:
			see(e)
		case e.Run.State == engi.RunFailed:
			return *e.Run, e.Run.Error
		default:
			return *e.Run, nil
		}
	}
	return x, ctx.Err()
}

// stream answers with the updates of a run. The run goes on if the caller
// leaves.
func (a *agents) stream(c *call, id engi.RunID, after int64) error {
	last := after
	return stream(c, func(ctx context.Context) iter.Seq2[engi.RunUpdate, error] {
		return a.service.Watch(ctx, c.viewer(), id, after)
	},
		func(out *httpio.EventWriter, e engi.RunUpdate) (bool, error) {
			last = e.Seq
			wire := agentEventOf(e)
			return wire.Run != nil, out.Send(wire.Type, atOffset(wire.Offset), wire)
		},
		func(kind string, p *v1.Problem) any { return v1.AgentUpdate{Type: kind, Offset: last, Error: p} })
}

func (a *agents) watch(c *call, in *watchRun, _ none) error {
	after, err := lastEvent(in.LastEvent, in.After)
	if err != nil {
		return err
	}
	if _, err := a.service.Get(c, c.viewer(), in.ID); err != nil {
		return err // the stream has not started
	}
	return a.stream(c, in.ID, after)
}

func (a *agents) decide(c *call, in *aCall, q v1.CallDecision) error {
	d, ok := a.service.(engi.CallDecider)
	switch {
	case q.Allow == nil:
		return invalid("allow", "it is missing")
	case !ok:
		return engi.Errorf(engi.Unsupported, "these agents make their calls without a decision")
	}
	return d.Decide(c, c.viewer(), in.ID, in.Call, *q.Allow, q.Reason)
}

func (a *agents) result(c *call, in *aCall, _ none) error {
	data, err := a.service.FullResult(c, c.viewer(), in.ID, in.Call)
	if err != nil {
		return err
	}
	c.Header().Set("Content-Type", "application/octet-stream")
	c.Header().Set("X-Content-Type-Options", "nosniff")
	c.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = httpio.DeadlineWriter{W: c}.Write(data) // an error means that the caller has left
	return nil
}

func agentOf(a engi.AgentSpec) v1.Agent {
	return v1.Agent{Name: a.Name, Description: a.Description, Model: a.Model, Tools: orEmpty(a.Tools), Steps: a.Steps, Output: a.Output, Confirm: a.Confirm}
}

func toolServerOf(x engi.ToolServer) v1.ToolServer {
	return v1.ToolServer{Name: x.Name, Kind: string(x.Kind), State: string(x.State), Tools: orEmpty(x.Tools), Left: x.Skipped, Error: x.Error, CheckedAt: moment(x.Checked)}
}

func runOf(x engi.Run) v1.AgentRun {
	out := v1.AgentRun{
		ID: string(x.ID), Owner: string(x.Owner), Agent: x.Agent, Model: x.Model, ConversationID: string(x.Conversation), SandboxID: string(x.Sandbox), Session: x.Session, Workspace: x.Workspace,
		State: string(x.State), Reason: x.Reason, Text: x.Text, Output: x.Output, Steps: x.Steps, CreatedAt: x.Created, EndedAt: moment(x.Ended),
		Usage: tokensOf(x.Tokens), Error: problemOf(x.Error),
	}
	for _, c := range x.Calls {
		out.Calls = append(out.Calls, v1.ToolCall(c))
	}
	for _, c := range x.Waiting {
		out.Waiting = append(out.Waiting, v1.ToolCall(c))
	}
	return out
}

func tokensOf(t engi.Tokens) v1.TokenUsage {
	return v1.TokenUsage{
		InputTokens: t.Input, OutputTokens: t.Output, ReasoningTokens: t.Reasoning, CacheReadTokens: t.CacheRead,
		CacheWriteTokens: t.CacheWrite, ModelCalls: t.Calls, Cost: float64(t.Cost) / 1e6,
	}
}

func agentEventOf(e engi.RunUpdate) v1.AgentUpdate {
	out := v1.AgentUpdate{Type: string(e.Kind), Offset: e.Seq, Step: e.Step, Text: e.Text, Object: e.Object}
	if e.Kind == engi.RunOutput {
		out.Type = string(e.Stream)
	}
	if e.Call != nil {
		out.Call = &v1.ToolCall{ID: e.Call.ID, Name: e.Call.Name, Arguments: e.Call.Arguments}
	}
	if e.Result != nil {
		out.Result = new(toolResultOf(*e.Result))
	}
	if e.Run != nil {
		out.Run = new(runOf(*e.Run))
	}
	return out
}

func toolResultOf(r engi.ToolResult) v1.ToolResult {
	return v1.ToolResult{CallID: r.Call, Name: r.Name, Text: r.Text, Images: imagesOf(r.Images), Failed: r.Failed}
}

func messageOf(m engi.Message) v1.Message {
	out := v1.Message{Role: string(m.Role), Text: m.Text, Thought: m.Thought, Images: imagesOf(m.Images)}
	for _, c := range m.Calls {
		out.Calls = append(out.Calls, v1.ToolCall(c))
	}
	for _, r := range m.Results {
		out.Results = append(out.Results, toolResultOf(r))
	}
	return out
}

func messageFrom(m v1.Message) engi.Message {
	out := engi.Message{Role: engi.Role(m.Role), Text: m.Text, Images: imagesFrom(m.Images)}
	for _, c := range m.Calls {
		out.Calls = append(out.Calls, engi.ToolCall(c))
	}
	out.Results = resultsFrom(m.Results)
	return out
}

func resultsFrom(results []v1.ToolResult) (all []engi.ToolResult) {
	for _, r := range results {
		all = append(all, engi.ToolResult{Call: r.CallID, Name: r.Name, Text: r.Text, Images: imagesFrom(r.Images), Failed: r.Failed})
	}
	return all
}

func imagesOf(images []engi.Image) (all []v1.Image) {
	for _, img := range images {
		all = append(all, v1.Image(img))
	}
	return all
}

func imagesFrom(images []v1.Image) (all []engi.Image) {
	for _, img := range images {
		all = append(all, engi.Image(img))
	}
	return all
}
