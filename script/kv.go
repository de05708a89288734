package script

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// Bounds of the scratch that KV keeps.
const (
	kvOwner = 100       // scratches of one owner: their own and those of sessions
	kvAll   = 256 << 20 // bytes of all
	kvKeys  = 1000      // of each
	kvBytes = 1 << 20   // of each, keys included
	kvKey   = 256
	kvIdle  = time.Hour
)

// A scratch is what one owner, or one session of an owner, keeps.
type scratch struct {
	values map[string]json.RawMessage
	bytes  int
	used   time.Time
}

type scratchKey struct {
	owner   engi.Owner
	session engi.SessionID
}

// A cupboard has all scratches.
type processCache struct {
	mu  sync.Mutex
	all map[scratchKey]*scratch
}

// of returns a scratch. c.mu is held.
func (c *processCache) of(key scratchKey) *scratch {
	now := time.Now()
	s := c.all[key]
	if s == nil || now.Sub(s.used) > kvIdle {
		c.tidy(now, key.owner)
		s = &scratch{values: map[string]json.RawMessage{}}
		c.all[key] = s
	}
	s.used = now
	return s
}

// tidy drops what is too old and makes room for another of owner.
func (c *processCache) tidy(now time.Time, owner engi.Owner) {
	mine := 0
	for k, s := range c.all {
		if now.Sub(s.used) > kvIdle {
			delete(c.all, k)
		} else if k.owner == owner {
			mine++
		}
	}
	if mine >= kvOwner {
		c.drop(func(k scratchKey) bool { return k.owner == owner })
	}
}

// drop forgets the one among those that has not been used for longest.
func (c *processCache) drop(among func(scratchKey) bool) {
	var oldest *scratchKey
	for k, s := range c.all {
		if among(k) && (oldest == nil || s.used.Before(c.all[*oldest].used)) {
			oldest = &k
		}
	}
	if oldest != nil {
		delete(c.all, *oldest)
	}
}

// fits drops others until s may grow by n bytes.
func (c *processCache) fits(key scratchKey, n int) {
	for {
		total := n
		for _, s := range c.all {
			total += s.bytes
		}
		if total <= kvAll || len(c.all) == 1 {
			return
		}
		c.drop(func(k scratchKey) bool { return k != key })
	}
}

// KV returns api.kv: values that scripts leave for the owner's next ones, or,
// in a session, for the session's. They live in memory, for an hour after the
// last use.
func KV() []API {
	all := &processCache{all: map[scratchKey]*scratch{}}
	keyOf := func(c Call) scratchKey {
		k := scratchKey{owner: c.Owner}
		if c.Session != nil {
			k.session = c.Session.ID
		}
		return k
	}
	with := func(f func(s *scratch, c Call) (any, error)) func(context.Context, Call) (any, error) {
		return func(_ context.Context, c Call) (any, error) {
			all.mu.Lock()
			defer all.mu.Unlock()
			return f(all.of(keyOf(c)), c)
		}
	}
	key := func(c Call, more ...any) (string, error) {
		var k string
		if err := c.Into(append([]any{&k}, more...)...); err != nil {
			return "", err
		}
		if k == "" || len(k) > kvKey {
			return "", engi.Errorf(engi.Invalid, "a key has 1 to %d bytes", kvKey)
		}
		return k, nil
	}
	return []API{
		{ScriptAPI: engi.ScriptAPI{Name: "kv.get", Signature: "(key: string) => Promise<any>", Schema: schema(`{"type":"string"}`),
			Description: "Returns what an earlier script of yours kept under the key, or null."},
			Call: with(func(s *scratch, c Call) (any, error) {
				k, err := key(c)
				if err != nil {
					return nil, err
				}
				return s.values[k], nil
			})},
		{ScriptAPI: engi.ScriptAPI{Name: "kv.set", Signature: "(key: string, value: any) => Promise<void>", Schema: schema(`{"type":"string"},{}`),
			Description: "Keeps a value for your next scripts, for an hour after the last use; null forgets it."},
			Call: with(func(s *scratch, c Call) (any, error) {
				var v json.RawMessage
				k, err := key(c, &v)
				if err != nil {
					return nil, err
				}
				old, had := s.values[k]
				size := s.bytes
				if had {
					size -= len(k) + len(old)
				}
				if len(v) == 0 {
					delete(s.values, k)
					s.bytes = size
					return nil, nil
				}
				if !had && len(s.values) >= kvKeys || size+len(k)+len(v) > kvBytes {
					return nil, engi.Errorf(engi.Exhausted, "%d keys and %d bytes can be kept", kvKeys, kvBytes)
				}
				all.fits(keyOf(c), size+len(k)+len(v)-s.bytes)
				s.values[k], s.bytes = v, size+len(k)+len(v)
				return nil, nil
			})},
		{ScriptAPI: engi.ScriptAPI{Name: "kv.keys", Signature: "() => Promise<string[]>", Schema: schema(``),
			Description: "Returns the keys that have a value, in order."},
			Call: with(func(s *scratch, c Call) (any, error) { return sortedKeys(s.values), nil })},
	}
}

// schema is that of a list of arguments of which any may be left out.
func schema(items string) json.RawMessage {
	return json.RawMessage(`{"type":"array","prefixItems":[` + items + `]}`)
}
