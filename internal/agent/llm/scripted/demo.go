package scripted

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// Demo answers for a node without a provider. It runs code between fences,
// runs an example when asked for CSV, reports the results, draws the examples of pages,
// and otherwise describes itself.
func Demo(c Conversation) Answer {
	if c.Schema != nil {
		return Answer{Object: "{}"}
	}
	if a, ok := page(c); ok {
		return a
	}
	last := c.Last()
	if last.Role == "tool" {
		return Answer{Text: reportResults(last)}
	}
	if slices.Contains(c.Tools, "execute_code") {
		if lang, code, ok := fenced(last.Text); ok {
			return Answer{Text: "I run it.", Calls: []Call{execute(lang, code)}}
		}
		if strings.Contains(strings.ToLower(last.Text), "csv") {
			return Answer{Text: "Here is a function that parses CSV. I run it to show that it works.", Calls: []Call{execute("python", csvExample)}}
		}
	}
	return Answer{Text: "I am the demo model: I follow a script and understand nothing. " +
		"Give me code between ``` fences and I run it in a sandbox, or ask me to parse CSV. " +
		"For a model that understands, put a provider into the configuration: [providers.openai] with api_key_env, and models.default."}
}

func execute(lang, code string) Call {
	raw, err := json.Marshal(map[string]string{"language": lang, "code": code})
	if err != nil {
		panic(err) // unreachable: the value consists of strings
	}
	return Call{Name: "execute_code", Arguments: string(raw)}
}

var fence = regexp.MustCompile("(?s)```([a-zA-Z]*)[ \t]*\n(.*?)\n?```")

var fenceNames = map[string]string{"": "python", "py": "python", "python": "python", "js": "javascript", "javascript": "javascript",
	"ts": "typescript", "typescript": "typescript", "go": "go", "sh": "bash", "bash": "bash", "shell": "bash"}

func fenced(text string) (lang, code string, ok bool) {
	m := fence.FindStringSubmatch(text)
	if m == nil {
		return "", "", false
	}
	lang, ok = fenceNames[strings.ToLower(m[1])]
	return lang, m[2] + "\n", ok
}

func reportResults(t Turn) string {
	var b strings.Builder
	for _, r := range t.Results {
		text := strings.TrimSpace(r.Text)
		if strings.Contains(text, "exit code 0") {
			b.WriteString("It works. ")
		} else {
			b.WriteString("It did not work. ")
		}
		b.WriteString("This is what the sandbox says:\n\n```\n" + text + "\n```\n")
	}
	return b.String()
}

const csvExample = `import csv, io

def parse_csv(text):
    """Rows of CSV as dictionaries, by the names in the first line."""
    return list(csv.DictReader(io.StringIO(text)))

rows = parse_csv('name,city\nAda,London\n"Hopper, Grace",New York\n')
for row in rows:
    print(row)
assert rows[1]["name"] == "Hopper, Grace"
print(len(rows), "rows")
`

// RoundTrip implements [http.RoundTripper]: it answers a request within the
// process, without a socket.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	pr, pw := io.Pipe()
	w := &pipeWriter{header: http.Header{}, status: make(chan int, 1), body: pw}
	go func() {
		defer func() {
			// ServeHTTP panics to interrupt a stream.
			if p := recover(); p != nil {
				w.WriteHeader(http.StatusOK)
				pw.CloseWithError(io.ErrUnexpectedEOF)
			}
		}()
		s.ServeHTTP(w, r)
		w.WriteHeader(http.StatusOK)
		pw.Close()
	}()
	select {
	case status := <-w.status:
		return &http.Response{
			Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: w.header.Clone(), Body: pr, ContentLength: -1, Request: r,
		}, nil
	case <-r.Context().Done():
		pr.CloseWithError(r.Context().Err())
		return nil, r.Context().Err()
	}
}

// A pipeWriter is an http.ResponseWriter that writes to a pipe. It belongs to
// one goroutine.
type pipeWriter struct {
	header      http.Header
	status      chan int
	wroteHeader bool
	body        *io.PipeWriter
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(status int) {
	if !w.wroteHeader {
		w.wroteHeader = true
		w.status <- status
	}
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush implements http.Flusher; nothing is buffered.
func (w *pipeWriter) Flush() {}
