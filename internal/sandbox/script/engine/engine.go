// Package engine runs scripts in QuickJS, one at a time: each in a new realm, with
// console, timers and host functions as promises, and a result that is converted to
// JSON. TypeScript is translated to JavaScript first.
//
// It does not isolate scripts. The interpreter is C translated to Go, so one of its
// bugs may let a script take over the process, and some of its loops cannot be interrupted.
// Therefore it runs in a confined helper process (cmd/engi-js) that can be killed.
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

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/script/wire"
)

//go:embed bootstrap.js
var bootstrap string

const (
	// evalAsync is JS_EVAL_FLAG_ASYNC of QuickJS: an evaluation returns a promise
	// of {value}, and await is allowed at the top level.
	evalAsync = quickjs.EvalGlobal | 1<<7
	// bootstrapLine is the first line number of bootstrap, higher than those of any
	// program, to recognize its stack frames.
	bootstrapLine = MaxCode
	// MaxCode is the maximum size of a program, in bytes.
	MaxCode = 1_000_000
	// realmMemory is the memory that a realm uses before the program runs, in bytes.
	realmMemory = 1 << 20
	// reportMemory is the additional memory for reporting the result of a program that has used up its
	// memory, in bytes.
	reportMemory = 16 << 20
)

// An Engine runs programs. It is not safe for concurrent use.
type Engine struct {
	boot []byte   // bytecode of bootstrap
	next *program // a realm prepared for the next program; may be nil
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

// A Host handles calls of host functions.
type Host struct {
	// Call forwards a call. It must not block for long.
	Call func(wire.Call) error
	// Answer waits for an answer, at most until the given time; ok is false if
	// no answer came.
	Answer func(until time.Time) (a wire.Answer, ok bool, err error)
}

// Run runs a program to its end or its timeout. Failures of the program are part of
// the result. The error reports that the host is gone.
func (e *Engine) Run(run wire.Run, host Host) (wire.Done, error) {
	began := time.Now()
	done, err := e.run(run, host, began.Add(time.Duration(run.Limits.Timeout)))
	done.Duration = int64(time.Since(began))
	return done, err
}

// A program is a realm with the program that runs in it.
type program struct {
	vm       *quickjs.VM
	memory   uintptr // memory limit, in bytes
	limits   wire.Limits
	apis     []string
	host     Host
	deadline time.Time
	began    time.Time
	source   source
	hostErr  error // set once the host is gone

	started bool          // whether handle is set
	handle  quickjs.Value // object that bootstrap returned
	methods map[string]quickjs.Value
}

// Prepare prepares a realm for a program like the previous one, so that the next run is
// faster.
func (e *Engine) Prepare(like wire.Run) error {
	if e.next != nil && e.next.matches(like) {
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

// realm creates a realm with the limits and host functions of run.
func (e *Engine) realm(run wire.Run) (*program, error) {
	vm, err := quickjs.NewVM()
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "start the interpreter: %v", err)
	}
	p := &program{
		vm: vm, memory: uintptr(run.Limits.Memory + realmMemory), began: time.Now(), methods: map[string]quickjs.Value{},
		limits: run.Limits, apis: run.APIs,
	}
	vm.SetMemoryLimit(p.memory)
	vm.SetMaxStackSize(uintptr(run.Limits.Stack))
	vm.SetGCThreshold(uintptr(run.Limits.Memory / 8))
	if err := p.start(e.boot); err != nil {
		p.close()
		return nil, engi.Errorf(engi.Internal, "start a realm: %v", err)
	}
	return p, nil
}

func (e *Engine) run(run wire.Run, host Host, deadline time.Time) (done wire.Done, err error) {
	if len(run.Code) > MaxCode {
		return wire.Done{Error: &wire.Error{Kind: engi.ScriptSyntax, Name: "SyntaxError", Message: "the program is too long"}}, nil
	}
	src, bad := prepareSource(run.Language, run.Code)
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
	done = p.finish(p.execute())
	return done, p.hostErr
}

// start sets up console, timers and api, and gets the methods that bootstrap returns.
func (p *program) start(boot []byte) error {
	const send, clock = "__send", "__clock"
	if err := p.vm.RegisterHostFunc(send, p.send); err != nil {
		return err
	}
	err := p.vm.RegisterHostFunc(clock, func([]any) (any, error) {
		return float64(time.Since(p.began)) / float64(time.Millisecond), nil
	})
	if err != nil {
		return err
	}
	// Pass the two functions to bootstrap, and remove them from the global object
	// before the program can see them.
	f, err := p.vm.EvalBytecodeValue(boot)
	if err != nil {
		return err
	}
	defer f.Free()
	global := p.vm.GlobalObject()
	defer global.Free()
	var args []any
	for _, name := range []string{send, clock} {
		v, err := p.property(global, name)
		if err != nil {
			return err
		}
		defer v.Free()
		args = append(args, v)
	}
	if _, err := p.vm.Eval("delete globalThis."+send+"; delete globalThis."+clock, quickjs.EvalGlobal); err != nil {
		return err
	}
	l := p.limits
	args = append(args, append([]string{}, p.apis...), map[string]int{
		"lines": l.Lines, "text": l.Text, "depth": l.Depth, "nodes": l.Nodes, "calls": l.Calls, "all": l.AllCalls, "console": l.Console(),
	})
	if p.handle, err = f.CallValue(quickjs.UndefinedValue, args...); err != nil {
		return err
	}
	p.started = true
	for _, name := range []string{"watch", "answer", "next", "fire", "state", "waits", "report"} {
		if p.methods[name], err = p.property(p.handle, name); err != nil {
			return err
		}
	}
	return nil
}

// send forwards a call of a host function: its ID, its name and its arguments as
// JSON.
func (p *program) send(args []any) (any, error) {
	if len(args) != 3 {
		return nil, errors.New("bad call")
	}
	id, _ := args[0].(int)
	name, _ := args[1].(string)
	list, _ := args[2].(string)
	err := p.host.Call(wire.Call{ID: id, API: name, Args: json.RawMessage(list)})
	switch {
	case err == nil:
		return nil, nil
	case engi.Is(err, engi.Invalid):
		return nil, errors.New("the arguments are too large")
	}
	p.hostErr = err
	return nil, errors.New("the host is gone")
}

func (p *program) property(of quickjs.Value, name string) (quickjs.Value, error) {
	atom, err := p.vm.NewAtom(name)
	if err != nil {
		return quickjs.Value{}, err
	}
	return p.vm.GetPropertyValue(of, atom)
}

// matches reports whether the realm has the limits and host functions of run.
func (p *program) matches(run wire.Run) bool {
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
	// Errors are caused by the program's changes of its realm, which is gone now.
	_ = p.vm.Close()
}

var errDeadline = errors.New("deadline")

// setTimeout sets the timeout of the next call to the remaining time. It returns
// errDeadline if no time remains.
func (p *program) setTimeout() error {
	left := time.Until(p.deadline)
	if left <= 0 {
		return errDeadline
	}
	return p.vm.SetEvalTimeout(left)
}

// call calls a method of bootstrap.
func (p *program) call(method string, args ...any) (any, error) {
	if err := p.setTimeout(); err != nil {
		return nil, err
	}
	return p.methods[method].Call(quickjs.UndefinedValue, args...)
}

// execute runs the program until its promise has settled, or returns an error if this is not
// possible.
func (p *program) execute() error {
	if err := p.setTimeout(); err != nil {
		return err
	}
	v, err := p.vm.EvalValue(p.source.code, evalAsync)
	if err != nil {
		return err
	}
	defer v.Free()
	err = p.waitSettled(v)
	if errors.Is(err, errStalled) {
		// Without free memory, the program may have been unable to settle. Give it
		// more memory and wait again.
		p.vm.SetMemoryLimit(p.memory + reportMemory)
		err = p.waitSettled(v)
	}
	return err
}

// waitSettled runs jobs, timers and answers until a promise has settled.
func (p *program) waitSettled(promise quickjs.Value) error {
	if _, err := p.call("watch", promise); err != nil {
		return err
	}
	for {
		if err := p.setTimeout(); err != nil {
			return err
		}
		// Exceptions of jobs are unhandled rejections, or settle the promise.
		if _, err := p.vm.ExecutePendingJobs(); err != nil && time.Until(p.deadline) <= 0 {
			return errDeadline
		}
		if p.hostErr != nil {
			return p.hostErr
		}
		state, err := p.call("state")
		if err != nil || state != "running" {
			return err
		}
		if again, err := p.waitForEvent(); err != nil || !again {
			return err
		}
	}
}

var errStalled = errors.New("stalled")

// waitForEvent waits for a timer or an answer, and handles it.
func (p *program) waitForEvent() (bool, error) {
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
		p.hostErr = err
		return false, err
	case ok:
		return true, p.answer(a)
	case time.Until(p.deadline) <= 0:
		return false, errDeadline
	}
	_, err = p.call("fire")
	return true, err
}

func (p *program) answer(a wire.Answer) error {
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

// finish returns the result, from the report of bootstrap and the reason why the
// program did not settle, if any.
func (p *program) finish(why error) (done wire.Done) {
	// The report needs some time after the deadline.
	p.deadline = time.Now().Add(50 * time.Millisecond)
	p.vm.SetMemoryLimit(p.memory + reportMemory)
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
	case errors.Is(why, errDeadline) || interrupted(why) || done.Error != nil && interruptedText(done.Error):
		done.Value = nil
		done.Error = &wire.Error{Kind: engi.ScriptTimeout, Name: "TimeoutError", Message: "the program did not end in time"}
	case errors.Is(why, errStalled):
		done.Error = &wire.Error{Kind: engi.ScriptStalled, Name: "Error", Message: "the program waits for a promise that nothing will settle"}
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

// exception converts an error of QuickJS.
func (p *program) exception(err error) *wire.Error {
	e, ok := errors.AsType[*quickjs.Error](err)
	if !ok {
		return &wire.Error{Kind: engi.ScriptThrown, Name: "Error", Message: err.Error()}
	}
	out := &wire.Error{Name: e.Name, Message: e.Message, Stack: e.Stack}
	p.locate(out)
	if e.LineNumber > 0 {
		out.Kind = engi.ScriptSyntax
		out.Line, out.Column = p.source.position(e.LineNumber, e.ColumnNumber)
	}
	return out
}

var framePattern = regexp.MustCompile(`<eval>:(\d+)(?::(\d+))?`)

const maxFrames = 20

// locate sets the position of an error in the original source, and removes frames of
// bootstrap from its stack.
func (p *program) locate(e *wire.Error) {
	if e.Kind == "" {
		e.Kind = engi.ScriptThrown
	}
	var kept []string
	for line := range strings.SplitSeq(strings.TrimRight(e.Stack, "\n"), "\n") {
		m := framePattern.FindStringSubmatchIndex(line)
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
		n, column = p.source.position(n, column)
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
