package idempotency

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// finishTime is the maximum time for recording the end of a creation, whether or not
// the caller is still connected.
const finishTime = 10 * time.Second

// A Reservation is the record of a request whose objects have no record of the key.
// It is a value.
type Reservation struct {
	Owner       engi.Owner
	Key         string   // key that the caller chose
	Fingerprint string   // fingerprint of the request
	IDs         []string // IDs of the objects that the request creates; empty if they are not known in advance
	Done        bool     // the objects were created
	Created     time.Time
}

// Reservations stores reservations for a week. It is safe for concurrent use.
type Reservations interface {
	// Reserve records r, which then survives a crash. If there is a
	// reservation of the same owner and key, it returns that one and
	// false.
	Reserve(ctx context.Context, r Reservation) (_ Reservation, fresh bool, err error)
	// Finish records that the reserved objects were created, with their IDs.
	Finish(ctx context.Context, r Reservation) error
	// Release deletes a reservation for which nothing was created; a missing one is no
	// error.
	Release(ctx context.Context, r Reservation) error
}

// A Creation is the work of a request that creates objects.
type Creation[T any] struct {
	// IDs are new IDs for the objects; empty if the caller of Work cannot choose IDs.
	IDs []string
	// Work creates the objects, with the given IDs if there are any. It leaves
	// nothing behind if it fails.
	Work func(ids []string) (T, error)
	// Find returns the objects that Work created before; NotFound if none of them exists. If
	// Work is not known to have ended, Find creates the missing objects.
	Find func(ids []string, ended bool) (T, error)
	// None reports whether Work succeeded without an object, so that the key is free again; nil means
	// that it never does.
	None func(T) bool
	// Made returns the IDs of the created objects; nil means the IDs that Work received.
	Made func(T) []string
	// Left is called with an error after which the key stays reserved for the request; nil ignores it.
	Left func(error)
}

// Reserved calls the work of a request: only once for each key.
func Reserved[T any](ctx context.Context, k *Keys, q Request, n Creation[T]) (x T, err error) {
	if q.Key == "" {
		return n.Work(nil)
	}
	if k.reservations == nil {
		return x, engi.Errorf(engi.Unsupported, "this server does not remember the %s of such requests", Header)
	}
	end, err := k.begin(ctx, q)
	if err != nil {
		return x, err
	}
	defer end()
	r, fresh, err := k.reservations.Reserve(ctx, Reservation{Owner: q.Owner, Key: q.Key, Fingerprint: q.Fingerprint, IDs: n.IDs, Created: time.Now().UTC()})
	if err != nil {
		return x, err
	}
	if err := q.check("", r.Fingerprint); err != nil {
		return x, err
	}
	// The record is written even if the caller leaves.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
	defer cancel()
	if !fresh && len(r.IDs) > 0 {
		switch x, err = n.Find(r.IDs, r.Done); {
		case err == nil && !r.Done:
			return x, k.reservations.Finish(late, r)
		case err == nil, !engi.Is(err, engi.NotFound):
			return x, err
		case r.Done:
			return x, engi.Errorf(engi.Conflict, "the object that this %s created is gone: %s", Header, strings.Join(r.IDs, " ")).
				WithRemedy("use a new %s to create another", Header)
		}
	}
	x, err = n.Work(r.IDs)
	late, cancel = context.WithTimeout(context.WithoutCancel(ctx), finishTime)
	defer cancel()
	switch {
	case err == nil && (n.None == nil || !n.None(x)):
		if n.Made != nil {
			r.IDs = n.Made(x)
		}
		err = k.reservations.Finish(late, r)
	case mayHaveHappened(err):
	default:
		if e := k.reservations.Release(late, r); e != nil && n.Left != nil {
			n.Left(e)
		}
	}
	return x, err
}

// FirstID returns the first of the new IDs; empty if there is none.
func FirstID[ID ~string](ids []string) ID {
	if len(ids) == 0 {
		return ""
	}
	return ID(ids[0])
}

// mayHaveHappened reports whether objects may exist in spite of an
// error.
func mayHaveHappened(err error) bool {
	return engi.Is(err, engi.Internal, engi.Unavailable, engi.Expired)
}

// Forks is the creation of n copies of a sandbox. get returns a copy, and fork creates copies
// with the given IDs; nil means n copies with IDs that fork chooses.
func Forks(n int, get func(engi.SandboxID) (engi.Sandbox, error), fork func([]engi.SandboxID) ([]engi.Forked, error)) Creation[[]engi.Forked] {
	work := func(ids []string) ([]engi.Forked, error) {
		var all []engi.SandboxID // nil lets fork choose the IDs
		for _, id := range ids {
			all = append(all, engi.SandboxID(id))
		}
		return fork(all)
	}
	ids := make([]string, n)
	for i := range ids {
		ids[i] = string(engi.NewSandboxID())
	}
	none := func(all []engi.Forked) bool {
		return !slices.ContainsFunc(all, func(f engi.Forked) bool { return f.Err == nil || mayHaveHappened(f.Err) })
	}
	return Creation[[]engi.Forked]{IDs: ids, Work: work, None: none, Find: func(ids []string, ended bool) ([]engi.Forked, error) {
		forks := make([]engi.Forked, len(ids))
		var missing []string
		for i, id := range ids {
			if forks[i].Sandbox, forks[i].Err = get(engi.SandboxID(id)); engi.Is(forks[i].Err, engi.NotFound) {
				missing = append(missing, id)
			}
		}
		if len(missing) == len(ids) {
			return nil, forks[0].Err
		}
		if ended || len(missing) == 0 {
			return forks, nil
		}
		more, err := work(missing)
		for i := range forks {
			if n := slices.Index(missing, ids[i]); err == nil && n >= 0 {
				forks[i] = more[n]
			}
		}
		return forks, err
	}}
}
