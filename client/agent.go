package client

import (
	"context"
	"crypto/rand"
	"iter"
	"net/http"
	"strconv"

	"github.com/engi-dev/engi/api/v1"
)

// Agents returns the agents of the node.
func (c *Client) Agents(ctx context.Context) ([]v1.Agent, error) {
	list, err := get[v1.List[v1.Agent]](ctx, c, &call{method: http.MethodGet, path: "/v1/agents"})
	return list.Items, err
}

// ToolServers returns the MCP servers that agents may use, as they were known
// last.
func (c *Client) ToolServers(ctx context.Context) ([]v1.ToolServer, error) {
	list, err := get[v1.List[v1.ToolServer]](ctx, c, &call{method: http.MethodGet, path: "/v1/mcp-servers"})
	return list.Items, err
}

// StartRun puts an agent to work and returns at once. A broken connection
// makes no second run.
func (c *Client) StartRun(ctx context.Context, agent string, q v1.RunRequest) (v1.AgentRun, error) {
	return get[v1.AgentRun](ctx, c, &call{
		method: http.MethodPost, path: "/v1/agents" + segment(agent) + "/runs", body: encode(q),
		header: http.Header{"Idempotency-Key": {rand.Text()}},
	})
}

// Chat says something to an agent and waits for the answer. A broken
// connection makes no second run.
func (c *Client) Chat(ctx context.Context, q v1.ChatRequest) (v1.ChatAnswer, error) {
	return get[v1.ChatAnswer](ctx, c, &call{
		method: http.MethodPost, path: "/v1/chat", body: encode(q), header: http.Header{"Idempotency-Key": {rand.Text()}},
	})
}

// Runs returns up to limit runs of agents, the newest first.
func (c *Client) Runs(ctx context.Context, limit int) ([]v1.AgentRun, error) {
	list, err := get[v1.List[v1.AgentRun]](ctx, c, &call{method: http.MethodGet, path: "/v1/runs?limit=" + strconv.Itoa(limit)})
	return list.Items, err
}

// AgentRun returns one run of an agent.
func (c *Client) AgentRun(ctx context.Context, id string) (v1.AgentRun, error) {
	return get[v1.AgentRun](ctx, c, &call{method: http.MethodGet, path: "/v1/runs" + segment(id)})
}

// RunMessages returns all that was said in a run.
func (c *Client) RunMessages(ctx context.Context, id string) ([]v1.Message, error) {
	list, err := get[v1.List[v1.Message]](ctx, c, &call{method: http.MethodGet, path: "/v1/runs" + segment(id) + "/messages"})
	return list.Items, err
}

// CancelRun ends a run.
func (c *Client) CancelRun(ctx context.Context, id string) error {
	return c.act(ctx, &call{method: http.MethodDelete, path: "/v1/runs" + segment(id)})
}

// WatchRun yields what happens in a run after an offset; the last event has
// the run as it ended. A connection that breaks is made again from where it
// broke.
func (c *Client) WatchRun(ctx context.Context, id string, after int64) iter.Seq2[v1.AgentEvent, error] {
	return func(yield func(v1.AgentEvent, error) bool) {
		for tries := 0; ; tries++ {
			came, last, err := c.watchRun(ctx, id, &after, yield)
			if last {
				return
			}
			if came {
				tries = 0
			}
			if tries >= watchTries || ctx.Err() != nil {
				if err == nil {
					err = failure(v1.Unavailable, "the run goes on: watch it again", "the answer broke off before the end")
				}
				yield(v1.AgentEvent{}, err)
				return
			}
		}
	}
}

// watchTries is how often a stream is opened again without anything new.
const watchTries = 3

// watchRun is one connection. It reports whether anything came, and whether
// the caller needs no more.
func (c *Client) watchRun(ctx context.Context, id string, after *int64, yield func(v1.AgentEvent, error) bool) (came, last bool, _ error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.do(ctx, &call{
		method: http.MethodGet, path: "/v1/runs" + segment(id) + "/events?after=" + strconv.FormatInt(*after, 10),
		header: http.Header{"Accept": {"application/x-ndjson"}},
	})
	if err != nil {
		yield(v1.AgentEvent{}, err)
		return false, true, nil
	}
	defer resp.Body.Close()
	for e, err := range lines[v1.AgentEvent](resp.Body, cancel) {
		switch {
		case err != nil:
			return came, false, c.unreachable(ctx, err)
		case e.Type == v1.EventHeartbeat:
			continue
		case e.Type == v1.EventError && e.Error != nil:
			return came, false, &Error{*e.Error}
		}
		*after, came = e.Offset, true
		if !yield(e, nil) || e.Run != nil {
			return came, true, nil
		}
	}
	return came, false, nil
}
