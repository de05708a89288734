// Package holder keeps a sandbox for something that outlives it: a session, an app, the
// working copy of a workspace, a service. It creates the sandbox, finds it again after a
// crash, replaces it when it is gone, and destroys it.
//
// Whoever has a sandbox kept is called a thing here. The life of a sandbox of a thing:
//
//  1. The record of the thing names no sandbox. [Claim.Begin] records that one is being
//     created.
//  2. The sandbox is created. A node that is killed now leaves a sandbox that no record
//     names: [Holder.Open] finds it by its idempotency key, [Holder.Sweep] by its notes.
//  3. [Claim.Record] names the sandbox in the record, before anything is done in it.
//  4. The sandbox is entered, by this call of Open and by later ones. It may sleep in
//     between: entering wakes it.
//  5. The sandbox is gone once entering it reports NotFound. Then Open begins at 1. After
//     any other error, the sandbox may answer later, so it is kept.
//  6. [Holder.Release] destroys it. The caller records that there is none afterwards, so
//     that a node that is killed in between destroys it again.
//
// A holder keeps no state of its own: records do. Callers of Open and Release have the
// [Lock] of the thing, or another lock that excludes both.
package holder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	attempts   = 6 // to enter a sandbox that does not answer
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
	undoTime   = 30 * time.Second // for what is still to be done when the caller has gone
)

// A Holder keeps the sandboxes of all things of one kind. It is safe for concurrent use.
type Holder struct {
	Sandboxes engi.Sandboxes
	Thing     func(engi.Sandbox) string // that a sandbox was created for, by its notes; empty for none of this kind
	Log       *slog.Logger
}

// A Claim is the claim of one thing to a sandbox. Its functions are called by Open, in the
// order in which they are listed, Enter also before the others.
type Claim struct {
	// Key and Boots are the idempotency key of the next sandbox. What Begin returns must be
	// the same for one key. If it cannot be, Key is empty: then Sweep alone finds a sandbox
	// that no record names, and Open destroys one that it cannot record.
	Key     string
	Sandbox engi.SandboxID // that the record names; empty for none
	Boots   int            // sandboxes created so far

	// Begin records that the thing has no sandbox, and returns what to create.
	Begin func() (engi.SandboxSpec, error)
	// Record names a sandbox in the record of the thing, and how many were created so far.
	Record func(id engi.SandboxID, boots int) error
	// Enter enters a sandbox. created says that Open has just created it.
	Enter func(id engi.SandboxID, created bool) error
}

// Open enters the sandbox of a thing. If there is none, or it is gone, Open creates
// another one. created says that it tried to. After an error, Open can be called again
// with the claim that the record makes by then.
func (h Holder) Open(ctx context.Context, c Claim) (created bool, err error) {
	if c.Sandbox != "" {
		if err := c.Enter(c.Sandbox, false); err == nil || engi.KindOf(err) != engi.NotFound {
			return false, err
		}
	}
	spec, err := c.Begin()
	if err != nil {
		return true, err
	}
	var sb engi.Sandbox
	for sb.ID == "" || sb.State == engi.Stopped { // one that was created by a former node and has ended is of no use
		if c.Key != "" {
			spec.Idempotency = fmt.Sprintf("%s-%d", c.Key, c.Boots)
		}
		if sb, err = h.Sandboxes.Create(ctx, spec); err != nil {
			return true, err
		}
		c.Boots++
	}
	if err := c.Record(sb.ID, c.Boots); err != nil {
		if c.Key == "" { // the next call would not find it
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			if e := h.Destroy(late, sb.ID); e != nil {
				h.Log.ErrorContext(ctx, "destroy a sandbox that could not be recorded; the next node does", "sandbox", sb.ID, "error", e)
			}
		}
		return true, err
	}
	return true, c.Enter(sb.ID, true)
}

// Enter enters a sandbox, and tries again for three seconds if it does not answer. leave is
// never nil.
func (h Holder) Enter(ctx context.Context, id engi.SandboxID) (g engi.Guest, leave func(), err error) {
	for pause, i := firstPause, 1; ; pause, i = min(2*pause, lastPause), i+1 {
		if g, leave, err = h.Sandboxes.Enter(ctx, "", id); err == nil {
			return g, leave, nil
		}
		if engi.KindOf(err) != engi.Unavailable || i == attempts {
			return nil, func() {}, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, func() {}, engi.Errorf(engi.Expired, "wait for sandbox %s: %v", id, context.Cause(ctx))
		}
	}
}

// Look returns the record of a sandbox, and whether it is gone.
func (h Holder) Look(ctx context.Context, id engi.SandboxID) (sb engi.Sandbox, gone bool, err error) {
	sb, err = h.Sandboxes.Get(ctx, "", id)
	if err != nil && engi.KindOf(err) == engi.NotFound {
		return sb, true, nil
	}
	return sb, err == nil && sb.State == engi.Stopped, err
}

// Runs reports whether a sandbox runs: it is neither gone nor asleep, as far as is known.
func (h Holder) Runs(ctx context.Context, id engi.SandboxID) bool {
	sb, _, err := h.Look(ctx, id)
	return err == nil && sb.State == engi.Running
}

// Destroy destroys a sandbox, unless it is gone, or id is empty.
func (h Holder) Destroy(ctx context.Context, id engi.SandboxID) error {
	if id == "" {
		return nil
	}
	if err := h.Sandboxes.Stop(ctx, "", id); err != nil && engi.KindOf(err) != engi.NotFound {
		return err
	}
	return nil
}

// Release destroys the sandbox of a thing. id is the one that its record names. If it names
// none, and begun says that one may have been created, Release destroys all that were
// created for the thing.
func (h Holder) Release(ctx context.Context, thing string, id engi.SandboxID, begun bool) error {
	if id != "" || !begun {
		return h.Destroy(ctx, id)
	}
	all, err := h.all(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, sb := range all {
		if h.Thing(sb) == thing {
			errs = append(errs, h.Destroy(ctx, sb.ID))
		}
	}
	return errors.Join(errs...)
}

// Sweep destroys the sandboxes of things that do not need them. A node calls it when it
// starts, before anything is opened. needed may adopt a sandbox: it records it and returns
// true. An error of needed ends the sweep. What cannot be destroyed is logged, and is left
// to the next node.
func (h Holder) Sweep(ctx context.Context, needed func(sb engi.Sandbox) (bool, error)) error {
	all, err := h.all(ctx)
	if err != nil {
		return err
	}
	for _, sb := range all {
		thing := h.Thing(sb)
		if thing == "" {
			continue
		}
		ok, err := needed(sb)
		if err != nil {
			return err
		}
		if ok {
			continue
		}
		h.Log.InfoContext(ctx, "destroy a sandbox that nothing needs", "thing", thing, "sandbox", sb.ID)
		if err := h.Destroy(ctx, sb.ID); err != nil {
			h.Log.ErrorContext(ctx, "destroy a sandbox that nothing needs", "thing", thing, "sandbox", sb.ID, "error", err)
		}
	}
	return nil
}

// all returns the sandboxes that owners have.
func (h Holder) all(ctx context.Context) ([]engi.Sandbox, error) {
	return h.Sandboxes.List(ctx, "", engi.SandboxFilter{Owned: true, Limit: -1})
}

// A Lock is had by one caller at a time: it is full meanwhile.
type Lock chan struct{}

// NewLock returns a lock that nobody has.
func NewLock() Lock { return make(Lock, 1) }

// Acquire waits for the lock. It reports Expired if ctx ends before; thing says in the
// error what was waited for.
func (l Lock) Acquire(ctx context.Context, thing string) (release func(), err error) {
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, engi.Errorf(engi.Expired, "wait for the %s: %v", thing, context.Cause(ctx))
	}
}

// Try takes the lock if nobody has it.
func (l Lock) Try() (release func(), ok bool) {
	select {
	case l <- struct{}{}:
		return func() { <-l }, true
	default:
		return nil, false
	}
}
