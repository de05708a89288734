// Package envd serves the API of E2B's envd: REST for files, metrics and
// environment, and the Connect services process.Process and
// filesystem.Filesystem with the JSON codec. It only translates requests; the work is done
// by packages guestd and tree. The caller authenticates requests.
package envd

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/tree"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// A Sandbox holds the operations of package guestd that the API needs.
type Sandbox interface {
	// Start starts a command, which continues without a follower.
	Start(c wire.Command) (Process, error)
	// Find returns a process by PID or tag. It reports NotFound.
	Find(pid int, tag string) (Process, error)
	// Processes lists the running processes.
	Processes() []Config
	// User returns the home and the IDs of a user; the empty name is the
	// sandbox's default user. It reports Anonymous for an unknown user.
	User(name string) (home string, o tree.Owner, err error)
	// Env returns the environment of every program. The caller may change it.
	Env() map[string]string
	// Resolve turns a path in a request into a path that can be opened.
	Resolve(path, home string) string
	// Describe describes the file at a resolved path, with names of owners.
	Describe(path string) (wire.FileInfo, error)
	// Entries lists a directory, with names of owners.
	Entries(path string, depth int) ([]wire.FileInfo, error)
	// Inside is the inverse of Resolve.
	Inside(path string) string
	// Metrics reports the use of resources.
	Metrics() Metrics
}

// A Process is a started process.
type Process interface {
	PID() int
	Terminal() bool
	Log() *child.Log
	Ended() <-chan struct{}
	Exit() engi.Exit // valid once Ended is closed
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

// Metrics is the use of resources at one moment.
type Metrics struct {
	wire.Usage
	CPUs        int
	CPUPercent  float64 // percent of one processor
	MemoryTotal int64   // bytes
}

// Handler serves the API.
type Handler struct {
	sandbox Sandbox

	mu       sync.Mutex
	watchers map[string]*watcher
}

// New returns a handler. Close it.
func New(sandbox Sandbox) *Handler {
	return &Handler{sandbox: sandbox, watchers: map[string]*watcher{}}
}

// Routes returns all handlers of the API by patterns of [http.ServeMux].
func (h *Handler) Routes() map[string]http.HandlerFunc {
	const p, f = "POST /process.Process/", "POST /filesystem.Filesystem/"
	return map[string]http.HandlerFunc{
		"GET /health":          func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"GET /files":           rest(h.download),
		"POST /files":          rest(h.upload),
		"GET /envs":            rest(func(w http.ResponseWriter, r *http.Request) error { return wire.WriteJSON(w, h.sandbox.Env()) }),
		"GET /metrics":         rest(h.metrics),
		p + "Start":            stream(h.start),
		p + "Connect":          stream(h.connect),
		p + "StreamInput":      h.streamInput,
		p + "List":             unary(h.list),
		p + "SendInput":        unary(h.sendInput),
		p + "CloseStdin":       unary(h.closeStdin),
		p + "SendSignal":       unary(h.sendSignal),
		p + "Update":           unary(h.update),
		f + "Stat":             unary(h.stat),
		f + "MakeDir":          unary(h.makeDir),
		f + "Move":             unary(h.move),
		f + "ListDir":          unary(h.listDir),
		f + "Remove":           unary(h.remove),
		f + "WatchDir":         stream(h.watchDir),
		f + "CreateWatcher":    unary(h.createWatcher),
		f + "GetWatcherEvents": unary(h.watcherEvents),
		f + "RemoveWatcher":    unary(h.removeWatcher),
	}
}

// rest serves a REST path. It sends an error as {code, message} with its HTTP status.
func rest(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			status := restStatus(err)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			json.NewEncoder(w).Encode(map[string]any{"code": status, "message": err.Error()}) // fails if the client has disconnected
		}
	}
}

// restStatus returns the HTTP status that E2B's clients expect. It differs for a full
// disk and for conflicts.
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

// userOf returns the user named in the query of a request, or as the user of
// basic authentication.
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
	m := h.sandbox.Metrics()
	return wire.WriteJSON(w, map[string]any{
		"ts": time.Now().Unix(), "cpu_count": m.CPUs, "cpu_used_pct": m.CPUPercent,
		"mem_used": m.Memory, "mem_total": m.MemoryTotal, "mem_cache": m.MemoryCache,
		"disk_used": m.DiskUsed, "disk_total": m.DiskTotal,
	})
}

// resolve resolves a path in a request, relative to the home of its user.
func (h *Handler) resolve(r *http.Request, path string) (resolved string, o tree.Owner, err error) {
	home, o, err := h.sandbox.User(userOf(r))
	if err != nil {
		return "", o, err
	}
	if path == "" {
		return "", o, engi.Errorf(engi.Invalid, "the path is empty")
	}
	if strings.IndexByte(path, 0) >= 0 || len(path) > wire.MaxPath {
		return "", o, engi.Errorf(engi.Invalid, "path %.80q is not valid", path)
	}
	return h.sandbox.Resolve(path, home), o, nil
}
