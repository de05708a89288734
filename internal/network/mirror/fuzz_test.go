package mirror

import (
	"bytes"
	"io"
	"net/url"
	"strings"
	"testing"
)

// FuzzPaths: for every path, the URL requested upstream is below the
// registry's own URL.
func FuzzPaths(f *testing.F) {
	b, err := New(Options{Dir: f.TempDir(), Offline: true})
	if err != nil {
		f.Fatal(err)
	}
	defer b.Close()
	for _, p := range []string{"/a", "/@a/b/-/b-1.0.0.tgz", "/simple/x/", "/packages/a/b/c/x-1.whl", "/m.test/!a/@v/v1.0.0.zip", "/tile/8/0/x001/234", "/so/me/some", "/crates/a/1.0.0/download",
		"/debian/pool/main/a/a/a_1_amd64.deb", "/debian/dists/x/main/by-hash/SHA256/00", "/maven2/a/b/1/b-1.jar", "/../x", "/a/%2e%2e"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if !cleanPath(path) {
			return
		}
		for host, e := range b.hosts {
			it, err := e.item(host, path)
			if err != nil || it.fixed != nil {
				continue
			}
			if it.key == "" || len(it.key) > 3*maxURLPath && len(path) <= maxURLPath {
				t.Errorf("%s%s has the key %q", host, path, it.key)
			}
			below := it.url == ""
			for _, u := range b.up {
				below = below || strings.HasPrefix(it.url, u.String()+"/")
			}
			if !below || strings.Contains(it.url, "/../") || strings.HasSuffix(it.url, "/..") || strings.ContainsAny(it.url, "?# ") {
				t.Errorf("%s%s leads to %s", host, path, it.url)
			}
		}
	})
}

// FuzzLockFiles: for every lock file, all wanted URLs are at registries.
func FuzzLockFiles(f *testing.F) {
	b, err := New(Options{Dir: f.TempDir(), Offline: true})
	if err != nil {
		f.Fatal(err)
	}
	defer b.Close()
	names := []string{"package-lock.json", "pnpm-lock.yaml", "yarn.lock", "go.sum", "Cargo.lock", "requirements.txt"}
	f.Add([]byte(`{"packages":{"node_modules/a":{"version":"1.0.0"}}}`))
	f.Add([]byte("a v1.0.0 h1:x=\n"))
	f.Add([]byte("a==1 --hash=sha256:00\n"))
	f.Add([]byte("name = \"a\"\nversion = \"1.0.0\"\nsource = \"registry+x\"\n"))
	f.Add([]byte("  '@a/b@1.0.0':\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, name := range names {
			all, err := b.Read(name, raw)
			if err != nil {
				continue
			}
			for _, w := range all {
				u, err := url.Parse(w.URL)
				if w.URL != "" && (err != nil || b.hosts[u.Host] == nil) || w.URL == "" && !pypiProject.MatchString(w.project) {
					t.Errorf("%s wants %q", name, w)
				}
			}
		}
	})
}

// FuzzIndexes: no metadata of a registry breaks a parser, and the results name
// only the public hosts.
func FuzzIndexes(f *testing.F) {
	f.Add([]byte(`{"name":"a","versions":{"1.0.0":{"version":"1.0.0","dist":{"integrity":"sha512-AAAA","tarball":"https://x/"}}}}`))
	f.Add([]byte(`{"version":"1.0.0","dist":{"shasum":"da39a3ee5e6b4b0d3255bfef95601890afd80709","tarball":"https://x/"}}`))
	f.Add([]byte(`{"files":[{"filename":"a-1.whl","url":"../a-1.whl","hashes":{"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}]}`))
	f.Add([]byte(`<html><a href="a-1.whl#sha256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" data-yanked>a-1.whl</a>`))
	f.Add([]byte(`{"name":"a","vers":"1.0.0","cksum":"00"}`))
	f.Add([]byte("SHA256:\n 00 1 main/binary-amd64/Packages.gz\n"))
	f.Add(gzipped("Filename: a\nSHA256: 00\n\n"))
	f.Add(zipped(f, map[string]string{"a@v1/go.mod": "module a\n"}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if out, err := rewritePackument("a", raw); err == nil && bytes.Contains(out, []byte(`"tarball":"https://x/`)) {
			t.Errorf("%s", out)
		}
		rewriteManifest("a", raw)
		if out, err := normalIndex("https://pypi.example.com/simple/a/", "a", raw); err == nil {
			for _, accept := range []string{pypiJSON, "text/html"} {
				if page, _, err := renderIndex(out, accept); err != nil || bytes.Contains(page, []byte("pypi.example.com/simple/a/")) && !bytes.Contains(raw, []byte("pypi.example.com")) {
					t.Errorf("%v %s", err, page)
				}
			}
		}
		findCrate(raw, "1.0.0")
		releaseHash(raw, "main/binary-amd64/Packages.gz")
		readPackages(bytes.NewReader(raw))
		hashZip(io.NewSectionReader(bytes.NewReader(raw), 0, int64(len(raw))))
	})
}
