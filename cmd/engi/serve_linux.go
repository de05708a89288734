package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/node/datadir"
	"github.com/engi-dev/engi/internal/sandbox/priority"
)

type serveCommand struct {
	Listen          string `help:"Address and port (ENGI_LISTEN); port 0 selects a free port." placeholder:"HOST:PORT"`
	AllowPublicHTTP bool   `name:"allow-public-http" help:"Serve a public address without TLS."`
	TLSCert         string `name:"tls-cert" help:"PEM file with the certificate chain." placeholder:"FILE"`
	TLSKey          string `name:"tls-key" help:"PEM file with the private key." placeholder:"FILE"`
	Pools           string `help:"Number of warm sandboxes by language, like python=4,bash=2:10, or none." placeholder:"LANG=N[:MAX],..."`
	Template        string `short:"t" help:"Default template." placeholder:"NAME"`
	Detach          bool   `short:"d" help:"Run in the background, and exit once the server answers; the log is engi.log in the data directory."`
}

func (serveCommand) Help() string {
	return `Sandboxes outlive the server: after it was stopped, killed or upgraded, the next server of the same
data directory finds them and their output. The admin key is in admin.key in the data directory. On
SIGTERM and Ctrl-C, the server finishes running requests before it exits.

Examples:
  engi serve
  engi serve --listen 127.0.0.1:8080 --pools python=4,bash=2
  engi serve --detach && engi status --wait 1m
  engi serve --listen 0.0.0.0:443 --tls-cert chain.pem --tls-key key.pem`
}

func (s *serveCommand) flags() (all []config.Flag) {
	for _, f := range []config.Flag{
		{Name: "--listen", Key: "listen", Value: s.Listen}, {Name: "--tls-cert", Key: "tls.cert", Value: s.TLSCert},
		{Name: "--tls-key", Key: "tls.key", Value: s.TLSKey}, {Name: "--pools", Key: "pools", Value: s.Pools},
		{Name: "--template", Key: "templates.default", Value: s.Template},
	} {
		if f.Value != "" {
			all = append(all, f)
		}
	}
	if s.AllowPublicHTTP {
		all = append(all, config.Flag{Name: "--allow-public-http", Key: "allow_public_http", Value: "true"})
	}
	return all
}

// softMemory is the size of memory above which the server collects garbage more often instead of
// growing. A busy node needs far less at once; other limits bound the memory that clients can make
// it use.
const softMemory = 448 << 20

func (s *serveCommand) Run(ctx context.Context, g *globals) error {
	c, from, err := g.config(s.flags()...)
	if err != nil {
		return err
	}
	if s.Detach {
		return s.detach(ctx, g, c)
	}
	log, err := c.Logger(g.err, isTerminal(g.err))
	if err != nil {
		return err
	}
	slog.SetDefault(log)
	// Libraries may log data of untrusted peers, such as unsolicited responses
	// of services in sandboxes.
	slog.SetLogLoggerLevel(slog.LevelDebug)
	log.Info("engi starts", "version", version, "data_dir", c.DataDir, "chosen", from)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemory)
	}
	if err := priority.Raise(); err != nil { // fails for an ordinary user
		log.Debug("the server's priority stays as it is", "error", err)
	}
	n, err := node.Open(ctx, c, g.options(log))
	if err != nil {
		return err
	}
	at := n.Endpoint()
	err = n.Run(ctx, func() { log.Info("engi serves", "url", at.URL, "docs", at.URL+"/docs", "key_file", at.KeyFile) })
	if err != nil {
		return err
	}
	log.Info("engi has stopped; sandboxes live on")
	return nil
}

// detach starts the same command in its own session and waits until it
// serves.
func (s *serveCommand) detach(ctx context.Context, g *globals, c config.Config) error {
	if at, _, err := datadir.Discover(c.DataDir); err == nil {
		return engi.Errorf(engi.Conflict, "a server already runs on %s: process %d, %s", c.DataDir, at.PID, at.URL)
	}
	self, err := os.Executable()
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return engi.Errorf(engi.Denied, "%v", err).WithRemedy("choose a directory that you may write to with --data-dir")
	}
	path := datadir.LogFile(c.DataDir)
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return engi.Errorf(engi.Denied, "%v", err)
	}
	defer log.Close()
	begin, err := log.Seek(0, 2)
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	var args []string
	for _, a := range os.Args[1:] {
		if a != "--detach" && a != "-d" {
			args = append(args, a)
		}
	}
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	if wd, err := os.Getwd(); err == nil {
		cmd.Dir = wd // flags may have relative paths
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return engi.Errorf(engi.Internal, "start the server: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			at, _, err := datadir.Discover(c.DataDir)
			if err != nil {
				continue
			}
			if g.JSON {
				return g.printJSON(at)
			}
			fmt.Fprintf(g.out, "engi serves %s (process %d, log %s)\n", at.URL, at.PID, path)
			return nil
		case err := <-ended:
			return engi.Errorf(engi.Unavailable, "the server ended: %v\n%s", err, tail(path, begin)).WithRemedy("the whole log is %s", path)
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			return engi.Errorf(engi.Expired, "start the server: %v", context.Cause(ctx))
		}
	}
}

// tail returns the last lines of a file after an offset.
func tail(path string, from int64) string {
	data, err := os.ReadFile(path)
	if err != nil || int64(len(data)) < from {
		return ""
	}
	lines := bytes.Split(bytes.TrimSpace(data[from:]), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-10):], []byte("\n")))
}

type statusCommand struct {
	Wait string `help:"Maximum time to wait until the server is ready." placeholder:"D"`
}

func (statusCommand) Help() string {
	return `Exits with 0 if a server is running and ready, otherwise with 1.

Examples:
  engi status
  engi status --wait 2m --json`
}

type status struct {
	datadir.Endpoint
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

func (s *statusCommand) Run(ctx context.Context, g *globals) error {
	wait, err := duration("--wait", s.Wait)
	if err != nil {
		return err
	}
	c, _, err := g.config()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(wait.Std())
	for {
		st, err := look(ctx, c)
		if err == nil && st.Ready || time.Now().After(deadline) {
			if err != nil {
				return err
			}
			return s.print(g, st)
		}
		if clock.Sleep(ctx, 100*time.Millisecond) != nil {
			return engi.Errorf(engi.Expired, "wait for the server: %v", context.Cause(ctx))
		}
	}
}

func look(ctx context.Context, c config.Config) (st status, err error) {
	at, key, err := datadir.Discover(c.DataDir)
	if err != nil {
		return st, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := client.New(at.URL, key).Ready(ctx)
	return status{at, r.Ready, r.Reason}, err
}

func (s *statusCommand) print(g *globals, st status) error {
	if g.JSON {
		if err := g.printJSON(st); err != nil {
			return err
		}
	} else {
		g.table("URL\tPROCESS\tVERSION\tSINCE\tREADY", [][]string{{st.URL, fmt.Sprint(st.PID), st.Version, ago(st.Started), readiness(st)}})
	}
	if !st.Ready {
		return exitCode(exitFailed)
	}
	return nil
}

func readiness(st status) string {
	if st.Ready {
		return "yes"
	}
	return "no: " + st.Reason
}

type stopCommand struct {
	Wait    string `help:"Maximum time to wait for the server to end." default:"30s" placeholder:"D"`
	Destroy bool   `help:"Also destroy all sandboxes and the programs in them."`
}

func (stopCommand) Help() string {
	return example("engi stop", "engi stop --destroy", "engi stop --data-dir /srv/engi --wait 1m")
}

func (s *stopCommand) Run(ctx context.Context, g *globals) error {
	wait, err := duration("--wait", s.Wait)
	if err != nil {
		return err
	}
	c, _, err := g.config()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, wait.Std())
	defer cancel()
	pid, err := datadir.Stop(ctx, c.DataDir)
	if err != nil && !(s.Destroy && engi.Is(err, engi.NotFound)) {
		return err
	}
	destroyed := 0
	if s.Destroy {
		if destroyed, err = node.Destroy(ctx, c); err != nil {
			return err
		}
	}
	switch {
	case g.JSON:
		return g.printJSON(map[string]int{"pid": pid, "destroyed": destroyed})
	case s.Destroy && pid == 0:
		fmt.Fprintf(g.out, "no engi ran on %s; %d sandboxes were destroyed\n", c.DataDir, destroyed)
	case s.Destroy:
		fmt.Fprintf(g.out, "engi (process %d) has stopped; %d sandboxes were destroyed\n", pid, destroyed)
	default:
		fmt.Fprintf(g.out, "engi (process %d) has stopped; its sandboxes live on until the next start\n", pid)
	}
	return nil
}
