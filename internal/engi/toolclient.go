package engi

import (
	"context"
	"time"
)

// A ToolClient is the session of a program that uses the tools of this node, as
// far as the next server needs it to go on. It is a value.
type ToolClient struct {
	ID    string
	Key   string // ID of the key that opened it, and that it ends with
	About []byte // the message that opened it
	Used  time.Time
}

// A ToolRequest is what was asked within a session, and what was answered, so
// that a program whose connection broke gets its answers from the next server,
// too. It is a value.
type ToolRequest struct {
	Client, Stream string // the session, and the stream of the answers in it
	Run            RunID  // names it to what does its work once; empty for none
	Body           []byte // as it was sent
	Answers        [][]byte
}

// ToolClients keeps sessions of clients. It is safe for concurrent use.
type ToolClients interface {
	// Put records a session, which survives a kill from then on, and forgets
	// those that were not used after since. It reports Exhausted if the key has
	// limit sessions already.
	Put(ctx context.Context, c ToolClient, limit int, since time.Time) error
	// Get returns a session of a key. It reports NotFound for one that was not
	// used after since.
	Get(ctx context.Context, key, id string, since time.Time) (ToolClient, error)
	// Touch records that a session is used.
	Touch(ctx context.Context, id string, at time.Time) error
	// Delete forgets a session of a key; none is no error.
	Delete(ctx context.Context, key, id string) error
	// PutRequest records a request and forgets all of its session's key but the
	// last limit.
	PutRequest(ctx context.Context, r ToolRequest, limit int) error
	// AddAnswer records an answer to a request, unless all of its answers together
	// would have more than about limit bytes. No such request is no error.
	AddAnswer(ctx context.Context, client, stream string, answer []byte, limit int) error
	// Request returns a request.
	Request(ctx context.Context, client, stream string) (ToolRequest, error)
}
