package mirror

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/sumdb/note"

	"github.com/engi-dev/engi/internal/engi"
)

// An upstream is a scripted registry.
type upstream struct {
	*httptest.Server
	mu    sync.Mutex
	files map[string][]byte // contents by path; guarded by mu
	asked map[string]int    // guarded by mu
	seen  []*http.Request   // guarded by mu
	serve http.HandlerFunc  // handler of all other paths; guarded by mu
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{files: map[string][]byte{}, asked: map[string]int{}}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.EscapedPath()
		u.mu.Lock()
		u.asked[path]++
		u.seen = append(u.seen, r)
		body, ok := u.files[path]
		serve := u.serve
		u.mu.Unlock()
		switch {
		case ok:
			etag := fmt.Sprintf(`"%x"`, sha256.Sum256(body))
			w.Header().Set("ETag", etag)
			if r.Header.Get("If-None-Match") == etag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			w.Write(body)
		case serve != nil:
			serve(w, r)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) put(path string, body []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.files[path] = body
}

func (u *upstream) count(path string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[path]
}

// options returns options with u as the upstream of all registries.
func (u *upstream) options(t *testing.T) Options {
	return Options{Dir: t.TempDir(), Fresh: time.Hour, Upstreams: map[string]string{
		"npm": u.URL + "/npm", "pypi": u.URL + "/pypi/simple", "go": u.URL + "/go", "crates": u.URL + "/crates", "debian": u.URL + "/debian",
		"debian-security": u.URL + "/debian-security", "maven": u.URL + "/maven"}}
}

func open(t *testing.T, o Options) *Server {
	t.Helper()
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// get requests a URL of a registry from a mirror, as a sandbox does.
func get(b *Server, address string, header ...string) *httptest.ResponseRecorder {
	return send(b, httptest.NewRequest("GET", address, nil), header...)
}

func send(b *Server, r *http.Request, header ...string) *httptest.ResponseRecorder {
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	b.Serve("ann", w, r)
	return w
}

// A stock is a package in a scripted registry.
type stock struct {
	ecosystem string
	archive   string // path of the archive upstream
	body      []byte
	url       string // URL of the archive, for programs
	index     string // URL of metadata, which must be cached for offline use
	tell      string // text that the index must contain
}

func zipped(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for name, text := range files {
		f, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(f, text)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(text string) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	io.WriteString(z, text)
	z.Close()
	return out.Bytes()
}

// fill puts a package of each ecosystem into the upstream.
func fill(t testing.TB, u *upstream, o *Options) []stock {
	t.Helper()
	body := func(text string) []byte { return []byte(strings.Repeat(text, 1000)) }
	var all []stock
	add := func(s stock) {
		u.put(s.archive, s.body)
		all = append(all, s)
	}

	tgz := body("npm")
	sum := sha512.Sum512(tgz)
	manifest := fmt.Sprintf(`{"name":"@a/left","version":"1.0.0","dist":{"integrity":"sha512-%s","tarball":"%s/npm/files/left.tgz"}}`, base64.StdEncoding.EncodeToString(sum[:]), u.URL)
	u.put("/npm/@a/left/1.0.0", []byte(manifest))
	u.put("/npm/@a%2fleft", []byte(`{"name":"@a/left","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":`+manifest+`}}`))
	add(stock{"npm", "/npm/files/left.tgz", tgz, "https://registry.npmjs.org/@a/left/-/left-1.0.0.tgz", "https://registry.npmjs.org/@a%2fleft", `"tarball":"https://registry.npmjs.org/@a/left/-/left-1.0.0.tgz"`})

	wheel := body("pypi")
	u.put("/pypi/simple/some-thing/", fmt.Appendf(nil, `<!DOCTYPE html><html><body><a href="../../files/Some_Thing-1.0-py3-none-any.whl#sha256=%x" data-requires-python="&gt;=3.8">Some_Thing-1.0-py3-none-any.whl</a></body></html>`, sha256.Sum256(wheel)))
	add(stock{"pypi", "/pypi/files/Some_Thing-1.0-py3-none-any.whl", wheel, "https://files.pythonhosted.org/packages/aa/bb/cc/Some_Thing-1.0-py3-none-any.whl",
		"https://pypi.org/simple/some-thing/", `https://files.pythonhosted.org/packages/`})

	mod, modText := zipped(t, map[string]string{"example.com/m@v1.0.0/go.mod": "module example.com/m\n", "example.com/m@v1.0.0/m.go": "package m\n"}), "module example.com/m\n"
	zipSum, err := hashZip(io.NewSectionReader(bytes.NewReader(mod), 0, int64(len(mod))))
	if err != nil {
		t.Fatal(err)
	}
	modSum, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(modText)), nil })
	if err != nil {
		t.Fatal(err)
	}
	signer, key, err := note.GenerateKey(rand.Reader, "sum.golang.org")
	if err != nil {
		t.Fatal(err)
	}
	o.SumDB = key
	database := sumdb.NewServer(sumdb.NewTestServer(signer, func(path, version string) ([]byte, error) {
		if path != "example.com/m" {
			return nil, os.ErrNotExist
		}
		return fmt.Appendf(nil, "%s %s %s\n%s %s/go.mod %s\n", path, version, zipSum, path, version, modSum), nil
	}))
	u.mu.Lock()
	u.serve = func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/go/sumdb/sum.golang.org/") {
			http.StripPrefix("/go/sumdb/sum.golang.org", database).ServeHTTP(w, r)
			return
		}
		http.NotFound(w, r)
	}
	u.mu.Unlock()
	u.put("/go/sumdb/sum.golang.org/supported", nil)
	u.put("/go/example.com/m/@v/list", []byte("v1.0.0\n"))
	add(stock{"go", "/go/example.com/m/@v/v1.0.0.zip", mod, "https://proxy.golang.org/example.com/m/@v/v1.0.0.zip", "https://proxy.golang.org/example.com/m/@v/list", "v1.0.0"})
	add(stock{"go", "/go/example.com/m/@v/v1.0.0.mod", []byte(modText), "https://proxy.golang.org/example.com/m/@v/v1.0.0.mod", "https://sum.golang.org/lookup/example.com/m@v1.0.0", zipSum})

	crate := body("crate")
	u.put("/crates/config.json", []byte(`{"dl":"`+u.URL+`/crates/dl/{crate}/{version}.crate","api":"https://evil.example.com"}`))
	u.put("/crates/so/me/some", fmt.Appendf(nil, `{"name":"some","vers":"1.2.3","deps":[],"cksum":"%x"}`+"\n", sha256.Sum256(crate)))
	add(stock{"crates", "/crates/dl/some/1.2.3.crate", crate, "https://static.crates.io/crates/some/1.2.3/download", "https://index.crates.io/so/me/some", `"vers":"1.2.3"`})

	deb := body("deb")
	index := gzipped(fmt.Sprintf("Package: p\nFilename: pool/main/p/p/p_1_amd64.deb\nSHA256: %x\n\nPackage: q\nFilename: pool/main/q/q.deb\n", sha256.Sum256(deb)))
	u.put("/debian/dists/trixie/main/binary-amd64/Packages.gz", index)
	u.put("/debian/dists/trixie/InRelease", fmt.Appendf(nil, "Suite: stable\nMD5Sum:\n 00 1 main/binary-amd64/Packages.gz\nSHA256:\n %x %d main/binary-amd64/Packages.gz\n", sha256.Sum256(index), len(index)))
	add(stock{"debian", "/debian/pool/main/p/p/p_1_amd64.deb", deb, "http://deb.debian.org/debian/pool/main/p/p/p_1_amd64.deb", "http://deb.debian.org/debian/dists/trixie/InRelease", "Suite: stable"})

	jar := body("jar")
	u.put("/maven/org/x/x/1/x-1.jar.sha1", fmt.Appendf(nil, "%x  x-1.jar\n", sha1.Sum(jar)))
	u.put("/maven/org/x/x/maven-metadata.xml", []byte("<metadata/>"))
	add(stock{"maven", "/maven/org/x/x/1/x-1.jar", jar, "https://repo.maven.apache.org/maven2/org/x/x/1/x-1.jar", "https://repo1.maven.org/maven2/org/x/x/maven-metadata.xml", "<metadata/>"})
	return all
}

// TestServes: each ecosystem's metadata and files are served, with the public
// registry's own URLs, are requested upstream once, and are served without an upstream afterwards.
func TestServes(t *testing.T) {
	u := newUpstream(t)
	o := u.options(t)
	all := fill(t, u, &o)
	b := open(t, o)
	check := func(b *Server, what string) {
		t.Helper()
		for _, s := range all {
			if w := get(b, s.index); w.Code != 200 || !strings.Contains(w.Body.String(), s.tell) || strings.Contains(w.Body.String(), u.URL) {
				t.Errorf("%s: %s: %d %s", what, s.index, w.Code, w.Body)
			}
			if w := get(b, s.url); w.Code != 200 || !bytes.Equal(w.Body.Bytes(), s.body) {
				t.Errorf("%s: %s: %d, %d bytes %.200s", what, s.url, w.Code, w.Body.Len(), w.Body)
			}
		}
	}
	check(b, "cold")
	check(b, "warm")
	for _, s := range all {
		if n := u.count(s.archive); n != 1 {
			t.Errorf("%s was asked for %d times", s.archive, n)
		}
	}
	// Requests with HEAD, for ranges and for unchanged files.
	s := all[0]
	r := httptest.NewRequest("HEAD", s.url, nil)
	w := send(b, r)
	if w.Code != 200 || w.Body.Len() != 0 || w.Header().Get("Content-Length") != fmt.Sprint(len(s.body)) {
		t.Errorf("HEAD: %d %v", w.Code, w.Header())
	}
	if part := get(b, s.url, "Range", "bytes=3-8"); part.Code != 206 || part.Body.String() != "npmnpm" {
		t.Errorf("a part: %d %s", part.Code, part.Body)
	}
	if same := get(b, s.url, "If-None-Match", w.Header().Get("ETag")); same.Code != 304 {
		t.Errorf("an unchanged file: %d", same.Code)
	}
	b.Close()
	u.Close()

	o.Fresh = time.Nanosecond // all metadata is stale
	check(open(t, o), "upstream gone")
	o.Offline = true
	off := open(t, o)
	check(off, "offline")
	if w := get(off, "https://registry.npmjs.org/other"); w.Code != 403 || !strings.Contains(w.Header().Get("X-Engi-Error"), "offline") {
		t.Errorf("what was never asked for: %d %s", w.Code, w.Body)
	}
}

// TestChangedPackages: a file without the hash that its ecosystem published is refused
// and not kept; when the right file is back, it is served.
func TestChangedPackages(t *testing.T) {
	u := newUpstream(t)
	o := u.options(t)
	all := fill(t, u, &o)
	b := open(t, o)
	for _, s := range all {
		get(b, s.index)
		wrong := bytes.Clone(s.body)
		wrong[len(wrong)/2] ^= 1
		if strings.HasSuffix(s.url, ".zip") {
			wrong = zipped(t, map[string]string{"example.com/m@v1.0.0/go.mod": "module example.com/m\n", "example.com/m@v1.0.0/m.go": "package evil\n"})
		}
		u.put(s.archive, wrong)
		for range 2 {
			w := get(b, s.url)
			if w.Code != 502 || !strings.Contains(w.Header().Get("X-Engi-Error"), "was changed") || bytes.Contains(w.Body.Bytes(), wrong[:10]) {
				t.Errorf("%s: %d %.300s", s.url, w.Code, w.Body)
			}
		}
		u.put(s.archive, s.body)
		if w := get(b, s.url); w.Code != 200 || !bytes.Equal(w.Body.Bytes(), s.body) {
			t.Errorf("%s, the right one: %d %.200s", s.url, w.Code, w.Body)
		}
	}
	// An index of Debian is checked against its Release, too.
	if w := get(b, "http://deb.debian.org/debian/dists/trixie/main/binary-amd64/Packages.gz"); w.Code != 200 {
		t.Errorf("an index: %d %s", w.Code, w.Body)
	}
	o.Dir = t.TempDir()
	b = open(t, o)
	u.put("/debian/dists/trixie/main/binary-amd64/Packages.gz", gzipped("Filename: pool/main/p/p/p_1_amd64.deb\n"))
	for _, url := range []string{"dists/trixie/main/binary-amd64/Packages.gz", "pool/main/p/p/p_1_amd64.deb"} {
		if w := get(b, "http://deb.debian.org/debian/"+url); w.Code == 200 {
			t.Errorf("%s below a changed index: %d", url, w.Code)
		}
	}
}

// TestChecksumDatabaseContradicts: a database that contradicts its earlier answers is
// detected.
func TestChecksumDatabaseContradicts(t *testing.T) {
	u := newUpstream(t)
	o := u.options(t)
	fill(t, u, &o)
	_, key, err := note.GenerateKey(rand.Reader, "sum.golang.org")
	if err != nil {
		t.Fatal(err)
	}
	o.SumDB = key // the database signs with another key
	if w := get(open(t, o), "https://proxy.golang.org/example.com/m/@v/v1.0.0.zip"); w.Code != 502 || !strings.Contains(w.Body.String(), "checksum database") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestRefuses: a request for neither a package nor metadata reaches no registry.
func TestRefuses(t *testing.T) {
	u := newUpstream(t)
	o := u.options(t)
	o.Upstreams["maven"] = Off
	b := open(t, o)
	for _, url := range []string{
		"https://registry.npmjs.org/", "https://registry.npmjs.org/-/v1/search", "https://registry.npmjs.org/-/whoami", "https://registry.npmjs.org/a/-/b-1.tgz",
		"https://registry.npmjs.org/a/-/../../b", "https://registry.npmjs.org/a/%2e%2e/b", "https://registry.npmjs.org/a/1.0.0/x", "https://registry.npmjs.org/a%00b", "https://registry.npmjs.org/..%2f..%2fetc%2fpasswd",
		"https://registry.npmjs.org/" + strings.Repeat("a", 2000), "https://registry.npmjs.org/a?x=1", "https://registry.npmjs.org//a", "https://registry.npmjs.org/@a/../b",
		"https://pypi.org/simple/", "https://pypi.org/pypi/x/json", "https://pypi.org/simple/a/b/", "https://pypi.org/simple/../x/", "https://files.pythonhosted.org/x.whl", "https://files.pythonhosted.org/packages/noversion",
		"https://proxy.golang.org/", "https://proxy.golang.org/m/@v/../x", "https://proxy.golang.org/Upper/@v/list", "https://proxy.golang.org/m.test/x/@v/v1.0.0.exe", "https://proxy.golang.org/sumdb/evil.example.com/latest", "https://sum.golang.org/tile/8/0/../1",
		"https://index.crates.io/so/me/other", "https://index.crates.io/api/v1/crates", "https://static.crates.io/crates/x/../y/download", "https://static.crates.io/crates/x/latest/download",
		"http://deb.debian.org/", "http://deb.debian.org/ubuntu/dists/x/InRelease", "http://deb.debian.org/debian/project/x", "http://deb.debian.org/debian/dists/../x/InRelease", "http://deb.debian.org/debian/pool/main/p/p.dsc",
		"http://deb.debian.org/debian/dists/trixie/main/binary-amd64/by-hash/MD5Sum/d41d8cd98f00b204e9800998ecf8427e",
		"https://repo1.maven.org/maven2/a/b/1/b-1.jar", "https://evil.example.com/",
	} {
		w := get(b, url)
		if w.Code != 403 || w.Header().Get("X-Engi-Error") == "" {
			t.Errorf("%.100s: %d %s", url, w.Code, w.Body)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "PROPFIND"} {
		r := httptest.NewRequest("GET", "https://registry.npmjs.org/a", strings.NewReader("secret"))
		r.Method = method
		if w := send(b, r); w.Code != 403 || !strings.Contains(w.Header().Get("X-Engi-Error"), "read-only") {
			t.Errorf("%s: %d %s", method, w.Code, w.Body)
		}
	}
	if len(u.seen) != 0 {
		t.Errorf("the registry was asked for %s", u.seen[0].URL)
	}
	get(b, "https://registry.npmjs.org/a", "Cookie", "s3cret", "Authorization", "s3cret", "User-Agent", "s3cret", "Npm-Session", "s3cret", "Referer", "s3cret", "Accept", "s3cret", "X-Forwarded-For", "s3cret")
	for _, r := range u.seen {
		if text := fmt.Sprint(r.Header, r.URL); strings.Contains(text, "s3cret") {
			t.Errorf("the registry sees %s", text)
		}
	}
	if len(u.seen) == 0 {
		t.Error("nothing was asked for")
	}
}

// TestHostileUpstreams: responses of registries are limited in size and time, and
// lead to no other host.
func TestHostileUpstreams(t *testing.T) {
	defer func(f, m int64, s, d time.Duration) { maxFile, maxMetadata, stallTime, downTime = f, m, s, d }(maxFile, maxMetadata, stallTime, downTime)
	maxFile, maxMetadata, stallTime, downTime = 1<<20, 1<<20, 200*time.Millisecond, 0
	inside := newUpstream(t)
	inside.put("/secret", []byte("inside"))
	manifest := func(u *upstream, tarball string) {
		u.put("/npm/a/1.0.0", fmt.Appendf(nil, `{"version":"1.0.0","dist":{"shasum":"%x","tarball":"%s"}}`, sha1.Sum([]byte("inside")), tarball))
	}
	for name, c := range map[string]struct {
		url   string
		why   string
		setup func(u *upstream)
	}{
		"a huge file": {"/a/-/a-1.0.0.tgz", "more than", func(u *upstream) {
			manifest(u, u.URL+"/huge")
			u.serve = func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/huge") {
					io.CopyN(w, zeros{}, 10<<20)
				}
			}
		}},
		"a file that says it is huge": {"/a/-/a-1.0.0.tgz", "more than", func(u *upstream) {
			manifest(u, u.URL+"/huge")
			u.serve = func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "99999999999") }
		}},
		"metadata that is a gzip bomb": {"/a", "more than", func(u *upstream) {
			var bomb bytes.Buffer
			z := gzip.NewWriter(&bomb)
			io.CopyN(z, zeros{}, 100<<20)
			z.Close()
			u.serve = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", "gzip")
				w.Write(bomb.Bytes())
			}
		}},
		"no answer": {"/a", "cannot be reached", func(u *upstream) {
			u.serve = func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		}},
		"a body that stops": {"/a", "sent nothing", func(u *upstream) {
			u.serve = func(w http.ResponseWriter, r *http.Request) {
				w.Write([]byte("{"))
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}
		}},
		"a body that breaks off": {"/a", "broke off", func(u *upstream) {
			u.serve = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", "100")
				w.Write([]byte("{"))
			}
		}},
		"a redirect to a private address": {"/a", "resolves to", func(u *upstream) {
			u.serve = func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, inside.URL+"/secret", http.StatusFound)
			}
		}},
		"redirects without end": {"/a", "redirects", func(u *upstream) {
			u.serve = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }
		}},
		"a file at a private address": {"/a/-/a-1.0.0.tgz", "resolves to", func(u *upstream) { manifest(u, inside.URL+"/secret") }},
		"a file in the file system":   {"/a/-/a-1.0.0.tgz", "", func(u *upstream) { manifest(u, "file:///etc/passwd") }},
		"a file with a password":      {"/a/-/a-1.0.0.tgz", "", func(u *upstream) { manifest(u, "http://a:b@example.com/") }},
		"no hash":                     {"/a/-/a-1.0.0.tgz", "no hash", func(u *upstream) { u.put("/npm/a/1.0.0", []byte(`{"version":"1.0.0","dist":{"tarball":"x"}}`)) }},
		"a short hash": {"/a/-/a-1.0.0.tgz", "no hash", func(u *upstream) {
			u.put("/npm/a/1.0.0", []byte(`{"version":"1.0.0","dist":{"integrity":"sha512-AAAA"}}`))
		}},
		"no JSON":        {"/a", "metadata cannot be used", func(u *upstream) { u.put("/npm/a", []byte(`<html>log in</html>`)) }},
		"a server error": {"/a", "answers 500", func(u *upstream) { u.serve = func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) } }},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t)
			c.setup(u)
			b := open(t, u.options(t))
			w := get(b, "https://registry.npmjs.org"+c.url)
			if w.Code < 400 || !strings.Contains(w.Header().Get("X-Engi-Error"), c.why) || strings.Contains(w.Body.String(), "inside\n") {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if inside.count("/secret") != 0 {
				t.Error("the private address was asked")
			}
			temps, err := filepath.Glob(filepath.Join(b.o.Dir, tempPrefix+"*"))
			if err != nil || len(temps) != 0 {
				t.Errorf("files are left: %q, %v", temps, err)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestMetadataIsRevalidated: stale metadata is requested again, once for all waiting
// requests, and is not sent again when it is unchanged.
func TestMetadataIsRevalidated(t *testing.T) {
	u := newUpstream(t)
	o := u.options(t)
	o.Fresh = time.Nanosecond
	b := open(t, o)
	u.put("/npm/a", []byte(`{"name":"a","versions":{}}`))
	first := get(b, "https://registry.npmjs.org/a").Body.String()
	if again := get(b, "https://registry.npmjs.org/a"); again.Code != 200 || again.Body.String() != first {
		t.Errorf("%d %s", again.Code, again.Body)
	}
	if u.seen[1].Header.Get("If-None-Match") == "" {
		t.Error("the second request has no condition")
	}
	u.put("/npm/a", []byte(`{"name":"a","versions":{},"x":1}`))
	if now := get(b, "https://registry.npmjs.org/a"); !strings.Contains(now.Body.String(), `"x":1`) {
		t.Errorf("%s", now.Body)
	}
	// The absence of a package is remembered, too, but not for ever.
	if w := get(b, "https://registry.npmjs.org/none"); w.Code != 404 {
		t.Errorf("%d", w.Code)
	}
	u.put("/npm/none", []byte(`{"name":"none","versions":{}}`))
	if w := get(b, "https://registry.npmjs.org/none"); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestOneDownload: many requests for a file share one download, which ends when all
// waiting requests have left.
func TestOneDownload(t *testing.T) {
	u := newUpstream(t)
	b := open(t, u.options(t))
	crate := []byte("crate")
	go_on, left := make(chan struct{}), make(chan struct{})
	u.put("/crates/config.json", []byte(`{"dl":"`+u.URL+`/dl"}`))
	u.put("/crates/so/me/some", fmt.Appendf(nil, `{"name":"some","vers":"1.2.3","cksum":"%x"}`+"\n"+`{"name":"some","vers":"1.2.4","cksum":"%x"}`, sha256.Sum256(crate), sha256.Sum256(crate)))
	u.serve = func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "1.2.4") {
			<-r.Context().Done()
			close(left)
			return
		}
		<-go_on
		w.Write(crate)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if w := get(b, "https://static.crates.io/crates/some/1.2.3/download"); w.Code != 200 || w.Body.String() != "crate" {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	for u.count("/dl/some/1.2.3/download") == 0 {
		time.Sleep(time.Millisecond)
	}
	close(go_on)
	all.Wait()
	if n := u.count("/dl/some/1.2.3/download"); n != 1 {
		t.Errorf("%d downloads", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for u.count("/dl/some/1.2.4/download") == 0 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if w := send(b, httptest.NewRequestWithContext(ctx, "GET", "https://static.crates.io/crates/some/1.2.4/download", nil)); w.Code == 200 {
		t.Errorf("%d", w.Code)
	}
	<-left
}

// TestStreams: a large file is sent while it arrives, but its end only after
// the file has been checked.
func TestStreams(t *testing.T) {
	defer func(d time.Duration) { patience = d }(patience)
	patience = time.Millisecond
	body := make([]byte, 4*withheld)
	rand.Read(body)
	for name, right := range map[string]bool{"right": true, "changed": false} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t)
			b := open(t, u.options(t))
			sum := sha256.Sum256(body)
			if !right {
				sum[0] ^= 1
			}
			u.put("/crates/config.json", []byte(`{"dl":"`+u.URL+`/dl"}`))
			u.put("/crates/so/me/some", fmt.Appendf(nil, `{"name":"some","vers":"1.2.3","cksum":"%x"}`, sum))
			more := make(chan struct{})
			u.serve = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				w.Write(body[:3*withheld])
				w.(http.Flusher).Flush()
				<-more
				w.Write(body[3*withheld:])
			}
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Host = "static.crates.io"
				defer func() {
					if why := w.Header().Get("X-Engi-Error"); right != (why == "") {
						t.Errorf("the log is told %q", why)
					}
				}()
				b.Serve("ann", w, r)
			}))
			defer front.Close()
			resp, err := http.Get(front.URL + "/crates/some/1.2.3/download")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got := make([]byte, withheld)
			if _, err := io.ReadFull(resp.Body, got); err != nil || !bytes.Equal(got, body[:withheld]) {
				t.Fatalf("the beginning: %v", err)
			}
			close(more)
			rest, err := io.ReadAll(resp.Body)
			if all := append(got, rest...); right && (err != nil || !bytes.Equal(all, body)) {
				t.Errorf("%d bytes, %v", len(all), err)
			} else if !right && (err == nil || len(all) == len(body)) {
				t.Errorf("all of a changed file came: %d bytes, %v", len(all), err)
			}
		})
	}
}

// TestCacheOnDisk: a damaged file is not served, a half-written one is removed,
// and the cache stays within its size by removing the least recently used files.
func TestCacheOnDisk(t *testing.T) {
	u := newUpstream(t)
	o := u.options(t)
	all := fill(t, u, &o)
	b := open(t, o)
	s := all[0]
	get(b, s.url)
	b.Close()
	path := filepath.Join(o.Dir, fileName("npm/@a/left@1.0.0.tgz"))
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, damage := range [][]byte{raw[:len(raw)-1], append(bytes.Clone(raw[:len(raw)-1]), 'x'), append([]byte("x"), raw[1:]...), nil} {
		if err := os.WriteFile(path, damage, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(o.Dir, tempPrefix+"1"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		b := open(t, o)
		if w := get(b, s.url); w.Code != 200 || !bytes.Equal(w.Body.Bytes(), s.body) {
			t.Errorf("damage %d: %d %.100s", i, w.Code, w.Body)
		}
		if n := u.count(s.archive); n != i+2 {
			t.Errorf("damage %d: %d downloads", i, n)
		}
		if _, err := os.Stat(filepath.Join(o.Dir, tempPrefix+"1")); !os.IsNotExist(err) {
			t.Errorf("the half-written file is there: %v", err)
		}
		b.Close()
	}

	o.Dir, o.Size = t.TempDir(), 50<<10
	b = open(t, o)
	for i := range 40 {
		name := fmt.Sprintf("p%d", i)
		u.put("/npm/"+name, fmt.Appendf(nil, `{"name":%q,"versions":{}}`, name))
		get(b, "https://registry.npmjs.org/p0")
		if w := get(b, "https://registry.npmjs.org/"+name); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if x := b.Status(); size > o.Size || x.Bytes != size || x.Files != len(entries) || len(entries) < 5 {
		t.Errorf("%d bytes in %d files, %+v", size, len(entries), x)
	}
	if n := u.count("/npm/p0"); n != 1 {
		t.Errorf("what was always used was fetched %d times", n)
	}
	// Files being written count, too.
	room := &reservation{cache: b.cache}
	if _, err := room.Write(make([]byte, 40<<10)); err != nil {
		t.Fatal(err)
	}
	if x := b.Status(); x.Bytes > o.Size-40<<10 {
		t.Errorf("%d bytes beside 40 KiB that come", x.Bytes)
	}
	if _, err := room.Write(make([]byte, 40<<10)); !engi.Is(err, engi.Exhausted) {
		t.Errorf("more than the cache: %v", err)
	}
	room.release()
	if err := b.Clear(); err != nil {
		t.Fatal(err)
	}
	if x := b.Status(); x.Files != 0 || x.Bytes != 0 {
		t.Errorf("%+v", x)
	}
}

// TestPipForms: programs get the form of the index that they request.
func TestPipForms(t *testing.T) {
	u := newUpstream(t)
	o := u.options(t)
	fill(t, u, &o)
	meta := []byte("Name: other\n")
	u.put("/pypi/simple/other/", fmt.Appendf(nil, `{"meta":{"api-version":"1.0"},"name":"other","files":[
		{"filename":"other-1.tar.gz","url":"https://files.example.com/packages/aa/bb/%060d/other-1.tar.gz","hashes":{"sha256":"%064d"},"yanked":"bad","core-metadata":{"sha256":"%x"}},
		{"filename":"other-2.tar.gz","url":"x","hashes":{"md5":"00"}}, {"filename":"../evil-1.whl","url":"x","hashes":{"sha256":"%064d"}},
		{"filename":"my-other-1.0.tar.gz","url":"/files/my-other-1.0.tar.gz","hashes":{"sha256":"%064d"},"core-metadata":{"sha256":"%x"}}]}`, 1, 2, sha256.Sum256(meta), 3, 4, sha256.Sum256(meta)))
	u.put("/files/my-other-1.0.tar.gz.metadata", meta)
	b := open(t, o)
	w := get(b, "https://pypi.org/simple/Other/", "Accept", pypiJSON+", text/html;q=0.1")
	var x pypiIndex
	if err := json.Unmarshal(w.Body.Bytes(), &x); err != nil || len(x.Files) != 2 || w.Header().Get("Content-Type") != pypiJSON ||
		x.Files[0].URL != fmt.Sprintf("https://files.pythonhosted.org/packages/aa/bb/%060d/other-1.tar.gz", 1) {
		t.Errorf("%v %s", err, w.Body)
	}
	page := get(b, "https://pypi.org/simple/other/").Body.String()
	if !strings.Contains(page, `data-yanked="bad"`) || !strings.Contains(page, fmt.Sprintf("#sha256=%064d", 2)) || strings.Contains(page, "evil") {
		t.Errorf("%s", page)
	}
	// The contents of the page can be parsed again.
	files, err := htmlFiles([]byte(page))
	if err != nil || len(files) != 2 || files[0].Filename != "other-1.tar.gz" || files[0].metadataHash() == "" {
		t.Errorf("%+v, %v", files, err)
	}
	if got := projectsOf("my-other-1.0.tar.gz"); len(got) != 1 || got[0] != "my-other" {
		t.Errorf("%q", got)
	}
	u.put("/pypi/simple/my-other/", u.files["/pypi/simple/other/"])
	if w := get(b, "https://files.pythonhosted.org/packages/x/my-other-1.0.tar.gz.metadata"); w.Code != 200 || w.Body.String() != string(meta) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestOwnersShare: one owner's waiting requests do not keep another's from being
// served.
func TestOwnersShare(t *testing.T) {
	u := newUpstream(t)
	b := open(t, u.options(t))
	u.put("/npm/b", []byte(`{"name":"b","versions":{}}`))
	get(b, "https://registry.npmjs.org/b")
	ctx, cancel := context.WithCancel(t.Context())
	u.serve = func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	var all sync.WaitGroup
	for i := range 3 * perOwner {
		all.Go(func() {
			b.Serve("eve", httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", fmt.Sprintf("https://registry.npmjs.org/slow%d", i), nil))
		})
	}
	for len(b.fetching) < perOwner {
		time.Sleep(time.Millisecond)
	}
	u.put("/npm/new", []byte(`{"name":"new","versions":{}}`))
	for _, name := range []string{"b", "new"} {
		if w := get(b, "https://registry.npmjs.org/"+name); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if n := len(b.fetching); n > perOwner {
		t.Errorf("one owner has %d downloads", n)
	}
	cancel()
	all.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := b.owners.Len(); n != 0 {
		t.Errorf("%d owners are left", n)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{Dir: t.TempDir(), Upstreams: map[string]string{"npm": "ftp://x"}}, {Dir: t.TempDir(), Upstreams: map[string]string{"npm": "https://a:b@x"}},
		{Dir: t.TempDir(), Upstreams: map[string]string{"npm": "nonsense"}},
	} {
		if _, err := New(o); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" || strings.Contains(err.Error(), "a:b") {
			t.Errorf("%v: %v", o.Upstreams, err)
		}
	}
}
