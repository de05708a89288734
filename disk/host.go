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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk/tree"
)

const (
	hostName   = "host"
	maxHostEtc = 4 << 20 // bytes of one file copied from /etc
)

// hostEtc is what of the node's /etc its programs need. Nothing else of it is
// visible.
var hostEtc = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d/*", "alternatives/*", "ssl/openssl.cnf", "ssl/certs/ca-certificates.crt",
	"pki/tls/certs/ca-bundle.crt", "protocols", "services", "mime.types", "os-release", "debian_version",
	"python3*/*.py", "profile", "bash.bashrc",
}

// A hostPart is something of the host template's own root.
type hostPart struct {
	path string // absolute
	link string // target of a symbolic link
	data []byte // of a file; nil for a link or a mount point
	dir  bool
}

// hostSource is the node's own programs: /usr mounted read only into a root
// that has little else.
func (t *Templates) hostSource() (source, error) {
	src := source{step: "look at this machine's programs", mounts: []engi.Mount{{Source: "/usr", Target: "/usr"}}}
	parts := []hostPart{{path: "/usr", dir: true}}
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		st, err := os.Lstat(name)
		if err != nil {
			continue // this machine does without
		}
		if target, err := os.Readlink(name); err == nil {
			parts = append(parts, hostPart{path: name, link: target})
		} else if st.IsDir() {
			src.mounts = append(src.mounts, engi.Mount{Source: name, Target: name})
			parts = append(parts, hostPart{path: name, dir: true})
		}
	}
	for _, pattern := range hostEtc {
		found, err := filepath.Glob(filepath.Join("/etc", pattern))
		if err != nil {
			panic(err) // the patterns are constant
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
			continue // gone since
		}
		src.inputs = append(src.inputs, fmt.Sprintf("%s is %s, %d bytes of %s", lang, at, st.Size(), st.ModTime().UTC().Format("2006-01-02T15:04:05.000Z")))
		dir := filepath.Dir(at)
		if strings.HasPrefix(at, "/usr/") || strings.HasPrefix(at, "/bin/") {
			if !slices.Contains(search, dir) {
				search = append(search, dir)
			}
			continue
		}
		prefix, ok := installation(at)
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
		// Compilers and package managers of the node are not all there.
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

// etcPart copies one file or link of /etc. What others may not read is left
// out, even if we can.
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

// findELF returns the first real program of the names in dirs. Scripts do not
// count: version managers put some in PATH that look elsewhere for the program.
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

// installation returns the directory that a program outside /usr is installed
// in, if it is safe to show: a directory of its own, not a home or a system
// directory.
func installation(program string) (string, bool) {
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
	// Everybody on this machine may see it anyway, or it stays ours.
	for dir := prefix; dir != "/"; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err != nil || st.Mode()&0o005 != 0o005 {
			return "", false
		}
	}
	return prefix, true
}

// stat looks at a path inside, through the mounts.
func (j *job) stat(at string) (unix.Stat_t, error) {
	for _, m := range j.src.mounts {
		if rest, ok := strings.CutPrefix(at, m.Target+"/"); ok {
			var st unix.Stat_t
			err := unix.Stat(filepath.Join(m.Source, rest), &st)
			return st, err
		}
	}
	if len(j.src.mounts) > 0 { // a link into a mount: /bin/sh
		if dir, base := filepath.Split(at); dir != "/" {
			if target, err := j.tree.Readlink(filepath.Clean(dir)); err == nil {
				return j.stat(filepath.Join("/", target, base))
			}
		}
	}
	return j.tree.Stat(at)
}
