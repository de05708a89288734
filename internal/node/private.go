package node

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/node/datadir"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor"
)

// A Private is a node in this process with its own data directory, which
// Close removes. It uses the templates of the ordinary node. It is safe for
// concurrent use.
type Private struct {
	*Node
	dir    string
	cancel context.CancelFunc
	done   chan error
}

// OpenPrivate starts a private node with the given configuration on a free
// loopback port. It first removes the remains of killed private nodes. The
// caller closes the node, also after a signal, because its sandboxes would outlive the process.
func OpenPrivate(ctx context.Context, c config.Config, o Options) (_ *Private, err error) {
	base := filepath.Join(c.DataDir, datadir.PrivateName)
	if err := sweepPrivate(ctx, c, o.Log); err != nil && o.Log != nil {
		o.Log.Warn("remove what a killed private node left", "error", err)
	}
	// Short, because the paths of sockets are limited; a clash is an error.
	p := &Private{dir: filepath.Join(base, strings.ToLower(rand.Text()[:8])), done: make(chan error, 1)}
	c.DataDir, c.Listen, c.TLS = p.dir, "127.0.0.1:0", config.TLS{}
	o.Ephemeral = true
	if p.Node, err = Open(ctx, c, o); err != nil {
		os.RemoveAll(p.dir)
		return nil, err
	}
	ready := make(chan struct{})
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel = cancel
	go func() { p.done <- p.Run(run, func() { close(ready) }) }()
	select {
	case <-ready:
		return p, nil
	case err := <-p.done:
		cancel()
		return nil, errors.Join(err, os.RemoveAll(p.dir))
	case <-ctx.Done():
		return nil, errors.Join(engi.Errorf(engi.Expired, "start a private node: %v", context.Cause(ctx)), p.Close())
	}
}

// Close destroys the node's sandboxes and its data. Call it once.
func (p *Private) Close() error {
	p.cancel()
	err := errors.Join(<-p.done, volume.Unmount(volumesDir(p.dir)))
	if rm := os.RemoveAll(p.dir); rm != nil {
		err = errors.Join(err, engi.Errorf(engi.Internal, "remove the private data directory: %v", rm))
	}
	return err
}

// EnterNamespaces enables a process that was not started by root to run
// sandboxes; see package gvisor.
func EnterNamespaces() error { return gvisor.EnterNamespaces() }

// deadPrivate returns the directories of private nodes whose process has ended.
func deadPrivate(c config.Config) ([]string, error) {
	base := filepath.Join(c.DataDir, datadir.PrivateName)
	entries, err := os.ReadDir(base)
	if err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	var dead []string
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		if held, err := datadir.IsHeld(dir); e.IsDir() && err == nil && !held {
			dead = append(dead, dir)
		}
	}
	return dead, nil
}

// sweepPrivate destroys the remains of dead private nodes.
func sweepPrivate(ctx context.Context, c config.Config, log *slog.Logger) error {
	dead, err := deadPrivate(c)
	if err != nil || len(dead) == 0 {
		return err
	}
	programs, err := FindPrograms(ctx, c)
	if err != nil {
		return err
	}
	var all []error
	for _, dir := range dead {
		release, err := datadir.Hold(dir)
		if err != nil {
			continue // another process is removing or creating it
		}
		p, err := gvisor.New(gvisor.Options{Runsc: programs[0].Path, Guest: programs[1].Path, Dir: machinesDir(dir), Log: log})
		if err == nil {
			err = destroy(ctx, p, dir)
		}
		if err == nil {
			err = os.RemoveAll(dir)
		}
		all = append(all, err)
		release()
	}
	return errors.Join(all...)
}

// destroy destroys every machine of p, whose data directory is dir, and unmounts
// everything there.
func destroy(ctx context.Context, p provider.Provider, dir string) error {
	if err := removeOthers(ctx, p, nil); err != nil {
		return err
	}
	return volume.Unmount(volumesDir(dir))
}

// removeOthers destroys every machine of p that is not in live.
func removeOthers(ctx context.Context, p provider.Provider, live []engi.SandboxID) error {
	found, err := p.Found(ctx)
	if err != nil {
		return err
	}
	for _, id := range found {
		if slices.Contains(live, id) {
			continue
		}
		if err := p.Remove(ctx, id); err != nil {
			return err
		}
	}
	return nil
}
