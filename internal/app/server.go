package app

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/app/problems"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	startTime   = time.Minute            // maximum time until a server answers after its start
	startEvery  = 100 * time.Millisecond // pause between checks
	stopTime    = 3 * time.Second        // maximum time until a server ends after a signal
	answerTime  = 30 * time.Second       // maximum time of one answer
	maxAnswer   = 4 << 20                // maximum bytes of an answer that are read
	maxPrinted  = 4 << 10                // maximum bytes of a server's output in an error
	serviceTag  = "start"                // tag of the process that a template starts
	maxModules  = 2000                   // maximum number of modules that a check requests
	parallelism = 4                      // number of concurrent requests of a check
)

// client returns a client for the app's server. The caller closes its idle connections.
func (u *use) client() *http.Client {
	g, port := u.g, u.rec.Port // the transport may still dial after its request has ended
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return g.Dial(ctx, port) },
			MaxIdleConnsPerHost: parallelism,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       answerTime,
	}
}

// get requests a path from the app's server.
func (u *use) get(ctx context.Context, c *http.Client, p, accept string) (status int, body []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:"+strconv.Itoa(u.rec.Port)+p, nil)
	if err != nil {
		return 0, nil, engi.Errorf(engi.Invalid, "%v", err)
	}
	r.Header.Set("Accept", accept)
	resp, err := c.Do(r)
	if err != nil {
		return 0, nil, engi.Errorf(engi.Unavailable, "the app's server does not answer at port %d: %v", u.rec.Port, err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, nil, engi.Errorf(engi.Unavailable, "the app's server does not answer at port %d: %v", u.rec.Port, err)
	}
	return resp.StatusCode, body, nil
}

// probe reports Unavailable unless the server answers.
func (u *use) probe(ctx context.Context) error {
	c := u.client()
	defer c.CloseIdleConnections()
	status, body, err := u.get(ctx, c, "/", "text/html")
	if err == nil && status >= 500 {
		err = engi.Errorf(engi.Unavailable, "the app's server answers with %d: %.500s", status, strings.TrimSpace(string(body)))
	}
	if err == nil && u.rec.Directory != "" {
		err = u.alive(ctx)
	}
	return err
}

// start restarts the app's server. It does not wait until the server
// answers.
func (u *use) start(ctx context.Context) (engi.Process, error) {
	if err := u.stopServer(ctx); err != nil {
		return nil, err
	}
	if u.rec.Directory != "" {
		if err := u.portFree(ctx); err != nil {
			return nil, err
		}
	}
	shell := u.t.Shell
	if shell == "" {
		shell = "/bin/sh"
	}
	return u.g.Start(ctx, engi.Command{Args: []string{shell, "-c", u.t.Start}, Dir: u.dir, Env: u.serverEnv(), Tag: u.rec.tag(serviceTag)})
}

// restart restarts the app's server and waits until it answers.
func (u *use) restart(ctx context.Context) error {
	p, err := u.start(ctx)
	if err != nil {
		return err
	}
	watch, stop := context.WithTimeout(ctx, startTime)
	defer stop()
	ended, lost := make(chan engi.Exit, 1), make(chan error, 1)
	done := make(chan struct{})
	defer func() { stop(); <-done }()
	go func() {
		defer close(done)
		if exit, err := p.Wait(watch); err == nil {
			ended <- exit
		} else if watch.Err() == nil {
			lost <- err // the process has no further output
		}
	}()
	for {
		err := u.probe(watch)
		if err == nil {
			return nil
		}
		select {
		case exit := <-ended:
			return u.serverError(ctx, p, engi.Errorf(engi.Unavailable, "the app's server ended with %d", exit.Code))
		case err := <-lost:
			return err
		case <-watch.Done():
			if ctx.Err() != nil {
				return engi.Errorf(engi.Expired, "start the app's server: %v", context.Cause(ctx))
			}
			return u.serverError(ctx, p, err)
		case <-time.After(startEvery):
		}
	}
}

// serverError adds the server's output to an error.
func (u *use) serverError(ctx context.Context, p engi.Process, err error) error {
	return engi.Errorf(engi.Unavailable, "%v:\n%s", err, outputOf(ctx, p, maxPrinted)).WithRemedy("correct the reported problem")
}

// stopServer ends the app's server, if it is running.
func (u *use) stopServer(ctx context.Context) error {
	if u.rec.Directory != "" {
		return u.endServer(ctx)
	}
	for _, signal := range []string{"TERM", "KILL"} {
		p, err := u.g.Attach(ctx, serviceTag)
		if err == nil {
			_, err = answer(ctx, guestTime, func(ctx context.Context) (none, error) { return none{}, p.Signal(ctx, signal) })
		}
		if engi.Is(err, engi.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, stopTime)
		_, err = p.Wait(wait)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return engi.Errorf(engi.Expired, "stop the app's server: %v", context.Cause(ctx))
		}
	}
	return engi.Errorf(engi.Unavailable, "the app's server does not end").WithRemedy("stop the app and open it again")
}

// A fault is one error of an app.
type fault struct {
	path string // path in the app; may be empty
	line int
	text string
}

func (f fault) Error() string {
	switch {
	case f.path == "":
		return f.text
	case f.line == 0:
		return f.path + ": " + f.text
	}
	return fmt.Sprintf("%s:%d: %s", f.path, f.line, f.text)
}

// check returns the faults of the app that its server reports. It returns an error if the
// check itself fails.
func (u *use) check(ctx context.Context) ([]fault, error) {
	c := u.client()
	defer c.CloseIdleConnections()
	status, body, err := u.get(ctx, c, "/", "text/html")
	if err != nil {
		return nil, err
	}
	if status >= 500 {
		return []fault{u.faultOf(body, "")}, nil
	}
	if !u.vite() {
		return nil, nil
	}
	return u.checkModules(ctx, c, body)
}

// moduleImport matches an import in a module as Vite serves it: all paths are absolute.
var moduleImport = regexp.MustCompile(`(?:\bfrom|\bimport)\s*\(?\s*["'](/[^"'\s]+)["']|<script[^>]+src="(/[^"\s]+)"|<link[^>]+href="(/[^"\s]+\.css)"`)

// checkModules requests every module of the app that the page imports, directly or not,
// and returns a fault for each that Vite cannot serve. Modules of packages are not checked.
func (u *use) checkModules(ctx context.Context, c *http.Client, page []byte) (faults []fault, err error) {
	type answer struct {
		path   string
		status int
		body   []byte
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	answers, busy, seen := make(chan answer), 0, map[string]bool{}
	var todo []string
	look := func(body []byte) {
		for _, m := range moduleImport.FindAllSubmatch(body, -1) {
			p := string(slices.Concat(m[1:]...))
			if strings.HasPrefix(p, "/@") || strings.HasPrefix(p, "//") || strings.HasPrefix(p, "/node_modules/") || seen[p] || len(seen) == maxModules {
				continue
			}
			seen[p] = true
			todo = append(todo, p)
		}
	}
	defer func() {
		cancel()
		for ; busy > 0; busy-- {
			<-answers
		}
	}()
	look(page)
	for {
		for ; busy < parallelism && len(todo) > 0; busy++ {
			p := todo[0]
			todo = todo[1:]
			go func() {
				status, body, err := u.get(ctx, c, p, "text/javascript, text/css")
				answers <- answer{p, status, body, err}
			}()
		}
		if busy == 0 {
			break
		}
		a := <-answers
		busy--
		file := strings.TrimPrefix(strings.SplitN(a.path, "?", 2)[0], "/")
		switch {
		case a.err != nil:
			return nil, a.err
		case a.status >= 500:
			faults = append(faults, u.faultOf(a.body, file))
		case a.status >= 400:
			faults = append(faults, fault{path: file, text: "there is no such file"})
		default:
			look(a.body)
		}
	}
	slices.SortFunc(faults, func(a, b fault) int { return strings.Compare(a.Error(), b.Error()) })
	return faults, nil
}

// colours matches the escape sequences of terminal colours.
var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// faultOf parses the server's answer about a file into a fault.
func (u *use) faultOf(body []byte, file string) fault {
	p, ok := problems.Overlay(string(body), u.dir)
	if !ok {
		return fault{path: file, text: fmt.Sprintf("the server reports an error: %.1000s", strings.TrimSpace(string(body)))}
	}
	return fault{cmp.Or(p.File, file), p.Line, p.Text}
}

const maxLine = 2 << 10 // maximum bytes of a line of output

// eachLine calls line for each line of r; long lines are truncated.
func eachLine(r io.Reader, line func(string)) {
	in := bufio.NewReaderSize(r, maxLine)
	for long := false; ; {
		text, more, err := in.ReadLine()
		if err != nil {
			return
		}
		if !long {
			if s := strings.TrimRight(strings.ToValidUTF8(colours.ReplaceAllString(string(text), ""), "\ufffd"), "\r "); s != "" {
				line(s)
			}
		}
		long = more
	}
}
