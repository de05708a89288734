// Package holder manages the sandbox of an object that outlives it: a session, an app, the
// working copy of a workspace, a service. It creates the sandbox, finds it again after a
// crash, replaces it when it is gone, and destroys it.
//
// A thing, in this package, is a session, an app and so on. The life of its sandbox:
//
//  1. The record of the thing names no sandbox. [Claim.Begin] records that one is being
//     created.
//  2. The sandbox is created. A node that is killed now leaves a sandbox which no record
//     names. The next node finds it: [Holder.Open] by its idempotency key, [Holder.Sweep]
//     by its notes.
//  3. [Claim.Record] names the sandbox in the record, before anything is done in it.
//  4. Open enters the sandbox, as later calls do. A sandbox that sleeps wakes then.
//  5. The sandbox is gone once entering it reports NotFound. Then Open begins at 1. After
//     any other error, the sandbox may answer later, so it is kept.
//  6. [Holder.Release] destroys the sandbox. The caller records afterwards that there is
//     none. If the node is killed in between, the next one destroys the sandbox again.
//
// A holder has no state of its own: the records do. Callers of Open and Release hold the
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
	attempts   = 6                      // maximum number of attempts of Reconnect
	firstPause = 100 * time.Millisecond // pause after the first attempt; doubled after each
	lastPause  = 2 * time.Second        // maximum pause between attempts
	undoTime   = 30 * time.Second       // maximum time of the cleanup after an error, even if the caller's context has ended
)

// A Holder keeps the sandboxes of all things of one kind. It is safe for concurrent use.
type Holder struct {
	Sandboxes engi.Sandboxes
	Thing     func(engi.Sandbox) string   // returns the thing named in the notes of a sandbox; empty if the notes name none of this kind
	Bound     func(engi.Guest) engi.Guest // returns the guest with time limits on its calls; nil for no limits
	Log       *slog.Logger                // required
}

// A Claim is the claim of one thing to a sandbox, as recorded for the thing. Open
// calls the functions of a claim, and no two of them at once.
type Claim struct {
	Thing string // the thing, as returned by [Holder.Thing]
	// Key and Boots together are the idempotency key of the next sandbox, for which Begin
	// returns the same spec each time, unless the configuration has changed. If it cannot,
	// Key is empty. Then Sweep alone finds a sandbox which no record names, and Open
	// destroys a sandbox that it cannot record.
	Key     string
	Sandbox engi.SandboxID // ID of the recorded sandbox; empty for none
	Boots   int            // number of sandboxes created for the thing

	// Begin records that the thing has no sandbox, and returns a spec for the next one.
	Begin func() (engi.SandboxSpec, error)
	// Record records a new sandbox, and the new number of sandboxes created.
	Record func(id engi.SandboxID, boots int) error
	// Enter enters a sandbox. created is true if Open has just created it.
	Enter func(id engi.SandboxID, created bool) error
}

// Open enters the sandbox of a thing. If there is none, or it is gone, Open creates
// another one; created is true then, also after an error. After an error, Open can be
// called again with the claim that the record makes by then.
func (h Holder) Open(ctx context.Context, c Claim) (created bool, err error) {
	if c.Sandbox != "" {
		if err := c.Enter(c.Sandbox, false); !engi.Is(err, engi.NotFound) {
			return false, err
		}
	}
	spec, err := c.Begin()
	if err != nil {
		return true, err
	}
	var sb engi.Sandbox
	swept := c.Key == ""
	for sb.ID == "" || sb.State == engi.Stopped { // an earlier node may have created a sandbox that has ended since
		if c.Key != "" {
			spec.Idempotency = fmt.Sprintf("%s-%d", c.Key, c.Boots)
		}
		sb, err = h.Sandboxes.Create(ctx, spec)
		if engi.Is(err, engi.Conflict) && !swept {
			// An earlier node has used the key for another spec. Its sandbox cannot be used.
			swept, err = true, h.Release(ctx, c.Thing, "", true)
		}
		if err != nil {
			return true, err
		}
		c.Boots++
	}
	if err := c.Record(sb.ID, c.Boots); err != nil {
		if c.Key == "" { // without a key, the next call could not find the sandbox
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

// Enter enters a sandbox. leave is never nil.
func (h Holder) Enter(ctx context.Context, id engi.SandboxID) (g engi.Guest, leave func(), err error) {
	if g, leave, err = h.Sandboxes.Enter(ctx, engi.Everyone, id); err != nil {
		return nil, func() {}, err
	}
	if h.Bound != nil {
		g = h.Bound(g)
	}
	return g, leave, nil
}

// Reconnect is like Enter, and retries for about three seconds if the sandbox does not answer.
func (h Holder) Reconnect(ctx context.Context, id engi.SandboxID) (g engi.Guest, leave func(), err error) {
	for pause, i := firstPause, 1; ; pause, i = min(2*pause, lastPause), i+1 {
		if g, leave, err = h.Enter(ctx, id); !engi.Is(err, engi.Unavailable) || i == attempts {
			return g, leave, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, func() {}, engi.Errorf(engi.Expired, "wait for sandbox %s: %v", id, context.Cause(ctx))
		}
	}
}

// Look returns the record of a sandbox, and whether the sandbox is gone. A sandbox that is gone is no error.
func (h Holder) Look(ctx context.Context, id engi.SandboxID) (sb engi.Sandbox, gone bool, err error) {
	sb, err = h.Sandboxes.Get(ctx, engi.Everyone, id)
	if engi.Is(err, engi.NotFound) {
		return sb, true, nil
	}
	return sb, err == nil && sb.State == engi.Stopped, err
}

// Runs reports whether a sandbox is running. It returns false if its record cannot be read.
func (h Holder) Runs(ctx context.Context, id engi.SandboxID) bool {
	sb, _, err := h.Look(ctx, id)
	return err == nil && sb.State == engi.Running
}

// Destroy destroys a sandbox, unless it is gone, or id is empty.
func (h Holder) Destroy(ctx context.Context, id engi.SandboxID) error {
	if id == "" {
		return nil
	}
	return engi.Ignore(h.Sandboxes.Stop(ctx, engi.Everyone, id), engi.NotFound)
}

// Release destroys the sandbox of a thing. id is the recorded sandbox. If id is empty
// and begun is true, the thing may have a sandbox which no record names: Release destroys
// all sandboxes that were created for the thing.
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
// starts, before it opens anything. needed may adopt a sandbox, by recording it and returning
// true. An error of needed ends the sweep. Sweep logs the failure to destroy a sandbox, and
// leaves the sandbox to the next node.
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

// all returns the sandboxes of all owners.
func (h Holder) all(ctx context.Context) ([]engi.Sandbox, error) {
	return h.Sandboxes.List(ctx, engi.Everyone, engi.SandboxFilter{Owned: true, Limit: -1})
}

// A Lock is a mutex whose callers can give up waiting. The channel is full while a caller
// holds the lock.
type Lock chan struct{}

// NewLock returns a free lock.
func NewLock() Lock { return make(Lock, 1) }

// Acquire waits for the lock. It returns Expired if ctx ends first. The text of this error
// names the thing.
func (l Lock) Acquire(ctx context.Context, thing string) (release func(), err error) {
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, engi.Errorf(engi.Expired, "wait for the %s: %v", thing, context.Cause(ctx))
	}
}

// Try takes the lock if it is free.
func (l Lock) Try() (release func(), ok bool) {
	select {
	case l <- struct{}{}:
		return func() { <-l }, true
	default:
		return nil, false
	}
}
