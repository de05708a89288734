package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

type workspaceClone struct {
	Name  string `arg:"" name:"workspace" help:"Workspace." placeholder:"WORKSPACE"`
	Dir   string `arg:"" optional:"" help:"Directory (default: the name of the workspace)." placeholder:"DIR" type:"path"`
	Depth int    `help:"Number of revisions to clone (default: all)." placeholder:"N"`
}

func (workspaceClone) Help() string {
	return `Needs git. In the clone, git fetches, pulls and pushes without a password: it asks engi for the key,
which is in no file of the clone. A push to main becomes a revision, and is copied into the
workspace's sandbox, if there is one.

Examples:
  engi workspace clone shop
  cd shop && git commit -am 'Change the title' && git push`
}

func (w *workspaceClone) Run(ctx context.Context, g *globals) error {
	git, err := exec.LookPath("git")
	if err != nil {
		return engi.Errorf(engi.Unsupported, "git is not available").WithRemedy("install it: apt-get install git")
	}
	self, err := os.Executable()
	if err != nil {
		return engi.Errorf(engi.Unavailable, "find the program of this command: %v", err)
	}
	return g.atServer(ctx, func(d *connection) error {
		x, err := d.Workspace(ctx, w.Name)
		if err != nil {
			return err
		}
		from := strings.TrimRight(d.url, "/") + "/v1/workspaces/" + x.ID + "/git"
		helper := "credential." + from + ".helper="
		// The empty helper removes all earlier helpers, which would store the key.
		args := []string{"-c", "init.defaultBranch=main", "clone", "-c", helper, "-c", helper + "!" + shellQuoted(self) + " workspace git-credential"}
		if w.Depth > 0 {
			args = append(args, "--depth", fmt.Sprint(w.Depth))
		}
		cmd := exec.CommandContext(ctx, git, append(args, "--", from, cmp.Or(w.Dir, x.Name))...)
		cmd.Env = append(os.Environ(), "ENGI_URL="+d.url, "ENGI_KEY="+d.secret)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = g.in, g.out, g.err
		err = cmd.Run()
		if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() > 0 {
			return exitCode(e.ExitCode())
		}
		if err != nil {
			return engi.Errorf(engi.Unavailable, "run git: %v", err)
		}
		return nil
	})
}

// shellQuoted returns s quoted for a shell.
func shellQuoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// A gitCredential answers git's requests for a password, as in gitcredentials(7).
// It returns the key for its own server, and no password for other servers.
type gitCredential struct {
	Action string `arg:"" help:"Operation of git's credential protocol: get; store and erase do nothing." placeholder:"ACTION"`
}

func (gitCredential) Help() string {
	return `Implements git's credential protocol for 'engi workspace clone': the operation is an argument, and
the URL is on standard input. Prints the API key for URLs of this server, and nothing for others.

Examples:
  git config --global credential.http://127.0.0.1:7777.helper '!engi workspace git-credential'`
}

func (c *gitCredential) Run(ctx context.Context, g *globals) error {
	asked := map[string]string{}
	for in := bufio.NewScanner(io.LimitReader(g.in, 64<<10)); in.Scan() && in.Text() != ""; {
		name, value, _ := strings.Cut(in.Text(), "=")
		asked[name] = value
	}
	if c.Action != "get" {
		return nil
	}
	return g.atServer(ctx, func(d *connection) error {
		u, err := url.Parse(d.url)
		if err != nil {
			return engi.Errorf(engi.Invalid, "%q is no address: %v", d.url, err)
		}
		if asked["protocol"] != u.Scheme || asked["host"] != u.Host {
			return nil // git then asks the user
		}
		_, err = fmt.Fprintf(g.out, "username=engi\npassword=%s\n", d.secret)
		return err
	})
}
