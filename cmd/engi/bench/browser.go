package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Browser is Chromium without a window, which shows one page at a time. It belongs to
// one goroutine. A nil Browser means that there is none.
type Browser struct {
	Name string // name and version

	cmd     *exec.Cmd
	dir     string
	in      *os.File
	out     *os.File
	replies *bufio.Reader
	last    int // number of the last request
	target  string
	session string
}

// OpenBrowser starts the browser of this machine, or returns nil if it has none.
func OpenBrowser(ctx context.Context) (_ *Browser, err error) {
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"} {
		if program, err = exec.LookPath(name); err == nil {
			break
		}
	}
	if program == "" {
		return nil, nil
	}
	defer engi.Annotate(&err, "start %s", program)
	b := &Browser{}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "engi-bench-"); err != nil {
		return nil, err
	}
	in, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	b.in = w
	defer in.Close()
	r, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	b.out, b.replies = r, bufio.NewReader(r)
	defer out.Close()
	b.cmd = exec.CommandContext(ctx, program, "--headless", "--remote-debugging-pipe", "--user-data-dir="+b.dir, "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "about:blank")
	b.cmd.ExtraFiles = []*os.File{in, out} // become its files 3 and 4
	if err := b.cmd.Start(); err != nil {
		b.cmd = nil
		return nil, err
	}
	var version struct{ Product string }
	if err := b.call("", "Browser.getVersion", nil, &version); err != nil {
		return nil, err
	}
	b.Name = version.Product
	return b, nil
}

// Close ends the browser.
func (b *Browser) Close() {
	if b == nil {
		return
	}
	if b.cmd != nil {
		_ = b.cmd.Process.Kill() // the process may have ended
		_ = b.cmd.Wait()         // the error says that it was killed
	}
	for _, f := range []*os.File{b.in, b.out} {
		if f != nil {
			f.Close()
		}
	}
	os.RemoveAll(b.dir)
}

// send sends a request to the browser, or to one of its pages.
func (b *Browser) send(session, method string, params any) (id int, err error) {
	b.last++
	raw, err := json.Marshal(struct {
		ID      int    `json:"id"`
		Session string `json:"sessionId,omitempty"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
	}{b.last, session, method, params})
	if err == nil {
		_, err = b.in.Write(append(raw, 0))
	}
	if err != nil {
		return 0, engi.Errorf(engi.Unavailable, "%s: %v", method, err)
	}
	return b.last, nil
}

// reply waits for the reply to a request and ignores other messages of the browser.
func (b *Browser) reply(id int, result any) error {
	for {
		raw, err := b.replies.ReadBytes(0)
		if err != nil {
			return engi.Errorf(engi.Unavailable, "the browser has ended: %v", err)
		}
		var m struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(raw[:len(raw)-1], &m); err != nil {
			return engi.Errorf(engi.Unavailable, "the browser: %v", err)
		}
		switch {
		case m.ID != id:
		case m.Error != nil:
			return engi.Errorf(engi.Conflict, "the browser: %s", m.Error.Message)
		case result == nil:
			return nil
		default:
			return json.Unmarshal(m.Result, result)
		}
	}
}

func (b *Browser) call(session, method string, params, result any) error {
	id, err := b.send(session, method, params)
	if err != nil {
		return err
	}
	return b.reply(id, result)
}

// fresh makes a new empty page the shown page.
func (b *Browser) fresh() error {
	type target struct {
		ID string `json:"targetId"`
	}
	if b.target != "" {
		if err := b.call("", "Target.closeTarget", target{b.target}, nil); err != nil {
			return err
		}
	}
	var made target
	if err := b.call("", "Target.createTarget", map[string]string{"url": "about:blank"}, &made); err != nil {
		return err
	}
	var attached struct {
		Session string `json:"sessionId"`
	}
	b.target = made.ID
	err := b.call("", "Target.attachToTarget", map[string]any{"targetId": made.ID, "flatten": true}, &attached)
	b.session = attached.Session
	return err
}

// A showing holds the times of the steps until a page was rendered: until its first byte, then
// until the last of its modules, then the rest.
type showing struct{ answered, loaded, shown time.Duration }

// see is a JavaScript expression whose value comes when a condition holds: the times since the page
// was requested, for the condition, for its first byte, and for the last byte of all that it has
// loaded.
const see = `new Promise((done) => {
  const look = () => {
    if (!(%s)) return false
    const now = performance.now(), [page] = performance.getEntriesByType('navigation')
    done([now, page.responseStart, Math.max(page.responseEnd, ...performance.getEntriesByType('resource').map((r) => r.responseEnd))])
    return true
  }
  if (!look()) new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true })
})`

// open shows an address and waits until the element that React renders to is not empty.
func (b *Browser) open(address string) (x showing, err error) {
	defer engi.Annotate(&err, "show %s", address)
	var opened struct{ ErrorText string }
	if err := b.call(b.session, "Page.navigate", map[string]string{"url": address}, &opened); err != nil {
		return x, err
	}
	if opened.ErrorText != "" {
		return x, engi.Errorf(engi.Unavailable, "%s", opened.ErrorText)
	}
	at, err := b.seen(b.evaluate("document.getElementById('root')?.childElementCount > 0"))
	if err != nil {
		return x, err
	}
	ms := func(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }
	return showing{ms(at[1]), ms(at[2] - at[1]), ms(at[0] - at[2])}, nil
}

// await returns a function that waits until the page shows a text. The page
// looks for the text from now on.
func (b *Browser) await(text string) (func() error, error) {
	raw, err := json.Marshal(text)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "%v", err)
	}
	id, err := b.evaluate(fmt.Sprintf("document.body.innerText.includes(%s)", raw))
	return func() error { _, err := b.seen(id, err); return err }, err
}

// lateAfter is the maximum time until a page meets a condition.
const lateAfter = time.Minute

func (b *Browser) evaluate(condition string) (id int, err error) {
	late := fmt.Sprintf("new Promise((_, fail) => setTimeout(() => fail(new Error('it took longer than %v')), %d))", lateAfter, lateAfter.Milliseconds())
	return b.send(b.session, "Runtime.evaluate", map[string]any{"expression": "Promise.race([" + fmt.Sprintf(see, condition) + ", " + late + "])", "awaitPromise": true, "returnByValue": true})
}

func (b *Browser) seen(id int, err error) ([3]float64, error) {
	var value struct {
		Result           struct{ Value json.RawMessage } // contains errors too
		ExceptionDetails *struct {
			Exception struct{ Description string }
		}
	}
	if err == nil {
		err = b.reply(id, &value)
	}
	switch {
	case err != nil:
		return [3]float64{}, err
	case value.ExceptionDetails != nil:
		line, _, _ := strings.Cut(value.ExceptionDetails.Exception.Description, "\n")
		return [3]float64{}, engi.Errorf(engi.Unavailable, "the page: %s", line)
	}
	var times []float64
	if err := json.Unmarshal(value.Result.Value, &times); err != nil || len(times) != 3 {
		return [3]float64{}, errors.New("the page has no times")
	}
	return [3]float64(times), nil
}
