package disk

import (
	"bufio"
	"compress/bzip2"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
)

// Bounds of an unpacked template.
const (
	maxRootBytes   = 64 << 30
	maxRootEntries = 2_000_000
)

func newBudget() *tree.Budget { return &tree.Budget{Bytes: maxRootBytes, Entries: maxRootEntries} }

// resolve returns the source of a definition's root. It may use the network, but
// only for small requests.
func (t *Templates) resolve(ctx context.Context, def recipe.Definition, progress func(engi.Progress), above []string) (source, error) {
	base := def.Base
	if suite, ok := releases[base]; ok {
		base = suite
	}
	kind, rest, _ := strings.Cut(base, ":")
	switch kind {
	case "host":
		if rest != "" || len(def.Packages) > 0 || len(def.Commands) > 0 || def.Go != nil {
			return source{}, invalid("base host has the node's own programs: it takes no packages, commands or Go").WithRemedy("use 'base: debian:bookworm'")
		}
		return t.hostSource()
	case "template":
		return t.templateSource(ctx, rest, progress, above)
	case "tar":
		return t.tarSource(rest)
	case "image":
		return t.usualImage(ctx, def, rest, progress, above)
	case "oci":
		return t.imageSource(ctx, rest, "", engi.RegistryLogin{})
	case "oci-archive", "docker-archive":
		return t.archiveSource(ctx, kind, rest)
	}
	if _, ok := distributions[kind]; ok && rest != "" {
		return t.debianSource(def, kind, rest)
	}
	return t.imageSource(ctx, base, "", engi.RegistryLogin{})
}

// usualImage returns the source of an image, or of its replacement on this node: a template, or a suite
// that the node can build.
func (t *Templates) usualImage(ctx context.Context, def recipe.Definition, ref string, progress func(engi.Progress), above []string) (source, error) {
	if name, ok := t.alias(ref); ok {
		return t.templateSource(ctx, name, progress, above)
	}
	if suite, ok := officialSuite(ref); ok {
		distro, release, _ := strings.Cut(suite, ":")
		if src, err := t.debianSource(def, distro, release); !engi.Is(err, engi.Unsupported) {
			return src, err
		}
	}
	return t.imageSource(ctx, ref, "", engi.RegistryLogin{})
}

// templateSource returns the source of another template, which it builds if needed.
func (t *Templates) templateSource(ctx context.Context, name string, progress func(engi.Progress), above []string) (source, error) {
	if slices.Contains(above, name) || len(above) > 8 {
		return source{}, invalid("template %s is based on itself", name)
	}
	base, release, err := t.baseTemplate(ctx, name, progress, above)
	if err != nil {
		return source{}, err
	}
	release() // buildRoot takes the lock again
	return source{
		inputs: []string{"template " + base.Digest},
		step:   "start from template " + name,
		base:   base.Digest,
		image: image{
			env: base.Env, user: base.User, workDir: base.WorkDir, ports: base.Ports, private: base.Private,
			start: base.Start, ready: base.Ready, kernels: base.Kernels,
		},
		unpack: func(context.Context, *job) error { return nil },
	}, nil
}

// tarSource returns the source of an archive of a root file system.
func (t *Templates) tarSource(name string) (source, error) {
	sum, err := sumFile(name, t.openSource)
	if err != nil {
		return source{}, err
	}
	return source{
		inputs: []string{"archive " + sum},
		step:   "unpack " + filepath.Base(name),
		unpack: func(ctx context.Context, j *job) error {
			f, err := t.openSource(name)
			if err != nil {
				return err
			}
			defer f.Close()
			st, err := f.Stat()
			if err != nil {
				return fileError(err)
			}
			check := sha256.New()
			in := io.TeeReader(f, io.MultiWriter(check, &meter{rep: j.report, total: st.Size()}))
			plain, err := decompress(in)
			if err != nil {
				return err
			}
			defer plain.Close()
			skipped, err := j.tree.Extract(ctx, plain, tree.ExtractOptions{Budget: newBudget()})
			if err != nil {
				return err
			}
			if _, err := io.Copy(io.Discard, in); err != nil {
				return fileError(err)
			}
			if got := hex.EncodeToString(check.Sum(nil)); got != sum {
				return engi.Errorf(engi.Conflict, "%s changed while it was read", name).WithRemedy("build again once it is complete")
			}
			logSkipped(j.report, skipped)
			return nil
		},
	}, nil
}

func logSkipped(rep *report, s tree.Skipped) {
	if s.Devices > 0 {
		rep.log(fmt.Sprintf("skipped %d device nodes: sandboxes have their own /dev", s.Devices))
	}
	if s.Other > 0 {
		rep.log(fmt.Sprintf("skipped %d entries of unknown types", s.Other))
	}
}

// decompress detects the compression of a stream, if any, and decompresses it.
func decompress(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, 1<<20)
	magic, err := in.Peek(6)
	if err != nil && err != io.EOF {
		return nil, fileError(err)
	}
	switch m := string(magic); {
	case strings.HasPrefix(m, "\x1f\x8b"):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, invalid("the archive is broken: %v", err)
		}
		return z, nil
	case strings.HasPrefix(m, "\x28\xb5\x2f\xfd"):
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, invalid("the archive is broken: %v", err)
		}
		return z.IOReadCloser(), nil
	case strings.HasPrefix(m, "BZh"):
		return io.NopCloser(bzip2.NewReader(in)), nil
	case strings.HasPrefix(m, "\xfd7zXZ"):
		return nil, engi.Errorf(engi.Unsupported, "the archive is compressed with xz, which is not supported").WithRemedy("xz -dc ARCHIVE | zstd > ARCHIVE.zst")
	}
	return io.NopCloser(in), nil
}

// openSource opens a file of the node named in a definition. The file must be in one of
// Options.Sources, also after following links: users who may build templates need
// not have access to the machine.
func (t *Templates) openSource(name string) (*os.File, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(t.o.Sources[0], name)
	}
	for _, dir := range t.o.Sources {
		rel, err := filepath.Rel(dir, name)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, sourceError(name, err)
		}
		defer root.Close()
		f, err := root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, sourceError(name, err)
		}
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			f.Close()
			return nil, invalid("%s is not a regular file", name)
		}
		return f, nil
	}
	return nil, engi.Errorf(engi.Denied, "definitions may not read %s", name).
		WithRemedy("put it into %s", t.o.Sources[0])
}

// openContext is openSource for copy steps, which may also copy from a directory: the directory
// is packed into an unnamed file.
func (t *Templates) openContext(name string) (*os.File, error) {
	f, err := t.openSource(name)
	if !engi.Is(err, engi.Invalid) {
		return f, err
	}
	at := name
	if !filepath.IsAbs(at) {
		at = filepath.Join(t.o.Sources[0], at)
	}
	for _, dir := range t.o.Sources {
		rel, e := filepath.Rel(dir, at)
		if e != nil || !filepath.IsLocal(rel) {
			continue
		}
		root, e := os.OpenRoot(dir)
		if e != nil {
			return nil, sourceError(name, e)
		}
		defer root.Close()
		below, e := root.OpenRoot(rel) // links must not lead out of the directory
		if e != nil {
			return nil, err
		}
		defer below.Close()
		return t.packed(below)
	}
	return nil, err
}

// packed returns a directory as a tar archive in a file that is removed on close.
func (t *Templates) packed(dir *os.Root) (_ *os.File, err error) {
	self, err := dir.Open(".")
	if err != nil {
		return nil, fileError(err)
	}
	defer self.Close()
	from, err := tree.Open(fmt.Sprintf("/proc/self/fd/%d", self.Fd()))
	if err != nil {
		return nil, err
	}
	defer from.Close()
	fd, err := unix.Open(filepath.Join(t.o.Dir, "tmp"), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fileError(err)
	}
	out := os.NewFile(uintptr(fd), "context")
	defer func() {
		if err != nil {
			out.Close()
		}
	}()
	buf := bufio.NewWriterSize(out, 1<<20)
	if err := from.Pack(context.Background(), &limitedWriter{buf, maxRootBytes}); err != nil {
		return nil, err
	}
	if err := buf.Flush(); err != nil {
		return nil, fileError(err)
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return nil, fileError(err)
	}
	return out, nil
}

// A limitedWriter reports Exhausted for more than n bytes.
type limitedWriter struct {
	w io.Writer
	n int64
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.n -= int64(len(p)); l.n < 0 {
		return 0, engi.Errorf(engi.Exhausted, "the directory has more than %d bytes", int64(maxRootBytes)).WithRemedy("copy less of it")
	}
	return l.w.Write(p)
}

func sourceError(name string, err error) error {
	return invalid("open %s: %v", name, err).WithRemedy("check the path and its permissions")
}

// client returns an HTTP client with the node's proxies and certificates.
func (t *Templates) client() (*http.Client, error) {
	roots, err := t.roots()
	if err != nil {
		return nil, err
	}
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.TLSClientConfig = &tls.Config{RootCAs: roots}
	return &http.Client{Transport: tr}, nil
}

// roots returns the authorities that the node trusts; nil means the system's.
func (t *Templates) roots() (*x509.CertPool, error) {
	if len(t.o.CA) == 0 {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	pem, err := t.nodeCA()
	if err != nil {
		return nil, err
	}
	pool.AppendCertsFromPEM(pem)
	return pool, nil
}

var privileged = os.Geteuid() == 0

// fileMode turns Unix mode bits into a fs.FileMode.
func fileMode(m uint32) fs.FileMode {
	f := fs.FileMode(m & 0o777)
	if m&unix.S_ISVTX != 0 {
		f |= fs.ModeSticky
	}
	if m&unix.S_ISUID != 0 {
		f |= fs.ModeSetuid
	}
	if m&unix.S_ISGID != 0 {
		f |= fs.ModeSetgid
	}
	return f
}

func invalid(format string, args ...any) *engi.Error {
	return engi.Errorf(engi.Invalid, format, args...)
}
