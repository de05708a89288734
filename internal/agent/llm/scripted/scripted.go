// Package scripted is a fake language model that follows a script. It serves the
// wire formats of OpenAI's chat completions and embeddings, Anthropic's
// messages and Gemini's contents, at once and streamed, so that a client cannot
// tell it from a real provider. Tests use it, and a node without a provider
// offers it as the demo model.
package scripted

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
)

// A Conversation is a request, in any wire format.
type Conversation struct {
	Dialect string // openai, anthropic or gemini
	Model   string
	Key     string
	System  string
	Turns   []Turn
	Tools   []string        // names of tools
	Schema  json.RawMessage // schema of the requested object; nil for prose
	Stream  bool
	Raw     []byte // body of the request
	N       int    // number of the request, starting with 1 for the server's first one
}

// A Turn is one message.
type Turn struct {
	Role    string // user, assistant or tool
	Text    string
	Images  int
	Calls   []Call
	Results []Result
}

// A Call is a tool call.
type Call struct {
	ID, Name  string
	Arguments string // JSON, possibly invalid
}

// A Result is the result of a tool call.
type Result struct {
	ID, Text string
	Failed   bool
}

// Last returns the last turn; zero if there is none.
func (c Conversation) Last() Turn {
	if len(c.Turns) == 0 {
		return Turn{}
	}
	return c.Turns[len(c.Turns)-1]
}

// An Answer is the model's answer.
type Answer struct {
	Text   string
	Calls  []Call
	Object string // object in JSON; sent in the form of the format

	Status     int           // status of an error, unless 0 or 200
	RetryAfter int           // seconds; used only with a Status
	Delay      time.Duration // time before the answer starts
	Pace       time.Duration // time between pieces of a stream
	Cut        int           // number of pieces after which the stream breaks off; 0 means never
	Input      int           // input tokens; 0 means an estimate
	Output     int
}

// A Server is the model. It is an http.Handler, safe for concurrent use.
type Server struct {
	// Play returns the answer to a request. It must be safe for concurrent use.
	Play func(Conversation) Answer

	mu   sync.Mutex
	seen []Conversation
}

const (
	maxBody = 64 << 20
	maxSeen = 1000
)

// Seen returns the requests so far, at most the last thousand.
func (s *Server) Seen() []Conversation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Conversation(nil), s.seen...)
}

// ServeHTTP selects the format by the end of the path; any prefix is accepted.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		http.Error(w, "read the request", http.StatusBadRequest)
		return
	}
	path := r.URL.Path
	var d dialect
	switch {
	case r.Method != http.MethodPost:
		http.NotFound(w, r)
		return
	case strings.HasSuffix(path, "/chat/completions"):
		d = openai{}
	case strings.HasSuffix(path, "/messages"):
		d = anthropic{}
	case strings.HasSuffix(path, ":generateContent"), strings.HasSuffix(path, ":streamGenerateContent"):
		d = gemini{path}
	case strings.HasSuffix(path, "/embeddings"):
		embeddings(w, body)
		return
	default:
		http.NotFound(w, r)
		return
	}
	c, err := d.parse(body)
	if err != nil {
		d.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	c.Turns = mergeImages(c.Turns)
	c.Raw = body
	c.Key = key(r)
	s.mu.Lock()
	s.seen = append(s.seen, c)
	c.N = len(s.seen)
	s.seen[c.N-1].N = c.N
	if len(s.seen) > maxSeen {
		s.seen = s.seen[1:]
	}
	s.mu.Unlock()

	a := s.Play(c)
	if clock.Sleep(r.Context(), a.Delay) != nil {
		return
	}
	if a.Status != 0 && a.Status != http.StatusOK {
		if a.RetryAfter > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(a.RetryAfter))
		}
		d.refuse(w, a.Status, a.Text)
		return
	}
	for i := range a.Calls {
		if a.Calls[i].ID == "" {
			a.Calls[i].ID = fmt.Sprintf("call_%d_%d", c.N, i)
		}
	}
	if a.Input == 0 {
		a.Input = len(body)/4 + 1
	}
	if a.Output == 0 {
		a.Output = (len(a.Text)+len(a.Object))/4 + 1
	}
	if !c.Stream {
		send(w, d.whole(c, a))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for i, e := range d.pieces(c, a) {
		if a.Cut > 0 && i >= a.Cut {
			panic(http.ErrAbortHandler)
		}
		if e.name != "" {
			fmt.Fprintf(w, "event: %s\n", e.name)
		}
		fmt.Fprintf(w, "data: %s\n\n", e.data)
		if out.Flush() != nil {
			return
		}
		if a.Pace > 0 {
			if clock.Sleep(r.Context(), a.Pace) != nil {
				return
			}
		}
	}
}

// mergeImages merges a user turn with images into the results before it, since
// only some of the formats allow images in results.
func mergeImages(turns []Turn) (all []Turn) {
	for _, t := range turns {
		if n := len(all); n > 0 && t.Role == "user" && t.Images > 0 && all[n-1].Role == "tool" {
			all[n-1].Images += t.Images
			all[n-1].Text += t.Text
			continue
		}
		all = append(all, t)
	}
	return all
}

// A dialect is a wire format.
type dialect interface {
	parse(body []byte) (Conversation, error)
	whole(c Conversation, a Answer) any
	pieces(c Conversation, a Answer) []event
	refuse(w http.ResponseWriter, status int, text string)
}

type event struct {
	name string
	data string
}

type object = map[string]any

func line(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // unreachable: the value consists of strings and numbers
	}
	return string(raw)
}

func send(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, line(v))
}

func key(r *http.Request) string {
	if k, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return k
	}
	for _, h := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if k := r.Header.Get(h); k != "" {
			return k
		}
	}
	return ""
}

// cut splits text into the pieces of a stream.
func cut(text string) []string {
	const size = 12
	var parts []string
	runes := []rune(text)
	for len(runes) > 0 {
		n := min(size, len(runes))
		parts = append(parts, string(runes[:n]))
		runes = runes[n:]
	}
	return parts
}

// arguments returns the arguments of a call as an object.
func arguments(text string) any {
	var o object
	if json.Unmarshal([]byte(text), &o) != nil {
		return object{}
	}
	return o
}
