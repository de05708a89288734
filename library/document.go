package library

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
)

const (
	fetchTimeout = 30 * time.Second
	maxRedirects = 5
	concurrency  = 2                // documents that are read at the same time in the background
	retryFailed  = 10 * time.Minute // what could not be read is tried again
	embedBatch   = 64
	maxURL       = 2000
	filePrefix   = "file:" // before the path of a document that is a file of the node
)

// Add implements [engi.Library].
func (l *Library) Add(ctx context.Context, spec engi.DocumentSpec) (_ engi.Document, err error) {
	defer engi.Annotate(&err, "add document")
	r, err := l.add(ctx, spec, false)
	return r.Document, err
}

// add takes in a document that a caller or the configuration has named.
func (l *Library) add(ctx context.Context, spec engi.DocumentSpec, configured bool) (Record, error) {
	if err := checkSpec(spec); err != nil {
		return Record{}, err
	}
	r := Record{
		Document: engi.Document{
			ID: engi.NewDocumentID(), Owner: spec.Owner, Package: spec.Package, Title: spec.Title, URL: spec.URL, Fetched: spec.Text == "",
		},
		Collection: documentCollection(spec.Owner), Key: spec.URL, Configured: configured,
	}
	text := spec.Text
	if r.Fetched {
		a, err := l.fetch(ctx, r)
		if err != nil {
			return r, err
		}
		text, r.ETag, r.Modified = a.text, a.etag, a.modified
	}
	return l.ingest(ctx, r, text)
}

func checkSpec(spec engi.DocumentSpec) error {
	switch {
	case spec.URL == "" && spec.Text == "":
		return engi.Errorf(engi.Invalid, "it has neither a URL nor text").WithRemedy("give one of them")
	case len(spec.Package) > maxName || len(spec.Title) > maxHeading || !utf8.ValidString(spec.Package+spec.Title) ||
		strings.ContainsFunc(spec.Package+spec.Title, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return engi.Errorf(engi.Invalid, "its package or title is no text of %d bytes at most in one line", maxName)
	}
	if spec.URL == "" {
		return nil
	}
	u, err := url.Parse(spec.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || len(spec.URL) > maxURL {
		return engi.Errorf(engi.Invalid, "%.200q is no address of a document", spec.URL).WithRemedy("use http or https, without a user")
	}
	return nil
}

// take cuts a text, gives its pieces vectors and keeps it. Where the text is
// the one that is kept already only the record changes.
func (l *Library) ingest(ctx context.Context, r Record, text string) (Record, error) {
	switch {
	case len(text) > maxText:
		return r, engi.Errorf(engi.Invalid, "it has more than %d bytes", maxText).WithRemedy("cut it into several documents")
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return r, engi.Errorf(engi.Invalid, "it is no text in UTF-8").WithRemedy("give Markdown or plain text")
	case strings.TrimSpace(text) == "":
		return r, engi.Errorf(engi.Invalid, "it is empty")
	case isHTML(text):
		return r, engi.Errorf(engi.Invalid, "it is HTML").WithRemedy("give the address of its Markdown, which many sites have under the same address with .md")
	}
	sum := sha256.Sum256([]byte(text))
	now := time.Now().UTC()
	r.Digest, r.Bytes, r.State, r.Error, r.Checked, r.Changed = hex.EncodeToString(sum[:]), int64(len(text)), engi.DocumentReady, nil, now, now
	file, isFile := strings.CutPrefix(r.Key, filePrefix)
	var old Record
	var err error
	if r.Key != "" {
		if old, err = l.existing(ctx, r); err != nil {
			return r, err
		}
		if old.Digest == r.Digest && (isFile || old.Title == r.Title) {
			r.Title, r.Chunks, r.Changed = old.Title, old.Chunks, old.Changed
			return l.store(ctx, r, nil)
		}
	}
	first, pieces := split(text)
	if len(pieces) > maxChunks {
		return r, engi.Errorf(engi.Invalid, "it has more than %d sections", maxChunks).WithRemedy("cut it into several documents")
	}
	if r.Title == "" {
		r.Title = first
	}
	if r.Title == "" && r.URL != "" {
		if u, err := url.Parse(r.URL); err == nil {
			if r.Title = path.Base(u.Path); strings.Trim(r.Title, "./") == "" {
				r.Title = u.Host
			}
		}
	}
	if isFile && r.Title == "" {
		r.Title = truncate(strings.ToValidUTF8(filepath.Base(file), ""), maxHeading)
	}
	if r.Title == "" {
		return r, engi.Errorf(engi.Invalid, "it has no title").WithRemedy("give a title, or begin the text with a heading")
	}
	r.Chunks = len(pieces)
	if r.Key == "" {
		r.Key = r.Title
		if old, err = l.existing(ctx, r); err != nil {
			return r, err
		}
	}
	if old.Digest == r.Digest && old.Title == r.Title {
		r.Changed = old.Changed
		return l.store(ctx, r, nil)
	}
	for i := range pieces {
		pieces[i].Identifiers = identifierParts(strings.Join(pieces[i].Headings, " ") + " " + pieces[i].Text)
		pieces[i].Hash = hash(embeddingText(r.Title, pieces[i]))
	}
	if err := l.reuseVectors(ctx, old, pieces); err != nil {
		return r, err
	}
	l.embedMissing(ctx, r.Owner, r.Title, pieces)
	return l.store(ctx, r, pieces)
}

// markup reports whether a text is a page of HTML.
func isHTML(text string) bool {
	head := strings.ToLower(truncate(strings.TrimSpace(strings.TrimPrefix(text, "\ufeff")), 200))
	return strings.HasPrefix(head, "<!doctype html") || strings.HasPrefix(head, "<html")
}

// before is the record in whose place r will be; the zero one if there is none.
func (l *Library) existing(ctx context.Context, r Record) (Record, error) {
	old, err := l.opt.Store.Records(ctx, Filter{Collections: []string{r.Collection}, Key: r.Key, Package: r.Package})
	if err != nil || len(old) == 0 {
		return Record{}, err
	}
	return old[0], nil
}

// reuse gives pieces the vectors that the same pieces had before.
func (l *Library) reuseVectors(ctx context.Context, old Record, pieces []Chunk) error {
	if old.ID == "" {
		return nil
	}
	had, err := l.opt.Store.Vectors(ctx, old.Collection, old.ID)
	if err != nil {
		return err
	}
	vectors := map[string][]float32{}
	for _, p := range had {
		if p.Embedder == l.embedder.Name() {
			vectors[p.Hash] = p.Vector
		}
	}
	for i := range pieces {
		if v := vectors[pieces[i].Hash]; v != nil {
			pieces[i].Vector, pieces[i].Embedder = v, l.embedder.Name()
		}
	}
	return nil
}

// embed gives pieces the vectors they lack. An embedder that does not answer
// is no reason to refuse a document: it is found by words, and asked again.
func (l *Library) embedMissing(ctx context.Context, owner engi.Owner, title string, pieces []Chunk) {
	var rest []int
	for i := range pieces {
		if pieces[i].Vector == nil {
			rest = append(rest, i)
		}
	}
	for some := range slices.Chunk(rest, embedBatch) {
		texts := make([]string, len(some))
		for i, at := range some {
			texts[i] = embeddingText(title, pieces[at])
		}
		vs, err := l.embedder.Embed(ctx, owner, texts)
		if err != nil || len(vs) != len(texts) {
			l.log.Warn("embed", "embedder", l.embedder.Name(), "err", err)
			return
		}
		for i, at := range some {
			pieces[at].Vector, pieces[at].Embedder = vs[i], l.embedder.Name()
		}
	}
}

// embedRest gives vectors to pieces that have none of the embedder: because it
// is another one now, or did not answer before.
func (l *Library) embedPending(ctx context.Context) {
	l.wakeEmbedder()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		l.mu.Lock()
		shelves := make(map[string]engi.Owner, len(l.collections))
		for s, o := range l.collections {
			shelves[s] = o
		}
		l.mu.Unlock()
		for shelf, owner := range shelves {
			if err := l.embedCollection(ctx, shelf, owner); err != nil && ctx.Err() == nil {
				l.log.Warn("embed what has no vectors", "embedder", l.embedder.Name(), "err", err)
				break // it is asked again with the next tick
			}
		}
	}
}

func (l *Library) embedCollection(ctx context.Context, shelf string, owner engi.Owner) error {
	have, err := l.opt.Store.Vectors(ctx, shelf, "")
	if err != nil {
		return err
	}
	var ids []int64
	for _, p := range have {
		if p.Embedder != l.embedder.Name() {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	records, err := l.opt.Store.Records(ctx, Filter{Collections: []string{shelf}})
	if err != nil {
		return err
	}
	titles := map[engi.DocumentID]string{}
	for _, r := range records {
		if r.Module == nil {
			titles[r.ID] = r.Title
		}
	}
	for some := range slices.Chunk(ids, embedBatch) {
		pieces, err := l.opt.Store.Chunks(ctx, some)
		if err != nil || len(pieces) == 0 {
			return err
		}
		texts := make([]string, len(pieces))
		for i, p := range pieces {
			texts[i] = embeddingText(titles[p.Document], p)
		}
		vs, err := l.embedder.Embed(ctx, owner, texts)
		if err != nil {
			return err
		}
		if len(vs) != len(texts) {
			return engi.Errorf(engi.Unavailable, "%d vectors for %d texts", len(vs), len(texts))
		}
		vectors := map[int64][]float32{}
		for i, p := range pieces {
			vectors[p.ID] = vs[i]
		}
		if err := l.setVectors(ctx, shelf, vectors); err != nil {
			return err
		}
	}
	return nil
}

func (l *Library) setVectors(ctx context.Context, shelf string, vectors map[int64][]float32) error {
	l.dataMu.Lock()
	defer l.dataMu.Unlock()
	if err := l.opt.Store.SetVectors(ctx, l.embedder.Name(), vectors); err != nil {
		return err
	}
	l.index.remove(shelf, nil)
	return nil
}

// An answer is what was fetched.
type fetched struct {
	text, etag, modified string
	same                 bool // as before; text is empty
}

// fetch reads the document of a record from its URL. It is told that it has
// not changed if r says what it was.
func (l *Library) fetch(ctx context.Context, r Record) (fetched, error) {
	transport := l.opt.NodeTransport
	if r.Owner != "" {
		if l.opt.OwnerTransport == nil {
			return fetched{}, engi.Errorf(engi.Unsupported, "this node fetches no documents").WithRemedy("give the text of the document")
		}
		transport = l.opt.OwnerTransport(r.Owner)
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return fetched{}, engi.Errorf(engi.Invalid, "%.200q is no address of a document", r.URL)
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	client := &http.Client{Transport: transport, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return engi.Errorf(engi.Invalid, "more than %d redirections", maxRedirects)
		}
		return nil
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fetched{}, engi.Errorf(engi.Invalid, "%.200q is no address of a document", r.URL)
	}
	req.Header.Set("User-Agent", "engi")
	req.Header.Set("Accept", "text/markdown, text/plain;q=0.9, */*;q=0.1")
	if r.ETag != "" {
		req.Header.Set("If-None-Match", r.ETag)
	}
	if r.Modified != "" {
		req.Header.Set("If-Modified-Since", r.Modified)
	}
	resp, err := client.Do(req)
	if err != nil {
		if ours, ok := errors.AsType[*engi.Error](err); ok {
			return fetched{}, engi.Errorf(ours.Kind, "fetch %s: %s", u.Host, ours.Text).WithRemedy("%s", engi.RemedyOf(ours))
		}
		return fetched{}, engi.Errorf(engi.Unavailable, "fetch %s: it does not answer: %v", u.Host, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified && r.Digest != "" {
		return fetched{same: true}, nil
	}
	if err := statusError(u.Host, resp.StatusCode); err != nil {
		return fetched{}, err
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxText+1))
	if err != nil {
		return fetched{}, engi.Errorf(engi.Unavailable, "fetch %s: its answer breaks off: %v", u.Host, err)
	}
	if kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); strings.EqualFold(strings.TrimSpace(kind), "text/html") {
		return fetched{}, engi.Errorf(engi.Invalid, "%s answers with HTML", u.Host).
			WithRemedy("give the address of its Markdown, which many sites have under the same address with .md")
	}
	return fetched{string(bytes.TrimPrefix(raw, []byte("\ufeff"))), truncate(resp.Header.Get("ETag"), maxURL), truncate(resp.Header.Get("Last-Modified"), maxURL), false}, nil
}

func statusError(host string, code int) error {
	switch {
	case code == http.StatusOK:
		return nil
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return engi.Errorf(engi.Denied, "%s answers %d", host, code).WithRemedy("choose a document that everybody may read, or give its text")
	case code == http.StatusTooManyRequests || code >= 500:
		return engi.Errorf(engi.Unavailable, "%s answers %d", host, code)
	}
	return engi.Errorf(engi.Invalid, "%s answers %d", host, code).WithRemedy("check the address of the document")
}

// Refresh implements [engi.Library].
func (l *Library) Refresh(ctx context.Context, owner engi.Owner, id engi.DocumentID) (_ []engi.Document, err error) {
	defer engi.Annotate(&err, "refresh documents")
	var records []Record
	if id != "" {
		r, err := l.editable(ctx, owner, id)
		if err != nil {
			return nil, err
		}
		records = []Record{r}
	} else {
		if owner == "" {
			l.syncConfigured(ctx)
		}
		if records, err = l.opt.Store.Records(ctx, Filter{Collections: []string{documentCollection(owner)}, Documents: true}); err != nil {
			return nil, err
		}
	}
	list := make([]engi.Document, len(records))
	l.forEach(ctx, len(records), func(i int) { list[i] = l.refresh(ctx, records[i]).Document })
	if ctx.Err() != nil {
		return nil, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
	return list, nil
}

// each calls f for 0 to n, a few at a time.
func (l *Library) forEach(ctx context.Context, n int, f func(int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, concurrency)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}

// refresh looks whether a document has changed. What goes wrong is in the
// record; the text that was read before stays.
func (l *Library) refresh(ctx context.Context, r Record) Record {
	if !r.Fetched {
		return r
	}
	a, err := l.fetch(ctx, r)
	switch {
	case err != nil:
		return l.recordFailure(ctx, r, err)
	case a.same:
		r.State, r.Error, r.Checked = engi.DocumentReady, nil, time.Now().UTC()
		now, err := l.store(ctx, r, nil)
		if err != nil {
			return l.recordFailure(ctx, r, err)
		}
		return now
	}
	fresh := r
	fresh.ETag, fresh.Modified = a.etag, a.modified
	fresh, err = l.ingest(ctx, fresh, a.text)
	if err != nil {
		return l.recordFailure(ctx, r, err)
	}
	return fresh
}

// failed records why a document could not be read.
func (l *Library) recordFailure(ctx context.Context, r Record, why error) Record {
	if ctx.Err() != nil {
		return r
	}
	l.log.Warn("read a document", "url", r.URL, "err", why)
	r.State, r.Checked = engi.DocumentFailed, time.Now().UTC()
	r.Error = engi.Errorf(engi.KindOf(why), "%s", why).WithRemedy("%s", engi.RemedyOf(why))
	if r.Title == "" {
		r.Title = r.URL
	}
	kept, err := l.store(ctx, r, nil)
	if err != nil {
		l.log.Warn("record a document", "url", r.URL, "err", err)
		return r
	}
	return kept
}

// refreshOld reads again what was not looked at for long, or failed.
func (l *Library) refreshStale(ctx context.Context) {
	records, err := l.opt.Store.Records(ctx, Filter{Documents: true})
	if err != nil {
		l.log.Warn("refresh documents", "err", err)
		return
	}
	now := time.Now()
	records = slices.DeleteFunc(records, func(r Record) bool {
		age := now.Sub(r.Checked)
		return !r.Fetched || age < l.opt.MaxAge && (r.State != engi.DocumentFailed || age < retryFailed)
	})
	l.forEach(ctx, len(records), func(i int) { l.refresh(ctx, records[i]) })
}

// reconcile takes in what the configuration names and is not there yet, reads
// its files again, and forgets what it names no more.
func (l *Library) syncConfigured(ctx context.Context) {
	records, err := l.opt.Store.Records(ctx, Filter{Collections: []string{documentCollection("")}, Documents: true})
	if err != nil {
		l.log.Warn("read the node's documents", "err", err)
		return
	}
	type key struct{ pkg, place string }
	have := map[key]Record{}
	for _, r := range records {
		have[key{r.Package, r.Key}] = r
	}
	wanted := map[key]bool{}
	var fetch []Record
	for _, spec := range l.opt.Sources {
		spec.Owner = ""
		place := spec.URL
		if place == "" {
			place = spec.Title
		}
		k := key{spec.Package, place}
		if wanted[k] {
			continue
		}
		wanted[k] = true
		if spec.Text != "" {
			if r, err := l.add(ctx, spec, true); err != nil {
				l.log.Warn("read a document of the configuration", "title", spec.Title, "err", err)
			} else {
				wanted[key{r.Package, r.Key}] = true
			}
			continue
		}
		if r, ok := have[k]; ok && r.Configured {
			continue
		}
		r := have[k]
		if r.ID == "" {
			r = Record{Document: engi.Document{ID: engi.NewDocumentID(), Package: spec.Package, Title: spec.Title, URL: spec.URL, State: engi.DocumentReading}, Collection: documentCollection(""), Key: spec.URL}
		}
		r.Fetched, r.Configured = true, true
		if err := checkSpec(spec); err != nil {
			l.recordFailure(ctx, r, err)
			continue
		}
		if r, err = l.store(ctx, r, nil); err != nil {
			l.log.Warn("record a document", "url", r.URL, "err", err)
			continue
		}
		fetch = append(fetch, r)
	}
	l.forEach(ctx, len(fetch), func(i int) { l.refresh(ctx, fetch[i]) })
	complete := l.readFiles(ctx, func(r Record) { wanted[key{r.Package, r.Key}] = true })
	if ctx.Err() != nil || !complete {
		return
	}
	var gone []engi.DocumentID
	for k, r := range have {
		if r.Configured && !wanted[k] {
			gone = append(gone, r.ID)
		}
	}
	if len(gone) > 0 {
		if err := l.remove(ctx, documentCollection(""), gone); err != nil {
			l.log.Warn("forget documents that the configuration names no more", "err", err)
		}
	}
}

const maxFiles = 5000 // of one entry

// readFiles takes in files of the configuration, and reports false if it
// cannot say which there are.
func (l *Library) readFiles(ctx context.Context, wanted func(Record)) bool {
	complete := true
	for _, f := range l.opt.Files {
		paths, err := f.list()
		if err != nil {
			l.log.Warn("read documents of the configuration", "path", f.Path, "err", err)
			complete = false
		}
		for _, p := range paths {
			if ctx.Err() != nil {
				return false
			}
			r := Record{
				Document:   engi.Document{ID: engi.NewDocumentID(), Package: f.Package},
				Collection: documentCollection(""), Key: filePrefix + p, Configured: true,
			}
			wanted(r)
			raw, err := readFile(p)
			if err == nil {
				_, err = l.ingest(ctx, r, string(raw))
			}
			if err != nil && ctx.Err() == nil {
				l.log.Warn("read a document of the configuration", "path", p, "err", err)
			}
		}
	}
	return complete
}

func readFile(p string) ([]byte, error) {
	f, err := os.Open(p)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	return raw, nil
}

// list returns the files that f names, as absolute paths in order.
func (f File) list() ([]string, error) {
	matches, err := filepath.Glob(f.Path)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "%.200q is no pattern", f.Path)
	}
	if len(matches) == 0 {
		return nil, engi.Errorf(engi.NotFound, "there is no such file")
	}
	var list []string
	for _, m := range matches {
		if m, err = filepath.Abs(m); err != nil {
			return list, engi.Errorf(engi.Internal, "%v", err)
		}
		err := filepath.WalkDir(m, func(p string, d fs.DirEntry, err error) error {
			switch ext := strings.ToLower(filepath.Ext(p)); {
			case err != nil:
				return err
			case d.IsDir() && p != m && strings.HasPrefix(d.Name(), "."):
				return fs.SkipDir
			case d.IsDir(), p != m && ext != ".md" && ext != ".markdown" && ext != ".txt":
				return nil
			}
			if len(list) == maxFiles {
				return fs.SkipAll
			}
			list = append(list, p)
			return nil
		})
		if err != nil {
			return list, engi.Errorf(engi.Unavailable, "%v", err)
		}
	}
	return list, nil
}
