package e2b

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// fakeVolumes has one volume, whose files nobody reads.
type fakeVolumes struct {
	engi.Volumes
	one engi.Volume
}

func (v fakeVolumes) Get(context.Context, engi.Viewer, string) (engi.Volume, error) {
	return v.one, nil
}

func (v fakeVolumes) Files(context.Context, engi.Viewer, string) (engi.VolumeFiles, error) {
	return nil, engi.Errorf(engi.NotFound, "these are files")
}

// TestTokensEndWithTheirKey tries every kind of token before and after the key that it was
// given to is revoked, beside those that other keys were given for the same.
func TestTokensEndWithTheirKey(t *testing.T) {
	before := lookAgain
	lookAgain = 10 * time.Millisecond
	t.Cleanup(func() { lookAgain = before })
	w := newFixture(t, func(o *Options) {
		o.Volumes = fakeVolumes{one: engi.Volume{ID: engi.NewVolumeID(), Owner: "ann", Name: "data"}}
	})
	began, ended := make(chan bool), make(chan bool, 1)
	w.sandboxes.guest = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/process.Process/Connect" {
			close(began)
			<-r.Context().Done()
			ended <- true
			return
		}
		io.WriteString(rw, "{}")
	})
	made := w.want(201, "ann", "POST", "/v2/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`)
	id := made["sandboxID"].(string)
	template := w.want(202, "ann", "POST", "/v3/templates", `{"name":"mine"}`)["templateID"].(string)
	w.sandboxes.mu.Lock()
	sandbox := w.sandboxes.all[0]
	w.sandboxes.mu.Unlock()
	volume := w.want(200, "ann", "GET", "/volumes/data", "")["volumeID"].(string)

	type tokens struct{ access, traffic, volume, upload string }
	given := func(key string) tokens {
		v := w.want(200, key, "POST", "/sandboxes/"+id+"/connect", `{"timeout":60}`)
		return tokens{v["envdAccessToken"].(string), v["trafficAccessToken"].(string), w.want(200, key, "GET", "/volumes/data", "")["token"].(string),
			w.want(201, key, "GET", "/templates/"+template+"/files/abc", "")["url"].(string)}
	}
	allowed := func(token string) bool {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set(trafficHeader, token)
		return w.Allow(r, sandbox) == nil
	}
	check := func(who string, x tokens, good bool) {
		t.Helper()
		status := func(yes int) int {
			if good {
				return yes
			}
			return 401
		}
		g := signature{path: "/f", operation: "read"}
		q := url.Values{"path": {"/f"}, "signature": {sign(g, x.access)}}
		for name, c := range map[string]struct {
			status int
			path   string
			header []string
		}{
			"envd":                {status(200), "/envs", []string{sandboxHeader, id, portHeader, "49983", accessHeader, x.access}},
			"signed":              {status(200), "/files?" + q.Encode(), []string{sandboxHeader, id, portHeader, "49983"}},
			"signed, no sandbox":  {status(200), "/files?" + q.Encode(), nil},
			"content of a volume": {status(404), "/volumecontent/" + volume + "/dir?path=/", []string{"Authorization", "Bearer " + x.volume}},
		} {
			if got, _, m := w.call("", "GET", c.path, "", c.header...); got != c.status {
				t.Errorf("%s of %s: status %d, want %d: %v", name, who, got, c.status, m)
			}
		}
		if got, _, m := w.call("", "GET", "/contexts", "", sandboxHeader, id, portHeader, "49999", trafficHeader, x.traffic); (got == 200) != good {
			t.Errorf("contexts of %s: status %d: %v", who, got, m)
		}
		if got := allowed(x.traffic); got != good {
			t.Errorf("ports of %s: %t", who, got)
		}
		if got, _, m := w.call("", "PUT", x.upload, "x"); (got < 300) != good {
			t.Errorf("upload of %s: status %d: %v", who, got, m)
		}
	}
	ann, other, root := given("ann"), given("ann's other"), given("root")
	check("ann", ann, true)
	check("ann's other", other, true)
	check("root", root, true)
	ben := func(purpose, object string) string { return w.token(purpose, object, "ben") }
	check("ben", tokens{ben(toEnvd, string(sandbox.ID)), ben(toPorts, string(sandbox.ID)), ben(toVolume, volume), strings.SplitAfter(ann.upload, "signature=")[0] + ben(toArchive, template+"/abc/1")}, false)
	check("nobody", tokens{upload: strings.SplitAfter(ann.upload, "signature=")[0]}, false)

	var asking sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer asking.Wait()
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "POST", w.url+"/process.Process/Connect", nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{sandboxHeader: id, portHeader: "49983", accessHeader: ann.access} {
		r.Header.Set(k, v)
	}
	asking.Go(func() {
		if res, err := http.DefaultClient.Do(r); err == nil {
			res.Body.Close()
		}
	})
	<-began
	port := httptest.NewRequest("GET", "/", nil)
	port.Header.Set(trafficHeader, ann.traffic)
	visit, release := w.While(port, sandbox)
	defer release()

	time.Sleep(5 * lookAgain)
	if len(ended) > 0 || visit.Err() != nil {
		t.Error("requests end before their key does")
	}
	if err := w.Keys.Revoke(t.Context(), engi.Everyone, "ann"); err != nil {
		t.Fatal(err)
	}
	for _, over := range []<-chan struct{}{visit.Done(), closed(ended)} {
		select {
		case <-over:
		case <-time.After(time.Minute):
			t.Fatal("a request outlives its key")
		}
	}
	check("ann, who is revoked", ann, false)
	check("ann's other", other, true)
	check("root", root, true)
}

// closed returns a channel that is closed once c has sent something.
func closed(c <-chan bool) <-chan struct{} {
	done := make(chan struct{})
	go func() { <-c; close(done) }()
	return done
}
