package wall

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi"
)

// TestRequestRules has a program's requests judged by method, path and body, over
// TLS and without, and by other rules later.
func TestRequestRules(t *testing.T) {
	w := world(t)
	var mu sync.Mutex
	var got []string
	w.name("model.test", "93.184.218.60")
	w.site("model.test", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, body))
		fmt.Fprint(rw, "answered")
	}))
	b := newBox(t, "mallory", engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"model.test"}, Requests: []engi.RequestRule{
		{Host: "model.test", Methods: []string{"POST"}, Path: "/v1/messages", Body: []string{"mcp_servers absent"}},
		{Host: "model.test", Methods: []string{"GET"}, Path: "/v1/models"},
	}})
	for _, c := range []struct{ args, want string }{
		{"https://model.test/v1/models", "answered"},
		{"https://model.test/v1/files", "what may pass: POST model.test/v1/messages where mcp_servers absent, GET model.test/v1/models"},
		{"http://model.test/v1/models", "nothing may pass"},
		{`https://model.test/v1/messages --json {"a":1}`, "answered"},
		{`https://model.test/v1/messages --json {"mcp_servers":[]}`, `the body breaks "mcp_servers absent"`},
		{`https://model.test/v1/messages --json {"mcpServers":[]}`, `the body breaks "mcp_servers absent"`},
	} {
		out, _ := b.run(t, time.Minute, append([]string{"curl", "-sS", "--path-as-is"}, strings.Fields(c.args)...)...)
		if !strings.Contains(out, c.want) {
			t.Errorf("curl %s: %s", c.args, out)
		}
	}
	mu.Lock()
	text := strings.Join(got, "\n")
	mu.Unlock()
	if text != "GET /v1/models \nPOST /v1/messages {\"a\":1}" {
		t.Errorf("the host got:\n%s", text)
	}
	wantRefusal(t, b.refusals(t), `request tcp .*GET /v1/files: 403`)
	b.open(t, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Requests: []engi.RequestRule{{Host: "model.test", Methods: []string{"GET"}, Path: "/v1/files"}}})
	if out, _ := b.run(t, time.Minute, "curl", "-sS", "https://model.test/v1/files"); !strings.Contains(out, "answered") {
		t.Errorf("after a change: %s", out)
	}
}
