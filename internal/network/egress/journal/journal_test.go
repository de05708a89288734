package journal_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/journal"
)

type memory struct {
	mu    sync.Mutex
	all   []engi.NetworkRecord
	block chan struct{} // closed to let Append continue; nil does not block it
}

func (m *memory) Append(_ context.Context, events []engi.NetworkRecord) error {
	if m.block != nil {
		<-m.block
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range events {
		e.Seq = int64(len(m.all) + 1)
		m.all = append(m.all, e)
	}
	return nil
}

func (m *memory) Events(_ context.Context, _ engi.Viewer, id engi.SandboxID, seq int64, limit int) ([]engi.NetworkRecord, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []engi.NetworkRecord
	for _, e := range m.all {
		if e.Sandbox == id && e.Seq > seq && len(out) < limit {
			out = append(out, e)
		}
	}
	return out, nil
}

func TestWaitsForEvents(t *testing.T) {
	j := journal.New(&memory{}, slog.New(slog.DiscardHandler))
	defer j.Close()
	l := j.NewLog()
	got := make(chan []engi.NetworkRecord)
	go func() {
		events, _ := j.Events(t.Context(), engi.Everyone, "sbx_1", 0, 0, true)
		got <- events
	}()
	l.Add(engi.NetworkRecord{Sandbox: "sbx_2", Kind: engi.NetworkLookup})
	l.Add(engi.NetworkRecord{Sandbox: "sbx_1", Kind: engi.NetworkLookup, Host: "x"})
	if events := <-got; len(events) != 1 || events[0].Host != "x" || events[0].Time.IsZero() {
		t.Errorf("%+v", events)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if events, err := j.Events(ctx, engi.Everyone, "sbx_1", 9, 0, true); err != nil || len(events) != 0 {
		t.Errorf("%+v, %v", events, err)
	}
}

func TestRepeatsAreSaidOnce(t *testing.T) {
	m := &memory{}
	j := journal.New(m, slog.New(slog.DiscardHandler))
	l := j.NewLog()
	for range 500 {
		l.Add(engi.NetworkRecord{Sandbox: "sbx_1", Kind: engi.NetworkConnect, Reason: "no"})
	}
	l.Close()
	j.Close()
	if len(m.all) != 2 || !strings.Contains(m.all[1].Reason, "499 times more") {
		t.Errorf("%+v", m.all)
	}
}

func TestFloodIsBounded(t *testing.T) {
	m := &memory{}
	j := journal.New(m, slog.New(slog.DiscardHandler))
	l := j.NewLog()
	for i := range 5000 {
		l.Add(engi.NetworkRecord{Sandbox: "sbx_1", Kind: engi.NetworkConnect, Host: fmt.Sprint(i)})
	}
	l.Close()
	j.Close()
	if n := len(m.all); n < 1000 || n > 2000 {
		t.Errorf("%d events", n)
	}
	if last := m.all[len(m.all)-1]; last.Kind != engi.NetworkLimit || !strings.Contains(last.Reason, "not logged") {
		t.Errorf("%+v", last)
	}
}

func TestNeverWaits(t *testing.T) {
	m := &memory{block: make(chan struct{})}
	j := journal.New(m, slog.New(slog.DiscardHandler))
	for i := range 40 {
		l := j.NewLog()
		for k := range 900 {
			l.Add(engi.NetworkRecord{Sandbox: engi.SandboxID(fmt.Sprint("sbx_", i)), Kind: engi.NetworkConnect, Host: fmt.Sprint(k)})
		}
	}
	if j.Lost() == 0 {
		t.Error("36000 events fit")
	}
	close(m.block)
	j.Close()
	if last := m.all[len(m.all)-1]; !strings.Contains(last.Reason, "of this node were not logged") && !strings.Contains(fmt.Sprint(m.all), "of this node were not logged") {
		t.Error("nobody says that events were lost")
	}
}
