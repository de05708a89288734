package page

import (
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	liveBuffer   = 64 // maximum number of updates that wait for a slow watcher; further ones are lost
	outputEvery  = 50 * time.Millisecond
	outputBytes  = 4 << 10
	partialEvery = 100 * time.Millisecond
)

// A liveUpdate is an update that is not stored. Watchers see it after the event `after`.
type liveUpdate struct {
	engi.PageUpdate
	after int64
}

// A live sends unstored updates to the watchers of pages. It is safe for concurrent use;
// its zero value is ready to use.
type live struct {
	mu       sync.Mutex
	watchers map[engi.SessionID]map[chan liveUpdate]bool
}

func (l *live) join(id engi.SessionID) chan liveUpdate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watchers == nil {
		l.watchers = map[engi.SessionID]map[chan liveUpdate]bool{}
	}
	if l.watchers[id] == nil {
		l.watchers[id] = map[chan liveUpdate]bool{}
	}
	w := make(chan liveUpdate, liveBuffer)
	l.watchers[id][w] = true
	return w
}

func (l *live) leave(id engi.SessionID, w chan liveUpdate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.watchers[id], w); len(l.watchers[id]) == 0 {
		delete(l.watchers, id)
	}
}

func (l *live) watched(id engi.SessionID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.watchers[id]) > 0
}

// send sends an update to the watchers of a page; slow watchers miss it.
func (l *live) send(id engi.SessionID, u liveUpdate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.watchers[id] {
		select {
		case w <- u:
		default:
		}
	}
}

// An output collects the output of a tool, and sends it in pieces of a reasonable
// size without much delay. It is safe for concurrent use.
type output struct {
	send func(call engi.ToolCall, text string)

	mu    sync.Mutex
	call  engi.ToolCall
	text  strings.Builder
	timer *time.Timer
}

func (o *output) write(call engi.ToolCall, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.call.ID != call.ID {
		o.flushLocked()
	}
	o.call = call
	for len(text) > 0 {
		n := clip.Index(text, outputBytes-o.text.Len())
		o.text.WriteString(text[:n])
		if text = text[n:]; len(text) > 0 || o.text.Len() >= outputBytes {
			o.flushLocked()
		}
	}
	if o.text.Len() > 0 && o.timer == nil {
		o.timer = time.AfterFunc(outputEvery, o.flush)
	}
}

func (o *output) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flushLocked()
}

func (o *output) flushLocked() {
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	if o.text.Len() > 0 {
		o.send(o.call, o.text.String())
		o.text.Reset()
	}
}
