package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/node/datadir"
	"github.com/engi-dev/engi/internal/sandbox/disk"
	"github.com/engi-dev/engi/internal/sandbox/disk/volume"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor"
	"github.com/engi-dev/engi/internal/store"
)

// Reports of providers about a host, for cmd, which does not import provider.
type (
	Check  = engi.Check
	Report = provider.Report
	Leak   = provider.Leak
)

// A Diagnosis is the result of Doctor.
type Diagnosis struct {
	Checks []Check // common to all tiers
	Tiers  []Report
}

// Works reports whether any tier can run programs.
func (d Diagnosis) Works() bool {
	return slices.ContainsFunc(d.Tiers, func(t Report) bool { return t.Works })
}

// Examine runs the checks of Doctor that take milliseconds and boot nothing. It
// may run beside a server, and inside one.
func Examine(ctx context.Context, c config.Config) (checks []Check, err error) {
	add := func(name string, err error, detail string) {
		check := Check{Name: name, OK: err == nil, Detail: detail}
		if err != nil {
			check.Detail, check.Fix = err.Error(), engi.RemedyOf(err)
		}
		checks = append(checks, check)
	}
	add("configuration", c.Validate(), "valid")
	for _, dir := range []struct{ what, path string }{{"data directory", c.DataDir}, {"cache directory", c.CacheDir}} {
		free, err := freeSpace(dir.path)
		add(dir.what, err, fmt.Sprintf("%s, %d GiB free", dir.path, free>>30))
	}
	if !c.Volumes.Plain {
		add("volumes", volume.Images(), "images, whose capacity the kernel enforces")
	}
	took, err := probeLinks(ctx)
	add("network", err, fmt.Sprintf("a link for a sandbox can be made, in %v", took.Round(100*time.Microsecond)))
	_, err = FindPrograms(ctx, c)
	add("programs", err, "runsc and engi-guest are there")
	base, _, err := examineBase(ctx, c)
	if err != nil {
		return nil, err
	}
	checks = append(checks, base)
	if c.Sessions.Enabled {
		detail, err := diagnoseSessions(ctx, c)
		add("packages of sessions", err, detail)
	}
	return checks, nil
}

// Doctor examines the machine and boots one sandbox per tier. It does not need
// or disturb a server.
func Doctor(ctx context.Context, c config.Config, o Options) (d Diagnosis, err error) {
	if d.Checks, err = Examine(ctx, c); err != nil {
		return d, err
	}
	programs, err := FindPrograms(ctx, c)
	if err != nil {
		return d, nil // a check of Examine reports it
	}
	root, err := d.findRoot(ctx, c)
	if err != nil || root == "" {
		return d, err
	}
	// The directory is held like one of a private node, so that the next start
	// deletes the remains of a killed doctor.
	dir := filepath.Join(c.DataDir, datadir.PrivateName, strings.ToLower(rand.Text()[:8]))
	release, err := datadir.Hold(dir)
	if err != nil {
		d.Checks = append(d.Checks, Check{Name: "sandboxes' directory", Detail: err.Error(), Fix: engi.RemedyOf(err)})
		return d, nil
	}
	defer os.RemoveAll(dir)
	defer release()
	p, err := gvisor.New(gvisor.Options{Runsc: programs[0].Path, Guest: programs[1].Path, Dir: machinesDir(dir), Log: o.Log})
	if err != nil {
		return d, err
	}
	report, err := probe(ctx, p, root)
	if err != nil {
		return d, errors.Join(err, removeOthers(context.WithoutCancel(ctx), p, nil))
	}
	d.Tiers = append(d.Tiers, report)
	return d, removeOthers(ctx, p, nil)
}

func probe(ctx context.Context, p provider.Provider, root string) (provider.Report, error) {
	prober, ok := p.(provider.Prober)
	if !ok {
		return provider.Report{}, engi.Errorf(engi.Unsupported, "the %s tier cannot examine its host", p.Tier())
	}
	return prober.Probe(ctx, root)
}

// examineBase checks whether the template base is built, and returns its root; empty
// if it is not.
func examineBase(ctx context.Context, c config.Config) (check Check, root string, err error) {
	ts, err := disk.Open(ctx, disk.Options{Dir: templatesDir(c)})
	if err != nil {
		return Check{}, "", err
	}
	base, release, err := ts.Use(ctx, "base")
	if err != nil {
		check = Check{Name: "template base", Detail: "not built: only the template host can be used", Fix: "engi template build base"}
		if _, missing := exec.LookPath("mmdebstrap"); missing != nil {
			check.Fix = "apt-get install mmdebstrap && engi template build base"
		}
		return check, "", nil
	}
	release()
	check = Check{Name: "template base", OK: true, Detail: "built"}
	if base.Partial {
		check.Detail, check.Fix = "only the first part is built, which runs Python and bash", "engi template build base"
	}
	return check, base.Root, nil
}

// findRoot returns the root of a template to boot from. If there is none, it returns "" and
// adds a failed check.
func (d *Diagnosis) findRoot(ctx context.Context, c config.Config) (root string, err error) {
	if _, root, err = examineBase(ctx, c); err != nil || root != "" {
		return root, err
	}
	ts, err := disk.Open(ctx, disk.Options{Dir: templatesDir(c)})
	if err != nil {
		return "", err
	}
	host, err := ts.Build(ctx, "host", nil, nil)
	if err != nil {
		d.Checks = append(d.Checks, Check{Name: "template host", Detail: err.Error(), Fix: engi.RemedyOf(err)})
		return "", nil
	}
	return host.Root, nil
}

// templatesDir returns the directory of templates, without symbolic links in its path:
// gVisor refuses a root file system behind one.
func templatesDir(c config.Config) string { return resolve(filepath.Join(c.CacheDir, "templates")) }

// resolve returns path without symbolic links, or path itself if it cannot be
// resolved: the next use reports the reason.
func resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// freeSpace creates dir and returns the bytes free on its disk. It reports Exhausted for less than
// 2 GiB.
func freeSpace(dir string) (free int64, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, engi.Errorf(engi.Denied, "%v", err).WithRemedy("choose a directory that you may write to")
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return 0, engi.Errorf(engi.Denied, "%s: not writable", dir).WithRemedy("choose a directory that you may write to")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, engi.Errorf(engi.Unavailable, "%s: %v", dir, err)
	}
	free = int64(fs.Bavail) * fs.Bsize
	if free < 2<<30 {
		return free, engi.Errorf(engi.Exhausted, "%s: only %d MiB free", dir, free>>20).WithRemedy("free some space, or choose another disk")
	}
	return free, nil
}

// Leaks lists the remains of sandboxes, in this data directory and in those of
// dead private nodes. live are the sandboxes of the running server; if no server
// runs, Leaks determines those that the next one will adopt. With fix, it first
// removes the remains of dead private nodes. If no server runs, it also removes those that the next
// one would not adopt.
func Leaks(ctx context.Context, c config.Config, o Options, live []engi.SandboxID, fix bool) (leaks []provider.Leak, err error) {
	if fix {
		if err := sweepPrivate(ctx, c, o.Log); err != nil {
			return nil, err
		}
	}
	programs, err := FindPrograms(ctx, c)
	if err != nil {
		return nil, err
	}
	dead, err := deadPrivate(c)
	if err != nil {
		return nil, err
	}
	for _, dir := range dead {
		leaks = append(leaks, provider.Leak{Kind: "directory", Name: dir})
	}
	held, err := datadir.IsHeld(c.DataDir)
	if err != nil {
		return nil, err
	}
	if !held {
		if live, err = wanted(ctx, c); err != nil {
			return nil, err
		}
	}
	machines := map[string][]engi.SandboxID{machinesDir(c.DataDir): live}
	for _, dir := range dead {
		machines[machinesDir(dir)] = nil
	}
	for dir, live := range machines {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		p, err := gvisor.New(gvisor.Options{Runsc: programs[0].Path, Guest: programs[1].Path, Dir: dir, Log: o.Log})
		if err != nil {
			return nil, err
		}
		if fix && !held {
			if err := removeOthers(ctx, p, live); err != nil {
				return nil, err
			}
		}
		if held && dir == machinesDir(c.DataDir) {
			builds, err := p.Builds()
			if err != nil {
				return nil, err
			}
			live = append(slices.Clone(live), builds...) // builds of the server, which removes them itself
		}
		t, ok := provider.Provider(p).(provider.Tracer)
		if !ok {
			return nil, engi.Errorf(engi.Unsupported, "the %s tier cannot look for leaks", p.Tier())
		}
		found, err := t.Leaks(ctx, live)
		if err != nil {
			return nil, err
		}
		leaks = append(leaks, found...)
	}
	return leaks, nil
}

// wanted returns the sandboxes that the next server on c.DataDir will adopt.
func wanted(ctx context.Context, c config.Config) (ids []engi.SandboxID, err error) {
	if _, err := os.Stat(filepath.Join(c.DataDir, datadir.DatabaseName)); err != nil {
		return nil, nil
	}
	release, err := datadir.Hold(c.DataDir)
	if err != nil {
		return nil, err
	}
	defer release()
	db, err := store.Open(ctx, filepath.Join(c.DataDir, datadir.DatabaseName))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return store.LiveSandboxes(ctx, db)
}

// HasTemplate reports whether a template is built.
func HasTemplate(c config.Config, name string) (bool, error) {
	ts, err := disk.Open(context.Background(), disk.Options{Dir: templatesDir(c)})
	if err != nil {
		return false, err
	}
	t, err := ts.Get(context.Background(), name)
	return err == nil && t.Digest != "", nil
}

// Destroy removes every sandbox of a data directory without a running
// server, and returns their number. It reports Conflict if a server runs.
func Destroy(ctx context.Context, c config.Config) (int, error) {
	if _, err := os.Stat(machinesDir(c.DataDir)); err != nil {
		return 0, nil
	}
	release, err := datadir.Hold(c.DataDir)
	if err != nil {
		return 0, err
	}
	defer release()
	programs, err := FindPrograms(ctx, c)
	if err != nil {
		return 0, err
	}
	p, err := gvisor.New(gvisor.Options{Runsc: programs[0].Path, Guest: programs[1].Path, Dir: machinesDir(c.DataDir)})
	if err != nil {
		return 0, err
	}
	found, err := p.Found(ctx)
	if err != nil {
		return 0, err
	}
	return len(found), destroy(ctx, p, c.DataDir)
}
