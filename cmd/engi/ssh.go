package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	xssh "golang.org/x/crypto/ssh"
	"golang.org/x/term"

	"github.com/engi-dev/engi/internal/engi"
)

type sshCommand struct {
	Target  string   `arg:"" help:"ID or name of a session, sandbox or workspace." placeholder:"TARGET"`
	Command []string `arg:"" optional:"" help:"Shell command, after --." placeholder:"COMMAND"`

	Terminal bool `short:"t" name:"tty" help:"Run the program in a terminal."`
	Proxy    bool `help:"Relay an SSH connection on standard input and output, for ProxyCommand."`
}

func (sshCommand) Help() string {
	return `Connects over the server's HTTP port, with the API key instead of an SSH key. No SSH client need be
installed. Without a command, it opens a shell. A sleeping sandbox is resumed, and stays awake while
the connection is open. engi exits with the exit code of the command.

Examples:
  engi ssh dev
  engi ssh dev -- 'make test | tail'
  tar c src | engi ssh dev -- tar x
  ssh -o ProxyCommand='engi ssh --proxy dev' dev`
}

func (s *sshCommand) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		conn, err := d.SSH(ctx, s.Target)
		if err != nil {
			return err
		}
		if s.Proxy {
			return g.pipe(ctx, conn)
		}
		about, err := d.SSHServer(ctx)
		if err != nil {
			conn.Close()
			return err
		}
		hostKey, _, _, _, err := xssh.ParseAuthorizedKey([]byte(about.HostKey))
		if err != nil {
			conn.Close()
			return engi.Errorf(engi.Internal, "host key of the server: %v", err)
		}
		said := ""
		config := &xssh.ClientConfig{User: s.Target, HostKeyCallback: xssh.FixedHostKey(hostKey), BannerCallback: func(text string) error { said = text; return nil }}
		shake := time.AfterFunc(30*time.Second, func() { conn.Close() })
		c, chans, requests, err := xssh.NewClientConn(conn, s.Target, config)
		shake.Stop()
		if err != nil {
			conn.Close()
			if text, remedy, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(said), "engi: "), "\r\n"); ok { // the form of the server's errors
				return engi.Errorf(engi.NotFound, "%s", printable(text)).WithRemedy("%s", printable(strings.TrimSpace(remedy)))
			}
			return engi.Errorf(engi.Unavailable, "connect by SSH: %v", err)
		}
		client := xssh.NewClient(c, chans, requests)
		defer client.Close()
		return s.attend(ctx, g, client)
	})
}

// pipe copies between the standard streams and a connection until it ends.
func (g *globals) pipe(ctx context.Context, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	// The goroutine is not waited for, because a read of standard input cannot be interrupted.
	go func() {
		io.Copy(conn, g.in)
		conn.Close()
	}()
	io.Copy(g.out, conn) // the SSH client and the server handle an error
	conn.Close()
	return nil
}

// attend runs a program with the standard streams of this process.
func (s *sshCommand) attend(ctx context.Context, g *globals, c *xssh.Client) error {
	session, err := c.NewSession()
	if err != nil {
		return engi.Errorf(engi.Unavailable, "open a session: %v", err)
	}
	session.Stdout, session.Stderr = g.out, g.err
	in, err := session.StdinPipe()
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	restore := func() {}
	if s.Terminal || len(s.Command) == 0 && term.IsTerminal(int(g.in.Fd())) {
		if restore, err = g.sshTerminal(ctx, session); err != nil {
			return err
		}
	}
	defer restore()
	if len(s.Command) == 0 {
		err = session.Shell()
	} else {
		err = session.Start(strings.Join(s.Command, " ")) // joined like ssh does
	}
	if err != nil {
		return engi.Errorf(engi.Unavailable, "start the program: %v", err)
	}
	// The goroutine is not waited for, because a read of a terminal cannot be interrupted.
	go func() {
		io.Copy(in, g.in)
		in.Close()
	}()
	stop := context.AfterFunc(ctx, func() {
		if session.Signal(xssh.SIGINT) == nil {
			time.Sleep(2 * time.Second)
		}
		c.Close()
	})
	defer stop()
	err = session.Wait()
	restore()
	var exit *xssh.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit) && exit.Signal() != "":
		return exitCode(128 + signalNumber(strings.TrimSuffix(exit.Signal(), "@engi")))
	case errors.As(err, &exit):
		return exitCode(exit.ExitStatus())
	case ctx.Err() != nil:
		return exitCode(exitCancelled)
	}
	return engi.Errorf(engi.Unavailable, "the connection broke: %v", err)
}

// sshTerminal requests a terminal like this one, and makes this one raw until restore.
func (g *globals) sshTerminal(ctx context.Context, session *xssh.Session) (restore func(), err error) {
	cols, rows := g.windowSize()
	if err := session.RequestPty(cmp.Or(os.Getenv("TERM"), "xterm-256color"), rows, cols, xssh.TerminalModes{}); err != nil {
		return nil, engi.Errorf(engi.Unavailable, "ask for a terminal: %v", err)
	}
	fd := int(g.in.Fd())
	if !term.IsTerminal(fd) {
		return func() {}, nil
	}
	old, err := term.MakeRaw(fd)
	if err != nil {
		return nil, engi.Errorf(engi.Unsupported, "make the terminal raw: %v", err)
	}
	resized, stop := watchWindow()
	ctx, cancel := context.WithCancel(ctx)
	go func() { // the goroutine ends with ctx
		for {
			select {
			case <-resized:
				cols, rows := g.windowSize()
				session.WindowChange(rows, cols) // fails if the session has ended
			case <-ctx.Done():
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		stop()
		term.Restore(fd, old)
	}), nil
}

type sshConfigCommand struct {
	Target []string `arg:"" optional:"" help:"Sessions and sandboxes to list by name, for editors that show a list of hosts." placeholder:"TARGET"`
	Name   string   `help:"Suffix of host names: SESSION.NAME." default:"engi" placeholder:"NAME"`
	Write  bool     `help:"Write the configuration and the host key below ~/.ssh, and include it in ~/.ssh/config."`
}

func (sshConfigCommand) Help() string {
	return `Makes SESSION.engi a host for ssh, scp, sftp, rsync, git and editors, through the server's HTTP
port, with the server's host key pinned. The configuration does not contain the API key, which is
found as for any command. --write replaces ~/.ssh/engi/NAME.conf and NAME.known_hosts, and adds an
Include to ~/.ssh/config if it is missing; the rest of that file stays unchanged.

Examples:
  engi ssh-config --write && ssh dev.engi
  engi ssh-config --write dev sbx_u2dmwmlezjgprkqrgppgcz2mgu
  ENGI_URL=https://engi.example.com engi ssh-config --write --name cloud`
}

func (s *sshConfigCommand) Run(ctx context.Context, g *globals) error {
	for _, name := range append([]string{s.Name}, s.Target...) {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`*?!"'\/%,#`, r) }) {
			return engi.Errorf(engi.Invalid, "%q cannot be part of a host's name in ssh's configuration", name).WithRemedy("use letters, digits, dots, dashes and underscores")
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return engi.Errorf(engi.Unsupported, "find the home directory: %v", err)
	}
	return g.atServer(ctx, func(d *connection) error {
		about, err := d.SSHServer(ctx)
		if err != nil {
			return err
		}
		dir := filepath.Join(home, ".ssh", "engi")
		known := filepath.Join(dir, s.Name+".known_hosts")
		block, err := s.block(g, d, known)
		if err != nil {
			return err
		}
		line := s.alias() + " " + about.HostKey + "\n"
		if !s.Write {
			fmt.Fprintf(g.out, "%s# %s has this line:\n# %s", block, known, line)
			return nil
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return engi.Errorf(engi.Denied, "%v", err)
		}
		for file, text := range map[string]string{known: line, filepath.Join(dir, s.Name+".conf"): block} {
			if err := replace(file, []byte(text)); err != nil {
				return err
			}
		}
		if err := include(filepath.Join(home, ".ssh", "config")); err != nil {
			return err
		}
		g.note("ssh SESSION.%s works now", s.Name)
		return nil
	})
}

// alias returns the name of the node in known_hosts.
func (s *sshConfigCommand) alias() string { return "engi-" + s.Name }

// block returns the part of ssh's configuration for the node.
func (s *sshConfigCommand) block(g *globals, d *connection, known string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", engi.Errorf(engi.Unsupported, "find this program: %v", err)
	}
	words := []string{self, "ssh", "--proxy"}
	if cmp.Or(g.URL, os.Getenv("ENGI_URL")) != "" {
		words = append(words, "--url", d.url)
	} else if dir := cmp.Or(g.DataDir, os.Getenv("ENGI_DATA_DIR")); dir != "" {
		if dir, err = filepath.Abs(dir); err != nil {
			return "", engi.Errorf(engi.Invalid, "%v", err)
		}
		words = append(words, "--data-dir", dir)
	}
	for i, w := range words {
		words[i] = strings.ReplaceAll("'"+strings.ReplaceAll(w, "'", `'\''`)+"'", "%", "%%")
	}
	hosts := []string{"*." + s.Name}
	for _, t := range s.Target {
		hosts = append(hosts, t+"."+s.Name)
	}
	return fmt.Sprintf(`# Made by 'engi ssh-config'.
Host %s
  ProxyCommand %s -- "$(basename %%n .%s)"
  HostKeyAlias %s
  UserKnownHostsFile %q
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  ServerAliveInterval 30
`, strings.Join(hosts, " "), strings.Join(words, " "), s.Name, s.alias(), known), nil
}

// replace writes a file atomically.
func replace(file string, text []byte) error {
	part := file + ".new"
	err := os.WriteFile(part, text, 0o600)
	if err == nil {
		err = os.Rename(part, file)
	}
	if err != nil {
		return engi.Errorf(engi.Denied, "%v", err)
	}
	return nil
}

// include makes ssh's configuration include the files of engi. The line must be at the
// beginning: further down, it would belong to the section of a host.
func include(file string) error {
	const line = "Include engi/*.conf\n"
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return engi.Errorf(engi.Denied, "%v", err)
	}
	if strings.HasPrefix("\n"+string(text), "\n"+line) || strings.Contains(string(text), "\n"+line) {
		return nil
	}
	if real, err := filepath.EvalSymlinks(file); err == nil { // the file may be a link to another place
		file = real
	}
	return replace(file, append([]byte(line+"\n"), text...))
}
