// Package library keeps documentation and what models say about code they
// keep, in pieces, and finds the pieces that answer a question: by words, by
// likeness of embeddings, or by both. [Library] serves [engi.Library].
//
// It is not for what agents are told about it (agent/tool) nor for files of
// sessions, of which it knows descriptions only. How pieces are kept is its
// store's affair.
package library

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// Options configure a Library.
type Options struct {
	Store    Store
	Embedder Embedder // nil means the built-in one, which compares words and parts of words
	Reranker Reranker // nil means none

	// Sources are the node's own documents. Those that earlier configurations
	// had and this one has not are forgotten.
	Sources []engi.DocumentSpec
	Files   []File // more of them, of the local file system

	// Fetch returns what documents of owners are fetched through; nil means
	// that owners give the text.
	OwnerTransport func(owner engi.Owner) http.RoundTripper
	NodeTransport  http.RoundTripper // for the node's own; nil means a plain one

	Sessions Sessions      // nil means that there are no modules
	Quota    Quota         // of each owner
	MaxAge   time.Duration // how old fetched documents get; 0 means 24 h
	Log      *slog.Logger  // nil means none
}

// A File names documents of the node on the local file system.
type File struct {
	Package string
	Path    string // of a file, a directory (its .md and .txt files, those below it included), or a pattern
}

// A Quota bounds what one owner's documents may take. The node has none.
type Quota struct {
	Documents int   // 0 means 1000
	Bytes     int64 // of text; 0 means 64 MiB
}

// Sessions is what the library asks of sessions: whether a volume is alive,
// and whether the files that modules name are there.
type Sessions interface {
	Get(ctx context.Context, owner engi.Owner, idOrName string) (engi.Session, error)
	Enter(ctx context.Context, owner engi.Owner, idOrName string) (engi.Guest, func(), error)
}

// An Embedder turns texts into vectors. It is safe for concurrent use.
type Embedder interface {
	// Name tells vectors apart: those of different names are not compared.
	Name() string
	// Embed returns one vector of length 1 per text, all of one dimension.
	Embed(ctx context.Context, owner engi.Owner, texts []string) ([][]float32, error)
}

// A Reranker says how well texts answer a question. It is safe for concurrent
// use.
type Reranker interface {
	Name() string
	// Rerank returns one number per text; more is better.
	Rerank(ctx context.Context, owner engi.Owner, query string, texts []string) ([]float64, error)
}

// A Library finds documentation and modules. It is safe for concurrent use.
type Library struct {
	opt      Options
	embedder Embedder
	log      *slog.Logger
	index    *index

	// swap is held for writing while pieces change in the store and in the
	// index, and for reading while somebody searches: a search sees a
	// document as it was or as it is.
	dataMu sync.RWMutex

	mu          sync.Mutex
	collections map[string]engi.Owner // every shelf that was ever written, and who pays for its vectors

	wake chan struct{} // there are pieces without a vector
}

var _ engi.Library = (*Library)(nil)

// Open returns a library of what its store has. Documents of the options are
// taken in by Run.
func Open(ctx context.Context, opt Options) (*Library, error) {
	opt.Quota.Documents = cmp.Or(opt.Quota.Documents, 1000)
	opt.Quota.Bytes = cmp.Or(opt.Quota.Bytes, 64<<20)
	opt.MaxAge = cmp.Or(opt.MaxAge, 24*time.Hour)
	if opt.NodeTransport == nil {
		opt.NodeTransport = http.DefaultTransport
	}
	l := &Library{opt: opt, embedder: opt.Embedder, log: opt.Log, collections: map[string]engi.Owner{}, wake: make(chan struct{}, 1)}
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

// put writes a record and its pieces where searches find them.
func (l *Library) store(ctx context.Context, r Record, pieces []Chunk) (Record, error) {
	quota := l.opt.Quota
	switch {
	case r.Module != nil:
		quota = Quota{Documents: maxModules, Bytes: maxModules * maxSource}
	case r.Owner == "":
		quota = Quota{}
	}
	l.dataMu.Lock()
	defer l.dataMu.Unlock()
	r, err := l.opt.Store.Put(ctx, r, pieces, quota)
	if err != nil {
		return r, err
	}
	l.mu.Lock()
	l.collections[r.Collection] = r.Owner
	l.mu.Unlock()
	if pieces != nil {
		l.index.put(r, pieces)
		for _, p := range pieces {
			if p.Embedder != l.embedder.Name() {
				l.wakeEmbedder()
				break
			}
		}
	}
	return r, nil
}

// drop removes records and their pieces.
func (l *Library) remove(ctx context.Context, shelf string, ids []engi.DocumentID) error {
	l.dataMu.Lock()
	defer l.dataMu.Unlock()
	if err := l.opt.Store.Remove(ctx, shelf, ids); err != nil {
		return err
	}
	l.index.remove(shelf, ids)
	return nil
}

func (l *Library) wakeEmbedder() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Documents implements [engi.Library].
func (l *Library) Documents(ctx context.Context, owner engi.Owner) ([]engi.Document, error) {
	records, err := l.documents(ctx, owner)
	if err != nil {
		return nil, err
	}
	list := make([]engi.Document, len(records))
	for i, r := range records {
		list[i] = r.Document
	}
	return list, nil
}

// documents returns what owner sees, by package and title.
func (l *Library) documents(ctx context.Context, owner engi.Owner) ([]Record, error) {
	f := Filter{Documents: true}
	if owner != "" {
		f.Collections = []string{documentCollection(owner), documentCollection("")}
	}
	return l.opt.Store.Records(ctx, f)
}

// Packages implements [engi.Library].
func (l *Library) Packages(ctx context.Context, owner engi.Owner) ([]engi.DocumentPackage, error) {
	records, err := l.documents(ctx, owner)
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

// Remove implements [engi.Library].
func (l *Library) Remove(ctx context.Context, owner engi.Owner, id engi.DocumentID) (err error) {
	defer engi.Annotate(&err, "remove document %s", id)
	r, err := l.editable(ctx, owner, id)
	if err != nil {
		return err
	}
	return l.remove(ctx, r.Collection, []engi.DocumentID{r.ID})
}

// own returns a document that owner may change: its own, and everybody's for
// the empty owner.
func (l *Library) editable(ctx context.Context, owner engi.Owner, id engi.DocumentID) (Record, error) {
	f := Filter{IDs: []engi.DocumentID{id}, Documents: true}
	if owner != "" {
		f.Collections = []string{documentCollection(owner), documentCollection("")}
	}
	found, err := l.opt.Store.Records(ctx, f)
	switch {
	case err != nil:
		return Record{}, err
	case len(found) == 0:
		return Record{}, engi.Errorf(engi.NotFound, "there is no such document").WithRemedy("'engi docs list' shows yours")
	case owner != "" && found[0].Owner == "":
		return Record{}, engi.Errorf(engi.Denied, "it is the node's").WithRemedy("ask who runs the node; documents of your own you can change")
	}
	return found[0], nil
}

// Run takes in the node's documents, reads again what may have changed, gives
// pieces their vectors and forgets modules of volumes that are gone, until ctx
// ends. It is ready at once.
func (l *Library) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { l.embedPending(ctx) })
	ready()
	l.syncConfigured(ctx)
	tick := time.NewTicker(min(l.opt.MaxAge, retryFailed))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			l.syncConfigured(ctx)
			l.refreshStale(ctx)
			l.sweepSessions(ctx)
			l.wakeEmbedder()
		}
	}
}
