// Package docs stores documentation and descriptions of code modules in chunks
// and searches them by words, by similarity of embeddings, or both. [Index]
// implements [engi.Docs].
//
// It does not offer the search to agents (internal/agent/tool), and does not store
// the source files of modules, which stay in sessions.
package docs

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// Options configures an Index.
type Options struct {
	Store    Store
	Embedder Embedder // nil means BuiltIn
	Reranker Reranker // nil means none

	// Sources are the node's own documents. Documents of earlier
	// configurations that are no longer listed are removed.
	Sources []engi.DocumentSpec
	Files   []File // further documents of the node, in the local file system

	// OwnerTransport returns the transport for fetching an owner's documents; nil
	// means that owners must provide the text.
	OwnerTransport func(owner engi.Owner) http.RoundTripper
	NodeTransport  http.RoundTripper // transport for fetching the node's documents; nil means http.DefaultTransport

	Sessions Sessions      // nil means that there are no sessions, and therefore no modules
	Quota    Quota         // quota of each owner
	MaxAge   time.Duration // time after which a fetched document is fetched again; 0 means 24 h
	Log      *slog.Logger  // nil discards
}

// A File selects documents of the node in the local file system.
type File struct {
	Package string
	Path    string // path of a file, a directory (its .md and .txt files, at any depth), or a pattern
}

// A Quota limits the documents of one owner. The node's documents have no limit.
type Quota struct {
	Documents int   // maximum number of documents; 0 means 1000
	Bytes     int64 // maximum bytes of text; 0 means 64 MiB
}

// Sessions is the part of [engi.Sessions] that the docs use: to determine
// whether a session still has its volume, and to read files of modules.
type Sessions interface {
	Get(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Session, error)
	Enter(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Guest, func(), error)
}

// An Embedder converts texts to vectors. It is safe for concurrent use.
type Embedder interface {
	// Name identifies the vectors: vectors with different names are not compared.
	Name() string
	// Embed returns one vector of length 1 per text, all with the same dimension.
	Embed(ctx context.Context, owner engi.Owner, texts []string) ([][]float32, error)
}

// A Reranker scores how well texts answer a question. It is safe for concurrent
// use.
type Reranker interface {
	Name() string
	// Rerank returns one score per text; higher is better.
	Rerank(ctx context.Context, owner engi.Owner, query string, texts []string) ([]float64, error)
}

// An Index stores and searches documentation and modules. It is safe for
// concurrent use.
type Index struct {
	opt      Options
	embedder Embedder
	log      *slog.Logger
	index    *index

	// dataMu is write-locked while chunks change in the store and the index, and
	// read-locked by searches: a search sees a document before or after a
	// change, not in between. It is locked before mu.
	dataMu sync.RWMutex

	mu          sync.Mutex
	collections map[string]engi.Owner // all collections, and the owners who pay for their vectors

	wake      chan struct{} // receives a value when there may be chunks without a vector
	announced chan announcement
}

var _ engi.Docs = (*Index)(nil)

// Open returns an index of the content of its store. Run adds the documents of the
// options.
func Open(ctx context.Context, opt Options) (*Index, error) {
	opt.Quota.Documents = cmp.Or(opt.Quota.Documents, 1000)
	opt.Quota.Bytes = cmp.Or(opt.Quota.Bytes, 64<<20)
	opt.MaxAge = cmp.Or(opt.MaxAge, 24*time.Hour)
	if opt.NodeTransport == nil {
		opt.NodeTransport = http.DefaultTransport
	}
	l := &Index{opt: opt, embedder: opt.Embedder, log: opt.Log, collections: map[string]engi.Owner{}, wake: make(chan struct{}, 1), announced: make(chan announcement, maxAnnounced)}
	if l.embedder == nil {
		l.embedder = BuiltIn()
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	l.index = newIndex(opt.Store, l.embedder.Name())
	records, err := opt.Store.Records(ctx, Filter{})
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		l.collections[r.Collection] = r.Owner
	}
	return l, nil
}

// store puts a record and its chunks into the store and the index. Nil chunks
// stay as they are.
func (l *Index) store(ctx context.Context, r Record, chunks []Chunk) (Record, error) {
	quota := l.opt.Quota
	switch {
	case r.Module != nil:
		quota = Quota{Documents: maxModules, Bytes: maxModules * maxSource}
	case r.Owner == "":
		quota = Quota{}
	}
	l.dataMu.Lock()
	defer l.dataMu.Unlock()
	r, err := l.opt.Store.Put(ctx, r, chunks, quota)
	if err != nil {
		return r, err
	}
	l.mu.Lock()
	l.collections[r.Collection] = r.Owner
	l.mu.Unlock()
	if chunks != nil {
		l.index.put(r, chunks)
		for _, p := range chunks {
			if p.Embedder != l.embedder.Name() {
				l.wakeEmbedder()
				break
			}
		}
	}
	return r, nil
}

// remove removes records and their chunks; the whole collection if ids is nil.
func (l *Index) remove(ctx context.Context, collection string, ids []engi.DocumentID) error {
	l.dataMu.Lock()
	defer l.dataMu.Unlock()
	if err := l.opt.Store.Remove(ctx, collection, ids); err != nil {
		return err
	}
	l.index.remove(collection, ids)
	return nil
}

func (l *Index) wakeEmbedder() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Documents implements [engi.Docs].
func (l *Index) Documents(ctx context.Context, viewer engi.Viewer, p engi.Paging, ids ...engi.DocumentID) ([]engi.Document, error) {
	records, err := l.documents(ctx, viewer, p, ids...)
	if err != nil {
		return nil, err
	}
	list := make([]engi.Document, len(records))
	for i, r := range records {
		list[i] = r.Document
	}
	return list, nil
}

// documents returns the documents that viewer sees, with those of the node, or those with the given
// ids, by package and title.
func (l *Index) documents(ctx context.Context, viewer engi.Viewer, p engi.Paging, ids ...engi.DocumentID) ([]Record, error) {
	f := Filter{Documents: true, IDs: ids, Page: p}
	if viewer != engi.Everyone {
		f.Collections = slices.Compact([]string{documentCollection(viewer.Owner()), documentCollection("")})
	}
	return l.opt.Store.Records(ctx, f)
}

// Packages implements [engi.Docs].
func (l *Index) Packages(ctx context.Context, viewer engi.Viewer) ([]engi.DocumentPackage, error) {
	records, err := l.documents(ctx, viewer, engi.Paging{})
	if err != nil {
		return nil, err
	}
	var list []engi.DocumentPackage
	for _, r := range records {
		if r.Package == "" {
			continue
		}
		if n := len(list); n == 0 || list[n-1].Name != r.Package {
			list = append(list, engi.DocumentPackage{Name: r.Package})
		}
		p := &list[len(list)-1]
		p.Documents++
		p.Chunks += r.Chunks
	}
	return list, nil
}

// Remove implements [engi.Docs].
func (l *Index) Remove(ctx context.Context, viewer engi.Viewer, id engi.DocumentID) (err error) {
	defer engi.Annotate(&err, "remove document %s", id)
	r, err := l.editable(ctx, viewer, id)
	if err != nil {
		return err
	}
	return l.remove(ctx, r.Collection, []engi.DocumentID{r.ID})
}

// editable returns a document that viewer may change. An owner may read the documents of the node,
// but not change them.
func (l *Index) editable(ctx context.Context, viewer engi.Viewer, id engi.DocumentID) (Record, error) {
	found, err := l.documents(ctx, viewer, engi.Paging{}, id)
	switch {
	case err != nil:
		return Record{}, err
	case len(found) == 0:
		return Record{}, engi.Errorf(engi.NotFound, "there is no such document").WithRemedy("'engi docs list' shows yours")
	case !viewer.Sees(found[0].Owner):
		return Record{}, engi.Errorf(engi.Denied, "it belongs to the node").WithRemedy("ask the operator of the node; you can change documents of your own")
	}
	return found[0], nil
}

// Run adds the configured documents, refreshes old ones, computes missing
// vectors, saves announced modules and removes modules whose volume is gone,
// until ctx ends. It is ready at once.
func (l *Index) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer (&http.Client{Transport: l.opt.NodeTransport}).CloseIdleConnections()
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { l.embedPending(ctx) })
	wg.Go(func() { l.saveAnnounced(ctx) })
	ready()
	l.syncConfigured(ctx)
	for range clock.Later(ctx, min(l.opt.MaxAge, retryFailed)) {
		l.syncConfigured(ctx)
		l.refreshStale(ctx)
		l.sweepSessions(ctx)
		l.wakeEmbedder()
	}
	return nil
}
