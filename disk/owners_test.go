package disk

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/fetch"
)

// pulling are builds of owners that may pull from these registries, and from public
// addresses.
func pulling(registries ...string) OwnerBuilds {
	return OwnerBuilds{Registry: func(roots *x509.CertPool) http.RoundTripper {
		return fetch.New(fetch.Options{Trusted: registries, Roots: roots}).Transport
	}}
}

const internal = "body of an internal service"

// internalService counts the requests it gets.
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
