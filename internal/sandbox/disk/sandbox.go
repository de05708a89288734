package disk

import (
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
)

const (
	commandTimeout = 30 * time.Minute
	commandOutput  = 1 << 20 // output bytes of a command that the guest buffers

	buildCA    = "/usr/local/share/ca-certificates/engi-build.crt"  // file with the node's certificates, where update-ca-certificates also finds it
	buildCAAll = "/usr/local/share/engi-build-ca.pem"               // complete trust store, for programs that need one
	egressCA   = "/usr/local/share/ca-certificates/engi-egress.crt" // certificate of the egress authority in owners' builds; the guest writes it
	systemCA   = "/etc/ssl/certs/ca-certificates.crt"
	maxCA      = 8 << 20

	localHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost\n" // content of /etc/hosts in owners' builds
)

// passedVariables lists settings of the node for package managers. They are passed
// to commands of the node's own builds and never stored.
var passedVariables = []string{
	"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy",
	"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY",
	"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "UV_INDEX_URL",
	"npm_config_registry", "NPM_CONFIG_REGISTRY",
	"GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOSUMCHECK", "GOPRIVATE", "GONOPROXY",
}

// caVariables lists variables that set the trust store of programs that do not use the system's.
var caVariables = []string{
	"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO",
	"NODE_EXTRA_CA_CERTS", "npm_config_cafile", "DENO_CERT", "CARGO_HTTP_CAINFO",
}

// A sandbox runs commands of a build. It belongs to one goroutine.
type sandbox struct {
	j        *job
	guest    engi.Guest
	destroy  func() error
	env      map[string]string
	replaced []savedFile // files of the root that close restores
}

// A savedFile is the original content of a file in the root.
type savedFile struct {
	path   string
	link   string // target if the file was a symbolic link
	data   []byte
	mode   uint32
	exists bool
}

// openSandbox boots a sandbox in the root with the node's certificates. For
// builds of the node it also has the node's resolver, proxies and mirrors.
func (j *job) openSandbox(ctx context.Context, tmpl engi.Template) (_ *sandbox, err error) {
	if j.t.o.Runner == nil {
		return nil, engi.Errorf(engi.Unsupported, "commands of definitions cannot run, because there are no sandboxes").WithRemedy("run 'engi doctor' to see why sandboxes do not work here")
	}
	b := &sandbox{j: j, env: map[string]string{
		"DEBIAN_FRONTEND": "noninteractive", "PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
		"npm_config_update_notifier": "false", "npm_config_fund": "false", "npm_config_audit": "false",
	}}
	for k, v := range j.settings() {
		b.env[k] = v
	}
	for k, v := range tmpl.Env {
		b.env[k] = v
	}
	if err := b.trust(); err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{"/etc/resolv.conf": nil, "/etc/hosts": []byte(localHosts)} {
		if j.buildOwner == "" {
			if data, err = os.ReadFile(name); err != nil {
				continue // the node does not have the file
			}
		}
		if err := b.replace(name, data); err != nil {
			return nil, err
		}
	}
	if b.guest, b.destroy, err = j.t.o.Runner.Open(ctx, j.root(), j.buildOwner); err != nil {
		return nil, err
	}
	if err := b.trustEgress(); err != nil {
		return nil, errors.Join(err, b.destroy())
	}
	return b, nil
}

// trustEgress adds the egress authority, which signs the certificates of package hosts in
// owners' builds, to the trust store that commands use.
func (b *sandbox) trustEgress() error {
	t := b.j.tree
	authority, err := t.ReadFile(egressCA, maxCA)
	if engi.Is(err, engi.NotFound) || b.j.buildOwner == "" || b.env["SSL_CERT_FILE"] != buildCAAll {
		return nil
	}
	all, err2 := t.ReadFile(buildCAAll, maxCA)
	if err := cmp.Or(err, err2); err != nil {
		return err
	}
	return t.WriteFile(buildCAAll, slices.Concat(all, []byte("\n"), authority), 0o644, tree.Owner{})
}

// settings returns variables for package managers.
func (j *job) settings() map[string]string {
	if j.buildOwner != "" {
		return j.t.o.Owners.Env
	}
	env := map[string]string{}
	for _, key := range passedVariables {
		if v := j.t.env(key); v != "" {
			env[key] = v
		}
	}
	return env
}

// trust makes programs trust the certificates that the node trusts in addition to
// the usual ones, since some companies intercept their TLS traffic.
func (b *sandbox) trust() error {
	node, err := b.j.t.nodeCA()
	if err != nil {
		return err
	}
	t := b.j.tree
	own, err := t.ReadFile(systemCA, maxCA)
	if err != nil && !engi.Is(err, engi.NotFound) {
		return err
	}
	extra := missingCertificates(node, own)
	if len(extra) == 0 {
		return nil
	}
	all := slices.Concat(own, []byte("\n"), extra)
	if len(own) == 0 {
		all = node
	}
	if err := t.WriteFile(buildCAAll, all, 0o644, tree.Owner{}); err != nil {
		return err
	}
	for _, key := range caVariables {
		b.env[key] = buildCAAll
	}
	if err := t.WriteFile(buildCA, extra, 0o644, tree.Owner{}); err != nil {
		return err
	}
	if len(own) == 0 {
		return nil
	}
	// This is for programs that do not get the environment, for instance under sudo. It does not
	// use replace, because a package may update the bundle meanwhile.
	return t.WriteFile(systemCA, all, 0o644, tree.Owner{})
}

// removeTrust removes the certificates of the node and of the egress authority.
func (b *sandbox) removeTrust() error {
	if err := b.j.tree.RemoveAll(buildCAAll); err != nil {
		return err
	}
	return cmp.Or(b.removeAuthority(buildCA), b.removeAuthority(egressCA))
}

// removeAuthority removes the certificates in a file from the trust store, and the file itself.
func (b *sandbox) removeAuthority(file string) error {
	t := b.j.tree
	extra, err := t.ReadFile(file, maxCA)
	if err != nil {
		return engi.Ignore(err, engi.NotFound)
	}
	if err := t.RemoveAll(file); err != nil {
		return err
	}
	if all, err := t.ReadFile(systemCA, maxCA); err == nil {
		if err := t.WriteFile(systemCA, missingCertificates(all, extra), 0o644, tree.Owner{}); err != nil {
			return err
		}
	}
	names, err := t.ReadDir("/etc/ssl/certs")
	if err != nil {
		return nil // there are no certificates
	}
	ours := strings.TrimSuffix(path.Base(file), ".crt") + ".pem"
	for _, name := range names {
		at := path.Join("/etc/ssl/certs", name)
		if target, err := t.Readlink(at); err == nil && (target == file || path.Base(target) == ours) {
			if err := t.RemoveAll(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// missingCertificates returns the certificates in a that are not in b.
func missingCertificates(a, b []byte) []byte {
	have := map[string]bool{}
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		have[string(block.Bytes)] = true
	}
	var out []byte
	for block, rest := pem.Decode(a); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" && !have[string(block.Bytes)] {
			have[string(block.Bytes)] = true
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
		}
	}
	return out
}

// nodeCA returns the certificates that the node trusts.
func (t *Templates) nodeCA() ([]byte, error) {
	files := t.o.CA
	var all []byte
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, engi.Errorf(engi.Invalid, "read certificates: %v", err).WithRemedy("correct the list of extra CA certificates in the configuration")
		}
		all = append(append(all, data...), '\n')
	}
	for _, name := range []string{
		t.env("SSL_CERT_FILE"), systemCA, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem",
	} {
		if name == "" {
			continue
		}
		if data, err := os.ReadFile(name); err == nil {
			return append(all, data...), nil
		}
	}
	return all, nil
}

// replace replaces a file in the root until close.
func (b *sandbox) replace(name string, data []byte) error {
	t := b.j.tree
	old := savedFile{path: name, mode: 0o644}
	if st, err := t.Lstat(name); err == nil {
		old.exists, old.mode = true, st.Mode&0o777
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			if old.link, err = t.Readlink(name); err != nil {
				return err
			}
		} else if old.data, err = t.ReadFile(name, maxCA); err != nil {
			return err
		}
	}
	b.replaced = append(b.replaced, old)
	return t.WriteFile(name, data, 0o644, tree.Owner{})
}

func (b *sandbox) restore() error {
	t := b.j.tree
	for _, old := range b.replaced {
		var err error
		switch {
		case !old.exists:
			err = t.RemoveAll(old.path)
		case old.link != "":
			err = t.Symlink(old.link, old.path, tree.Owner{})
		default:
			err = t.WriteFile(old.path, old.data, fileMode(old.mode), tree.Owner{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// run runs one command and streams its output to the report.
func (b *sandbox) run(ctx context.Context, n int, c recipe.Command) error {
	user := c.User
	if user == "" {
		user = "root"
	}
	dir := c.Dir
	if dir == "" {
		dir = "/"
	}
	exit, err := b.exec(ctx, engi.Command{
		Args: []string{"/bin/sh", "-ec", c.Run}, Env: b.env, Dir: dir, User: user,
		Tag: fmt.Sprintf("build-%d", n), Timeout: commandTimeout, Output: commandOutput,
	})
	if err != nil {
		return err
	}
	switch {
	case exit.Cause != engi.CauseExited:
		return invalid("command %d ended: %s", n, exit.Cause).WithRemedy("%s", exit.Cause.Remedy())
	case exit.Code != 0 && networkTrouble.MatchString(b.j.report.text()):
		return engi.Errorf(engi.Unavailable, "command %d could not reach the network", n).WithRemedy("check this machine's network, proxy and mirrors, then build again")
	case exit.Code != 0:
		return invalid("command %d exited with code %d", n, exit.Code).WithRemedy("correct the command; the error contains the end of its output")
	}
	return nil
}

// exec runs a program to completion and streams its output to the report.
func (b *sandbox) exec(ctx context.Context, c engi.Command) (engi.Exit, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout+time.Minute)
	defer cancel()
	p, err := b.guest.Start(ctx, c)
	if err != nil {
		return engi.Exit{}, err
	}
	lines := lineWriter{to: b.j.report.log}
	for chunk, err := range p.Output(ctx, 0) {
		if err != nil {
			return engi.Exit{}, err
		}
		lines.write(chunk.Data)
	}
	lines.flush()
	return p.Wait(ctx)
}

var networkTrouble = regexp.MustCompile(`(?i)temporary failure (in name resolution|resolving)|could not resolve|network is unreachable|connection (timed out|refused)|no route to host|EAI_AGAIN|ENOTFOUND|failed to establish a new connection|i/o timeout|no such host`)

// close destroys the sandbox and restores the files that were changed for it.
func (b *sandbox) close() error {
	if err := b.destroy(); err != nil {
		return err
	}
	if err := b.removeTrust(); err != nil {
		return err
	}
	return b.restore()
}

// abandon destroys the sandbox of a failed build.
func (b *sandbox) abandon() {
	if err := b.destroy(); err != nil {
		b.j.t.o.Log.Error("destroy the sandbox of a template build", "error", err)
	}
}

// managers lists the package managers of bases that are not Debian suites.
var managers = []struct{ program, install string }{
	{"/usr/bin/apt-get", "apt-get update -q && apt-get install -y -q --no-install-recommends %s && apt-get clean && rm -rf /var/lib/apt/lists/*"},
	{"/sbin/apk", "apk add --no-cache %s"},
	{"/usr/bin/dnf", "dnf install -y --setopt=install_weak_deps=False %s && dnf clean all"},
	{"/usr/bin/microdnf", "microdnf install -y %s && microdnf clean all"},
}

// installCommand returns the command that installs the definition's packages with
// the base's package manager.
func (j *job) installCommand() (recipe.Command, error) {
	for _, m := range managers {
		if j.isProgram(m.program) {
			return recipe.Command{Run: fmt.Sprintf(m.install, strings.Join(j.def.Packages, " "))}, nil
		}
	}
	return recipe.Command{}, invalid("the base has none of the package managers apt-get, apk and dnf").WithRemedy("install what you need with 'commands', or use another base")
}

// A lineWriter splits a stream of bytes into lines.
type lineWriter struct {
	to   func(string)
	part []byte
}

func (w *lineWriter) write(data []byte) {
	for len(data) > 0 {
		i := slices.Index(data, '\n')
		if i < 0 {
			i = len(data)
		}
		if room := 8192 - len(w.part); room > 0 {
			w.part = append(w.part, data[:min(i, room)]...)
		}
		if i == len(data) {
			return
		}
		w.flush()
		data = data[i+1:]
	}
}

func (w *lineWriter) flush() {
	if len(w.part) == 0 {
		return
	}
	line := strings.ToValidUTF8(string(w.part), "\uFFFD")
	w.part = w.part[:0]
	w.to(line)
}
