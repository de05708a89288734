package gvisor

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// A machineDir is the directory of a machine. It is created before anything else
// of the machine and removed last, so that every trace has a directory.
//
//	chan/         mounted read-only at /.engi in the sandbox
//	bundle/       the OCI bundle
//	root/         runsc's state
//	overlay/      holds the (unlinked) file with what the sandbox writes
//	machine.json  a record
//	run.json      a processRecord
//	panic.log     the panic of the sandbox's kernel, if any
//	mapped        exists if its users are mapped
//	still         exists while the sandbox's kernel may be stopped
type machineDir string

func (p *Provider) dir(id engi.SandboxID) machineDir {
	return machineDir(filepath.Join(p.opt.Dir, "m", string(id)))
}

func (d machineDir) path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// A record holds the facts about a machine that a later owner needs.
type record struct {
	Size       engi.Size            `json:"size"`
	Writable   bool                 `json:"writable"`
	Network    provider.HostNetwork `json:"network"`
	HasLink    bool                 `json:"wired,omitempty"` // the machine has a link
	WritesHost bool                 `json:"shares"`          // the machine can write to files of the host
	Created    time.Time            `json:"created"`
}

func recordOf(spec provider.Spec) record {
	rec := record{Size: spec.Size, Writable: spec.Writable, Network: spec.Network, HasLink: spec.Netns != "", Created: time.Now().UTC()}
	for _, m := range spec.Mounts {
		rec.WritesHost = rec.WritesHost || m.Writable
	}
	return rec
}

// A processRecord identifies the processes of a booted machine.
type processRecord struct {
	HostBoot string  `json:"host_boot"` // ID of the host's boot; process IDs are invalid in another
	Sandbox  procRef `json:"sandbox"`
	Gofer    procRef `json:"gofer"`
}

// create creates the directory with all files except the socket of the channel. It
// reports Conflict if the machine exists.
func (p *Provider) create(d machineDir, spec provider.Spec, guest string) error {
	if err := os.Mkdir(string(d), 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return engi.Errorf(engi.Conflict, "the machine exists already")
		}
		return fmt.Errorf("create the directory: %v", err)
	}
	if err := d.save("machine.json", recordOf(spec)); err != nil {
		return err
	}
	for _, sub := range []string{"chan", "overlay", "root"} {
		if err := os.Mkdir(d.path(sub), 0o700); err != nil {
			return err
		}
	}
	if spec.Writable {
		if err := os.Mkdir(d.path("tmp"), 0o700); err != nil {
			return err
		}
		if err := os.Chmod(d.path("tmp"), 0o777|fs.ModeSticky); err != nil {
			return err
		}
	}
	if err := os.Link(guest, d.path("chan", wire.BinaryName)); err != nil {
		return fmt.Errorf("link the guest program: %v", err)
	}
	// A restored guest expects the file to exist. A new token wakes it as soon
	// as it runs.
	if err := d.writeResume(); err != nil {
		return err
	}
	// Create mount points for mounts that have none in the root.
	for i, m := range spec.Mounts {
		if hasMountPoint(spec.Root, m) {
			continue
		}
		if err := d.makeMountPoint(m.Source, strconv.Itoa(i)); err != nil {
			return fmt.Errorf("create a mount point: %v", err)
		}
	}
	return p.bundle(d, spec)
}

// mountsName is the directory of mount points below chan.
const mountsName = "mnt"

func (d machineDir) makeMountPoint(source, name string) error {
	fi, err := os.Stat(source)
	if err != nil {
		return err
	}
	place := d.path("chan", mountsName, name)
	if fi.IsDir() {
		return os.MkdirAll(place, 0o700)
	}
	if err := os.MkdirAll(filepath.Dir(place), 0o700); err != nil {
		return err
	}
	return os.WriteFile(place, nil, 0o600)
}

// configure writes the configuration of the guest.
func (d machineDir) configure(spec provider.Spec, restored bool) error {
	c := wire.Config{Token: spec.Token, Hostname: spec.Hostname}
	if restored {
		refresh(&c)
	}
	return d.writeConfig(c)
}

// reconfigure updates the parts of the configuration that change while a machine is saved.
func (d machineDir) reconfigure() error {
	raw, err := os.ReadFile(d.path("chan", wire.ConfigName))
	if err != nil {
		return err
	}
	var c wire.Config
	if err := json.Unmarshal(raw, &c); err != nil {
		return err
	}
	refresh(&c)
	return d.writeConfig(c)
}

func refresh(c *wire.Config) {
	c.Time = time.Now().UnixNano()
	c.Entropy = make([]byte, 64)
	rand.Read(c.Entropy)
}

// writeConfig replaces the configuration atomically.
func (d machineDir) writeConfig(c wire.Config) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return replaceFile(d.path("chan", wire.ConfigName), raw)
}

// writeResume makes a quiesced guest continue: the guest waits for a new token.
func (d machineDir) writeResume() error {
	return replaceFile(d.path("chan", wire.ResumeName), []byte(rand.Text()))
}

// replaceFile replaces a file atomically.
func replaceFile(file string, text []byte) error {
	os.Remove(file + ".new") // a process that was killed at this point left the file
	if err := os.WriteFile(file+".new", text, 0o400); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// listen creates the socket of the channel, and replaces the socket of an earlier
// daemon.
func (d machineDir) listen() (*net.UnixListener, error) {
	dir, err := os.OpenFile(d.path("chan"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// The path of a socket is limited to about a hundred bytes; the path in d may be longer.
	short := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), wire.SocketName)
	if err := os.Remove(short); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(short, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// recordSize is the size of a record on disk, in bytes.
const recordSize = 512

// save writes a record of constant size in one write. If the process is killed, it
// leaves the old record, the new one or, the first time, an empty file, which
// counts as no record. A rename would have the same effect but cost more than
// all other steps of a change.
func (d machineDir) save(name string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(raw) > recordSize {
		return fmt.Errorf("%s is too large", name)
	}
	raw = append(raw, bytes.Repeat([]byte(" "), recordSize-len(raw))...)
	f, err := os.OpenFile(d.path(name), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(raw, 0)
	return errors.Join(err, f.Close())
}

func (d machineDir) load(name string, v any) error {
	raw, err := os.ReadFile(d.path(name))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, v)
}

// readTail returns the end of a file, at most n bytes.
func readTail(file string, n int64) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, size-n), io.SeekStart)
	}
	raw, _ := io.ReadAll(io.LimitReader(f, n))
	return string(raw)
}

// guestBinary returns the path of a copy of the guest program that can be linked into the
// directories of machines, since it is on the same file system.
func (p *Provider) guestBinary() (string, error) {
	p.guestMu.Lock()
	defer p.guestMu.Unlock()
	fi, err := os.Stat(p.opt.Guest)
	if err != nil {
		return "", fmt.Errorf("the guest program: %v", err)
	}
	// The name identifies the version: the program may be replaced at any time,
	// while machines keep the version with which they were booted.
	file := filepath.Join(p.opt.Dir, fmt.Sprintf("guest-%x-%x", fi.Size(), fi.ModTime().UnixNano()))
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	old, _ := filepath.Glob(filepath.Join(p.opt.Dir, "guest-*"))
	if err := copyProgram(p.opt.Guest, file); err != nil {
		return "", err
	}
	for _, o := range old {
		os.Remove(o)
	}
	return file, nil
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.CreateTemp(filepath.Dir(to), ".guest-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Chmod(0o555)
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("copy the guest program: %v", err)
	}
	return os.Rename(out.Name(), to)
}
