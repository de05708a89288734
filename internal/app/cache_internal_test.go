package app

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// TestCache compares the cache with a simple one: the most recently used contents stay, as far as
// there is space.
func TestCache(t *testing.T) {
	const most = 1000
	rng := rand.New(rand.NewPCG(1, 2))
	c := newCache(most)
	type entry struct {
		key  contentKey
		data string
	}
	var plain []entry // most recently used last
	find := func(k contentKey) int {
		return slices.IndexFunc(plain, func(e entry) bool { return e.key == k })
	}
	evicted, refused := 0, 0
	for step := range 20_000 {
		k := contentKey{engi.AppID(fmt.Sprint("app", rng.IntN(2))), fmt.Sprint("digest", rng.IntN(12))}
		if rng.IntN(2) == 0 {
			got, ok := c.get(k)
			i := find(k)
			if ok != (i >= 0) || ok && string(got) != plain[i].data {
				t.Fatalf("step %d: %v is %q, %t; want %v", step, k, got, ok, plain)
			}
			if i >= 0 {
				e := plain[i]
				plain = append(slices.Delete(plain, i, i+1), e)
			}
			continue
		}
		data := fmt.Sprintf("%s %0*d", k.app, rng.IntN(most+most/20), step)
		c.put(k, []byte(data))
		if len(data) > most {
			refused++
		} else if find(k) < 0 {
			plain = append(plain, entry{k, data})
			size := 0
			for _, e := range plain {
				size += len(e.data)
			}
			for ; size > most; evicted++ {
				size -= len(plain[0].data)
				plain = plain[1:]
			}
		}
		var size int64
		for _, e := range plain {
			size += int64(len(e.data))
		}
		if c.size != size || c.size > most || len(c.found) != len(plain) || c.order.Len() != len(plain) {
			t.Fatalf("step %d: it has %d bytes in %d contents of %d, want %d in %d", step, c.size, c.order.Len(), len(c.found), size, len(plain))
		}
	}
	if evicted == 0 || refused == 0 {
		t.Errorf("%d contents went, and %d were too large: the test tested nothing", evicted, refused)
	}
}

// TestCacheForgetsWhatWasNotUsed checks that the order of use, not of insertion, decides what is dropped.
func TestCacheForgetsWhatWasNotUsed(t *testing.T) {
	c := newCache(3)
	key := func(name string) contentKey { return contentKey{"a", name} }
	for _, name := range []string{"one", "two", "three"} {
		c.put(key(name), []byte("x"))
	}
	c.get(key("one"))
	c.put(key("two"), []byte("other")) // an existing content is not replaced, and this does not count as a use
	c.put(key("four"), []byte("x"))
	c.put(key("large"), []byte("1234"))
	var left []string
	for k := range maps.Keys(c.found) {
		left = append(left, k.digest)
	}
	slices.Sort(left)
	if !slices.Equal(left, []string{"four", "one", "three"}) || c.size != 3 {
		t.Errorf("it has %v, of %d bytes", left, c.size)
	}
	c.put(key("all"), []byte("123"))
	if data, ok := c.get(key("all")); !ok || string(data) != "123" || len(c.found) != 1 || c.size != 3 {
		t.Errorf("it has %v, of %d bytes", c.found, c.size)
	}
	if _, ok := c.get(contentKey{"b", "all"}); ok {
		t.Error("another app has it, too")
	}
}

// TestCacheIsShared uses a cache concurrently. Nobody must get the content of another key,
// and the cache must never exceed its limit.
func TestCacheIsShared(t *testing.T) {
	const most = 200
	c := newCache(most)
	var work sync.WaitGroup
	for who := range 8 {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(who)))
			for range 5_000 {
				digest := fmt.Sprint(rng.IntN(40))
				k := contentKey{"a", digest}
				if data, ok := c.get(k); ok && string(data) != digest+" is this" {
					t.Errorf("%s is %q", digest, data)
					return
				}
				c.put(k, []byte(digest+" is this"))
				c.mu.Lock()
				size := c.size
				c.mu.Unlock()
				if size > most || size < 0 {
					t.Errorf("it has %d bytes", size)
					return
				}
			}
		})
	}
	work.Wait()
	var size int64
	for e := c.order.Front(); e != nil; e = e.Next() {
		size += int64(len(e.Value.(cached).data))
	}
	if size != c.size || len(c.found) != c.order.Len() || size == 0 {
		t.Errorf("it says %d bytes and has %d, in %d and %d contents", c.size, size, len(c.found), c.order.Len())
	}
}
