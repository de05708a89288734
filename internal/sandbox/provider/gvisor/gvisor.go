// Package gvisor is the provider whose machines are gVisor sandboxes. Each machine is a
// user-space kernel in separate processes, started by runsc. The processes continue
// when the process that started them dies.
//
// The provider runs as root, with control groups of either version, or without them as any
// other user after [EnterNamespaces]. Package disk builds root file systems,
// package guest talks to the guest program.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor/cgroup"
)

// Options configures a Provider. Runsc, Guest and Dir are required.
type Options struct {
	Runsc      string       // absolute path of a static runsc
	Guest      string       // absolute path of the static guest program
	Dir        string       // absolute path of a private directory for the machines
	Log        *slog.Logger // nil discards
	Cgroups    Cgroups      // use of control groups; empty means CgroupsAuto
	CgroupRoot string       // mount point of control groups, for tests; empty means /sys/fs/cgroup
	Boots      int          // maximum number of concurrent boots; 0 means the number of processors
}

// Cgroups selects the control groups that enforce limits.
type Cgroups string

const (
	CgroupsAuto Cgroups = "auto" // the control groups that the host has and permits
	CgroupsV1   Cgroups = "v1"
	CgroupsV2   Cgroups = "v2"
	CgroupsNone Cgroups = "none" // no control groups; memory is polled instead, see NotEnforced
)

// A Provider starts gVisor machines. It is safe for concurrent use. It has no
// Close method, since machines outlive it.
type Provider struct {
	opt      Options
	log      *slog.Logger
	groups   *cgroup.Tree  // nil without control groups
	missing  []string      // controllers the host lacks
	boots    chan struct{} // holds a token for each machine that is booting
	features func() string // returns the extensions of runsc; see askFeatures
	ids      func() *idMap // returns nil if users cannot be mapped
	mapped   sync.Map      // by device: whether owners of files on it can be mapped

	networkMu sync.Mutex
	network   *os.File // an empty network namespace for file servers; nil before the first start

	guestMu sync.Mutex // held while the guest program is copied

	mu   sync.Mutex
	live map[engi.SandboxID]*machine // machines with an owner in this process; nil while being booted or adopted
}

var (
	_ provider.Provider  = (*Provider)(nil)
	_ provider.Restorer  = (*Provider)(nil)
	_ provider.Prober    = (*Provider)(nil)
	_ provider.Enforcer  = (*Provider)(nil)
	_ provider.Tracer    = (*Provider)(nil)
	_ provider.Networked = (*Provider)(nil)
)

// New returns a provider on o.Dir. It creates the directory, and checks whether
// control groups can be used. It returns Invalid for options that cannot work.
func New(o Options) (*Provider, error) {
	for _, path := range []string{o.Runsc, o.Guest, o.Dir} {
		if !filepath.IsAbs(path) {
			return nil, engi.Errorf(engi.Invalid, "gvisor: %q is not an absolute path", path)
		}
	}
	o.Dir = filepath.Clean(o.Dir)
	if o.CgroupRoot == "" {
		o.CgroupRoot = cgroup.DefaultRoot
	}
	if o.Boots <= 0 {
		o.Boots = runtime.NumCPU()
	}
	p := &Provider{opt: o, log: o.Log, boots: make(chan struct{}, o.Boots), live: map[engi.SandboxID]*machine{}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.features = sync.OnceValue(p.askFeatures)
	p.ids = sync.OnceValue(p.openIDMap)
	if err := os.MkdirAll(filepath.Join(o.Dir, "m"), 0o700); err != nil {
		return nil, engi.Errorf(engi.Internal, "gvisor: %v", err)
	}
	// The kernel shows resolved paths in command lines and mounts.
	resolved, err := filepath.EvalSymlinks(o.Dir)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "gvisor: %v", err)
	}
	p.opt.Dir = resolved
	if err := p.openGroups(); err != nil {
		return nil, err
	}
	return p, nil
}

// probeGroup exists while a provider is opened.
const probeGroup = "probe"

// openGroups opens the control groups, if they can be used.
func (p *Provider) openGroups() error {
	if p.opt.Cgroups == CgroupsNone {
		return nil
	}
	version, missing := cgroup.Detect(p.opt.CgroupRoot)
	switch p.opt.Cgroups {
	case CgroupsAuto, "":
	case CgroupsV1, CgroupsV2:
		if string(p.opt.Cgroups) != version.String() {
			return engi.Errorf(engi.Invalid, "gvisor: the host has control groups %s, not %s", version, p.opt.Cgroups)
		}
	default:
		return engi.Errorf(engi.Invalid, "gvisor: %q is not a version of control groups", p.opt.Cgroups).
			WithRemedy("use auto, v1, v2 or none")
	}
	if version == cgroup.None {
		return nil
	}
	tree := cgroup.Open(p.opt.CgroupRoot, p.groupName(), version)
	probe := tree.Group(probeGroup)
	err := probe.Create()
	if err == nil {
		err = probe.Limit(cgroup.Limits{Memory: 1 << 30})
	}
	if rmErr := probe.Remove(deadline(stopTimeout)); err == nil {
		err = rmErr
	}
	switch {
	case err == nil:
		p.groups, p.missing = tree, missing
	case p.opt.Cgroups == CgroupsV1 || p.opt.Cgroups == CgroupsV2:
		return engi.Errorf(engi.Invalid, "gvisor: control groups %s cannot be used: %v", version, err)
	default:
		p.log.Info("control groups cannot be used", "version", version.String(), "error", err)
	}
	return nil
}

// groupName returns the name of the parent of this provider's groups. It depends on
// the directory, so that providers on one host do not mistake each other's groups
// for leaks.
func (p *Provider) groupName() string {
	return "engi-" + shortHash(p.opt.Dir)
}

// Tier returns TierGVisor.
func (p *Provider) Tier() engi.Tier { return engi.TierGVisor }

// NotEnforced returns the names of limits that are not enforced on this host.
func (p *Provider) NotEnforced() []string {
	var names []string
	if p.groups == nil || slices.Contains(p.missing, "cpu") {
		names = append(names, "vcpus")
	}
	if !strings.Contains(p.features(), "inodes") {
		names = append(names, "inodes")
	}
	return names
}

// askFeatures asks runsc which of engi's extensions it has.
func (p *Provider) askFeatures() string {
	out, err := exec.Command(p.opt.Runsc, "engi-features").Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// Start boots a machine.
func (p *Provider) Start(ctx context.Context, spec provider.Spec) (_ provider.Machine, err error) {
	defer engi.Annotate(&err, "start %s", spec.ID)
	if spec.Disk != "" {
		if err := checkImage(spec.Disk, imageDisk); err != nil {
			return nil, err
		}
	}
	return p.boot(ctx, spec, "")
}

// Restore boots a machine from the image of Checkpoint or Snapshot, including its
// disk. It ignores spec.Disk.
func (p *Provider) Restore(ctx context.Context, spec provider.Spec, dir string) (_ provider.Machine, err error) {
	defer engi.Annotate(&err, "restore %s", spec.ID)
	if err := checkImage(dir, imageMemory); err != nil {
		return nil, err
	}
	return p.boot(ctx, spec, dir)
}

// Netns returns a path of the network namespace of a running machine. It returns
// NotFound if the machine is not running or was started without a namespace.
func (p *Provider) Netns(ctx context.Context, id engi.SandboxID) (_ string, err error) {
	defer engi.Annotate(&err, "find the network of %s", id)
	if _, err := engi.ParseSandboxID(string(id)); err != nil {
		return "", err
	}
	d := p.dir(id)
	var rec record
	var run processRecord
	if d.load("machine.json", &rec) != nil || !rec.HasLink || d.load("run.json", &run) != nil || run.HostBoot != hostBoot() {
		return "", engi.Errorf(engi.NotFound, "it has no link")
	}
	if start, err := startTime(run.Sandbox.PID); err != nil || start != run.Sandbox.Start {
		return "", engi.Errorf(engi.NotFound, "it does not run")
	}
	return fmt.Sprintf("/proc/%d/ns/net", run.Sandbox.PID), nil
}

// Found lists machines by their directories and control groups.
func (p *Provider) Found(ctx context.Context) ([]engi.SandboxID, error) {
	entries, err := os.ReadDir(filepath.Join(p.opt.Dir, "m"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, engi.Errorf(engi.Internal, "find machines: %v", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if p.groups != nil {
		groups, err := p.groups.List()
		if err != nil {
			return nil, engi.Errorf(engi.Internal, "find machines: %v", err)
		}
		names = append(names, groups...)
	}
	slices.Sort(names)
	var ids []engi.SandboxID
	for _, name := range slices.Compact(names) {
		if id, err := engi.ParseSandboxID(name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Remove destroys the remains of a machine that was not adopted.
func (p *Provider) Remove(ctx context.Context, id engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "remove %s", id)
	if _, err := engi.ParseSandboxID(string(id)); err != nil {
		return nil // id is not an ID of a machine
	}
	d := p.dir(id)
	var run processRecord
	if d.load("run.json", &run) == nil && run.HostBoot == hostBoot() {
		for _, ref := range []procRef{run.Sandbox, run.Gofer} {
			if proc, err := openProcess(ref); err == nil {
				proc.kill()
				proc.close()
			}
		}
	}
	if p.groups == nil {
		// There is no record of processes if the owner died during the boot, and no control group in which
		// to wait until they have exited.
		if err := p.killAll(id, deadline(stopTimeout)); err != nil {
			return engi.Errorf(engi.Internal, "%v", err)
		}
	}
	return p.erase(id)
}

// erase removes all traces of a machine whose processes have been killed.
func (p *Provider) erase(id engi.SandboxID) error {
	if p.groups != nil {
		if err := p.groups.Group(string(id)).Remove(deadline(stopTimeout)); err != nil {
			return engi.Errorf(engi.Internal, "%v", err)
		}
	}
	if err := os.RemoveAll(string(p.dir(id))); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	return nil
}

// reserve makes sure that a machine has only one owner in this process. It returns
// Conflict if the machine already has one.
func (p *Provider) reserve(id engi.SandboxID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.live[id]; taken {
		return engi.Errorf(engi.Conflict, "the machine has an owner already")
	}
	p.live[id] = nil
	return nil
}

func (p *Provider) own(m *machine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[m.id] = m
}

func (p *Provider) forget(id engi.SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, id)
}

// emptyNetwork returns a path of an empty network namespace for file servers, or
// "" if none can be created. The namespace exists as long as this process, needs no mount,
// and is shared by all machines.
func (p *Provider) emptyNetwork() string {
	p.networkMu.Lock()
	defer p.networkMu.Unlock()
	if p.network == nil {
		made := make(chan *os.File, 1)
		go onOwnThread(func() {
			if unix.Unshare(unix.CLONE_NEWNET) != nil {
				made <- nil
				return
			}
			f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
			if err != nil {
				f = nil
			}
			made <- f
		})
		if p.network = <-made; p.network == nil {
			return ""
		}
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.network.Fd())
}

// onOwnThread runs f on a thread that exits with the calling goroutine, which must
// return afterwards. The main thread never exits, so f does not run there.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		f() // the thread stays locked, and exits with the goroutine
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(f) // on another thread, since the main thread is locked
	}()
	<-done
	runtime.UnlockOSThread()
}
