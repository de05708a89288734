package strip_test

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/access/strip"
)

const key = "engi_abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrst"

// forms returns the forms in which clients send a key.
func forms() map[string]string {
	all := map[string]string{
		"plain": key, "bearer": "Bearer " + key, "list": "a, " + key, "query": "https://api.example/?key=" + key + "&a=b", "quoted": `Token token="` + key + `"`, "escaped": strings.Replace(key, "_", "%5F", 1),
		"E2B": "e2b_" + hex.EncodeToString([]byte(key)), "E2B in capitals": "E2B_" + strings.ToUpper(hex.EncodeToString([]byte(key))),
		"subprotocol":  "base64url.bearer.authorization.example." + base64.RawURLEncoding.EncodeToString([]byte(key)),
		"after a dash": "bearer-" + base64.RawURLEncoding.EncodeToString([]byte(key)),
	}
	for _, around := range []string{"|", "user:|", "ü:|", "me:|:x", `{"key":"|"}`} {
		for name, encoding := range map[string]*base64.Encoding{"std": base64.StdEncoding, "raw": base64.RawStdEncoding, "url": base64.URLEncoding, "raw url": base64.RawURLEncoding} {
			all["Basic "+around+" "+name] = "Basic " + encoding.EncodeToString([]byte(strings.Replace(around, "|", key, 1)))
		}
	}
	return all
}

// TestKeys has each form of a key in each header that a client may use for it, and in one that nobody
// knows.
func TestKeys(t *testing.T) {
	for form, text := range forms() {
		h := http.Header{"Accept": {"text/html"}}
		for _, name := range []string{
			"Authorization", "X-Authorization", "X-Forwarded-Authorization", "X-Original-Authorization", "Proxy-Authorization", "X-Amz-Security-Token", "X-Auth-Token", "X-Api-Key", "Api-Key", "X-Goog-Api-Key",
			"Cookie2", "Referer", "Origin", "From", "User-Agent", "Link", "Forwarded", "X-Forwarded-Access-Token", "X-Access-Token", "X-Nobody-Knows",
		} {
			h[name] = []string{"first", text}
		}
		strip.Keys(h)
		if diff := cmp.Diff(http.Header{"Accept": {"text/html"}}, h); diff != "" {
			t.Errorf("%s (-want +got):\n%s", form, diff)
		}
		if strings.ContainsAny(text, ",;") {
			continue // these separate protocols and cookies
		}
		h = http.Header{"Sec-Websocket-Protocol": {"chat, " + text, "superchat"}, "Cookie": {"a=1; session=" + text + "; b=2"}}
		strip.Keys(h)
		if diff := cmp.Diff(http.Header{"Sec-Websocket-Protocol": {"chat, superchat"}, "Cookie": {"a=1; b=2"}}, h); diff != "" {
			t.Errorf("%s (-want +got):\n%s", form, diff)
		}
		h = http.Header{"Sec-Websocket-Protocol": {text}}
		if strip.Keys(h); len(h) > 0 {
			t.Errorf("%s: %v", form, h)
		}
	}
}

// TestOthersStay checks that what is no key is passed on unchanged.
func TestOthersStay(t *testing.T) {
	h := http.Header{
		"Authorization": {"Bearer sk-" + strings.Repeat("a", 100), "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+strings.Repeat("x", 100)))}, "X-Project": {"engi_demo"},
		"Cookie": {"engi_theme=dark;b=2", "c=" + strings.Repeat("A-_/+", 50)}, "Sec-Websocket-Protocol": {"engi.terminal.v1,  x"}, "X-Short": {key[:40]}, "Empty": {""}, "None": nil,
	}
	want := h.Clone()
	strip.Keys(h)
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzHasKey(f *testing.F) {
	f.Add("user:", ":x", "Basic ", ", y")
	f.Fuzz(func(t *testing.T, before, after, left, right string) {
		// A letter of base64 beside the encoded text would belong to it.
		if text := left + " " + base64.StdEncoding.EncodeToString([]byte(before+key+after)) + " " + right; !strip.HasKey(text) {
			t.Errorf("no key in %q", text)
		}
	})
}

func BenchmarkKeys(b *testing.B) {
	h := http.Header{
		"User-Agent": {"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"}, "Accept": {"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"},
		"Accept-Language": {"en-GB,en;q=0.9"}, "Cookie": {"session=" + strings.Repeat("AbC3-_", 40) + "; theme=dark"}, "Referer": {"https://3000-abc.sandbox.example/path?x=1"}, "Sec-Fetch-Mode": {"navigate"},
	}
	b.ReportAllocs()
	for b.Loop() {
		strip.Keys(h)
	}
}
