package ide

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/env"
)

const jupyter, port = "jupyterlab", 8888

func serve(t *testing.T) *env.Server {
	t.Helper()
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
		if out, err := exec.CommandContext(t.Context(), os.Getenv("ENGI_BIN"), "template", "build", jupyter).CombinedOutput(); err != nil {
			t.Fatalf("build the template %s: %v\n%s", jupyter, err, out)
		}
	}
	return env.Serve(t, env.ServerOptions{Config: "[preview]\npath = true\n[sandbox]\nenabled = true\n", Templates: []string{jupyter}})
}

// TestJupyterInABrowser opens JupyterLab in a session by a link, and checks that a cell
// runs and that the notebook is in the session's volume.
func TestJupyterInABrowser(t *testing.T) {
	env.Slow(t)
	chromium := "/usr/bin/chromium"
	if v := os.Getenv("ENGI_TEST_CHROMIUM"); v != "" {
		chromium = v
	}
	for path, of := range map[string]string{chromium: "make setup", "browser/node_modules": "make packages"} {
		if _, err := os.Stat(path); err != nil {
			env.Need(t, path+" ("+of+")")
		}
	}
	s := serve(t)
	began := time.Now()
	session, err := s.CreateSession(t.Context(), v1.SessionRequest{Name: "lab", Template: jupyter, Mode: "warm"})
	if err != nil {
		t.Fatal(err)
	}
	for session.State != "running" {
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("the session is %s", session.State)
		}
		time.Sleep(100 * time.Millisecond)
		if session, err = s.Session(t.Context(), "lab"); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s is ready after %v", session.SandboxID, time.Since(began).Round(time.Millisecond))
	link, err := s.LinkPort(t.Context(), session.SandboxID, port, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("shots", 0o755); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	drive := exec.CommandContext(t.Context(), "node", "browser/drive.mjs", link.URL, chromium, "shots/jupyterlab.png")
	var stderr bytes.Buffer
	drive.Stderr = &stderr
	out, err := drive.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var seen struct {
		Output, Path      string
		Problems, Foreign []string
		Sockets           []struct {
			URL    string
			Frames int
		}
	}
	if err := json.Unmarshal(out, &seen); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	t.Logf("the notebook is saved after %v", time.Since(began).Round(time.Millisecond))
	if seen.Output != "42" || !strings.HasPrefix(seen.Path, "/lab/") {
		t.Errorf("the page %s shows %q", seen.Path, seen.Output)
	}
	if len(seen.Problems)+len(seen.Foreign) > 0 {
		t.Errorf("problems %q, requests to others %q", seen.Problems, seen.Foreign)
	}
	kernel := false
	for _, socket := range seen.Sockets {
		kernel = kernel || strings.Contains(socket.URL, "/api/kernels/") && strings.HasPrefix(socket.URL, "ws://8888-") && socket.Frames > 0
	}
	if !kernel {
		t.Errorf("no kernel spoke over a socket: %+v", seen.Sockets)
	}
	read, err := s.Files(session.SandboxID).Open(t.Context(), "/workspace/Untitled.ipynb")
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if notebook, err := io.ReadAll(read); err != nil || !bytes.Contains(notebook, []byte(`"42\n"`)) {
		t.Errorf("the notebook is %s, %v", notebook, err)
	}
}

// TestJupyterIsPrivate checks that a client needs a key or a link, although the sandbox
// was created without such a policy, and that no other page can use the browser's cookie.
// A program with a key runs code, with the URL of the path and that of the name.
func TestJupyterIsPrivate(t *testing.T) {
	env.Slow(t)
	s := serve(t)
	x, err := s.CreateSandbox(t.Context(), v1.SandboxRequest{Template: jupyter})
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Port(t.Context(), x.ID, port)
	if err != nil || !p.Listening {
		t.Fatalf("%+v, %v", p, err)
	}
	server, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	// The resolver of this machine may not know names below localhost.
	dial := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.Host)
	}}
	defer dial.CloseIdleConnections()
	for name, at := range map[string]string{"name": strings.TrimSuffix(p.URL, "/"), "path": fmt.Sprintf("%s/preview/%s/%d", s.URL, x.ID, port)} {
		t.Run(name, func(t *testing.T) {
			jar, err := cookiejar.New(nil)
			if err != nil {
				t.Fatal(err)
			}
			c := &http.Client{Transport: dial, Jar: jar}
			ask := func(method, path, body string, header ...string) (int, []byte) {
				t.Helper()
				q, err := http.NewRequestWithContext(t.Context(), method, at+path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(header); i += 2 {
					q.Header.Set(header[i], header[i+1])
				}
				res, err := c.Do(q)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				got, err := io.ReadAll(res.Body)
				if err != nil {
					t.Fatal(err)
				}
				return res.StatusCode, got
			}
			if status, body := ask("GET", "/api/status", ""); status != http.StatusForbidden {
				t.Fatalf("without a key: %d %s", status, body)
			}
			if status, body := ask("GET", "/lab", "", "Authorization", "Bearer "+s.Key); status != http.StatusOK || !bytes.Contains(body, []byte("JupyterLab")) {
				t.Fatalf("with a key: %d %.300s", status, body)
			}
			where, err := url.Parse(at + "/")
			if err != nil {
				t.Fatal(err)
			}
			xsrf := ""
			for _, cookie := range jar.Cookies(where) {
				if cookie.Name == "_xsrf" {
					xsrf = cookie.Value
				}
			}
			if status, body := ask("POST", "/api/kernels", "{}", "Authorization", "Bearer "+s.Key); status != http.StatusForbidden {
				t.Errorf("a form of another page: %d %s", status, body)
			}
			status, body := ask("POST", "/api/kernels", "{}", "Authorization", "Bearer "+s.Key, "X-XSRFToken", xsrf)
			var kernel struct{ ID string }
			if err := json.Unmarshal(body, &kernel); err != nil || status != http.StatusCreated {
				t.Fatalf("a kernel: %d %s", status, body)
			}
			socket := "ws" + strings.TrimPrefix(at, "http") + "/api/kernels/" + kernel.ID + "/channels"
			header := http.Header{"Authorization": {"Bearer " + s.Key}, "Origin": {"http://evil.example"}}
			if ws, res, err := websocket.Dial(t.Context(), socket, &websocket.DialOptions{HTTPClient: c, HTTPHeader: header}); err == nil {
				ws.CloseNow()
				t.Error("a page of another host may use the kernel")
			} else if res == nil || res.StatusCode != http.StatusForbidden {
				t.Errorf("a page of another host: %v", err)
			}
			header.Del("Origin")
			ws, _, err := websocket.Dial(t.Context(), socket, &websocket.DialOptions{HTTPClient: c, HTTPHeader: header})
			if err != nil {
				t.Fatal(err)
			}
			defer ws.CloseNow()
			ws.SetReadLimit(1 << 20)
			if got := evaluate(t, ws, "print(6*7)"); got != "42\n" {
				t.Errorf("the kernel printed %q", got)
			}
		})
	}
}

// evaluate runs code in a kernel, with Jupyter's messages, and returns its output.
func evaluate(t *testing.T, ws *websocket.Conn, code string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	type message struct {
		Header  map[string]any `json:"header"`
		Parent  map[string]any `json:"parent_header"`
		Meta    map[string]any `json:"metadata"`
		Channel string         `json:"channel"`
		Content map[string]any `json:"content"`
	}
	err := wsjson.Write(ctx, ws, message{
		Header: map[string]any{"msg_id": "1", "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3", "date": ""},
		Parent: map[string]any{}, Meta: map[string]any{}, Channel: "shell",
		Content: map[string]any{"code": code, "silent": false, "store_history": false, "user_expressions": map[string]any{}, "allow_stdin": false},
	})
	if err != nil {
		t.Fatal(err)
	}
	printed := ""
	for {
		var m message
		if err := wsjson.Read(ctx, ws, &m); err != nil {
			t.Fatal(err)
		}
		if m.Parent["msg_id"] != "1" {
			continue
		}
		switch m.Header["msg_type"] {
		case "stream":
			printed += fmt.Sprint(m.Content["text"])
		case "status":
			if m.Content["execution_state"] == "idle" {
				return printed
			}
		}
	}
}
