package mirror

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb"
	"golang.org/x/mod/sumdb/dirhash"

	"github.com/engi-dev/engi/internal/engi"
)

// golang serves Go's module proxy, with the checksum database as a proxy serves it
// and at its own host:
//
//	proxy.golang.org/MODULE/@v/list, VERSION.info, VERSION.mod, VERSION.zip, /@latest
//	proxy.golang.org/sumdb/sum.golang.org/…, sum.golang.org/…
//
// A .mod and a .zip must have the hash in the checksum database, whose
// signatures and proofs are verified here as the go command verifies them. A module that
// the database does not know is a private module of the upstream, and is kept as it was
// received first.
type golang struct {
	b   *Server
	sum *sumdb.Client
}

const (
	goHost  = "proxy.golang.org"
	sumHost = "sum.golang.org"
	sumKey  = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"

	maxGoFiles = 500 << 20 // maximum bytes of a module, the same as in the go command
	maxGoMod   = 16 << 20
	maxSumFile = 1 << 20
)

func newGolang(b *Server) *golang {
	g := &golang{b: b}
	g.sum = sumdb.NewClient(&sumOps{g: g})
	return g
}

func (*golang) name() string    { return "go" }
func (*golang) hosts() []string { return []string{goHost, sumHost} }

var (
	sumTile   = regexp.MustCompile(`^tile/[0-9]+/(?:[0-9]+|data)/(?:x[0-9]{3}/)*[0-9]{3}(?:\.p/[0-9]+)?$`)
	goVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._!+/-]{0,199}$`)
)

func (g *golang) item(host, path string) (*item, error) {
	path = path[1:]
	if host == sumHost {
		return g.database(path)
	}
	if rest, ok := strings.CutPrefix(path, "sumdb/"+sumHost+"/"); ok {
		return g.database(rest)
	}
	escaped, rest, ok := strings.Cut(path, "/@")
	mod, err := module.UnescapePath(escaped)
	if !ok || err != nil {
		return nil, notServed("%.100q is no module", path)
	}
	it := &item{of: g, key: "go/" + path, url: g.b.up["go"].String() + "/" + path, media: "text/plain; charset=utf-8", meta: true, mutable: true}
	if rest == "latest" || rest == "v/list" {
		return it, nil
	}
	file, ok := strings.CutPrefix(rest, "v/")
	dot := strings.LastIndexByte(file, '.')
	if !ok || dot < 0 || !goVersion.MatchString(file[:dot]) {
		return nil, notServed("%.100q is nothing that a module proxy has", path)
	}
	version, err := module.UnescapeVersion(file[:dot])
	if err != nil {
		return nil, notServed("%.100q is no version", file[:dot])
	}
	exact := semver.IsValid(version) && semver.Canonical(version) == strings.TrimSuffix(version, "+incompatible") && module.CanonicalVersion(version) == version
	switch kind := file[dot+1:]; {
	case kind == "info":
		it.mutable, it.media = !exact, "application/json"
	case kind == "mod" && exact:
		it.mutable = false
		it.check = func(ctx context.Context, body *io.SectionReader) error {
			if body.Size() > maxGoMod {
				return engi.Errorf(engi.Conflict, "%s has more than %d bytes", it.key, maxGoMod)
			}
			got, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return io.NopCloser(body), nil })
			if err != nil {
				return engi.Errorf(engi.Conflict, "%s cannot be hashed: %v", it.key, err)
			}
			return g.verify(ctx, it.key, mod, version+"/go.mod", got)
		}
	case kind == "zip" && exact:
		it.mutable, it.meta, it.media = false, false, "application/zip"
		it.check = func(ctx context.Context, body *io.SectionReader) error {
			got, err := hashZip(body)
			if err != nil {
				return engi.Errorf(engi.Conflict, "%s: %v", it.key, err)
			}
			return g.verify(ctx, it.key, mod, version, got)
		}
	default:
		return nil, notServed("%.100q is nothing that a module proxy has", path)
	}
	return it, nil
}

// database returns the item for a path of the checksum database.
func (g *golang) database(path string) (*item, error) {
	if path == "supported" {
		return &item{fixed: []byte{}, media: "text/plain"}, nil
	}
	it := &item{of: g, key: "go/" + sumHost + "/" + path, media: "text/plain; charset=utf-8", meta: true}
	at, ok := strings.CutPrefix(path, "lookup/")
	escaped, version, versioned := strings.Cut(at, "@")
	switch {
	case path == "latest":
		it.mutable = true
	case ok && versioned:
		if _, err := module.UnescapePath(escaped); err != nil || !goVersion.MatchString(version) {
			return nil, notServed("%.100q is no module with a version", at)
		}
	case sumTile.MatchString(path):
		it.media = "application/octet-stream"
	default:
		return nil, notServed("%.100q is nothing that the checksum database has", path)
	}
	it.locate = func(ctx context.Context) (string, hash, error) {
		through := g.b.up["go"].String() + "/sumdb/" + sumHost + "/"
		_, ok, err := g.b.text(ctx, &item{of: g, key: "go/" + sumHost + "/supported", url: through + "supported", meta: true}, maxSumFile)
		if err != nil || ok {
			return through + path, hash{}, err
		}
		return "https://" + sumHost + "/" + path, hash{}, nil
	}
	return it, nil
}

// verify compares a hash with the one in the checksum database.
func (g *golang) verify(ctx context.Context, key, mod, version, got string) error {
	lines, err := g.sum.Lookup(mod, version)
	switch {
	case engi.Is(err, engi.NotFound):
		return nil // a private module of the upstream
	case err != nil && strings.Contains(err.Error(), "404"):
		return nil
	case err != nil:
		g.b.log.Warn("the checksum database cannot confirm a module", "key", key, "error", err)
		return engi.Errorf(engi.Unavailable, "%s: the checksum database cannot confirm it: %.200s", key, err.Error()).WithRemedy("try again")
	}
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%s: the client left", key)
	}
	want := ""
	for _, l := range lines {
		if f := strings.Fields(l); len(f) == 3 && f[0] == mod && f[1] == version && strings.HasPrefix(f[2], "h1:") {
			want = f[2]
		}
	}
	if want != got {
		g.b.log.Warn("a package was changed", "key", key, "want", want, "got", got)
		return changed(key, want, got)
	}
	return nil
}

// hashZip is like dirhash.HashZip, but safe for a hostile archive.
func hashZip(body *io.SectionReader) (string, error) {
	z, err := zip.NewReader(body, body.Size())
	if err != nil {
		return "", engi.Errorf(engi.Conflict, "it is not a zip archive")
	}
	files := make(map[string]*zip.File, len(z.File))
	var names []string
	total := uint64(0)
	for _, f := range z.File {
		if files[f.Name] != nil {
			return "", engi.Errorf(engi.Conflict, "the archive has %.100q twice", f.Name)
		}
		files[f.Name] = f
		names = append(names, f.Name)
		if total += min(f.UncompressedSize64, maxGoFiles+1); total > maxGoFiles {
			return "", engi.Errorf(engi.Conflict, "the archive has files of more than %d bytes", int64(maxGoFiles))
		}
	}
	got, err := dirhash.Hash1(names, func(name string) (io.ReadCloser, error) {
		in, err := files[name].Open()
		if err != nil {
			return nil, err
		}
		return struct {
			io.Reader
			io.Closer
		}{io.LimitReader(in, int64(files[name].UncompressedSize64)+1), in}, nil
	})
	if err != nil {
		return "", engi.Errorf(engi.Conflict, "the archive cannot be read: %v", err)
	}
	return got, nil
}

// sumOps connects the client of the checksum database with the cache.
type sumOps struct {
	g  *golang
	mu sync.Mutex // guards the file with the latest tree
}

// ReadRemote implements [sumdb.ClientOps].
func (o *sumOps) ReadRemote(path string) ([]byte, error) {
	it, err := o.g.database(path[1:])
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(o.g.b.ctx, metaTime)
	defer cancel()
	raw, ok, err := o.g.b.text(ctx, it, maxSumFile)
	if err == nil && !ok {
		err = engi.Errorf(engi.NotFound, "the checksum database has no %s: 404", path)
	}
	return raw, err
}

func (o *sumOps) latest() string { return filepath.Join(o.g.b.o.Dir, "sumdb-latest") }

// ReadConfig implements [sumdb.ClientOps].
func (o *sumOps) ReadConfig(file string) ([]byte, error) {
	if file == "key" {
		if o.g.b.o.SumDB != "" {
			return []byte(o.g.b.o.SumDB), nil
		}
		return []byte(sumKey), nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	raw, err := os.ReadFile(o.latest())
	if os.IsNotExist(err) {
		return nil, nil
	}
	return raw, err
}

// WriteConfig implements [sumdb.ClientOps].
func (o *sumOps) WriteConfig(_ string, before, after []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, err := os.ReadFile(o.latest())
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if !bytes.Equal(now, before) {
		return sumdb.ErrWriteConflict
	}
	temp := filepath.Join(o.g.b.o.Dir, tempPrefix+"sumdb")
	if err := os.WriteFile(temp, after, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, o.latest())
}

// ReadCache implements [sumdb.ClientOps]. What ReadRemote returns is cached.
func (o *sumOps) ReadCache(string) ([]byte, error) { return nil, os.ErrNotExist }

// WriteCache implements [sumdb.ClientOps].
func (o *sumOps) WriteCache(string, []byte) {}

// Log implements [sumdb.ClientOps].
func (o *sumOps) Log(text string) { o.g.b.log.Debug("checksum database", "says", text) }

// SecurityError implements [sumdb.ClientOps].
func (o *sumOps) SecurityError(text string) {
	o.g.b.log.Error("the checksum database contradicts itself", "what", fmt.Sprintf("%.1000s", text))
}
