package rest

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

const runs = "/v1/runs"

type aRun struct {
	ID string `path:"id" doc:"of the run"`
}

type aRunEvents struct {
	ID        string `path:"id" doc:"of the run"`
	After     int64  `query:"after" minimum:"0" doc:"only events after this offset: that of the last one seen"`
	LastEvent string `header:"Last-Event-ID" doc:"the same as after, as browsers send it; goes before it"`
}

type aRunResult struct {
	ID   string `path:"id" doc:"of the run"`
	Call string `path:"call" maxLength:"200" doc:"ID of the call"`
}

type postRun struct {
	Name        string `path:"name" maxLength:"64" doc:"of the agent"`
	Idempotency string `header:"Idempotency-Key" maxLength:"255" doc:"a repeated key returns the first run instead of making another"`
}

type postChat struct {
	Idempotency string `header:"Idempotency-Key" maxLength:"255" doc:"a repeated key returns the first run instead of making another"`
}

type listRuns struct {
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

func (s *server) serveAgents() {
	handle(s, s.opListAgents(), s.listAgents)
	handle(s, s.opToolServers(), s.listToolServers)
	handle(s, s.opStartRun(), s.startRun)
	handle(s, s.opChat(), s.chat)
	handle(s, s.opListRuns(), s.listRuns)
	handle(s, s.opGetRun(), s.getRun)
	handle(s, s.opCancelRun(), s.cancelRun)
	handle(s, s.opRunMessages(), s.runMessages)
	handle(s, s.opRunEvents(), s.runEvents)
	handle(s, s.opRunResult(), s.runResult)
	s.serveCompletions()
}

var errNoAgents = engi.Errorf(engi.Unsupported, "this node has no agents").WithRemedy("switch them on in its configuration, section [models]")

func (s *server) listAgents(w http.ResponseWriter, _ *http.Request, _ *nothing) error {
	if s.agents == nil {
		return errNoAgents
	}
	return s.reply(w, http.StatusOK, listOf(s.agents.Agents(), agentOf))
}

func (s *server) listToolServers(w http.ResponseWriter, _ *http.Request, _ *nothing) error {
	var all []engi.ToolServer
	if s.toolServers != nil {
		all = s.toolServers.Servers()
	}
	return s.reply(w, http.StatusOK, listOf(all, toolServerOf))
}

// runSpec translates a request.
func (s *server) runSpec(r *http.Request, agent, key string, q v1.RunRequest) (engi.RunSpec, error) {
	var c checker
	spec := engi.RunSpec{
		Owner: callOf(r.Context()).key.Owner, Agent: agent, Model: q.Model, System: q.System, Input: q.Input, Images: imagesFrom(q.Images),
		Session: q.Session, Output: q.Output, Idempotency: key,
	}
	if text := checkIdempotency(key); text != "" {
		c.addf("header.Idempotency-Key", "%s", text)
	}
	if q.Input == "" && len(q.Images) == 0 {
		c.addf("input", "it is missing")
	}
	if q.SandboxID != "" {
		id, err := engi.ParseSandboxID(q.SandboxID)
		if err != nil {
			c.addf("sandbox_id", "%v", err)
		}
		spec.Sandbox = id
	}
	if q.ConversationID != "" {
		id, err := engi.ParseConversationID(q.ConversationID)
		if err != nil {
			c.addf("conversation_id", "%v", err)
		}
		spec.Conversation = id
	}
	for _, p := range q.Context {
		spec.Context = append(spec.Context, engi.ContextPart(p))
	}
	for _, m := range q.Messages {
		spec.Messages = append(spec.Messages, messageFrom(m))
	}
	return spec, httpio.Invalid(c.faults)
}

func (s *server) startRun(w http.ResponseWriter, r *http.Request, in *postRun) error {
	if s.agents == nil {
		return errNoAgents
	}
	form, err := httpio.Negotiate(r, httpio.JSON, httpio.NDJSON, httpio.SSE)
	if err != nil {
		return err
	}
	q, err := decode[v1.RunRequest](s, w, r)
	if err != nil {
		return err
	}
	spec, err := s.runSpec(r, in.Name, in.Idempotency, q)
	if err != nil {
		return err
	}
	return s.launch(w, r, form, spec, func(x engi.Run) error { return s.reply(w, http.StatusAccepted, runOf(x)) })
}

// launch begins a run and answers with what happens in it, or as answer does.
func (s *server) launch(w http.ResponseWriter, r *http.Request, form httpio.Format, spec engi.RunSpec, answer func(engi.Run) error) error {
	x, err := s.agents.Start(r.Context(), spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", runs+"/"+string(x.ID))
	if form != httpio.JSON {
		return s.streamRun(w, r, form, x.ID, 0)
	}
	return answer(x)
}

func (s *server) chat(w http.ResponseWriter, r *http.Request, in *postChat) error {
	if s.agents == nil {
		return errNoAgents
	}
	form, err := httpio.Negotiate(r, httpio.JSON, httpio.NDJSON, httpio.SSE)
	if err != nil {
		return err
	}
	q, err := decode[v1.ChatRequest](s, w, r)
	if err != nil {
		return err
	}
	if q.Message != "" {
		if q.Input != "" {
			return httpio.Invalid([]v1.Fault{{Field: "message", Detail: "it says the same as input; send one of the two"}})
		}
		q.Input = q.Message
	}
	spec, err := s.runSpec(r, q.Agent, in.Idempotency, q.RunRequest)
	if err != nil {
		return err
	}
	return s.launch(w, r, form, spec, func(x engi.Run) error {
		ctx, cancel := s.waiting(r)
		defer cancel()
		if x, err = s.endOf(ctx, x); err != nil {
			return whole(ctx, err)
		}
		if x.State == engi.RunFailed {
			return x.Error
		}
		return s.reply(w, http.StatusOK, v1.ChatAnswer{Response: x.Text, Output: x.Output, ConversationID: string(x.Conversation), Run: runOf(x)})
	})
}

// endOf waits for the end of a run, which goes on if ctx ends first.
func (s *server) endOf(ctx context.Context, x engi.Run) (engi.Run, error) {
	for e, err := range s.agents.Watch(ctx, x.Owner, x.ID, 0) {
		if err != nil {
			return x, err
		}
		if e.Kind == engi.RunEnd {
			return *e.Run, nil
		}
	}
	return x, ctx.Err()
}

// streamRun answers with what happens in a run. A caller that leaves changes
// nothing for it.
func (s *server) streamRun(w http.ResponseWriter, r *http.Request, f httpio.Format, id engi.RunID, after int64) error {
	ctx, cancel := s.waiting(r)
	source := httpio.Pull(s.agents.Watch(ctx, callOf(r.Context()).viewer(), id, after))
	defer source.Stop()
	defer cancel()
	out := httpio.NewEventWriter(w, f)
	if err := out.Begin(); err != nil {
		return nil // the caller has left
	}
	beat := time.NewTicker(s.beat)
	defer beat.Stop()
	last := after
	for {
		select {
		case <-beat.C:
			if out.Beat(v1.AgentEvent{Type: v1.EventHeartbeat, Offset: last}, s.beat) != nil {
				s.gone(r)
				return nil
			}
		case e, ok := <-source.Events:
			if !ok {
				return nil
			}
			if e.Err != nil {
				if s.gone(r) {
					return nil
				}
				err := e.Err
				if s.leaving() {
					err = errLeaving
				}
				s.logInternal(r, err)
				_ = out.Send(v1.EventError, "", v1.AgentEvent{Type: v1.EventError, Offset: last, Error: new(httpio.Describe(err, callOf(r.Context()).id))})
				return nil
			}
			last = e.Event.Seq
			wire := agentEventOf(e.Event)
			source.Release()
			if out.Send(wire.Type, strconv.FormatInt(wire.Offset, 10), wire) != nil {
				s.gone(r)
				return nil
			}
			if wire.Run != nil {
				return nil
			}
		}
	}
}

func (s *server) listRuns(w http.ResponseWriter, r *http.Request, in *listRuns) error {
	if s.agents == nil {
		return errNoAgents
	}
	xs, err := s.agents.List(r.Context(), callOf(r.Context()).viewer(), in.Limit)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, runOf))
}

// run returns the ID of a path and who asks.
func (s *server) run(r *http.Request, id string) (engi.Owner, engi.RunID, error) {
	if s.agents == nil {
		return "", "", errNoAgents
	}
	x, err := engi.ParseRunID(id)
	return callOf(r.Context()).viewer(), x, err
}

func (s *server) getRun(w http.ResponseWriter, r *http.Request, in *aRun) error {
	viewer, id, err := s.run(r, in.ID)
	if err != nil {
		return err
	}
	x, err := s.agents.Get(r.Context(), viewer, id)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, runOf(x))
}

func (s *server) cancelRun(w http.ResponseWriter, r *http.Request, in *aRun) error {
	viewer, id, err := s.run(r, in.ID)
	if err != nil {
		return err
	}
	if err := s.agents.Cancel(r.Context(), viewer, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) runMessages(w http.ResponseWriter, r *http.Request, in *aRun) error {
	viewer, id, err := s.run(r, in.ID)
	if err != nil {
		return err
	}
	xs, err := s.agents.Messages(r.Context(), viewer, id)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, messageOf))
}

func (s *server) runEvents(w http.ResponseWriter, r *http.Request, in *aRunEvents) error {
	viewer, id, err := s.run(r, in.ID)
	if err != nil {
		return err
	}
	form, err := httpio.Negotiate(r, httpio.SSE, httpio.NDJSON)
	if err != nil {
		return err
	}
	after := in.After
	if in.LastEvent != "" {
		if after, err = strconv.ParseInt(in.LastEvent, 10, 64); err != nil || after < 0 {
			return engi.Errorf(engi.Invalid, "Last-Event-ID %.40q is no offset", in.LastEvent)
		}
	}
	if _, err := s.agents.Get(r.Context(), viewer, id); err != nil {
		return err // before a stream begins
	}
	return s.streamRun(w, r, form, id, after)
}

func (s *server) runResult(w http.ResponseWriter, r *http.Request, in *aRunResult) error {
	viewer, id, err := s.run(r, in.ID)
	if err != nil {
		return err
	}
	raw, err := s.agents.FullResult(r.Context(), viewer, id, in.Call)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	_, _ = httpio.DeadlineWriter{W: w}.Write(raw) // who does not wait for it has left
	return nil
}

func agentOf(a engi.AgentSpec) v1.Agent {
	return v1.Agent{Name: a.Name, Description: a.Description, Model: a.Model, Tools: list(a.Tools), Steps: a.Steps, Output: a.Output}
}

func toolServerOf(x engi.ToolServer) v1.ToolServer {
	return v1.ToolServer{Name: x.Name, Kind: string(x.Kind), State: string(x.State), Tools: list(x.Tools), Left: x.Skipped, Error: x.Error, CheckedAt: moment(x.Checked)}
}

func runOf(x engi.Run) v1.AgentRun {
	out := v1.AgentRun{
		ID: string(x.ID), Owner: string(x.Owner), Agent: x.Agent, Model: x.Model, ConversationID: string(x.Conversation), SandboxID: string(x.Sandbox), Session: x.Session,
		State: string(x.State), Reason: x.Reason, Text: x.Text, Output: x.Output, Steps: x.Steps, CreatedAt: x.Created, EndedAt: moment(x.Ended),
		Usage: tokensOf(x.Tokens),
	}
	if x.Error != nil {
		out.Error = new(httpio.Describe(x.Error, ""))
	}
	return out
}

func tokensOf(t engi.Tokens) v1.TokenUsage {
	return v1.TokenUsage{
		InputTokens: t.Input, OutputTokens: t.Output, ReasoningTokens: t.Reasoning, CacheReadTokens: t.CacheRead,
		CacheWriteTokens: t.CacheWrite, ModelCalls: t.Calls, Cost: float64(t.Cost) / 1e6,
	}
}

func agentEventOf(e engi.RunEvent) v1.AgentEvent {
	out := v1.AgentEvent{Type: string(e.Kind), Offset: e.Seq, Step: e.Step, Text: e.Text, Object: e.Object}
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
	for _, r := range m.Results {
		out.Results = append(out.Results, engi.ToolResult{Call: r.CallID, Name: r.Name, Text: r.Text, Images: imagesFrom(r.Images), Failed: r.Failed})
	}
	return out
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

func (s *server) opListAgents() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/agents", "list-agents", "agents", "List agents", "Agents are configured by the node's operator.", http.StatusOK)
	answers[v1.List[v1.Agent]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opToolServers() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/mcp-servers", "list-mcp-servers", "agents", "List MCP servers that agents may use",
		"They are configured by the node's operator. What is known about each is from the last time that an agent used it.", http.StatusOK)
	answers[v1.List[v1.ToolServer]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

const runWords = "Asked for events (SSE or NDJSON by Accept), it answers with what happens: text and tool calls as the model makes them, output of programs while they run, results, and last the run. A caller that leaves changes nothing for the run."

func (s *server) opStartRun() huma.Operation {
	op := s.operation(http.MethodPost, "/v1/agents/{name}/runs", "start-run", "agents", "Put an agent to work",
		"It goes on after this answer, and after a restart of the node. "+runWords, http.StatusAccepted)
	accepts[v1.RunRequest](s, &op, nil)
	answers[v1.AgentRun](s, &op, http.StatusAccepted, string(httpio.JSON), nil)
	answers[v1.AgentEvent](s, &op, http.StatusOK, string(httpio.SSE), nil)
	answers[v1.AgentEvent](s, &op, http.StatusOK, string(httpio.NDJSON), nil)
	header(&op, http.StatusAccepted, "Location", "address of the run")
	return op
}

func (s *server) opChat() huma.Operation {
	op := s.operation(http.MethodPost, "/v1/chat", "chat", "agents", "Say something to an agent",
		"Waits for the answer. With conversation_id of the answer the next message goes on where this one ends. "+runWords, http.StatusOK)
	accepts[v1.ChatRequest](s, &op, nil)
	answers[v1.ChatAnswer](s, &op, http.StatusOK, string(httpio.JSON), nil)
	answers[v1.AgentEvent](s, &op, http.StatusOK, string(httpio.SSE), nil)
	answers[v1.AgentEvent](s, &op, http.StatusOK, string(httpio.NDJSON), nil)
	return op
}

func (s *server) opListRuns() huma.Operation {
	op := s.operation(http.MethodGet, runs, "list-runs", "agents", "List runs of agents", "The newest come first.", http.StatusOK)
	answers[v1.List[v1.AgentRun]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetRun() huma.Operation {
	op := s.operation(http.MethodGet, runs+"/{id}", "get-run", "agents", "Get a run", "As it is now.", http.StatusOK)
	answers[v1.AgentRun](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opCancelRun() huma.Operation {
	return s.operation(http.MethodDelete, runs+"/{id}", "cancel-run", "agents", "Cancel a run", "What its tools started ends, too. Cancelling twice is no error.", http.StatusNoContent)
}

func (s *server) opRunMessages() huma.Operation {
	op := s.operation(http.MethodGet, runs+"/{id}/messages", "get-run-messages", "agents", "Read a transcript", "All that was said, from the beginning of the conversation.", http.StatusOK)
	answers[v1.List[v1.Message]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opRunEvents() huma.Operation {
	op := s.operation(http.MethodGet, runs+"/{id}/events", "watch-run", "agents", "Watch a run",
		"Come back with the offset of the last event seen. Of runs that ended a while ago, whole texts, calls, results and the end are left.", http.StatusOK)
	answers[v1.AgentEvent](s, &op, http.StatusOK, string(httpio.SSE), nil)
	answers[v1.AgentEvent](s, &op, http.StatusOK, string(httpio.NDJSON), nil)
	return op
}

func (s *server) opRunResult() huma.Operation {
	op := s.operation(http.MethodGet, runs+"/{id}/results/{call}", "get-run-result", "agents", "Read a long result", "A result of a tool that was too long for the model to see at once.", http.StatusOK)
	answers[string](s, &op, http.StatusOK, "application/octet-stream", nil)
	return op
}

// trimmed is text in one piece, for dialects that know only text.
func trimmed(parts ...string) string { return strings.TrimSpace(strings.Join(parts, "\n\n")) }
