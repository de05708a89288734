package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent"
)

// agentShelf is the agents' shelf in the database.
type agentStore struct{ db *DB }

// Agents returns the shelf for runs of agents.
func Agents(db *DB) agent.Store { return agentStore{db} }

// AgentResults returns the shelf for what tools said in them at length.
func AgentResults(db *DB) agent.Results { return agentStore{db} }

const agentColumns = `id, owner, conversation, state, created, ended, idempotency, detail`

// agentDetail is what of a run nobody searches for.
type agentDetail struct {
	Agent       string          `json:"agent"`
	Model       string          `json:"model"`
	System      string          `json:"system,omitempty"`
	Input       string          `json:"input,omitempty"`
	Shape       json.RawMessage `json:"shape,omitempty"`
	Sandbox     string          `json:"sandbox,omitempty"`
	Session     string          `json:"session,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Text        string          `json:"text,omitempty"`
	Output      json.RawMessage `json:"output,omitempty"`
	Error       *keptError      `json:"error,omitempty"`
	Steps       int             `json:"steps"`
	Tokens      agentTokens     `json:"tokens"`
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

// agentMessage is a message in the database.
type agentMessage struct {
	Role    string        `json:"role"`
	Text    string        `json:"text,omitempty"`
	Thought string        `json:"thought,omitempty"`
	Images  []agentImage  `json:"images,omitempty"`
	Calls   []agentCall   `json:"calls,omitempty"`
	Results []agentResult `json:"results,omitempty"`
}

type agentImage struct {
	MediaType string `json:"media_type"`
	Data      []byte `json:"data"`
}

type agentCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type agentResult struct {
	Call   string       `json:"call"`
	Name   string       `json:"name"`
	Text   string       `json:"text"`
	Images []agentImage `json:"images,omitempty"`
	Failed bool         `json:"failed,omitempty"`
}

func agentValues(r agent.Record) ([]any, error) {
	d := agentDetail{
		Agent: r.Agent, Model: r.Model, System: r.Spec.System, Input: r.Spec.Input, Shape: r.Spec.Output,
		Sandbox: string(r.Sandbox), Session: r.Session, Reason: r.Reason, Text: r.Text, Output: r.Output,
		Steps: r.Steps, Tokens: agentTokens(r.Tokens), Fingerprint: r.Fingerprint, Seq: r.Seq,
	}
	d.Error = keepError(r.Error)
	text, err := json.Marshal(d)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "encode: %v", err)
	}
	return []any{string(r.ID), string(r.Owner), string(r.Conversation), string(r.State), nanos(r.Created), nanos(r.Ended), r.Spec.Idempotency, string(text)}, nil
}

func scanAgent(row interface{ Scan(...any) error }) (r agent.Record, err error) {
	var created, ended int64
	var text string
	if err := row.Scan(&r.ID, &r.Owner, &r.Conversation, &r.State, &created, &ended, &r.Spec.Idempotency, &text); err != nil {
		return r, err
	}
	var d agentDetail
	if json.Unmarshal([]byte(text), &d) != nil {
		return r, engi.Errorf(engi.Internal, "decode run %s: its record is damaged", r.ID)
	}
	r.Created, r.Ended = moment(created), moment(ended)
	r.Agent, r.Model, r.Sandbox, r.Session = d.Agent, d.Model, engi.SandboxID(d.Sandbox), d.Session
	r.Reason, r.Text, r.Output, r.Steps, r.Tokens = d.Reason, d.Text, d.Output, d.Steps, engi.Tokens(d.Tokens)
	r.Fingerprint, r.Seq = d.Fingerprint, d.Seq
	r.Error = d.Error.decode()
	r.Spec.Owner, r.Spec.Agent, r.Spec.System, r.Spec.Input, r.Spec.Output = r.Owner, d.Agent, d.System, d.Input, d.Shape
	r.Spec.Sandbox, r.Spec.Session = r.Sandbox, r.Session
	return r, nil
}

func encodeImages(images []engi.Image) (all []agentImage) {
	for _, img := range images {
		all = append(all, agentImage(img))
	}
	return all
}

func decodeImages(images []agentImage) (all []engi.Image) {
	for _, img := range images {
		all = append(all, engi.Image(img))
	}
	return all
}

func encodeMessage(m engi.Message) (string, error) {
	d := agentMessage{Role: string(m.Role), Text: m.Text, Thought: m.Thought, Images: encodeImages(m.Images)}
	for _, c := range m.Calls {
		d.Calls = append(d.Calls, agentCall(c))
	}
	for _, r := range m.Results {
		d.Results = append(d.Results, agentResult{r.Call, r.Name, r.Text, encodeImages(r.Images), r.Failed})
	}
	text, err := json.Marshal(d)
	if err != nil {
		return "", engi.Errorf(engi.Invalid, "encode: %v", err)
	}
	return string(text), nil
}

func decodeMessage(text string) (engi.Message, error) {
	var d agentMessage
	if json.Unmarshal([]byte(text), &d) != nil {
		return engi.Message{}, engi.Errorf(engi.Internal, "decode: a message is damaged")
	}
	m := engi.Message{Role: engi.Role(d.Role), Text: d.Text, Thought: d.Thought, Images: decodeImages(d.Images)}
	for _, c := range d.Calls {
		m.Calls = append(m.Calls, engi.ToolCall(c))
	}
	for _, r := range d.Results {
		m.Results = append(m.Results, engi.ToolResult{Call: r.Call, Name: r.Name, Text: r.Text, Images: decodeImages(r.Images), Failed: r.Failed})
	}
	return m, nil
}

func putMessages(ctx context.Context, tx *sql.Tx, id engi.RunID, n int, messages []engi.Message) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM agent_messages WHERE run = ? AND n >= ?`, string(id), n); err != nil {
		return fault(ctx, err)
	}
	for i, m := range messages {
		text, err := encodeMessage(m)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO agent_messages (run, n, message) VALUES (?, ?, ?)`, string(id), n+i, text); err != nil {
			return fault(ctx, err)
		}
	}
	return nil
}

func (s agentStore) Put(ctx context.Context, r agent.Record, messages []engi.Message) (err error) {
	defer engi.Annotate(&err, "record run %s", r.ID)
	values, err := agentValues(r)
	if err != nil {
		return err
	}
	return s.db.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO agent_runs (`+agentColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, values...); err != nil {
			if strings.Contains(err.Error(), "UNIQUE constraint") {
				return engi.Errorf(engi.Conflict, "there is a run of this idempotency key")
			}
			return fault(ctx, err)
		}
		return putMessages(ctx, tx, r.ID, 0, messages)
	})
}

func (s agentStore) Update(ctx context.Context, r agent.Record, n int, messages []engi.Message) (err error) {
	defer engi.Annotate(&err, "record run %s", r.ID)
	values, err := agentValues(r)
	if err != nil {
		return err
	}
	return s.db.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE agent_runs SET state = ?, ended = ?, detail = ? WHERE id = ?`, values[3], values[5], values[7], values[0])
		if err != nil {
			return fault(ctx, err)
		}
		if changed, err := res.RowsAffected(); err != nil || changed == 0 {
			return noRun()
		}
		return putMessages(ctx, tx, r.ID, n, messages)
	})
}

func noRun() error {
	return engi.Errorf(engi.NotFound, "there is no such run").WithRemedy("'engi agent runs' shows yours")
}

func (s agentStore) one(ctx context.Context, query string, args ...any) (agent.Record, error) {
	r, err := scanAgent(s.db.read.QueryRowContext(ctx, `SELECT `+agentColumns+` FROM agent_runs WHERE `+query, args...))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return r, noRun()
	case err != nil && engi.KindOf(err) == engi.Internal:
		if _, ok := errors.AsType[*engi.Error](err); !ok {
			return r, fault(ctx, err)
		}
	}
	return r, err
}

func (s agentStore) all(ctx context.Context, query string, args ...any) ([]agent.Record, error) {
	rows, err := s.db.read.QueryContext(ctx, `SELECT `+agentColumns+` FROM agent_runs WHERE `+query, args...)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var all []agent.Record
	for rows.Next() {
		r, err := scanAgent(rows)
		if err != nil {
			if _, ok := errors.AsType[*engi.Error](err); ok {
				return nil, err
			}
			return nil, fault(ctx, err)
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return all, nil
}

func (s agentStore) Repeated(ctx context.Context, owner engi.Owner, key string) (agent.Record, error) {
	return s.one(ctx, `owner = ? AND idempotency = ? AND idempotency <> ''`, string(owner), key)
}

func (s agentStore) Get(ctx context.Context, owner engi.Owner, id engi.RunID) (agent.Record, error) {
	return s.one(ctx, `id = ? AND (? = '' OR owner = ?)`, string(id), string(owner), string(owner))
}

func (s agentStore) List(ctx context.Context, owner engi.Owner, f agent.Filter) ([]agent.Record, error) {
	if f.Limit <= 0 {
		f.Limit = -1
	}
	state := ""
	if f.Running {
		state = string(engi.RunRunning)
	}
	return s.all(ctx, `(? = '' OR owner = ?) AND (? = '' OR conversation = ?) AND (? = '' OR state = ?) ORDER BY seq DESC LIMIT ?`,
		string(owner), string(owner), string(f.Conversation), string(f.Conversation), state, state, f.Limit)
}

func (s agentStore) Messages(ctx context.Context, id engi.RunID) ([]engi.Message, error) {
	rows, err := s.db.read.QueryContext(ctx, `SELECT message FROM agent_messages WHERE run = ? ORDER BY n`, string(id))
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var all []engi.Message
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, fault(ctx, err)
		}
		m, err := decodeMessage(text)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return all, nil
}

func (s agentStore) Keep(ctx context.Context, id engi.RunID, call string, data []byte) error {
	if _, err := s.db.write.ExecContext(ctx, `INSERT OR REPLACE INTO agent_results (run, call, data) VALUES (?, ?, ?)`, string(id), call, data); err != nil {
		return fault(ctx, err)
	}
	return nil
}

func (s agentStore) Kept(ctx context.Context, id engi.RunID, call string) (data []byte, err error) {
	err = s.db.read.QueryRowContext(ctx, `SELECT data FROM agent_results WHERE run = ? AND call = ?`, string(id), call).Scan(&data)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, engi.Errorf(engi.NotFound, "no result of call %.100q is kept", call)
	case err != nil:
		return nil, fault(ctx, err)
	}
	return data, nil
}

func (s agentStore) Forget(ctx context.Context, before time.Time) error {
	return s.db.tx(ctx, func(tx *sql.Tx) error {
		const old = `(SELECT id FROM agent_runs WHERE ended <> 0 AND ended < ?)`
		for _, q := range []string{
			`DELETE FROM agent_results WHERE run IN ` + old,
			`DELETE FROM agent_messages WHERE run IN ` + old,
			`DELETE FROM agent_runs WHERE ended <> 0 AND ended < ?`,
		} {
			if _, err := tx.ExecContext(ctx, q, nanos(before)); err != nil {
				return fault(ctx, err)
			}
		}
		return nil
	})
}
