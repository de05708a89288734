package key

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A use is the shared parent of the contexts of one key.
type use struct {
	ctx   context.Context // ends with the key
	end   context.CancelCauseFunc
	timer *time.Timer // triggers the next check of the key
	count int         // number of contexts; guarded by Keyring.mu
}

// Valid implements [engi.Keys]. The context ends at once after a revocation in
// this process, and within a few seconds after one in another process.
func (r *Keyring) Valid(ctx context.Context, secret string) (context.Context, context.CancelFunc) {
	h := Hash(sha256.Sum256([]byte(secret)))
	r.mu.Lock()
	u := r.inUse[h]
	if u == nil {
		u = new(use)
		u.ctx, u.end = context.WithCancelCause(context.Background())
		u.timer = time.AfterFunc(0, func() { r.look(h, u) })
		r.inUse[h] = u
	}
	u.count++
	r.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(u.ctx, func() { cancel(context.Cause(u.ctx)) })
	return ctx, sync.OnceFunc(func() {
		stop()
		cancel(nil)
		r.release(h, u)
	})
}

func (r *Keyring) release(h Hash, u *use) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u.count--; u.count == 0 {
		u.timer.Stop()
		u.end(nil)
		delete(r.inUse, h)
	}
}

// look ends the contexts of a key that is no longer valid, or schedules the next check.
func (r *Keyring) look(h Hash, u *use) {
	r.mu.RLock()
	before := r.changes
	r.mu.RUnlock()
	k, err := r.authenticate(u.ctx, h)
	if engi.Is(err, engi.Anonymous) {
		u.end(err)
		return
	}
	next := cacheTTL
	if !k.Expires.IsZero() {
		next = min(next, time.Until(k.Expires))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case u.count == 0:
	case r.changes != before:
		u.timer.Reset(0)
	default:
		u.timer.Reset(next)
	}
}
