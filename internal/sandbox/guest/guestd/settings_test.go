package guestd

import (
	"io"
	"maps"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

func TestSecondSetupKeepsTheRest(t *testing.T) {
	s := New(Options{Root: t.TempDir(), Token: "t", InProcess: true})
	defer s.Close()
	ask := func(method, path, body string, want int) string {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set(wire.TokenHeader, "t")
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, r)
		b, err := io.ReadAll(w.Result().Body)
		if err != nil || w.Code != want {
			t.Fatalf("%s %s: status %d (%s), want %d", method, path, w.Code, b, want)
		}
		return string(b)
	}
	ask("POST", "/engi/setup", `{"user":"user","uid":1000,"gid":1000,"home":"/home/user","work_dir":"/work","processes":9,"env":{"A":"1","B":"2"}}`, 204)
	for _, step := range []struct{ body, envs string }{
		{`{}`, `{"A":"1","B":"2"}`},
		{`{"env":{"C":"3","PATH":"/bin"}}`, `{"C":"3","PATH":"/bin"}`},
		{`{"env":null,"open_files":77}`, `{"C":"3","PATH":"/bin"}`},
		{`{"env":{}}`, `{}`},
	} {
		ask("POST", "/engi/setup", step.body, 204)
		if got := ask("GET", "/envs", "", 200); got != step.envs {
			t.Errorf("after %s: env %s, want %s", step.body, got, step.envs)
		}
	}
	ask("POST", "/engi/setup", `{"env":{"A=B":"x"}}`, 400)
	ask("POST", "/engi/setup", `{"work_dir":"no/root"}`, 400)
	a := s.settings()
	if a.User != "user" || a.UID != 1000 || a.requested.Home != "/home/user" || a.requested.WorkDir != "/work" || a.Processes != 9 || a.OpenFiles != 77 ||
		a.env["PATH"] != defaultPath || a.env["USER"] != "user" || a.OutputDir != a.WorkDir {
		t.Errorf("the account is %+v", a)
	}
	ask("POST", "/engi/setup", `{"user":"other","uid":1001,"gid":1001,"env":{"A":"1"}}`, 204)
	if b := s.settings(); b.UID != 1001 || b.requested.Home != "" || b.Home == a.Home || b.env["USER"] != "other" || maps.Equal(a.env, b.env) {
		t.Errorf("as another user the account is %+v", b)
	}
}
