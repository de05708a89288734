package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type sandboxCopy struct {
	From string `arg:"" help:"Source: a local path, or ID:PATH in a sandbox; - is standard input." placeholder:"FROM"`
	To   string `arg:"" help:"Destination: ID:PATH in a sandbox, or a local path; - is standard output." placeholder:"TO"`
}

func (sandboxCopy) Help() string {
	return `Directories are copied with their contents. If the destination is a directory or ends with a slash,
the copy is placed in it. The hashes of files are compared on both sides.

Examples:
  engi sandbox cp data.csv $id:/workspace/
  engi sandbox cp src $id:/workspace/src
  engi sandbox cp $id:/workspace/out results
  engi sandbox cp $id:/workspace/plot.png - | display`
}

func (s *sandboxCopy) Run(ctx context.Context, g *globals) error {
	return g.copy(ctx, s.From, s.To, func(d *connection, name string) remoteFile {
		return remoteFile{Files: d.Files(name), trees: true}
	})
}

// A remoteFile gives access to the files of a sandbox or a volume.
type remoteFile struct {
	*client.Files
	trees bool // it supports archives
}

// place is one end of a copy.
type place struct {
	name string // name of the sandbox or the volume; empty means this machine
	path string
}

// placeOf parses an end of a copy. A local path with a colon needs a slash before the
// colon.
func placeOf(s string) place {
	name, p, ok := strings.Cut(s, ":")
	if !ok || name == "" || strings.ContainsAny(name, `/\`) || !strings.HasPrefix(p, "/") {
		return place{path: s}
	}
	return place{name, p}
}

// copied is the JSON output for one file or directory.
type copied struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256,omitempty"`
	Files  int    `json:"files,omitempty"`
}

func (g *globals) copy(ctx context.Context, from, to string, open func(*connection, string) remoteFile) error {
	a, b := placeOf(from), placeOf(to)
	if (a.name == "") == (b.name == "") {
		return engi.Errorf(engi.Invalid, "one of %q and %q must be in a sandbox or volume", from, to).
			WithRemedy("write it like NAME:/absolute/path")
	}
	return g.atServer(ctx, func(d *connection) (err error) {
		var c copied
		m := g.meterOf()
		if b.name != "" {
			c, err = g.upload(ctx, open(d, b.name), a.path, b.path, m)
		} else {
			c, err = g.download(ctx, open(d, a.name), a.path, b.path, m)
		}
		m.done(err == nil)
		if err != nil {
			return err
		}
		c.From = from
		if b.name != "" {
			c.To = b.name + ":" + c.To
		}
		if g.JSON && b.path != "-" {
			return g.printJSON(c)
		}
		return nil
	})
}

// upload copies files from this machine.
func (g *globals) upload(ctx context.Context, f remoteFile, from, to string, m *copyMeter) (copied, error) {
	if from == "-" {
		w, err := f.Write(ctx, to, m.count("standard input", -1, g.in))
		return copied{To: to, Bytes: int64(w.Size), SHA256: w.SHA256}, err
	}
	info, err := os.Stat(from)
	if err != nil {
		return copied{}, engi.Errorf(engi.Invalid, "%v", err)
	}
	abs, err := filepath.Abs(from)
	if err != nil {
		return copied{}, engi.Errorf(engi.Invalid, "%v", err)
	}
	if to, err = f.into(ctx, to, filepath.Base(abs)); err != nil {
		return copied{}, err
	}
	switch {
	case info.IsDir() && f.trees:
		return f.uploadTree(ctx, from, to, m)
	case info.IsDir():
		return f.uploadEach(ctx, from, to, m)
	case !info.Mode().IsRegular():
		return copied{}, engi.Errorf(engi.Invalid, "%s is neither a file nor a directory", from)
	}
	w, err := f.uploadFile(ctx, from, to, info, m)
	return copied{To: to, Bytes: int64(w.Size), SHA256: w.SHA256}, err
}

func (f remoteFile) uploadFile(ctx context.Context, from, to string, info fs.FileInfo, m *copyMeter) (v1.Written, error) {
	in, err := os.Open(from)
	if err != nil {
		return v1.Written{}, engi.Errorf(engi.Invalid, "%v", err)
	}
	defer in.Close()
	return f.Write(ctx, to, m.count(path.Base(to), info.Size(), in), client.WithSize(info.Size()), client.WithMode(v1.Mode(info.Mode().Perm())))
}

// into returns to, or to joined with base if to is a directory.
func (f remoteFile) into(ctx context.Context, to, base string) (string, error) {
	if strings.HasSuffix(to, "/") {
		return path.Join(to, base), nil
	}
	info, err := f.Stat(ctx, to)
	switch {
	case client.IsKind(err, v1.NotFound):
		return to, nil
	case err != nil:
		return "", err
	case info.Type == "directory":
		return path.Join(to, base), nil
	}
	return to, nil
}

// uploadTree sends a directory as a tar stream while it creates the stream.
func (f remoteFile) uploadTree(ctx context.Context, from, to string, m *copyMeter) (copied, error) {
	c := copied{To: to}
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := pack(pw, from, path.Base(to), &c)
		pw.CloseWithError(err)
		done <- err
	}()
	err := f.Unpack(ctx, path.Dir(to), m.count(path.Base(to), -1, pr))
	pr.CloseWithError(errors.New("the other side has stopped reading"))
	if perr := <-done; perr != nil && err == nil {
		err = engi.Errorf(engi.Invalid, "%v", perr)
	}
	return c, err
}

// pack writes a directory as tar; names start with base.
func pack(w io.Writer, dir, base string, c *copied) error {
	t := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		link := ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if link, err = os.Readlink(p); err != nil {
				return err
			}
		case !info.Mode().IsRegular() && !info.IsDir():
			return nil // sockets and devices are not copied
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		h.Name = path.Join(base, filepath.ToSlash(rel))
		if info.IsDir() {
			h.Name += "/"
		}
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		n, err := io.Copy(t, f)
		c.Bytes += n
		c.Files++
		return err
	})
	if err != nil {
		return err
	}
	return t.Close()
}

// uploadEach sends a directory file by file.
func (f remoteFile) uploadEach(ctx context.Context, from, to string, m *copyMeter) (copied, error) {
	c := copied{To: to}
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return engi.Errorf(engi.Invalid, "%v", err)
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return engi.Errorf(engi.Invalid, "%v", err)
		}
		target := path.Join(to, filepath.ToSlash(rel))
		if d.IsDir() {
			if err := f.MakeDir(ctx, target); err != nil && !client.IsKind(err, v1.Conflict) {
				return err
			}
			return nil
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() {
			return nil // links and devices are not copied
		}
		w, err := f.uploadFile(ctx, p, target, info, m)
		c.Bytes += int64(w.Size)
		c.Files++
		return err
	})
	return c, err
}

// download copies files to this machine.
func (g *globals) download(ctx context.Context, f remoteFile, from, to string, m *copyMeter) (copied, error) {
	info, err := f.Stat(ctx, from)
	if err != nil {
		return copied{}, err
	}
	if to == "-" {
		if info.Type == "directory" {
			return copied{}, engi.Errorf(engi.Invalid, "%s is a directory", from).WithRemedy("copy it to a directory here")
		}
		return f.downloadFile(ctx, from, m, g.out)
	}
	if local, err := os.Stat(to); strings.HasSuffix(to, string(filepath.Separator)) || err == nil && local.IsDir() {
		to = filepath.Join(to, filepath.FromSlash(path.Base(from)))
	}
	if info.Type == "directory" {
		return f.downloadTree(ctx, from, to, m)
	}
	tmp, err := os.CreateTemp(filepath.Dir(to), ".engi-*")
	if err != nil {
		return copied{}, engi.Errorf(engi.Invalid, "%v", err)
	}
	defer os.Remove(tmp.Name())
	c, err := f.downloadFile(ctx, from, m, tmp)
	c.To = to
	if err != nil {
		tmp.Close()
		return c, err
	}
	if err := errors.Join(tmp.Chmod(fs.FileMode(info.Mode).Perm()|0o600), tmp.Close(), os.Rename(tmp.Name(), to)); err != nil {
		return c, engi.Errorf(engi.Invalid, "%v", err)
	}
	return c, nil
}

func (f remoteFile) downloadFile(ctx context.Context, from string, m *copyMeter, w io.Writer) (copied, error) {
	in, err := f.Open(ctx, from, client.WithSHA256())
	if err != nil {
		return copied{}, err
	}
	defer in.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{m.count(path.Base(from), in.Size, in)}, make([]byte, 256<<10))
	return copied{Bytes: n, SHA256: in.SHA256()}, err
}

// downloadTree writes an untrusted directory. Names and links cannot lead out of its
// destination.
func (f remoteFile) downloadTree(ctx context.Context, from, to string, m *copyMeter) (copied, error) {
	c := copied{To: to}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return c, engi.Errorf(engi.Invalid, "%v", err)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return c, engi.Errorf(engi.Invalid, "%v", err)
	}
	defer root.Close()
	if !f.trees {
		return c, f.downloadEach(ctx, from, root, m, &c)
	}
	in, err := f.Pack(ctx, from, "tar")
	if err != nil {
		return c, err
	}
	defer in.Close()
	t := tar.NewReader(m.count(path.Base(from), -1, in))
	for {
		h, err := t.Next()
		if err == io.EOF {
			return c, nil
		}
		if err != nil {
			return c, engi.Errorf(engi.Unavailable, "the archive is truncated: %v", err)
		}
		// Names start with the last element of the requested path.
		_, name, ok := strings.Cut(strings.TrimPrefix(path.Clean(h.Name), "/"), "/")
		if from == "/" {
			name, ok = strings.TrimPrefix(path.Clean(h.Name), "/"), true
		}
		if !ok || name == "" {
			continue // the entry is the directory itself
		}
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return c, engi.Errorf(engi.Invalid, "%.200q leads out of the directory", h.Name)
		}
		if err := extract(root, filepath.FromSlash(name), h, t, &c); err != nil {
			return c, engi.Errorf(engi.Invalid, "write %.200q: %v", name, err)
		}
	}
}

func extract(root *os.Root, name string, h *tar.Header, r io.Reader, c *copied) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, fs.FileMode(h.Mode).Perm()|0o700)
	case tar.TypeSymlink:
		_ = root.Remove(name) // replace an existing file
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		_ = root.Remove(name)
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(h.Mode).Perm()|0o600)
		if err != nil {
			return err
		}
		n, err := io.Copy(f, r)
		c.Bytes += n
		c.Files++
		return errors.Join(err, f.Close())
	}
	return nil // devices and sockets are not copied
}

func (f remoteFile) downloadEach(ctx context.Context, from string, root *os.Root, m *copyMeter, c *copied) error {
	all, err := f.List(ctx, from, 64)
	if err != nil {
		return err
	}
	for _, x := range all {
		name := filepath.FromSlash(strings.TrimPrefix(strings.TrimPrefix(x.Path, strings.TrimSuffix(from, "/")), "/"))
		if !filepath.IsLocal(name) {
			return engi.Errorf(engi.Invalid, "%.200q leads out of the directory", x.Path)
		}
		switch x.Type {
		case "directory":
			err = root.MkdirAll(name, 0o755)
		case "file":
			if err = root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				break
			}
			var w *os.File
			if w, err = root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fs.FileMode(x.Mode).Perm()|0o600); err != nil {
				break
			}
			one, derr := f.downloadFile(ctx, x.Path, m, w)
			c.Bytes += one.Bytes
			c.Files++
			if cerr := w.Close(); derr != nil {
				return derr
			} else if cerr != nil {
				err = cerr
			}
		}
		if err != nil {
			return engi.Errorf(engi.Invalid, "%v", err)
		}
	}
	return nil
}

// A copyMeter shows the progress of a copy on a terminal.
type copyMeter struct {
	bars *mpb.Progress // nil without a terminal
	all  []*mpb.Bar
}

func (g *globals) meterOf() *copyMeter {
	m := &copyMeter{}
	if width(g.err) >= 60 && !g.JSON {
		m.bars = mpb.New(mpb.WithOutput(g.err), mpb.WithWidth(40))
	}
	return m
}

// count shows the progress of reading r; a size of -1 means unknown. Small sizes get no
// bar.
func (m *copyMeter) count(name string, size int64, r io.Reader) io.Reader {
	if m.bars == nil || size >= 0 && size < 1<<20 {
		return r
	}
	bar := m.bars.New(max(0, size), mpb.BarStyle().Rbound("]"),
		mpb.PrependDecorators(decor.Name(fmt.Sprintf("%-30.30s ", name))),
		mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f "), decor.AverageSpeed(decor.SizeB1024(0), "% .1f")))
	m.all = append(m.all, bar)
	return bar.ProxyReader(r)
}

func (m *copyMeter) done(well bool) {
	if m.bars == nil {
		return
	}
	for _, b := range m.all {
		if well {
			b.SetTotal(-1, true)
		} else {
			b.Abort(false)
		}
	}
	m.bars.Wait()
}
