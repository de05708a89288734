package apitest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// Ask sends one request to a fixture's handler, without a network. The request has the key of
// w.User, unless a header sets another. header is a list of names and values.
func Ask(t *testing.T, w *Fixture, method, path, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+w.User)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	w.Handler.ServeHTTP(rec, r)
	return rec
}

// Read checks the status of an answer and returns its body.
func Read[T any](t *testing.T, rec *httptest.ResponseRecorder, status int) T {
	t.Helper()
	var v T
	if rec.Code != status {
		t.Fatalf("status %d, want %d: %s", rec.Code, status, rec.Body)
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil {
		t.Fatalf("%v in %s", err, rec.Body)
	}
	return v
}

// Refused checks that an answer is a complete problem document, and returns it.
func Refused(t *testing.T, rec *httptest.ResponseRecorder, status int, kind engi.Kind) v1.Problem {
	t.Helper()
	p := Read[v1.Problem](t, rec, status)
	if ct := rec.Header().Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("Content-Type %q", ct)
	}
	if p.Status != status || p.Kind != kind.String() || p.Type != "urn:engi:problem:"+kind.String() || p.Title != http.StatusText(status) ||
		p.Detail == "" || p.Remedy == "" || p.RequestID == "" || p.RequestID != rec.Header().Get("X-Request-Id") {
		t.Errorf("problem %+v, want status %d and kind %s, and every field", p, status, kind)
	}
	return p
}

// Until polls until ok returns true, for states without a notification.
func Until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never came to this: ", what)
		}
	}
}
