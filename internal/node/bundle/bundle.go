// Package bundle finds the programs that engi starts: runsc, the guest program and
// the script helper. A release embeds them compressed and unpacks each of them once, under
// the digest of its contents, into a directory that all engi processes of a user
// share; a build from source finds them next to its own executable.
//
// It never searches PATH, because programs that isolate sandboxes must be the ones
// that were tested with this version. Programs of templates are in package disk.
package bundle

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Names of the programs.
const (
	Runsc  = "runsc"
	Guest  = "engi-guest"
	Script = "engi-js"
)

// A Program is an executable file that belongs to this version of engi.
type Program struct {
	Name   string
	Path   string // absolute
	Digest string // SHA-256 of the file, hex
	From   string // "release", "sibling" or "configured"
}

// gvisor is the module that runsc is built from.
const gvisor = "gvisor.dev/gvisor"

// Module returns the module that the program was built from, as "path@version": gVisor's
// pinned module for runsc, else the main module; "" if the file does not name it.
func (p Program) Module() string {
	info, err := buildinfo.ReadFile(p.Path)
	if err != nil {
		return ""
	}
	for _, d := range info.Deps {
		if p.Name == Runsc && d.Path == gvisor {
			return d.Path + "@" + d.Version
		}
	}
	return info.Main.Path + "@" + info.Main.Version
}

// A Manifest describes the programs in a release, in manifest.json.
type Manifest struct {
	Programs []Packed `json:"programs"`
}

// Packed is one compressed program.
type Packed struct {
	Name   string `json:"name"`
	File   string `json:"file"`   // name of the compressed file
	SHA256 string `json:"sha256"` // digest of the program, hex
	Size   int64  `json:"size"`   // size of the program in bytes
}

// ManifestName is the manifest's file name.
const ManifestName = "manifest.json"

// ReadManifest reads the manifest of a packed set. It reports NotFound for a set without manifest,
// and Internal for a damaged one.
func ReadManifest(packed fs.FS) (m Manifest, err error) {
	data, err := fs.ReadFile(packed, ManifestName)
	if errors.Is(err, fs.ErrNotExist) {
		return m, engi.Errorf(engi.NotFound, "no programs are packed into this build")
	}
	if err != nil {
		return m, engi.Errorf(engi.Internal, "read the manifest of packed programs: %v", err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, engi.Errorf(engi.Internal, "read the manifest of packed programs: %v", err)
	}
	for _, p := range m.Programs {
		if p.Name == "" || p.Name != filepath.Base(p.Name) || len(p.SHA256) != 2*sha256.Size || p.Size <= 0 {
			return m, engi.Errorf(engi.Internal, "the manifest of packed programs is damaged at %q", p.Name)
		}
	}
	return m, nil
}

// Find returns the named program: the configured one, or else the embedded one,
// unpacked below dir, or else the one next to the running executable. It reports
// NotFound with a remedy.
func Find(ctx context.Context, dir, name, configured string) (Program, error) {
	if configured != "" {
		return at(name, configured, "configured")
	}
	m, err := ReadManifest(Packs())
	if err == nil {
		for _, p := range m.Programs {
			if p.Name == name {
				return Unpack(ctx, Packs(), p, dir)
			}
		}
	} else if !engi.Is(err, engi.NotFound) {
		return Program{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return Program{}, engi.Errorf(engi.Internal, "find our own executable: %v", err)
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return at(name, filepath.Join(filepath.Dir(self), name), "sibling")
}

func at(name, path, from string) (Program, error) {
	missing := func(err error) error {
		return engi.Errorf(engi.NotFound, "find %s: %v", name, err).
			WithRemedy("run 'make build', take a release build of engi, or set '%s' in the configuration", ConfigKey(name))
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return Program{}, missing(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return Program{}, missing(err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return Program{}, engi.Errorf(engi.Invalid, "%s at %s is not an executable file", name, path).
			WithRemedy("set '%s' to an executable file", ConfigKey(name))
	}
	sum, _, err := digest(path)
	if err != nil {
		return Program{}, engi.Errorf(engi.Unavailable, "read %s: %v", name, err)
	}
	return Program{Name: name, Path: path, Digest: sum, From: from}, nil
}

// ConfigKey returns the configuration key for the path of a program.
func ConfigKey(name string) string { return strings.TrimPrefix(name, "engi-") }

func digest(path string) (sum string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), size, err
}
