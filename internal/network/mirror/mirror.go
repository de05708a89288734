// Package mirror is the package mirror: it serves the public registries of
// packages to sandboxes, read-only, from a cache on disk that it fills from the
// registries or from mirrors of the operator's choice. Programs speak to the
// registries' own host names (registry.npmjs.org, pypi.org, …) as usual; package egress
// passes their requests to a [Server] instead of the host.
//
// Every file is compared with the hash that its ecosystem publishes for it before
// it is kept: the integrity field of npm's manifests, the hashes of PyPI's indexes,
// Go's checksum database, the cksum of a crate, Debian's Packages below its
// Release, the checksums next to Maven's artifacts. Files never change and are kept
// until the cache is full. Metadata is requested again when it is no longer fresh,
// and served stale when its registry does not answer.
//
// Only the names of packages and files in a request reach a registry: no header,
// query, cookie or body of a sandbox is sent. Upstreams are trusted only for
// content: sizes and times are limited, and redirects lead to public addresses
// only; see package fetch.
//
// It does not serve images and registries that need a login: grant a secret for
// these (package intercept).
package mirror

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
)

// Ecosystems lists the names of all ecosystems.
var Ecosystems = []string{"crates", "debian", "go", "maven", "npm", "pypi"}

// Off, as an upstream, disables an ecosystem.
const Off = "off"

// Options configures a Server. Dir is required; every other field has a useful zero
// value.
type Options struct {
	Dir     string        // directory of the cache; no other process may write it
	Size    int64         // maximum bytes on disk; 0 means 20 GiB
	Fresh   time.Duration // time for which metadata is served without a new request; 0 means 5 minutes
	Offline bool          // ask no registry; serve what is in the cache

	// Upstreams are the URLs of registries by ecosystem, and of Debian's security
	// archive as debian-security. The default of each is the public registry; [Off]
	// disables the ecosystem.
	Upstreams map[string]string
	// Trusted lists further hosts, as HOST:PORT, from which upstreams serve files,
	// and which may have private addresses like upstreams.
	Trusted []string
	Roots   *x509.CertPool // certificate authorities for upstreams; nil means the system's
	SumDB   string         // key of Go's checksum database; empty means the key of sum.golang.org

	Log *slog.Logger // nil discards
}

// Limits of one request. They are variables, so that tests can lower them.
var (
	maxFile     = int64(4 << 30)
	maxMetadata = int64(64 << 20)
	fileTime    = 30 * time.Minute
	metaTime    = 2 * time.Minute
	stallTime   = time.Minute      // maximum time without a byte
	downTime    = 10 * time.Second // time for which an upstream is not asked after it could not be reached
	patience    = 5 * time.Second  // time after which a file is sent while it arrives
)

const (
	perOwner   = 32  // maximum number of concurrent requests of one owner; further ones wait
	perNode    = 256 // maximum number of concurrent requests to upstreams, so that a few owners cannot use all
	maxDown    = 1000
	parsers    = 2 // maximum number of concurrent parsers of metadata, which hold it in memory
	withheld   = 64 << 10
	maxURLPath = 1 << 10
)

// A Server serves packages. It is safe for concurrent use.
type Server struct {
	o        Options
	cache    *cache
	client   *http.Client
	log      *slog.Logger
	up       map[string]*url.URL // upstreams by name, as in Options.Upstreams
	hosts    map[string]ecosystem
	names    map[string][]string              // hosts, by ecosystem
	owners   *engi.KeyedSemaphore[engi.Owner] // limits the requests being served
	fetching chan struct{}
	parsing  chan struct{}
	stop     context.CancelFunc
	ctx      context.Context
	running  sync.WaitGroup

	mu      sync.Mutex
	flights map[string]*flight   // downloads in progress, by key; guarded by mu
	down    map[string]time.Time // end of the time without requests, by upstream host; guarded by mu
	counts  map[string]*Counts   // counts by ecosystem; guarded by mu
}

// Counts holds the counters of an ecosystem since the start.
type Counts struct {
	Requests, Hits, Fetched, Refused int64
	Bytes                            int64 // bytes received from upstream
}

// An ecosystem knows the paths of one kind of registry.
type ecosystem interface {
	name() string
	hosts() []string
	// item returns the item for a path of a host. It returns Denied for
	// paths that are neither a package nor metadata of one.
	item(host, path string) (*item, error)
}

// New opens the cache. The caller must close the Server.
func New(o Options) (*Server, error) {
	o.Size = cmp.Or(o.Size, 20<<30)
	o.Fresh = cmp.Or(o.Fresh, 5*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Server{o: o, log: o.Log, up: map[string]*url.URL{}, hosts: map[string]ecosystem{}, names: map[string][]string{}, flights: map[string]*flight{},
		owners: engi.NewKeyedSemaphore[engi.Owner](perOwner), down: map[string]time.Time{}, counts: map[string]*Counts{},
		fetching: make(chan struct{}, perNode), parsing: make(chan struct{}, parsers)}
	trusted := slices.Clone(o.Trusted)
	for name, usual := range public {
		text := cmp.Or(o.Upstreams[name], usual)
		if text == Off {
			continue
		}
		u, err := CheckURL(text)
		if err != nil {
			return nil, engi.Errorf(engi.Invalid, "upstream of %s: %v", name, err).WithRemedy("write it like %s, or %s", usual, Off)
		}
		b.up[name] = u
		trusted = append(trusted, u.Host, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])))
		if text == usual && name == "pypi" {
			trusted = append(trusted, pypiFiles)
		}
		if text == usual && name == "crates" {
			trusted = append(trusted, crateFiles)
		}
	}
	if b.up["go"] != nil {
		trusted = append(trusted, sumHost)
	}
	for _, e := range []ecosystem{&npm{b}, &pypi{b}, newGolang(b), &crates{b}, newDebian(b), &maven{b}} {
		if b.up[e.name()] == nil {
			continue
		}
		b.counts[e.name()] = &Counts{}
		b.names[e.name()] = e.hosts()
		for _, h := range e.hosts() {
			b.hosts[h] = e
		}
	}
	b.client = fetch.New(fetch.Options{Trusted: trusted, Roots: o.Roots, Timeout: fileTime, MaxBody: maxFile + 1})
	var err error
	if b.cache, err = openCache(o.Dir, o.Size); err != nil {
		return nil, err
	}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b, nil
}

// public maps upstreams to the public registries.
var public = map[string]string{
	"npm": "https://registry.npmjs.org", "pypi": "https://pypi.org/simple", "go": "https://proxy.golang.org", "crates": "https://index.crates.io",
	"debian": "http://deb.debian.org/debian", "debian-security": "http://security.debian.org/debian-security", "maven": "https://repo1.maven.org/maven2",
}

// CheckURL parses the URL of a registry. It returns Invalid for an unusable URL.
func CheckURL(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "":
		return nil, engi.Errorf(engi.Invalid, "%.80q is not the URL of a registry", text).WithRemedy("write it like https://mirror.example.com/path")
	case u.User != nil:
		return nil, engi.Errorf(engi.Invalid, "the URL of a registry has a user or a password").WithRemedy("use a registry that needs no password")
	}
	return u, nil
}

// Close ends all downloads and waits for them.
func (b *Server) Close() {
	b.mu.Lock() // no new download starts
	b.stop()
	b.mu.Unlock()
	b.running.Wait()
	b.client.CloseIdleConnections()
}

// Hosts returns the hosts that the mirror replaces, by ecosystem.
func (b *Server) Hosts() map[string][]string { return maps.Clone(b.names) }

// Status is the state of a Server.
type Status struct {
	Offline     bool
	Files       int
	Bytes, Size int64
	Ecosystems  map[string]Counts
	Upstreams   map[string]string
}

// Status returns the contents of the cache and the counts since the start.
func (b *Server) Status() Status {
	s := Status{Offline: b.o.Offline, Size: b.o.Size, Ecosystems: map[string]Counts{}, Upstreams: map[string]string{}}
	s.Files, s.Bytes = b.cache.usage()
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, c := range b.counts {
		s.Ecosystems[n], s.Upstreams[n] = *c, b.up[n].String()
	}
	return s
}

// Clear removes all entries from the cache.
func (b *Server) Clear() error { return b.cache.clear() }

func (b *Server) count(e ecosystem, f func(*Counts)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b.counts[e.name()])
}

// Serve answers a request of an owner's sandbox to one of the hosts. A refusal has
// its reason in the body and in the header X-Engi-Error.
func (b *Server) Serve(owner engi.Owner, w http.ResponseWriter, r *http.Request) {
	host := strings.ToLower(strings.TrimSuffix(r.Host, "."))
	if name, _, ok := strings.Cut(host, ":"); ok {
		host = name
	}
	e := b.hosts[host]
	if e == nil {
		refuse(w, notServed("%.100q is no registry of this node", host))
		return
	}
	b.count(e, func(c *Counts) { c.Requests++ })
	err := b.serve(owner, e, host, w, r)
	if err != nil {
		b.count(e, func(c *Counts) { c.Refused++ })
		refuse(w, err)
	}
}

func (b *Server) serve(owner engi.Owner, e ecosystem, host string, w http.ResponseWriter, r *http.Request) error {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return engi.Errorf(engi.Denied, "packages are read-only: %.20s is not GET", r.Method).WithRemedy("publish from outside, or name %s in the policy's allow", host)
	case r.URL.RawQuery != "":
		return engi.Errorf(engi.Denied, "a registry is asked without a query").WithRemedy("name %s in the policy's allow to search it", host)
	case len(r.URL.Path) > maxURLPath || !cleanPath(r.URL.Path):
		return notServed("the path is not that of a package")
	}
	release, err := b.owners.Acquire(r.Context(), owner)
	if err != nil {
		return err
	}
	defer release()
	it, err := e.item(host, r.URL.Path)
	if err != nil {
		return err
	}
	it.of = e
	if it.fixed != nil {
		w.Header().Set("Content-Type", it.media)
		w.Header().Set("Content-Length", strconv.Itoa(len(it.fixed)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(it.fixed) // the client may be gone
		}
		return nil
	}
	return b.serveItem(w, r, it)
}

// cleanPath reports whether every server interprets a decoded path literally.
func cleanPath(p string) bool {
	if !strings.HasPrefix(p, "/") {
		return false
	}
	for part := range strings.SplitSeq(p[1:], "/") {
		if part == "." || part == ".." {
			return false
		}
	}
	return !strings.ContainsFunc(p, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune("\\?#%;<>\"{}|^`", c)
	}) && !strings.Contains(p, "//")
}

// notServed returns the error for paths other than the packages and metadata that an installation
// needs.
func notServed(format string, args ...any) error {
	return engi.Errorf(engi.Denied, format, args...).WithRemedy("only packages and their metadata are served, as programs need them to install")
}

// statusOf returns the HTTP status of a refusal. Programs give up at once after 403 and 404
// and may retry after other statuses.
func statusOf(err error) int {
	switch engi.KindOf(err) {
	case engi.Denied, engi.Invalid:
		return http.StatusForbidden
	case engi.NotFound:
		return http.StatusNotFound
	case engi.Expired:
		return http.StatusGatewayTimeout
	default:
		return http.StatusBadGateway
	}
}

func refuse(w http.ResponseWriter, err error) {
	text := line(err.Error())
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Engi-Error", text)
	w.WriteHeader(statusOf(err))
	if remedy := engi.RemedyOf(err); remedy != "" {
		text += "\n" + line(remedy)
	}
	_, _ = io.WriteString(w, "engi: "+text+"\n") // the client may be gone
}

// line converts text to a valid value of a header.
func line(text string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f {
			return '?'
		}
		return c
	}, clip.Text(text, 300))
}

// fetch downloads the item of a registry's URL into the cache, if it is not
// there yet. It returns the size of the item.
func (b *Server) fetch(ctx context.Context, address string) (int64, error) {
	u, err := url.Parse(address)
	if err != nil {
		return 0, engi.Errorf(engi.Invalid, "%.100q is not a URL", address)
	}
	e := b.hosts[u.Host]
	if e == nil || !cleanPath(u.Path) {
		return 0, notServed("%.100q is no registry of this node", u.Host)
	}
	it, err := e.item(u.Host, u.Path)
	if err != nil || it.fixed != nil {
		return 0, err
	}
	it.of = e
	got, err := b.get(ctx, it)
	if err != nil {
		return 0, err
	}
	defer got.close()
	if got.Status != http.StatusOK {
		return 0, engi.Errorf(engi.NotFound, "%s%s: the registry answers %d", u.Host, u.Path, got.Status)
	}
	return got.Size, nil
}

func (h hash) String() string { return fmt.Sprintf("%s %x", h.algorithm, h.sum) }
