package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/app/problems"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	browserTag  = "browser"
	browserDir  = "/tmp/.engi-browser" // directory for the files of the browser
	browserTime = time.Minute          // maximum time of a look
	pageTime    = 20 * time.Second     // maximum time until a page is loaded
	settleTime  = 10 * time.Second     // maximum time until its network is idle afterwards
	replyTime   = 10 * time.Second     // maximum time of one answer of a page
	maxReply    = 16 << 20             // maximum bytes of a message of the browser
	maxSaid     = 64 << 20             // maximum bytes of all messages in one look
	maxSeen     = 20                   // maximum number of problems of a look
	maxAnswers  = 300                  // maximum number of requests and dialogs of pages that are answered
)

// startBrowser is a script that starts Chromium. Chromium reads commands from file 3 and
// writes answers to file 4, which are the standard streams of the script: it listens at no port that
// others could reach. It runs in engi's sandbox without one of its own, and shows only
// one app in a single process, which uses a third less CPU. When Chromium ends, the script kills
// all processes that it has left.
const startBrowser = `b=$(command -v chromium-headless-shell) || { echo 'the template has no chromium-headless-shell' >&2; exit 1; }
d=$1
rm -rf "$d" && mkdir -m 700 "$d" && cd "$d" || exit 1
exec 3<&0 4>&1 </dev/null >/dev/null
"$b" --remote-debugging-pipe --user-data-dir="$d" --no-sandbox --no-zygote --single-process --disable-gpu --disable-dev-shm-usage \
  --no-first-run --disable-extensions --disable-sync --disable-background-networking --disable-component-update --disable-breakpad --mute-audio --hide-scrollbars \
  --no-proxy-server --host-resolver-rules='MAP * ~NOTFOUND, EXCLUDE localhost' --js-flags=--max-old-space-size=512 about:blank
kill -KILL 0`

// A browser shows pages of an app in the app's sandbox. Its messages come from the sandbox and are
// not trusted. It is used by one goroutine.
type browser struct {
	p       engi.Process
	says    <-chan said
	session string
	last    int // number of the last request
	replies map[int]*message

	origin  string
	page    string // path of the current page
	frame   string // ID of the current page's frame
	loader  string // ID of the current load; changes when the page is reloaded
	loaded  bool
	idle    bool // the network is idle
	crashed bool
	seen    []seen
	before  int // number of errors in seen of earlier pages
	answers int
	left    bool            // a request to another host was left without an answer
	scripts map[string]bool // other hosts from which pages requested scripts
}

// seen is an error that a page has shown.
type seen struct {
	problems.Problem
	page string // path of the page
}

// said is a message of the browser, or the error that ended the messages.
type said struct {
	data []byte
	err  error
}

// A message is an answer to a command, or an event.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

var errBrowser = engi.Errorf(engi.Unavailable, "the browser sent a message that it may not send")

// listen sends the messages that a process writes to its standard output, each ended
// by a zero byte, until the process or ctx ends. The last value has the error.
func listen(ctx context.Context, p engi.Process) <-chan said {
	c := make(chan said)
	go func() {
		defer close(c)
		send := func(m said) bool {
			select {
			case c <- m:
				return true
			case <-ctx.Done():
				return false
			}
		}
		var part, complaint []byte
		total := 0
		for chunk, err := range p.Output(ctx, 0) {
			data := chunk.Data
			switch {
			case err != nil:
				send(said{err: err})
				return
			case chunk.Stream == engi.Stderr:
				complaint = append(complaint, data[:min(len(data), maxLine-len(complaint))]...)
				continue
			}
			if total += len(data); total > maxSaid {
				send(said{err: errBrowser})
				return
			}
			for more := true; more; {
				var line []byte
				line, data, more = bytes.Cut(data, []byte{0})
				if part = append(part, line...); len(part) > maxReply {
					send(said{err: errBrowser})
					return
				}
				if more {
					if !send(said{data: part}) {
						return
					}
					part = nil
				}
			}
		}
		send(said{err: engi.Errorf(engi.Unavailable, "the browser has ended: %.300s", firstLine(strings.ToValidUTF8(string(complaint), "\ufffd")))})
	}()
	return c
}

// openBrowser starts a browser with one empty page. The caller ends the browser, also after an
// error, and receives from says until it is closed.
func (u *use) openBrowser(ctx context.Context, width, height int) (*browser, error) {
	p, err := u.g.Start(ctx, engi.Command{Args: []string{u.shell(), "-c", startBrowser, "browser", u.rec.tag(browserDir)}, Stdin: engi.StdinPipe, Timeout: browserTime, Tag: u.rec.tag(browserTag), Output: 256 << 10})
	if err != nil {
		return nil, err
	}
	b := &browser{p: p, says: listen(ctx, p), replies: map[int]*message{}, origin: "http://localhost:" + strconv.Itoa(u.rec.Port), scripts: map[string]bool{}}
	var target struct {
		ID string `json:"targetId"`
	}
	if err := b.call(ctx, "Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		return b, err
	}
	var session struct {
		ID string `json:"sessionId"`
	}
	if err := b.call(ctx, "Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &session); err != nil {
		return b, err
	}
	b.session = session.ID
	for _, c := range []struct {
		method string
		params map[string]any
	}{
		{"Inspector.enable", nil},
		{"Page.enable", nil},
		{"Page.setLifecycleEventsEnabled", map[string]any{"enabled": true}},
		{"Runtime.enable", nil},
		{"Log.enable", nil},
		{"Fetch.enable", map[string]any{"patterns": []map[string]any{{"urlPattern": "https://*"}}}},
		{"Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}},
	} {
		if err := b.call(ctx, c.method, c.params, nil); err != nil {
			return b, err
		}
	}
	return b, nil
}

// send sends a command to the browser and returns the number of the command.
func (b *browser) send(ctx context.Context, method string, params any) (int, error) {
	b.last++
	raw, err := json.Marshal(struct {
		ID      int    `json:"id"`
		Session string `json:"sessionId,omitempty"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
	}{b.last, b.session, method, params})
	if err != nil {
		return 0, engi.Errorf(engi.Internal, "encode a request: %v", err)
	}
	_, err = answer(ctx, guestTime, func(ctx context.Context) (none, error) { return none{}, b.p.Input(ctx, append(raw, 0)) })
	return b.last, err
}

// call sends a command to the browser, waits for the answer and decodes it into
// result, unless result is nil.
func (b *browser) call(ctx context.Context, method string, params, result any) error {
	id, err := b.send(ctx, method, params)
	if err != nil {
		return err
	}
	b.replies[id] = nil
	defer delete(b.replies, id)
	if err := b.until(ctx, func() bool { return b.replies[id] != nil }); err != nil {
		return err
	}
	switch m := b.replies[id]; {
	case m.Error != nil:
		return engi.Errorf(engi.Unavailable, "the browser cannot do %s: %.200s", method, strings.ToValidUTF8(m.Error.Message, "\ufffd"))
	case result != nil && json.Unmarshal(m.Result, result) != nil:
		return errBrowser
	}
	return nil
}

// until receives messages of the browser until done returns true.
func (b *browser) until(ctx context.Context, done func() bool) error {
	for !done() {
		if b.crashed {
			return errCrashed
		}
		select {
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "wait for the browser: %v", context.Cause(ctx))
		case m, ok := <-b.says:
			if !ok {
				return engi.Errorf(engi.Unavailable, "the browser has ended")
			}
			if m.err != nil {
				return m.err
			}
			if err := b.hear(ctx, m.data); err != nil {
				return err
			}
		}
	}
	return nil
}

// failedRequest is the beginning of errors about failed requests, also in those of the template.
const failedRequest = "Request failed: "

var errCrashed = engi.Errorf(engi.Unavailable, "the page has ended the browser")

// hear handles a message.
func (b *browser) hear(ctx context.Context, data []byte) (err error) {
	var m message
	if json.Unmarshal(data, &m) != nil {
		return errBrowser
	}
	if _, ok := b.replies[m.ID]; ok && m.Method == "" {
		b.replies[m.ID] = &m
		return nil
	}
	var e struct {
		// fields of Page events
		Frame  string `json:"frameId"`
		Loader string `json:"loaderId"`
		Name   string `json:"name"`
		// fields of Runtime and Log events
		Details exception `json:"exceptionDetails"`
		Type    string    `json:"type"`
		Args    []remote  `json:"args"`
		Stack   stack     `json:"stackTrace"`
		Entry   struct {
			Source string `json:"source"`
			Level  string `json:"level"`
			Text   string `json:"text"`
			URL    string `json:"url"`
		} `json:"entry"`
		// fields of Fetch events
		ID      string `json:"requestId"`
		Kind    string `json:"resourceType"`
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
	}
	if len(m.Params) > 0 && json.Unmarshal(m.Params, &e) != nil {
		return nil // events with other fields are ignored
	}
	switch m.Method {
	case "Page.lifecycleEvent":
		switch {
		case e.Frame != b.frame || b.frame == "":
		case e.Name == "init" && e.Loader != b.loader: // the page is loaded again
			b.loader, b.loaded, b.idle, b.seen = e.Loader, false, false, b.seen[:b.before]
		case e.Loader == b.loader:
			b.loaded = b.loaded || e.Name == "load"
			b.idle = b.idle || e.Name == "networkAlmostIdle"
		}
	case "Page.javascriptDialogOpening":
		err = b.answer(ctx, "Page.handleJavaScriptDialog", map[string]any{"accept": false})
	case "Inspector.targetCrashed":
		b.crashed = true
	case "Fetch.requestPaused":
		err = b.elsewhere(ctx, e.ID, e.Kind, e.Request.URL)
	case "Runtime.exceptionThrown":
		b.see(e.Details.text(), e.Details.Stack)
	case "Runtime.consoleAPICalled":
		if e.Type == "error" {
			b.see(format(e.Args), e.Stack)
		}
	case "Log.entryAdded":
		path, ours := strings.CutPrefix(e.Entry.URL, b.origin)
		if e.Entry.Level == "error" && e.Entry.Source == "network" && ours && path != "/favicon.ico" && path != b.page {
			b.see(failedRequest+path+": "+e.Entry.Text, stack{})
		}
	}
	return err
}

// elsewhere answers a request of the page to another host. The sandbox cannot
// reach the host, although users' browsers can. So the request gets an empty answer or none, and
// errors that result do not count as problems of the app.
func (b *browser) elsewhere(ctx context.Context, id, kind, address string) error {
	empty := map[string]any{"requestId": id, "responseCode": 200, "responseHeaders": []map[string]string{{"name": "Access-Control-Allow-Origin", "value": "*"}}}
	switch kind {
	case "Script":
		if u, err := url.Parse(address); err == nil && len(b.scripts) < 10 {
			b.scripts[clip.Bytes(u.Host, 100)] = true
		}
	case "Image": // smallest valid GIF
		empty["body"] = "R0lGODlhAQABAAAAACH5BAEAAAAALAAAAAABAAEAAAIA"
	case "Stylesheet", "Font", "Document":
	default:
		b.left = true
		return nil
	}
	return b.answer(ctx, "Fetch.fulfillRequest", empty)
}

// answer answers a request of the page, up to the limit maxAnswers.
func (b *browser) answer(ctx context.Context, method string, params any) error {
	if b.answers++; b.answers > maxAnswers {
		b.left = true
		return nil
	}
	_, err := b.send(ctx, method, params)
	return err
}

// see records an error of the page.
func (b *browser) see(text string, s stack) {
	text, trace, _ := strings.Cut(text, "\n    at ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "Uncaught "), "(in promise) ")
	p := seen{problems.Console(text, "    at "+trace+"\n"+s.String(), b.origin), b.page}
	if p.Text != "" && len(b.seen) < maxSeen && !slices.ContainsFunc(b.seen, func(q seen) bool { return p.Problem == q.Problem }) {
		b.seen = append(b.seen, p)
	}
}

// show loads the page at a path, and reports whether it loaded in time.
func (b *browser) show(ctx context.Context, path string) (up bool, err error) {
	b.page, b.frame, b.loader, b.loaded, b.idle, b.left, b.before = path, "", "", false, false, false, len(b.seen)
	if up, err = within(ctx, pageTime, func(ctx context.Context) error {
		var to struct {
			Frame  string `json:"frameId"`
			Loader string `json:"loaderId"`
			Error  string `json:"errorText"`
		}
		if err := b.call(ctx, "Page.navigate", map[string]any{"url": b.origin + path}, &to); err != nil {
			return err
		}
		if to.Error != "" {
			return engi.Errorf(engi.Unavailable, "the browser cannot open %s: %.100s", path, to.Error)
		}
		b.frame, b.loader = to.Frame, to.Loader
		return b.until(ctx, func() bool { return b.loaded })
	}); err != nil {
		return false, err
	}
	if up {
		if _, err := within(ctx, settleTime, func(ctx context.Context) error { return b.until(ctx, func() bool { return b.idle }) }); err != nil {
			return false, err
		}
	}
	return within(ctx, replyTime, func(ctx context.Context) error { // once the page has finished its work
		return b.call(ctx, "Runtime.evaluate", map[string]any{"expression": atRest, "awaitPromise": true}, nil)
	})
}

// within calls f with a context limited to most, and reports whether f finished in
// time. It returns an error if f fails for another reason or ctx ends.
func within(ctx context.Context, most time.Duration, f func(ctx context.Context) error) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := f(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}

// atRest is a JavaScript promise that resolves once the page has finished its work. It counts
// idle callbacks, because elapsed time means little on a busy processor.
const atRest = `(async () => { for (let n = 0; n < 5; n++) await new Promise(done => requestIdleCallback(() => setTimeout(done, 20), { timeout: 1000 })) })()`

// nothing is a JavaScript promise of true if the page's root elements are empty and stay
// empty for some time.
const nothing = `(async () => {
  const all = ['root', 'app', '__next'].map(id => document.getElementById(id)).filter(e => e)
  const empty = e => !e.textContent.trim() && !e.querySelector('*')
  const others = () => [...document.body.children].filter(e => !/^(SCRIPT|STYLE|LINK|NOSCRIPT|TEMPLATE|VITE-.*)$/.test(e.tagName) && !empty(e))
  for (let n = 0; n < 30; n++) {
    if (all.length === 0 || !all.every(empty) || others().length > 0) return false
    await new Promise(done => setTimeout(done, 50))
  }
  return true
})()`

// blank reports whether the current page is empty.
func (b *browser) blank(ctx context.Context) (bool, error) {
	var r struct {
		Result remote `json:"result"`
	}
	_, err := within(ctx, replyTime, func(ctx context.Context) error {
		return b.call(ctx, "Runtime.evaluate", map[string]any{"expression": nothing, "awaitPromise": true, "returnByValue": true}, &r)
	})
	return string(r.Result.Value) == "true", err
}

// picture returns a screenshot of the page as PNG.
func (b *browser) picture(ctx context.Context) ([]byte, error) {
	var r struct {
		Data []byte `json:"data"`
	}
	err := b.call(ctx, "Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	return r.Data, err
}

// remote describes a JavaScript value of the page.
type remote struct {
	Type        string          `json:"type"`
	Value       json.RawMessage `json:"value"`
	Description string          `json:"description"`
}

func (r remote) String() string {
	var text string
	if r.Type == "string" && json.Unmarshal(r.Value, &text) == nil {
		return text
	}
	return cmp.Or(r.Description, string(r.Value), r.Type)
}

// format returns the text of a call of console.error.
func format(args []remote) string {
	if len(args) == 0 {
		return ""
	}
	var b strings.Builder
	first, rest := args[0].String(), args[1:]
	if args[0].Type != "string" {
		first, rest = "%o", args
	}
	for len(rest) > 0 && b.Len() < maxLine {
		i := strings.IndexByte(first, '%')
		if i < 0 || i+1 == len(first) {
			break
		}
		b.WriteString(first[:i])
		switch first[i+1] {
		case 's', 'd', 'i', 'f', 'o', 'O':
			b.WriteString(rest[0].String())
			rest = rest[1:]
		case 'c': // %c, a style
			rest = rest[1:]
		case '%':
			b.WriteByte('%')
		default:
			b.WriteString(first[i : i+2])
		}
		first = first[i+2:]
	}
	b.WriteString(first)
	for _, r := range rest {
		if b.Len() < maxLine {
			b.WriteString(" " + r.String())
		}
	}
	return b.String()
}

// An exception is an uncaught exception of the page.
type exception struct {
	Text      string `json:"text"`
	Exception remote `json:"exception"`
	Stack     stack  `json:"stackTrace"`
}

func (e exception) text() string {
	if e.Exception.Type == "" {
		return e.Text
	}
	return e.Exception.String()
}

// A stack is a JavaScript stack trace, innermost frame first.
type stack struct {
	Frames []struct {
		Name   string `json:"functionName"`
		URL    string `json:"url"`
		Line   int    `json:"lineNumber"` // from 0, like the column
		Column int    `json:"columnNumber"`
	} `json:"callFrames"`
}

func (s stack) String() string {
	var b strings.Builder
	for _, f := range s.Frames[:min(len(s.Frames), 100)] {
		fmt.Fprintf(&b, "    at %s (%s:%d:%d)\n", f.Name, f.URL, f.Line+1, f.Column+1)
	}
	return b.String()
}
