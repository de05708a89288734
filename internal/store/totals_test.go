package store_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/snapshot"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
	"github.com/engi-dev/engi/internal/store"
)

// TestTotalsAreWhatThereIs makes and removes volumes, snapshots and secrets of several
// owners at random, and compares the totals, which are kept, with the lists.
func TestTotalsAreWhatThereIs(t *testing.T) {
	db := openDB(t)
	volumes, snapshots, secrets := store.Volumes(db), store.Snapshots(db), store.Secrets(db)
	ctx, random := t.Context(), rand.New(rand.NewPCG(1, 2))
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	owners := []engi.Owner{"", "ann", "bob"}
	for i := range 400 {
		owner, name := owners[random.IntN(len(owners))], fmt.Sprint("n", i)
		bytes := random.Int64N(1 << 40)
		now := time.Now()
		vs, err := volumes.List(ctx, "ann", volume.Filter{Removed: i%2 == 0})
		fatal(err)
		ss, err := snapshots.List(ctx, "ann", snapshot.Filter{Removed: i%2 == 0})
		fatal(err)
		xs, err := secrets.List(ctx, "ann", engi.Secret{}, 0)
		fatal(err)
		switch random.IntN(9) {
		case 0, 1:
			fatal(volumes.Put(ctx, volume.Record{Volume: engi.Volume{ID: engi.NewVolumeID(), Owner: owner, Name: name, Capacity: bytes, Created: now, Accessed: now}}))
		case 2, 3:
			s := engi.Snapshot{ID: engi.NewSnapshotID(), Owner: owner, Name: name, Bytes: bytes, Created: now}
			if i%3 == 0 {
				s.Expires = now
			}
			fatal(snapshots.Put(ctx, s))
		case 4:
			fatal(secrets.Put(ctx, engi.Secret{ID: engi.NewSecretID(), Owner: owner, Name: name}, secret.Sealed{Key: "k"}))
		case 5:
			if len(vs) > 0 && i%2 == 0 {
				fatal(volumes.Forget(ctx, vs[0].ID))
			} else if len(vs) > 0 {
				fatal(volumes.Remove(ctx, vs[0].ID, time.Time{}))
			}
		case 6:
			if len(ss) > 0 && i%2 == 0 {
				fatal(snapshots.Forget(ctx, ss[0].ID))
			} else if len(ss) > 0 {
				fatal(snapshots.Remove(ctx, ss[0].ID))
			}
		case 7:
			if len(xs) > 5 {
				fatal(secrets.Remove(ctx, xs[0].ID))
			}
		case 8:
			if i%5 == 0 {
				fatal(snapshots.Expire(ctx, now))
			}
		}
	}
	for _, owner := range owners {
		type total struct {
			count int
			bytes int64
		}
		want := map[string]total{}
		add := func(noun string, of engi.Owner, count int, bytes int64) {
			if of == owner {
				want[noun] = total{want[noun].count + count, want[noun].bytes + bytes}
			}
		}
		vs, err := volumes.List(ctx, engi.Everyone, volume.Filter{})
		fatal(err)
		for _, v := range vs {
			add("volume", v.Owner, 1, v.Capacity)
		}
		for _, removed := range []bool{false, true} {
			ss, err := snapshots.List(ctx, engi.Everyone, snapshot.Filter{Removed: removed})
			fatal(err)
			for _, s := range ss {
				add("snapshot", s.Owner, map[bool]int{false: 1}[removed], s.Bytes)
			}
		}
		xs, err := secrets.List(ctx, engi.Everyone, engi.Secret{}, 0)
		fatal(err)
		for _, x := range xs {
			add("secret", x.Owner, 1, 0)
		}
		for noun, usage := range map[string]func() (int, int64, error){
			"volume":   func() (int, int64, error) { return volumes.Usage(ctx, owner) },
			"snapshot": func() (int, int64, error) { return snapshots.Usage(ctx, owner) },
			"secret":   func() (int, int64, error) { n, err := secrets.Count(ctx, owner); return n, 0, err },
		} {
			count, bytes, err := usage()
			fatal(err)
			if got := (total{count, bytes}); got != want[noun] || count == 0 {
				t.Errorf("%s of %q: %+v, but there are %+v", noun, owner, got, want[noun])
			}
		}
	}
}
