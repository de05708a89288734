package store_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress"
)

// egressPromises tests an [egress.Store]. open returns an empty one that keeps so many events of
// each sandbox, none older than age, until the end of t.
func egressPromises(t *testing.T, open func(t *testing.T, keep int, age time.Duration) egress.Store) {
	const a, b = engi.SandboxID("sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa"), engi.SandboxID("sbx_bbbbbbbbbbbbbbbbbbbbbbbbbb")
	now := time.Now().UTC()
	event := func(id engi.SandboxID, owner engi.Owner, host string) engi.NetworkRecord {
		return engi.NetworkRecord{Sandbox: id, Owner: owner, Time: now, Kind: engi.NetworkLookup, Host: host}
	}
	add := func(t *testing.T, s egress.Store, events ...engi.NetworkRecord) []engi.NetworkRecord {
		t.Helper()
		if err := s.Append(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		return events
	}
	read := func(t *testing.T, s egress.Store, viewer engi.Viewer, id engi.SandboxID, seq int64, limit int) []engi.NetworkRecord {
		t.Helper()
		list, err := s.Events(t.Context(), viewer, id, seq, limit)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	seqs := func(events []engi.NetworkRecord) (all []int64) {
		for _, e := range events {
			all = append(all, e.Seq)
		}
		return all
	}
	want := func(t *testing.T, got []engi.NetworkRecord, seq ...int64) {
		t.Helper()
		if d := cmp.Diff(seq, seqs(got), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
	}

	t.Run("1 what was appended comes back whole", func(t *testing.T) {
		s := open(t, 100, time.Hour)
		all := []engi.NetworkRecord{
			{Sandbox: a, Owner: "ann", Time: now, Kind: engi.NetworkLookup, Host: "a.example.com", Rule: "*.example.com", Allowed: true, Reason: "allowed"},
			{Sandbox: a, Owner: "ann", Time: now, Kind: engi.NetworkConnect, Protocol: "tcp", Address: netip.MustParseAddrPort("192.0.2.7:443"), Reason: "private"},
			{Sandbox: a, Owner: "ann", Time: now, Kind: engi.NetworkConnect, Protocol: "icmp", Address: netip.MustParseAddrPort("[2001:db8::7]:0")},
			{Sandbox: a, Owner: "ann", Time: now, Kind: engi.NetworkClose, Protocol: "udp", Address: netip.MustParseAddrPort("[2001:db8::7]:53"), Allowed: true, Up: 1 << 40, Down: 7},
			{Sandbox: a, Owner: "ann", Time: now, Kind: engi.NetworkClaim, Host: "\"'\\;--\u00e9\u2028", Reason: "the name's no \"name\""},
		}
		add(t, s, all[:2]...)
		add(t, s, all[2:]...)
		if d := cmp.Diff(all, read(t, s, "ann", a, 0, 100), cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y })); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
		want(t, all, 1, 2, 3, 4, 5)
	})
	t.Run("2 each sandbox counts for itself", func(t *testing.T) {
		s := open(t, 100, time.Hour)
		want(t, add(t, s, event(a, "ann", "1"), event(b, "ann", "1"), event(a, "ann", "2"), event(b, "ann", "2"), event(a, "ann", "3")), 1, 1, 2, 2, 3)
		want(t, add(t, s, event(b, "ann", "3")), 3)
	})
	t.Run("3 a reader comes back with the last it saw", func(t *testing.T) {
		s := open(t, 100, time.Hour)
		for i := range 10 {
			add(t, s, event(a, "ann", fmt.Sprint(i)))
		}
		want(t, read(t, s, "ann", a, 0, 4), 1, 2, 3, 4)
		want(t, read(t, s, "ann", a, 4, 4), 5, 6, 7, 8)
		want(t, read(t, s, "ann", a, 8, 4), 9, 10)
		want(t, read(t, s, "ann", a, 10, 4))
		want(t, read(t, s, "ann", a, 1<<60, 4))
	})
	t.Run("4 owners see their own", func(t *testing.T) {
		s := open(t, 100, time.Hour)
		add(t, s, event(a, "ann", "x"), event(b, "bob", "y"))
		want(t, read(t, s, "bob", a, 0, 10))
		want(t, read(t, s, "ann", b, 0, 10))
		want(t, read(t, s, "bob", b, 0, 10), 1)
		want(t, read(t, s, engi.Everyone, a, 0, 10), 1)
	})
	t.Run("5 the oldest beyond the bound are forgotten and numbers go on", func(t *testing.T) {
		s := open(t, 3, time.Hour)
		add(t, s, event(b, "ann", "other"))
		for i := range 4 {
			add(t, s, event(a, "ann", fmt.Sprint(i)), event(a, "ann", fmt.Sprint(i)))
		}
		want(t, read(t, s, "ann", a, 0, 100), 6, 7, 8)
		want(t, read(t, s, "ann", b, 0, 100), 1)
		var many []engi.NetworkRecord
		for range 10 {
			many = append(many, event(a, "ann", "x"))
		}
		add(t, s, many...)
		want(t, read(t, s, "ann", a, 0, 100), 16, 17, 18)
	})
	t.Run("6 what is too old is forgotten and numbers go on", func(t *testing.T) {
		s := open(t, 100, time.Hour)
		old := event(a, "ann", "old")
		old.Time = now.Add(-2 * time.Hour)
		add(t, s, old, event(a, "ann", "new"))
		want(t, read(t, s, "ann", a, 0, 100), 2)
		want(t, add(t, s, event(a, "ann", "newer")), 3)
	})
	t.Run("7 nothing is nothing", func(t *testing.T) {
		s := open(t, 100, time.Hour)
		add(t, s)
		want(t, read(t, s, engi.Everyone, a, 0, 10))
	})
	t.Run("8 many append at once", func(t *testing.T) {
		s := open(t, 1000, time.Hour)
		var work sync.WaitGroup
		for range 8 {
			work.Go(func() {
				for range 10 {
					if err := s.Append(t.Context(), []engi.NetworkRecord{event(a, "ann", "x"), event(a, "ann", "y")}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		work.Wait()
		got := read(t, s, "ann", a, 0, 1000)
		if len(got) != 160 {
			t.Fatalf("%d events, want 160", len(got))
		}
		for i, e := range got {
			if e.Seq != int64(i)+1 {
				t.Fatalf("event %d has number %d", i, e.Seq)
			}
		}
	})
}
