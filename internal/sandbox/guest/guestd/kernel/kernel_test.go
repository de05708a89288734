package kernel

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestASCII(t *testing.T) {
	for _, s := range []string{"", "plain", "é", "a€b", "😀", "x😀\U0010ffffy\u2028", "\x7f"} {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		got := ascii(b)
		var back string
		if err := json.Unmarshal(got, &back); err != nil || back != s {
			t.Errorf("%q became %s, which is %q (%v)", s, got, back, err)
		}
		if i := bytes.IndexFunc(got, func(r rune) bool { return r >= utf8.RuneSelf }); i >= 0 {
			t.Errorf("%q became %s", s, got)
		}
	}
}

func TestResult(t *testing.T) {
	e, err := parseEvent([]byte(`{"event":"result","main":true,"data":{"text/plain":"é","image/png":null,"text/html":5,"application/json":[1],
		"e2b/chart":{"type":"line"},"e2b/data":"no","text":"taken","type":"x","a/b":{"c":null}}}`))
	if err != nil {
		t.Fatal(err)
	}
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	want := map[string]any{"type": "result", "is_main_result": true, "text": raw(`"é"`), "json": raw("[1]"), "chart": raw(`{"type":"line"}`),
		"data": raw(`"no"`), "a/b": raw(`{"c":null}`), "extra": map[string]any{"a/b": raw(`{"c":null}`)}}
	delete(want, "data")
	if d := cmp.Diff(want, resultMessage(e)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if r := resultMessage(event{Data: map[string]json.RawMessage{"text/html": raw("null")}}); r != nil {
		t.Errorf("nothing became %v", r)
	}
}

func TestLocalIsNotForWebPages(t *testing.T) {
	h := New(nil).Local()
	for _, c := range []struct {
		host   string
		header [2]string
		status int
	}{
		{"localhost:49999", [2]string{}, 200},
		{"127.0.0.1:49999", [2]string{}, 200},
		{"0.0.0.0:49999", [2]string{}, 200},
		{"[::1]:49999", [2]string{}, 200},
		{"localhost", [2]string{"Sec-Fetch-Site", "none"}, 200},
		{"localhost:49999", [2]string{"Origin", "https://example.com"}, 403},
		{"localhost:49999", [2]string{"Origin", "null"}, 403},
		{"localhost:49999", [2]string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"rebound.example.com:49999", [2]string{}, 403},
		{"93.184.216.34:49999", [2]string{}, 403},
		{"", [2]string{}, 403},
	} {
		r := httptest.NewRequest("GET", "/health", nil)
		if r.Host = c.host; c.header[0] != "" {
			r.Header.Set(c.header[0], c.header[1])
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.status {
			t.Errorf("%q with %v: status %d, want %d: %s", c.host, c.header, w.Code, c.status, w.Body)
		}
	}
}

func TestBashMessage(t *testing.T) {
	yes := "it's"
	got := string(bashMessage(command{ID: 3, Code: "echo 'a'\x00\nfalse", Env: map[string]*string{"A": &yes, "B C": nil, "D": nil}, Own: map[string]string{"E": "x", "F-": "y"}}))
	for _, s := range []string{`export A='it'\''s'` + "\n", "unset -v D\n", "__engi_set E 'x'\n", `eval 'echo '\''a'\''` + "\nfalse' ", "__engi_end 3 $?"} {
		if !strings.Contains(got, s) {
			t.Errorf("%q is not in %q", s, got)
		}
	}
	for _, s := range []string{"B C", "F-", "\x00"} {
		if strings.Contains(got, s) {
			t.Errorf("%q is in %q", s, got)
		}
	}
}

// FuzzEvents reads anything a kernel may write. Reading must end, and everything
// sent for it must be lines of ASCII with JSON.
func FuzzEvents(f *testing.F) {
	f.Add([]byte(`{"event":"ready"}` + "\n" + `{"event":"result","main":true,"data":{"text/plain":"x","image/png":"AA=="}}` + "\n"))
	f.Add([]byte(`{"event":"error","name":"E","value":"\ud83d","traceback":"` + "\xff\xfe" + `"}` + "\n" + `{"event":"end","id":1,"status":-1}` + "\n"))
	f.Add([]byte(`{"event":"result","data":{"a/b":[[[[1e999]]]],"` + "\xf0\x9f" + `/x":{"\u0000":null}}}` + "\n"))
	f.Add([]byte("{\n\n\x00"))
	f.Add(bytes.Repeat([]byte("x"), 100<<10))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bufio.NewReaderSize(bytes.NewReader(data), 16)
		for range len(data) + 1 {
			e, err := readEvent(in)
			if err != nil {
				if k := engi.KindOf(err); k != engi.Invalid && k != engi.Unavailable {
					t.Fatalf("%v is of kind %v", err, k)
				}
				return
			}
			for _, v := range []any{resultMessage(e), errorMessage{"error", e.Name, e.Value, e.Traceback}} {
				b, err := json.Marshal(v)
				if err != nil {
					t.Fatalf("%v of %q", err, data)
				}
				if line := ascii(b); !json.Valid(line) || bytes.IndexFunc(line, func(r rune) bool { return r >= utf8.RuneSelf || r == '\n' }) >= 0 {
					t.Fatalf("%q became %q", data, line)
				}
			}
		}
		t.Fatal("reading does not end")
	})
}

func TestEventOverTheBound(t *testing.T) {
	in := bufio.NewReader(strings.NewReader(`{"event":"` + strings.Repeat("x", maxEvent) + "\"}\n"))
	if _, err := readEvent(in); !engi.Is(err, engi.Invalid) {
		t.Errorf("got %v", err)
	}
}

func TestRMessage(t *testing.T) {
	one := "a\"b\\\n"
	got := string(rMessage(command{ID: 7, Code: "x <- 'é😀'\x00", Env: map[string]*string{"A B": &one}, Own: map[string]string{"O": ""}}))
	if want := `run(7,"x <- '\U000000e9\U0001f600'",c("A B"="a\"b\\\U0000000a"),c(),c("O"=""))` + "\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := string(rMessage(command{ID: 8, Env: map[string]*string{"A": nil}})), `run(8,"",c(),c("A"),c())`+"\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestJavaMessage(t *testing.T) {
	one := "1"
	got := string(javaMessage(command{ID: 7, Code: "é\n", Own: map[string]string{"O": ""}, Env: map[string]*string{"A": &one}}))
	if want := "7 w6kK +QQ==:MQ== =Tw==:\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := string(javaMessage(command{ID: 8, Env: map[string]*string{"A": nil}})), "8  -QQ==\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
