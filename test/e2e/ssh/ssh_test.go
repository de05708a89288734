// Package ssh tests OpenSSH's clients, rsync, git and libraries for SSH against nodes
// with real sandboxes: as root and as nobody, before and after their sandbox
// hibernated.
package ssh

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

const config = `[sandbox]
enabled = true
template = "base"
[ssh]
listen = "127.0.0.1:0"
remote_forwarding = true
`

// A place is a node with the files of its clients, in the home directory dir.
type place struct {
	t    *testing.T
	dir  string
	engi func(args ...string) *exec.Cmd // returns a command of engi that uses the node
	data []byte                         // large data
}

func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			env.Need(t, p+" (.ci/setup test)")
		}
	}
}

// at returns a place for a node, with a configuration of ssh that reaches the node by its port,
// as TARGET.tcp, and through its HTTP port, as TARGET.engi.
func at(t *testing.T, c *client.Client, engi func(args ...string) *exec.Cmd) *place {
	t.Helper()
	p := &place{t: t, dir: env.Dir(t), engi: engi}
	p.must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "e2e", "-f", "id")
	p.run(p.command(engi("ssh-key", "add", p.path("id.pub"))), "")
	about, err := c.SSHServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(about.Address)
	if err != nil {
		t.Fatal(err)
	}
	p.write("known", []byte("tcp "+about.HostKey+"\n"))
	if err := os.Mkdir(p.path(".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.run(p.command(engi("ssh-config", "--write")), "")
	text, err := os.ReadFile(p.path(".ssh/config"))
	if err != nil {
		t.Fatal(err)
	}
	tcp := ""
	for _, target := range []string{"dev", "box"} {
		tcp += fmt.Sprintf("Host %s.tcp\n  HostName 127.0.0.1\n  Port %s\n  User %s\n", target, port, target)
	}
	p.write(".ssh/config", []byte(string(text)+tcp+fmt.Sprintf("Host *.tcp\n  HostKeyAlias tcp\n  UserKnownHostsFile %s\n  IdentityFile %s\n  IdentitiesOnly yes\n  StrictHostKeyChecking yes\nHost *\n  BatchMode yes\n  LogLevel ERROR\n",
		p.path("known"), p.path("id"))))
	return p
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

func (p *place) write(name string, data []byte) {
	p.t.Helper()
	if err := os.WriteFile(p.path(name), data, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// command gives a command the home of the place.
func (p *place) command(cmd *exec.Cmd) *exec.Cmd {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Dir = p.dir
	cmd.Env = append(cmd.Env, "HOME="+p.dir, "GIT_SSH_COMMAND=ssh -F "+p.path(".ssh/config"), "GIT_CONFIG_NOSYSTEM=1")
	return cmd
}

// client returns a command of OpenSSH.
func (p *place) client(program string, args ...string) *exec.Cmd {
	return p.command(exec.CommandContext(p.t.Context(), program, append([]string{"-F", p.path(".ssh/config")}, args...)...))
}

// run runs a command and returns its output, without the last line's end.
func (p *place) run(cmd *exec.Cmd, stdin string) string {
	p.t.Helper()
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		p.t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out.String(), said.String())
	}
	return strings.TrimSpace(out.String())
}

func (p *place) must(program string, args ...string) string {
	p.t.Helper()
	return p.run(p.command(exec.CommandContext(p.t.Context(), program, args...)), "")
}

// ssh runs a line in a host and returns its output.
func (p *place) ssh(host, line string) string {
	p.t.Helper()
	return p.run(p.client("ssh", host, line), "")
}

func (p *place) code(cmd *exec.Cmd) int {
	p.t.Helper()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

func (p *place) equal(what, got, want string) {
	p.t.Helper()
	if got != want {
		p.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// everything tests all clients with a host, with size MiB of data. tools means that
// the sandbox has rsync and scp.
func (p *place) everything(host string, size int, tools bool) {
	p.t.Helper()
	p.data = make([]byte, size<<20)
	rand.Read(p.data)
	p.write("big", p.data)
	hash := fmt.Sprintf("%x", sha256.Sum256(p.data))
	p.equal("a command", p.ssh(host, "echo $((6*7))"), "42")
	p.equal("input", p.run(p.client("ssh", host, "tr a-z A-Z"), "loud\n"), "LOUD")
	p.equal("a variable", p.run(p.client("ssh", "-o", "SetEnv=GREETING=hi", host, "echo $GREETING"), ""), "hi")
	if code := p.code(p.client("ssh", host, "exit 42")); code != 42 {
		p.t.Errorf("exit code %d", code)
	}
	if code := p.code(p.client("ssh", host, "kill -TERM $$")); code != 255 { // ssh returns 255 for a signal
		p.t.Errorf("exit code %d after a signal", code)
	}
	p.ssh(host, "rm -rf t && mkdir t")

	// Large data, by ssh itself, and by SFTP.
	in := p.client("ssh", host, "cat > t/in && sha256sum < t/in")
	in.Stdin = bytes.NewReader(p.data)
	p.equal("much data in", strings.Fields(p.run(in, ""))[0], hash)
	sum := sha256.New()
	out := p.client("ssh", host, "cat t/in")
	out.Stdout = sum
	if err := out.Run(); err != nil || fmt.Sprintf("%x", sum.Sum(nil)) != hash {
		p.t.Errorf("much data out: %v, %x", err, sum.Sum(nil))
	}
	p.run(p.client("scp", "-p", "big", host+":t/big"), "")
	p.equal("scp in", strings.Fields(p.ssh(host, "sha256sum t/big; rm t/in"))[0], hash)
	p.run(p.client("scp", "-p", host+":t/big", "back"), "")
	if got, err := os.ReadFile(p.path("back")); err != nil || !bytes.Equal(got, p.data) {
		p.t.Errorf("scp out: %d bytes, %v", len(got), err)
	}
	p.ssh(host, "rm t/big")

	// Directories, links, modes and times.
	for _, d := range []string{"tree", "got", "clone", "synced"} {
		os.RemoveAll(p.path(d)) // results from before the hibernation
	}
	if err := errors.Join(os.MkdirAll(p.path("tree/sub"), 0o755), os.WriteFile(p.path("tree/sub/x"), []byte("x"), 0o751), os.Chmod(p.path("tree/sub/x"), 0o751),
		os.Chtimes(p.path("tree/sub/x"), time.Unix(1e9, 0), time.Unix(1e9, 0))); err != nil {
		p.t.Fatal(err)
	}
	p.run(p.client("sftp", "-b", "-", host), "put -rp tree t/tree\nln -s sub/x t/tree/link\nrename t/tree/sub/x t/tree/sub/y\nsymlink sub/y t/tree/link2\nchmod 640 t/tree/sub/y\nls -la t/tree\ndf t\nget -rp t/tree got\n")
	p.equal("what sftp made", p.ssh(host, "cd t/tree && stat -c '%a %Y %s' sub/y && readlink link link2"), "640 1000000000 1\nsub/x\nsub/y")
	if info, err := os.Stat(p.path("got/sub/y")); err != nil || info.Mode() != 0o640 || info.ModTime().Unix() != 1e9 {
		p.t.Errorf("what sftp got: %v, %v", info, err)
	}

	// Git, both ways.
	p.ssh(host, "cd t && git init -q -b main repo && cd repo && git config user.email a@b.c && git config user.name a && git config receive.denyCurrentBranch updateInstead && echo 1 > f && git add f && git commit -qm one")
	pwd := p.ssh(host, "pwd")
	p.must("git", "clone", "-q", host+":"+pwd+"/t/repo", "clone")
	p.must("sh", "-c", "cd clone && echo 2 > f && git -c user.email=a@b.c -c user.name=a commit -qam two && git push -q")
	p.equal("what was pushed", p.ssh(host, "cat t/repo/f"), "2")

	if tools {
		p.run(p.client("scp", "-O", "-p", "tree/sub/x", host+":t/legacy"), "")
		p.equal("scp -O", p.ssh(host, "stat -c '%a %Y' t/legacy"), "751 1000000000")
		p.must("rsync", "-a", "-e", "ssh -F "+p.path(".ssh/config"), "tree/", host+":t/synced/")
		p.ssh(host, "echo more > t/synced/new && rm t/synced/sub/x")
		p.must("rsync", "-a", "--delete", "-e", "ssh -F "+p.path(".ssh/config"), host+":t/synced/", "synced/")
		var names []string
		filepath.WalkDir(p.path("synced"), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				names = append(names, d.Name())
			}
			return err
		})
		p.equal("rsync", strings.Join(names, " "), "new")
	}
	p.forward(host)
	p.remote(host)
	p.terminal(host)
	p.ssh(host, "rm -rf t")
}

// forward reaches a server inside by ssh -L.
func (p *place) forward(host string) {
	p.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	local := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	const port = "8123"
	cmd := p.command(exec.CommandContext(ctx, "ssh", "-F", p.path(".ssh/config"), "-o", "ExitOnForwardFailure=yes", "-L", local+":localhost:"+port, host,
		"cd t && echo inside > page && exec python3 -m http.server "+port+" --bind 127.0.0.1 2>&1"))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	defer cmd.Wait() // the process is killed
	defer cancel()
	for i := 0; ; i++ {
		resp, err := http.Get("http://" + local + "/page")
		if err == nil {
			body, rerr := io.ReadAll(resp.Body)
			resp.Body.Close()
			if rerr == nil && string(body) == "inside\n" {
				return
			}
		}
		if i > 300 {
			cancel()
			cmd.Wait()
			p.t.Errorf("ssh -L: %v\n%s", err, said.String())
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// remote reaches a server of this machine from inside by ssh -R, twice: the remains of the
// first must not prevent the second.
func (p *place) remote(host string) {
	p.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(w, r.Body); err != nil {
			p.t.Error(err)
		}
	})}
	go server.Serve(l)
	defer server.Close()
	const program = `import hashlib, urllib.request, sys, threading
data = b"engi" * (1 << 18)
def one(host):
	got = urllib.request.urlopen(urllib.request.Request("http://" + host + ":8124/", data=data, method="POST")).read()
	print(got == data)
all = [threading.Thread(target=one, args=(host,)) for host in ["localhost", "127.0.0.1"] * 4]
[x.start() for x in all]; [x.join() for x in all]
`
	for range 2 {
		got := p.run(p.client("ssh", "-o", "ExitOnForwardFailure=yes", "-R", "8124:"+l.Addr().String(), host, "python3 -"), program)
		p.equal("ssh -R", got, strings.TrimSpace(strings.Repeat("True\n", 8)))
	}
	// A port that is in use.
	cmd := p.client("ssh", "-o", "ExitOnForwardFailure=yes", "-R", "8125:"+l.Addr().String(), host, "sleep 1000")
	out := p.client("ssh", host, "python3 -c 'import socket,time; s = socket.create_server((\"127.0.0.1\", 8125)); print(1, flush=True); time.sleep(1000)'")
	pipe, err := out.StdoutPipe()
	if err == nil {
		err = out.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Wait() // the process is killed
	defer out.Process.Kill()
	if _, err := io.ReadFull(pipe, make([]byte, 2)); err != nil {
		p.t.Fatal(err)
	}
	if code := p.code(cmd); code != 255 {
		p.t.Errorf("ssh -R to a port that is taken: %d", code)
	}
}

// terminal types in a terminal whose size changes.
func (p *place) terminal(host string) {
	p.t.Helper()
	cmd := p.client("ssh", "-tt", host)
	cmd.Env = append(cmd.Env, "TERM=xterm")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 111})
	if err != nil {
		p.t.Fatal(err)
	}
	defer tty.Close()
	timeout := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() }) // closing a terminal ends no read of it
	defer timeout.Stop()
	seen, buf := "", make([]byte, 4096)
	until := func(what string) {
		p.t.Helper()
		for !strings.Contains(seen, what) {
			n, err := tty.Read(buf)
			if seen += string(buf[:n]); err != nil {
				p.t.Fatalf("%v after %q, want %q", err, seen, what)
			}
		}
		seen = seen[strings.Index(seen, what)+len(what):]
	}
	io.WriteString(tty, "echo size $(stty size) $TERM\n")
	until("size 33 111 xterm")
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 44, Cols: 122}); err != nil {
		p.t.Fatal(err)
	}
	for i := 0; !strings.Contains(seen, "now 44 122"); i++ { // the change may not have arrived yet
		if i > 100 {
			p.t.Fatalf("the size does not change: %q", seen)
		}
		fmt.Fprintf(tty, "echo now $(stty size) end%d\n", i)
		until(fmt.Sprintf(" end%d\r", i))
		n, err := tty.Read(buf)
		if seen += string(buf[:n]); err != nil {
			p.t.Fatal(err)
		}
		if strings.Contains(seen, "44 122") {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	// The program in the foreground says so itself: an interrupt that arrives before
	// the shell has handed the terminal over leaves a sleep that nothing interrupts.
	io.WriteString(tty, "sh -c 'echo is$((1+1))asleep; exec sleep 1000'; echo code $?\n")
	until("is2asleep")
	io.WriteString(tty, "\x03")
	// A shell may discard input that arrives while it handles the interrupt.
	for i := 0; !strings.Contains(seen, "back2"); i++ {
		if i > 100 {
			p.t.Fatalf("the interrupt does not end the program: %q", seen)
		}
		fmt.Fprintf(tty, "echo back$((1+1))\n")
		n, err := tty.Read(buf)
		if seen += string(buf[:n]); err != nil {
			p.t.Fatalf("%v after %q", err, seen)
		}
		time.Sleep(50 * time.Millisecond)
	}
	io.WriteString(tty, "exit 9\n")
	for {
		if _, err := tty.Read(buf); err != nil {
			break
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 9 {
		p.t.Errorf("the shell ends with %v", err)
	}
}

// TestRoot tests all clients with a session and a sandbox of a node that runs as root.
func TestRoot(t *testing.T) {
	env.Slow(t)
	needs(t, "ssh", "scp", "sftp", "ssh-keygen", "git", "rsync")
	s := env.Serve(t, env.ServerOptions{Config: config})
	s.Run("session", "create", "dev", "--template", "base", "--persistence", "snapshot")
	p := at(t, s.Client, s.Engi)
	p.everything("dev.tcp", 100, false)
	p.equal("who", p.ssh("dev.tcp", "echo kept > kept; id -un"), "user")

	s.Run("session", "release", "dev")
	if state := s.Run("session", "show", "dev"); !strings.Contains(state, "hibernated") {
		t.Errorf("the session does not sleep:\n%s", state)
	}
	p.equal("after sleep", p.ssh("dev.engi", "cat kept"), "kept")
	p.everything("dev.engi", 3, false)
	p.equal("engi ssh", p.run(p.command(s.Engi("ssh", "dev", "--", "cat kept; tr a-z A-Z")), "in\n"), "kept\nIN")
	if code := p.code(p.command(s.Engi("ssh", "dev", "--", "exit 7"))); code != 7 {
		t.Errorf("engi ssh: exit code %d", code)
	}

	// A sandbox with all tools: it has this machine's programs.
	s.Run("sandbox", "create", "host", "-m", "name=box", "--timeout", "1h")
	p.everything("box.tcp", 3, true)

	// Deleting a key ends its connections.
	cmd := p.client("ssh", "dev.tcp", "echo ready; sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	keys, err := s.SSHKeys(t.Context())
	if err != nil || len(keys) != 1 || keys[0].UsedAt == nil {
		t.Fatalf("%+v %v", keys, err)
	}
	if x, err := s.Session(t.Context(), "dev"); err != nil || len(x.Attached) != 1 || x.Attached[0].Via != "ssh" || x.Attached[0].Client != keys[0].ID {
		t.Errorf("attached: %+v, %v", x.Attached, err)
	}
	if err := s.DeleteSSHKey(t.Context(), keys[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the connection ends well")
	}
	if code := p.code(p.client("ssh", "dev.tcp", "true")); code != 255 {
		t.Errorf("with a key that was deleted: %d", code)
	}
}

// TestRootless tests all clients with a sandbox of a node that runs as user nobody.
func TestRootless(t *testing.T) {
	env.Slow(t)
	needs(t, "ssh", "scp", "sftp", "ssh-keygen", "git", "rsync")
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	dir := env.Dir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	vars := append(os.Environ(), "ENGI_DATA_DIR="+filepath.Join(dir, "d"), "ENGI_CACHE_DIR="+filepath.Join(dir, "c"), "HOME="+dir, "TMPDIR="+dir, "ENGI_TEMPLATES_DEFAULT=host", "ENGI_SSH_LISTEN=127.0.0.1:0", "ENGI_SSH_REMOTE_FORWARDING=true")
	for _, v := range []string{"ENGI_BIN", "ENGI_RUNSC", "ENGI_GUEST"} { // copy the programs to a directory that user nobody may read
		raw, err := os.ReadFile(os.Getenv(v))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, v), raw, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		vars = append(vars, v+"="+filepath.Join(dir, v))
	}
	nobody := func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(dir, "ENGI_BIN"), args...)
		cmd.Dir, cmd.Env = dir, vars
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, "d"), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	out, err := nobody("doctor").CombinedOutput()
	if err != nil {
		env.Need(t, "namespaces of users: "+string(out))
	}
	server := nobody("serve", "--listen", "127.0.0.1:0", "--pools", "none")
	var log bytes.Buffer
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if ids, err := nobody("sandbox", "list", "-q").Output(); err == nil { // an error means that the server has ended
			nobody(append([]string{"sandbox", "kill"}, strings.Fields(string(ids))...)...).Run()
		}
		server.Process.Signal(os.Interrupt)
		server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	if out, err := nobody("status", "--wait", "60s").CombinedOutput(); err != nil {
		t.Fatalf("the server is not ready: %v\n%s", err, out)
	}
	key, err := os.ReadFile(filepath.Join(dir, "d", "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := nobody("status", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, url, _ := strings.Cut(string(endpoint), `"url": "`)
	url, _, _ = strings.Cut(url, `"`)
	root := func(args ...string) *exec.Cmd { // the clients run as root
		cmd := exec.Command(os.Getenv("ENGI_BIN"), args...)
		cmd.Env = append(os.Environ(), "ENGI_URL="+url, "ENGI_KEY="+strings.TrimSpace(string(key)))
		return cmd
	}
	t.Setenv("ENGI_KEY", strings.TrimSpace(string(key))) // for ProxyCommand
	p := at(t, client.New(url, strings.TrimSpace(string(key))), root)
	p.run(p.command(root("sandbox", "create", "host", "-m", "name=box", "--timeout", "1h")), "")
	p.everything("box.tcp", 20, true)
	id := p.run(p.command(root("sandbox", "list", "-q")), "")
	p.ssh("box.tcp", "echo kept > kept")
	p.run(p.command(root("sandbox", "hibernate", id)), "")
	p.equal("after sleep", p.ssh("box.engi", "cat kept"), "kept")
	p.everything("box.engi", 3, true)
}
