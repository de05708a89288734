package inngest

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //names of steps in the protocol, not secret
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
)

const (
	maxCall  = 8 << 20          // maximum bytes of a call; servers send at most 4 MiB
	bodyTime = 30 * time.Second // maximum time for reading a body
	maxAge   = 5 * time.Minute  // maximum age of a signature
)

var (
	keyPrefix = regexp.MustCompile(`^signkey-[A-Za-z0-9_]+-`)
	serverRun = regexp.MustCompile(`^[0-9A-Za-z]{1,64}$`)
)

// startEvent is the data of the events that start and wake a run on the server.
type startEvent struct {
	Run      string `json:"run"`
	Function string `json:"function,omitempty"` // for the server's dashboard
}

// A call is a request of the server to continue a run.
type call struct {
	run        engi.FunctionRunID
	server     string // the server's ID of the run
	fetchSteps bool   // steps are not in the call and must be fetched
	steps      map[string]json.RawMessage
}

// parseCall parses the body of a call. It reports Invalid.
func parseCall(body []byte) (call, error) {
	var in struct {
		Event struct {
			Data startEvent `json:"data"`
		} `json:"event"`
		Steps   map[string]json.RawMessage `json:"steps"`
		Context struct {
			Run    string `json:"run_id"`
			UseAPI bool   `json:"use_api"`
		} `json:"ctx"`
		UseAPI bool `json:"use_api"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return call{}, engi.Errorf(engi.Invalid, "inngest: parse the call: %v", err)
	}
	id, err := engi.ParseFunctionRunID(in.Event.Data.Run)
	if err != nil {
		return call{}, err
	}
	c := call{run: id, server: in.Context.Run, fetchSteps: in.UseAPI || in.Context.UseAPI, steps: in.Steps}
	if c.fetchSteps && !serverRun.MatchString(c.server) {
		return call{}, engi.Errorf(engi.Invalid, "inngest: the call has no run ID")
	}
	return c, nil
}

// fingerprint identifies the set of completed steps.
func (c call) fingerprint() string {
	names := make([]string, 0, len(c.steps))
	for name := range c.steps {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// A response is the answer to a call.
type response struct {
	status int
	body   []byte
	step   bool // the server may not have recorded the result of a step in it yet
	final  bool // the call must not be repeated because of the status
	after  time.Duration
}

// A pendingStep executes a run up to its next completed step. The response is
// kept until a call shows that the server has it, so that a lost response does
// not repeat the step.
type pendingStep struct {
	fingerprint string
	done        chan struct{}
	response    response // valid once done is closed
}

func (p *pendingStep) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ServeHTTP answers the server's calls: GET describes the engine, PUT asks it to
// register again, POST continues a run.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Inngest-SDK", sdkName)
	w.Header().Set("X-Inngest-SDK-Handled", "true")
	w.Header().Set("X-Inngest-Req-Version", "2")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime)) // some writers in tests have no deadlines
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCall))
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		write(w, refusal(http.StatusRequestEntityTooLarge, "the body is too large"))
		return
	}
	if err != nil {
		write(w, refusal(http.StatusBadRequest, "the body cannot be read"))
		return
	}
	if err := e.verify(r, body, time.Now()); err != nil {
		e.opt.Log.WarnContext(r.Context(), "refused a call that is not from the Inngest server", "from", r.RemoteAddr, "error", err)
		write(w, refusal(http.StatusUnauthorized, err.Error()))
		return
	}
	switch r.Method {
	case http.MethodGet:
		write(w, response{status: http.StatusOK, body: encode(map[string]any{
			"schema_version": "2024-05-24", "function_count": 1, "has_event_key": e.opt.EventKey != "none", "has_signing_key": e.bearer != "",
			"mode": map[bool]string{true: "cloud", false: "dev"}[e.bearer != ""], "authentication_succeeded": e.bearer != "",
		})})
	case http.MethodPut:
		select {
		case e.reregister <- struct{}{}:
		default:
		}
		write(w, response{status: http.StatusOK, body: encode(map[string]any{"message": "the functions are being registered again", "modified": false})})
	case http.MethodPost:
		if id := r.URL.Query().Get("fnId"); id != e.slug() {
			write(w, refusal(http.StatusNotFound, fmt.Sprintf("there is no function %.80q here", id)))
			return
		}
		c, err := parseCall(body)
		if err != nil {
			a := refusal(http.StatusBadRequest, err.Error())
			a.final = true
			write(w, a)
			return
		}
		e.resume(w, r, c)
	default:
		w.Header().Set("Allow", "GET, PUT, POST")
		write(w, refusal(http.StatusMethodNotAllowed, "use GET, PUT or POST"))
	}
}

// verify returns the reason why a request is not from the server; nil if it is.
func (e *Engine) verify(r *http.Request, body []byte, now time.Time) error {
	if e.bearer == "" {
		if !isLocal(r) {
			return engi.Errorf(engi.Anonymous, "unsigned calls are accepted from this machine only")
		}
		return nil
	}
	given, err := url.ParseQuery(r.Header.Get("X-Inngest-Signature"))
	if err != nil {
		return errUnsigned
	}
	at, err := strconv.ParseInt(given.Get("t"), 10, 64)
	mac, bad := hex.DecodeString(given.Get("s"))
	if err != nil || bad != nil || len(mac) != sha256.Size {
		return errUnsigned
	}
	if age := now.Sub(time.Unix(at, 0)); age > maxAge || age < -maxAge {
		return engi.Errorf(engi.Anonymous, "the signature is too old, or from the future").WithRemedy("synchronize the clocks of both machines")
	}
	sum := hmac.New(sha256.New, []byte(keyPrefix.ReplaceAllString(e.opt.SigningKey, "")))
	sum.Write(body)
	sum.Write([]byte(given.Get("t")))
	if !hmac.Equal(mac, sum.Sum(nil)) {
		return errUnsigned
	}
	return nil
}

var errUnsigned = engi.Errorf(engi.Anonymous, "the call is not signed with the configured key")

// resume executes the next step of a run, or waits for the step if the server has
// called for it before.
func (e *Engine) resume(w http.ResponseWriter, r *http.Request, c call) {
	if c.fetchSteps {
		var err error
		if c.steps, err = e.fetchResults(r.Context(), c.server); err != nil {
			write(w, response{status: http.StatusServiceUnavailable, body: failure(err), after: time.Second})
			return
		}
	}
	for {
		p := e.startStep(c)
		if p == nil {
			write(w, unavailable)
			return
		}
		select {
		case <-p.done:
		case <-r.Context().Done(): // the step continues, and its response is kept
			write(w, unavailable)
			return
		}
		if p.fingerprint != c.fingerprint() {
			e.forget(c.run, p)
			continue
		}
		if !p.response.step {
			e.forget(c.run, p)
		}
		write(w, p.response)
		return
	}
}

// startStep returns the pending step of a run, and starts the step if there is none;
// nil if the engine is not running.
func (e *Engine) startStep(c call) *pendingStep {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.pending[c.run]; p != nil {
		return p
	}
	if e.execute == nil || e.ctx.Err() != nil {
		return nil
	}
	p := &pendingStep{fingerprint: c.fingerprint(), done: make(chan struct{})}
	e.pending[c.run] = p
	ctx, x := e.ctx, e.execute
	e.running.Go(func() {
		defer close(p.done)
		p.response = e.executeStep(ctx, x, c)
	})
	return p
}

// forget drops a pending step.
func (e *Engine) forget(id engi.FunctionRunID, p *pendingStep) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pending[id] == p {
		delete(e.pending, id)
	}
}

// executeStep executes a run up to its next completed step.
func (e *Engine) executeStep(ctx context.Context, x function.Executor, c call) response {
	s := &stepper{done: c.steps}
	out := x.Execute(ctx, c.run, s)
	switch {
	case s.err != nil:
		return response{status: http.StatusInternalServerError, body: failure(s.err)}
	case out.Next == function.Yielded && s.op != nil:
		return response{status: http.StatusPartialContent, body: encode([]any{s.op}), step: true}
	case out.Next == function.Again:
		// Each sleep is a step, so the names are unique.
		name := fmt.Sprintf("wait for another attempt (%d)", len(c.steps))
		d := fmt.Sprintf("%dms", max(out.After.Milliseconds(), 1))
		return response{status: http.StatusPartialContent, body: encode([]any{map[string]any{
			"op": "Sleep", "id": digest1(name), "name": d, "displayName": name, "opts": map[string]string{"duration": d},
		}})}
	case out.Next == function.Parked:
		// Each wait is a step, too.
		name := fmt.Sprintf("wait without a slot (%d)", len(c.steps))
		return response{status: http.StatusPartialContent, body: encode([]any{map[string]any{
			"op": "WaitForEvent", "id": digest1(name), "name": e.wakeEvent(), "displayName": name,
			"opts": map[string]string{"event": e.wakeEvent(), "if": "event.data.run == async.data.run", "timeout": parkedCall},
		}})}
	case out.Next == function.Ended && out.Error != nil:
		return response{status: http.StatusBadRequest, body: failure(out.Error), final: true}
	case out.Next == function.Ended:
		return response{status: http.StatusOK, body: orNull(out.Output)}
	}
	return unavailable
}

// unavailable is the response of an engine that is not running.
var unavailable = response{status: http.StatusServiceUnavailable, body: encode(map[string]string{"name": "unavailable", "message": "the node is stopping; the run continues when it is back"}), after: time.Second}

// A stepper implements [function.Stepper]: it has the results of the completed steps of a run
// and executes one more.
type stepper struct {
	done map[string]json.RawMessage // by digest of the name
	op   map[string]any             // the step that was executed, in the server's form
	err  error                      // a remembered result cannot be parsed
}

// Step implements [function.Stepper]. Results are sent as strings: servers parse
// and encode JSON, which would change large numbers.
func (s *stepper) Step(ctx context.Context, name string, fn func(context.Context) (json.RawMessage, error)) (json.RawMessage, error) {
	if s.op != nil {
		return nil, function.ErrYield // one step per call, even if the function ignores the error
	}
	if raw, ok := s.done[digest1(name)]; ok {
		var kept struct {
			Data *string `json:"data"`
		}
		if err := json.Unmarshal(raw, &kept); err != nil || kept.Data == nil || !json.Valid([]byte(*kept.Data)) {
			s.err = engi.Errorf(engi.Internal, "inngest: parse the server's result of step %s", name)
			return nil, function.ErrYield
		}
		return json.RawMessage(*kept.Data), nil
	}
	raw, err := fn(ctx)
	if err != nil {
		return nil, err
	}
	s.op = map[string]any{"op": "StepRun", "id": digest1(name), "name": name, "displayName": name, "data": string(raw)}
	return nil, function.ErrYield
}

// refusal returns a response to a bad call.
func refusal(status int, text string) response {
	return response{status: status, body: encode(map[string]string{"name": "refused", "message": text})}
}

// failure returns an error in the form that the server shows.
func failure(err error) []byte {
	return encode(map[string]string{"name": engi.KindOf(err).String(), "message": err.Error()})
}

func write(w http.ResponseWriter, a response) {
	w.Header().Set("X-Inngest-No-Retry", strconv.FormatBool(a.final))
	if a.after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(max(a.after.Round(time.Second), time.Second).Seconds())))
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // a server that has disconnected calls again
}

func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // unreachable: maps of strings and numbers can be encoded
	}
	return raw
}

func orNull(raw json.RawMessage) []byte {
	if len(raw) == 0 {
		return []byte("null")
	}
	return raw
}

func digest1(s string) string {
	sum := sha1.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

func digest256(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
