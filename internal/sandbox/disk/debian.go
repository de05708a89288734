package disk

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
	"github.com/engi-dev/engi/internal/sandbox/priority"
)

// A distribution is a Debian-like system that mmdebstrap can build.
type distribution struct {
	mirror, security string // defaults if the node has none configured
	components       string
	keyring          string // file with the signing keys of the archive
	keyPackage       string // Debian package with the keyring
}

var distributions = map[string]distribution{
	"debian": {
		mirror: "http://deb.debian.org/debian", security: "http://deb.debian.org/debian-security", components: "main",
		keyring: "/usr/share/keyrings/debian-archive-keyring.gpg", keyPackage: "debian-archive-keyring",
	},
	"ubuntu": {
		mirror: "http://archive.ubuntu.com/ubuntu", security: "http://security.ubuntu.com/ubuntu", components: "main universe",
		keyring: "/usr/share/keyrings/ubuntu-archive-keyring.gpg", keyPackage: "ubuntu-archive-keyring",
	},
}

// releases maps other names of suites to the names of suites.
var releases = map[string]string{
	"debian-11": "debian:bullseye", "debian-12": "debian:bookworm", "debian-13": "debian:trixie",
	"ubuntu-20.04": "ubuntu:focal", "ubuntu-22.04": "ubuntu:jammy", "ubuntu-24.04": "ubuntu:noble",
}

// rolling lists the suites without suites for updates and security.
var rolling = []string{"sid", "unstable", "experimental"}

// noDocs excludes documentation and translations, also of packages that are
// installed later. Licences require that copyright files stay.
const noDocs = `path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-include=/usr/share/locale/locale.alias
path-exclude=/usr/share/lintian/*
`

var suitePattern = regexp.MustCompile(`^[a-z][a-z0-9.-]{0,39}$`)

// debianSource returns the source of a suite that mmdebstrap builds.
func (t *Templates) debianSource(def recipe.Definition, distro, suite string) (source, error) {
	d := distributions[distro]
	if !suitePattern.MatchString(suite) {
		return source{}, invalid("%q is not the name of a suite", suite).WithRemedy("write it like debian:bookworm")
	}
	program, ok := t.lookPath("mmdebstrap")
	if !ok {
		return source{}, engi.Errorf(engi.Unsupported, "mmdebstrap, which builds %s suites, is not installed", distro).WithRemedy("apt-get install mmdebstrap")
	}
	if !exists(d.keyring) {
		return source{}, engi.Errorf(engi.Unsupported, "the keys of the %s archive are not installed", distro).WithRemedy("apt-get install %s", d.keyPackage)
	}
	apt := t.aptSources(d, distro, suite, def.Mirror)
	return source{
		inputs: []string{"suite " + distro + ":" + suite, apt},
		step:   fmt.Sprintf("install %s %s", distro, suite),
		debian: true,
		unpack: func(ctx context.Context, j *job) error { return j.bootstrap(ctx, program, suite, apt, d.keyring) },
	}, nil
}

// aptSources returns the lines of sources.list for a suite: of the definition's
// mirror, else the operator's, else the node's sources, else the distribution's.
func (t *Templates) aptSources(d distribution, distro, suite, mirror string) string {
	line := func(uri, suite, components string) string {
		return fmt.Sprintf("deb %s %s %s", strings.TrimRight(uri, "/"), suite, components)
	}
	if mirror == "" && distro == "debian" {
		mirror = t.o.Mirror
	}
	if mirror != "" {
		return line(mirror, suite, d.components)
	}
	var lines []string
	for _, s := range nodeSources("/etc/apt") {
		base, _, _ := strings.Cut(s.suite, "-")
		if base == suite && strings.Contains(s.uri, distro) && !slices.Contains(lines, line(s.uri, s.suite, s.components)) {
			lines = append(lines, line(s.uri, s.suite, s.components))
		}
	}
	// The node's lines must include the suite itself: update suites alone are not enough.
	if slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, " "+suite+" ") }) {
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	lines = []string{line(d.mirror, suite, d.components)}
	if !slices.Contains(rolling, suite) {
		lines = append(lines, line(d.mirror, suite+"-updates", d.components), line(d.security, suite+"-security", d.components))
	}
	return strings.Join(lines, "\n")
}

// An aptSource is one line of a sources.list.
type aptSource struct{ uri, suite, components string }

// nodeSources reads the node's sources of binary packages over http and https without passwords,
// in both formats of apt.
func nodeSources(dir string) []aptSource {
	var all []aptSource
	add := func(uris, suites []string, components string) {
		for _, uri := range uris {
			if !recipe.ValidMirror(uri) || strings.Contains(uri, "@") {
				continue // other kinds, and URIs with passwords, are skipped
			}
			for _, suite := range suites {
				if suitePattern.MatchString(suite) && components != "" {
					all = append(all, aptSource{uri, suite, components})
				}
			}
		}
	}
	files, _ := filepath.Glob(filepath.Join(dir, "sources.list.d", "*"))
	for _, name := range append([]string{filepath.Join(dir, "sources.list")}, files...) {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // unreadable files are not used
		}
		switch {
		case strings.HasSuffix(name, ".list"):
			for line := range strings.Lines(string(data)) {
				line, _, _ = strings.Cut(line, "#")
				if open, end := strings.Index(line, "["), strings.Index(line, "]"); open >= 0 && end > open {
					line = line[:open] + line[end+1:]
				}
				if f := strings.Fields(line); len(f) > 3 && f[0] == "deb" {
					add(f[1:2], f[2:3], strings.Join(f[3:], " "))
				}
			}
		case strings.HasSuffix(name, ".sources"):
			for stanza := range strings.SplitSeq(string(data), "\n\n") {
				f := stanzaFields(stanza)
				if slices.Contains(f["types"], "deb") && !slices.Contains(f["enabled"], "no") {
					add(f["uris"], f["suites"], strings.Join(f["components"], " "))
				}
			}
		}
	}
	return all
}

// stanzaFields reads one paragraph of a deb822 file.
func stanzaFields(stanza string) map[string][]string {
	fields := map[string][]string{}
	key := ""
	for line := range strings.Lines(stanza) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if k, v, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "\t") {
			key = strings.ToLower(strings.TrimSpace(k))
			fields[key] = strings.Fields(v)
		} else if key != "" {
			fields[key] = append(fields[key], strings.Fields(line)...)
		}
	}
	return fields
}

// bootstrap runs mmdebstrap: as root directly in the root directory, as another user
// in a user namespace with an archive as output.
func (j *job) bootstrap(ctx context.Context, program, suite, apt, keyring string) error {
	args := []string{
		"--variant=minbase", "--verbose", "--architectures=" + debianArch(),
		// Without this option mmdebstrap uses only the keys of the machine's own distribution.
		"--keyring=" + keyring,
		`--aptopt=APT::Install-Recommends "false"`, `--aptopt=Acquire::Languages "none"`,
		// If the machine crashes, the build is discarded anyway.
		"--dpkgopt=force-unsafe-io",
	}
	if len(j.def.Packages) > 0 {
		args = append(args, "--include="+strings.Join(j.def.Packages, ","))
	}
	if !j.def.Docs {
		// This is a hook, since an option would apply a slow filter to every archive of
		// the first stage.
		args = append(args, `--essential-hook=mkdir -p "$1/etc/dpkg/dpkg.cfg.d" && printf '%s' '`+noDocs+`' > "$1/etc/dpkg/dpkg.cfg.d/10engi-no-docs"`)
	}
	env := append([]string{"PATH=" + defaultPath, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "TMPDIR=" + j.dir}, j.t.proxies(ctx)...)

	watch := &bootstrapWatch{rep: j.report}
	lines := &lineWriter{to: watch.line}
	// Pdeathsig is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if privileged {
		args = append([]string{"--mode=root", "--format=directory"}, append(args, suite, j.root(), "-")...)
	} else {
		if err := j.t.checkSubordinateIDs(); err != nil {
			return err
		}
		args = append([]string{"--mode=unshare", "--format=tar"}, append(args, suite, "-", "-")...)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Env, cmd.WaitDelay = strings.NewReader(apt+"\n"), env, 10*time.Second
	cmd.Stderr = writerFunc(lines.write)
	var unpackErr error
	if privileged {
		// With its own mount and PID namespaces, neither mounts nor processes
		// remain, however mmdebstrap dies.
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		cmd.Stdout = cmd.Stderr
		if err := priority.Start(cmd); err != nil {
			return engi.Errorf(engi.Internal, "start mmdebstrap: %v", err)
		}
	} else {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
		out, err := cmd.StdoutPipe()
		if err != nil {
			return engi.Errorf(engi.Internal, "%v", err)
		}
		if err := priority.Start(cmd); err != nil {
			return engi.Errorf(engi.Internal, "start mmdebstrap: %v", err)
		}
		_, unpackErr = j.tree.Extract(ctx, bufio.NewReaderSize(out, 1<<20), tree.ExtractOptions{Budget: j.room.budget()})
		if unpackErr == nil {
			_, unpackErr = io.Copy(io.Discard, out) // read the bytes after the archive
		} else if err := cmd.Cancel(); err != nil {
			j.t.o.Log.Warn("stop mmdebstrap", "error", err)
		}
	}
	err := cmd.Wait()
	lines.flush()
	return j.bootstrapError(ctx, errors.Join(err, unpackErr), unpackErr)
}

// bootstrapError classifies an error of mmdebstrap.
func (j *job) bootstrapError(ctx context.Context, err, unpackErr error) error {
	text := j.report.text()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	case strings.Contains(text, "No space left on device"):
		return engi.Errorf(engi.Exhausted, "mmdebstrap: the disk is full").WithRemedy("free space for the data directory; 'engi template prune' helps")
	case missingPackage.MatchString(text):
		return invalid("mmdebstrap: %s", missingPackage.FindString(text)).WithRemedy("correct 'packages', or choose another suite")
	case networkTrouble.MatchString(text) || strings.Contains(text, "Failed to fetch"):
		return engi.Errorf(engi.Unavailable, "mmdebstrap could not fetch packages").WithRemedy("check this machine's network, proxy and apt mirrors, or set 'mirror', then build again")
	case strings.Contains(text, "NO_PUBKEY") || strings.Contains(text, "is not signed") || strings.Contains(text, "EXPKEYSIG"):
		return engi.Errorf(engi.Unsupported, "mmdebstrap: this machine does not have the key that signed the archive").
			WithRemedy("upgrade the package with the archive's keyring, or choose another 'mirror'")
	case strings.Contains(text, "does not have a Release file"):
		return invalid("mmdebstrap: the mirror does not have this suite").WithRemedy("correct 'base' or 'mirror'")
	case unpackErr != nil:
		return unpackErr
	}
	return engi.Errorf(engi.Internal, "mmdebstrap: %v", err)
}

var missingPackage = regexp.MustCompile(`Unable to locate package \S+|Package '?\S+'? has no installation candidate|Version '\S+' for '\S+' was not found|Couldn't find any package by \S+ '\S+'`)

// A bootstrapWatch derives progress from the output of mmdebstrap. Only the
// goroutine that copies output uses it.
type bootstrapWatch struct {
	rep         *report
	done, total int64
}

var newlyInstalled = regexp.MustCompile(`(\d+) newly installed`)

func (w *bootstrapWatch) line(l string) {
	w.rep.log(l)
	if m := newlyInstalled.FindStringSubmatch(l); m != nil {
		n, err := strconv.ParseInt(m[1], 10, 32)
		if err == nil {
			w.total += 3 * n // each package is fetched, unpacked and set up
		}
	}
	for _, sign := range []string{"Get:", "Unpacking ", "Setting up "} {
		if strings.HasPrefix(l, sign) && w.total > 0 {
			w.done++
			w.rep.progress(min(w.done, w.total), w.total)
		}
	}
}

// debianArch returns Debian's name for this architecture.
func debianArch() string {
	if runtime.GOARCH == "386" {
		return "i386"
	}
	return runtime.GOARCH
}

// proxies returns the node's proxy settings as environment variables, from its environment or
// else from apt.
func (t *Templates) proxies(ctx context.Context) []string {
	var env []string
	for _, key := range passedVariables[:10] {
		if v := t.env(key); v != "" {
			env = append(env, key+"="+v)
		}
	}
	for _, scheme := range []string{"http", "https"} {
		if t.env(scheme+"_proxy") != "" || t.env(strings.ToUpper(scheme)+"_PROXY") != "" {
			continue
		}
		program, ok := t.lookPath("apt-config")
		if !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		out, err := exec.CommandContext(ctx, program, "shell", "P", "Acquire::"+scheme+"::Proxy").Output()
		cancel()
		if err != nil {
			continue // apt does not work, so it has no proxy
		}
		_, v, _ := bytes.Cut(bytes.TrimSpace(out), []byte("="))
		if p := strings.Trim(string(v), "'\""); p != "" && p != "DIRECT" && p != "false" {
			env = append(env, scheme+"_proxy="+p)
		}
	}
	return env
}

// checkSubordinateIDs reports Unsupported, with a remedy, unless mmdebstrap can
// create a user namespace for this user.
func (t *Templates) checkSubordinateIDs() error {
	u, err := user.Current()
	if err != nil {
		return engi.Errorf(engi.Internal, "current user: %v", err)
	}
	if _, ok := t.lookPath("newuidmap"); !ok {
		return engi.Errorf(engi.Unsupported, "newuidmap is not installed; without it, only root can build Debian templates").WithRemedy("apt-get install uidmap")
	}
	for _, name := range []string{"/etc/subuid", "/etc/subgid"} {
		data, err := os.ReadFile(name)
		if err != nil || !slices.ContainsFunc(strings.Split(string(data), "\n"), func(l string) bool {
			return strings.HasPrefix(l, u.Username+":") || strings.HasPrefix(l, u.Uid+":")
		}) {
			return engi.Errorf(engi.Unsupported, "%s has no IDs for %s, without which only root can build Debian templates", name, u.Username).
				WithRemedy("usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s", u.Username)
		}
	}
	return nil
}

// slim removes files that programs do not need from a Debian suite: caches, logs, and
// documentation that was installed before dpkg was configured.
func (j *job) slim() error {
	if !j.src.debian {
		return nil // other bases stay unchanged
	}
	// Remove the node's resolver and host name, unused device nodes, and leftovers of package
	// managers.
	for _, name := range []string{"/etc/hostname", "/var/cache/debconf/templates.dat-old", "/var/cache/debconf/config.dat-old", "/var/lib/dpkg/status-old"} {
		if err := j.tree.RemoveAll(name); err != nil {
			return err
		}
	}
	if err := j.tree.WriteFile("/etc/resolv.conf", nil, 0o644, tree.Owner{}); err != nil {
		return err
	}
	empty := []string{"/tmp", "/var/tmp", "/run", "/dev", "/var/cache/apt/archives", "/var/log/apt", "/root/.cache"}
	logs, err := j.tree.ReadDir("/var/log")
	if err != nil && !engi.Is(err, engi.NotFound) {
		return err
	}
	for _, name := range logs {
		if strings.HasSuffix(name, ".log") {
			if err := j.tree.RemoveAll(path.Join("/var/log", name)); err != nil {
				return err
			}
		}
	}
	if !j.def.Docs {
		empty = append(empty, "/usr/share/man", "/usr/share/info", "/usr/share/locale", "/usr/share/lintian")
		packages, err := j.tree.ReadDir("/usr/share/doc")
		if err != nil && !engi.Is(err, engi.NotFound) {
			return err
		}
		for _, p := range packages {
			at := path.Join("/usr/share/doc", p)
			names, err := j.tree.ReadDir(at)
			if err != nil {
				continue // a link to another package's documentation
			}
			for _, name := range names {
				if name != "copyright" {
					if err := j.tree.RemoveAll(path.Join(at, name)); err != nil {
						return err
					}
				}
			}
		}
	}
	for _, dir := range empty {
		names, err := j.tree.ReadDir(dir)
		if err != nil {
			continue // the base does not have the file
		}
		for _, name := range names {
			if err := j.tree.RemoveAll(path.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
