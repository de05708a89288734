package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// probeSize is a size that is large enough to boot.
var probeSize = engi.Size{VCPUs: 1, Memory: 256 << 20, Disk: 64 << 20, Inodes: 10000, Processes: 64, OpenFiles: 1024}

const diskWanted = 2 << 30 // bytes that should be free

// Probe boots a machine from root and returns a report of the host's capabilities.
func (p *Provider) Probe(ctx context.Context, root string) (provider.Report, error) {
	r := provider.Report{Tier: engi.TierGVisor, NotEnforced: p.NotEnforced()}
	r.Checks = []engi.Check{p.checkRunsc(), p.checkGuest(), checkUser(), p.checkIDs(root), p.checkGroups(), p.checkDisk(), checkClock()}
	for _, c := range r.Checks[:2] {
		if !c.OK {
			return r, nil // machines cannot boot without runsc and the guest program
		}
	}
	boot := p.checkBoot(ctx, root)
	if err := ctx.Err(); err != nil {
		return r, engi.Errorf(engi.Expired, "probe: %v", err)
	}
	r.Checks = append(r.Checks, boot)
	r.Works = boot.OK
	return r, nil
}

func (p *Provider) checkRunsc() engi.Check {
	c := engi.Check{Name: "runsc", Fix: "build it with 'make build', or unpack the release again"}
	out, err := p.runsc("--version").CombinedOutput()
	switch {
	case err != nil:
		c.Detail = fmt.Sprintf("%s: %v", p.opt.Runsc, err)
		return c
	case dynamic(p.opt.Runsc):
		c.Detail = p.opt.Runsc + " is linked dynamically and cannot run in its chroot"
		return c
	case p.features() == "":
		c.OK, c.Detail = true, p.opt.Runsc+" is not engi's: the number of files is not limited, and starts are slower"
		return c
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	c.OK, c.Detail, c.Fix = true, fmt.Sprintf("%s (%s)", p.opt.Runsc, first), ""
	return c
}

func (p *Provider) checkGuest() engi.Check {
	c := engi.Check{Name: "guest program", Detail: p.opt.Guest}
	fi, err := os.Stat(p.opt.Guest)
	switch {
	case err != nil:
		c.Detail = err.Error()
	case fi.Mode()&0o111 == 0:
		c.Detail += " is not executable"
	case dynamic(p.opt.Guest):
		c.Detail += " is linked dynamically: it needs libraries that templates may not have"
	default:
		c.OK = true
		return c
	}
	c.Fix = "build it with 'make build', or unpack the release again"
	return c
}

func (p *Provider) checkIDs(root string) engi.Check {
	c := engi.Check{Name: "users of sandboxes", OK: true, Detail: "the host has none of them"}
	if ids := p.ids(); ids == nil || !p.mappable(ids, root) || !p.mappable(ids, p.opt.Dir) {
		c.Detail = "sandboxes run as the user of engi, without its rights: only root can map users, on file systems that can map owners of files"
	}
	return c
}

// dynamic reports whether an ELF file has an interpreter.
func dynamic(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 4096)
	n, _ := f.Read(head)
	return strings.Contains(string(head[:n]), "/ld-")
}

func checkUser() engi.Check {
	c := engi.Check{Name: "user", OK: true, Detail: "root"}
	if rootless() {
		c.Detail = "not root: machines run in a user namespace"
	}
	return c
}

func (p *Provider) checkGroups() engi.Check {
	c := engi.Check{Name: "control groups", OK: true}
	switch {
	case p.groups == nil && rootless():
		c.OK, c.Detail = false, "only for root: processor time is not limited, and memory is polled"
		c.Fix = "run engi as root to let the kernel enforce every limit"
	case p.groups == nil:
		c.OK, c.Detail = false, "none that can be used: processor time is not limited, and memory is polled"
		c.Fix = "mount control groups read-write at " + p.opt.CgroupRoot
	case len(p.missing) > 0:
		c.OK, c.Detail = false, fmt.Sprintf("%s without %s", p.groups.Version(), strings.Join(p.missing, ", "))
		c.Fix = "boot the kernel with these controllers enabled (cgroup_enable=memory on some machines)"
	default:
		c.Detail = p.groups.Version().String()
	}
	return c
}

func (p *Provider) checkDisk() engi.Check {
	c := engi.Check{Name: "disk"}
	var fs unix.Statfs_t
	if err := unix.Statfs(p.opt.Dir, &fs); err != nil {
		c.Detail = err.Error()
		return c
	}
	free := int64(fs.Bavail) * fs.Bsize
	c.Detail = fmt.Sprintf("%d MiB free in %s", free>>20, p.opt.Dir)
	if c.OK = free >= diskWanted; !c.OK {
		c.Fix = fmt.Sprintf("free %d MiB there, or choose another data directory", (diskWanted-free)>>20)
	}
	return c
}

// checkClock checks the clock source. If programs cannot read it directly, each
// reading of the time in a sandbox is a system call.
func checkClock() engi.Check {
	c := engi.Check{Name: "clock"}
	raw, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	source := strings.TrimSpace(string(raw))
	c.Detail = source
	if err != nil {
		c.Detail = "unknown clock source"
	}
	if c.OK = err != nil || slices.Contains([]string{"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"}, source); !c.OK {
		c.Detail += " is slow to read"
		c.Fix = "boot with a clock source that programs can read, such as tsc"
	}
	return c
}

// checkBoot boots a machine and checks that its disk is limited.
func (p *Provider) checkBoot(ctx context.Context, root string) engi.Check {
	c := engi.Check{Name: "boot"}
	begin := time.Now()
	spec := provider.Spec{ID: engi.NewSandboxID(), Root: root, Size: probeSize, Hostname: "probe", Token: "probe"}
	m, err := p.Start(ctx, spec)
	if err != nil {
		c.Detail, c.Fix = err.Error(), p.bootFix(err)
		return c
	}
	took := time.Since(begin)
	limited := hasOverlay(m.(*machine).gofer)
	if err := m.Close(); err != nil {
		c.Detail = fmt.Sprintf("a machine boots but cannot be destroyed: %v", err)
		return c
	}
	if !limited {
		c.Detail, c.Fix = "the writable layer of the machine was not limited", "use the runsc that comes with engi"
		return c
	}
	c.OK, c.Detail = true, fmt.Sprintf("a machine booted in %d ms and was destroyed", took.Milliseconds())
	return c
}

// hasOverlay reports whether a file server was started with a limited writable
// layer.
func hasOverlay(gofer *process) bool {
	if gofer == nil {
		return false
	}
	raw, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(gofer.ref.PID), "cmdline"))
	return err == nil && strings.Contains(string(raw), fmt.Sprintf("size=%d", probeSize.Disk))
}

// bootFix returns instructions to fix the host, guessed from the error of a boot.
func (p *Provider) bootFix(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "operation not permitted") || strings.Contains(text, "clone"):
		return namespaceFix()
	case strings.Contains(text, "no space left"):
		return "free disk space in " + p.opt.Dir
	case strings.Contains(text, "seccomp"):
		return "allow seccomp, ptrace and namespaces in the container that engi runs in (docker: --privileged)"
	}
	return engi.RemedyOf(err)
}
