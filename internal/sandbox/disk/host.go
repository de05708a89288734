package disk

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
)

const (
	hostName   = "host"
	maxHostEtc = 4 << 20 // bytes; maximum size of a file copied from /etc
)

// hostEtcFiles lists the files in /etc that the node's programs need. Other files are not
// visible.
var hostEtcFiles = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d/*", "alternatives/*", "ssl/openssl.cnf", "ssl/certs/ca-certificates.crt",
	"pki/tls/certs/ca-bundle.crt", "protocols", "services", "mime.types", "os-release", "debian_version",
	"python3*/*.py", "profile", "bash.bashrc",
}

// A hostPart is an entry in the root of the host template.
type hostPart struct {
	path string // absolute path of the entry
	link string // target of a symbolic link
	data []byte // content of a file; nil for a link or a mount point
	dir  bool
}

// hostSource returns the node's own programs: /usr mounted read only in an otherwise
// almost empty root.
func (t *Templates) hostSource() (source, error) {
	src := source{step: "find this machine's programs", mounts: []engi.Mount{{Source: "/usr", Target: "/usr"}}}
	parts := []hostPart{{path: "/usr", dir: true}}
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		st, err := os.Lstat(name)
		if err != nil {
			continue // this machine does not have the directory
		}
		if target, err := os.Readlink(name); err == nil {
			parts = append(parts, hostPart{path: name, link: target})
		} else if st.IsDir() {
			src.mounts = append(src.mounts, engi.Mount{Source: name, Target: name})
			parts = append(parts, hostPart{path: name, dir: true})
		}
	}
	for _, pattern := range hostEtcFiles {
		found, err := filepath.Glob(filepath.Join("/etc", pattern))
		if err != nil {
			panic(err) // unreachable: the patterns are constant
		}
		for _, name := range found {
			if part, ok := etcPart(name); ok {
				parts = append(parts, part)
			}
		}
	}

	search := []string{"/usr/local/bin", "/usr/bin", "/bin", "/usr/local/go/bin"}
	for _, lang := range engi.Languages() {
		at, ok := findELF(slices.Concat(search[:4:4], filepath.SplitList(t.env("PATH"))), interpreters[lang].programs)
		if !ok {
			continue
		}
		st, err := os.Stat(at)
		if err != nil {
			continue // removed meanwhile
		}
		src.inputs = append(src.inputs, fmt.Sprintf("%s is %s, %d bytes of %s", lang, at, st.Size(), st.ModTime().UTC().Format("2006-01-02T15:04:05.000Z")))
		dir := filepath.Dir(at)
		if strings.HasPrefix(at, "/usr/") || strings.HasPrefix(at, "/bin/") {
			if !slices.Contains(search, dir) {
				search = append(search, dir)
			}
			continue
		}
		prefix, ok := installPrefix(at)
		if !ok {
			continue
		}
		if m := (engi.Mount{Source: prefix, Target: prefix}); !slices.Contains(src.mounts, m) {
			src.mounts = append(src.mounts, m)
			parts = append(parts, hostPart{path: prefix, dir: true})
		}
		search = append(search, dir)
	}
	src.image = image{env: map[string]string{
		"PATH": strings.Join(slices.Concat([]string{"/usr/local/sbin"}, search, []string{"/usr/sbin", "/sbin"}), ":"),
		// The node's compilers and package managers are incomplete in this template.
		"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOTELEMETRY": "off", "DENO_NO_UPDATE_CHECK": "1",
	}}
	for _, p := range parts {
		src.inputs = append(src.inputs, fmt.Sprintf("host %s %q %x", p.path, p.link, sha256.Sum256(p.data)))
	}
	src.unpack = func(_ context.Context, j *job) error {
		for _, p := range parts {
			var err error
			switch {
			case p.dir:
				err = j.tree.MkdirAll(p.path, 0o755, tree.Owner{})
			case p.link != "":
				err = j.tree.Symlink(p.link, p.path, tree.Owner{})
			default:
				err = j.tree.WriteFile(p.path, p.data, 0o644, tree.Owner{})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return src, nil
}

// etcPart returns a file or link in /etc. Files that are not readable by all users
// are skipped.
func etcPart(name string) (hostPart, bool) {
	st, err := os.Lstat(name)
	if err != nil {
		return hostPart{}, false
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(name)
		if err == nil && (strings.HasPrefix(target, "/usr/") || strings.HasPrefix(target, "../usr/")) {
			return hostPart{path: name, link: target}, true
		}
		if st, err = os.Stat(name); err != nil {
			return hostPart{}, false
		}
	}
	if !st.Mode().IsRegular() || st.Mode()&0o004 == 0 || st.Size() > maxHostEtc {
		return hostPart{}, false
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return hostPart{}, false
	}
	return hostPart{path: name, data: data}, true
}

// findELF returns the first ELF program with one of the names in dirs. Scripts are
// ignored, because the scripts of version managers look for the program elsewhere.
func findELF(dirs, names []string) (string, bool) {
	for _, name := range names {
		for _, dir := range dirs {
			if !filepath.IsAbs(dir) {
				continue
			}
			at, err := filepath.EvalSymlinks(filepath.Join(dir, name))
			if err != nil {
				continue
			}
			st, err := os.Stat(at)
			if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
				continue
			}
			f, err := elf.Open(at)
			if err != nil {
				continue
			}
			f.Close()
			return filepath.Join(dir, name), true
		}
	}
	return "", false
}

// installPrefix returns the directory in which a program outside /usr is
// installed, if this directory is safe to mount: one of its own, not a home or system
// directory.
func installPrefix(program string) (string, bool) {
	real, err := filepath.EvalSymlinks(program)
	if err != nil || real != program || filepath.Base(filepath.Dir(real)) != "bin" {
		return "", false
	}
	prefix := filepath.Dir(filepath.Dir(real))
	depth := strings.Count(prefix, "/")
	for _, dir := range []string{"/root", "/home", "/etc", "/var", "/proc", "/sys", "/dev", "/run", "/boot", "/tmp"} {
		if prefix == dir || dir == "/home" && strings.HasPrefix(prefix, "/home/") && depth < 3 {
			return "", false
		}
	}
	if depth < 2 {
		return "", false
	}
	// The directory must be readable by all users of this machine.
	for dir := prefix; dir != "/"; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err != nil || st.Mode()&0o005 != 0o005 {
			return "", false
		}
	}
	return prefix, true
}

// stat returns the status of a path in the sandbox, taking mounts into account.
func (j *job) stat(at string) (unix.Stat_t, error) {
	for _, m := range j.src.mounts {
		if rest, ok := strings.CutPrefix(at, m.Target+"/"); ok {
			var st unix.Stat_t
			err := unix.Stat(filepath.Join(m.Source, rest), &st)
			return st, err
		}
	}
	if len(j.src.mounts) > 0 { // a link into a mount, like /bin/sh
		if dir, base := filepath.Split(at); dir != "/" {
			if target, err := j.tree.Readlink(filepath.Clean(dir)); err == nil {
				return j.stat(filepath.Join("/", target, base))
			}
		}
	}
	return j.tree.Stat(at)
}
