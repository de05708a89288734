package idempotency_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// A record is a record of an object.
type record struct{ id, fingerprint string }

func (r record) Requested() (id, fingerprint string) { return r.id, r.fingerprint }

// records stores records by owner and key.
type records struct {
	mu   sync.Mutex
	all  map[string]record
	made int
}

func (r *records) find(_ context.Context, owner engi.Owner, key string) (record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, ok := r.all[string(owner)+" "+key]
	if !ok {
		return x, engi.Errorf(engi.NotFound, "there is no such record")
	}
	return x, nil
}

func (r *records) once(ctx context.Context, k *idempotency.Keys, q idempotency.Request, fail error) (record, bool, error) {
	return idempotency.Once(ctx, k, q, r.find, func() (record, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.made++
		x := record{string(rune('a' + r.made)), q.Fingerprint}
		if fail == nil && q.Key != "" {
			r.all[string(q.Owner)+" "+q.Key] = x
		}
		return x, fail
	})
}

func TestOnce(t *testing.T) {
	ctx, k, r := t.Context(), idempotency.NewKeys(nil), &records{all: map[string]record{}}
	q := idempotency.Request{Owner: "ann", Key: "k", Fingerprint: "f"}
	if _, _, err := r.once(ctx, k, q, engi.Errorf(engi.Exhausted, "no")); !engi.Is(err, engi.Exhausted) {
		t.Errorf("a failure is %v", err)
	}
	answers := make([]record, 8)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			var err error
			if answers[i], _, err = r.once(ctx, k, q, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, x := range answers {
		if x != answers[0] || r.made != 2 {
			t.Errorf("%d were made: %v", r.made, answers)
		}
	}
	for name, c := range map[string]struct {
		q        idempotency.Request
		repeated bool
		kind     engi.Kind
	}{
		"the same":                 {q, true, 0},
		"without a fingerprint":    {idempotency.Request{Owner: "ann", Key: "k"}, true, 0},
		"another request":          {idempotency.Request{Owner: "ann", Key: "k", Fingerprint: "g"}, false, engi.Conflict},
		"another owner":            {idempotency.Request{Owner: "bob", Key: "k", Fingerprint: "g"}, false, 0},
		"no key":                   {idempotency.Request{Owner: "ann", Fingerprint: "f"}, false, 0},
		"a key that is too long":   {idempotency.Request{Owner: "ann", Key: strings.Repeat("k", 256)}, false, engi.Invalid},
		"the longest possible key": {idempotency.Request{Owner: "ann", Key: strings.Repeat("k", 255)}, false, 0},
	} {
		if _, repeated, err := r.once(ctx, k, c.q, nil); repeated != c.repeated || c.kind != 0 && !engi.Is(err, c.kind) || c.kind == 0 && err != nil {
			t.Errorf("%s: repeated %t, %v", name, repeated, err)
		}
	}
}

func TestRead(t *testing.T) {
	for key, good := range map[string]bool{"": true, "k-1_~!": true, strings.Repeat("k", 255): true, strings.Repeat("k", 256): false, "a b": false, "é": false, "a\x7f": false} {
		if got, err := idempotency.Read(http.Header{idempotency.Header: {key}}); (err == nil) != good || good && got != key {
			t.Errorf("%q: %q, %v", key, got, err)
		}
	}
}

func TestPart(t *testing.T) {
	long := strings.Repeat("k", 255)
	seen := map[string]bool{}
	for i := range 8 {
		p := idempotency.Part(long, i)
		if len(p) > 255 || seen[p] || p != idempotency.Part(long, i) {
			t.Errorf("part %d is %q", i, p)
		}
		seen[p] = true
	}
	if p := idempotency.Part("", 3); p != "" {
		t.Errorf("without a key: %q", p)
	}
}

// reserved stores one reservation.
type reserved struct {
	idempotency.Reservations
	all map[string]idempotency.Reservation
}

func (r *reserved) Reserve(_ context.Context, x idempotency.Reservation) (idempotency.Reservation, bool, error) {
	if old, ok := r.all[x.Key]; ok {
		return old, false, nil
	}
	r.all[x.Key] = x
	return x, true, nil
}

func (r *reserved) Finish(_ context.Context, x idempotency.Reservation) error {
	x.Done = true
	r.all[x.Key] = x
	return nil
}

func (r *reserved) Release(_ context.Context, x idempotency.Reservation) error {
	delete(r.all, x.Key)
	return nil
}

// TestForksThatFail frees the key of a request only if no copy can exist.
func TestForksThatFail(t *testing.T) {
	full, broken := engi.Errorf(engi.Exhausted, "the node is full"), engi.Errorf(engi.Unavailable, "the node stops")
	for name, c := range map[string]struct {
		errs []error
		free bool
	}{
		"all":                       {[]error{full, full}, true},
		"one":                       {[]error{full, nil}, false},
		"all, one perhaps too late": {[]error{full, broken}, false},
	} {
		r := &reserved{all: map[string]idempotency.Reservation{}}
		forks := idempotency.Forks(2, nil, func(ids []engi.SandboxID) (all []engi.Forked, _ error) {
			for i := range ids {
				all = append(all, engi.Forked{Err: c.errs[i]})
			}
			return all, nil
		})
		all, err := idempotency.Reserved(t.Context(), idempotency.NewKeys(r), idempotency.Request{Owner: "ann", Key: "k", Fingerprint: "f"}, forks)
		if err != nil || len(all) != 2 || (len(r.all) == 0) != c.free {
			t.Errorf("%s: %v, %v; reserved %v", name, all, err, r.all)
		}
	}
}
