package script

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Bounds of KV.
const (
	kvSpacesPerOwner = 100       // maximum number of spaces of one owner: its own and those of its sessions
	kvTotalBytes     = 256 << 20 // maximum bytes of all spaces
	kvMaxKeys        = 1000      // maximum number of keys of each space
	kvMaxBytes       = 1 << 20   // maximum bytes of each space, keys included
	kvMaxKey         = 256
	kvIdleTime       = time.Hour
)

// A kvSpace holds the values of an owner, or of a session of an owner.
type kvSpace struct {
	values map[string]json.RawMessage
	bytes  int
	used   time.Time
}

type kvSpaceKey struct {
	owner   engi.Owner
	session engi.SessionID
}

// A kvStore holds all spaces.
type kvStore struct {
	mu     sync.Mutex
	spaces map[kvSpaceKey]*kvSpace
}

// space returns a space, and creates it if it does not exist. The caller holds c.mu.
func (c *kvStore) space(key kvSpaceKey) *kvSpace {
	now := time.Now()
	s := c.spaces[key]
	if s == nil || now.Sub(s.used) > kvIdleTime {
		c.evictFor(now, key.owner)
		s = &kvSpace{values: map[string]json.RawMessage{}}
		c.spaces[key] = s
	}
	s.used = now
	return s
}

// evictFor drops spaces that have expired, and one space of owner if the owner has too many.
func (c *kvStore) evictFor(now time.Time, owner engi.Owner) {
	mine := 0
	for k, s := range c.spaces {
		if now.Sub(s.used) > kvIdleTime {
			delete(c.spaces, k)
		} else if k.owner == owner {
			mine++
		}
	}
	if mine >= kvSpacesPerOwner {
		c.dropOldest(func(k kvSpaceKey) bool { return k.owner == owner })
	}
}

// dropOldest drops the least recently used space for which among returns true.
func (c *kvStore) dropOldest(among func(kvSpaceKey) bool) {
	var oldest *kvSpaceKey
	for k, s := range c.spaces {
		if among(k) && (oldest == nil || s.used.Before(c.spaces[*oldest].used)) {
			oldest = &k
		}
	}
	if oldest != nil {
		delete(c.spaces, *oldest)
	}
}

// evict drops other spaces until the space of key may grow by n bytes.
func (c *kvStore) evict(key kvSpaceKey, n int) {
	for {
		total := n
		for _, s := range c.spaces {
			total += s.bytes
		}
		if total <= kvTotalBytes || len(c.spaces) == 1 {
			return
		}
		c.dropOldest(func(k kvSpaceKey) bool { return k != key })
	}
}

// KV returns api.kv, which keeps values for later scripts of the same owner, or, in a
// session, of the same session. Values are kept in memory, for an hour after the
// last use.
func KV() []API {
	all := &kvStore{spaces: map[kvSpaceKey]*kvSpace{}}
	keyOf := func(c Call) kvSpaceKey {
		k := kvSpaceKey{owner: c.Owner}
		if c.Session != nil {
			k.session = c.Session.ID
		}
		return k
	}
	with := func(f func(s *kvSpace, c Call) (any, error)) func(context.Context, Call) (any, error) {
		return func(_ context.Context, c Call) (any, error) {
			all.mu.Lock()
			defer all.mu.Unlock()
			return f(all.space(keyOf(c)), c)
		}
	}
	key := func(c Call, more ...any) (string, error) {
		var k string
		if err := c.Into(append([]any{&k}, more...)...); err != nil {
			return "", err
		}
		if k == "" || len(k) > kvMaxKey {
			return "", engi.Errorf(engi.Invalid, "a key has 1 to %d bytes", kvMaxKey)
		}
		return k, nil
	}
	return []API{
		{ScriptAPI: engi.ScriptAPI{Name: "kv.get", Signature: "(key: string) => Promise<any>", Schema: schema(`{"type":"string"}`),
			Description: "Returns the value that an earlier script of yours has set for the key, or null."},
			Call: with(func(s *kvSpace, c Call) (any, error) {
				k, err := key(c)
				if err != nil {
					return nil, err
				}
				return s.values[k], nil
			})},
		{ScriptAPI: engi.ScriptAPI{Name: "kv.set", Signature: "(key: string, value: any) => Promise<void>", Schema: schema(`{"type":"string"},{}`),
			Description: "Keeps a value for your later scripts, for an hour after the last use; null removes it."},
			Call: with(func(s *kvSpace, c Call) (any, error) {
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
				if !had && len(s.values) >= kvMaxKeys || size+len(k)+len(v) > kvMaxBytes {
					return nil, engi.Errorf(engi.Exhausted, "%d keys and %d bytes can be kept", kvMaxKeys, kvMaxBytes)
				}
				all.evict(keyOf(c), size+len(k)+len(v)-s.bytes)
				s.values[k], s.bytes = v, size+len(k)+len(v)
				return nil, nil
			})},
		{ScriptAPI: engi.ScriptAPI{Name: "kv.keys", Signature: "() => Promise<string[]>", Schema: schema(``),
			Description: "Returns the keys that have a value, sorted."},
			Call: with(func(s *kvSpace, c Call) (any, error) { return sortedKeys(s.values), nil })},
	}
}

// schema returns the schema of a list of optional arguments.
func schema(items string) json.RawMessage {
	return json.RawMessage(`{"type":"array","prefixItems":[` + items + `]}`)
}
