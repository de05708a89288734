package egress

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/env"
)

// TestKillDuringBuild kills the server while a command of an owner's build runs
// behind the egress gateway. The next start removes its remains, reports the end of the
// build, and builds again.
func TestKillDuringBuild(t *testing.T) {
	env.Slow(t)
	testInternet(t)
	s := env.Serve(t, env.ServerOptions{})
	k, err := s.CreateKey(t.Context(), v1.KeyRequest{Name: "ann", Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(status int, method, path, body string) map[string]any {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-API-Key", k.Secret)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != status {
			t.Fatalf("%s %s: %d %s, %v", method, path, resp.StatusCode, answer, err)
		}
		m := map[string]any{}
		if len(answer) > 0 {
			if err := json.Unmarshal(answer, &m); err != nil {
				t.Fatalf("%s %s: %s: %v", method, path, answer, err)
			}
		}
		return m
	}
	eventually := func(what string, f func() (bool, string)) {
		t.Helper()
		last := ""
		for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
			var ok bool
			if ok, last = f(); ok {
				return
			}
		}
		t.Fatalf("not %s: %s", what, last)
	}
	build := func(command string) (id, status string) {
		t.Helper()
		m := ask(202, "POST", "/v3/templates", `{"name":"killed"}`)
		id, build := m["templateID"].(string), m["buildID"].(string)
		ask(202, "POST", "/v2/templates/"+id+"/builds/"+build, `{"fromTemplate":"base","force":true,"steps":[{"type":"RUN","args":["`+command+`"]}]}`)
		return id, "/templates/" + id + "/builds/" + build + "/status"
	}
	leaks := func() (bool, string) {
		out, err := s.Engi("doctor", "--leaks", "--json").CombinedOutput()
		return err == nil, string(out)
	}

	id, status := build("echo it has begun; sleep 300")
	eventually("begun", func() (bool, string) {
		all, err := json.Marshal(ask(200, "GET", status, "")["logs"])
		return err == nil && strings.Contains(string(all), "it has begun"), string(all)
	})
	s.Kill()
	if clean, out := leaks(); clean {
		t.Errorf("the killed build has left nothing to be found: %s", out)
	}
	s.Start()
	eventually("clean", leaks)
	m := ask(200, "GET", status, "")
	if reason, _ := m["reason"].(map[string]any); m["status"] != "error" || reason["message"] == nil || reason["message"] == "" {
		t.Errorf("the build is %v", m)
	}
	_, status = build("echo again")
	eventually("built", func() (bool, string) {
		m := ask(200, "GET", status, "")
		out, err := json.Marshal(m)
		return err == nil && m["status"] == "ready", string(out)
	})
	ask(204, "DELETE", "/templates/"+id, "")
}
