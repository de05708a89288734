// Package envd speaks the dialect of E2B's in-sandbox agent: REST for files,
// metrics and environment, and the Connect services process.Process and
// filesystem.Filesystem with their JSON codec. It translates only: what
// happens is package guestd's and its tree's doing.
//
// It does not authenticate. Whoever serves it has done so.
package envd

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
	"github.com/engi-dev/engi/guest/guestd/tree"
	"github.com/engi-dev/engi/guest/wire"
)

// A Sandbox is what the dialect talks about.
type Sandbox interface {
	// Start starts a command; it goes on when nobody watches.
	Start(c wire.Command) (Process, error)
	// Find returns a process by its number or tag; NotFound.
	Find(pid int, tag string) (Process, error)
	// Processes lists those that run.
	Processes() []Config
	// User returns the home and the owner number of a user; the empty name is
	// the sandbox's own. It reports Anonymous for an unknown one.
	User(name string) (home string, o tree.Owner, err error)
	// Env is what every program starts from.
	Env() map[string]string
	// Resolve makes a path of a request one that can be opened.
	Resolve(path, home string) string
	// Describe returns the file at a resolved path, with names.
	Describe(path string) (wire.FileInfo, error)
	// Entries lists a directory, with names.
	Entries(path string, depth int) ([]wire.FileInfo, error)
	// Inside turns a resolved path into what programs inside call it.
	Inside(path string) string
	// Metrics reports what is in use.
	Metrics() Metrics
}

// A Process is one that was started.
type Process interface {
	PID() int
	Terminal() bool
	Log() *child.Log
	Ended() <-chan struct{}
	Exit() engi.Exit // after Ended
	Write(ctx context.Context, data []byte) error
	CloseInput()
	Signal(name string) error
	Resize(size wire.Size) error
}

// Config describes a running process.
type Config struct {
	PID  int
	Tag  string
	Args []string
	Envs map[string]string
	Dir  string
}

// Metrics is a moment of the sandbox.
type Metrics struct {
	wire.Usage
	CPUs        int
	CPUPercent  float64 // of one processor
	MemoryTotal int64   // bytes
}

// Handler serves the dialect.
type Handler struct {
	box Sandbox
	mux *http.ServeMux

	mu       sync.Mutex
	watchers map[string]*watcher
}

// New returns a handler; it starts nothing until a request comes.
func New(box Sandbox) *Handler {
	h := &Handler{box: box, mux: http.NewServeMux(), watchers: map[string]*watcher{}}
	h.mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	h.rest("GET /files", h.download)
	h.rest("POST /files", h.upload)
	h.rest("GET /envs", func(w http.ResponseWriter, r *http.Request) error { return answer(w, box.Env()) })
	h.rest("GET /metrics", h.metrics)
	const p, f = "POST /process.Process/", "POST /filesystem.Filesystem/"
	h.mux.HandleFunc(p+"Start", stream(h.start))
	h.mux.HandleFunc(p+"Connect", stream(h.connect))
	h.mux.HandleFunc(p+"StreamInput", h.streamInput)
	h.mux.HandleFunc(p+"List", unary(h.list))
	h.mux.HandleFunc(p+"SendInput", unary(h.sendInput))
	h.mux.HandleFunc(p+"CloseStdin", unary(h.closeStdin))
	h.mux.HandleFunc(p+"SendSignal", unary(h.sendSignal))
	h.mux.HandleFunc(p+"Update", unary(h.update))
	h.mux.HandleFunc(f+"Stat", unary(h.stat))
	h.mux.HandleFunc(f+"MakeDir", unary(h.makeDir))
	h.mux.HandleFunc(f+"Move", unary(h.move))
	h.mux.HandleFunc(f+"ListDir", unary(h.listDir))
	h.mux.HandleFunc(f+"Remove", unary(h.remove))
	h.mux.HandleFunc(f+"WatchDir", stream(h.watchDir))
	h.mux.HandleFunc(f+"CreateWatcher", unary(h.createWatcher))
	h.mux.HandleFunc(f+"GetWatcherEvents", unary(h.watcherEvents))
	h.mux.HandleFunc(f+"RemoveWatcher", unary(h.removeWatcher))
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// rest handles a path whose errors are {code, message} with a status.
func (h *Handler) rest(pattern string, f func(http.ResponseWriter, *http.Request) error) {
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			status := restStatus(err)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			json.NewEncoder(w).Encode(map[string]any{"code": status, "message": err.Error()}) // a client that left hears nothing
		}
	})
}

// restStatus is what E2B's clients expect: a full disk has a status of its own.
func restStatus(err error) int {
	switch k := engi.KindOf(err); k {
	case engi.Exhausted:
		return http.StatusInsufficientStorage
	case engi.Conflict:
		return http.StatusBadRequest
	default:
		return wire.Status(k)
	}
}

func answer(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "encode answer: %v", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(b) // a client that left hears nothing
	return nil
}

// userOf returns the user a request names: in the query of REST paths, else as
// the name of basic authentication.
func userOf(r *http.Request) string {
	if u := r.URL.Query().Get("username"); u != "" {
		return u
	}
	_, b64, ok := strings.Cut(r.Header.Get("Authorization"), "Basic ")
	if !ok {
		return ""
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(b64))
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(b), ":")
	return name
}

func (h *Handler) metrics(w http.ResponseWriter, r *http.Request) error {
	m := h.box.Metrics()
	return answer(w, map[string]any{
		"ts": time.Now().Unix(), "cpu_count": m.CPUs, "cpu_used_pct": m.CPUPercent,
		"mem_used": m.Memory, "mem_total": m.MemoryTotal, "mem_cache": m.MemoryCache,
		"disk_used": m.DiskUsed, "disk_total": m.DiskTotal,
	})
}

// file resolves a path of a request below the home of its user.
func (h *Handler) file(r *http.Request, path string) (resolved string, o tree.Owner, err error) {
	home, o, err := h.box.User(userOf(r))
	if err != nil {
		return "", o, err
	}
	if path == "" {
		return "", o, engi.Errorf(engi.Invalid, "the path is empty")
	}
	if strings.IndexByte(path, 0) >= 0 || len(path) > wire.MaxPath {
		return "", o, engi.Errorf(engi.Invalid, "path %.80q cannot be a path", path)
	}
	return h.box.Resolve(path, home), o, nil
}
