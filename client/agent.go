package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

const runs = "/v1/runs"

// Agents returns the agents of the node.
func (c *Client) Agents(ctx context.Context) ([]v1.Agent, error) {
	return list[v1.Agent](ctx, c, "/v1/agents", nil)
}

// ToolServers returns the MCP servers that agents may use, in their last known
// state.
func (c *Client) ToolServers(ctx context.Context) ([]v1.ToolServer, error) {
	return list[v1.ToolServer](ctx, c, "/v1/mcp-servers", nil)
}

// StartRun starts a run of an agent and returns at once. A broken connection
// starts no second run.
func (c *Client) StartRun(ctx context.Context, agent string, q v1.RunRequest) (v1.AgentRun, error) {
	return create[v1.AgentRun](ctx, c, "/v1/agents"+segment(agent)+"/runs", q)
}

// Chat sends a message to an agent and waits for the answer. A broken
// connection starts no second run.
func (c *Client) Chat(ctx context.Context, q v1.ChatRequest) (v1.ChatAnswer, error) {
	return create[v1.ChatAnswer](ctx, c, "/v1/chat", q)
}

// Runs returns up to limit runs of agents, newest first.
func (c *Client) Runs(ctx context.Context, limit int) ([]v1.AgentRun, error) {
	return list[v1.AgentRun](ctx, c, runs, set("limit", number(limit)))
}

// AgentRun returns one run of an agent.
func (c *Client) AgentRun(ctx context.Context, id string) (v1.AgentRun, error) {
	return get[v1.AgentRun](ctx, c, runs+segment(id), nil)
}

// RunMessages returns all messages of a run.
func (c *Client) RunMessages(ctx context.Context, id string) ([]v1.Message, error) {
	return list[v1.Message](ctx, c, runs+segment(id)+"/messages", nil)
}

// CancelRun ends a run.
func (c *Client) CancelRun(ctx context.Context, id string) error {
	return c.remove(ctx, runs+segment(id))
}

// DecideCall allows or refuses a tool call of a run. The key needs the scope
// approvals.
func (c *Client) DecideCall(ctx context.Context, run, id string, d v1.CallDecision) error {
	return c.act(ctx, &call{method: http.MethodPost, path: runs + segment(run) + "/calls" + segment(id) + "/decision", body: d, once: true})
}

// WatchRun yields the updates of a run after an offset; the last one has
// the final state of the run. It resumes a broken stream where it left off.
func (c *Client) WatchRun(ctx context.Context, id string, after int64) iter.Seq2[v1.AgentUpdate, error] {
	next := func() *call {
		return &call{method: http.MethodGet, path: runs + segment(id) + "/events", query: set("after", offset(after)), header: ndjson()}
	}
	read := func(e v1.AgentUpdate) (string, *v1.Problem) { return e.Type, e.Error }
	return resumed(ctx, c, next, func() int64 { return after }, stream[v1.AgentUpdate]{read: read, remedy: "the run continues: watch it again"}, func(e *v1.AgentUpdate) (wanted, last bool) {
		after = e.Offset
		return true, e.Run != nil
	})
}
