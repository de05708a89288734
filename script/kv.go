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
	kvOwners = 1000 // who used it last
	kvKeys   = 1000 // of each
	kvBytes  = 1 << 20
	kvKey    = 256
	kvIdle   = time.Hour
)

// A scratch is what one owner keeps.
type scratch struct {
	values map[string]json.RawMessage
	bytes  int
	used   time.Time
}

// KV returns api.kv: values that an owner's scripts leave for the owner's next
// ones. They live in memory, for an hour after the last use.
func KV() []API {
	var mu sync.Mutex
	all := map[engi.Owner]*scratch{}
	of := func(owner engi.Owner) *scratch {
		now := time.Now()
		s := all[owner]
		if s == nil || now.Sub(s.used) > kvIdle {
			for o, old := range all {
				if now.Sub(old.used) > kvIdle {
					delete(all, o)
				}
			}
			if len(all) >= kvOwners {
				var oldest engi.Owner
				for o, old := range all {
					if all[oldest] == nil || old.used.Before(all[oldest].used) {
						oldest = o
					}
				}
				delete(all, oldest)
			}
			s = &scratch{values: map[string]json.RawMessage{}}
			all[owner] = s
		}
		s.used = now
		return s
	}
	with := func(f func(s *scratch, c Call) (any, error)) func(context.Context, Call) (any, error) {
		return func(_ context.Context, c Call) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			return f(of(c.Owner), c)
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
				size := s.bytes - len(old)
				if len(v) == 0 {
					delete(s.values, k)
					s.bytes = size
					return nil, nil
				}
				if !had && len(s.values) >= kvKeys || size+len(v) > kvBytes {
					return nil, engi.Errorf(engi.Exhausted, "%d keys and %d bytes can be kept", kvKeys, kvBytes)
				}
				s.values[k], s.bytes = v, size+len(v)
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
