// Package engine runs one script at a time in QuickJS: a fresh realm for each,
// console and timers, host functions as promises, and a result made fit for
// JSON. TypeScript is turned into JavaScript first.
//
// It is not a wall. The interpreter is C turned into Go, a bug in it is a bug
// in the process, and some of its loops cannot be interrupted: so it lives in
// a helper process (cmd/engi-js) that is locked down and can be killed.
package engine

import (
	_ "embed"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"modernc.org/quickjs"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/script/wire"
)

//go:embed bootstrap.js
var bootstrap string

const (
	// evalAsync makes an evaluation a promise of {value} and allows await at
	// the top: JS_EVAL_FLAG_ASYNC of the engine.
	evalAsync = quickjs.EvalGlobal | 1<<7
	// bootstrapLine is where bootstrap's lines begin, far behind those of any
	// program, to tell their frames apart.
	bootstrapLine = MaxCode
	// MaxCode bounds a program, in bytes.
	MaxCode = 1_000_000
	// bootMemory is what a realm takes before the program has anything.
	bootMemory = 1 << 20
	// tellMemory is what it takes to tell the result of one that used it up.
	tellMemory = 16 << 20
)

// An Engine runs programs, one at a time. It is not safe for concurrent use.
type Engine struct {
	boot []byte   // bytecode of bootstrap
	next *program // a realm that is ready, or nil
}

// New returns an engine.
func New() (*Engine, error) {
	vm, err := quickjs.NewVM()
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "start the interpreter: %v", err)
	}
	defer vm.Close()
	code, err := vm.Compile(strings.Repeat("\n", bootstrapLine)+bootstrap, quickjs.EvalGlobal)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "compile the bootstrap: %v", err)
	}
	return &Engine{boot: code}, nil
}

// Version names the interpreter.
func Version() string { return "quickjs " + quickjs.Version() }

// A Host is where calls of host functions go.
type Host struct {
	// Call hands on a call; it must not block for long.
	Call func(wire.Call) error
	// Answer waits for what comes back, until then at most; ok is false if
	// nothing came.
	Answer func(until time.Time) (a wire.Answer, ok bool, err error)
}

// Run runs a program to its end, its failure or its deadline. Whatever the
// program does, it is an answer; the error is for a host that is gone.
func (e *Engine) Run(run wire.Run, host Host) (wire.Done, error) {
	began := time.Now()
	done, err := e.run(run, host, began.Add(time.Duration(run.Limits.Timeout)))
	done.Duration = int64(time.Since(began))
	return done, err
}

// A program is one run.
type program struct {
	vm       *quickjs.VM
	memory   uintptr // limit
	limits   wire.Limits
	apis     []string
	host     Host
	deadline time.Time
	began    time.Time
	source   source
	lost     error // of the host

	started bool          // handle is set
	handle  quickjs.Value // of what bootstrap returned
	methods map[string]quickjs.Value
}

// Prepare makes a realm ready for a program like the one before, so that the
// next does not wait for it.
func (e *Engine) Prepare(like wire.Run) error {
	if e.next != nil && e.next.fits(like) {
		return nil
	}
	if e.next != nil {
		e.next.close()
		e.next = nil
	}
	p, err := e.realm(like)
	e.next = p
	return err
}

// realm makes a realm for programs of run's limits and host functions.
func (e *Engine) realm(run wire.Run) (*program, error) {
	vm, err := quickjs.NewVM()
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "start the interpreter: %v", err)
	}
	p := &program{
		vm: vm, memory: uintptr(run.Limits.Memory + bootMemory), began: time.Now(), methods: map[string]quickjs.Value{},
		limits: run.Limits, apis: run.APIs,
	}
	vm.SetMemoryLimit(p.memory)
	vm.SetMaxStackSize(uintptr(run.Limits.Stack))
	vm.SetGCThreshold(uintptr(run.Limits.Memory / 8))
	if err := p.start(e.boot); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (e *Engine) run(run wire.Run, host Host, deadline time.Time) (done wire.Done, err error) {
	if len(run.Code) > MaxCode {
		return wire.Done{Error: &wire.Error{Kind: engi.ScriptSyntax, Name: "SyntaxError", Message: "the program is too long"}}, nil
	}
	src, bad := prepare(run.Language, run.Code)
	if bad != nil {
		return wire.Done{Error: bad}, nil
	}
	if err := e.Prepare(run); err != nil {
		return done, err
	}
	p := e.next
	e.next = nil
	defer p.close()
	p.host, p.deadline, p.began, p.source = host, deadline, time.Now(), src
	done = p.finish(p.drive())
	return done, p.lost
}

// start makes console, timers and api, and takes hold of what bootstrap
// returns.
func (p *program) start(boot []byte) error {
	const send, clock = "__send", "__clock"
	err := p.vm.RegisterHostFunc(send, func(args []any) (any, error) {
		if len(args) != 3 {
			return nil, errors.New("bad call")
		}
		id, _ := args[0].(int)
		name, _ := args[1].(string)
		list, _ := args[2].(string)
		if err := p.host.Call(wire.Call{ID: id, API: name, Args: json.RawMessage(list)}); err != nil {
			if engi.KindOf(err) == engi.Invalid {
				return nil, errors.New("the arguments are too large")
			}
			p.lost = err
			return nil, errors.New("the host is gone")
		}
		return nil, nil
	})
	if err == nil {
		err = p.vm.RegisterHostFunc(clock, func([]any) (any, error) {
			return float64(time.Since(p.began)) / float64(time.Millisecond), nil
		})
	}
	if err != nil {
		return engi.Errorf(engi.Internal, "register: %v", err)
	}
	l := p.limits
	// One call of the engine: the two functions leave the global object
	// before a stranger sees it.
	f, err := p.vm.EvalBytecodeValue(boot)
	if err != nil {
		return engi.Errorf(engi.Internal, "bootstrap: %v", err)
	}
	defer f.Free()
	global := p.vm.GlobalObject()
	defer global.Free()
	var args []any
	for _, name := range []string{send, clock} {
		atom, err := p.vm.NewAtom(name)
		if err != nil {
			return engi.Errorf(engi.Internal, "bootstrap: %v", err)
		}
		v, err := p.vm.GetPropertyValue(global, atom)
		if err != nil {
			return engi.Errorf(engi.Internal, "bootstrap: %v", err)
		}
		defer v.Free()
		args = append(args, v)
	}
	if _, err := p.vm.Eval("delete globalThis."+send+"; delete globalThis."+clock, quickjs.EvalGlobal); err != nil {
		return engi.Errorf(engi.Internal, "bootstrap: %v", err)
	}
	args = append(args, append([]string{}, p.apis...), map[string]int{
		"lines": l.Lines, "text": l.Text, "depth": l.Depth, "nodes": l.Nodes, "calls": l.Calls, "all": l.AllCalls, "console": l.Console(),
	})
	if p.handle, err = f.CallValue(quickjs.UndefinedValue, args...); err != nil {
		return engi.Errorf(engi.Internal, "bootstrap: %v", err)
	}
	p.started = true
	for _, name := range []string{"watch", "answer", "next", "fire", "state", "waits", "report"} {
		atom, err := p.vm.NewAtom(name)
		if err != nil {
			return engi.Errorf(engi.Internal, "bootstrap: %v", err)
		}
		if p.methods[name], err = p.vm.GetPropertyValue(p.handle, atom); err != nil {
			return engi.Errorf(engi.Internal, "bootstrap: %v", err)
		}
	}
	return nil
}

// fits reports whether the realm is like one made for run.
func (p *program) fits(run wire.Run) bool {
	have, want := p.limits, run.Limits
	have.Timeout, want.Timeout = 0, 0
	return have == want && slices.Equal(p.apis, run.APIs)
}

func (p *program) close() {
	for _, m := range p.methods {
		m.Free()
	}
	if p.started {
		p.handle.Free()
	}
	// What a program did to its realm ends with it; there is nobody to tell.
	_ = p.vm.Close()
}

var errLate = errors.New("deadline")

// left bounds the next call of the engine. It reports errLate when no time
// is left.
func (p *program) left() error {
	left := time.Until(p.deadline)
	if left <= 0 {
		return errLate
	}
	return p.vm.SetEvalTimeout(left)
}

// call calls one of bootstrap's functions.
func (p *program) call(method string, args ...any) (any, error) {
	if err := p.left(); err != nil {
		return nil, err
	}
	return p.methods[method].Call(quickjs.UndefinedValue, args...)
}

// drive runs the program until it has settled, or returns why it cannot.
func (p *program) drive() error {
	if err := p.left(); err != nil {
		return err
	}
	v, err := p.vm.EvalValue(p.source.code, evalAsync)
	if err != nil {
		return err
	}
	defer v.Free()
	err = p.settled(v)
	if errors.Is(err, errStalled) {
		// One that has used up its memory may have had none left to hear of
		// its end: with some more it hears again.
		p.vm.SetMemoryLimit(p.memory + tellMemory)
		err = p.settled(v)
	}
	return err
}

// settled lets a program go on until its promise has settled.
func (p *program) settled(promise quickjs.Value) error {
	if _, err := p.call("watch", promise); err != nil {
		return err
	}
	for {
		if err := p.left(); err != nil {
			return err
		}
		// What a job throws is a rejection nobody handles, or the program's
		// end, which watch sees.
		if _, err := p.vm.ExecutePendingJobs(); err != nil && time.Until(p.deadline) <= 0 {
			return errLate
		}
		if p.lost != nil {
			return p.lost
		}
		state, err := p.call("state")
		if err != nil || state != "running" {
			return err
		}
		if again, err := p.idle(); err != nil || !again {
			return err
		}
	}
}

var errStalled = errors.New("stalled")

// idle waits for a timer or an answer.
func (p *program) idle() (bool, error) {
	next, err := p.call("next")
	if err != nil {
		return false, err
	}
	waits, err := p.call("waits")
	if err != nil {
		return false, err
	}
	due := number(next)
	if due < 0 && number(waits) == 0 {
		return false, errStalled
	}
	until := p.deadline
	if due >= 0 {
		if at := p.began.Add(time.Duration(due * float64(time.Millisecond))); at.Before(until) {
			until = at
		}
	}
	a, ok, err := p.host.Answer(until)
	switch {
	case err != nil:
		p.lost = err
		return false, err
	case ok:
		return true, p.settle(a)
	case time.Until(p.deadline) <= 0:
		return false, errLate
	}
	_, err = p.call("fire")
	return true, err
}

func (p *program) settle(a wire.Answer) error {
	value := string(a.Value)
	if value == "" {
		value = "null"
	}
	var message any
	if a.Error != "" {
		message = a.Error
	}
	_, err := p.call("answer", a.Call, value, a.Name, message)
	return err
}

func number(v any) float64 {
	switch n := v.(type) {
	case int:
		return float64(n)
	case float64:
		return n
	}
	return -1
}

// finish makes the last word out of what bootstrap reports and why the
// program ended, if it did not settle.
func (p *program) finish(why error) (done wire.Done) {
	// Telling takes time of its own, but not much.
	p.deadline = time.Now().Add(50 * time.Millisecond)
	p.vm.SetMemoryLimit(p.memory + tellMemory)
	report, err := p.call("report")
	text, _ := report.(string)
	if err == nil {
		err = json.Unmarshal([]byte(text), &done)
	}
	if err != nil {
		done = wire.Done{Warnings: []string{"the program broke what collects its output"}}
		if why == nil {
			why = err
		}
	}
	switch {
	case why == nil && done.Error == nil:
	case errors.Is(why, errLate) || interrupted(why) || done.Error != nil && interruptedText(done.Error):
		done.Value = nil
		done.Error = &wire.Error{Kind: engi.ScriptTimeout, Name: "TimeoutError", Message: "the program did not end in time"}
	case errors.Is(why, errStalled):
		done.Error = &wire.Error{Kind: engi.ScriptStalled, Name: "Error", Message: "the program waits for a promise that nothing can settle"}
	case why == nil:
		p.locate(done.Error)
	default:
		done.Value = nil
		done.Error = p.exception(why)
	}
	if done.Error != nil && done.Error.Name == "InternalError" && strings.Contains(done.Error.Message, "out of memory") {
		done.Error.Kind = engi.ScriptMemory
	}
	return done
}

func interrupted(err error) bool {
	e, ok := errors.AsType[*quickjs.Error](err)
	return ok && e.Name == "InternalError" && e.Message == "interrupted"
}

func interruptedText(e *wire.Error) bool {
	return e.Name == "InternalError" && e.Message == "interrupted"
}

// exception translates an error of the engine.
func (p *program) exception(err error) *wire.Error {
	e, ok := errors.AsType[*quickjs.Error](err)
	if !ok {
		return &wire.Error{Kind: engi.ScriptThrown, Name: "Error", Message: err.Error()}
	}
	out := &wire.Error{Name: e.Name, Message: e.Message, Stack: e.Stack}
	p.locate(out)
	if e.LineNumber > 0 {
		out.Kind = engi.ScriptSyntax
		out.Line, out.Column = p.source.at(e.LineNumber, e.ColumnNumber)
	}
	return out
}

var frame = regexp.MustCompile(`<eval>:(\d+)(?::(\d+))?`)

const maxFrames = 20

// locate gives an error the place in the caller's own source, and cleans its
// stack of frames that are not the caller's.
func (p *program) locate(e *wire.Error) {
	if e.Kind == "" {
		e.Kind = engi.ScriptThrown
	}
	var kept []string
	for line := range strings.SplitSeq(strings.TrimRight(e.Stack, "\n"), "\n") {
		m := frame.FindStringSubmatchIndex(line)
		if m == nil {
			if strings.Contains(line, "(native)") && len(kept) < maxFrames {
				kept = append(kept, strings.TrimSpace(line))
			}
			continue
		}
		n, err := strconv.Atoi(line[m[2]:m[3]])
		if err != nil || n >= bootstrapLine {
			continue
		}
		column := 0
		if m[4] >= 0 {
			column, _ = strconv.Atoi(line[m[4]:m[5]])
		}
		n, column = p.source.at(n, column)
		if e.Line == 0 {
			e.Line, e.Column = n, column
		}
		if len(kept) < maxFrames {
			place := "script:" + strconv.Itoa(n) + ":" + strconv.Itoa(column)
			kept = append(kept, strings.ReplaceAll(strings.TrimSpace(line[:m[0]]+place+line[m[1]:]), "<eval>", "script"))
		}
	}
	e.Stack = strings.Join(kept, "\n")
	if !utf8.ValidString(e.Message) {
		e.Message = strings.ToValidUTF8(e.Message, "\uFFFD")
	}
}
