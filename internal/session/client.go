package session

import (
	"context"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// lingering is the time in which a disconnected client can reconnect without being
// detached, because connections break, and scripts make a new connection for each command.
const lingering = 10 * time.Second

// A connected client is attached while it has connections. It is not in the
// store, because its connections end with the process in any case.
type connected struct {
	engi.SessionClient
	open int       // number of connections
	left time.Time // time at which the last connection ended
}

// attached returns the attached clients. The caller holds mu.
func (live *liveSession) attached() []engi.SessionClient {
	all := slices.Clone(live.rec.Attached)
	for _, c := range live.clients {
		if c.open > 0 {
			all = append(all, c.SessionClient)
		}
	}
	return all
}

// connect attaches the client that ctx names, if any, until leave is called. A failure of
// that is only logged, because the client's request does not depend on it.
func (m *Manager) connect(ctx context.Context, live *liveSession) (leave func()) {
	who := engi.ClientOf(ctx)
	if who.Name == "" {
		return func() {}
	}
	live.mu.Lock()
	i := slices.IndexFunc(live.clients, func(c *connected) bool { return c.Via == who.Via && c.Name == who.Name })
	isNew := i < 0
	if isNew {
		who.Since = timestamp()
		i = len(live.clients)
		live.clients = append(live.clients, &connected{SessionClient: who})
	}
	c := live.clients[i]
	c.open++
	live.mu.Unlock()
	if isNew {
		m.noteClient(ctx, live, engi.EventSessionAttached, who)
	}
	return func() {
		live.mu.Lock()
		defer live.mu.Unlock()
		c.open--
		c.left = time.Now()
	}
}

func (m *Manager) noteClient(ctx context.Context, live *liveSession, kind string, c engi.SessionClient) {
	err := m.update(ctx, live, func(r *Record) {
		r.Note = &Note{Type: kind, Data: map[string]any{"client": c.Name, "via": c.Via, "clients": len(live.attached())}} // mu is held by update
	})
	if err != nil && ctx.Err() == nil {
		m.opt.Log.WarnContext(ctx, "record who is attached to a session", "session", live.id, "client", c.Name, "error", err)
	}
}

// seeOff detaches clients that have been disconnected for too long, and saves the workspace when
// no client is left. It stops nothing: started programs continue until dormancy.
func (m *Manager) seeOff(ctx context.Context, live *liveSession) {
	var gone []engi.SessionClient
	live.mu.Lock()
	live.clients = slices.DeleteFunc(live.clients, func(c *connected) bool {
		left := c.open == 0 && time.Since(c.left) >= lingering
		if left {
			gone = append(gone, c.SessionClient)
		}
		return left
	})
	save := len(gone) > 0 && len(live.clients)+len(live.rec.Attached) == 0 && live.rec.Changed && !live.leaving
	live.mu.Unlock()
	for _, c := range gone {
		m.noteClient(ctx, live, engi.EventSessionDetached, c)
	}
	if save {
		m.saveLater(live)
	}
}
