package httpio

import (
	"net/http/httptest"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

func TestCheckHost(t *testing.T) {
	served := []string{"Engi.example.com."}
	for name, ok := range map[string]bool{
		"localhost": true, "localhost:7777": true, "5173-x.localhost": true, "127.0.0.1:1": true, "[::1]:1": true, "192.0.2.1": true,
		"engi.example.com": true, "ENGI.example.com.:443": true,
		"evil.example.com": false, "localhost.example.com": false, "": false, "127.0.0.1.example.com": false, "notlocalhost": false,
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Host = name
		if err := CheckHost(r, served); (err == nil) != ok || err != nil && !engi.Is(err, engi.Denied) {
			t.Errorf("%q: %v", name, err)
		}
		r.Host = "evil.example.com"
		if err := CheckHost(r, []string{"*"}); err != nil {
			t.Error(err)
		}
		r.Header.Set("Origin", "https://"+name)
		if err := CheckOrigin(r, served); (err == nil) != ok {
			t.Errorf("a page of %q: %v", name, err)
		}
	}
	r := httptest.NewRequest("POST", "/", nil)
	if err := CheckOrigin(r, nil); err != nil {
		t.Error(err)
	}
	for _, origin := range []string{"null", "file://", "::"} {
		r.Header.Set("Origin", origin)
		if CheckOrigin(r, served) == nil {
			t.Errorf("a page of %q is answered", origin)
		}
	}
}
