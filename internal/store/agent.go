package store

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// An agentStore stores runs of agents.
type agentStore struct {
	table[agent.Record, engi.RunID]
}

// Agents returns the store of runs of agents.
func Agents(db *DB) agent.Store { return agents(db) }

// AgentResults returns the store of long results of tools.
func AgentResults(db *DB) agent.Results { return agents(db) }

func agents(db *DB) agentStore {
	return agentStore{table[agent.Record, engi.RunID]{
		db: db, name: "agent_runs", noun: "run", columns: `id, owner, conversation, state, created, ended, idempotency, detail`,
		fields: func(r *agent.Record) []any {
			return []any{
				&r.ID, &r.Owner, &r.Conversation, &r.State, (*stamp)(&r.Created), (*stamp)(&r.Ended), &r.Spec.Idempotency,
				derived{func() (string, error) { return encodeRun(r) }, func(text string) error { return decodeRun(text, r) }},
			}
		},
		missing: engi.Errorf(engi.NotFound, "there is no such run").WithRemedy("'engi agent runs' shows yours"),
		exists:  engi.Errorf(engi.Conflict, "a run with this idempotency key exists"),
	}}
}

// agentDetail holds the fields of a run that no query selects by.
type agentDetail struct {
	Agent       string          `json:"agent"`
	Model       string          `json:"model"`
	System      string          `json:"system,omitempty"`
	Input       string          `json:"input,omitempty"`
	Shape       json.RawMessage `json:"shape,omitempty"`
	Sandbox     string          `json:"sandbox,omitempty"`
	Session     string          `json:"session,omitempty"`
	Workspace   string          `json:"workspace,omitempty"`
	Scopes      []engi.Scope    `json:"scopes,omitempty"`
	Tools       []agentTool     `json:"tools,omitempty"`
	Choice      string          `json:"choice,omitempty"`
	Sampling    engi.Sampling   `json:"sampling,omitzero"`
	Calls       []agentCall     `json:"calls,omitempty"`
	Confirm     []string        `json:"confirm,omitempty"`
	Waiting     []agentCall     `json:"waiting,omitempty"`
	Decided     []agentDecision `json:"decided,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Text        string          `json:"text,omitempty"`
	Output      json.RawMessage `json:"output,omitempty"`
	Error       *keptError      `json:"error,omitempty"`
	Steps       int             `json:"steps"`
	Tokens      agentTokens     `json:"tokens"`
	Note        json.RawMessage `json:"note,omitempty"`
	Fingerprint string          `json:"fingerprint"`
	Seq         int64           `json:"seq"`
}

type agentTokens struct {
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	Reasoning  int64 `json:"reasoning,omitempty"`
	CacheRead  int64 `json:"cache_read,omitempty"`
	CacheWrite int64 `json:"cache_write,omitempty"`
	Cost       int64 `json:"cost,omitempty"`
	Calls      int   `json:"calls"`
}

type agentTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema"`
}

// agentMessage is a message in the database.
type agentMessage struct {
	Role    string        `json:"role"`
	Text    string        `json:"text,omitempty"`
	Thought string        `json:"thought,omitempty"`
	Images  []agentImage  `json:"images,omitempty"`
	Calls   []agentCall   `json:"calls,omitempty"`
	Results []agentResult `json:"results,omitempty"`
	Signed  *agentSigned  `json:"signed,omitempty"`
}

type agentSigned struct {
	Model string      `json:"model"`
	Parts []agentPart `json:"parts"`
}

type agentPart struct {
	Text      string `json:"text,omitempty"`
	Thought   string `json:"thought,omitempty"`
	Call      string `json:"call,omitempty"`
	Data      string `json:"data,omitempty"`
	Signature string `json:"signature,omitempty"`
}

type agentImage struct {
	MediaType string `json:"media_type"`
	Data      []byte `json:"data"`
	Name      string `json:"name,omitempty"`
}

type agentCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type agentDecision struct {
	Call    string    `json:"call"`
	Allowed bool      `json:"allowed"`
	Reason  string    `json:"reason,omitempty"`
	Decider string    `json:"decider,omitempty"`
	Time    time.Time `json:"time"`
}

type agentResult struct {
	Call   string       `json:"call"`
	Name   string       `json:"name"`
	Text   string       `json:"text"`
	Images []agentImage `json:"images,omitempty"`
	Failed bool         `json:"failed,omitempty"`
}

// encodeRun returns the detail of a run.
func encodeRun(r *agent.Record) (string, error) {
	d := agentDetail{
		Agent: r.Agent, Model: r.Model, System: r.Spec.System, Input: r.Spec.Input, Shape: r.Spec.Output,
		Sandbox: string(r.Sandbox), Session: r.Session, Workspace: r.Workspace, Scopes: r.Spec.Scopes, Reason: r.Reason, Text: r.Text, Output: r.Output,
		Steps: r.Steps, Tokens: agentTokens(r.Tokens), Fingerprint: r.Fingerprint, Seq: r.Seq,
	}
	d.Choice, d.Sampling, d.Note = r.Spec.Choice, r.Spec.Sampling, r.Note
	d.Tools = mapped(r.Spec.Tools, func(t engi.Tool) agentTool { return agentTool(t) })
	d.Calls = mapped(r.Calls, func(c engi.ToolCall) agentCall { return agentCall(c) })
	d.Confirm = r.Spec.Confirm
	d.Waiting = mapped(r.Waiting, func(c engi.ToolCall) agentCall { return agentCall(c) })
	d.Decided = mapped(r.Decided, func(x engi.CallDecision) agentDecision { return agentDecision(x) })
	d.Error = keepError(r.Error)
	return encode("run", d)
}

// decodeRun sets the fields of r that are in its detail.
func decodeRun(text string, r *agent.Record) error {
	var d agentDetail
	if err := decode("detail", text, &d); err != nil {
		return err
	}
	r.Agent, r.Model, r.Sandbox, r.Session = d.Agent, d.Model, engi.SandboxID(d.Sandbox), d.Session
	r.Workspace, r.Spec.Workspace = d.Workspace, d.Workspace
	r.Reason, r.Text, r.Output, r.Steps, r.Tokens = d.Reason, d.Text, d.Output, d.Steps, engi.Tokens(d.Tokens)
	r.Fingerprint, r.Seq = d.Fingerprint, d.Seq
	r.Spec.Choice, r.Spec.Sampling, r.Note = d.Choice, d.Sampling, d.Note
	r.Spec.Tools = mapped(d.Tools, func(t agentTool) engi.Tool { return engi.Tool(t) })
	r.Calls = mapped(d.Calls, func(c agentCall) engi.ToolCall { return engi.ToolCall(c) })
	r.Spec.Confirm = d.Confirm
	r.Waiting = mapped(d.Waiting, func(c agentCall) engi.ToolCall { return engi.ToolCall(c) })
	r.Decided = mapped(d.Decided, func(x agentDecision) engi.CallDecision { return engi.CallDecision(x) })
	r.Error = d.Error.decode()
	r.Spec.Owner, r.Spec.Agent, r.Spec.System, r.Spec.Input, r.Spec.Output = r.Owner, d.Agent, d.System, d.Input, d.Shape
	r.Spec.Sandbox, r.Spec.Session, r.Spec.Scopes = r.Sandbox, r.Session, d.Scopes
	return nil
}

func encodeImages(images []engi.Image) []agentImage {
	return mapped(images, func(img engi.Image) agentImage { return agentImage(img) })
}

func decodeImages(images []agentImage) []engi.Image {
	return mapped(images, func(img agentImage) engi.Image { return engi.Image(img) })
}

func encodeMessage(m engi.Message) (string, error) {
	d := agentMessage{Role: string(m.Role), Text: m.Text, Thought: m.Thought, Images: encodeImages(m.Images)}
	d.Calls = mapped(m.Calls, func(c engi.ToolCall) agentCall { return agentCall(c) })
	for _, r := range m.Results {
		d.Results = append(d.Results, agentResult{Call: r.Call, Name: r.Name, Text: r.Text, Images: encodeImages(r.Images), Failed: r.Failed})
	}
	if m.Signed != nil {
		d.Signed = &agentSigned{Model: m.Signed.Model}
		d.Signed.Parts = mapped(m.Signed.Parts, func(p engi.MessagePart) agentPart { return agentPart(p) })
	}
	return encode("message", d)
}

func decodeMessage(text string) (engi.Message, error) {
	var d agentMessage
	if err := decode("message", text, &d); err != nil {
		return engi.Message{}, err
	}
	m := engi.Message{Role: engi.Role(d.Role), Text: d.Text, Thought: d.Thought, Images: decodeImages(d.Images)}
	m.Calls = mapped(d.Calls, func(c agentCall) engi.ToolCall { return engi.ToolCall(c) })
	for _, r := range d.Results {
		m.Results = append(m.Results, engi.ToolResult{Call: r.Call, Name: r.Name, Text: r.Text, Images: decodeImages(r.Images), Failed: r.Failed})
	}
	if d.Signed != nil {
		m.Signed = &engi.SignedParts{Model: d.Signed.Model}
		m.Signed.Parts = mapped(d.Signed.Parts, func(p agentPart) engi.MessagePart { return engi.MessagePart(p) })
	}
	return m, nil
}

// putMessages stores the messages from number n on, and returns the messages that they
// replaced.
func putMessages(ctx context.Context, t *tx, id engi.RunID, n int, messages []engi.Message) (before []engi.Message, err error) {
	if before, err = list(ctx, t, scanMessage, `SELECT message FROM agent_messages WHERE run = ? AND n >= ? ORDER BY n`, id, n); err != nil {
		return nil, err
	}
	if _, err := t.exec(ctx, `DELETE FROM agent_messages WHERE run = ? AND n >= ?`, id, n); err != nil {
		return nil, err
	}
	for i, m := range messages {
		text, err := encodeMessage(m)
		if err != nil {
			return nil, err
		}
		if _, err := t.exec(ctx, `INSERT INTO agent_messages (run, n, message) VALUES (?, ?, ?)`, id, n+i, text); err != nil {
			return nil, err
		}
	}
	return before, nil
}

func scanMessage(row scanner) (m engi.Message, err error) {
	text, err := value[string](row)
	if err != nil {
		return m, err
	}
	return decodeMessage(text)
}

func (s agentStore) Put(ctx context.Context, r agent.Record, messages []engi.Message) (err error) {
	defer engi.Annotate(&err, "record run %s", r.ID)
	return s.db.tx(ctx, func(t *tx) error {
		if err := s.put(ctx, t, &r); err != nil {
			return err
		}
		if _, err := putMessages(ctx, t, r.ID, 0, messages); err != nil {
			return err
		}
		return s.record(ctx, t, &r, engi.EventRunStarted, map[string]any{
			"agent": r.Agent, "model": r.Model, "conversation_id": r.Conversation, "sandbox_id": r.Sandbox, "session": r.Session, "workspace": r.Workspace,
		})
	})
}

func (s agentStore) Update(ctx context.Context, r agent.Record, n int, messages []engi.Message) (err error) {
	defer engi.Annotate(&err, "record run %s", r.ID)
	return s.db.tx(ctx, func(t *tx) error {
		was, err := s.one(ctx, t, when(`id = ?`, r.ID))
		if err != nil {
			return err
		}
		if err := s.save(ctx, t, &r); err != nil {
			return err
		}
		before, err := putMessages(ctx, t, r.ID, n, messages)
		if err != nil {
			return err
		}
		for i, m := range messages {
			var old engi.Message
			if i < len(before) {
				old = before[i]
			}
			if err := s.messageEvents(ctx, t, r, old, m); err != nil {
				return err
			}
		}
		if err := s.decisionEvents(ctx, t, was, r); err != nil {
			return err
		}
		if r.State == was.State || r.State == engi.RunRunning {
			return nil
		}
		data := struct {
			State  engi.RunState `json:"state"`
			Reason string        `json:"reason,omitempty"`
			Text   string        `json:"text,omitempty"`
			Error  string        `json:"error,omitempty"`
			Kind   string        `json:"kind,omitempty"`
			Steps  int           `json:"steps"`
			Tokens agentTokens   `json:"tokens"`
		}{State: r.State, Reason: r.Reason, Text: clip.Text(r.Text, maxEventText), Steps: r.Steps, Tokens: agentTokens(r.Tokens)}
		if r.Error != nil {
			data.Error, data.Kind = r.Error.Text, r.Error.Kind.String()
		}
		return s.record(ctx, t, &r, engi.EventRunEnded, data)
	})
}

// messageEvents appends events for the change of message old to m: a step of the
// model, calls that may have started, results.
func (s agentStore) messageEvents(ctx context.Context, t *tx, r agent.Record, old, m engi.Message) error {
	record := func(kind string, data any) error { return s.record(ctx, t, &r, kind, data) }
	switch {
	case m.Role == engi.RoleAssistant && old.Role == "":
		calls := make([]map[string]string, len(m.Calls))
		for i, c := range m.Calls {
			calls[i] = map[string]string{"call": c.ID, "tool": c.Name, "arguments": clip.Text(c.Arguments, maxEventText)}
		}
		return record(engi.EventRunStep, map[string]any{"step": r.Steps, "text": clip.Text(m.Text, maxEventText), "calls": calls, "tokens": agentTokens(r.Tokens)})
	case m.Role == engi.RoleTool && old.Role == "":
		if err := record(engi.EventToolCalled, map[string]any{"step": r.Steps}); err != nil {
			return err
		}
	}
	if m.Role != engi.RoleTool {
		return nil
	}
	for _, x := range m.Results[min(len(old.Results), len(m.Results)):] {
		if err := record(engi.EventToolResult, map[string]any{"call": x.Call, "tool": x.Name, "failed": x.Failed, "text": clip.Text(x.Text, maxEventText)}); err != nil {
			return err
		}
	}
	return nil
}

// decisionEvents appends events for calls that started to wait for a decision since was, and
// for calls that received one.
func (s agentStore) decisionEvents(ctx context.Context, t *tx, was, r agent.Record) error {
	record := func(kind string, data any) error { return s.record(ctx, t, &r, kind, data) }
	for _, c := range r.Waiting {
		if slices.Contains(was.Waiting, c) {
			continue
		}
		if err := record(engi.EventToolWaiting, map[string]string{"call": c.ID, "tool": c.Name, "arguments": clip.Text(c.Arguments, maxEventText)}); err != nil {
			return err
		}
	}
	for _, d := range r.Decided {
		if slices.ContainsFunc(was.Decided, func(o engi.CallDecision) bool { return o.Call == d.Call }) {
			continue
		}
		if err := record(engi.EventToolDecided, map[string]any{"call": d.Call, "allowed": d.Allowed, "reason": d.Reason}); err != nil {
			return err
		}
	}
	return nil
}

const maxEventText = 4 << 10 // maximum bytes of a text in an event

func (s agentStore) List(ctx context.Context, viewer engi.Viewer, f agent.Filter) ([]agent.Record, error) {
	var w where
	w.owned(viewer)
	w.and(f.Conversation != "", `conversation = ?`, f.Conversation)
	w.and(f.Running, `state = 'running'`)
	return s.all(ctx, w, `seq DESC`, f.Limit)
}

func (s agentStore) Messages(ctx context.Context, id engi.RunID) ([]engi.Message, error) {
	return list(ctx, s.db.read, scanMessage, `SELECT message FROM agent_messages WHERE run = ? ORDER BY n`, id)
}

func (s agentStore) PutResult(ctx context.Context, id engi.RunID, call string, data []byte) error {
	_, err := s.db.exec(ctx, `INSERT OR REPLACE INTO agent_results (run, call, data) VALUES (?, ?, ?)`, id, call, data)
	return err
}

func (s agentStore) GetResult(ctx context.Context, id engi.RunID, call string) ([]byte, error) {
	missing := engi.Errorf(engi.NotFound, "no result of call %.100q is kept", call)
	return first(ctx, s.db.read, missing, value[[]byte], `SELECT data FROM agent_results WHERE run = ? AND call = ?`, id, call)
}

func (s agentStore) Delete(ctx context.Context, id engi.RunID) (err error) {
	defer engi.Annotate(&err, "delete run %s", id)
	return s.deleteWhere(ctx, `id = ?`, id)
}

func (s agentStore) Forget(ctx context.Context, before time.Time) error {
	return s.deleteWhere(ctx, `ended <> 0 AND ended < ?`, nanos(before))
}

func (s agentStore) deleteWhere(ctx context.Context, which string, arg any) error {
	return s.db.tx(ctx, func(t *tx) error {
		for _, q := range []string{
			`DELETE FROM agent_results WHERE run IN (SELECT id FROM agent_runs WHERE ` + which + `)`,
			`DELETE FROM agent_messages WHERE run IN (SELECT id FROM agent_runs WHERE ` + which + `)`,
			`DELETE FROM agent_runs WHERE ` + which,
		} {
			if _, err := t.run(ctx, q, arg); err != nil {
				return err
			}
		}
		return nil
	})
}
