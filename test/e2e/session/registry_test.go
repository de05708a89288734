package session

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// A registry speaks the part of npm's protocol that an installation needs. It is like one of
// a company: its URL has a path.
type registry struct {
	*httptest.Server
	mu       sync.Mutex
	packages map[string]map[string]published // guarded by mu
	down     bool                            // guarded by mu
	asked    int                             // number of requests; guarded by mu
}

type published struct {
	tarball      []byte
	dependencies map[string]string
}

func newRegistry(t *testing.T) *registry {
	r := &registry{packages: map[string]map[string]published{}}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

// address returns the URL in the node's configuration.
func (r *registry) address() string { return r.Server.URL + "/api/npm/" }

// publish publishes a package of files; package.json is added.
func (r *registry) publish(t *testing.T, name, version string, dependencies map[string]string, files map[string]string) {
	t.Helper()
	about, err := json.Marshal(map[string]any{
		"name": name, "version": version, "type": "module", "dependencies": dependencies,
		"exports": map[string]string{".": "./index.js", "./*": "./*.js"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	files["package.json"] = string(about)
	for path, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: "package/" + path, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.packages[name] == nil {
		r.packages[name] = map[string]published{}
	}
	r.packages[name][version] = published{b.Bytes(), dependencies}
}

func (r *registry) fail(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

func (r *registry) requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

func (r *registry) serve(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.down {
		http.Error(w, "down", http.StatusBadGateway)
		return
	}
	path, err := url.PathUnescape(strings.TrimPrefix(q.URL.EscapedPath(), "/api/npm/"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if name, file, ok := strings.Cut(path, "/-/"); ok {
		p, ok := r.packages[name][strings.TrimSuffix(file[strings.LastIndex(file, "-")+1:], ".tgz")]
		if !ok {
			http.NotFound(w, q)
			return
		}
		_, _ = w.Write(p.tarball)
		return
	}
	all, ok := r.packages[path]
	if !ok {
		http.NotFound(w, q)
		return
	}
	versions, newest := map[string]any{}, ""
	for v, p := range all {
		sum := sha512.Sum512(p.tarball)
		base := path[strings.LastIndex(path, "/")+1:]
		versions[v] = map[string]any{
			"name": path, "version": v, "dependencies": p.dependencies,
			"dist": map[string]string{
				"tarball":   r.address() + path + "/-/" + base + "-" + v + ".tgz",
				"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
			},
		}
		newest = max(newest, v)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"name": path, "dist-tags": map[string]string{"latest": newest}, "versions": versions})
}
