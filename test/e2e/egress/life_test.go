package egress

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"

	"github.com/engi-dev/engi/test/env"
)

// holder keeps a connection open while the state of its sandbox changes, and
// prints whether the connection survived and whether a new one works.
const holder = `
import os, socket, sys, time
def connect():
    c = socket.create_connection(('93.184.216.10', 7007), timeout=20)
    c.sendall(b'hi')
    assert c.recv(10) == b'hi'
    return c
for step in sys.argv[1:]:
    c = connect()
    print(step, 'ready', flush=True)
    while not os.path.exists('/tmp/' + step):
        time.sleep(0.02)
    began = time.time()
    try:
        c.sendall(b'x')
        old = 'goes on' if c.recv(10) == b'x' else 'ended'
    except OSError as e:
        old = 'broken'
    if time.time() - began > 15:
        old += ' late'
    try:
        connect()
        new = 'works'
    except OSError as e:
        new = str(e)
    print(step, 'old', old, 'new', new, flush=True)
`

// TestConnectionsOverLife: a sandbox is hibernated and woken, and paused and
// resumed: old connections break at once or continue, and new ones work.
func TestConnectionsOverLife(t *testing.T) {
	env.Slow(t)
	w := testInternet(t)
	l, err := w.listen(7007)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go w.serveEach(l, func(c net.Conn) { io.Copy(c, c) })

	const owner = engi.Owner("mallory")
	s := newSandbox(t, owner, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"93.184.216.10:7007"}})
	n := s.node
	enter := func(f func(engi.Guest)) {
		t.Helper()
		g, release, err := n.Sandboxes().Enter(t.Context(), owner.Viewer(), s.id)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		f(g)
	}
	put := func(path, content string) {
		t.Helper()
		enter(func(g engi.Guest) {
			if err := g.Write(t.Context(), path, strings.NewReader(content), engi.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	put("/tmp/holder.py", holder)
	enter(func(g engi.Guest) {
		_, err := g.Start(t.Context(), engi.Command{User: "root", Dir: "/tmp",
			Args: []string{"sh", "-c", "exec python3 holder.py hibernate freeze > said 2>&1"}})
		if err != nil {
			t.Fatal(err)
		}
	})
	said := func(want string) string {
		t.Helper()
		var text string
		for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
			enter(func(g engi.Guest) {
				r, err := g.Open(t.Context(), "/tmp/said")
				if err != nil {
					return
				}
				defer r.Close()
				raw, err := io.ReadAll(r)
				if err != nil {
					t.Fatal(err)
				}
				text = string(raw)
			})
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, want) {
					return strings.TrimSpace(line)
				}
			}
		}
		t.Fatalf("it never said %q:\n%s", want, text)
		return ""
	}
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"hibernate", func() {
			if err := n.Lifecycle().Hibernate(t.Context(), owner.Viewer(), s.id, false); err != nil {
				t.Fatal(err)
			}
			if _, err := n.Lifecycle().Resume(t.Context(), owner.Viewer(), s.id, 0, false); err != nil {
				t.Fatal(err)
			}
		}, "broken"},
		{"freeze", func() {
			if err := n.Lifecycle().Pause(t.Context(), owner.Viewer(), s.id); err != nil {
				t.Fatal(err)
			}
			if _, err := n.Lifecycle().Resume(t.Context(), owner.Viewer(), s.id, 0, false); err != nil {
				t.Fatal(err)
			}
		}, "goes on"},
	} {
		said(step.name + " ready")
		step.do()
		put("/tmp/"+step.name, "")
		if got, want := said(step.name+" old"), step.name+" old "+step.want+" new works"; got != want {
			t.Errorf("%s: %q, want %q", step.name, got, want)
		}
	}
}
