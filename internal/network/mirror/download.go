package mirror

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	gohash "hash"

	"github.com/engi-dev/engi/internal/engi"
)

// A hash is the hash that an ecosystem publishes for a file.
type hash struct {
	algorithm string // sha1, sha256 or sha512
	sum       []byte
}

func (h hash) new() gohash.Hash {
	switch h.algorithm {
	case "sha512":
		return sha512.New()
	case "sha256":
		return sha256.New()
	case "sha1":
		return sha1.New()
	}
	return nil
}

// newHash parses a hash in hexadecimal; ok is false if text is invalid.
func newHash(algorithm, text string) (h hash, ok bool) {
	sum, err := hex.DecodeString(strings.TrimSpace(text))
	h = hash{algorithm, sum}
	return h, err == nil && h.new() != nil && len(sum) == h.new().Size()
}

// An item is a file or a piece of metadata that registries serve.
type item struct {
	of      ecosystem
	key     string // key in the cache
	url     string // URL upstream
	accept  string // media types to request
	media   string // media type of the response
	mutable bool   // metadata, which is requested again
	meta    bool   // the size limit of metadata applies

	fixed []byte // fixed response; no upstream is asked

	// locate returns the URL of a file and the hash that it must have.
	locate func(context.Context) (url string, want hash, err error)
	// check compares a file with other data that its ecosystem publishes.
	check func(context.Context, *io.SectionReader) error
	// rewrite checks and changes metadata before it is kept.
	rewrite func([]byte) ([]byte, error)
	// render changes metadata for a request.
	render func(body []byte, accept string) ([]byte, string, error)
}

func (it *item) max() int64 {
	if it.meta || it.mutable {
		return maxMetadata
	}
	return maxFile
}

// A flight is the download of one item. Any number of requests wait for it. It
// is cancelled when all of them have left.
type flight struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // result of the download; valid after done is closed

	mu      sync.Mutex
	waiters int
	file    *os.File      // file being downloaded; guarded by mu
	size    int64         // final size, or -1 if unknown; guarded by mu
	written int64         // bytes written so far; guarded by mu
	grew    chan struct{} // closed when written grows; guarded by mu
}

// get returns an item from the cache or from its registry. The caller closes the
// entry.
func (b *Server) get(ctx context.Context, it *item) (*entry, error) {
	e, f, err := b.begin(it)
	if e != nil || err != nil {
		return e, err
	}
	defer b.leave(it.key, f)
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, engi.Errorf(engi.Expired, "the client left")
	}
	return b.landed(it, f)
}

// landed returns the result of a finished flight, or older metadata if the flight failed.
func (b *Server) landed(it *item, f *flight) (*entry, error) {
	if f.err != nil {
		if it.mutable && !engi.Is(f.err, engi.Conflict) {
			if e := b.cache.open(it.key); e != nil {
				b.log.Debug("stale metadata is served", "key", it.key, "why", f.err)
				return e, nil
			}
		}
		return nil, f.err
	}
	if e := b.cache.open(it.key); e != nil {
		return e, nil
	}
	return nil, engi.Errorf(engi.Unavailable, "%s is gone from the cache again", it.key).WithRemedy("let the operator make the cache larger")
}

// begin returns an item from the cache, or the flight that downloads it. The
// caller must leave the flight.
func (b *Server) begin(it *item) (*entry, *flight, error) {
	e := b.cache.open(it.key)
	gone := e != nil && e.Status != http.StatusOK
	if e != nil && (b.o.Offline || !it.mutable && !gone || time.Since(e.Fetched) < b.o.Fresh) {
		b.count(it.of, func(c *Counts) { c.Hits++ })
		return e, nil, nil
	}
	if e != nil {
		e.close()
	}
	if b.o.Offline {
		return nil, nil, engi.Errorf(engi.Denied, "%s is not in the package cache, and this node is offline", it.key).
			WithRemedy("bring it in with 'engi mirror warm' where there is a network")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.flights[it.key]
	if f == nil {
		if b.ctx.Err() != nil {
			return nil, nil, engi.Errorf(engi.Unavailable, "this node is closing")
		}
		ctx, cancel := context.WithCancel(b.ctx)
		f = &flight{cancel: cancel, done: make(chan struct{}), size: -1, grew: make(chan struct{})}
		b.flights[it.key] = f
		b.running.Go(func() {
			defer cancel()
			f.err = b.download(ctx, it, f)
			b.mu.Lock()
			if b.flights[it.key] == f {
				delete(b.flights, it.key)
			}
			b.mu.Unlock()
			close(f.done)
		})
	}
	f.waiters++
	return nil, f, nil
}

func (b *Server) leave(key string, f *flight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		if b.flights[key] == f {
			delete(b.flights, key) // a later request begins a new flight
		}
		f.cancel()
	}
}

// serveItem answers a request with an item.
func (b *Server) serveItem(w http.ResponseWriter, r *http.Request, it *item) error {
	e, f, err := b.begin(it)
	if err != nil {
		return err
	}
	if f != nil {
		defer b.leave(it.key, f)
		wait := time.NewTimer(patience)
		defer wait.Stop()
		for e == nil {
			select {
			case <-f.done:
				if e, err = b.landed(it, f); err != nil {
					return err
				}
			case <-r.Context().Done():
				return engi.Errorf(engi.Expired, "the client left")
			case <-wait.C:
				if r.Method == http.MethodGet && r.Header.Get("Range") == "" && b.stream(w, r, it, f) {
					return nil
				}
				wait.Reset(patience) // no data has arrived yet
			}
		}
	}
	defer e.close()
	return b.serveEntry(w, r, it, e)
}

// serveEntry answers with an entry of the cache.
func (b *Server) serveEntry(w http.ResponseWriter, r *http.Request, it *item, e *entry) error {
	if e.Status != http.StatusOK {
		return engi.Errorf(engi.NotFound, "the registry answers %d: the package or version does not exist", e.Status)
	}
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Type", it.media)
	h.Set("ETag", `"`+e.SHA256+`"`)
	if it.render == nil {
		http.ServeContent(w, r, "", time.Time{}, e.body())
		return nil
	}
	b.parsing <- struct{}{}
	body, media, err := b.rendered(it, e, r)
	<-b.parsing
	if err != nil {
		return err
	}
	h.Set("Content-Type", media)
	h.Set("Vary", "Accept")
	sum := sha256.Sum256(body)
	h.Set("ETag", `"`+hex.EncodeToString(sum[:])+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	return nil
}

func (b *Server) rendered(it *item, e *entry, r *http.Request) ([]byte, string, error) {
	raw, err := io.ReadAll(e.body())
	if err != nil {
		return nil, "", engi.Errorf(engi.Unavailable, "package cache: %v", err)
	}
	return it.render(raw, strings.Join(r.Header["Accept"], ","))
}

// stream sends a file while it arrives, except for its end. The end follows only when
// the file has the expected hash; otherwise the connection breaks. It
// returns false if the response cannot begin yet.
func (b *Server) stream(w http.ResponseWriter, r *http.Request, it *item, f *flight) bool {
	f.mu.Lock()
	file, size := f.file, f.size
	f.mu.Unlock()
	if file == nil || it.meta || it.mutable || it.render != nil {
		return false
	}
	// The open file stays readable after it is renamed or removed.
	in, err := os.Open(file.Name())
	if err != nil {
		return false
	}
	defer in.Close()
	w.Header().Set("Content-Type", it.media)
	if size >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	}
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	var sent int64
	for ended := false; ; {
		f.mu.Lock()
		ready, grew := f.written, f.grew
		f.mu.Unlock()
		if ended {
			if f.err != nil {
				w.Header().Set("X-Engi-Error", line(f.err.Error())) // for the log; the client sees the connection break
				panic(http.ErrAbortHandler)
			}
		} else {
			ready = max(ready-withheld, 0)
		}
		if ready > sent {
			n, err := io.Copy(w, io.NewSectionReader(in, headSize+sent, ready-sent))
			if sent += n; err != nil || out.Flush() != nil {
				return true // the client is gone
			}
		}
		if ended {
			return true
		}
		select {
		case <-grew:
		case <-f.done:
			ended = true
		case <-r.Context().Done():
			return true
		}
	}
}

// download downloads an item into the cache.
func (b *Server) download(ctx context.Context, it *item, f *flight) (err error) {
	limit := fileTime
	if it.meta || it.mutable {
		limit = metaTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	address, want := it.url, hash{}
	if it.locate != nil {
		if address, want, err = it.locate(ctx); err != nil {
			return err
		}
	}
	select {
	case b.fetching <- struct{}{}:
		defer func() { <-b.fetching }()
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "too many packages are being fetched").WithRemedy("try again")
	}
	var before *entry
	if it.mutable {
		if before = b.cache.open(it.key); before != nil {
			defer before.close()
		}
	}
	resp, stop, err := b.ask(ctx, it, address, before)
	if err != nil {
		return err
	}
	defer stop()
	defer resp.Body.Close()
	switch code := resp.StatusCode; {
	case code == http.StatusNotModified && before != nil:
		b.cache.renew(it.key)
		return nil
	case code == http.StatusNotFound || code == http.StatusGone:
		return b.keep(it, head{Status: code}, nil)
	case code != http.StatusOK:
		return engi.Errorf(engi.Unavailable, "%s: the registry answers %d", it.key, code).WithRemedy("try again")
	}
	return b.receive(ctx, it, f, resp, want)
}

// ask sends a request upstream. The caller calls stop after reading the body.
func (b *Server) ask(ctx context.Context, it *item, address string, before *entry) (_ *http.Response, stop func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		cancel(nil)
		return nil, nil, engi.Errorf(engi.Invalid, "%s: a bad URL from the registry", it.key)
	}
	b.mu.Lock()
	away := time.Now().Before(b.down[r.URL.Host])
	b.mu.Unlock()
	if away {
		cancel(nil)
		return nil, nil, engi.Errorf(engi.Unavailable, "%s: the registry cannot be reached", it.key).WithRemedy("try again in %s", downTime)
	}
	r.Header.Set("User-Agent", "engi")
	if it.accept != "" {
		r.Header.Set("Accept", it.accept)
	}
	if !it.mutable && !it.meta {
		r.Header.Set("Accept-Encoding", "identity") // the hash is the hash of the uncompressed file
	}
	if before != nil && before.ETag != "" {
		r.Header.Set("If-None-Match", before.ETag)
	} else if before != nil && before.Modified != "" {
		r.Header.Set("If-Modified-Since", before.Modified)
	}
	stall := time.AfterFunc(stallTime, func() {
		cancel(engi.Errorf(engi.Unavailable, "%s: the registry sent nothing for %s", it.key, stallTime).WithRemedy("try again"))
	})
	stop = func() { stall.Stop(); cancel(nil) }
	resp, err := b.client.Do(r)
	if err != nil {
		defer stop()
		if known, ok := errors.AsType[*engi.Error](err); ok && known.Kind == engi.Denied {
			return nil, nil, engi.Errorf(engi.Denied, "%s: %v", it.key, known).WithRemedy("have the operator add the host to mirror.hosts, if it is a mirror's")
		}
		if ctx.Err() == nil || engi.Is(context.Cause(ctx), engi.Unavailable) {
			b.mu.Lock()
			if len(b.down) >= maxDown {
				clear(b.down) // bounds the map, because metadata can name any number of hosts
			}
			b.down[r.URL.Host] = time.Now().Add(downTime)
			b.mu.Unlock()
		}
		b.log.Info("a registry cannot be reached", "host", r.URL.Host, "error", err)
		return nil, nil, engi.Errorf(engi.Unavailable, "%s: the registry cannot be reached", it.key).WithRemedy("try again")
	}
	resp.Body = &watched{ReadCloser: resp.Body, stall: stall, ctx: ctx}
	return resp, stop, nil
}

// A watched body resets the stall timer with each read.
type watched struct {
	io.ReadCloser
	stall *time.Timer
	ctx   context.Context
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if n > 0 {
		w.stall.Reset(stallTime)
	}
	if known, ok := errors.AsType[*engi.Error](context.Cause(w.ctx)); ok && err != nil && err != io.EOF {
		err = known
	}
	return n, err
}

// receive reads a response into the cache.
func (b *Server) receive(ctx context.Context, it *item, f *flight, resp *http.Response, want hash) (err error) {
	most := min(it.max(), b.o.Size)
	if resp.ContentLength > most {
		return engi.Errorf(engi.Conflict, "%s has %d bytes, more than %d", it.key, resp.ContentLength, most)
	}
	file, err := b.cache.temp()
	if err != nil {
		return err
	}
	kept := false
	defer func() {
		file.Close()
		if !kept {
			os.Remove(file.Name())
		}
	}()
	f.mu.Lock()
	f.file, f.size = file, resp.ContentLength
	f.mu.Unlock()
	own := sha256.New()
	sums := io.Writer(own)
	theirs := want.new()
	if theirs != nil {
		sums = io.MultiWriter(own, theirs)
	}
	room := &reservation{cache: b.cache}
	defer room.release()
	n, err := io.Copy(io.MultiWriter(room, file, sums, (*growing)(f)), io.LimitReader(resp.Body, most+1))
	switch known, ok := errors.AsType[*engi.Error](err); {
	case ok:
		return engi.Errorf(known.Kind, "%s: %s", it.key, known.Text)
	case err != nil:
		return engi.Errorf(engi.Unavailable, "%s: the registry broke off", it.key).WithRemedy("try again")
	case n > most:
		return engi.Errorf(engi.Conflict, "%s has more than %d bytes", it.key, most)
	}
	b.count(it.of, func(c *Counts) { c.Fetched++; c.Bytes += n })
	if theirs != nil && !bytes.Equal(theirs.Sum(nil), want.sum) {
		b.log.Warn("a package was changed", "key", it.key, "want", want.String(), "got", hex.EncodeToString(theirs.Sum(nil)))
		return changed(it.key, want.String(), hex.EncodeToString(theirs.Sum(nil)))
	}
	body := io.NewSectionReader(file, headSize, n)
	if it.check != nil {
		if err := it.check(ctx, body); err != nil {
			return err
		}
	}
	h := head{Key: it.key, Status: http.StatusOK, Media: it.media, ETag: short(resp.Header.Get("ETag")), Modified: short(resp.Header.Get("Last-Modified")),
		Fetched: time.Now(), Size: n, SHA256: hex.EncodeToString(own.Sum(nil))}
	room.release()
	if it.rewrite == nil {
		if err := b.cache.put(file, h); err != nil {
			return err
		}
		kept = true
		return nil
	}
	select {
	case b.parsing <- struct{}{}:
		defer func() { <-b.parsing }()
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "%s: other metadata of packages is being downloaded", it.key).WithRemedy("try again")
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return engi.Errorf(engi.Unavailable, "package cache: %v", err)
	}
	raw, err = it.rewrite(raw)
	if err != nil {
		return engi.Errorf(engi.Conflict, "%s: the registry's metadata cannot be used: %v", it.key, err)
	}
	return b.keep(it, h, raw)
}

// keep puts a body in memory into the cache.
func (b *Server) keep(it *item, h head, body []byte) error {
	file, err := b.cache.temp()
	if err != nil {
		return err
	}
	defer file.Close()
	sum := sha256.Sum256(body)
	h.Key, h.Fetched, h.Size, h.SHA256 = it.key, time.Now(), int64(len(body)), hex.EncodeToString(sum[:])
	if _, err = file.Write(body); err != nil {
		err = engi.Errorf(engi.Unavailable, "package cache: %v", err)
	} else {
		err = b.cache.put(file, h)
	}
	if err != nil {
		os.Remove(file.Name())
	}
	return err
}

// changed returns the error for a file whose hash differs from the published one.
func changed(key, want, got string) error {
	return engi.Errorf(engi.Conflict, "%s was changed: it should be %s and is %s", key, want, got).
		WithRemedy("do not install it; ask the operator whether the registry or the mirror was tampered with")
}

// short returns a validator from upstream, or "" if it is too long.
func short(v string) string {
	if len(v) > 256 {
		return ""
	}
	return v
}

// growing counts written bytes and notifies the readers of a flight.
type growing flight

func (g *growing) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.written += int64(len(p))
	close(g.grew)
	g.grew = make(chan struct{})
	return len(p), nil
}

// text returns an item's body, which must have at most most
// bytes. ok is false if the registry has no such item.
func (b *Server) text(ctx context.Context, it *item, most int64) (_ []byte, ok bool, err error) {
	e, err := b.get(ctx, it)
	if err != nil {
		return nil, false, err
	}
	defer e.close()
	if e.Status != http.StatusOK {
		return nil, false, nil
	}
	if e.Size > most {
		return nil, false, engi.Errorf(engi.Conflict, "%s has %d bytes, more than %d", it.key, e.Size, most)
	}
	raw, err := io.ReadAll(e.body())
	if err != nil {
		return nil, false, engi.Errorf(engi.Unavailable, "package cache: %v", err)
	}
	return raw, true, nil
}
