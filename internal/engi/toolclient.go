package engi

import (
	"context"
	"time"
)

// A ToolClient is the MCP session of a program that uses the tools of this node, as
// far as the next server needs it to continue. It is a value.
type ToolClient struct {
	ID    string
	Key   string // ID of the key that opened the session, with which it ends
	About []byte // message that opened the session
	Used  time.Time
}

// A ToolRequest is a request within a session with its answers, so
// that a program whose connection broke gets its answers from the next server,
// too. It is a value.
type ToolRequest struct {
	Client, Stream string // session, and stream of the answers in it
	Run            RunID  // ID under which the work is done at most once; empty for none
	Body           []byte // body as it was sent
	Answers        [][]byte
}

// ToolClients stores sessions of clients. It is safe for concurrent use.
type ToolClients interface {
	// Put records a session, which then survives a crash, and deletes sessions
	// that were not used after since. It reports Exhausted if the key already has
	// limit sessions.
	Put(ctx context.Context, c ToolClient, limit int, since time.Time) error
	// Get returns a session of a key. It reports NotFound for a session that was not
	// used after since.
	Get(ctx context.Context, key, id string, since time.Time) (ToolClient, error)
	// Touch records that a session is used.
	Touch(ctx context.Context, id string, at time.Time) error
	// Delete deletes a session of a key. A missing session is no error.
	Delete(ctx context.Context, key, id string) error
	// PutRequest records a request and deletes all requests of the session's key except the
	// last limit.
	PutRequest(ctx context.Context, r ToolRequest, limit int) error
	// AddAnswer records an answer to a request, unless the request's answers together
	// would have more than about limit bytes. A missing request is no error.
	AddAnswer(ctx context.Context, client, stream string, answer []byte, limit int) error
	// Request returns a request.
	Request(ctx context.Context, client, stream string) (ToolRequest, error)
}
