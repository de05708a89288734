package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/api/v1"
)

// terminalsOf returns the path of the terminals of a session, or of a sandbox if
// place is the ID of one.
func terminalsOf(place string) string {
	if strings.HasPrefix(place, "sbx_") {
		return sandboxes + segment(place) + "/terminals"
	}
	return sessions + segment(place) + "/terminals"
}

func terminalOf(place, id string) string { return terminalsOf(place) + segment(id) }

// CreateTerminal starts a terminal in a session, given by ID or name, or in a sandbox.
func (c *Client) CreateTerminal(ctx context.Context, place string, q v1.TerminalRequest) (v1.Terminal, error) {
	return create[v1.Terminal](ctx, c, terminalsOf(place), q)
}

// Terminals returns the terminals of a session or sandbox, newest first.
func (c *Client) Terminals(ctx context.Context, place string) ([]v1.Terminal, error) {
	return list[v1.Terminal](ctx, c, terminalsOf(place), nil)
}

// Terminal returns one terminal.
func (c *Client) Terminal(ctx context.Context, place, id string) (v1.Terminal, error) {
	return get[v1.Terminal](ctx, c, terminalOf(place, id), nil)
}

// EndTerminal ends the program of a terminal.
func (c *Client) EndTerminal(ctx context.Context, place, id string) error {
	return c.remove(ctx, terminalOf(place, id))
}

// TerminalScreen returns the screen of a terminal.
func (c *Client) TerminalScreen(ctx context.Context, place, id string) (v1.TerminalScreen, error) {
	return get[v1.TerminalScreen](ctx, c, terminalOf(place, id)+"/screen", nil)
}

// TerminalRecording returns the kept output of a terminal, in version 2 or 3 of
// asciicast. The caller closes it.
func (c *Client) TerminalRecording(ctx context.Context, place, id string, version int) (io.ReadCloser, error) {
	resp, err := c.do(ctx, &call{method: http.MethodGet, path: terminalOf(place, id) + "/recording", query: url.Values{"format": {strconv.Itoa(version)}}})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// ShareTerminal creates a link to a terminal. Only this answer has the link's secret.
func (c *Client) ShareTerminal(ctx context.Context, place, id string, q v1.TerminalLinkRequest) (v1.TerminalLink, error) {
	return create[v1.TerminalLink](ctx, c, terminalOf(place, id)+"/links", q)
}

// TerminalLinks returns the links of a terminal that have not expired.
func (c *Client) TerminalLinks(ctx context.Context, place, id string) ([]v1.TerminalLink, error) {
	return list[v1.TerminalLink](ctx, c, terminalOf(place, id)+"/links", nil)
}

// UnshareTerminal revokes a link, and disconnects its users.
func (c *Client) UnshareTerminal(ctx context.Context, place, id, link string) error {
	return c.remove(ctx, terminalOf(place, id)+"/links"+segment(link))
}

// Offsets to attach at, besides offsets in bytes.
const (
	FromOldest = -1 // all kept output
	FromScreen = -2 // the screen, and new output
)

// AttachOptions holds the options for attaching to a terminal. The zero value shows all of the
// output from its first byte, if it is kept, else the screen.
type AttachOptions struct {
	Offset   int64
	Name     string // name that other viewers see; empty means the owner's
	ReadOnly bool
	Message  func(v1.TerminalMessage) // receives messages of the server other than output; nil for none
}

// An Attachment is a view of a terminal, which survives broken connections and
// restarts of the server: no output or input is lost or duplicated, as
// long as the terminal keeps it. The caller must read Output; Write and Resize are safe to
// call at the same time. The caller closes it.
type Attachment struct {
	view
	path   string
	secret string // secret of a link; empty with a key
	o      AttachOptions
	client string

	wake chan struct{} // receives a value when there is data to send

	// The fields below are guarded by mu.
	pending []byte
	taken   int64               // number of the first byte in pending
	sent    int64               // number of the next byte to send over ws
	drained chan struct{}       // closed when pending is empty; nil unless a Flush waits for that
	size    *v1.TerminalMessage // size to send; nil if the terminal has it
	last    *v1.TerminalMessage // last size set by Resize; nil before the first
}

// AttachTerminal attaches to a terminal.
func (c *Client) AttachTerminal(ctx context.Context, place, id string, o AttachOptions) (*Attachment, error) {
	return c.attach(ctx, terminalOf(place, id)+"/attach", "", o)
}

// FollowTerminal attaches to the terminal of a link.
func (c *Client) FollowTerminal(ctx context.Context, secret string, o AttachOptions) (*Attachment, error) {
	return c.attach(ctx, "/shared/terminal", secret, o)
}

func (c *Client) attach(ctx context.Context, path, secret string, o AttachOptions) (*Attachment, error) {
	a := &Attachment{view: view{c: c, at: o.Offset}, path: path, secret: secret, o: o, client: rand.Text(), wake: make(chan struct{}, 1)}
	if err := a.dial(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// maxPending is the maximum number of bytes of unacknowledged input.
const maxPending = 1 << 20

func (a *Attachment) dial(ctx context.Context) error {
	query := url.Values{"offset": {strconv.FormatInt(a.Offset(), 10)}, "client": {a.client}, "name": {a.o.Name}, "read_only": {strconv.FormatBool(a.o.ReadOnly)}}
	ws, err := a.c.dial(ctx, a.path, query, a.secret, v1.TerminalProtocol)
	if err == nil {
		a.look(ws, 4<<20)
	}
	return err
}

// Output yields the output of a terminal until its program ends, or, where output
// is not kept, a text that draws the screen. It resumes a broken connection
// where it left off. Data is valid until the next iteration.
func (a *Attachment) Output(ctx context.Context) iter.Seq2[[]byte, error] {
	return a.output(ctx, a.dial, a.read)
}

func (a *Attachment) read(ctx context.Context, yield func([]byte, error) bool) (more, progress bool, err error) {
	ws := a.conn()
	var sending sync.WaitGroup
	defer sending.Wait()
	live, stop := context.WithCancel(ctx)
	defer stop()
	painting := false // the next binary message is the screen
	var told error    // error in the server's last message
	for {
		kind, data, err := ws.Read(ctx)
		if err != nil {
			if told != nil && websocket.CloseStatus(err) == websocket.StatusNormalClosure {
				yield(nil, told)
				return false, progress, nil
			}
			return true, progress, failure(v1.Unavailable, "try again", "the terminal's connection broke: %v", err)
		}
		if kind == websocket.MessageBinary {
			progress = true
			if !painting {
				a.seek(a.Offset() + int64(len(data)))
			}
			painting = false
			if !yield(data, nil) {
				return false, progress, nil
			}
			continue
		}
		var m v1.TerminalMessage
		if err := json.Unmarshal(data, &m); err != nil {
			return true, progress, failure(v1.Internal, "check that the address is that of an engi server", "read a message of the terminal: %v", err)
		}
		if a.o.Message != nil {
			a.o.Message(m)
		}
		switch {
		case m.Type == v1.TerminalAttached && m.Input != nil:
			if err := a.resume(*m.Input); err != nil {
				yield(nil, err)
				return false, progress, nil
			}
			sending.Go(func() { a.send(live, ws) })
		case m.Type == v1.TerminalAck && m.Input != nil:
			a.acknowledged(*m.Input)
		case (m.Type == v1.TerminalOutput || m.Type == v1.TerminalScreenAt) && m.Offset != nil:
			painting = m.Type == v1.TerminalScreenAt
			a.seek(*m.Offset)
		case m.Type == v1.EventExit && m.Exit != nil:
			a.ended(m.Exit)
			return false, progress, nil
		case m.Type == v1.EventError && m.Error != nil:
			told = &Error{*m.Error}
		}
	}
}

// resume prepares a new connection: the terminal has received the input before number next.
func (a *Attachment) resume(next int64) error {
	a.acknowledged(next)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken != next {
		return failure(v1.Conflict, "attach anew", "the terminal has lost input that it had taken")
	}
	a.sent, a.size = next, a.last
	a.wakeLocked()
	return nil
}

// acknowledged drops input that the terminal has received.
func (a *Attachment) acknowledged(next int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := min(next-a.taken, int64(len(a.pending))); n > 0 {
		a.pending = a.pending[n:]
		a.taken += n
	}
	if len(a.pending) == 0 && a.drained != nil {
		close(a.drained)
		a.drained = nil
	}
}

func (a *Attachment) wakeLocked() {
	select {
	case a.wake <- struct{}{}:
	default: // the sender is already awake
	}
}

// send sends pending input and sizes over a connection, until it breaks or ctx ends. The next
// connection sends the input again that was not acknowledged then.
func (a *Attachment) send(ctx context.Context, ws *websocket.Conn) {
	const most = 64 << 10
	for {
		a.mu.Lock()
		rest := a.pending[a.sent-a.taken:]
		data := append(binary.BigEndian.AppendUint64(nil, uint64(a.sent)), rest[:min(len(rest), most)]...)
		size := a.size
		a.size = nil
		a.sent += int64(len(data) - 8)
		a.mu.Unlock()
		if size != nil {
			text, err := json.Marshal(size)
			if err != nil {
				panic(err) // unreachable: all types of package v1 can be encoded
			}
			if ws.Write(ctx, websocket.MessageText, text) != nil {
				return
			}
		}
		if len(data) > 8 {
			if ws.Write(ctx, websocket.MessageBinary, data) != nil {
				return
			}
			continue
		}
		select {
		case <-a.wake:
		case <-ctx.Done():
			return
		}
	}
}

// Write sends input, while another goroutine reads Output. The terminal receives it
// once, even if the connection breaks in the meantime. It reports Exhausted if the program
// does not read.
func (a *Attachment) Write(typed []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.pending)+len(typed) > maxPending {
		return 0, failure(v1.Exhausted, "type more slowly", "the program has not taken %d bytes of input yet", len(a.pending))
	}
	a.pending = append(a.pending, typed...)
	a.wakeLocked()
	return len(typed), nil
}

// Flush waits until the terminal has received all input. Another goroutine must read
// Output in the meantime, because it receives the acknowledgements.
func (a *Attachment) Flush(ctx context.Context) error {
	a.mu.Lock()
	if len(a.pending) == 0 {
		a.mu.Unlock()
		return nil
	}
	if a.drained == nil {
		a.drained = make(chan struct{})
	}
	drained := a.drained
	a.mu.Unlock()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		return a.c.unreachable(ctx, ctx.Err())
	}
}

// Resize sets the size of the terminal.
func (a *Attachment) Resize(cols, rows int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = &v1.TerminalMessage{Type: v1.TerminalResize, Cols: cols, Rows: rows}
	a.size = a.last
	a.wakeLocked()
}
