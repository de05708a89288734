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

	"github.com/engi-dev/engi/internal/access/strip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// Headers for the sandbox and port of a request, and for tokens.
const (
	sandboxHeader = "E2b-Sandbox-Id"
	portHeader    = "E2b-Sandbox-Port"
	accessHeader  = "X-Access-Token"
	trafficHeader = "E2b-Traffic-Access-Token"
)

// Target returns the sandbox and port of a request, from its host name
// PORT-SANDBOX.DOMAIN, or else from its headers.
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
	label, _, _ = strings.Cut(strings.ToLower(label), "-") // clients before version 2 append their clientID
	id, err := engi.SandboxOfLabel(label)
	if err != nil {
		// Not an ID: the lookup reports NotFound.
		id = engi.SandboxID(label)
	}
	n, perr := strconv.Atoi(port)
	if perr != nil && port == "" {
		n, perr = EnvdPort, nil
	}
	if perr != nil || n < 1 || n > 65535 {
		return "", 0, false
	}
	return id, n, true
}

// Proxy serves requests to envd and the code interpreter in sandboxes: those whose
// target is [EnvdPort] or [InterpreterPort]. The guest program implements both.
func (s *Server) Proxy() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, port, ok := s.Target(r)
		if !ok {
			refuse(w, http.StatusBadRequest, "the request does not name a sandbox")
			return
		}
		s.proxy(w, r, id, port)
	})
}

// sandboxLost responds as E2B's proxy does for a missing sandbox.
func sandboxLost(w http.ResponseWriter, id engi.SandboxID, text string) {
	label := string(id)
	if _, err := engi.ParseSandboxID(label); err == nil {
		label = id.Label()
	}
	respond(w, http.StatusBadGateway, map[string]any{"sandboxId": label, "message": text, "code": http.StatusBadGateway})
}

const textLost = "The sandbox was not found"

func (s *Server) proxy(w http.ResponseWriter, r *http.Request, id engi.SandboxID, port int) {
	sandbox, err := s.Sandboxes.Get(r.Context(), engi.Everyone, id)
	switch {
	case err != nil && !engi.Is(err, engi.NotFound, engi.Invalid):
		fail(w, err)
		return
	case err != nil || sandbox.State == engi.Stopped || sandbox.State == engi.Stopping || sandbox.Execution != "":
		sandboxLost(w, id, textLost)
		return
	case sandbox.State == engi.Hibernated && sandbox.Disk:
		// Only an explicit connect boots the sandbox, because its memory is lost.
		sandboxLost(w, id, "The sandbox is paused without its memory: connect to it to start it again")
		return
	}
	health := port == EnvdPort && r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead)
	if health && stateOf(sandbox.State) == "paused" {
		// Clients check health when a stream breaks, which also happens when a sandbox
		// is paused. The check must not resume the sandbox.
		sandboxLost(w, id, "The sandbox is paused")
		return
	}
	key, err := s.authorize(r, sandbox, port)
	if err != nil {
		if health && r.Header.Get(accessHeader) == "" {
			// A health check does not count as use of the sandbox.
			respond(w, http.StatusNoContent, nil)
			return
		}
		fail(w, err)
		return
	}
	limiter := &s.requests
	if r.URL.Path == "/filesystem.Filesystem/WatchDir" {
		limiter = &s.watches
	}
	leave, err := limiter.Join(string(id))
	if err != nil {
		fail(w, err)
		return
	}
	defer leave()
	// These bodies can be long or open-ended.
	input := r.URL.Path == "/process.Process/StreamInput" // the body may pause between messages
	uploads := r.Method == http.MethodPost && (r.URL.Path == "/files" || input)
	if !input {
		timed, stop := httpio.TimedBody(w, r)
		defer stop()
		r = timed
	}
	if r, err = prepareBody(w, r, uploads); err != nil {
		fail(w, err)
		return
	}
	g, release, err := s.Sandboxes.Enter(r.Context(), engi.Everyone, id)
	if err != nil {
		switch engi.KindOf(err) {
		case engi.NotFound:
			sandboxLost(w, id, textLost)
		case engi.Conflict:
			sandboxLost(w, id, "The sandbox is paused: "+err.Error())
		case engi.Unavailable:
			sandboxLost(w, id, err.Error())
		default:
			fail(w, err)
		}
		return
	}
	defer release()
	guest, ok := g.(engi.GuestHTTP)
	if !ok {
		fail(w, errNone("envd in sandboxes"))
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
			removeCredentials(p.Out.Header)
		},
		Transport:     guest,
		FlushInterval: -1, // flush at once
		ModifyResponse: func(resp *http.Response) error {
			// The guest must not affect other paths of this host.
			resp.Header.Del("Set-Cookie")
			resp.Header.Set("Content-Security-Policy", "sandbox")
			resp.Header.Set("X-Content-Type-Options", "nosniff")
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				sandboxLost(w, id, "The sandbox does not answer: "+err.Error())
			}
		},
		ErrorLog: slog.NewLogLogger(s.Log.With("sandbox", id).Handler(), slog.LevelInfo),
	}
	ctx, cancel := s.while(r.Context(), key, sandbox.Owner)
	defer cancel()
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// maxMessage is the maximum size in bytes of a request that is read into memory.
const maxMessage = 32 << 20

// prepareBody makes the body of a request safe to forward. The server closes the
// body of an HTTP/1 request when the response starts; a transport that still sends
// it would then fail and break the response. So messages are read into memory
// first, and for uploads a closed body counts as its end.
func prepareBody(w http.ResponseWriter, r *http.Request, uploads bool) (*http.Request, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, nil
	}
	out := r.Clone(r.Context())
	if uploads || r.ProtoMajor > 1 {
		out.Body = upload{r.Body}
		return out, nil
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		return nil, httpio.BodyError(err)
	}
	out.Body, out.ContentLength, out.TransferEncoding = io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
	return out, nil
}

// An upload is a body whose Close counts as its end.
type upload struct{ io.ReadCloser }

func (u upload) Read(b []byte) (int, error) {
	n, err := u.ReadCloser.Read(b)
	if errors.Is(err, http.ErrBodyReadAfterClose) {
		err = io.EOF
	}
	return n, err
}

// removeCredentials removes the headers with credentials for this server. Basic
// authentication names a user of the sandbox, and stays unless it contains a key.
func removeCredentials(h http.Header) {
	for _, name := range []string{accessHeader, trafficHeader, sandboxHeader, portHeader, "X-Api-Key", "Cookie"} {
		h.Del(name)
	}
	if !strings.HasPrefix(h.Get("Authorization"), "Basic ") {
		h.Del("Authorization")
	}
	strip.Keys(h)
}

// authorize returns the key of the token in r; empty if r needs no token. It reports
// Anonymous or Denied if r lacks a token that it needs, on any path.
func (s *Server) authorize(r *http.Request, sandbox engi.Sandbox, port int) (key string, err error) {
	path := r.URL.Path
	if port == InterpreterPort && sandbox.Ports.Private {
		if key, err = s.visitor(r, sandbox); err != nil {
			return "", err
		}
	}
	if !secure(sandbox) {
		return key, nil
	}
	if got := r.Header.Get(accessHeader); got != "" {
		return s.holder(r.Context(), toEnvd, string(sandbox.ID), sandbox.Owner, got)
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if port == InterpreterPort && first == "contexts" {
		// Clients send the access token only to run code, but the traffic token
		// also to manage contexts.
		if key, err = s.visitor(r, sandbox); err == nil {
			return key, nil
		}
	}
	if g, signed := signatureOf(r.URL.Query(), r.Method); signed && port == EnvdPort && path == "/files" {
		if key, err = s.signer(r.Context(), g, sandbox); err == nil {
			err = g.current(time.Now())
		}
		return key, err
	}
	return "", engi.Errorf(engi.Anonymous, "missing access token: send the header %s with the token from the answer that created or connected to the sandbox", strings.ToLower(accessHeader))
}

// Allow reports Denied unless a request has the token for the private ports and the
// contexts of a sandbox.
func (s *Server) Allow(r *http.Request, sandbox engi.Sandbox) error {
	_, err := s.visitor(r, sandbox)
	return err
}

// While returns a copy of the context of a request that Allow accepts. It ends when the
// key of the request's token ends.
func (s *Server) While(r *http.Request, sandbox engi.Sandbox) (context.Context, context.CancelFunc) {
	key, err := s.visitor(r, sandbox)
	if err != nil {
		return r.Context(), func() {} // access was granted without a token
	}
	return s.while(r.Context(), key, sandbox.Owner)
}

func (s *Server) visitor(r *http.Request, sandbox engi.Sandbox) (key string, err error) {
	key, err = s.holder(r.Context(), toPorts, string(sandbox.ID), sandbox.Owner, r.Header.Get(trafficHeader))
	if engi.Is(err, engi.Anonymous) {
		err = engi.Errorf(engi.Denied, "the ports of this sandbox are private: send the header %s with a token whose key may still be used", strings.ToLower(trafficHeader))
	}
	return key, err
}

// maxSigners is the maximum number of tokens tried for one signature.
const maxSigners = 20_000

// signedFile serves signed URLs of files that do not name their sandbox, which clients make if
// they are configured with a base URL. The signature determines the sandbox.
func (s *Server) signedFile(w http.ResponseWriter, r *http.Request) {
	g, signed := signatureOf(r.URL.Query(), r.Method)
	if !signed {
		refuse(w, http.StatusBadRequest, "the request does not name a sandbox")
		return
	}
	sandboxes, err := s.Sandboxes.List(r.Context(), engi.Everyone, engi.SandboxFilter{Owned: true, Limit: maxSigners})
	if err != nil {
		fail(w, err)
		return
	}
	tried := 0
	for _, sandbox := range sandboxes {
		keys, err := s.Keys.Live(r.Context(), sandbox.Owner)
		if err != nil {
			fail(w, err)
			return
		}
		if tried += len(keys); tried > maxSigners {
			break
		}
		if _, err := s.signer(r.Context(), g, sandbox); err == nil {
			s.proxy(w, r, sandbox.ID, EnvdPort)
			return
		}
	}
	refuse(w, http.StatusUnauthorized, "invalid signature")
}
