package e2b

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi"
)

// Headers by which clients name a sandbox, and the token for its ports.
const (
	sandboxHeader = "E2b-Sandbox-Id"
	portHeader    = "E2b-Sandbox-Port"
	accessHeader  = "X-Access-Token"
	trafficHeader = "E2b-Traffic-Access-Token"
)

// Target says which sandbox and port a request is for: by its host name,
// PORT-SANDBOX.DOMAIN, else by its headers.
func Target(r *http.Request, domain string) (engi.SandboxID, int, bool) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if first, rest, ok := strings.Cut(host, "."); ok && (domain == "" || strings.EqualFold(rest, bare(domain))) {
		if port, label, ok := strings.Cut(first, "-"); ok {
			if id, n, ok := target(label, port); ok {
				return id, n, true
			}
		}
	}
	return target(r.Header.Get(sandboxHeader), r.Header.Get(portHeader))
}

func bare(domain string) string {
	if h, _, err := net.SplitHostPort(domain); err == nil {
		return h
	}
	return domain
}

func target(label, port string) (engi.SandboxID, int, bool) {
	if label == "" {
		return "", 0, false
	}
	label, _, _ = strings.Cut(strings.ToLower(label), "-") // clients before version 2 add their clientID
	id, err := engi.SandboxOfLabel(label)
	if err != nil {
		// It names a sandbox that cannot be; whoever serves it says so.
		id = engi.SandboxID(label)
	}
	n, perr := strconv.Atoi(port)
	if perr != nil && port == "" {
		n, perr = AgentPort, nil
	}
	if perr != nil || n < 1 || n > 65535 {
		return "", 0, false
	}
	return id, n, true
}

// Inside serves requests to the agent and the code interpreter of sandboxes:
// those whose target is [AgentPort] or [InterpreterPort].
func (s *Server) Inside() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, port, ok := s.Target(r)
		if !ok {
			refuse(w, http.StatusBadRequest, "the request names no sandbox")
			return
		}
		s.inside(w, r, id, port)
	})
}

// lost is what clients take for a sandbox that is not there.
func lost(w http.ResponseWriter, id engi.SandboxID, text string) {
	label := string(id)
	if _, err := engi.ParseSandboxID(label); err == nil {
		label = id.Label()
	}
	answer(w, http.StatusBadGateway, map[string]any{"sandboxId": label, "message": text, "code": http.StatusBadGateway})
}

const textLost = "The sandbox was not found"

func (s *Server) inside(w http.ResponseWriter, r *http.Request, id engi.SandboxID, port int) {
	box, err := s.Sandboxes.Get(r.Context(), "", id)
	switch {
	case err != nil && engi.KindOf(err) != engi.NotFound && engi.KindOf(err) != engi.Invalid:
		fail(w, err)
		return
	case err != nil || box.State == engi.Stopped || box.State == engi.Stopping || box.Execution != "":
		lost(w, id, textLost)
		return
	case box.State == engi.Hibernated && box.Disk:
		// Only its owner boots it again, knowing that the memory is gone.
		lost(w, id, "The sandbox is paused without its memory: connect to it to start it again")
		return
	}
	if err := s.enters(r, box, port); err != nil {
		fail(w, err)
		return
	}
	if port == AgentPort && r.URL.Path == "/health" && stateOf(box.State) == "paused" {
		// Clients ask whenever a stream breaks off, as it does in a pause:
		// that must not wake what has just fallen asleep.
		lost(w, id, "The sandbox is paused")
		return
	}
	crowd := &s.inner
	if r.URL.Path == "/filesystem.Filesystem/WatchDir" {
		crowd = &s.watches
	}
	leave, err := crowd.Join(id)
	if err != nil {
		fail(w, err)
		return
	}
	defer leave()
	// What may be long, or comes bit by bit.
	uploads := r.Method == http.MethodPost && (r.URL.Path == "/files" || r.URL.Path == "/process.Process/StreamInput")
	if r, err = ask(w, r, uploads); err != nil {
		fail(w, err)
		return
	}
	g, release, err := s.Sandboxes.Enter(r.Context(), "", id)
	if err != nil {
		switch engi.KindOf(err) {
		case engi.NotFound:
			lost(w, id, textLost)
		case engi.Conflict:
			lost(w, id, "The sandbox is paused: "+err.Error())
		case engi.Unavailable:
			lost(w, id, err.Error())
		default:
			fail(w, err)
		}
		return
	}
	defer release()
	agent, ok := g.(engi.GuestHTTP)
	if !ok {
		fail(w, errNone("agent inside sandboxes"))
		return
	}
	prefix := ""
	if port == InterpreterPort {
		prefix = "/interpreter"
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "guest"
			p.Out.URL.Path, p.Out.URL.RawPath = prefix+p.In.URL.Path, ""
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			clean(p.Out.Header)
		},
		Transport:     agent,
		FlushInterval: -1, // every piece goes out at once
		ModifyResponse: func(resp *http.Response) error {
			// The guest has no say about other paths of this host.
			resp.Header.Del("Set-Cookie")
			resp.Header.Set("Content-Security-Policy", "sandbox")
			resp.Header.Set("X-Content-Type-Options", "nosniff")
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				lost(w, id, "The sandbox does not answer: "+err.Error())
			}
		},
		ErrorLog: slog.NewLogLogger(s.Log.With("sandbox", id).Handler(), slog.LevelInfo),
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if s.Leave != nil {
		go func() {
			select {
			case <-s.Leave:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// maxAsk bounds what is read whole on its way in: a message, or code with its
// context.
const maxAsk = 32 << 20

// ask makes a request ready to be sent on. The server closes the body of a
// request of HTTP/1 when the answer begins; a sender that still waits for its
// end would fail then, and break the answer. So messages are read whole
// before, and for files the close is their end.
func ask(w http.ResponseWriter, r *http.Request, uploads bool) (*http.Request, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, nil
	}
	out := r.Clone(r.Context())
	if uploads || r.ProtoMajor > 1 {
		out.Body = upload{r.Body}
		return out, nil
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAsk))
	if err != nil {
		if _, over := errors.AsType[*http.MaxBytesError](err); over {
			return nil, engi.Errorf(engi.Invalid, "the body is over %d bytes", maxAsk)
		}
		return nil, engi.Errorf(engi.Unavailable, "read the body: %v", err)
	}
	out.Body, out.ContentLength, out.TransferEncoding = io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
	return out, nil
}

// upload is a body whose closing is its end.
type upload struct{ io.ReadCloser }

func (u upload) Read(b []byte) (int, error) {
	n, err := u.ReadCloser.Read(b)
	if errors.Is(err, http.ErrBodyReadAfterClose) {
		err = io.EOF
	}
	return n, err
}

// clean takes out what is for us only. Basic authentication names a user
// inside and stays.
func clean(h http.Header) {
	for _, name := range []string{accessHeader, trafficHeader, sandboxHeader, portHeader, "X-Api-Key", "Cookie"} {
		h.Del(name)
	}
	if !strings.HasPrefix(h.Get("Authorization"), "Basic ") {
		h.Del("Authorization")
	}
}

// enters reports whether r may go in.
func (s *Server) enters(r *http.Request, box engi.Sandbox, port int) error {
	path := r.URL.Path
	if port == InterpreterPort {
		// Clients send the access token with code only.
		if box.Ports.Private {
			if err := s.Allow(r, box, port); err != nil {
				return err
			}
		}
		if path != "/execute" {
			return nil
		}
	}
	if !secure(box) || port == AgentPort && path == "/health" {
		return nil
	}
	if got := r.Header.Get(accessHeader); got != "" {
		if same(got, s.AccessToken(box.ID)) {
			return nil
		}
		return engi.Errorf(engi.Anonymous, "invalid access token")
	}
	if g, signed := signatureOf(r.URL.Query(), r.Method); signed && port == AgentPort && path == "/files" {
		return g.check(s.AccessToken(box.ID), time.Now())
	}
	return engi.Errorf(engi.Anonymous, "missing access token")
}

// Allow lets a request into the ports of a sandbox that are not public if it
// carries the token for them; else it reports Denied.
func (s *Server) Allow(r *http.Request, box engi.Sandbox, port int) error {
	if same(r.Header.Get(trafficHeader), s.TrafficToken(box.ID)) {
		return nil
	}
	return engi.Errorf(engi.Denied, "the ports of this sandbox are private").
		WithRemedy("send the header %s", strings.ToLower(trafficHeader))
}

// maxSigners bounds the sandboxes whose tokens a signature is tried with.
const maxSigners = 20_000

// signedFile serves URLs for one file that name no sandbox, as clients make
// them when they know us by a base URL only: the signature tells which.
func (s *Server) signedFile(w http.ResponseWriter, r *http.Request) {
	g, signed := signatureOf(r.URL.Query(), r.Method)
	if !signed {
		refuse(w, http.StatusBadRequest, "the request names no sandbox")
		return
	}
	boxes, err := s.Sandboxes.List(r.Context(), "", engi.SandboxFilter{Owned: true, Limit: maxSigners})
	if err != nil {
		fail(w, err)
		return
	}
	for _, box := range boxes {
		if g.made(s.AccessToken(box.ID)) {
			s.inside(w, r, box.ID, AgentPort)
			return
		}
	}
	refuse(w, http.StatusUnauthorized, "invalid signature")
}
