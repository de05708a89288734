package kernel

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/wire"
)

// Prefix is that of every path of the dialect.
const Prefix = "/interpreter/"

// maxBody bounds a request. Code is text that people and models write.
const maxBody = 16 << 20

// Handler serves the dialect.
func (k *Kernels) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, f := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET " + Prefix + "health":                 k.health,
		"POST " + Prefix + "execute":               k.execute,
		"GET " + Prefix + "contexts":               k.listContexts,
		"POST " + Prefix + "contexts":              k.createContext,
		"DELETE " + Prefix + "contexts/{id}":       k.removeContext,
		"POST " + Prefix + "contexts/{id}/restart": k.restartContext,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := f(w, r); err != nil {
				refuse(w, err)
			}
		})
	}
	return mux
}

// refuse answers with the text of an error, which is what clients show.
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(wire.Status(engi.KindOf(err)))
	io.WriteString(w, err.Error()) // a client that left hears nothing
}

func answer(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "encode answer: %v", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(b) // a client that left hears nothing
	return nil
}

// receive reads a JSON body; none at all leaves v as it is.
func receive(r *http.Request, v any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return engi.Errorf(engi.Unavailable, "read request: %v", err)
	case len(b) > maxBody:
		return engi.Errorf(engi.Invalid, "the request is over %d bytes", maxBody).WithRemedy("write the data to a file and read it from the code")
	case len(b) == 0:
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return engi.Errorf(engi.Invalid, "the request makes no sense: %v", err)
	}
	return nil
}

func (k *Kernels) health(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "OK")
	return nil
}

// description is a context as clients see it.
type description struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Dir      string `json:"cwd"`
}

func (s *session) describe() description { return description{s.id, s.language, s.dir} }

func (k *Kernels) listContexts(w http.ResponseWriter, r *http.Request) error {
	all := []description{}
	for _, s := range k.list() {
		all = append(all, s.describe())
	}
	return answer(w, all)
}

func (k *Kernels) createContext(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Language string `json:"language"`
		Dir      string `json:"cwd"`
	}
	if err := receive(r, &in); err != nil {
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
		home := k.box.Account().Home
		resolved := k.box.Resolve(dir, home)
		if fi, err := os.Stat(resolved); err != nil || !fi.IsDir() {
			return engi.Errorf(engi.Invalid, "cwd '%s' does not exist", dir).WithRemedy("make the directory first")
		}
		dir = k.box.Inside(resolved)
	}
	s, err := k.add(l, dir)
	if err != nil {
		return err
	}
	// The kernel starts at once: a context that cannot run is told here.
	if err := k.warm(context.WithoutCancel(r.Context()), s); err != nil {
		k.remove(s.id)
		return err
	}
	return answer(w, s.describe())
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

// execution is the body of a request to run code.
type execution struct {
	Code     string            `json:"code"`
	Context  string            `json:"context_id"`
	Language string            `json:"language"`
	Env      map[string]string `json:"env_vars"`
}

// choose returns the context an execution belongs to.
func (k *Kernels) choose(in execution) (*session, error) {
	if in.Context != "" && in.Language != "" {
		return nil, engi.Errorf(engi.Invalid, "Only one of context_id or language can be provided")
	}
	if err := wire.CheckEnv(in.Env); err != nil {
		return nil, err
	}
	var s *session
	l, err := language(in.Language)
	switch {
	case in.Context != "" && in.Context != "default":
		s, err = k.find(in.Context)
	case err == nil:
		s, err = k.byLanguage(l)
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
	var in execution
	if err := receive(r, &in); err != nil {
		return err
	}
	s, err := k.choose(in)
	if err != nil {
		return err
	}
	st := newStream(r.Context(), w)
	defer st.stop()
	// It may wait for others, and for the kernel to start.
	var p *process
	entered := false
	defer func() {
		if entered {
			s.leave()
		}
	}()
	err = st.during(func() (err error) {
		if err = s.enter(r.Context()); err != nil {
			return err
		}
		entered = true
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
	msg, err := p.message(command{ID: p.last, Code: in.Code, Count: count, Own: in.Env}, k.box.Account().Env)
	if err == nil {
		events := p.listen()
		defer p.unlisten()
		if err = p.tell(msg); err == nil {
			st.follow(p, events, p.last)
			return nil
		}
	}
	st.fail("KernelError", err.Error())
	return nil
}
