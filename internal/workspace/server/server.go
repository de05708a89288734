// Package server describes the programs that serve databases and files in workspaces: the
// template of each, how to start it in a sandbox with a volume, how to tell that it is ready, and how
// to end it.
//
// It does not manage sandboxes and volumes, nor decide when a server is to run; package
// workspace does. It implements no more of a protocol than the greeting.
//
// A server is started by a script, which first creates its data if there are none: in a
// separate directory, which is moved into place once everything in it is on disk. So an interrupted
// start is repeated, and existing data are never replaced.
package server

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// DataDir is the mount point of a server's volume.
const DataDir = "/data"

// seedDir is the directory of templates with the initial data of a new server, in a directory
// called seed.
const seedDir = "var/lib/service"

const (
	runDir   = "/run/service" // directory of scripts and settings, which are lost with the sandbox
	tag      = "service"      // tag of the server's process
	logBytes = 1 << 20        // maximum bytes of the server's output that are kept

	callTime  = 30 * time.Second // maximum time of a call of the sandbox
	greetTime = 5 * time.Second  // maximum time of a greeting
	endTime   = 30 * time.Second // maximum time until a server ends
	killTime  = 5 * time.Second  // maximum time until a killed server ends
	logTime   = 10 * time.Second // maximum time for reading the output
	logQuiet  = 20 * time.Millisecond
)

// A Kind describes a type of services.
type Kind struct {
	Type     engi.ServiceType
	Template string
	Program  string // server program
	Version  string // version in the template; empty if the operator gives the template
	Port     int

	script   string
	user     string // user of the process
	ending   string // signal for a clean end, after everything is written
	access   func(env map[string]string) (Access, map[string]string, error)
	settings func(a Access, env map[string]string) (string, error) // returns the file that the script reads
	greet    func(c net.Conn, a Access) (version string, err error)
	client   MongodClient // nil for other programs
	url      func(host string, a Access) string
}

// An Access holds the credentials and the database of a server.
type Access struct {
	User     string
	Password string
	Database string
}

var (
	//go:embed common.sh
	commonScript string
	//go:embed clear.sh
	clearScript string
	//go:embed postgres.sh
	postgresScript string
	//go:embed mysql.sh
	mysqlScript string
	//go:embed redis.sh
	redisScript string
	//go:embed mongodb.sh
	mongoScript string
	//go:embed nginx.sh
	nginxScript string
)

var kinds = []*Kind{
	{
		Type: engi.ServicePostgres, Template: "service-postgres", Program: "PostgreSQL", Version: "15", Port: 5432,
		script: postgresScript, user: "postgres", ending: "INT", access: postgresAccess, settings: postgresSettings, greet: greetPostgres,
		url: func(host string, a Access) string { return link("postgresql", host, 5432, a) },
	},
	{
		Type: engi.ServiceMySQL, Template: "service-mysql", Program: "MariaDB", Version: "10.11", Port: 3306,
		script: mysqlScript, user: "mysql", ending: "TERM", access: mysqlAccess, settings: mysqlSettings, greet: greetMySQL,
		url: func(host string, a Access) string { return link("mysql", host, 3306, a) },
	},
	{
		Type: engi.ServiceRedis, Template: "service-redis", Program: "Redis", Version: "7.0", Port: 6379,
		script: redisScript, user: "redis", ending: "TERM", access: redisAccess, settings: redisSettings, greet: greetRedis,
		url: func(host string, a Access) string { return link("redis", host, 6379, a) },
	},
	{
		Type: engi.ServiceMongoDB, Template: "service-mongodb", Program: "FerretDB", Version: "1.24", Port: 27017,
		script: mongoScript, user: "mongodb", ending: "TERM", access: mongoAccess, settings: mongoSettings, greet: greetMongo,
		url: func(host string, a Access) string { return link("mongodb", host, 27017, a) },
	},
	{
		Type: engi.ServiceNginx, Template: "service-nginx", Program: "nginx", Version: "1.22", Port: 80,
		script: nginxScript, user: "www-data", ending: "QUIT", access: nginxAccess, settings: nginxSettings, greet: greetNginx,
		url: func(host string, _ Access) string { return "http://" + host + "/" },
	},
}

// Find returns the kind of a type. It reports Invalid for an unknown type, or
// a version that the template does not have.
func Find(t engi.ServiceType, version string) (*Kind, error) {
	i := slices.IndexFunc(kinds, func(k *Kind) bool { return k.Type == t })
	if i < 0 {
		var names []string
		for _, k := range kinds {
			names = append(names, string(k.Type))
		}
		return nil, engi.Errorf(engi.Invalid, "%.70q is not a type of services", t).WithRemedy("use one of %s", strings.Join(names, ", "))
	}
	k := kinds[i]
	if version == "" || version == "latest" || version == k.Version || strings.HasPrefix(k.Version, version+".") {
		return k, nil
	}
	return nil, engi.Errorf(engi.Invalid, "there is no version %.70q of %s: the template %s has %s %s", version, t, k.Template, k.Program, k.Version).
		WithRemedy("ask for %s, or for the latest", k.Version)
}

// String returns the program with its version, as in "MariaDB 10.11", or without, if the template decides
// which version runs.
func (k *Kind) String() string { return strings.TrimSpace(k.Program + " " + k.Version) }

// Access returns the access to a new server, with generated values where env has none. It reports
// Invalid for invalid variables.
func (k *Kind) Access(env map[string]string) (Access, error) {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return Access{}, engi.Errorf(engi.Invalid, "%.70q is not a variable", name).WithRemedy("names have no '=', and neither they nor values null bytes")
		}
	}
	a, rest, err := k.access(env)
	if err != nil {
		return Access{}, err
	}
	if _, err := k.settings(a, rest); err != nil {
		return Access{}, err
	}
	return a, nil
}

// Connection describes how to connect to a server at a host.
func (k *Kind) Connection(host string, a Access) engi.Connection {
	return engi.Connection{Host: host, Port: k.Port, User: a.User, Password: a.Password, Database: a.Database, URL: k.url(host, a)}
}

// Seed opens the initial content of a new server's volume, whose use takes a tenth of the time
// of copying it in the sandbox; nil if there is none. The caller closes it.
func (k *Kind) Seed(t engi.Template) (_ *os.Root, err error) {
	root, err := os.OpenRoot(t.Root)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "open template %s: %v", k.Template, err).WithRemedy("try again; the template may have been replaced at the same time")
	}
	defer root.Close()
	seed, err := root.OpenRoot(seedDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, engi.Errorf(engi.Invalid, "template %s: %v", k.Template, err).WithRemedy("build the template again")
	}
	return seed, nil
}

// Start starts the server in a sandbox of its template, with its volume at [DataDir],
// and returns before the server is ready. A server that already runs is ended, or killed if it does not
// end.
func (k *Kind) Start(ctx context.Context, g engi.Guest, a Access, env map[string]string) (engi.Process, error) {
	if err := k.clear(ctx, g); err != nil {
		return nil, err
	}
	_, rest, err := k.access(env)
	if err != nil {
		return nil, err
	}
	settings, err := k.settings(a, rest)
	if err != nil {
		return nil, err
	}
	return within(ctx, callTime, "start the server", func(ctx context.Context) (engi.Process, error) {
		for name, text := range map[string]string{"settings": settings, "start": commonScript + k.script} {
			if err := g.Write(ctx, runDir+"/"+name, strings.NewReader(text), engi.WriteOptions{Mode: 0o600, User: "root"}); err != nil {
				return nil, err
			}
		}
		return g.Start(ctx, engi.Command{Args: []string{"/bin/sh", runDir + "/start", k.user}, Env: rest, Dir: "/", User: "root", Tag: tag, Output: logBytes})
	})
}

// Wait waits until a started server sends the greeting of its protocol, and returns
// the server's version; empty if the greeting has none. It reports Unavailable, with the
// end of the output, if the server ends first, and Expired if ctx ends.
func (k *Kind) Wait(ctx context.Context, g engi.Guest, p engi.Process, a Access) (version string, err error) {
	ended := make(chan struct{})
	waiting, cancel := context.WithCancel(ctx)
	defer func() { cancel(); <-ended }()
	var exit engi.Exit
	var lost error
	go func() {
		defer close(ended)
		exit, lost = p.Wait(waiting)
	}()
	for pause := 10 * time.Millisecond; ; pause = min(pause*3/2, 200*time.Millisecond) {
		if version, err = k.Greet(ctx, g, a); err == nil {
			return version, nil
		}
		if k.client != nil {
			if bad := k.finish(ctx, g, a); bad != nil {
				err = bad
			}
		}
		next := time.NewTimer(pause)
		select {
		case <-next.C:
			continue
		case <-ctx.Done():
			next.Stop()
			return "", engi.Errorf(engi.Expired, "%s is not ready yet: %v", k.Program, err)
		case <-ended:
			next.Stop()
		}
		if ctx.Err() != nil {
			return "", engi.Errorf(engi.Expired, "%s is not ready yet: %v", k.Program, err)
		}
		if lost != nil {
			return "", lost
		}
		text, _ := k.Logs(ctx, g, 1000)
		return "", engi.Errorf(engi.Unavailable, "%s ended with %s: %s", k.Program, how(exit), strings.TrimSpace(text)).
			WithRemedy("look at its logs; the service is started again")
	}
}

func how(e engi.Exit) string {
	if e.Signal != "" {
		return "signal " + e.Signal
	}
	return "code " + strconv.Itoa(e.Code)
}

// Check is Greet for a server that was started earlier: it also reports Unavailable if
// the server's process has ended, since its child processes may still serve for a while.
func (k *Kind) Check(ctx context.Context, g engi.Guest, a Access) (version string, err error) {
	all, err := within(ctx, callTime, "find the server", g.Processes)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(all, func(p engi.ProcessInfo) bool { return p.Tag == tag && !p.Ended }) {
		return "", engi.Errorf(engi.Unavailable, "%s has ended", k.Program).WithRemedy("look at its logs; the service is started again")
	}
	return k.Greet(ctx, g, a)
}

// Greet connects to the server, and returns its version; empty if the greeting has none.
// Without an error the server is ready for clients. It may still reject the original
// credentials, because clients may have changed them.
func (k *Kind) Greet(ctx context.Context, g engi.Guest, a Access) (version string, err error) {
	return within(ctx, greetTime, "greet the server", func(ctx context.Context) (string, error) {
		c, err := g.Dial(ctx, k.Port)
		if err != nil {
			return "", err
		}
		defer c.Close()
		stop := context.AfterFunc(ctx, func() { c.Close() })
		defer stop()
		if version, err = k.greet(c, a); err != nil {
			return "", engi.Errorf(engi.Unavailable, "greet %s: %v", k.Program, err).WithRemedy("look at its logs")
		}
		return printable(version), nil
	})
}

// clear ends the server, if there is one, and its child processes.
func (k *Kind) clear(ctx context.Context, g engi.Guest) error {
	if _, err := within(ctx, callTime, "find the server", func(ctx context.Context) (engi.Process, error) { return g.Attach(ctx, tag) }); err != nil {
		if engi.Is(err, engi.NotFound) {
			return nil // no server has run in this sandbox
		}
		return err
	}
	if err := k.Stop(ctx, g); err != nil {
		return err
	}
	exit, err := within(ctx, callTime, "clear after the server", func(ctx context.Context) (engi.Exit, error) {
		p, err := g.Start(ctx, engi.Command{Args: []string{"/bin/sh", "-c", clearScript, "clear", k.user}, Dir: "/", User: "root", Timeout: callTime})
		if err != nil {
			return engi.Exit{}, err
		}
		return p.Wait(ctx)
	})
	if err == nil && exit.Code != 0 {
		err = engi.Errorf(engi.Unavailable, "what %s has started does not end", k.Program).WithRemedy("restart the service")
	}
	return err
}

// Stop ends the server once everything is on disk. It returns no error if none is running.
func (k *Kind) Stop(ctx context.Context, g engi.Guest) error {
	p, err := within(ctx, callTime, "find the server", func(ctx context.Context) (engi.Process, error) { return g.Attach(ctx, tag) })
	if engi.Is(err, engi.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range []struct {
		signal string
		most   time.Duration
	}{{k.ending, endTime}, {"KILL", killTime}} {
		if err = p.Signal(ctx, s.signal); err != nil {
			return engi.Ignore(err, engi.NotFound)
		}
		if _, err = within(ctx, s.most, "end the server", p.Wait); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// Logs returns at most the last most bytes of the server's output.
func (k *Kind) Logs(ctx context.Context, g engi.Guest, most int) (string, error) {
	p, err := within(ctx, callTime, "find the server", func(ctx context.Context) (engi.Process, error) { return g.Attach(ctx, tag) })
	if err != nil {
		if engi.Is(err, engi.NotFound) {
			return "", nil
		}
		return "", err
	}
	// The output of a running program has no end. Reading ends when there is no more output for
	// a moment, or when logTime has passed.
	reading, cancel := context.WithTimeout(ctx, logTime)
	defer cancel()
	quiet := time.AfterFunc(time.Second, cancel)
	defer quiet.Stop()
	var tail []byte
	cut := false
	for c, err := range p.Output(reading, engi.OldestOutput) {
		if err != nil {
			if reading.Err() != nil && ctx.Err() == nil {
				break
			}
			return "", err
		}
		cut = cut || len(tail) == 0 && c.Offset > 0
		tail = append(tail, c.Data...)
		if n := len(tail) - most; n > 0 {
			tail, cut = tail[n:], true
		}
		quiet.Reset(logQuiet)
	}
	if i := bytes.IndexByte(tail, '\n'); cut && i >= 0 {
		tail = tail[i+1:] // the tail began within a line
	}
	return strings.ToValidUTF8(string(tail), "\ufffd"), nil
}

// within calls f with a context limited to most. The error tells whether ctx or the limit ended it.
func within[T any](ctx context.Context, most time.Duration, what string, f func(ctx context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	x, err := f(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = engi.Errorf(engi.Unavailable, "%s: no answer for %v", what, most).WithRemedy("restart the service")
	}
	return x, err
}
