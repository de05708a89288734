package node

import (
	"context"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/llm"
	"github.com/engi-dev/engi/node/library"
)

// openLibrary makes the library, or none where it is off.
func (n *Node) openLibrary(ctx context.Context, models *llm.Registry) (err error) {
	rooms := library.Rooms{DB: n.db, Sessions: n.Sessions(), Models: models, Log: n.log.With("room", "library")}
	if n.wall != nil {
		rooms.Wall = n.wall
	}
	n.library, err = library.Open(ctx, n.config, rooms)
	return err
}

// Library is the node's front desk of documentation; nil if it keeps none.
func (n *Node) Library() engi.Library {
	if n.library == nil {
		return nil
	}
	return n.library
}
