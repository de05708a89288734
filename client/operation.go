package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

const operations = "/v1/operations"

// An OperationFilter selects operations. Zero fields select all operations.
type OperationFilter struct {
	Type  string
	State string // v1.OperationRunning …
	Limit int    // 0 means 100; at most 1000
}

// Operations returns operations, newest first.
func (c *Client) Operations(ctx context.Context, f OperationFilter) ([]v1.Operation, error) {
	return list[v1.Operation](ctx, c, operations, set("type", f.Type, "state", f.State, "limit", number(f.Limit)))
}

// Operation returns the current state of an operation.
func (c *Client) Operation(ctx context.Context, id string) (v1.Operation, error) {
	return get[v1.Operation](ctx, c, operations+segment(id), nil)
}

// WaitOperation returns an operation when it has ended.
func (c *Client) WaitOperation(ctx context.Context, id string) (v1.Operation, error) {
	for {
		x, err := get[v1.Operation](ctx, c, operations+segment(id), set("wait", longPoll.String()))
		if err != nil || x.Over() {
			return x, err
		}
	}
}

// WatchOperation yields the updates of an operation after an offset; the last one
// has its final state. It resumes a broken stream where it left
// off.
func (c *Client) WatchOperation(ctx context.Context, id string, after int64) iter.Seq2[v1.OperationUpdate, error] {
	next := func() *call {
		return &call{method: http.MethodGet, path: operations + segment(id) + "/events", query: set("offset", offset(after)), header: ndjson()}
	}
	read := func(e v1.OperationUpdate) (string, *v1.Problem) { return e.Type, e.Error }
	return resumed(ctx, c, next, func() int64 { return after }, stream[v1.OperationUpdate]{read: read, remedy: "the operation continues: watch it again"}, func(e *v1.OperationUpdate) (wanted, last bool) {
		after = e.Offset
		return true, e.Operation != nil
	})
}

// CancelOperation cancels an operation and returns when it has ended. An operation that has
// already ended does not change.
func (c *Client) CancelOperation(ctx context.Context, id string) error {
	return c.remove(ctx, operations+segment(id))
}
