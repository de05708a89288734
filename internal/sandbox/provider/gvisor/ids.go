package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// The processes of a machine run as users that the host does not have: user 0 of
// the machine is user firstID of the host, and so on. No file, process or key of the host belongs
// to these users. systemd's table of IDs leaves the range unassigned.
const (
	firstID = 0x7000_0000
	idCount = 0x1000_0000
)

// idsVariable and annotSource are for engi's runsc; see tools/runsc/ids.go.
const (
	idsVariable = "ENGI_IDS"
	annotSource = "dev.engi.source."
)

// mappedName is a file in the directories of machines with mapped users.
const mappedName = "mapped"

// An idMap is a user namespace with the users of machines, and the directory to which a machine's
// mounts are moved in its mount namespace: users of the machine cannot reach the host's
// own mounts.
type idMap struct {
	ns  *os.File
	dir string
}

// openIDMap returns nil if this host or this runsc cannot map users.
func (p *Provider) openIDMap() *idMap {
	if rootless() || !strings.Contains(p.features(), "ids") {
		return nil
	}
	dir := mountDir(p.opt.Dir, p.opt.Runsc)
	ns, err := newUserNamespace(p.opt.Runsc)
	if err == nil && dir == "" {
		err = fmt.Errorf("no directory for mounts")
	}
	if err != nil {
		p.log.Warn("machines run as root without its rights, since users cannot be mapped", "error", err)
		return nil
	}
	return &idMap{ns, dir}
}

// mountDir returns a directory that all users may enter and that has none of the
// paths below it, or "".
func mountDir(paths ...string) string {
	for _, dir := range []string{"/mnt", "/media", "/srv", "/opt", "/home"} {
		fi, err := os.Lstat(dir)
		if err == nil && fi.IsDir() && !slices.ContainsFunc(paths, func(path string) bool { return isBelow(path, dir) }) {
			return dir
		}
	}
	return ""
}

// newUserNamespace returns a user namespace that maps the users of machines.
func newUserNamespace(runsc string) (*os.File, error) {
	cmd := exec.Command(runsc, "engi-wait")
	maps := []syscall.SysProcIDMap{{ContainerID: 0, HostID: firstID, Size: idCount}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: maps, GidMappings: maps}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	stdin.Close()
	cmd.Wait() // the exit status does not matter
	return ns, err
}

// mapIDs changes the bundle of a machine so that it runs with mapped users. It
// returns false, and changes nothing, for machines that cannot: files of some file
// systems cannot change owners, and the host's network belongs to the host's users.
func (p *Provider) mapIDs(spec provider.Spec, cfg *specs.Spec) bool {
	if spec.Network == provider.Host {
		return false
	}
	ids := p.ids()
	if ids == nil || slices.ContainsFunc([]string{spec.Disk, spec.Netns}, func(path string) bool { return path != "" && isBelow(path, ids.dir) }) {
		return false
	}
	sources := map[string]string{filepath.Join(ids.dir, "root"): cfg.Root.Path}
	places := map[string]string{}
	for i, m := range cfg.Mounts {
		if m.Type == "bind" {
			place := filepath.Join(ids.dir, strconv.Itoa(i))
			sources[place], places[m.Source] = m.Source, place
		}
	}
	for _, source := range sources {
		if !p.mappable(ids, source) {
			return false
		}
	}
	cfg.Root.Path = filepath.Join(ids.dir, "root")
	for i, m := range cfg.Mounts {
		if m.Type == "bind" {
			cfg.Mounts[i].Source = filepath.Join(ids.dir, strconv.Itoa(i))
		}
	}
	for key, source := range cfg.Annotations {
		if strings.HasPrefix(key, "dev.gvisor.spec.mount.") && strings.HasSuffix(key, ".source") {
			cfg.Annotations[key] = places[source]
		}
	}
	for place, source := range sources {
		cfg.Annotations[annotSource+place] = source
	}
	mapping := []specs.LinuxIDMapping{{ContainerID: 0, HostID: firstID, Size: idCount}}
	cfg.Linux.Namespaces = append(cfg.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	cfg.Linux.UIDMappings, cfg.Linux.GIDMappings = mapping, mapping
	return true
}

// mappable reports whether the owners of files below path can be mapped. It tests
// each file system once.
func (p *Provider) mappable(ids *idMap, path string) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return false
	}
	if ok, asked := p.mapped.Load(st.Dev); asked {
		return ok.(bool)
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err == nil {
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ids.ns.Fd())})
		unix.Close(tree)
	}
	if err != nil {
		p.log.Warn("machines run as root without its rights, since owners of files cannot be mapped", "path", path, "error", err)
	}
	p.mapped.Store(st.Dev, err == nil)
	return err == nil
}

// withIDs lets a command of runsc mount the file systems of a machine with mapped users.
func (p *Provider) withIDs(cmd *exec.Cmd) {
	ids := p.ids()
	cmd.ExtraFiles = []*os.File{ids.ns}
	cmd.Env = append(cmd.Env, idsVariable+"=3 "+ids.dir)
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNS
}
