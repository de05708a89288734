package mirror

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
)

// debian serves Debian's archives:
//
//	deb.debian.org/debian/…, deb.debian.org/debian-security/…, security.debian.org/debian-security/…
//
// apt verifies the signature of a suite's Release, which names the hashes of its
// indexes. The indexes name the hashes of packages. The mirror follows the same chain below
// Release, so that it keeps only files that some Release names.
type debian struct {
	b *Server

	mu      sync.Mutex
	suites  map[string][]string        // requested suites, by archive; guarded by mu
	indexes map[string]map[string]hash // hashes of packages, by the index's hash; guarded by mu
}

const (
	maxSuites  = 32
	maxIndexes = 8         // maximum number of indexes in memory
	maxIndex   = 512 << 20 // maximum bytes of one index, decompressed
	maxListed  = 500_000   // maximum number of packages of one index
)

func newDebian(b *Server) *debian {
	return &debian{b: b, suites: map[string][]string{}, indexes: map[string]map[string]hash{}}
}

func (*debian) name() string    { return "debian" }
func (*debian) hosts() []string { return []string{"deb.debian.org", "security.debian.org"} }

var (
	debianPath  = regexp.MustCompile(`^[A-Za-z0-9._+~:/-]{1,512}$`)
	debianSuite = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	byHash      = regexp.MustCompile(`/by-hash/(SHA256|SHA512)/([0-9a-f]+)$`)
	debPool     = regexp.MustCompile(`^pool/(?:updates/)?([a-z-]+)/.*_([a-z0-9-]+)\.deb$`)
)

func (d *debian) item(_, path string) (*item, error) {
	archive, rest, ok := strings.Cut(path[1:], "/")
	if !ok || d.b.up[archive] == nil || archive != "debian" && archive != "debian-security" || !debianPath.MatchString(rest) {
		return nil, notServed("%.100q is in no archive of Debian", path)
	}
	it := &item{of: d, key: archive + "/" + rest, url: d.b.up[archive].String() + "/" + rest, media: "application/octet-stream"}
	if in, ok := strings.CutPrefix(rest, "dists/"); ok {
		suite, file, _ := strings.Cut(in, "/")
		if !debianSuite.MatchString(suite) || file == "" {
			return nil, notServed("%.100q is no index of Debian", path)
		}
		d.note(archive, suite)
		return d.index(it, archive, suite, file)
	}
	m := debPool.FindStringSubmatch(rest)
	if m == nil {
		return nil, notServed("%.100q is no package of Debian", path)
	}
	it.media = "application/vnd.debian.binary-package"
	it.locate = func(ctx context.Context) (string, hash, error) {
		want, err := d.find(ctx, archive, rest, m[1], m[2])
		return it.url, want, err
	}
	return it, nil
}

// note records that a suite was requested.
func (d *debian) note(archive, suite string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if all := d.suites[archive]; !slices.Contains(all, suite) && len(all) < maxSuites {
		d.suites[archive] = append(all, suite)
	}
}

// index completes the item for a file of a suite.
func (d *debian) index(it *item, archive, suite, file string) (*item, error) {
	if file == "InRelease" || file == "Release" || file == "Release.gpg" {
		it.mutable, it.media = true, "text/plain; charset=utf-8"
		return it, nil
	}
	if m := byHash.FindStringSubmatch(it.key); m != nil {
		want, ok := newHash(strings.ToLower(m[1]), m[2])
		if !ok {
			return nil, notServed("%.100q is no hash", m[2])
		}
		it.locate = func(context.Context) (string, hash, error) { return it.url, want, nil }
		return it, nil
	}
	if strings.Contains(file, "by-hash") {
		return nil, notServed("%s: its kind of hash is not strong enough", it.key)
	}
	// An index under its plain name changes with its Release.
	it.mutable = true
	it.locate = func(ctx context.Context) (string, hash, error) {
		want, err := d.released(ctx, archive, suite, file)
		return it.url, want, err
	}
	return it, nil
}

// released returns the hash of an index in a suite's Release.
func (d *debian) released(ctx context.Context, archive, suite, file string) (hash, error) {
	base := archive + "/dists/" + suite + "/InRelease"
	raw, ok, err := d.b.text(ctx, &item{of: d, key: base, url: d.b.up[archive].String() + "/dists/" + suite + "/InRelease", media: "text/plain; charset=utf-8", mutable: true}, maxMetadata)
	if err != nil {
		return hash{}, err
	}
	if want, found := releaseHash(raw, file); ok && found {
		return want, nil
	}
	return hash{}, engi.Errorf(engi.NotFound, "the Release of %s names no %s", suite, file)
}

// releaseHash finds a file in the list of SHA-256 of a Release.
func releaseHash(raw []byte, file string) (hash, bool) {
	in := false
	for line := range bytes.Lines(raw) {
		if len(line) > 0 && line[0] != ' ' {
			in = strings.HasPrefix(string(line), "SHA256:")
			continue
		}
		if f := strings.Fields(string(line)); in && len(f) == 3 && f[2] == file {
			return newHash("sha256", f[0])
		}
	}
	return hash{}, false
}

// find returns the hash of a package in the indexes of an archive.
func (d *debian) find(ctx context.Context, archive, path, component, arch string) (hash, error) {
	d.mu.Lock()
	suites := slices.Clone(d.suites[archive])
	d.mu.Unlock()
	slices.Reverse(suites) // the suite requested last is the most likely one
	for _, usual := range []string{"stable", "oldstable", "testing", "stable-updates", "oldstable-updates"} {
		if archive == "debian-security" {
			usual = strings.TrimSuffix(usual, "-updates") + "-security"
		}
		if !slices.Contains(suites, usual) {
			suites = append(suites, usual)
		}
	}
	arches := []string{arch}
	if arch == "all" {
		arches = []string{"amd64", "arm64", "all"}
	}
	var last error
	for _, suite := range suites {
		for _, arch := range arches {
			index, err := d.packages(ctx, archive, suite, component+"/binary-"+arch+"/Packages.gz")
			if err != nil {
				if !engi.Is(err, engi.NotFound) {
					last = err
				}
				continue
			}
			if want, ok := index[path]; ok {
				return want, nil
			}
		}
	}
	if last != nil {
		return hash{}, last
	}
	return hash{}, engi.Errorf(engi.NotFound, "no index of Debian names %s", path).WithRemedy("run apt-get update: the package may have been replaced")
}

// packages returns the hashes of the packages in an index, by path.
func (d *debian) packages(ctx context.Context, archive, suite, file string) (map[string]hash, error) {
	want, err := d.released(ctx, archive, suite, file)
	if err != nil {
		return nil, err
	}
	sum := hex.EncodeToString(want.sum)
	d.mu.Lock()
	known := d.indexes[sum]
	d.mu.Unlock()
	if known != nil {
		return known, nil
	}
	dir := archive + "/dists/" + suite + "/" + file[:strings.LastIndexByte(file, '/')]
	address := d.b.up[archive].String() + "/dists/" + suite + "/" + file
	it := &item{of: d, key: dir + "/by-hash/SHA256/" + sum, media: "application/octet-stream",
		locate: func(context.Context) (string, hash, error) { return address, want, nil }}
	e, err := d.b.get(ctx, it)
	if err != nil {
		return nil, err
	}
	defer e.close()
	if e.Status != 200 {
		return nil, engi.Errorf(engi.NotFound, "%s is gone", it.key)
	}
	index, err := readPackages(e.body())
	if err != nil {
		return nil, engi.Errorf(engi.Conflict, "%s: %v", it.key, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.indexes) >= maxIndexes {
		clear(d.indexes)
	}
	d.indexes[sum] = index
	return index, nil
}

// readPackages reads a compressed index of packages.
func readPackages(in io.Reader) (map[string]hash, error) {
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, engi.Errorf(engi.Conflict, "it is not compressed with gzip")
	}
	all := map[string]hash{}
	limited := &io.LimitedReader{R: z, N: maxIndex + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	path, sum := "", ""
	add := func() {
		if want, ok := newHash("sha256", sum); ok && path != "" {
			all[path] = want
		}
		path, sum = "", ""
	}
	for len(all) <= maxListed && lines.Scan() {
		switch line := lines.Text(); {
		case line == "":
			add()
		case strings.HasPrefix(line, "Filename: "):
			path = strings.Clone(line[len("Filename: "):])
		case strings.HasPrefix(line, "SHA256: "):
			sum = line[len("SHA256: "):]
		}
	}
	add()
	if err := lines.Err(); err != nil || limited.N == 0 || len(all) > maxListed {
		return nil, engi.Errorf(engi.Conflict, "it is too long or broken: %v", err)
	}
	return all, nil
}
