package envd

import (
	"context"
	"crypto/rand"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/tree"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

type entryInfo struct {
	Name          string            `json:"name"`
	Type          string            `json:"type"`
	Path          string            `json:"path"`
	Size          string            `json:"size"` // bytes; an int64 is a string in protobuf's JSON
	Mode          uint32            `json:"mode"`
	Permissions   string            `json:"permissions"`
	Owner         string            `json:"owner"`
	Group         string            `json:"group"`
	ModifiedTime  string            `json:"modifiedTime"`
	SymlinkTarget string            `json:"symlinkTarget,omitempty"`
	IsSymlink     bool              `json:"isSymlink,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
}

// entry describes a file. A link has the type and mode of its target, if the target
// exists.
func (h *Handler) entry(fi wire.FileInfo) entryInfo {
	own, path := fs.FileMode(fi.Mode), h.sandbox.Resolve(fi.Path, "/")
	mode, link := own, own&fs.ModeSymlink != 0
	if link {
		if to, err := os.Stat(path); err == nil {
			mode = to.Mode()
		}
		if to, err := filepath.EvalSymlinks(path); err == nil {
			fi.Target = h.sandbox.Inside(to)
		}
	}
	kind := "FILE_TYPE_FILE"
	switch {
	case mode.IsDir():
		kind = "FILE_TYPE_DIRECTORY"
	case mode&fs.ModeSymlink != 0:
		kind = "FILE_TYPE_SYMLINK"
	}
	e := entryInfo{Name: filepath.Base(fi.Path), Type: kind, Path: fi.Path, Size: strconv.FormatInt(fi.Size, 10), Mode: uint32(mode.Perm()),
		Permissions: own.String(), Owner: fi.Owner, Group: fi.Group, ModifiedTime: fi.Modified.UTC().Format(time.RFC3339Nano), SymlinkTarget: fi.Target, IsSymlink: link}
	if mode.IsRegular() {
		e.Metadata = tree.Metadata(path)
	}
	return e
}

func (h *Handler) entryAt(path string) (any, error) {
	fi, err := h.sandbox.Describe(path)
	if err != nil {
		return nil, err
	}
	return map[string]any{"entry": h.entry(fi)}, nil
}

type pathRequest struct {
	Path string `json:"path"`
}

func (h *Handler) stat(r *http.Request, in *pathRequest) (any, error) {
	path, _, err := h.resolve(r, in.Path)
	if err != nil {
		return nil, err
	}
	return h.entryAt(path)
}

func (h *Handler) makeDir(r *http.Request, in *pathRequest) (any, error) {
	path, o, err := h.resolve(r, in.Path)
	if err != nil {
		return nil, err
	}
	if err := tree.MakeDir(path, o); err != nil {
		return nil, err
	}
	return h.entryAt(path)
}

func (h *Handler) move(r *http.Request, in *struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}) (any, error) {
	from, _, err := h.resolve(r, in.Source)
	if err != nil {
		return nil, err
	}
	to, o, err := h.resolve(r, in.Destination)
	if err != nil {
		return nil, err
	}
	if err := tree.Move(from, to, o); err != nil {
		return nil, err
	}
	return h.entryAt(to)
}

func (h *Handler) listDir(r *http.Request, in *struct {
	Path  string `json:"path"`
	Depth uint32 `json:"depth"`
}) (any, error) {
	path, _, err := h.resolve(r, in.Path)
	if err != nil {
		return nil, err
	}
	all, err := h.sandbox.Entries(path, int(min(max(in.Depth, 1), 1<<20)))
	if err != nil {
		return nil, err
	}
	entries := make([]entryInfo, len(all))
	for i, fi := range all {
		entries[i] = h.entry(fi)
	}
	return map[string]any{"entries": entries}, nil
}

func (h *Handler) remove(r *http.Request, in *pathRequest) (any, error) {
	path, _, err := h.resolve(r, in.Path)
	if err != nil {
		return nil, err
	}
	return empty, tree.Remove(path)
}

type watchRequest struct {
	Path         string `json:"path"`
	Recursive    bool   `json:"recursive"`
	IncludeEntry bool   `json:"includeEntry"`
}

type watchEvent struct {
	Name  string     `json:"name"`
	Type  string     `json:"type"`
	Entry *entryInfo `json:"entry,omitempty"`
}

var eventTypes = map[engi.FileOp]string{
	engi.FileCreated: "EVENT_TYPE_CREATE",
	engi.FileWritten: "EVENT_TYPE_WRITE",
	engi.FileRemoved: "EVENT_TYPE_REMOVE",
	engi.FileRenamed: "EVENT_TYPE_RENAME",
	engi.FileMode:    "EVENT_TYPE_CHMOD",
}

func (h *Handler) watchEvent(dir string, in *watchRequest, ch wire.FileChange) watchEvent {
	e := watchEvent{Name: strings.TrimPrefix(ch.Path, dir+"/"), Type: eventTypes[ch.Op]}
	if in.IncludeEntry {
		if fi, err := h.sandbox.Describe(ch.Path); err == nil { // otherwise the file is gone by now
			entry := h.entry(fi)
			e.Entry = &entry
		}
	}
	return e
}

func (h *Handler) watchDir(r *http.Request, in *watchRequest, out *streamWriter, deadline time.Duration) error {
	path, _, err := h.resolve(r, in.Path)
	if err != nil {
		return err
	}
	w, err := tree.NewWatch(path, in.Recursive)
	if err != nil {
		return err
	}
	defer w.Close()
	ctx, cancel := context.WithCancel(r.Context())
	if deadline > 0 {
		ctx, cancel = context.WithTimeout(r.Context(), deadline)
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	if err := out.send(map[string]any{"start": empty}); err != nil {
		return err
	}
	type next struct {
		ch  wire.FileChange
		err error
	}
	changes := make(chan next)
	reading.Add(1)
	go func() {
		defer reading.Done()
		for {
			ch, err := w.Next(ctx)
			select {
			case changes <- next{ch, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	idle := time.NewTicker(keepalive(r))
	defer idle.Stop()
	for {
		select {
		case n := <-changes:
			if n.err != nil {
				return n.err
			}
			if err := out.send(map[string]any{"filesystem": h.watchEvent(path, in, n.ch)}); err != nil {
				return err
			}
		case <-idle.C:
			if err := out.send(map[string]any{"keepalive": empty}); err != nil {
				return err
			}
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "the deadline passed")
		}
	}
}

// Bounds of watchers that clients poll.
const (
	maxWatchers     = 64
	maxEvents       = 10_000
	watcherIdleTime = time.Hour
	maxWatcherName  = 64
)

// watcher collects changes for a polling client.
type watcher struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu         sync.Mutex
	events     []watchEvent
	err        error
	lastPolled time.Time
}

func (h *Handler) createWatcher(r *http.Request, in *watchRequest) (any, error) {
	path, _, err := h.resolve(r, in.Path)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	for id, w := range h.watchers { // remove watchers that clients no longer poll
		w.mu.Lock()
		idle := time.Since(w.lastPolled) > watcherIdleTime
		w.mu.Unlock()
		if idle {
			w.cancel()
			delete(h.watchers, id)
		}
	}
	full := len(h.watchers) >= maxWatchers
	h.mu.Unlock()
	if full {
		return nil, tooManyWatchers()
	}
	tw, err := tree.NewWatch(path, in.Recursive)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{cancel: cancel, done: make(chan struct{}), lastPolled: time.Now()}
	go func() {
		defer close(w.done)
		defer tw.Close()
		for {
			ch, err := tw.Next(ctx)
			w.mu.Lock()
			if err == nil && len(w.events) >= maxEvents {
				err = engi.Errorf(engi.Exhausted, "watcher: %d changes were not polled", maxEvents).WithRemedy("poll more often, or create a new watcher and list the directory again")
			}
			if err != nil {
				w.err = err
				w.mu.Unlock()
				return
			}
			w.events = append(w.events, h.watchEvent(path, in, ch))
			w.mu.Unlock()
		}
	}()
	id := "w" + strings.ToLower(rand.Text())
	h.mu.Lock()
	if full = len(h.watchers) >= maxWatchers; !full { // watchers may have been added meanwhile
		h.watchers[id] = w
	}
	h.mu.Unlock()
	if full {
		cancel()
		<-w.done
		return nil, tooManyWatchers()
	}
	return map[string]string{"watcherId": id}, nil
}

func tooManyWatchers() error {
	return engi.Errorf(engi.Exhausted, "there are %d watchers already", maxWatchers).WithRemedy("remove some")
}

type watcherRequest struct {
	ID string `json:"watcherId"`
}

func (h *Handler) watcherEvents(r *http.Request, in *watcherRequest) (any, error) {
	h.mu.Lock()
	w := h.watchers[in.ID]
	h.mu.Unlock()
	if w == nil {
		return nil, engi.Errorf(engi.NotFound, "watcher with id %.*s not found", maxWatcherName, in.ID)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	events, err := w.events, w.err
	w.events, w.lastPolled = nil, time.Now()
	if events == nil {
		if err != nil {
			return nil, err
		}
		events = []watchEvent{}
	}
	return map[string]any{"events": events}, nil
}

func (h *Handler) removeWatcher(r *http.Request, in *watcherRequest) (any, error) {
	h.mu.Lock()
	w := h.watchers[in.ID]
	delete(h.watchers, in.ID)
	h.mu.Unlock()
	if w == nil {
		return nil, engi.Errorf(engi.NotFound, "watcher with id %.*s not found", maxWatcherName, in.ID)
	}
	w.cancel()
	<-w.done
	return empty, nil
}

// Close ends the watchers.
func (h *Handler) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, w := range h.watchers {
		w.cancel()
		<-w.done
		delete(h.watchers, id)
	}
}
