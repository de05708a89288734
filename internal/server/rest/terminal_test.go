package rest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// A tty is a client of a terminal.
type tty struct {
	t    *testing.T
	ws   *websocket.Conn
	out  bytes.Buffer // since the last output message
	all  bytes.Buffer // with screens
	at   int64        // offset of the byte after out
	seen bool         // the next binary message is a screen, not output
	sent int64
	got  []v1.TerminalMessage
	told int // of got that message has returned or passed over
}

// dialTerminal connects to a path; further are subprotocols, or headers as "Name: value".
func dialTerminal(t *testing.T, srv *httptest.Server, key, path string, further ...string) (*tty, *http.Response, error) {
	t.Helper()
	o := &websocket.DialOptions{HTTPHeader: http.Header{}, Subprotocols: []string{v1.TerminalProtocol}}
	if key != "" {
		o.HTTPHeader.Set("Authorization", "Bearer "+key)
	}
	for _, f := range further {
		if name, value, ok := strings.Cut(f, ": "); ok {
			o.HTTPHeader.Set(name, value)
		} else {
			o.Subprotocols = append(o.Subprotocols, f)
		}
	}
	ws, resp, err := websocket.Dial(t.Context(), srv.URL+path, o)
	if err != nil {
		return nil, resp, err
	}
	t.Cleanup(func() { ws.CloseNow() })
	return &tty{t: t, ws: ws}, resp, nil
}

func attach(t *testing.T, srv *httptest.Server, key, path string, further ...string) *tty {
	t.Helper()
	x, _, err := dialTerminal(t, srv, key, path, further...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// next reads one message.
func (x *tty) next() (m v1.TerminalMessage, err error) {
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
	defer cancel()
	kind, data, err := x.ws.Read(ctx)
	if err != nil {
		return m, err
	}
	if kind == websocket.MessageBinary {
		x.out.Write(data)
		x.all.Write(data)
		if !x.seen {
			x.at += int64(len(data))
		}
		x.seen = false
		return m, nil
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, err
	}
	if m.Type == v1.TerminalOutput {
		x.out.Reset()
		x.at = *m.Offset
	}
	if m.Type == v1.TerminalScreenAt {
		x.at, x.seen = *m.Offset, true
	}
	x.got = append(x.got, m)
	return m, nil
}

// messages returns the text messages that have come.
func (x *tty) messages() []byte {
	text, err := json.Marshal(x.got)
	if err != nil {
		x.t.Fatal(err)
	}
	return text
}

// message reads until a text message of a type, and returns it.
func (x *tty) message(kind string) v1.TerminalMessage {
	x.t.Helper()
	for {
		for x.told < len(x.got) {
			x.told++
			if m := x.got[x.told-1]; m.Type == kind {
				return m
			}
		}
		if _, err := x.next(); err != nil {
			x.t.Fatalf("waiting for %s: %v; got %s and %.200q", kind, err, x.messages(), x.out.String())
		}
	}
}

// shows reads until output contains text.
func (x *tty) shows(text string) {
	x.t.Helper()
	for seen := 0; !strings.Contains(x.out.String()[max(0, min(seen, x.out.Len())-len(text)):], text); {
		seen = x.out.Len()
		if _, err := x.next(); err != nil {
			x.t.Fatalf("waiting for %q: %v; got %s and %.200q", text, err, x.messages(), x.out.String())
		}
	}
}

func (x *tty) typeAt(at int64, text string) {
	x.t.Helper()
	if err := x.ws.Write(x.t.Context(), websocket.MessageBinary, append(binary.BigEndian.AppendUint64(nil, uint64(at)), text...)); err != nil {
		x.t.Fatal(err)
	}
}

func (x *tty) write(text string) {
	x.t.Helper()
	x.typeAt(x.sent, text)
	x.sent += int64(len(text))
}

func (x *tty) say(text string) {
	x.t.Helper()
	if err := x.ws.Write(x.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		x.t.Fatal(err)
	}
}

// startTerminal starts a terminal in ann's sandbox and returns its path.
func startTerminal(t *testing.T, w *apitest.Fixture, place, line string, change ...func(*v1.TerminalRequest)) string {
	t.Helper()
	q := v1.TerminalRequest{Args: []string{"/bin/sh", "-c", line}}
	for _, f := range change {
		f(&q)
	}
	body, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	return place + "/terminals/" + read[v1.Terminal](t, ask(t, w, "POST", place+"/terminals", string(body)), 201).ID
}

func TestTerminalComesBack(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	at := startTerminal(t, w, aSandbox(t, w), "stty -echo; echo ready; while read x; do echo \"<$x>\"; done; exit 3")
	one := attach(t, srv, w.User, at+"/attach?client=client-one")
	hello := one.message(v1.TerminalAttached)
	if hello.Cols != 80 || hello.Rows != 24 || *hello.Input != 0 || *hello.ReadOnly || hello.Viewer == "" {
		t.Errorf("%+v", hello)
	}
	one.shows("ready")
	one.write("a\n")
	one.shows("<a>")
	if m := one.message(v1.TerminalAck); *m.Input != 2 {
		t.Errorf("%+v", m)
	}
	// What is sent twice or in part is typed once; what is left out is refused.
	one.typeAt(0, "a\nb\n")
	one.shows("<b>")
	one.typeAt(99, "z")
	if m := one.message(v1.EventError); m.Error.Kind != v1.Invalid {
		t.Errorf("%+v", m.Error)
	}
	seen := one.at
	one.ws.CloseNow()

	two := attach(t, srv, w.User, at+"/attach?client=client-two")
	two.write("c\n")
	two.shows("<c>")
	if strings.Count(two.out.String(), "<a>") != 1 {
		t.Errorf("all that is kept is %q", two.out.String())
	}

	// It gets what it has missed, nothing else, and is told what was typed.
	again := attach(t, srv, w.User, fmt.Sprintf("%s/attach?client=client-one&offset=%d", at, seen))
	if m := again.message(v1.TerminalAttached); *m.Input != 4 || *m.End != two.at {
		t.Errorf("input %d, end %d; want 4, %d", *m.Input, *m.End, two.at)
	}
	if m := again.message(v1.TerminalReplayed); *m.Offset != two.at || again.out.String() != "<c>\r\n" {
		t.Errorf("it missed %q up to %d", again.out.String(), *m.Offset)
	}
	again.sent = 4
	again.write("\x04")
	if m := again.message(v1.EventExit); m.Exit.ExitCode != 3 {
		t.Errorf("%+v", m.Exit)
	}
	if _, err := again.next(); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("after exit: %v", err)
	}
	two.message(v1.EventExit)
	if x := read[v1.Terminal](t, ask(t, w, "GET", at, ""), 200); x.Running {
		t.Errorf("%+v", x)
	}
}

// TestTerminalWithoutItsBeginning prints more than is kept.
func TestTerminalWithoutItsBeginning(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	b := aSandbox(t, w)
	at := startTerminal(t, w, b, `printf '\033[?1049h\033[2J\033[3;5Heditor'; read x; printf '\033[?1049l'; i=0; while [ $i -lt 4000 ]; do echo "line $i with some words that make it longer"; i=$((i+1)); done; printf '\033[H\033[2J\033[?2004hend\033[5;3Hx'; read x`,
		func(q *v1.TerminalRequest) { q.Scrollback = 64 << 10 })
	x := attach(t, srv, w.User, at+"/attach")
	x.shows("editor")
	s := read[v1.TerminalScreen](t, ask(t, w, "GET", at+"/screen", ""), 200)
	if !s.Alternate || s.Text != "\n\n    editor\n"+strings.Repeat("\n", 21) || s.Cursor != (v1.Cursor{Col: 10, Row: 2, Visible: true}) {
		t.Errorf("%+v", s)
	}
	x.write("\n")
	x.shows("\x1b[5;3Hx")
	if s = read[v1.TerminalScreen](t, ask(t, w, "GET", at+"/screen", ""), 200); s.Alternate || s.Text != "end\n\n\n\n  x\n"+strings.Repeat("\n", 19) || s.Offset != x.at {
		t.Errorf("%+v", s)
	}
	for _, offset := range []string{"-1", "0", "7"} {
		y := attach(t, srv, w.User, at+"/attach?offset="+offset)
		m := y.message(v1.TerminalMissing)
		if want := map[string]int64{"-1": 0, "0": 0, "7": 7}[offset]; *m.Offset != want || *m.End != x.at {
			t.Errorf("from %s: missing %d to %d, of %d", offset, *m.Offset, *m.End, x.at)
		}
		y.message(v1.TerminalScreenAt)
		y.message(v1.TerminalReplayed)
		if screen := y.out.String(); !strings.HasPrefix(screen, "\x1bc") || strings.Contains(screen, "1049") || !strings.Contains(screen, "end") || !strings.Contains(screen, "?2004h") {
			t.Errorf("the screen is %q", screen)
		}
	}
	if m := attach(t, srv, w.User, at+"/attach?offset=-2").message(v1.TerminalScreenAt); *m.Offset != x.at {
		t.Errorf("%+v", m)
	}
	far := attach(t, srv, w.User, at+"/attach?offset=99999999")
	if m := far.message(v1.EventError); m.Error.Kind != v1.Invalid {
		t.Errorf("%+v", m.Error)
	}
}

func TestTerminalViewers(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	at := startTerminal(t, w, aSandbox(t, w), "stty -echo; echo ready; read x; echo got $x; stty size; read x")
	owner := attach(t, srv, w.User, at+"/attach")
	owner.shows("ready")
	look := attach(t, srv, w.User, at+"/attach?read_only=true&name=boss")
	if m := look.message(v1.TerminalAttached); !*m.ReadOnly {
		t.Errorf("%+v", m)
	}
	m := owner.message(v1.TerminalPresence)
	for len(m.Viewers) < 2 {
		m = owner.message(v1.TerminalPresence)
	}
	if len(m.Viewers) != 2 || m.Viewers[0].Name != "ann" || m.Viewers[0].ReadOnly || m.Viewers[1].Name != "boss" || !m.Viewers[1].ReadOnly {
		t.Errorf("%+v", m.Viewers)
	}
	if x := read[v1.Terminal](t, ask(t, w, "GET", at, ""), 200); len(x.Viewers) != 2 || !x.Running || len(x.Args) != 3 {
		t.Errorf("%+v", x)
	}
	// It neither types nor resizes.
	look.write("evil\n")
	look.message(v1.EventError)
	look.say(`{"type":"resize","cols":10,"rows":10}`)
	if m := look.message(v1.EventError); m.Error.Kind != v1.Denied {
		t.Errorf("%+v", m.Error)
	}
	for _, bad := range []string{`{"type":"resize","cols":513,"rows":10}`, `{"type":"x"}`, `[`} {
		owner.say(bad)
		if m := owner.message(v1.EventError); m.Error.Kind != v1.Invalid {
			t.Errorf("%s: %+v", bad, m.Error)
		}
	}
	owner.say(`{"type":"resize","cols":100,"rows":30}`)
	if m := look.message(v1.TerminalResized); m.Cols != 100 || m.Rows != 30 {
		t.Errorf("%+v", m)
	}
	owner.write("good\n")
	look.shows("got good\r\n30 100")
	owner.ws.CloseNow()
	for len(look.message(v1.TerminalPresence).Viewers) > 1 {
	}
}

func TestTerminalLinks(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	b := aSandbox(t, w)
	at := startTerminal(t, w, b, "stty -echo; echo ready; while read x; do echo got $x; done")
	other := startTerminal(t, w, b, "read x")
	link := func(body string) v1.TerminalLink {
		t.Helper()
		return read[v1.TerminalLink](t, ask(t, w, "POST", at+"/links", body), 201)
	}
	looks, types := link(`{"name":"class"}`), link(`{"write":true,"ttl":"1m"}`)
	if looks.Write || !types.Write || looks.Secret == types.Secret || types.ExpiresAt.Sub(types.CreatedAt) != time.Minute {
		t.Errorf("%+v %+v", looks, types)
	}
	if all := read[v1.List[v1.TerminalLink]](t, ask(t, w, "GET", at+"/links", ""), 200).Items; len(all) != 2 || all[0].Secret != "" || all[1].ID != looks.ID {
		t.Errorf("%+v", all)
	}
	// As a browser does it, and as a program.
	reader := attach(t, srv, "", "/shared/terminal?client=client-one", v1.TerminalSecret+looks.Secret, "Origin: "+srv.URL)
	writer := attach(t, srv, types.Secret, "/shared/terminal?client=client-one")
	reader.shows("ready")
	attach(t, srv, w.User, "/shared/terminal", v1.TerminalSecret+looks.Secret).ws.CloseNow() // with a key beside, which is not asked
	writer.write("hello\n")
	reader.shows("got hello")
	reader.write("evil\n")
	if m := reader.message(v1.EventError); m.Error.Kind != v1.Denied {
		t.Errorf("%+v", m.Error)
	}
	m := writer.message(v1.TerminalPresence)
	for len(m.Viewers) > 2 { // the one with a key beside was there, too
		m = writer.message(v1.TerminalPresence)
	}
	if len(m.Viewers) != 2 || m.Viewers[0].Name != "class" || m.Viewers[0].LinkID != looks.ID || m.Viewers[1].Name != "guest" {
		t.Errorf("%+v", m.Viewers)
	}
	// It opens that terminal and nothing else.
	for _, path := range []string{at + "/attach", other + "/attach"} {
		if _, resp, err := dialTerminal(t, srv, types.Secret, path); err == nil || resp.StatusCode != 401 {
			t.Errorf("%s by a link: %v", path, err)
		}
	}
	for _, path := range []string{b, at, at + "/screen", "/v1/sandboxes"} {
		if code := ask(t, w, "GET", path, "", "Authorization", "Bearer "+types.Secret).Code; code != 401 {
			t.Errorf("%s by a link: %d", path, code)
		}
	}
	// Taken back, it opens nothing, and who is there must leave.
	if rec := ask(t, w, "DELETE", at+"/links/"+types.ID, ""); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if m := writer.message(v1.EventError); m.Error.Kind != v1.Anonymous {
		t.Errorf("%+v", m.Error)
	}
	short := link(`{"ttl":"1s"}`)
	late := attach(t, srv, short.Secret, "/shared/terminal")
	if m := late.message(v1.EventError); m.Error.Kind != v1.Anonymous {
		t.Errorf("%+v", m.Error)
	}
	for name, secret := range map[string]string{"taken back": types.Secret, "expired": short.Secret, "never made": "engi_link_x", "none": ""} {
		if _, resp, err := dialTerminal(t, srv, secret, "/shared/terminal"); err == nil || resp.StatusCode != 401 {
			t.Errorf("a link that is %s: %v", name, err)
		}
	}
	// It ends with its terminal.
	if rec := ask(t, w, "DELETE", at, ""); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	if _, resp, err := dialTerminal(t, srv, looks.Secret, "/shared/terminal"); err == nil || resp.StatusCode != 401 {
		t.Errorf("a link to a terminal that has ended: %v", err)
	}
	refused(t, ask(t, w, "POST", other+"/links", `{"ttl":"1000h"}`), 400, engi.Invalid)
}

// TestTerminalStrangers has pages of others, other owners and other protocols.
func TestTerminalStrangers(t *testing.T) {
	w, srv := apitest.Serve(t, func(o *apitest.Options) { o.Origins = []string{"https://app.example.com"} })
	at := startTerminal(t, w, aSandbox(t, w), "read x") + "/attach"
	_, reading, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: []engi.Scope{engi.ScopeRead}})
	if err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]struct {
		key, header string
		status      int
	}{
		"another owner":     {w.Other, "", 404},
		"a key that reads":  {reading, "", 403},
		"nobody":            {"", "", 401},
		"a page of others":  {w.User, "Origin: https://evil.example", 403},
		"no origin":         {w.User, "Origin: null", 403},
		"another host name": {w.User, "Host: evil.example", 403},
	} {
		o := &websocket.DialOptions{HTTPHeader: http.Header{}, Subprotocols: []string{v1.TerminalProtocol}}
		if try.key != "" {
			o.HTTPHeader.Set("Authorization", "Bearer "+try.key)
		}
		name, value, _ := strings.Cut(try.header, ": ")
		if name == "Host" {
			o.Host = value
		} else if name != "" {
			o.HTTPHeader.Set(name, value)
		}
		if ws, resp, err := websocket.Dial(t.Context(), srv.URL+at, o); err == nil || resp.StatusCode != try.status {
			t.Errorf("%s: %v, want status %d", what, err, try.status)
			if ws != nil {
				ws.CloseNow()
			}
		}
	}
	for _, origin := range []string{"https://app.example.com", srv.URL} {
		attach(t, srv, w.User, at, "Origin: "+origin).message(v1.TerminalAttached)
	}
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	ws, resp, err := websocket.Dial(t.Context(), "ws://"+u.Host+at, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + w.User}}})
	if err == nil || resp.StatusCode != 400 {
		t.Errorf("without the subprotocol: %v", err)
		ws.CloseNow()
	}
	if rec := ask(t, w, "GET", at, ""); rec.Code != http.StatusUpgradeRequired {
		t.Errorf("without a WebSocket: %d", rec.Code)
	}
	if _, resp, err := dialTerminal(t, srv, w.User, at+"?client=a%20b"); err == nil || resp.StatusCode != 400 {
		t.Errorf("a bad name: %v", err)
	}
}

// TestTerminalEndsWithItsKey revokes the key of a viewer.
func TestTerminalEndsWithItsKey(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	at := startTerminal(t, w, aSandbox(t, w), "read x")
	k, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	x := attach(t, srv, secret, at+"/attach")
	x.message(v1.TerminalAttached)
	if err := w.Keys.Revoke(t.Context(), engi.Everyone, k.ID); err != nil {
		t.Fatal(err)
	}
	if m := x.message(v1.EventError); m.Error.Kind != v1.Anonymous {
		t.Errorf("%+v", m.Error)
	}
}

// TestTerminalSlowViewer has one viewer who reads and one who does not.
func TestTerminalSlowViewer(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	at := startTerminal(t, w, aSandbox(t, w), "read x; head -c 15000000 /dev/zero | tr '\\0' x; echo; echo end; read x",
		func(q *v1.TerminalRequest) { q.Scrollback = 64 << 10 })
	slow := attach(t, srv, w.User, at+"/attach")
	fast := attach(t, srv, w.User, at+"/attach")
	slow.message(v1.TerminalReplayed)
	fast.write("\n")
	fast.shows("end") // it may be overtaken, too: what it reads it also keeps
	fast.write("\n")
	fast.message(v1.EventExit)
	slow.message(v1.EventExit)
	if !strings.Contains(slow.all.String(), "end") || slow.at != fast.at || slow.at < 15_000_000 {
		t.Errorf("it saw %.200q up to %d of %d", slow.all.String(), slow.at, fast.at)
	}
	var missing []v1.TerminalMessage
	for _, m := range slow.got {
		switch m.Type {
		case v1.TerminalMissing:
			missing = append(missing, m)
			if *m.Offset >= *m.End || *m.End > slow.at {
				t.Errorf("missing %d to %d of %d", *m.Offset, *m.End, slow.at)
			}
		case v1.EventError:
			t.Errorf("%+v", m.Error)
		}
	}
	if len(missing) == 0 {
		t.Errorf("nothing is missing: %s", slow.messages())
	}
}

func TestTerminalRecording(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	at := startTerminal(t, w, aSandbox(t, w), "stty -echo; printf 'ä\\n\\377'; read x; stty size; exit 4")
	x := attach(t, srv, w.User, at+"/attach")
	x.shows("\xff")
	x.say(`{"type":"resize","cols":100,"rows":30}`)
	x.message(v1.TerminalResized)
	x.write("\n")
	x.message(v1.EventExit)
	for format, lines := range map[string][]string{
		"2": {`{"version":2,"width":80,"height":24,`, `"o","ä\r\n`, `"r","100x30"]`, `30 100`},
		"3": {`{"version":3,"term":{"cols":80,"rows":24,`, `"o","ä\r\n`, `"r","100x30"]`, `30 100`, `"x","4"]`},
	} {
		rec := ask(t, w, "GET", at+"/recording?format="+format, "")
		text := rec.Body.String()
		rest := text
		for _, want := range lines {
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Fatalf("format %s: no %s in %s", format, want, text)
			}
			rest = after
		}
		for line := range strings.Lines(text) {
			if !json.Valid([]byte(line)) {
				t.Errorf("line %q", line)
			}
		}
	}
	refused(t, ask(t, w, "GET", at+"/recording?format=4", ""), 400, engi.Invalid)
}

// TestTerminalsOfSessions starts one in a session without a sandbox.
func TestTerminalsOfSessions(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	s := "/v1/sessions/" + read[v1.Session](t, ask(t, w, "POST", "/v1/sessions", `{"name":"chat"}`), 201).ID
	if all := read[v1.List[v1.Terminal]](t, ask(t, w, "GET", s+"/terminals", ""), 200).Items; len(all) != 0 {
		t.Errorf("%+v", all)
	}
	made := read[v1.Terminal](t, ask(t, w, "POST", s+"/terminals", ""), 201)
	if made.SessionID == "" || made.SandboxID == "" || made.Cols != 80 || made.Args[0] != "/bin/bash" {
		t.Errorf("%+v", made)
	}
	x := attach(t, srv, w.User, "/v1/sessions/chat/terminals/"+made.ID+"/attach")
	x.write("echo $((6*7))\n")
	x.shows("42\r\n")
	// It is the sandbox's, too, and no other session's.
	read[v1.Terminal](t, ask(t, w, "GET", "/v1/sandboxes/"+made.SandboxID+"/terminals/"+made.ID, ""), 200)
	ask(t, w, "POST", "/v1/sessions", `{"name":"second"}`)
	refused(t, ask(t, w, "GET", "/v1/sessions/second/terminals/"+made.ID, ""), 404, engi.NotFound)
	if rec := ask(t, w, "DELETE", s+"/terminals/"+made.ID, ""); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	x.message(v1.EventExit)
	refused(t, ask(t, w, "GET", s+"/terminals/"+made.ID, ""), 404, engi.NotFound)
	// The same request again starts nothing.
	key := []string{"Idempotency-Key", "one"}
	first := read[v1.Terminal](t, ask(t, w, "POST", s+"/terminals", `{"args":["/bin/cat"]}`, key...), 201)
	again := read[v1.Terminal](t, ask(t, w, "POST", s+"/terminals", `{"args":["/bin/cat"]}`, key...), 201)
	if all := read[v1.List[v1.Terminal]](t, ask(t, w, "GET", s+"/terminals", ""), 200).Items; first.ID != again.ID || len(all) != 1 || !all[0].Running {
		t.Errorf("%s, %s, %+v", first.ID, again.ID, all)
	}
	refused(t, ask(t, w, "POST", s+"/terminals", `{"args":["/nope"]}`), 404, engi.NotFound)
	// With its sandbox gone it has ended.
	ask(t, w, "DELETE", "/v1/sandboxes/"+first.SandboxID, "")
	if all := read[v1.List[v1.Terminal]](t, ask(t, w, "GET", s+"/terminals", ""), 200).Items; len(all) != 0 {
		t.Errorf("%+v", all)
	}
}
