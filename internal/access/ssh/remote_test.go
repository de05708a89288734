package ssh

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/engi-dev/engi/internal/engi"
)

// A hostileListener is one that programs in a sandbox have replaced.
type hostileListener struct {
	engi.Process
	says func(yield func(engi.Chunk, error) bool)
}

func (l hostileListener) Output(context.Context, int64) iter.Seq2[engi.Chunk, error] { return l.says }

// slowGuest never connects.
type slowGuest struct {
	engi.Guest
	dials, most atomic.Int32
}

func (g *slowGuest) Dial(ctx context.Context, _ int) (net.Conn, error) {
	n := g.dials.Add(1)
	defer g.dials.Add(-1)
	for most := g.most.Load(); n > most && !g.most.CompareAndSwap(most, n); most = g.most.Load() {
	}
	<-ctx.Done()
	return nil, engi.Errorf(engi.Expired, "%v", ctx.Err())
}

// follow has a connection follow what a listener says, until that ends.
func follow(ctx context.Context, g *slowGuest, said iter.Seq2[engi.Chunk, error]) (l *listener, ready int, err error) {
	c := &conn{s: &Server{channels: map[engi.Viewer]int{}}, ctx: ctx, log: slog.New(slog.DiscardHandler), guest: func() (engi.Guest, error) { return g, nil }}
	l = &listener{proc: hostileListener{says: said}, refusing: make(chan struct{}, maxRefusing)}
	told := make(chan error, 2)
	err = l.follow(c, told)
	c.active.Wait()
	return l, len(told), err
}

// TestListenersThatWriteNonsense are ended at once, and believed before only.
func TestListenersThatWriteNonsense(t *testing.T) {
	for name, test := range map[string]struct {
		said  string
		ready bool
	}{
		"nothing":             {"", false},
		"another program":     {"hello\n", false},
		"no host port":        {"8080\n", false},
		"a port of nothing":   {"0 1\n", false},
		"a port too far":      {"8080 65536\n", false},
		"a signed port":       {"+80 -1\n", false},
		"an empty line":       {"\n", false},
		"a line without end":  {strings.Repeat("1", 1<<20), false},
		"a long line":         {strings.Repeat("1", maxLine) + "1\n", false},
		"zero bytes":          {"80\x00 81\n", false},
		"a space more":        {"80  81\n", false},
		"nonsense after it":   {"80 81\n\xff\xfe\n", true},
		"a port 0 after it":   {"80 81\ntoken 0\n", true},
		"no token after it":   {"80 81\n 70000\n", true},
		"an endless token":    {"80 81\n" + strings.Repeat("t", 1<<20), true},
		"ends after it":       {"80 81\n", true},
		"ends in a line":      {"80 81\ntok", true},
		"a carriage return":   {"80 81\r\n", false},
		"everything at twice": {"80 81\n80 81\n80 x\n", true},
	} {
		for _, piece := range []int{1, 7, 1 << 20} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*listenTime)
				defer cancel()
				l, ready, err := follow(ctx, &slowGuest{}, func(yield func(engi.Chunk, error) bool) {
					for c := range slices.Chunk([]byte(test.said), piece) {
						if !yield(engi.Chunk{Stream: engi.Stdout, Data: c}, nil) {
							return
						}
					}
				})
				if !engi.Is(err, engi.Unavailable) || len(err.Error()) > 300 || (ready == 1) != test.ready || test.ready && (l.port != 80 || l.from != 81) {
					t.Errorf("%s, %d bytes at once: ready %d, ports %d and %d, %v", name, piece, ready, l.port, l.from, err)
				}
			})
		}
	}
}

// TestListenersThatSayMuch announce more connections than there are: what each
// costs is bounded, and so is what is kept of what a listener complains about.
func TestListenersThatSayMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*listenTime)
		defer cancel()
		g := &slowGuest{}
		_, ready, err := follow(ctx, g, func(yield func(engi.Chunk, error) bool) {
			if !yield(engi.Chunk{Stream: engi.Stdout, Data: []byte("80 81\n")}, nil) {
				return
			}
			for range 10_000 {
				if !yield(engi.Chunk{Stream: engi.Stdout, Data: []byte("token 82\n")}, nil) || !yield(engi.Chunk{Stream: engi.Stderr, Data: []byte("why?")}, nil) {
					return
				}
			}
		})
		if ready != 1 || !engi.Is(err, engi.Unavailable) || len(err.Error()) > 1000 {
			t.Errorf("ready %d, %.100v", ready, err)
		}
		if most := g.most.Load(); most < maxChannels || most > maxChannels+maxRefusing {
			t.Errorf("%d connections were made at once", most)
		}
	})
}
