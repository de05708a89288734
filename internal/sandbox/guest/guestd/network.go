package guestd

import (
	"bytes"
	"io"
	"maps"
	"net/netip"
	"os"
	"path"
	"strings"
	"unicode"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/tree"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

const (
	resolvPath = "/etc/resolv.conf"
	hostsPath  = "/etc/hosts"
	// trustDir holds certificate files whose usual directory is read-only.
	trustDir = "/run/engi-trust"

	maxSystemFile = 8 << 20 // bytes; maximum size of a system file that engi edits

	// Markers around text added to a file. They serve to find the text and remove it again.
	trustBegin = "# engi: the authority of this sandbox's network\n"
	trustEnd   = "# engi: end\n"
)

func checkNetwork(w *wire.NetworkSetup) error {
	if w.Resolver != "" {
		if _, err := netip.ParseAddr(w.Resolver); err != nil {
			return engi.Errorf(engi.Invalid, "the resolver %.40q is not an address", w.Resolver)
		}
	}
	if len(w.Search) > 253 || strings.ContainsFunc(w.Search, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return engi.Errorf(engi.Invalid, "%.80q is not a domain", w.Search)
	}
	if len(w.Authority) > wire.MaxAuthority || bytes.Contains(w.Authority, []byte("#")) {
		return engi.Errorf(engi.Invalid, "the authority is not a certificate")
	}
	return wire.CheckEnv(w.Env)
}

// applyNetwork changes the files of the sandbox from one network setup to the next.
// It returns the variables for programs, and the new paths of certificate files
// whose usual directory is read-only. It leaves files alone that are the same in both
// setups, since programs may have changed them.
func (s *Server) applyNetwork(old, next *wire.NetworkSetup, relocated map[string]string) (env map[string]string, _ map[string]string, err error) {
	defer engi.Annotate(&err, "set up the network")
	if old == nil {
		old = &wire.NetworkSetup{}
	}
	if old.Resolver != next.Resolver || old.Search != next.Search {
		if err := s.writeSystemFile(resolvPath, resolvConf(next)); err != nil {
			return nil, nil, err
		}
		if err := s.ensureLocalhost(); err != nil {
			return nil, nil, err
		}
	}
	if !bytes.Equal(old.Authority, next.Authority) {
		if relocated, err = s.installAuthority(next.Authority); err != nil {
			return nil, nil, err
		}
	}
	env = maps.Clone(next.Env)
	for k, v := range env {
		if to := relocated[v]; to != "" {
			env[k] = to
		}
	}
	return env, relocated, nil
}

func resolvConf(w *wire.NetworkSetup) []byte {
	var b bytes.Buffer
	if w.Search != "" {
		b.WriteString("search " + w.Search + "\n")
	}
	if w.Resolver != "" {
		b.WriteString("nameserver " + w.Resolver + "\n")
	}
	return b.Bytes()
}

// ensureLocalhost makes the sandbox's own host names resolve without a DNS resolver.
func (s *Server) ensureLocalhost() error {
	have, err := s.readSystemFile(hostsPath)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(have)) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 1 {
			for _, name := range f[1:] {
				names[name] = true
			}
		}
	}
	add := ""
	if !names["localhost"] {
		add += "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	}
	if own, err := os.Hostname(); err == nil && own != "" && !s.o.InProcess && !names[own] {
		add += "127.0.1.1\t" + own + "\n"
	}
	if add == "" {
		return nil
	}
	if len(have) > 0 && have[len(have)-1] != '\n' {
		add = "\n" + add
	}
	return s.writeSystemFile(hostsPath, append(have, add...))
}

// installAuthority makes programs trust authority instead of the previous one.
// relocated maps each read-only path to the path of the file written instead.
func (s *Server) installAuthority(authority []byte) (relocated map[string]string, err error) {
	bundle, err := s.readSystemFile(wire.BundlePath)
	if err != nil {
		return nil, err
	}
	if before, rest, ok := bytes.Cut(bundle, []byte(trustBegin)); ok {
		_, after, _ := bytes.Cut(rest, []byte(trustEnd))
		bundle = append(bytes.Clone(before), after...)
	}
	if len(authority) > 0 {
		if n := len(bundle); n > 0 && bundle[n-1] != '\n' {
			bundle = append(bundle, '\n')
		}
		bundle = append(bundle, trustBegin...)
		bundle = append(bundle, bytes.TrimRight(authority, "\n")...)
		bundle = append(bundle, "\n"+trustEnd...)
	}
	relocated = map[string]string{}
	for _, f := range []struct {
		path string
		data []byte
	}{{wire.BundlePath, bundle}, {wire.AuthorityPath, authority}} {
		if len(authority) == 0 && f.path == wire.AuthorityPath {
			os.Remove(s.path(f.path))
			continue
		}
		if s.writeSystemFile(f.path, f.data) == nil {
			continue
		}
		to := path.Join(trustDir, path.Base(f.path))
		if err := s.writeSystemFile(to, f.data); err != nil {
			return nil, err
		}
		relocated[f.path] = s.path(to)
	}
	return relocated, nil
}

// readSystemFile returns the content of a file of the sandbox; nil if the file does not exist.
func (s *Server) readSystemFile(name string) ([]byte, error) {
	f, err := tree.OpenRegular(s.path(name))
	if err != nil {
		return nil, nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSystemFile+1))
	if err != nil || len(data) > maxSystemFile {
		return nil, engi.Errorf(engi.Invalid, "%s cannot be read or is too large", name)
	}
	return data, nil
}

func (s *Server) writeSystemFile(name string, data []byte) error {
	owner := tree.Owner{}
	if s.o.InProcess {
		owner = tree.KeepOwner
	}
	_, err := tree.Write(s.path(name), bytes.NewReader(data), 0o644, owner, func() string { return "" })
	return err
}
