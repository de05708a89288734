package app

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	buildTime        = 5 * time.Minute
	distDir          = "dist" // directory to which a build writes the published files
	indexPage        = "index.html"
	maxPublished     = 1000     // maximum number of files
	maxPublishedFile = 16 << 20 // maximum bytes of a file
	maxPublishedAll  = 32 << 20
	takeOutTime      = time.Minute // maximum time in which the guest must send the files
	leastPacked      = 1 << 10     // bytes; smaller files are not compressed
	publishers       = 4           // maximum number of publications in memory at once
)

// Publish implements [engi.Apps].
func (s *Service) Publish(ctx context.Context, spec engi.PublishSpec) (_ engi.App, err error) {
	defer engi.Annotate(&err, "publish app %.70s", spec.App)
	u, err := s.open(ctx, spec.Viewer, spec.App, how{capture: true})
	if err != nil {
		return engi.App{}, err
	}
	defer u.close()
	files, err := s.opt.Store.Files(ctx, u.rec.ID, u.rec.Revision)
	if err != nil {
		return engi.App{}, err
	}
	sources := treeOf(files)
	if err := s.build(ctx, u, sources); err != nil {
		return engi.App{}, err
	}
	// At most one publication of each owner waits for those of other owners.
	release, err := s.publishers.Acquire(ctx, u.rec.Owner)
	if err != nil {
		return engi.App{}, err
	}
	defer release()
	select {
	case s.publishing <- struct{}{}:
	case <-ctx.Done():
		return engi.App{}, engi.Errorf(engi.Expired, "wait for other publications: %v", context.Cause(ctx))
	}
	defer func() { <-s.publishing }()
	p, err := takeOut(ctx, u, sources)
	if err != nil {
		return engi.App{}, err
	}
	r, err := s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, tx Tx) error {
		if err := tx.Publish(p.files, p.contents, Bounds{maxRevisions, maxHistory, maxStored}); err != nil {
			return err
		}
		now := time.Now().UTC()
		r.Published = engi.Publication{Revision: u.rec.Revision, At: now, Files: len(p.files), Bytes: p.bytes, Private: spec.Private || u.t.Private}
		r.Used = now
		_, err := tx.Emit(engi.EventAppPublished, eventData{Revision: u.rec.Revision, Files: len(p.files), Bytes: p.bytes})
		return err
	})
	return r.App, err
}

// build runs the app's build, which writes its files to dist.
func (s *Service) build(ctx context.Context, u *use, sources tree) error {
	noBuild := engi.Errorf(engi.Conflict, "the app's build produces no files to serve").
		WithRemedy("only pages can be published, not servers: add a script 'build' to package.json that writes pages to dist, as in vite-react")
	if _, ok := sources["package.json"]; !ok {
		return noBuild
	}
	text, err := s.content(ctx, u.rec.ID, sources["package.json"].Digest)
	if err != nil {
		return err
	}
	var m struct{ Scripts struct{ Build string } }
	if err := json.Unmarshal(text, &m); err != nil || m.Scripts.Build == "" {
		return noBuild
	}
	if err := u.g.Remove(ctx, u.dir+"/"+distDir); err != nil {
		return err
	}
	say := s.reporter(ctx, u, 0)
	if err := say.step("build", fmt.Sprintf("Build revision %d", u.rec.Revision)); err != nil {
		return err
	}
	var printed []string
	code, err := u.run(ctx, buildTime, func(line string) {
		say.line(line)
		if printed = append(printed, line); len(printed) > 30 {
			printed = printed[1:]
		}
	}, "npm", "run", "build")
	if err != nil {
		return err
	}
	if code != 0 {
		return engi.Errorf(engi.Conflict, "the build ended with %d:\n%.4000s", code, strings.Join(printed, "\n")).
			WithRemedy("correct the app and publish again; the earlier published build stays")
	}
	fi, err := u.g.Stat(ctx, u.dir+"/"+distDir)
	if err != nil && !engi.Is(err, engi.NotFound) {
		return err
	}
	if err != nil || !fi.Mode.IsDir() {
		return noBuild
	}
	return nil
}

// A publication is the result of a build.
type publication struct {
	files    []Published
	contents map[string][]byte // contents by digest
	bytes    int64
}

// takeOut reads the result of a build from the sandbox. Its content is not trusted.
func takeOut(ctx context.Context, u *use, sources tree) (publication, error) {
	ctx, cancel := context.WithTimeout(ctx, takeOutTime)
	defer cancel()
	p := publication{contents: map[string][]byte{}}
	archive, err := u.g.Pack(ctx, u.dir+"/"+distDir)
	if err != nil {
		return p, err
	}
	defer archive.Close()
	// The limit also covers headers and directories.
	in := tar.NewReader(io.LimitReader(archive, maxPublishedAll+maxPublished*8<<10))
	seen := map[string]bool{}
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return p, engi.Errorf(engi.Unavailable, "read what the build has left: %v", err).WithRemedy("publish again; the earlier published build stays")
		}
		name, below := strings.CutPrefix(strings.TrimSuffix(h.Name, "/"), distDir+"/")
		switch {
		case h.Typeflag == tar.TypeDir:
			continue
		case h.Typeflag != tar.TypeReg:
			return p, engi.Errorf(engi.Conflict, "%.100q of the build is a link or a device", h.Name).WithRemedy("have the build write files only")
		case !below || checkName(name) != nil || seen[name]:
			return p, engi.Errorf(engi.Conflict, "%.100q cannot be published", h.Name).WithRemedy("have the build write files with plain names below dist")
		case h.Size > maxPublishedFile:
			return p, engi.Errorf(engi.Exhausted, "%s of the build has %d bytes; the limit is %d MiB", name, h.Size, maxPublishedFile>>20).WithRemedy("load large content from another server")
		}
		seen[name] = true
		p.bytes += h.Size
		if len(seen) > maxPublished || p.bytes > maxPublishedAll {
			return p, engi.Errorf(engi.Exhausted, "the build has left more than %d files or %d MiB", maxPublished, maxPublishedAll>>20).WithRemedy("load large content from another server")
		}
		data, err := io.ReadAll(io.LimitReader(in, h.Size))
		if err != nil || int64(len(data)) != h.Size {
			return p, engi.Errorf(engi.Unavailable, "read %s of the build: %v", name, err).WithRemedy("publish again; the earlier published build stays")
		}
		f := Published{Path: name, Size: h.Size, Digest: p.keep(data), Fixed: isFixed(name, sources)}
		if packed := compress(name, data); packed != nil {
			f.Packed = p.keep(packed)
		}
		p.files = append(p.files, f)
	}
	if !seen[indexPage] {
		return p, engi.Errorf(engi.Conflict, "the build has left no %s in dist", indexPage).WithRemedy("have the build write index.html, the first page")
	}
	return p, nil
}

// keep adds a content and returns its digest.
func (p *publication) keep(data []byte) string {
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	p.contents[digest] = data
	return digest
}

// hashed matches names of files to which Vite adds a hash of the content. Words do not
// match, because they seldom have capitals.
var hashed = regexp.MustCompile(`-([A-Za-z0-9_-]{8})\.[a-z0-9]+$`)

// isFixed reports whether the path would change with the content. The path of a file copied
// from public would not.
func isFixed(name string, sources tree) bool {
	m := hashed.FindStringSubmatch(name)
	_, copied := sources["public/"+name]
	return m != nil && !copied && strings.HasPrefix(name, "assets/") && strings.ContainsAny(m[1], "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
}

// texts are the extensions of files worth compressing.
var texts = []string{".html", ".css", ".js", ".mjs", ".json", ".map", ".svg", ".txt", ".xml", ".wasm", ".ttf", ".otf", ".ico", ".md", ".csv", ".webmanifest"}

// compress returns the compressed content of a file; nil if compression is not worth it.
func compress(name string, data []byte) []byte {
	if len(data) < leastPacked || !slices.Contains(texts, strings.ToLower(path.Ext(name))) {
		return nil
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil || w.Close() != nil || b.Len() > len(data)*9/10 {
		return nil // writing to a buffer never fails
	}
	return b.Bytes()
}

// Unpublish implements [engi.Apps].
func (s *Service) Unpublish(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "unpublish app %.70s", idOrName)
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return err
	}
	_, err = s.opt.Store.Change(ctx, r.ID, func(r *Record, tx Tx) error {
		if r.Published.Revision == 0 {
			return nil
		}
		if err := tx.Publish(nil, nil, Bounds{maxRevisions, maxHistory, maxStored}); err != nil {
			return err
		}
		_, err := tx.Emit(engi.EventAppUnpublished, eventData{Revision: r.Published.Revision})
		r.Published = engi.Publication{}
		return err
	})
	return err
}

// Published implements [engi.Apps].
func (s *Service) Published(ctx context.Context, viewer engi.Viewer, idOrName, name string, packed bool) (f engi.PublishedFile, err error) {
	r, err := s.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return f, err
	}
	x, err := s.opt.Store.Published(ctx, r.ID, name)
	if err != nil {
		return f, err
	}
	f = engi.PublishedFile{Path: x.Path, Digest: x.Digest, Fixed: x.Fixed}
	if packed && x.Packed != "" {
		f.Digest, f.Gzip = x.Packed, true
	}
	p := &parts{s: s, ctx: ctx, app: r.ID, digest: f.Digest}
	if err := p.load(0); err != nil {
		return f, err
	}
	f.Size, f.Content = p.size, p
	return f, nil
}

// parts reads a published content, with one part in memory at a time.
type parts struct {
	s      *Service
	ctx    context.Context
	app    engi.AppID
	digest string
	size   int64
	at     int64
	part   int // number of the part in data
	data   []byte
}

func (p *parts) load(n int) error {
	if p.data != nil && p.part == n {
		return nil
	}
	size, data, err := p.s.opt.Store.Part(p.ctx, p.app, p.digest, n)
	if err != nil {
		return err
	}
	p.size, p.part, p.data = size, n, data
	return nil
}

// Read implements [io.Reader].
func (p *parts) Read(b []byte) (int, error) {
	if p.at >= p.size {
		return 0, io.EOF
	}
	if err := p.load(int(p.at / PartSize)); err != nil {
		return 0, err
	}
	off := p.at % PartSize
	if off >= int64(len(p.data)) {
		return 0, engi.Errorf(engi.Internal, "part %d of %.16s is too short", p.part, p.digest)
	}
	n := copy(b, p.data[off:])
	p.at += int64(n)
	return n, nil
}

// Seek implements [io.Seeker].
func (p *parts) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += p.at
	case io.SeekEnd:
		offset += p.size
	}
	if offset < 0 {
		return 0, engi.Errorf(engi.Invalid, "seek before the beginning")
	}
	p.at = offset
	return offset, nil
}
