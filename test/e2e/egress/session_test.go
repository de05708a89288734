package egress

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"

	"github.com/engi-dev/engi/test/env"
)

// TestLimitsOfASession hits each network limit that a session can be created with,
// and those of the node above them. Each refusal contains a remedy.
func TestLimitsOfASession(t *testing.T) {
	env.Slow(t)
	w := testInternet(t)
	furnish(w)
	n := sharedNode(t)
	c := client.New(n.Endpoint().URL, n.AdminKey())
	ctx := t.Context()

	var refused *client.Error
	_, err := c.CreateSession(ctx, v1.SessionRequest{Network: &v1.NetworkPolicy{Mode: "open", Limits: &v1.NetworkLimits{Connections: 2001}}})
	if !errors.As(err, &refused) || !client.IsKind(err, v1.Denied) || !strings.Contains(refused.Remedy, "ask for 2000 at most") {
		t.Errorf("more than the node's: %v", err)
	}

	open := func(l v1.NetworkLimits) *sandbox {
		t.Helper()
		s, err := c.CreateSession(ctx, v1.SessionRequest{Template: "base", Persistence: "none", Network: &v1.NetworkPolicy{Mode: "open", Limits: &l}})
		if err != nil {
			t.Fatal(err)
		}
		g, release, err := n.Sessions().Enter(ctx, engi.Everyone, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			release()
			if err := n.Sessions().Terminate(context.Background(), engi.Everyone, s.ID); err != nil {
				t.Error(err)
			}
		})
		if s, err = c.Session(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		return &sandbox{t, n, engi.SandboxID(s.SandboxID), engi.Owner(s.Owner).Viewer(), g}
	}
	for _, x := range []struct {
		name   string
		limits v1.NetworkLimits
		code   string
		most   int    // maximum of the printed number
		says   string // text in the log; empty if the limit only slows transfers
	}{
		{"connections", v1.NetworkLimits{Connections: 5}, `
held = []
for i in range(20):
    try:
        s = connect('93.184.216.30', 22)
        if s.recv(1):
            held.append(s)
    except OSError:
        pass
print(len(held))
`, 5, `limit tcp .*limits.connections`},
		{"new connections", v1.NetworkLimits{NewConnections: 3}, `
ok = 0
for i in range(60):
    try:
        with connect('93.184.216.30', 22) as s:
            ok += len(s.recv(1))
    except OSError:
        pass
print(ok and max(1, ok - int(3 * (time.time() - began))))
`, 6, `limit tcp .*limits.new_connections`},
		{"lookups", v1.NetworkLimits{Lookups: 3}, `
ok = 0
for i in range(60):
    if ask('limit%d.wild.test' % i)[0] == 0:
        ok += 1
print(ok and max(1, ok - int(3 * (time.time() - began))))
`, 6, `limit .*limits.lookups`},
		{"total", v1.NetworkLimits{Total: 256 << 10}, `
sent = 0
try:
    with connect('93.184.216.40', 22) as s:
        while sent < 1 << 20:
            s.sendall(bytes(16384))
            sent += 16384
            got = 0
            while got < 16384:
                part = s.recv(16384)
                if not part:
                    raise OSError('cut off')
                got += len(part)
except OSError:
    pass
print(sent)
`, 256 << 10, `limit .*limits.total`},
		// Data beyond a burst of 64 KiB is slowed down.
		{"up", v1.NetworkLimits{Up: 128 << 10}, transfer, 64 << 10, ""},
		{"down", v1.NetworkLimits{Down: 128 << 10}, transfer, 64 << 10, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := open(x.limits)
			out := b.python(t, "\nbegan = time.time()\n"+x.code)
			var got int
			if _, err := fmt.Sscan(out, &got); err != nil || got > x.most || got <= 0 && x.says != "" {
				t.Errorf("%s, at most %d is allowed (%v)", out, x.most, err)
			}
			if x.says != "" {
				wantRefusal(t, b.refusals(t), x.says)
			}
		})
	}
}

// transfer sends a quarter of a MiB there and back, and prints the part that was
// faster than 128 KiB per second.
const transfer = `
import threading
size = 256 << 10
with connect('93.184.216.40', 22) as s:
    s.settimeout(60)
    while not s.recv(1) == b'\n': # the greeting
        pass
    began = time.time()
    t = threading.Thread(target=s.sendall, args=(bytes(size),))
    t.start()
    got = 0
    while got < size:
        part = s.recv(65536)
        if not part:
            raise OSError('cut off after %d bytes' % got)
        got += len(part)
    t.join()
    print(size - int((128 << 10) * (time.time() - began)))
`
