package guestd_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/guest/wire"
)

// outcome is an execution as clients put it together.
type outcome struct {
	lines    []map[string]any
	out, err string
	messages int // of output
	text     string
	results  []map[string]any
	failure  map[string]any
	count    float64
	end      string
}

// lab is a guest whose programs find the interpreters of this machine.
type lab struct {
	*sdk
	path string
}

// newLab skips without python3. Interpreters are looked for in
// ENGI_TEST_KERNEL_PATH first.
func newLab(t *testing.T, programs ...string) *lab {
	t.Helper()
	path := os.Getenv("PATH")
	if more := os.Getenv("ENGI_TEST_KERNEL_PATH"); more != "" {
		path = more + ":" + path
		t.Setenv("PATH", path)
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("this machine has no %s", p)
		}
	}
	l := &lab{newSDK(t), path}
	l.setup(map[string]string{"SANDBOX": "yes"})
	return l
}

func (l *lab) setup(env map[string]string) {
	l.t.Helper()
	env["PATH"] = l.path
	b, err := json.Marshal(wire.Setup{Env: env})
	if err != nil {
		l.t.Fatal(err)
	}
	if resp := l.raw("POST", wire.Prefix+"setup", "application/json", bytes.NewReader(b), nil); resp.StatusCode != 204 {
		l.t.Fatalf("setup: %d", resp.StatusCode)
	}
}

func (l *lab) call(method, path, body string) (int, string) {
	l.t.Helper()
	resp := l.raw(method, "/interpreter/"+path, "application/json", strings.NewReader(body), nil)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

type ask struct {
	Code     string            `json:"code"`
	Context  string            `json:"context_id,omitempty"`
	Language string            `json:"language,omitempty"`
	Env      map[string]string `json:"env_vars,omitempty"`
}

// execute runs code and checks what every answer promises.
func (l *lab) execute(a ask) outcome {
	l.t.Helper()
	b, err := json.Marshal(a)
	if err != nil {
		l.t.Fatal(err)
	}
	resp := l.raw("POST", "/interpreter/execute", "application/json", bytes.NewReader(b), nil)
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		l.t.Fatalf("execute %q: status %d: %s", a.Code, resp.StatusCode, b)
	}
	return l.collect(resp.Body)
}

func (l *lab) collect(body io.Reader) (o outcome) {
	l.t.Helper()
	in := bufio.NewScanner(body)
	in.Buffer(nil, 32<<20)
	for in.Scan() {
		line := in.Text()
		if strings.IndexFunc(line, func(r rune) bool { return r > 126 || r < 32 }) >= 0 {
			l.t.Errorf("line %.200q is not ASCII", line)
		}
		m := map[string]any{}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			l.t.Fatalf("line %.200q: %v", line, err)
		}
		for k, v := range m {
			if v == nil {
				l.t.Errorf("%s is null in %.200q", k, line)
			}
		}
		o.lines = append(o.lines, m)
		switch m["type"] {
		case "stdout":
			o.out += m["text"].(string)
			o.messages++
		case "stderr":
			o.err += m["text"].(string)
		case "result":
			o.results = append(o.results, m)
			if m["is_main_result"] == true {
				o.text, _ = m["text"].(string)
			}
		case "error":
			o.failure = m
		case "number_of_executions":
			o.count, _ = m["execution_count"].(float64)
		case "end_of_execution", "unexpected_end_of_execution":
			o.end = m["type"].(string)
		}
	}
	if err := in.Err(); err != nil {
		l.t.Fatal(err)
	}
	return o
}

func (l *lab) run(language, code string) outcome {
	l.t.Helper()
	return l.execute(ask{Code: code, Language: language})
}

// want checks the text of the main result.
func (l *lab) want(language, code, text string) {
	l.t.Helper()
	if o := l.run(language, code); o.text != text || o.end != "end_of_execution" {
		l.t.Errorf("%s %q gives %q, want %q (stdout %q, stderr %q, error %v, %s)", language, code, o.text, text, o.out, o.err, o.failure, o.end)
	}
}

func TestInterpreterDrive(t *testing.T) {
	code := os.Getenv("CODE")
	if code == "" {
		t.Skip()
	}
	l := newLab(t)
	for c := range strings.SplitSeq(code, "\n---\n") {
		lang, c, _ := strings.Cut(c, ":")
		began := time.Now()
		o := l.run(lang, c)
		for _, m := range o.lines {
			b, _ := json.Marshal(m)
			t.Logf("%.600s", b)
		}
		t.Logf("== %v", time.Since(began))
	}
}

var _ = slices.Contains[[]string]
var _ = sync.Mutex{}
var _ = context.Background
var _ = http.MethodGet
var _ = filepath.Join
