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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/tree"
	"github.com/engi-dev/engi/guest/wire"
)

const (
	resolvPath = "/etc/resolv.conf"
	hostsPath  = "/etc/hosts"
	// trustDir has what cannot be where it belongs.
	trustDir = "/run/engi-trust"

	maxSystemFile = 8 << 20 // of the files of a sandbox that are changed here

	// Around what was added to a file, to take it out again.
	trustBegin = "# engi: the authority of this sandbox's network\n"
	trustEnd   = "# engi: end\n"
)

func checkWiring(w *wire.NetworkSetup) error {
	if w.Resolver != "" {
		if _, err := netip.ParseAddr(w.Resolver); err != nil {
			return engi.Errorf(engi.Invalid, "the resolver %.40q is no address", w.Resolver)
		}
	}
	if len(w.Search) > 253 || strings.ContainsFunc(w.Search, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return engi.Errorf(engi.Invalid, "%.80q is no domain", w.Search)
	}
	if len(w.Authority) > wire.MaxAuthority || bytes.Contains(w.Authority, []byte("#")) {
		return engi.Errorf(engi.Invalid, "the authority is no certificate")
	}
	return wire.CheckEnv(w.Env)
}

// rewire changes the files of the sandbox from one wiring to the next, and
// returns the variables that programs get. What programs have made of those
// files stays, unless the two wirings differ.
func (s *Server) rewire(old, next *wire.NetworkSetup, moved map[string]string) (env map[string]string, _ map[string]string, err error) {
	defer engi.Annotate(&err, "wire the sandbox")
	if old == nil {
		old = &wire.NetworkSetup{}
	}
	if old.Resolver != next.Resolver || old.Search != next.Search {
		if err := s.writeSystem(resolvPath, resolvConf(next)); err != nil {
			return nil, nil, err
		}
		if err := s.nameLocalhost(); err != nil {
			return nil, nil, err
		}
	}
	if !bytes.Equal(old.Authority, next.Authority) {
		if moved, err = s.trust(next.Authority); err != nil {
			return nil, nil, err
		}
	}
	env = maps.Clone(next.Env)
	for k, v := range env {
		if to := moved[v]; to != "" {
			env[k] = to
		}
	}
	return env, moved, nil
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

// nameLocalhost makes sure that the host's own names need no resolver.
func (s *Server) nameLocalhost() error {
	have, err := s.readSystem(hostsPath)
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
	if own, err := os.Hostname(); err == nil && own != "" && !s.o.Twin && !names[own] {
		add += "127.0.1.1\t" + own + "\n"
	}
	if add == "" {
		return nil
	}
	if len(have) > 0 && have[len(have)-1] != '\n' {
		add = "\n" + add
	}
	return s.writeSystem(hostsPath, append(have, add...))
}

// trust makes programs trust an authority, in place of the one before. Files
// that cannot be written are elsewhere: moved tells.
func (s *Server) trust(authority []byte) (moved map[string]string, err error) {
	bundle, err := s.readSystem(wire.BundlePath)
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
	moved = map[string]string{}
	for _, f := range []struct {
		path string
		data []byte
	}{{wire.BundlePath, bundle}, {wire.AuthorityPath, authority}} {
		if len(authority) == 0 && f.path == wire.AuthorityPath {
			os.Remove(s.path(f.path))
			continue
		}
		if s.writeSystem(f.path, f.data) == nil {
			continue
		}
		to := path.Join(trustDir, path.Base(f.path))
		if err := s.writeSystem(to, f.data); err != nil {
			return nil, err
		}
		moved[f.path] = s.path(to)
	}
	return moved, nil
}

// readSystem returns a file of the sandbox, nothing if it is not there.
func (s *Server) readSystem(name string) ([]byte, error) {
	f, err := tree.OpenRegular(s.path(name))
	if err != nil {
		return nil, nil
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSystemFile+1))
	if err != nil || len(data) > maxSystemFile {
		return nil, engi.Errorf(engi.Invalid, "%s cannot be read, or is too large", name)
	}
	return data, nil
}

func (s *Server) writeSystem(name string, data []byte) error {
	owner := tree.Owner{}
	if s.o.Twin {
		owner = tree.Nobody
	}
	_, err := tree.Write(s.path(name), bytes.NewReader(data), 0o644, owner, func() string { return "" })
	return err
}
