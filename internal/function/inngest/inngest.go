// Package inngest lets an Inngest server execute the runs of durable functions
// and remember the results of their steps. It implements the protocol between
// such a server and an application: runs are started by events, and the server
// calls back over HTTP for every single step.
//
// It does not send callers' events to Inngest. One function on the server represents
// all functions of engi, because package function manages queues, attempts, limits and
// schedules.
package inngest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
)

// Options configures an [Engine].
type Options struct {
	URL        string // URL of the server, like http://127.0.0.1:8288
	ServeURL   string // URL at which the server reaches this engine, with a path
	App        string // name of the application on the server; empty means engi
	EventKey   string // secret; ignored by a server without keys
	SigningKey string // secret; empty for a server without keys, which must be on this machine
	Client     *http.Client
	Log        *slog.Logger // nil discards
}

const (
	functionID       = "run"     // ID of the only registered function
	sdkName          = "engi:v1" // identifies the client to the server
	maxAttempts      = 20        // number of failed calls in a row after which the server gives up a run; its maximum
	callTimeout      = 10 * time.Second
	parkedCall       = "168h"      // interval of the server's calls for a parked run, of which each is one of its 1,000 steps
	registerInterval = time.Minute // interval of registrations, which are repeated for servers that forget them
	maxAnswer        = 64 << 20    // maximum bytes of the results of a run's steps
)

// An Engine implements [function.Engine] with an Inngest server, and
// [http.Handler] for the server's calls. Calls must be signed or, without a
// signing key, come from this machine. It is safe for concurrent use.
type Engine struct {
	opt        Options
	bearer     string // empty without a signing key
	reregister chan struct{}

	mu      sync.Mutex
	execute function.Executor // nil unless Run is active
	ctx     context.Context
	running sync.WaitGroup
	pending map[engi.FunctionRunID]*pendingStep
}

var (
	_ function.Engine = (*Engine)(nil)
	_ http.Handler    = (*Engine)(nil)
)

var appName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// New returns an engine; call Run. It reports Invalid.
func New(opt Options) (*Engine, error) {
	opt.App = cmp.Or(opt.App, "engi")
	opt.EventKey = cmp.Or(opt.EventKey, "none")
	opt.URL = strings.TrimRight(opt.URL, "/")
	if opt.Client == nil {
		opt.Client = &http.Client{Timeout: callTimeout}
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{opt: opt, reregister: make(chan struct{}, 1), pending: map[engi.FunctionRunID]*pendingStep{}}
	if !appName.MatchString(opt.App) {
		return nil, engi.Errorf(engi.Invalid, "inngest: %.80q is not a name for an application", opt.App).WithRemedy("use up to 63 lower-case letters, digits and hyphens")
	}
	for _, address := range []string{opt.URL, opt.ServeURL} {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return nil, engi.Errorf(engi.Invalid, "inngest: the address of the server, or the one at which it reaches this node, is not a plain http or https address").
				WithRemedy("set both, like http://127.0.0.1:8288 and http://127.0.0.1:7777/api/inngest")
		}
		if opt.SigningKey == "" && !loopback(u.Hostname()) {
			return nil, engi.Errorf(engi.Invalid, "inngest: without a signing key everything must be on this machine, and %.200q is not", u.Host).
				WithRemedy("start the server with a signing key and configure the same key for this node")
		}
	}
	if opt.SigningKey != "" {
		var err error
		if e.bearer, err = hashSigningKey(opt.SigningKey); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// Start implements [function.Engine]. The server ignores an event for a run that
// is active already, because of the singleton in the registration.
func (e *Engine) Start(ctx context.Context, id engi.FunctionRunID, name string) error {
	return e.send(ctx, e.event(), startEvent{Run: string(id), Function: name})
}

// send sends an event to the server.
func (e *Engine) send(ctx context.Context, name string, data startEvent) error {
	body, err := json.Marshal(map[string]any{"name": name, "data": data})
	if err != nil {
		return err // unreachable: strings can be encoded
	}
	_, err = e.request(ctx, http.MethodPost, "/e/"+url.PathEscape(e.opt.EventKey), body)
	return err
}

// event returns the name of the event that starts a run on the server.
func (e *Engine) event() string { return e.opt.App + "/function.run" }

// wakeEvent returns the name of the event that a parked run waits for on the server.
func (e *Engine) wakeEvent() string { return e.opt.App + "/function.wake" }

// slug returns the server's name for the function.
func (e *Engine) slug() string { return e.opt.App + "-" + functionID }

// Wake implements [function.Engine]. It drops the kept result of a step, and sends the event that
// a parked run waits for. The server loses the event if the run does not wait yet. A run that waits
// for another attempt, and was cancelled, is called when the server's sleep is over.
func (e *Engine) Wake(ctx context.Context, id engi.FunctionRunID) error {
	e.mu.Lock()
	// The result of a step stays: the server may not have it, and the run may have gone on in the meantime.
	if p := e.pending[id]; p != nil && p.ended() && !p.response.step {
		delete(e.pending, id)
	}
	e.mu.Unlock()
	return e.send(ctx, e.wakeEvent(), startEvent{Run: string(id)})
}

// Run implements [function.Engine]. It is ready after the first attempt to
// register with the server, which is retried if it fails.
func (e *Engine) Run(ctx context.Context, x function.Executor, ready func()) error {
	e.mu.Lock()
	if e.execute != nil {
		e.mu.Unlock()
		return engi.Errorf(engi.Internal, "inngest: Run was called twice")
	}
	e.execute, e.ctx = x, ctx
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.execute = nil // further calls are refused
		e.mu.Unlock()
		e.running.Wait()
	}()
	for wait, first := time.Second, true; ; first = false {
		next := registerInterval
		if err := e.register(ctx); err == nil {
			wait = time.Second
		} else if ctx.Err() == nil {
			e.opt.Log.WarnContext(ctx, "register with the Inngest server; it is retried", "after", wait, "error", err)
			next, wait = wait, min(2*wait, 30*time.Second)
		}
		if first {
			ready()
		}
		again := time.NewTimer(next)
		select {
		case <-again.C:
		case <-e.reregister:
			again.Stop()
		case <-ctx.Done():
			again.Stop()
			return nil
		}
	}
}

// register registers the function and its URL on the server.
func (e *Engine) register(ctx context.Context) error {
	serve, err := url.Parse(e.opt.ServeURL)
	if err != nil {
		return err // unreachable: New has parsed it
	}
	serve.RawQuery = url.Values{"fnId": {e.slug()}, "stepId": {"step"}}.Encode()
	body, err := json.Marshal(map[string]any{
		"v": "0.1", "url": e.opt.ServeURL, "deployType": "ping", "sdk": sdkName, "framework": "engi", "appName": e.opt.App,
		"capabilities": map[string]string{},
		"functions": []any{map[string]any{
			"id": e.slug(), "name": e.opt.App + " functions",
			"triggers": []any{map[string]string{"event": e.event()}},
			// After a crash of this node, runs are started again.
			"singleton": map[string]string{"key": "event.data.run", "mode": "skip"},
			"steps": map[string]any{"step": map[string]any{
				"id": "step", "name": "step", "retries": map[string]int{"attempts": maxAttempts},
				"runtime": map[string]string{"type": "http", "url": serve.String()},
			}},
		}},
	})
	if err != nil {
		return err // unreachable: strings and numbers can be encoded
	}
	_, err = e.request(ctx, http.MethodPost, "/fn/register", body)
	return err
}

// fetchResults requests the results of a run's steps from the server, if they were too
// large for the call.
func (e *Engine) fetchResults(ctx context.Context, run string) (map[string]json.RawMessage, error) {
	raw, err := e.request(ctx, http.MethodGet, "/v0/runs/"+url.PathEscape(run)+"/actions", nil)
	if err != nil {
		return nil, err
	}
	steps := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &steps); err != nil {
		return nil, engi.Errorf(engi.Unavailable, "inngest: the server's results of steps cannot be read: %v", err)
	}
	return steps, nil
}

// request sends a request to the server. Its errors contain no keys.
func (e *Engine) request(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, e.opt.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "inngest: the server's address cannot be used").WithRemedy("check events.inngest.url")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Inngest-SDK", sdkName)
	req.Header.Set("User-Agent", sdkName)
	if e.bearer != "" && !strings.HasPrefix(path, "/e/") {
		req.Header.Set("Authorization", "Bearer "+e.bearer)
	}
	resp, err := e.opt.Client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, which contains the event key
		}
		return nil, engi.Errorf(engi.Unavailable, "inngest: reach the server: %v", err).WithRemedy("check that it is running and that events.inngest.url is its address")
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "inngest: read the server's answer: %v", err)
	}
	switch {
	case resp.StatusCode/100 == 2:
		return raw, nil
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		return nil, engi.Errorf(engi.Unavailable, "inngest: the server does not accept our keys (%s)", resp.Status).WithRemedy("configure the event key and the signing key that the server was started with")
	}
	text := strings.ReplaceAll(string(raw), e.opt.EventKey, "…")
	if e.bearer != "" {
		text = strings.ReplaceAll(text, e.bearer, "…")
	}
	text = text[:min(len(text), 200)]
	return nil, engi.Errorf(engi.Unavailable, "inngest: the server answered %s: %q", resp.Status, text)
}

// hashSigningKey returns the form of a signing key that is sent to the server.
func hashSigningKey(key string) (string, error) {
	prefix := keyPrefix.FindString(key)
	raw, err := hex.DecodeString(key[len(prefix):])
	if err != nil || len(raw) == 0 {
		return "", engi.Errorf(engi.Invalid, "inngest: the signing key is not hexadecimal after its prefix").WithRemedy("use the key that the server was started with")
	}
	return prefix + digest256(raw), nil
}

// isLocal reports whether a request was made on this machine, and not by a
// browser or a proxy.
func isLocal(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil || !loopback(host) {
		return false
	}
	if name, _, err := net.SplitHostPort(r.Host); err == nil {
		host = name
	} else {
		host = r.Host
	}
	for _, foreign := range []string{"Origin", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host"} {
		if r.Header.Get(foreign) != "" {
			return false
		}
	}
	return loopback(strings.Trim(host, "[]"))
}
