package ssh_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xssh "golang.org/x/crypto/ssh"

	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/access/ssh"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/test/apitest"
)

// A fixture is a server with sandboxes in this process. Ann has an API key, an SSH
// key and a sandbox, whose name is box.
type fixture struct {
	*ssh.Server
	t         *testing.T
	callers   *key.Keyring
	sandboxes *apitest.Sandboxes
	sessions  *sessions
	events    engi.EventLog
	entered   *atomic.Int32

	ann    ed25519.PrivateKey
	annKey engi.SSHKey
	apiKey engi.Key
	box    engi.Sandbox
	stop   func()
}

// sessions lead into one sandbox, which they have once they were entered.
type sessions struct {
	*apitest.Sessions
	in      *apitest.Sandboxes
	entered *atomic.Int32

	mu   sync.Mutex
	box  engi.Sandbox
	lost error
}

func (s *sessions) Get(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Session, error) {
	x, err := s.Sessions.Get(ctx, viewer, idOrName)
	s.mu.Lock()
	defer s.mu.Unlock()
	x.Sandbox = s.box.ID
	return x, err
}

func (s *sessions) Enter(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Guest, func(), error) {
	x, err := s.Sessions.Get(ctx, viewer, idOrName)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return nil, nil, s.lost
	}
	if s.box.ID == "" {
		if s.box, err = s.in.Create(ctx, engi.SandboxSpec{Owner: x.Owner}); err != nil {
			return nil, nil, err
		}
	}
	g, release, err := s.in.Enter(ctx, engi.Everyone, s.box.ID)
	s.entered.Add(1)
	return g, func() { s.entered.Add(-1); release() }, err
}

func serve(t *testing.T, change func(*ssh.Options)) *fixture {
	t.Helper()
	db := open(t)
	x := apitest.NewExecutions()
	fx := &fixture{t: t, callers: key.New(store.Keys(db)), sandboxes: apitest.NewSandboxes(x), events: store.Events(db), entered: new(atomic.Int32)}
	fx.sessions = &sessions{Sessions: &apitest.Sessions{}, in: fx.sandboxes, entered: fx.entered}
	o := ssh.Options{
		Settings: ssh.Settings{Listen: "127.0.0.1:0", Connections: 100}, Store: store.SSHKeys(db), Callers: fx.callers,
		Places: place.Resolver{Sessions: fx.sessions, Sandboxes: fx.sandboxes}, Lifecycle: fx.sandboxes.Lifecycle(), Events: fx.events, HostKey: filepath.Join(t.TempDir(), "key"),
	}
	if change != nil {
		change(&o)
	}
	var err error
	if fx.Server, err = ssh.Open(o); err != nil {
		t.Fatal(err)
	}
	fx.ann, fx.annKey = fx.add("ann")
	if fx.apiKey, _, err = fx.callers.Create(t.Context(), engi.Key{Owner: "ann"}); err != nil {
		t.Fatal(err)
	}
	if fx.box, err = fx.sandboxes.Create(t.Context(), engi.SandboxSpec{Owner: "ann", Metadata: map[string]string{"name": "box"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- fx.Run(ctx, func() { close(ready) }) }()
	fx.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	t.Cleanup(func() {
		fx.stop()
		fx.sandboxes.Close()
		x.Close()
		if n := fx.entered.Load(); n != 0 {
			t.Errorf("%d sandboxes were not left", n)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	return fx
}

// add adds a fresh key of an owner.
func (fx *fixture) add(owner engi.Owner) (ed25519.PrivateKey, engi.SSHKey) {
	fx.t.Helper()
	private, text := fresh(fx.t)
	k, err := fx.Create(fx.t.Context(), engi.SSHKey{Owner: owner, PublicKey: text})
	if err != nil {
		fx.t.Fatal(err)
	}
	return private, k
}

// config is a client's, and what it was told.
func (fx *fixture) config(user string, private ed25519.PrivateKey) (*xssh.ClientConfig, *strings.Builder) {
	said := &strings.Builder{}
	c := &xssh.ClientConfig{User: user, HostKeyCallback: xssh.FixedHostKey(fx.hostKey()), BannerCallback: func(m string) error { said.WriteString(m); return nil }, Timeout: 20 * time.Second}
	if private != nil {
		signer, err := xssh.NewSignerFromKey(private)
		if err != nil {
			fx.t.Fatal(err)
		}
		c.Auth = []xssh.AuthMethod{xssh.PublicKeys(signer)}
	}
	return c, said
}

func (fx *fixture) hostKey() xssh.PublicKey {
	line, _ := fx.HostKey()
	pub, _, err := ssh.ParsePublicKey(line)
	if err != nil {
		fx.t.Fatal(err)
	}
	return pub
}

// dial connects as ann.
func (fx *fixture) dial(user string) *xssh.Client {
	fx.t.Helper()
	config, said := fx.config(user, fx.ann)
	c, err := xssh.Dial("tcp", fx.Addr(), config)
	if err != nil {
		fx.t.Fatalf("%v: %s", err, said)
	}
	fx.t.Cleanup(func() { c.Close() })
	return c
}

// session opens a session.
func (fx *fixture) session(c *xssh.Client) *xssh.Session {
	fx.t.Helper()
	s, err := c.NewSession()
	if err != nil {
		fx.t.Fatal(err)
	}
	return s
}

func TestPrograms(t *testing.T) {
	fx := serve(t, nil)
	if _, err := fx.sessions.Create(t.Context(), engi.SessionSpec{Owner: "ann", Name: "dev"}); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"dev", "box", string(fx.box.ID)} {
		c := fx.dial(user)
		s := fx.session(c)
		var out, errOut bytes.Buffer
		s.Stdin, s.Stdout, s.Stderr = strings.NewReader("6*7"), &out, &errOut
		if err := s.Setenv("LANG", "x y"); err != nil {
			t.Error(err)
		}
		err := s.Run(`cat; echo " $LANG"; echo wrong >&2; exit 7`)
		var exit *xssh.ExitError
		if !errors.As(err, &exit) || exit.ExitStatus() != 7 || out.String() != "6*7 x y\n" || errOut.String() != "wrong\n" {
			t.Errorf("%s: %v, %q %q", user, err, out.String(), errOut.String())
		}
		if err := fx.session(c).Run(`kill -TERM $$`); !errors.As(err, &exit) || exit.Signal() != "TERM" {
			t.Errorf("%s: a signal: %v", user, err)
		}
		c.Close()
	}
	c := fx.dial("dev")
	s := fx.session(c)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(`trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.05; done`); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 6)
	if _, err := io.ReadFull(out, first); err != nil || string(first) != "ready\n" {
		t.Fatalf("%q %v", first, err)
	}
	if err := s.Signal(xssh.SIGINT); err != nil {
		t.Error(err)
	}
	rest, err := io.ReadAll(out)
	var exit *xssh.ExitError
	if werr := s.Wait(); err != nil || string(rest) != "interrupted\n" || !errors.As(werr, &exit) || exit.ExitStatus() != 3 {
		t.Errorf("%q %v %v", rest, err, werr)
	}
	if used, err := fx.Get(t.Context(), "ann", fx.annKey.ID); err != nil || used.Used.IsZero() {
		t.Errorf("%+v %v: nothing says that it was used", used, err)
	}
}

// TestMuchData holds that nothing is lost, while programs wait for slow clients.
func TestMuchData(t *testing.T) {
	fx := serve(t, nil)
	c := fx.dial("box")
	data := make([]byte, 12<<20)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	want := fmt.Sprintf("%x  -\n", sha256.Sum256(data))
	s := fx.session(c)
	s.Stdin = bytes.NewReader(data)
	if out, err := s.Output("sha256sum"); err != nil || string(out) != want {
		t.Errorf("in: %q %v, want %q", out, err, want)
	}
	s = fx.session(c)
	s.Stdin = bytes.NewReader(data)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("cat"); err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	if n, err := io.Copy(sum, out); err != nil || fmt.Sprintf("%x  -\n", sum.Sum(nil)) != want {
		t.Errorf("out: %d bytes, %v", n, err)
	}
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
}

func TestTerminals(t *testing.T) {
	fx := serve(t, nil)
	s := fx.session(fx.dial("box"))
	if err := s.RequestPty("vt100", 30, 100, xssh.TerminalModes{xssh.ECHO: 0}); err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	seen, buf := "", make([]byte, 4096)
	until := func(what string) {
		t.Helper()
		for !strings.Contains(seen, what) {
			n, err := out.Read(buf)
			if seen += string(buf[:n]); err != nil {
				t.Fatalf("%v after %q", err, seen)
			}
		}
		seen = seen[strings.Index(seen, what)+len(what):]
	}
	io.WriteString(in, "stty size; echo $TERM is here\n")
	until("30 100")
	until("vt100 is here")
	if err := s.WindowChange(41, 143); err != nil {
		t.Fatal(err)
	}
	// What is typed may be faster than the change.
	io.WriteString(in, "until stty size | grep 41.143; do sleep 0.01; done; exit 5\n")
	until("41 143")
	var exit *xssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 5 {
		t.Error(err)
	}
}

// TestWhoIsLetIn tries those who must stay outside, and what they are told.
func TestWhoIsLetIn(t *testing.T) {
	fx := serve(t, nil)
	bob, _ := fx.add("bob")
	stranger, _ := fresh(t)
	try := func(user string, private ed25519.PrivateKey) (string, error) {
		config, said := fx.config(user, private)
		c, err := xssh.Dial("tcp", fx.Addr(), config)
		if err == nil {
			c.Close()
		}
		return said.String(), err
	}
	refused := func(what, user string, private ed25519.PrivateKey, want string) {
		t.Helper()
		said, err := try(user, private)
		if err == nil || want == "" && said != "" || !strings.Contains(said, want) {
			t.Errorf("%s: %v, told %q, want %q", what, err, said, want)
		}
	}
	refused("no key", "box", nil, "")
	refused("an unknown key", "box", stranger, "")
	refused("an owner without an API key", "box", bob, "no API key of this owner")
	if _, _, err := fx.callers.Create(t.Context(), engi.Key{Owner: "bob", Scopes: []engi.Scope{engi.ScopeEvents, engi.ScopeRead}}); err != nil {
		t.Fatal(err)
	}
	refused("an owner whose API key is for something else", "box", bob, "no API key of this owner")
	if _, _, err := fx.callers.Create(t.Context(), engi.Key{Owner: "bob", Scopes: []engi.Scope{engi.ScopeSandboxes}}); err != nil {
		t.Fatal(err)
	}
	refused("the sandbox of somebody else", string(fx.box.ID), bob, "there is no session, workspace or sandbox")
	refused("… by its name", "box", bob, "there is no session, workspace or sandbox")
	refused("what never was", "nothing", fx.ann, "there is no session, workspace or sandbox")
	refused("nothing", "", fx.ann, "there is no session, workspace or sandbox")
	refused("a name that moves the cursor", "a\x1b[2J", fx.ann, "there is no session, workspace or sandbox")
	// The node's own key leads to the node's own sandboxes, not to everybody's.
	if _, _, err := fx.callers.Create(t.Context(), engi.Key{Admin: true}); err != nil {
		t.Fatal(err)
	}
	node, _ := fx.add("")
	refused("somebody's sandbox with the node's key", string(fx.box.ID), node, "there is no session, workspace or sandbox")
	refused("… by its name", "box", node, "there is no session, workspace or sandbox")
	if _, err := fx.sandboxes.Create(t.Context(), engi.SandboxSpec{Owner: "ann", Metadata: map[string]string{"name": "box"}}); err != nil {
		t.Fatal(err)
	}
	refused("a name that two have", "box", fx.ann, "2 sandboxes have the name")
	config, _ := fx.config(string(fx.box.ID), nil)
	config.Auth = []xssh.AuthMethod{xssh.Password("x"), xssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil })}
	if _, err := xssh.Dial("tcp", fx.Addr(), config); err == nil || !strings.Contains(err.Error(), "no supported methods remain") {
		t.Errorf("a password: %v", err)
	}
	if said, err := try(string(fx.box.ID), fx.ann); err != nil {
		t.Errorf("ann: %v %s", err, said)
	}
}

// ended waits for the end of a connection.
func ended(t *testing.T, c *xssh.Client) {
	t.Helper()
	done := make(chan struct{})
	go func() { c.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the connection goes on")
	}
}

func TestConnectionsEnd(t *testing.T) {
	for what, end := range map[string]func(*fixture) error{
		"the SSH key is deleted":    func(fx *fixture) error { return fx.Remove(context.Background(), "ann", fx.annKey.ID) },
		"the API key is revoked":    func(fx *fixture) error { return fx.callers.Revoke(context.Background(), "ann", fx.apiKey.ID) },
		"the session is terminated": func(fx *fixture) error { return fx.happens(engi.EventSessionTerminated) },
		"the session is released":   func(fx *fixture) error { return fx.happens(engi.EventSessionReleased) },
		"the server stops":          func(fx *fixture) error { fx.stop(); return nil },
	} {
		t.Run(what, func(t *testing.T) {
			fx := serve(t, nil)
			if _, err := fx.sessions.Create(t.Context(), engi.SessionSpec{Owner: "ann", Name: "dev"}); err != nil {
				t.Fatal(err)
			}
			c := fx.dial("dev")
			s := fx.session(c)
			var errOut bytes.Buffer
			s.Stderr = &errOut
			out, err := s.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "hung up")
			if err := s.Start(`trap 'echo > "` + file + `"; exit' HUP; echo ready; while :; do sleep 0.05; done`); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
			if err := end(fx); err != nil {
				t.Fatal(err)
			}
			ended(t, c)
			s.Wait()
			if !strings.HasPrefix(errOut.String(), "engi: ") {
				t.Errorf("told %q", errOut.String())
			}
			for i := 0; ; i++ { // the program is told, too
				if _, err := os.Stat(file); err == nil {
					break
				} else if i > 600 {
					t.Fatal("the program goes on")
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
}

// happens appends an event about ann's session.
func (fx *fixture) happens(kind string) error {
	x, err := fx.sessions.Get(context.Background(), "ann", "dev")
	if err != nil {
		return err
	}
	_, err = fx.events.Append(context.Background(), engi.EventSpec{Owner: "ann", Subject: string(x.ID), Type: kind})
	return err
}

// TestOldEventsEndNothing holds that a connection does not end by what happened to
// an earlier sandbox of its session.
func TestOldEventsEndNothing(t *testing.T) {
	fx := serve(t, nil)
	if _, err := fx.sessions.Create(t.Context(), engi.SessionSpec{Owner: "ann", Name: "dev"}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := fx.happens(engi.EventSessionReleased); err != nil {
			t.Fatal(err)
		}
		c := fx.dial("dev")
		if err := fx.session(c).Run("true"); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
}

// TestClientsLeave holds that programs hear of it, and sandboxes are left.
func TestClientsLeave(t *testing.T) {
	fx := serve(t, nil)
	if _, err := fx.sessions.Create(t.Context(), engi.SessionSpec{Owner: "ann", Name: "dev"}); err != nil {
		t.Fatal(err)
	}
	c := fx.dial("dev")
	s := fx.session(c)
	file := filepath.Join(t.TempDir(), "hung up")
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(`trap 'echo > "` + file + `"; exit' HUP; echo ready; while :; do sleep 0.05; done`); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if n := fx.entered.Load(); n != 1 {
		t.Errorf("entered %d times", n)
	}
	c.Close()
	for i := 0; ; i++ {
		if _, err := os.Stat(file); err == nil && fx.entered.Load() == 0 {
			break
		} else if i > 600 {
			t.Fatalf("%v, %d users", err, fx.entered.Load())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestSleepingSandboxesWake(t *testing.T) {
	fx := serve(t, nil)
	if err := fx.sandboxes.Lifecycle().Hibernate(t.Context(), "ann", fx.box.ID, false); err != nil {
		t.Fatal(err)
	}
	if out, err := fx.session(fx.dial("box")).Output("echo awake"); err != nil || string(out) != "awake\n" {
		t.Errorf("%q %v", out, err)
	}
}

// TestWorkspaces connects to the sandbox of a workspace, which starts with the first connection.
func TestWorkspaces(t *testing.T) {
	var all *apitest.Workspaces
	fx := serve(t, func(o *ssh.Options) {
		all = &apitest.Workspaces{Sandboxes: o.Places.Sandboxes.(*apitest.Sandboxes)}
		o.Places.Workspaces = all
	})
	if _, err := all.Create(t.Context(), engi.WorkspaceSpec{Owner: "ann", Name: "shop"}); err != nil {
		t.Fatal(err)
	}
	c := fx.dial("shop")
	if out, err := fx.session(c).Output("echo here"); err != nil || string(out) != "here\n" {
		t.Errorf("%q %v", out, err)
	}
	w, err := all.Get(t.Context(), "ann", "shop")
	if err != nil || w.State != engi.WorkspaceRunning {
		t.Fatalf("%+v %v", w, err)
	}
	// The connection ends with the sandbox.
	if _, err := fx.events.Append(t.Context(), engi.EventSpec{Owner: "ann", Subject: string(w.Sandbox), Type: engi.EventSandboxPrefix + string(engi.Stopped)}); err != nil {
		t.Fatal(err)
	}
	ended(t, c)
}

// TestFailuresAreTold holds that a client learns why it has no sandbox, and what to do.
func TestFailuresAreTold(t *testing.T) {
	fx := serve(t, nil)
	if _, err := fx.sessions.Create(t.Context(), engi.SessionSpec{Owner: "ann", Name: "dev"}); err != nil {
		t.Fatal(err)
	}
	fx.sessions.lost = engi.Errorf(engi.Exhausted, "the node is full").WithRemedy("wait a moment")
	c := fx.dial("dev")
	s := fx.session(c)
	var errOut bytes.Buffer
	s.Stderr = &errOut
	var exit *xssh.ExitError
	if err := s.Run("true"); !errors.As(err, &exit) || exit.ExitStatus() != 255 || errOut.String() != "engi: the node is full\r\n  wait a moment\r\n" {
		t.Errorf("%v %q", err, errOut.String())
	}
	if _, err := c.Dial("tcp", "localhost:1"); err == nil || !strings.Contains(err.Error(), "the node is full") {
		t.Errorf("forwarding: %v", err)
	}
}

func TestForwarding(t *testing.T) {
	fx := serve(t, nil)
	inside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	go func() { // answers when it has read all
		for {
			conn, err := inside.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				b, _ := io.ReadAll(conn)
				fmt.Fprintf(conn, "%x", sha256.Sum256(b))
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(inside.Addr().String())
	c := fx.dial("box")
	data := bytes.Repeat([]byte("engi"), 1<<20)
	for _, host := range []string{"localhost", "127.0.0.1", "[::1]"} {
		conn, err := c.Dial("tcp", host+":"+port)
		if err != nil {
			t.Fatal(host, err)
		}
		if _, err := conn.Write(data); err != nil {
			t.Error(err)
		}
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != fmt.Sprintf("%x", sha256.Sum256(data)) {
			t.Errorf("%s: %q %v", host, got, err)
		}
		conn.Close()
	}
	for to, want := range map[string]string{
		"192.0.2.1:80": "in the sandbox only", "169.254.169.254:80": "in the sandbox only", "example.com:80": "in the sandbox only",
		"localhost:1": "dial 1",
	} {
		if conn, err := c.Dial("tcp", to); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v", to, conn, err)
		}
	}
}

// TestRefusals holds what is not served.
func TestRefusals(t *testing.T) {
	fx := serve(t, nil)
	c := fx.dial("box")
	if _, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("remote forwarding works")
	}
	if _, _, err := c.OpenChannel("direct-streamlocal@openssh.com", nil); err == nil {
		t.Error("forwarding to sockets works")
	}
	s := fx.session(c)
	for _, kind := range []string{"auth-agent-req@openssh.com", "x11-req", "unknown"} {
		if ok, err := s.SendRequest(kind, true, nil); ok || err != nil {
			t.Errorf("%s: %t %v", kind, ok, err)
		}
	}
	if err := s.RequestSubsystem("nothing"); err == nil {
		t.Error("a subsystem that does not exist")
	}
	for _, name := range []string{"", "1A", "A=B", "A B", strings.Repeat("A", 300)} {
		if err := s.Setenv(name, "x"); err == nil {
			t.Errorf("the variable %.20q is taken", name)
		}
	}
	if err := s.Setenv("A", "x\x00"); err == nil {
		t.Error("a value with NUL is taken")
	}
	if err := s.Run("true"); err != nil {
		t.Errorf("after refusals: %v", err)
	}
	if err := fx.session(c).RequestSubsystem("sftp"); err != nil { // in this process, the guest has none; it says so in the channel
		t.Error(err)
	}
}

func TestBounds(t *testing.T) {
	fx := serve(t, nil)
	c := fx.dial("box")
	s := fx.session(c)
	many := 0
	for i := range 200 {
		if s.Setenv(fmt.Sprintf("V%d", i), "x") == nil {
			many++
		}
	}
	if many != 128 {
		t.Errorf("%d variables", many)
	}
	s.Close()
	large := fx.session(c)
	if large.Setenv("A", strings.Repeat("x", 40<<10)) != nil || large.Setenv("B", strings.Repeat("x", 40<<10)) == nil {
		t.Error("80 KiB of variables are taken, or 40 are not")
	}
	var open []*xssh.Session
	for {
		s, err := c.NewSession()
		if err != nil {
			if !strings.Contains(err.Error(), "too many channels") {
				t.Error(err)
			}
			break
		}
		if open = append(open, s); len(open) > 100 {
			t.Fatal("there is no bound on channels")
		}
	}
	if len(open) < 50 {
		t.Errorf("%d channels only", len(open))
	}
	for _, s := range open {
		s.Close()
	}
	for i := 0; ; i++ { // their places are free again
		s, err := c.NewSession()
		if err == nil {
			s.Close()
			break
		}
		if i > 600 {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestStrangersAreBounded holds that those who never authenticate do not keep others
// out, and are left.
func TestStrangersAreBounded(t *testing.T) {
	fx := serve(t, func(o *ssh.Options) { o.Handshake = 2 * time.Second })
	var silent []net.Conn
	for range 80 {
		conn, err := net.Dial("tcp", fx.Addr())
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, conn)
	}
	for _, conn := range silent {
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a silent connection goes on: %v", err)
		}
		conn.Close()
	}
	if err := fx.session(fx.dial("box")).Run("true"); err != nil {
		t.Error(err)
	}
}

func TestConnectionsOfOwnersAreBounded(t *testing.T) {
	fx := serve(t, func(o *ssh.Options) { o.Connections = 3 })
	for range 3 {
		if err := fx.session(fx.dial("box")).Run("true"); err != nil {
			t.Fatal(err)
		}
	}
	config, _ := fx.config("box", fx.ann)
	if c, err := xssh.Dial("tcp", fx.Addr(), config); err == nil {
		if _, err := c.NewSession(); err == nil {
			t.Error("a fourth connection works")
		}
		c.Close()
	}
}

// TestServe serves a connection that was authenticated elsewhere.
func TestServe(t *testing.T) {
	fx := serve(t, func(o *ssh.Options) { o.Listen = "" })
	if fx.Addr() != "" {
		t.Errorf("it listens at %s", fx.Addr())
	}
	connect := func(ctx context.Context, user string, who ssh.Caller) (*xssh.Client, string, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ours, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go fx.Serve(ctx, theirs, who)
		config, said := fx.config(user, nil)
		conn, chans, requests, err := xssh.NewClientConn(ours, "", config)
		if err != nil {
			ours.Close()
			return nil, said.String(), err
		}
		c := xssh.NewClient(conn, chans, requests)
		t.Cleanup(func() { c.Close() })
		return c, said.String(), nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	for _, who := range []ssh.Caller{{Viewer: "ann"}, {Viewer: "ann", Target: "box"}, {Viewer: engi.Everyone}} {
		user := "box"
		if who.Target != "" {
			user = "me"
		}
		c, said, err := connect(ctx, user, who)
		if err != nil {
			t.Fatal(err, said)
		}
		if out, err := fx.session(c).Output("echo hi"); err != nil || string(out) != "hi\n" {
			t.Errorf("%+v: %q %v", who, out, err)
		}
	}
	for _, viewer := range []engi.Viewer{"bob", ""} {
		if _, said, err := connect(ctx, "box", ssh.Caller{Viewer: viewer}); err == nil || !strings.Contains(said, "there is no session, workspace or sandbox") {
			t.Errorf("somebody else, %q: %v %q", viewer, err, said)
		}
	}
	c, _, err := connect(ctx, "box", ssh.Caller{Viewer: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	cancel() // as when an API key is revoked
	ended(t, c)
}

func TestHostKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	options := ssh.Options{Settings: ssh.DefaultSettings(), Store: store.SSHKeys(open(t)), HostKey: file}
	first, err := ssh.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	second, err := ssh.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	one, fingerprint := first.HostKey()
	two, again := second.HostKey()
	if one != two || fingerprint != again || !strings.HasPrefix(one, "ssh-ed25519 AAAA") || !strings.HasPrefix(fingerprint, "SHA256:") {
		t.Errorf("%s %s, %s %s", one, fingerprint, two, again)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = ssh.Open(options)
	kind(t, err, engi.Denied)
	if err := errors.Join(os.Chmod(file, 0o600), os.WriteFile(file, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err = ssh.Open(options)
	kind(t, err, engi.Invalid)
}

func TestSettings(t *testing.T) {
	if err := ssh.DefaultSettings().Validate(); err != nil {
		t.Error(err)
	}
	for _, s := range []ssh.Settings{{Listen: "2222", Connections: 1}, {Listen: "localhost:", Connections: 1}, {}} {
		kind(t, s.Validate(), engi.Invalid)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	_, err = ssh.Open(ssh.Options{Settings: ssh.Settings{Listen: busy.Addr().String(), Connections: 1}, Store: store.SSHKeys(open(t)), HostKey: filepath.Join(t.TempDir(), "k")})
	kind(t, err, engi.Conflict)
}
