package tool_test

import (
	"context"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
)

func find(t *testing.T, s tool.Services, name string) tool.Tool {
	t.Helper()
	all, err := tool.Builtin(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		if x.Name == name {
			return x
		}
	}
	t.Fatalf("there is no %s among %d tools", name, len(all))
	return tool.Tool{}
}

// oneHost is a transport that allows one host.
type oneHost struct {
	http.RoundTripper
	host string
}

func (h oneHost) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != h.host {
		return nil, engi.Errorf(engi.Denied, "%s is not allowed", r.URL.Host)
	}
	return h.RoundTripper.RoundTrip(r)
}

func TestFetch(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/text":
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Write([]byte("hello \xff"))
		case "/binary":
			w.Write([]byte("\x00\x01\x02"))
		case "/away":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/large":
			w.Write([]byte(strings.Repeat("x", 2<<20)))
		default:
			http.NotFound(w, r)
		}
	}))
	defer web.Close()
	host := strings.TrimPrefix(web.URL, "http://")
	fetch := find(t, tool.Services{Fetch: func(engi.Owner) http.RoundTripper { return oneHost{web.Client().Transport, host} }}, "fetch_url")
	for url, want := range map[string]struct {
		text   string
		failed bool
	}{
		web.URL + "/text":                {"200 OK text/plain\nhello \ufffd", false},
		web.URL + "/binary":              {"(binary, 3 bytes)", false},
		web.URL + "/nothing":             {"404", true},
		web.URL + "/away":                {"169.254.169.254 is not allowed", true},
		web.URL + "/loop":                {"redirects", true},
		web.URL + "/large":               {"xxx", false},
		"http://elsewhere.example/":      {"is not allowed", true},
		"file:///etc/passwd":             {"not a web address", true},
		"http://user:pass@" + host + "/": {"without a user", true},
		"not a url":                      {"not a web address", true},
	} {
		r, err := fetch.Run(t.Context(), &tool.Call{Out: func(engi.Stream, []byte) {}}, `{"url":"`+url+`"}`)
		if err != nil || r.Failed != want.failed || !strings.Contains(r.Text, want.text) || len(r.Text) > 1<<20+100 {
			t.Errorf("%s: %v %v %.200q", url, err, r.Failed, r.Text)
		}
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", "1a", "a b", "a/b", strings.Repeat("x", 65)} {
		if _, err := tool.New(name, "", func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return tool.Result{}, nil }); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := tool.New("a", "", func(context.Context, *tool.Call, struct{ C chan int }) (tool.Result, error) {
		return tool.Result{}, nil
	}); !engi.Is(err, engi.Invalid) {
		t.Errorf("%v", err)
	}
}

func TestToolsNeedTheirServices(t *testing.T) {
	all, err := tool.Builtin(tool.Services{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Name != "read_result" {
		t.Errorf("%+v", all)
	}
}

// oneExecution is a service of executions that has run one, which left files.
type oneExecution struct{ engi.Executions }

func (oneExecution) Start(context.Context, engi.ExecutionSpec) (engi.Execution, error) {
	return engi.Execution{ID: "exe_1"}, nil
}

func (oneExecution) Get(context.Context, engi.Viewer, engi.ExecutionID) (engi.Execution, error) {
	return engi.Execution{ID: "exe_1"}, nil
}

func (oneExecution) Watch(context.Context, engi.Viewer, engi.ExecutionID, int64) iter.Seq2[engi.ExecutionUpdate, error] {
	return func(func(engi.ExecutionUpdate, error) bool) {}
}

func (oneExecution) Wait(context.Context, engi.Viewer, engi.ExecutionID) (engi.Execution, error) {
	return engi.Execution{ID: "exe_1", Result: &engi.Result{Exit: engi.Exit{Cause: engi.CauseExited}, Artifacts: []engi.Artifact{{Path: "sub/a b.csv", Size: 3}}}}, nil
}

// TestFilesHaveAnAddress checks that a model can tell people where the files are that
// its program left.
func TestFilesHaveAnAddress(t *testing.T) {
	x := find(t, tool.Services{Executions: oneExecution{}}, "execute_code")
	r, err := x.Run(t.Context(), &tool.Call{Out: func(engi.Stream, []byte) {}}, `{"language":"python","code":"x"}`)
	if want := "file: sub/a b.csv (3 bytes, /v1/executions/exe_1/artifacts/sub/a%20b.csv)"; err != nil || !strings.Contains(r.Text, want) {
		t.Errorf("%q, %v: no %q", r.Text, err, want)
	}
}
