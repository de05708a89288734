package disk

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
)

// pulling returns options for builds of owners that may pull from these registries, and from public
// addresses.
func pulling(registries ...string) OwnerBuilds {
	return OwnerBuilds{Registry: func(roots *x509.CertPool) http.RoundTripper {
		return fetch.New(fetch.Options{Trusted: registries, Roots: roots}).Transport
	}}
}

const internal = "body of an internal service"

// internalService starts a server that counts its requests.
func internalService(t *testing.T, asked *atomic.Int32, answer http.HandlerFunc) (host string) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("X-Internal", internal)
		answer(w, r)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func TestOwnersPullFromPublicRegistriesOnly(t *testing.T) {
	var asked atomic.Int32
	inside := internalService(t, &asked, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, internal) })
	refuse := func(t *testing.T, d *Templates, ref string, kind engi.Kind) {
		t.Helper()
		err := buildErr(d, engi.BuildSpec{Name: "mine", Owner: "ann", FromImage: ref})
		wantKind(t, err, kind, ref)
		if strings.Contains(err.Error(), internal) || ref != inside+"/x" && strings.Contains(err.Error(), inside) {
			t.Errorf("the error tells of the service: %v", err)
		}
		if asked.Load() > 0 {
			t.Error("the service was asked")
		}
	}
	t.Run("a registry at a private address", func(t *testing.T) {
		refuse(t, openTemplates(t, Options{Owners: pulling()}, nil), inside+"/x", engi.Denied)
	})
	t.Run("a redirect", func(t *testing.T) {
		var n atomic.Int32
		host := internalService(t, &n, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+inside+"/", http.StatusTemporaryRedirect)
		})
		refuse(t, openTemplates(t, Options{Owners: pulling(host)}, nil), host+"/x", engi.Denied)
	})
	t.Run("a realm of tokens", func(t *testing.T) {
		var n atomic.Int32
		host := internalService(t, &n, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+inside+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
		})
		refuse(t, openTemplates(t, Options{Owners: pulling(host)}, nil), host+"/x", engi.Unavailable) // the client has no kind of error for it
	})
	t.Run("none", func(t *testing.T) {
		wantKind(t, buildErr(openTemplates(t, Options{}, nil), engi.BuildSpec{Name: "mine", Owner: "ann", FromImage: inside + "/x"}), engi.Unsupported)
	})
	t.Run("one that the operator lists", func(t *testing.T) {
		r := newRegistry(t)
		r.push(t, "app:1", imageOf(t, v1.Config{}, tinyRoot(t)))
		d := openTemplates(t, Options{Owners: pulling(r.host)}, nil)
		if err := buildErr(d, engi.BuildSpec{Name: "mine", Owner: "ann", FromImage: r.host + "/app:1"}); err != nil {
			t.Error(err)
		}
	})
}

func TestErrorsOfPullsRepeatNoAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		kind   engi.Kind
	}{
		"not found": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, internal, http.StatusNotFound) }, engi.Invalid},
		"broken":    {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, internal, http.StatusInternalServerError) }, engi.Unavailable},
		"manifest": {func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" {
				w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
				fmt.Fprint(w, internal)
			}
		}, engi.Unavailable},
		"token": {func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" {
				fmt.Fprintf(w, `{"not a token": %q}`, internal)
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
		}, engi.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			host := internalService(t, &asked, test.answer)
			d := openTemplates(t, Options{Owners: pulling(host)}, nil)
			err := buildErr(d, engi.BuildSpec{Name: "mine", Owner: "ann", FromImage: host + "/x"})
			wantKind(t, err, test.kind, host+"/x")
			if strings.Contains(err.Error(), "internal") || asked.Load() == 0 {
				t.Errorf("after %d requests: %v", asked.Load(), err)
			}
		})
	}
}

func TestOwnersPullWithoutTheNodesLogins(t *testing.T) {
	var asked, withLogin atomic.Int32
	host := internalService(t, &asked, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			withLogin.Add(1)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	dir := t.TempDir()
	login := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, base64.StdEncoding.EncodeToString([]byte("operator:password")))
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(login), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	d := openTemplates(t, Options{Owners: pulling(host)}, nil)
	wantKind(t, buildErr(d, engi.BuildSpec{Name: "mine", FromImage: host + "/x"}), engi.Denied)
	if withLogin.Load() == 0 {
		t.Fatal("the node's own builds do not use its logins")
	}
	withLogin.Store(0)
	wantKind(t, buildErr(d, engi.BuildSpec{Name: "mine", Owner: "ann", FromImage: host + "/x"}), engi.Denied)
	if withLogin.Load() > 0 {
		t.Error("an owner's build used the node's login")
	}
}

func TestOwnersBuildsSeeNothingOfTheNode(t *testing.T) {
	var ran []engi.Command
	var hosts string
	w := &fakeRunner{run: func(_ context.Context, dir string, c engi.Command, _ io.Writer) engi.Exit {
		ran = append(ran, c)
		data, err := os.ReadFile(filepath.Join(dir, "etc/hosts"))
		if err != nil {
			t.Error(err)
		}
		hosts = string(data)
		return engi.Exit{Cause: engi.CauseExited}
	}}
	d := openTemplates(t, Options{
		Runner: w, Env: []string{"PIP_EXTRA_INDEX_URL=https://ann:password@pypi.example.com", "https_proxy=http://user:password@proxy"},
		Owners: OwnerBuilds{Env: map[string]string{"PIP_INDEX_URL": "https://mirror.example.com"}},
	}, map[string][]byte{"root.tar": tinyRoot(t)})
	build(t, d, "low", "base: tar:root.tar")
	steps := []engi.BuildStep{run("env > /env")}
	if err := buildErr(d, engi.BuildSpec{Name: "nodes", FromTemplate: "low", Steps: steps}); err != nil {
		t.Fatal(err)
	}
	if env := ran[0].Env; env["PIP_EXTRA_INDEX_URL"] == "" || env["https_proxy"] == "" || env["PIP_INDEX_URL"] != "" || hosts == "" || hosts == localHosts {
		t.Errorf("the node's own build has %v and the hosts %q", env, hosts)
	}
	// The same step is not taken from the cache.
	if err := buildErr(d, engi.BuildSpec{Name: "mine", Owner: "ann", FromTemplate: "low", Steps: steps}); err != nil {
		t.Fatal(err)
	}
	if len(ran) != 2 || w.owner != "ann" {
		t.Fatalf("%d commands ran", len(ran))
	}
	for k, v := range ran[1].Env {
		if strings.Contains(v, "password") {
			t.Errorf("an owner's build has %s=%s", k, v)
		}
	}
	if ran[1].Env["PIP_INDEX_URL"] != "https://mirror.example.com" || hosts != localHosts {
		t.Errorf("an owner's build has %v and the hosts %q", ran[1].Env, hosts)
	}
}

// egressRunner writes the egress authority into the root, like a guest.
type egressRunner struct {
	*fakeRunner
	authority []byte
}

func (w egressRunner) Open(ctx context.Context, dir string, owner engi.Owner) (engi.Guest, func() error, error) {
	for name, link := range map[string]bool{egressCA: false, systemCA: false, "/etc/ssl/certs/engi-egress.pem": true} {
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if err == nil && link {
			err = os.Symlink(egressCA, at)
		} else if err == nil {
			var file *os.File
			if file, err = os.OpenFile(at, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
				_, err = file.Write(w.authority)
				file.Close()
			}
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return w.fakeRunner.Open(ctx, dir, owner)
}

// TestOwnersBuildsTrustEgress checks that commands trust the egress authority, under which they get
// packages, besides the node's certificates, and that the template does not.
func TestOwnersBuildsTrustEgress(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	srv.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	ran := 0
	w := egressRunner{&fakeRunner{run: func(_ context.Context, dir string, c engi.Command, _ io.Writer) engi.Exit {
		ran++
		ca, err := os.ReadFile("testdata/ca.pem")
		bundle, err2 := os.ReadFile(filepath.Join(dir, c.Env["SSL_CERT_FILE"]))
		if err := cmp.Or(err, err2); err != nil || !bytes.Contains(bundle, bytes.TrimSpace(ca)) || !bytes.Contains(bundle, authority) {
			t.Errorf("commands trust %s, %v", bundle, err)
		}
		return engi.Exit{Cause: engi.CauseExited}
	}}, authority}
	d := openTemplates(t, Options{Runner: w, CA: []string{"testdata/ca.pem"}, Owners: OwnerBuilds{}}, map[string][]byte{"root.tar": tinyRoot(t)})
	build(t, d, "low", "base: tar:root.tar")
	if err := buildErr(d, engi.BuildSpec{Name: "mine", Owner: "ann", FromTemplate: "low", Steps: []engi.BuildStep{run("x")}}); err != nil {
		t.Fatal(err)
	}
	tmpl, release, err := d.Use(t.Context(), "mine")
	if err != nil || ran != 1 {
		t.Fatal(ran, err)
	}
	defer release()
	for _, name := range []string{egressCA, buildCA, buildCAAll, "/etc/ssl/certs/engi-egress.pem"} {
		if _, err := os.Lstat(filepath.Join(tmpl.Root, name)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	if bundle, err := os.ReadFile(filepath.Join(tmpl.Root, systemCA)); err != nil || bytes.Contains(bundle, authority) {
		t.Errorf("the template trusts %s, %v", bundle, err)
	}
}

// TestOwnersBuildsFitTheirQuota checks that a step that writes more than the quota permits ends, and
// leaves no files.
func TestOwnersBuildsFitTheirQuota(t *testing.T) {
	for _, overlays := range []bool{true, false} {
		t.Run(map[bool]string{true: "overlay", false: "copy"}[overlays], func(t *testing.T) {
			r := newRegistry(t)
			r.push(t, "app:1", imageOf(t, v1.Config{}, tinyRoot(t), tarOf(t, file("big", strings.Repeat("x", 6<<20)))))
			var ended bool
			w := &fakeRunner{run: func(ctx context.Context, dir string, c engi.Command, _ io.Writer) engi.Exit {
				var size int
				var then string
				if _, err := fmt.Sscan(c.Args[2], &size, &then); err != nil {
					t.Error(err)
				}
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("file", size)), make([]byte, size<<20), 0o644); err != nil {
					t.Error(err)
				}
				if then == "wait" {
					<-ctx.Done()
					ended = true
				}
				return engi.Exit{Cause: engi.CauseExited}
			}}
			var refused int
			owners := pulling(r.host)
			owners.Room = func(_ context.Context, owner engi.Owner) (int64, error) {
				return map[engi.Owner]int64{"ann": 5 << 20, "rich": math.MaxInt64}[owner], nil
			}
			owners.Refused = func(owner engi.Owner, quota string) { refused++ }
			d := openTemplates(t, Options{Runner: w, Owners: owners}, map[string][]byte{"root.tar": tinyRoot(t)})
			if overlays {
				need(t, d.overlayWorks(), "overlay mounts")
			} else {
				d.overlayProbe.Do(func() {})
			}
			build(t, d, "low", "base: tar:root.tar")
			archive := filepath.Join(t.TempDir(), "a.tar")
			if err := os.WriteFile(archive, packed(t, true, map[string]string{"big": strings.Repeat("x", 6<<20)}), 0o600); err != nil {
				t.Fatal(err)
			}
			spec := func(name string, owner engi.Owner, steps ...engi.BuildStep) engi.BuildSpec {
				return engi.BuildSpec{Name: name, Owner: owner, FromTemplate: "low", Steps: steps}
			}
			fails := func(what string, s engi.BuildSpec) {
				t.Helper()
				before, err := d.dir.usedBy(s.Owner)
				if err != nil {
					t.Fatal(err)
				}
				wantKind(t, buildErr(d, s), engi.Exhausted)
				if after, err := d.dir.usedBy(s.Owner); after > before || err != nil {
					t.Errorf("%s: %d bytes more are used, %v", what, after-before, err)
				}
				noMounts(t, d)
			}
			fails("a command that goes on", spec("a", "ann", run("6 wait")))
			if !ended {
				t.Error("the command went on")
			}
			fails("a command that ends", spec("a", "ann", run("6 end")))
			fails("a copy", spec("a", "ann", engi.BuildStep{Type: engi.StepCopy, Args: []string{"big", "/big"}, Archive: archive}))
			fails("an image", engi.BuildSpec{Name: "a", Owner: "ann", FromImage: r.host + "/app:1"})
			fails("nothing is left", engi.BuildSpec{Name: "b", Owner: "poor", FromTemplate: "low"})
			if refused < 3 {
				t.Errorf("%d refusals were told of", refused)
			}
			for _, owner := range []engi.Owner{"", "rich"} {
				if err := buildErr(d, spec("free"+string(owner), owner, run("6 end"))); err != nil {
					t.Errorf("a build of %q: %v", owner, err)
				}
			}

			// The sizes of templates add up, until they are removed.
			if err := buildErr(d, spec("a", "ann", run("3 end"))); err != nil {
				t.Fatal(err)
			}
			if used, err := d.dir.usedBy("ann"); used < 3<<20 || used > 4<<20 || err != nil {
				t.Errorf("%d bytes are used, %v", used, err)
			}
			fails("another template", spec("b", "ann", run("4 end")))
			names := []string{"a"}
			if overlays { // the build takes the step from the cache
				if err := buildErr(d, spec("a2", "ann", run("3 end"))); err != nil {
					t.Errorf("the same template once more: %v", err)
				}
				names = append(names, "a2")
			}
			for _, name := range names {
				if err := d.Remove(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
			if err := buildErr(d, spec("b", "ann", run("4 end"))); err != nil {
				t.Errorf("in the room of a removed template: %v", err)
			}
		})
	}
}

// TestMeasureOfHostileTrees checks that links are not followed, and that the depth is bounded.
func TestMeasureOfHostileTrees(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/", filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "one"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "one"), filepath.Join(dir, "two")); err != nil {
		t.Fatal(err)
	}
	if n, err := measure(t.Context(), dir); n < 1<<20 || n > 1<<20+1<<16 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDepth+1)), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := measure(t.Context(), dir)
	wantKind(t, err, engi.Exhausted)
}
