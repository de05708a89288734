package kernel

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// Prefix is the beginning of every path of the API.
const Prefix = "/interpreter/"

// maxBody bounds a request, in bytes.
const maxBody = 16 << 20

// Routes returns all handlers of the API by patterns of [http.ServeMux].
func (k *Kernels) Routes() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET " + Prefix + "health":                 route(k.health),
		"POST " + Prefix + "execute":               route(k.execute),
		"GET " + Prefix + "contexts":               route(k.listContexts),
		"POST " + Prefix + "contexts":              route(k.createContext),
		"DELETE " + Prefix + "contexts/{id}":       route(k.removeContext),
		"POST " + Prefix + "contexts/{id}/restart": route(k.restartContext),
	}
}

// Port is the port on which programs in a sandbox expect the API.
const Port = 49999

// Local returns a handler of the API for programs in the sandbox. It cannot identify the
// caller, so it refuses only requests that a web page made a browser send.
func (k *Kernels) Local() http.Handler {
	mux := http.NewServeMux()
	for pattern, f := range k.Routes() {
		mux.Handle(pattern, f)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		ip := net.ParseIP(strings.Trim(host, "[]"))
		if site := r.Header.Get("Sec-Fetch-Site"); r.Header.Get("Origin") != "" || site != "" && site != "none" || host != "localhost" && !ip.IsLoopback() && !ip.IsUnspecified() {
			writeError(w, engi.Errorf(engi.Denied, "web pages may not use the code interpreter"))
			return
		}
		r.URL.Path, r.URL.RawPath = strings.TrimSuffix(Prefix, "/")+r.URL.Path, ""
		mux.ServeHTTP(w, r)
	})
}

func route(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			writeError(w, err)
		}
	}
}

// writeError sends the text of an error as the answer, which clients show.
func writeError(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(wire.Status(engi.KindOf(err)))
	io.WriteString(w, err.Error()) // fails if the client has disconnected
}

// readJSON decodes a JSON body; an empty one leaves v as it is.
func readJSON(r *http.Request, v any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return engi.Errorf(engi.Unavailable, "read request: %v", err)
	case len(b) > maxBody:
		return engi.Errorf(engi.Invalid, "the request is larger than %d bytes", maxBody).WithRemedy("write the data to a file and read it from the code")
	case len(b) == 0:
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return engi.Errorf(engi.Invalid, "the request is not valid: %v", err)
	}
	return nil
}

func (k *Kernels) health(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "OK")
	return nil
}

// contextInfo describes a context to clients.
type contextInfo struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Dir      string `json:"cwd"`
}

func (s *codeContext) info() contextInfo { return contextInfo{s.id, s.language, s.dir} }

func (k *Kernels) listContexts(w http.ResponseWriter, r *http.Request) error {
	all := []contextInfo{}
	for _, s := range k.list() {
		all = append(all, s.info())
	}
	return wire.WriteJSON(w, all)
}

func (k *Kernels) createContext(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Language string `json:"language"`
		Dir      string `json:"cwd"`
	}
	if err := readJSON(r, &in); err != nil {
		return err
	}
	l, err := language(in.Language)
	if err != nil {
		return err
	}
	if _, err := k.interpreter(l); err != nil {
		return err
	}
	dir := in.Dir
	if dir == "" {
		dir = k.defaultDir()
	} else {
		if len(dir) > wire.MaxPath || strings.IndexByte(dir, 0) >= 0 {
			return engi.Errorf(engi.Invalid, "cwd %.80q cannot be a path", dir)
		}
		home := k.sandbox.User().Home
		resolved := k.sandbox.Resolve(dir, home)
		if fi, err := os.Stat(resolved); err != nil || !fi.IsDir() {
			return engi.Errorf(engi.Invalid, "cwd '%s' does not exist", dir).WithRemedy("create the directory first")
		}
		dir = k.sandbox.Inside(resolved)
	}
	s, err := k.add(l, dir)
	if err != nil {
		return err
	}
	// Start the kernel now, to report here if it cannot run.
	if err := k.warm(context.WithoutCancel(r.Context()), s); err != nil {
		k.remove(s.id)
		return err
	}
	return wire.WriteJSON(w, s.info())
}

func (k *Kernels) removeContext(w http.ResponseWriter, r *http.Request) error {
	if err := k.remove(r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (k *Kernels) restartContext(w http.ResponseWriter, r *http.Request) error {
	if err := k.restart(context.WithoutCancel(r.Context()), r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// executeRequest is the body of a request to run code.
type executeRequest struct {
	Code     string            `json:"code"`
	Context  string            `json:"context_id"`
	Language string            `json:"language"`
	Env      map[string]string `json:"env_vars"`
}

// contextFor returns the context named in a request.
func (k *Kernels) contextFor(in executeRequest) (*codeContext, error) {
	if in.Context != "" && in.Language != "" {
		return nil, engi.Errorf(engi.Invalid, "Only one of context_id or language can be provided")
	}
	if err := wire.CheckEnv(in.Env); err != nil {
		return nil, err
	}
	var s *codeContext
	l, err := language(in.Language)
	switch {
	case in.Context != "" && in.Context != "default":
		s, err = k.find(in.Context)
	case err == nil:
		s, err = k.defaultContext(l)
	}
	if err != nil {
		return nil, err
	}
	if _, err := k.interpreter(s.language); err != nil {
		return nil, err
	}
	return s, nil
}

func (k *Kernels) execute(w http.ResponseWriter, r *http.Request) error {
	var in executeRequest
	if err := readJSON(r, &in); err != nil {
		return err
	}
	s, err := k.contextFor(in)
	if err != nil {
		return err
	}
	st := newStream(r.Context(), w)
	defer st.stop()
	// Wait for other executions, and for the start of the kernel.
	var p *process
	acquired := false
	defer func() {
		if acquired {
			s.release()
		}
	}()
	err = st.keepAliveDuring(func() (err error) {
		if err = s.acquire(r.Context()); err != nil {
			return err
		}
		acquired = true
		p, err = k.running(context.WithoutCancel(r.Context()), s)
		return err
	})
	if err != nil {
		st.fail("KernelError", err.Error())
		return nil
	}
	s.mu.Lock()
	s.count++
	count := s.count
	s.mu.Unlock()
	st.send(message{Type: "number_of_executions", Count: count})
	p.last++
	msg, err := p.encode(command{ID: p.last, Code: in.Code, Count: count, Own: in.Env}, k.sandbox.User().Env)
	if err == nil {
		events := p.listen()
		defer p.unlisten()
		if err = p.write(msg); err == nil {
			st.follow(p, events, p.last)
			return nil
		}
	}
	st.fail("KernelError", err.Error())
	return nil
}
