package gvisor

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// capabilities lists the capabilities of root in the sandbox: the defaults of containers, so
// that apt, sudo and su work, but without raw sockets.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID",
	"CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// Annotations for engi's runsc; see tools/runsc.
const (
	annotMemory = "dev.engi.total-memory"
	annotCPUs   = "dev.engi.cpus"
	annotInodes = "dev.engi.inodes"
	annotMount  = "dev.engi.mount." // prefix; the path for the file server follows, and the value is the path for programs
)

const (
	oomScore = 500 // kill sandboxes first when the host runs out of memory

	// Limits of the guest program, which sets the limits of programs. If both
	// were the same, programs could starve the guest program.
	maxTasks = 1 << 16 // maximum that the sandbox's kernel supports
	minFiles = 8192
)

// bundle writes the OCI bundle of the machine.
func (p *Provider) bundle(d machineDir, spec provider.Spec) error {
	cfg := ociSpec(d, spec)
	if p.mapIDs(spec, cfg) {
		if err := os.WriteFile(d.path(mappedName), nil, 0o600); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("encode the bundle: %v", err)
	}
	if err := os.Mkdir(d.path("bundle"), 0o700); err != nil {
		return err
	}
	return os.WriteFile(d.path("bundle", "config.json"), raw, 0o600)
}

func ociSpec(d machineDir, spec provider.Spec) *specs.Spec {
	size := spec.Size
	files := uint64(max(size.OpenFiles, minFiles))
	score := oomScore
	namespaces := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
	}
	if spec.Network != provider.Host {
		// The network namespace is always listed, so that a machine saved with a link can be restored
		// without one, and vice versa.
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: spec.Netns})
	}
	cfg := &specs.Spec{
		Version: "1.1.0",
		Process: &specs.Process{
			Args:         []string{wire.Dir + "/" + wire.BinaryName},
			Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
			Cwd:          "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Hard: files, Soft: files},
				{Type: "RLIMIT_NPROC", Hard: maxTasks, Soft: maxTasks},
				{Type: "RLIMIT_CORE"},
			},
			OOMScoreAdj: &score,
		},
		Root:     &specs.Root{Path: spec.Root},
		Hostname: spec.Hostname,
		Linux:    &specs.Linux{Namespaces: namespaces},
		Annotations: map[string]string{
			annotMemory: strconv.FormatInt(size.Memory, 10),
			annotCPUs:   strconv.Itoa(visibleCPUs(size)),
			annotInodes: strconv.FormatInt(size.Inodes, 10),
		},
	}
	addSystemMounts(cfg, d, spec)
	addMounts(cfg, d, spec)
	return cfg
}

// addSystemMounts adds the mounts of every machine.
func addSystemMounts(cfg *specs.Spec, d machineDir, spec provider.Spec) {
	size := spec.Size
	cfg.Mounts = append(cfg.Mounts,
		specs.Mount{Destination: "/proc", Type: "proc", Source: "proc"},
		specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{
			"nosuid", "nodev", "noexec", "mode=1777", fmt.Sprintf("size=%d", size.Memory/2)}},
		specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "nodev", "noexec"}},
		bindMount(d.path("chan"), wire.Dir, "ro", "nosuid", "nodev"),
	)
	switch {
	case spec.Writable && spec.Network == provider.Host:
		// Files that a build writes to /tmp are not part of the template.
		cfg.Mounts = append(cfg.Mounts, bindMount(d.path("tmp"), "/tmp", "rw"))
	case spec.Writable || emptyDir(filepath.Join(spec.Root, "tmp")):
		// The sandbox's kernel would mount a tmpfs without a limit here. If /tmp
		// is not empty, it is part of the root and counts as disk, unless the disk
		// has no limit.
		limit := min(size.Disk, size.Memory/2)
		cfg.Mounts = append(cfg.Mounts, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{
			"mode=1777", fmt.Sprintf("size=%d", limit)}})
	}
	if spec.Network == provider.Host {
		for _, file := range []string{"/etc/resolv.conf", "/etc/hosts"} {
			if resolved, err := filepath.EvalSymlinks(file); err == nil {
				cfg.Mounts = append(cfg.Mounts, bindMount(resolved, file, "ro"))
			}
		}
	}
}

// addMounts adds the mounts of spec, and marks the mounts that the host changes.
func addMounts(cfg *specs.Spec, d machineDir, spec provider.Spec) {
	// The host changes the channel while the machine runs (a restarted daemon
	// creates a new socket), and other machines may change shared mounts.
	share := func(name, source string) {
		prefix := "dev.gvisor.spec.mount." + name
		cfg.Annotations[prefix+".source"] = source
		cfg.Annotations[prefix+".type"] = "bind"
		cfg.Annotations[prefix+".share"] = "shared"
	}
	share("engi", d.path("chan"))
	for i, m := range spec.Mounts {
		target, options := m.Target, []string{"ro"}
		if !hasMountPoint(spec.Root, m) {
			target = wire.Dir + "/" + mountsName + "/" + strconv.Itoa(i)
			cfg.Annotations[annotMount+target] = m.Target
		}
		if m.Writable {
			share(fmt.Sprintf("engi-%d", i), m.Source)
			options = []string{"rw", "nosuid", "nodev"}
		}
		cfg.Mounts = append(cfg.Mounts, bindMount(m.Source, target, options...))
	}
}

// hasMountPoint reports whether the root has the target of a mount, as a directory
// or file like the source, and without links in its path. Otherwise runsc would
// create it in the root itself.
func hasMountPoint(root string, m provider.Mount) bool {
	path := root
	for _, name := range strings.Split(strings.Trim(m.Target, "/"), "/") {
		path = filepath.Join(path, name)
		fi, err := os.Lstat(path)
		if err != nil || fi.Mode()&fs.ModeSymlink != 0 {
			return false
		}
	}
	target, err := os.Stat(path)
	if err != nil {
		return false
	}
	source, err := os.Stat(m.Source)
	return err == nil && source.IsDir() == target.IsDir()
}

// visibleCPUs returns the number of processors that programs see. With one processor, libraries
// omit locks, which are needed on the sandbox's kernel.
func visibleCPUs(size engi.Size) int {
	return max(2, int(math.Ceil(size.VCPUs)))
}

func bindMount(source, target string, options ...string) specs.Mount {
	return specs.Mount{Destination: target, Type: "bind", Source: source, Options: append(options, "rbind")}
}

func emptyDir(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return true
	}
	defer f.Close()
	names, _ := f.Readdirnames(1)
	return len(names) == 0
}

// flags returns runsc's global flags for a machine. They are the same for all
// commands, since runsc passes them to the processes it starts.
func (p *Provider) flags(d machineDir, spec record) []string {
	flags := []string{
		rootFlag + d.path("root"),
		"--platform=systrap",
		"--ignore-cgroups",
		"--host-uds=open",
		"--host-settings=ignore",
		"--allow-suid",
		"--file-access-mounts=exclusive",
		"--panic-log=" + d.path("panic.log"),
		"--traceback=single",
		// Machines of earlier versions were saved with other users.
		"--restore-spec-validation=warning",
	}
	if ns := p.emptyNetwork(); ns != "" {
		flags = append(flags, "--gofer-network-namespace="+ns)
	} else {
		flags = append(flags, "--gofer-network-namespace=new")
	}
	if spec.Writable {
		flags = append(flags, "--overlay2=none")
	} else {
		flags = append(flags, fmt.Sprintf("--overlay2=root:dir=%s,size=%d", d.path("overlay"), spec.Size.Disk))
	}
	switch {
	case spec.Network == provider.Host:
		flags = append(flags, "--network=host")
	case spec.HasLink:
		// Packets have the largest size already, and are not damaged in transit.
		flags = append(flags, "--network=sandbox", "--gso=false", "--software-gso=false", "--tx-checksum-offload=true")
	default:
		flags = append(flags, "--network=none")
	}
	return flags
}

// rootFlag begins the flag that identifies a machine's processes.
const rootFlag = "--root="

// checkSpec returns Invalid for a spec that this provider cannot start.
func checkSpec(spec provider.Spec) error {
	if err := spec.Check(); err != nil {
		return err
	}
	if min(spec.Weight, spec.WantedWeight) < 0 || max(spec.Weight, spec.WantedWeight) > 100 {
		return engi.Errorf(engi.Invalid, "weights of %d and %d; they can be 1 to 100", spec.Weight, spec.WantedWeight)
	}
	if spec.Size.Memory < minMemory {
		return engi.Errorf(engi.Invalid, "%d bytes of memory are not enough to boot", spec.Size.Memory).
			WithRemedy("give the sandbox at least %d MiB", minMemory>>20)
	}
	if spec.Netns != "" {
		if spec.Network == provider.Host {
			return engi.Errorf(engi.Invalid, "a machine on the host's network cannot have a link")
		}
		if _, err := os.Stat(spec.Netns); err != nil {
			return engi.Errorf(engi.Invalid, "the network namespace: %v", err)
		}
	}
	for _, m := range spec.Mounts {
		if isBelow(m.Target, wire.Dir) || isBelow(m.Target, "/proc") || isBelow(m.Target, "/sys") || isBelow(m.Target, "/dev") {
			return engi.Errorf(engi.Invalid, "nothing can be mounted at %q", m.Target)
		}
	}
	return nil
}

// minMemory is the memory that a machine needs to boot, in bytes.
const minMemory = 32 << 20

func isBelow(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
