package disk

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/engi-dev/engi/internal/engi"
)

// layerOf returns a layer with the content of a tar.
func layerOf(t *testing.T, data []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A part is one entry of a test archive.
type part struct {
	tar.Header
	text string
}

func tarOf(t *testing.T, parts ...part) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, p := range parts {
		h := &p.Header
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(p.text))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, p.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func file(name, text string) part { return part{tar.Header{Name: name}, text} }

// imageOf returns an image for this machine.
func imageOf(t *testing.T, config v1.Config, layers ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	for _, data := range layers {
		var err error
		if img, err = mutate.AppendLayers(img, layerOf(t, data)); err != nil {
			t.Fatal(err)
		}
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Config = "linux", runtime.GOARCH, config
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

// A testRegistry is a registry in this process. spoil may change its responses.
type testRegistry struct {
	host  string
	spoil atomic.Pointer[func(path string, body []byte) []byte]
	reads atomic.Int32 // number of reads of blobs
}

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	r := &testRegistry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			inner.ServeHTTP(w, req)
			return
		}
		if strings.Contains(req.URL.Path, "/blobs/") {
			r.reads.Add(1)
		}
		rec := httptest.NewRecorder()
		inner.ServeHTTP(rec, req)
		body := rec.Body.Bytes()
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		if f := r.spoil.Load(); f != nil {
			body = (*f)(req.URL.Path, body)
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		}
		w.WriteHeader(rec.Code)
		w.Write(body)
	}))
	t.Cleanup(srv.Close)
	r.host = strings.TrimPrefix(srv.URL, "http://")
	return r
}

func (r *testRegistry) push(t *testing.T, ref string, img v1.Image) {
	t.Helper()
	tag, err := name.ParseReference(r.host + "/" + ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
}

// TestDevcontainer builds a devcontainer on an image in a registry, and one on the template that this node has
// instead of an image.
func TestDevcontainer(t *testing.T) {
	r := newRegistry(t)
	r.push(t, "team/app:1", imageOf(t, v1.Config{Env: []string{"PATH=/opt/bin:/bin", "GONE=1"}, User: "daemon"}, tinyRoot(t), tarOf(t, file("usr/bin/apt-get", ""))))
	var ran []engi.Command
	w := &fakeRunner{run: func(_ context.Context, dir string, c engi.Command, _ io.Writer) engi.Exit {
		ran = append(ran, c)
		return engi.Exit{Cause: engi.CauseExited}
	}}
	d := openTemplates(t, Options{Runner: w, Aliases: map[string]string{"example.com/base": "low"}}, map[string][]byte{"root.tar": tinyRoot(t)})
	var warnings []string
	tmpl, err := d.Build(t.Context(), "mine", []byte(`{
		"image": "`+r.host+`/team/app:1", // pulled
		"features": {"ghcr.io/devcontainers/features/git:1": {}},
		"forwardPorts": [3000],
		"remoteUser": "dev",
		"containerEnv": {"A": "b"},
		"remoteEnv": {"PATH": "${containerEnv:PATH}:/home/dev/bin", "GONE": null},
		"postCreateCommand": "echo created",
		"onCreateCommand": ["echo", "first"],
		"postStartCommand": "serve",
		"mystery": 1,
	}`), func(e engi.Progress) {
		if e.Warning {
			warnings = append(warnings, e.Log)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(warnings, []string{`line 11: unknown property "mystery"`}) {
		t.Errorf("warnings %q", warnings)
	}
	if tmpl.User != "dev" || tmpl.WorkDir != "/workspaces/mine" || tmpl.Start != "serve" || !slices.Equal(tmpl.Ports, []int{3000}) ||
		tmpl.Env["PATH"] != "/opt/bin:/bin:/home/dev/bin" || tmpl.Env["A"] != "b" || tmpl.Env["GONE"] != "" {
		t.Errorf("got %+v", tmpl)
	}
	var got []string
	for _, c := range ran {
		got = append(got, c.User+" "+c.Dir+" "+c.Args[2])
		if c.Env["PATH"] != tmpl.Env["PATH"] || c.Env["A"] != "b" {
			t.Errorf("%s has %q", c.Args[2], c.Env)
		}
	}
	want := []string{"dev /workspaces/mine 'echo' 'first'", "dev /workspaces/mine echo created"}
	if len(got) != 3 || !strings.HasPrefix(got[0], "root / apt-get update") || !slices.Equal(got[1:], want) {
		t.Errorf("it ran %q, want the packages and %q", got, want)
	}

	// Without a user of its own, the template has the user of the image.
	if tmpl := build(t, d, "own", `{"image": "`+r.host+`/team/app:1", "postCreateCommand": "true"}`); tmpl.User != "daemon" || ran[len(ran)-1].User != "daemon" {
		t.Errorf("user %s, of the command %s", tmpl.User, ran[len(ran)-1].User)
	}
	build(t, d, "low", "base: tar:root.tar\nenv: {LOW: yes}\n")
	if tmpl := build(t, d, "other", `{"image": "example.com/base:2"}`); tmpl.Env["LOW"] != "yes" {
		t.Errorf("got %+v", tmpl)
	}
}

func TestImagesAreFlattened(t *testing.T) {
	r := newRegistry(t)
	r.push(t, "team/app:1", imageOf(t, v1.Config{
		Env: []string{"PATH=/opt/bin:/bin", "FROM=image", "=broken"}, User: "1000:1000", WorkingDir: "/srv/app",
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "53/udp": {}, "80": {}},
	},
		tinyRoot(t),
		tarOf(t, file("old", "1"), file("d/old", "1"), file("d/sub/old", "1"), file("bin/python3", "link")),
		tarOf(t, file(".wh.old", ""), file("d/.wh..wh..opq", ""), file("d/new", "2"), part{Header: tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock}}),
	))
	d := openTemplates(t, Options{}, nil)
	var lines []string
	tmpl, err := d.Build(t.Context(), "app", []byte("base: oci:"+r.host+"/team/app:1\nenv: {FROM: definition}\n"), func(e engi.Progress) { lines = append(lines, e.Log) })
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"old": false, "d/old": false, "d/sub": false, "d/new": true, "usr/bin/python3": true, "dev/sda": false, "d/.wh..wh..opq": false} {
		if exists(filepath.Join(tmpl.Root, name)) != want {
			t.Errorf("%s there: %v, want %v", name, !want, want)
		}
	}
	if data, err := os.ReadFile(filepath.Join(tmpl.Root, "usr/bin/python3")); err != nil || string(data) != "link" {
		t.Errorf("a file under a linked directory has %q, %v", data, err)
	}
	if tmpl.UID != 1000 || tmpl.User == "" || tmpl.WorkDir != "/srv/app" || tmpl.Env["FROM"] != "definition" || tmpl.Env["PATH"] != "/opt/bin:/bin" || !slices.Equal(tmpl.Ports, []int{80, 8080}) {
		t.Errorf("template %+v", tmpl)
	}
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "1 device nodes") }) {
		t.Errorf("nothing said of the device node: %q", lines)
	}

	// The same tag with the same content pulls nothing; with other content, the
	// template is rebuilt.
	before := r.reads.Load()
	if _, err := d.Build(t.Context(), "app", nil, nil); err != nil {
		t.Fatal(err)
	}
	if n := r.reads.Load() - before; n > 1 { // at most its configuration
		t.Errorf("read %d blobs though nothing changed", n)
	}
	r.push(t, "team/app:1", imageOf(t, v1.Config{}, tinyRoot(t)))
	again, err := d.Build(t.Context(), "app", nil, nil)
	if err != nil || again.Digest == tmpl.Digest {
		t.Errorf("the tag moved and the template did not: %v", err)
	}
	// Pull by digest, and without the prefix.
	img := imageOf(t, v1.Config{}, tinyRoot(t))
	r.push(t, "team/other:x", img)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	build(t, d, "pinned", "base: "+r.host+"/team/other@"+digest.String())
}

// TestRedirectedImages pulls from registries that have layers, or manifests, at
// other paths: a layer of any size is read, and a manifest is bounded.
func TestRedirectedImages(t *testing.T) {
	const size = maxManifest + 1<<20
	big := make([]byte, size)
	rand.Read(big) // so that it stays large
	r := newRegistry(t)
	r.push(t, "app:1", imageOf(t, v1.Config{}, tinyRoot(t), tarOf(t, file("big", string(big)))))
	layers := true // layers are at other paths, otherwise manifests
	var sent atomic.Int64
	inner, err := url.Parse("http://" + r.host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(inner)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch path := req.URL.Path; {
		case strings.HasPrefix(path, "/cdn"):
			req.URL.Path = strings.Replace(path[len("/cdn"):], "/layers/", "/blobs/", 1)
			proxy.ServeHTTP(w, req)
		case layers && strings.Contains(path, "/blobs/"):
			http.Redirect(w, req, "/cdn"+strings.Replace(path, "/blobs/", "/layers/", 1), http.StatusTemporaryRedirect)
		case !layers && strings.Contains(path, "/manifests/"):
			http.Redirect(w, req, "/endless/blobs/x", http.StatusTemporaryRedirect)
		case strings.HasPrefix(path, "/endless"):
			for n, err := 0, error(nil); err == nil && sent.Load() < 8*maxManifest; sent.Add(int64(n)) {
				n, err = w.Write(make([]byte, 64<<10))
			}
		default:
			proxy.ServeHTTP(w, req)
		}
	}))
	t.Cleanup(srv.Close)
	host := strings.TrimPrefix(srv.URL, "http://")
	d := openTemplates(t, Options{}, nil)
	tmpl, err := d.Build(t.Context(), "app", []byte("base: oci:"+host+"/app:1\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(tmpl.Root, "big")); err != nil || fi.Size() != size {
		t.Errorf("the file of a large layer: %v, %v", fi, err)
	}
	layers = false
	if _, err := d.Build(t.Context(), "other", []byte("base: oci:"+host+"/app:2\n"), nil); err == nil {
		t.Error("an endless manifest was accepted")
	}
	if n := sent.Load(); n == 0 || n >= 8*maxManifest {
		t.Errorf("%d bytes of an endless manifest were read", n)
	}
}

func TestImageOfManyPlatforms(t *testing.T) {
	r := newRegistry(t)
	right := imageOf(t, v1.Config{}, tinyRoot(t), tarOf(t, file("right", "")))
	wrong := imageOf(t, v1.Config{}, tinyRoot(t), tarOf(t, file("wrong", "")))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: wrong, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "mips"}}},
		mutate.IndexAddendum{Add: right, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	tag, err := name.ParseReference(r.host + "/many:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index); err != nil {
		t.Fatal(err)
	}
	d := openTemplates(t, Options{}, nil)
	if tmpl := build(t, d, "many", "base: oci:"+r.host+"/many:1"); !exists(filepath.Join(tmpl.Root, "right")) || exists(filepath.Join(tmpl.Root, "wrong")) {
		t.Error("took the image of another machine")
	}
	// The same as an OCI archive.
	dir := t.TempDir()
	if _, err := layout.Write(dir, index); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.WriteToFile(saved, tag, right); err != nil {
		t.Fatal(err)
	}
	docker, err := os.ReadFile(saved)
	if err != nil {
		t.Fatal(err)
	}
	d = openTemplates(t, Options{}, map[string][]byte{"oci.tar": buf.Bytes(), "docker.tar": docker})
	for _, base := range []string{"oci-archive:oci.tar", "docker-archive:docker.tar"} {
		tmpl := build(t, d, "archive", "base: "+base)
		if !exists(filepath.Join(tmpl.Root, "right")) || exists(filepath.Join(filepath.Dir(tmpl.Root), "layout")) {
			t.Errorf("%s: %+v", base, tmpl)
		}
	}
}

func TestHostileImagesAreRefused(t *testing.T) {
	r := newRegistry(t)
	d := openTemplates(t, Options{}, nil)
	outside := filepath.Join(d.o.Dir, "evil")
	link := func(name, to string, kind byte) part {
		return part{Header: tar.Header{Name: name, Linkname: to, Typeflag: kind}}
	}
	for i, test := range []struct {
		layer []byte
		ok    bool
	}{
		{tarOf(t, file("../../../../evil", "x")), false},
		{tarOf(t, link("a", "../../../..", tar.TypeSymlink), file("a/evil", "x")), true}, // stays inside
		{tarOf(t, link("a", d.o.Dir, tar.TypeSymlink), link("a/evil", "x", tar.TypeSymlink)), false},
		{tarOf(t, link("a", "/etc/shadow", tar.TypeLink)), false},
		{tarOf(t, link("usr", "../../..", tar.TypeSymlink), file("usr/.wh.builds", "")), true},
		{tarOf(t, file("usr/.wh...", "")), false},
		{tarOf(t, link("etc", d.o.Dir, tar.TypeSymlink)), true}, // writes to /etc stay inside
		{[]byte("not a tar"), false},
	} {
		ref := fmt.Sprintf("evil:%d", i)
		r.push(t, ref, imageOf(t, v1.Config{}, tinyRoot(t), test.layer))
		_, err := d.Build(t.Context(), "evil", []byte("base: oci:"+r.host+"/"+ref), nil)
		if exists(outside) || !exists(filepath.Join(d.o.Dir, "builds")) {
			t.Fatalf("layer %d left the root", i)
		}
		if !test.ok {
			wantKind(t, err, engi.Invalid)
		} else if engi.Is(err, engi.Internal) {
			t.Errorf("layer %d: %v", i, err)
		}
	}
	if left := d.dir.leftovers(); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

func TestWrongDigestsAreRefused(t *testing.T) {
	r := newRegistry(t)
	img := imageOf(t, v1.Config{}, tinyRoot(t))
	r.push(t, "app:1", img)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	blob, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	configName, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	other := layerOf(t, tarOf(t, file("other", strings.Repeat("x", 100))))
	swapped, err := other.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	otherBlob, err := io.ReadAll(swapped)
	if err != nil {
		t.Fatal(err)
	}
	d := openTemplates(t, Options{}, nil)
	spoil := func(part string, f func([]byte) []byte) {
		g := func(path string, body []byte) []byte {
			if strings.Contains(path, part) {
				return f(body)
			}
			return body
		}
		r.spoil.Store(&g)
	}
	for what, f := range map[string]func(){
		"another layer": func() { spoil(blob.Hex, func([]byte) []byte { return otherBlob }) },
		"a cut layer":   func() { spoil(blob.Hex, func(b []byte) []byte { return b[:len(b)-30] }) },
		"more after it": func() { spoil(blob.Hex, func(b []byte) []byte { return append(slices.Clone(b), 0) }) },
		"another config": func() {
			spoil(configName.Hex, func(b []byte) []byte { return bytes.Replace(b, []byte("linux"), []byte("linuy"), 1) })
		},
	} {
		f()
		_, err := d.Build(t.Context(), "app", []byte("base: oci:"+r.host+"/app:1"), nil)
		if err == nil {
			t.Fatalf("%s was accepted", what)
		}
		if kind := engi.KindOf(err); kind != engi.Invalid && kind != engi.Unavailable {
			t.Errorf("%s: kind %s: %v", what, kind, err)
		}
	}
	// The configuration has other digests than the layers.
	r.spoil.Store(nil)
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64)
	lying, err := mutate.ConfigFile(img, cf)
	if err != nil {
		t.Fatal(err)
	}
	r.push(t, "lying:1", lying)
	_, err = d.Build(t.Context(), "app", []byte("base: oci:"+r.host+"/lying:1"), nil)
	wantKind(t, err, engi.Invalid, "differs from the digest in the image")
	if _, err := d.Build(t.Context(), "app", []byte("base: oci:"+r.host+"/app:1"), nil); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

func TestRegistryTrouble(t *testing.T) {
	r := newRegistry(t)
	d := openTemplates(t, Options{}, nil)
	_, err := d.Build(t.Context(), "app", []byte("base: oci:"+r.host+"/missing:1"), nil)
	wantKind(t, err, engi.Invalid, "does not have it")

	closed := httptest.NewServer(http.NotFoundHandler())
	host := strings.TrimPrefix(closed.URL, "http://")
	closed.Close()
	_, err = d.Build(t.Context(), "app", []byte("base: oci:"+host+"/app:1"), nil)
	wantKind(t, err, engi.Unavailable)

	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer locked.Close()
	_, err = d.Build(t.Context(), "app", []byte("base: oci:"+strings.TrimPrefix(locked.URL, "http://")+"/app:1"), nil)
	wantKind(t, err, engi.Denied)

	// Builds stay usable when the registry does not answer.
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	gone := &testRegistry{host: strings.TrimPrefix(srv.URL, "http://")}
	gone.push(t, "app:1", imageOf(t, v1.Config{}, tinyRoot(t)))
	first := build(t, d, "kept", "base: oci:"+gone.host+"/app:1")
	srv.Close()
	if again, err := d.Build(t.Context(), "kept", nil, nil); err != nil || again.Digest != first.Digest {
		t.Errorf("without its registry: %v", err)
	}
}

func TestStepsOnAnImageWithALogin(t *testing.T) {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	open := atomic.Bool{}
	open.Store(true)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if user, password, _ := req.BasicAuth(); !open.Load() && (user != "ann" || password != "secret") {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, req)
	}))
	defer srv.Close()
	r := &testRegistry{host: strings.TrimPrefix(srv.URL, "http://")}
	r.push(t, "app:1", imageOf(t, v1.Config{Env: []string{"FROM=image"}, User: "daemon", WorkingDir: "/srv"}, tinyRoot(t)))
	open.Store(false)

	var ran []engi.Command
	w := &fakeRunner{run: func(_ context.Context, dir string, c engi.Command, _ io.Writer) engi.Exit {
		ran = append(ran, c)
		return engi.Exit{Cause: engi.CauseExited}
	}}
	d := openTemplates(t, Options{Runner: w}, nil)
	spec := engi.BuildSpec{Name: "mine", FromImage: r.host + "/app:1", Steps: []engi.BuildStep{run("one")}}
	wantKind(t, buildErr(d, spec), engi.Denied)
	spec.Login = engi.RegistryLogin{User: "ann", Password: "wrong"}
	wantKind(t, buildErr(d, spec), engi.Denied)
	spec.Login.Password = "secret"
	tmpl, err := d.BuildSteps(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if tmpl.User != "user" || tmpl.WorkDir != "/home/user" || tmpl.Env["FROM"] != "image" || len(ran) != 1 || ran[0].User != "user" || ran[0].Dir != "/home/user" {
		t.Errorf("template %+v, ran %+v", tmpl, ran)
	}
	// The password is not stored.
	err = filepath.WalkDir(d.o.Dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte("secret")) {
			t.Errorf("%s has the password", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
