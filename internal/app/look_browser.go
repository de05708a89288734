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
	browserDir  = "/tmp/.engi-browser" // what it writes goes there
	browserTime = time.Minute          // that a look may take
	pageTime    = 20 * time.Second     // that a page may take to come up
	settleTime  = 10 * time.Second     // and to load what it wants then
	replyTime   = 10 * time.Second     // that a page that is well may take to answer
	maxReply    = 16 << 20             // bytes of a message of the browser
	maxSaid     = 64 << 20             // and of all in one look
	maxSeen     = 20                   // problems of a look
	maxAnswers  = 300                  // requests and questions of pages that are answered
)

// startBrowser is a script that starts Chromium. It is told what to do on file 3 and
// answers on file 4, which are its standard streams: nothing listens at a port that
// somebody else could reach. It runs in a sandbox, and so needs none of its own, and shows
// one app, so that one process does, which takes a third less of the processor. What it
// leaves when it ends is ended, too.
const startBrowser = `b=$(command -v chromium-headless-shell) || { echo 'the template has no chromium-headless-shell' >&2; exit 1; }
d=` + browserDir + `
rm -rf "$d" && mkdir -m 700 "$d" && cd "$d" || exit 1
exec 3<&0 4>&1 </dev/null >/dev/null
"$b" --remote-debugging-pipe --user-data-dir="$d" --no-sandbox --no-zygote --single-process --disable-gpu --disable-dev-shm-usage \
  --no-first-run --disable-extensions --disable-sync --disable-background-networking --disable-component-update --disable-breakpad --mute-audio --hide-scrollbars \
  --no-proxy-server --host-resolver-rules='MAP * ~NOTFOUND, EXCLUDE localhost' --js-flags=--max-old-space-size=512 about:blank
kill -KILL 0`

// A browser shows pages of an app in its sandbox. What it says comes from there and may
// be anything. It belongs to one goroutine.
type browser struct {
	p       engi.Process
	says    <-chan said
	session string
	last    int // number of the last request
	replies map[int]*message

	origin  string
	page    string // path of the one that is shown
	frame   string // of that
	loader  string // changes when it is loaded again
	loaded  bool
	idle    bool // it loads nothing any more
	crashed bool
	seen    []seen
	before  int // how many of them are of other pages
	answers int
	left    bool            // a request to elsewhere is left without an answer
	scripts map[string]bool // hosts elsewhere that scripts were wanted of
}

// seen is an error that a page has shown.
type seen struct {
	problems.Problem
	page string // its path
}

// said is a message of the browser, or why there are no more.
type said struct {
	data []byte
	err  error
}

// A message is an answer to a request, or an event.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

var errBrowser = engi.Errorf(engi.Unavailable, "the browser says what it may not")

// listen passes on what a process prints on its standard output, in messages that end
// with a zero byte, until it ends or ctx does. The last one says why.
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

// openBrowser starts a browser with one empty page. The caller ends it, also after an
// error, and reads what it says until that ends.
func (u *use) openBrowser(ctx context.Context, width, height int) (*browser, error) {
	p, err := u.g.Start(ctx, engi.Command{Args: []string{u.shell(), "-c", startBrowser}, Stdin: engi.StdinPipe, Timeout: browserTime, Tag: browserTag, Output: 256 << 10})
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

// send asks the browser for something and returns the number of the answer.
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

// call asks the browser for something and waits for the answer, which is decoded into
// result unless that is nil.
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

// until listens to the browser until done is true.
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

// failedRequest is how errors begin that tell of a request, as those of the template do.
const failedRequest = "Request failed: "

var errCrashed = engi.Errorf(engi.Unavailable, "the page has ended the browser")

// hear does what a message asks for.
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
		// of Page
		Frame  string `json:"frameId"`
		Loader string `json:"loaderId"`
		Name   string `json:"name"`
		// of Runtime and Log
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
		// of Fetch
		ID      string `json:"requestId"`
		Kind    string `json:"resourceType"`
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
	}
	if len(m.Params) > 0 && json.Unmarshal(m.Params, &e) != nil {
		return nil // of no interest, then
	}
	switch m.Method {
	case "Page.lifecycleEvent":
		switch {
		case e.Frame != b.frame || b.frame == "":
		case e.Name == "init" && e.Loader != b.loader: // it begins again
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

// elsewhere answers a request that the page makes to another host. The sandbox does not
// reach it, as browsers of people do: so it is answered with nothing, or not at all, and
// what fails for that is nobody's fault.
func (b *browser) elsewhere(ctx context.Context, id, kind, address string) error {
	empty := map[string]any{"requestId": id, "responseCode": 200, "responseHeaders": []map[string]string{{"name": "Access-Control-Allow-Origin", "value": "*"}}}
	switch kind {
	case "Script":
		if u, err := url.Parse(address); err == nil && len(b.scripts) < 10 {
			b.scripts[clip.Bytes(u.Host, 100)] = true
		}
	case "Image": // the smallest there is
		empty["body"] = "R0lGODlhAQABAAAAACH5BAEAAAAALAAAAAABAAEAAAIA"
	case "Stylesheet", "Font", "Document":
	default:
		b.left = true
		return nil
	}
	return b.answer(ctx, "Fetch.fulfillRequest", empty)
}

// answer answers what a page has asked, unless it asks too much.
func (b *browser) answer(ctx context.Context, method string, params any) error {
	if b.answers++; b.answers > maxAnswers {
		b.left = true
		return nil
	}
	_, err := b.send(ctx, method, params)
	return err
}

// see remembers an error of the page.
func (b *browser) see(text string, s stack) {
	text, trace, _ := strings.Cut(text, "\n    at ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "Uncaught "), "(in promise) ")
	p := seen{problems.Console(text, "    at "+trace+"\n"+s.String(), b.origin), b.page}
	if p.Text != "" && len(b.seen) < maxSeen && !slices.ContainsFunc(b.seen, func(q seen) bool { return p.Problem == q.Problem }) {
		b.seen = append(b.seen, p)
	}
}

// show has the page at a path come up, and reports whether it did.
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
	return within(ctx, replyTime, func(ctx context.Context) error { // once it has done what it has begun
		return b.call(ctx, "Runtime.evaluate", map[string]any{"expression": atRest, "awaitPromise": true}, nil)
	})
}

// within calls f, which ends when its context does, and reports whether it was done in
// time. It is an error if ctx ends.
func within(ctx context.Context, most time.Duration, f func(ctx context.Context) error) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := f(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}

// atRest is a promise that is kept once a page has done what it has begun. It counts
// turns, since time says nothing where many want the processor.
const atRest = `(async () => { for (let n = 0; n < 5; n++) await new Promise(done => requestIdleCallback(() => setTimeout(done, 20), { timeout: 1000 })) })()`

// nothing is true of a page that has nothing where it is to be rendered, and gets nothing
// there for some time.
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

// blank reports whether the page that is shown has nothing in it.
func (b *browser) blank(ctx context.Context) (bool, error) {
	var r struct {
		Result remote `json:"result"`
	}
	_, err := within(ctx, replyTime, func(ctx context.Context) error {
		return b.call(ctx, "Runtime.evaluate", map[string]any{"expression": nothing, "awaitPromise": true, "returnByValue": true}, &r)
	})
	return string(r.Result.Value) == "true", err
}

// picture returns what the page looks like.
func (b *browser) picture(ctx context.Context) ([]byte, error) {
	var r struct {
		Data []byte `json:"data"`
	}
	err := b.call(ctx, "Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	return r.Data, err
}

// remote describes a value of the page.
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

// format returns what a call of console.error says.
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
		case 'c': // a style
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

// An exception is one that nobody has caught.
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

// A stack says where something has happened, the innermost first.
type stack struct {
	Frames []struct {
		Name   string `json:"functionName"`
		URL    string `json:"url"`
		Line   int    `json:"lineNumber"` // from 0, as the next
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
