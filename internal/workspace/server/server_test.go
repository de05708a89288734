package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestFind(t *testing.T) {
	for _, test := range []struct {
		kind    engi.ServiceType
		version string
		want    string // or a part of the error's text
	}{
		{engi.ServicePostgres, "", "PostgreSQL 15"},
		{engi.ServicePostgres, "latest", "PostgreSQL 15"},
		{engi.ServicePostgres, "15", "PostgreSQL 15"},
		{engi.ServicePostgres, "1", "there is no version \"1\" of postgres"},
		{engi.ServicePostgres, "16", "the template service-postgres has PostgreSQL 15"},
		{engi.ServiceMySQL, "10", "MariaDB 10.11"},
		{engi.ServiceMySQL, "10.11", "MariaDB 10.11"},
		{engi.ServiceMySQL, "8.0", "the template service-mysql has MariaDB 10.11"},
		{engi.ServiceRedis, "7", "Redis 7.0"},
		{engi.ServiceMongoDB, "1", "FerretDB 1.24"},
		{engi.ServiceMongoDB, "7", "the template service-mongodb has FerretDB 1.24"},
		{engi.ServiceNginx, "1.22", "nginx 1.22"},
		{"oracle", "", "\"oracle\" is not a type of services"},
	} {
		k, err := Find(test.kind, test.version)
		if err != nil {
			if !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s %q: %v, want %q", test.kind, test.version, err, test.want)
			}
			continue
		}
		if k.String() != test.want || k.Type != test.kind {
			t.Errorf("%s %q is %v, want %s", test.kind, test.version, k, test.want)
		}
	}
}

func TestAccess(t *testing.T) {
	for _, test := range []struct {
		kind engi.ServiceType
		env  map[string]string
		want Access // if it has no password, one is generated
		url  string
		bad  string
	}{
		{kind: engi.ServicePostgres, want: Access{User: "app", Database: "app"}},
		{kind: engi.ServicePostgres, env: map[string]string{"POSTGRES_USER": "ann", "POSTGRES_PASSWORD": "a'b c/@", "TZ": "UTC"},
			want: Access{User: "ann", Database: "ann", Password: "a'b c/@"}, url: "postgresql://ann:a%27b%20c%2F%40@db:5432/ann"},
		{kind: engi.ServicePostgres, env: map[string]string{"POSTGRES_USER": `x"; DROP`}, bad: "POSTGRES_USER"},
		{kind: engi.ServicePostgres, env: map[string]string{"POSTGRES_PASSWORD": "secret\nDROP"}, bad: "POSTGRES_PASSWORD"},
		{kind: engi.ServicePostgres, env: map[string]string{"POSTGRES_DB": strings.Repeat("a", 33)}, bad: "POSTGRES_DB"},
		{kind: engi.ServicePostgres, env: map[string]string{"A=B": "x"}, bad: "A=B"},
		{kind: engi.ServiceMySQL, env: map[string]string{"MARIADB_USER": "bob", "MYSQL_PASSWORD": "p", "MYSQL_DATABASE": "shop"},
			want: Access{User: "bob", Database: "shop", Password: "p"}, url: "mysql://bob:p@db:3306/shop"},
		{kind: engi.ServiceRedis, env: map[string]string{"REDIS_PASSWORD": "p"}, want: Access{User: "default", Database: "0", Password: "p"}, url: "redis://default:p@db:6379/0"},
		{kind: engi.ServiceMongoDB, env: map[string]string{"MONGO_INITDB_ROOT_USERNAME": "ann", "MONGO_INITDB_ROOT_PASSWORD": "a'b@c", "MONGO_INITDB_DATABASE": "shop", "TZ": "UTC"},
			want: Access{User: "ann", Database: "shop", Password: "a'b@c"}, url: "mongodb://ann:a%27b%40c@db:27017/shop"},
		{kind: engi.ServiceNginx, url: "http://db/"},
		{kind: engi.ServiceNginx, env: map[string]string{"ROOT": "a;b"}, bad: "ROOT"},
		{kind: engi.ServiceNginx, env: map[string]string{"UPSTREAM": "http://x;return 200/"}, bad: "UPSTREAM"},
		{kind: engi.ServiceNginx, env: map[string]string{"UPSTREAM": "file:///etc/passwd"}, bad: "UPSTREAM"},
	} {
		k, err := Find(test.kind, "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := k.Access(test.env)
		if test.bad != "" {
			if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), test.bad) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s %v: %v", test.kind, test.env, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %v: %v", test.kind, test.env, err)
			continue
		}
		if test.want.Password == "" && test.kind != engi.ServiceNginx {
			if again, _ := k.Access(test.env); len(got.Password) < 20 || again.Password == got.Password {
				t.Errorf("%s: passwords %q and %q were made up", test.kind, got.Password, again.Password)
			}
			got.Password = ""
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s %v: (-want +got)\n%s", test.kind, test.env, diff)
		}
		if c := k.Connection("db", got); test.url != "" && c.URL != test.url {
			t.Errorf("%s: %s, want %s", test.kind, c.URL, test.url)
		}
	}
}

// TestSettingsQuote uses passwords that could end a string.
func TestSettingsQuote(t *testing.T) {
	a := Access{User: "app", Database: "app", Password: `it's \' "x`}
	for kind, want := range map[engi.ServiceType]string{
		engi.ServicePostgres: `PASSWORD 'it''s \'' "x'` + "\n",
		engi.ServiceMySQL:    `IDENTIFIED BY 'it''s \\'' "x';` + "\n",
		engi.ServiceMongoDB:  `FERRETDB_SETUP_PASSWORD='it'\''s \'\'' "x'` + "\n",
		engi.ServiceRedis:    `requirepass "it's \\' \"x"` + "\n",
	} {
		k, _ := Find(kind, "")
		got, err := k.settings(a, nil)
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %s%v, want %s", kind, got, err, want)
		}
	}
}

// answer serves one connection with the messages of a server, and reads those of the client.
func answer(t *testing.T, say func(c net.Conn)) net.Conn {
	t.Helper()
	mine, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		say(theirs)
		theirs.Close()
	}()
	t.Cleanup(func() { mine.Close(); <-done })
	return mine
}

func pgMessage(kind byte, body string) string {
	return string(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4))) + body
}

// recorded returns recorded messages of FerretDB 1.24.0 and MongoDB 3.6.8.
func recorded(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestGreet(t *testing.T) {
	says := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			go io.Copy(io.Discard, c)
			io.WriteString(c, text)
		}
	}
	handshake := func(body string) string { return string([]byte{byte(len(body)), byte(len(body) >> 8), 0, 0}) + body }
	auth := func(code uint32) string { return string(binary.BigEndian.AppendUint32(nil, code)) }
	for _, test := range []struct {
		name    string
		kind    engi.ServiceType
		say     string
		version string
		bad     string
	}{
		{"postgres lets in", engi.ServicePostgres, pgMessage('R', auth(0)) + pgMessage('S', "server_version\x0015.20 (Debian 15.20-0)\x00") + pgMessage('Z', "I"), "15.20", ""},
		{"postgres starts", engi.ServicePostgres, pgMessage('E', "SFATAL\x00C57P03\x00Mthe database system is starting up\x00\x00"), "", "starting up"},
		{"postgres, another password", engi.ServicePostgres, pgMessage('E', "SFATAL\x00C28P01\x00Mpassword authentication failed\x00\x00"), "", ""},
		{"postgres, no database", engi.ServicePostgres, pgMessage('E', "C3D000\x00Mno\x00\x00"), "", ""},
		{"postgres, full", engi.ServicePostgres, pgMessage('E', "C53300\x00Mno\x00\x00"), "", ""},
		{"postgres, a huge message", engi.ServicePostgres, "R\xff\xff\xff\xff", "", "4294967295 bytes"},
		{"postgres, a short message", engi.ServicePostgres, "R\x00\x00\x00\x01", "", "1 bytes"},
		{"postgres, a challenge that was not asked for", engi.ServicePostgres, pgMessage('R', auth(11)+"r=x,s=eA==,i=1"), "", "challenge"},
		{"postgres is something else", engi.ServicePostgres, "HTTP/1.1 400 Bad Request\r\n\r\n", "", "bytes"},
		{"mysql", engi.ServiceMySQL, handshake("\x0a5.5.5-10.11.19-MariaDB-0+deb12u1\x00rest"), "10.11.19", ""},
		{"mysql, full", engi.ServiceMySQL, handshake("\xff\x10\x04Too many connections"), "", ""},
		{"mysql, an error", engi.ServiceMySQL, handshake("\xff\x69\x04Host is \x1b[31mblocked"), "", "blocked"},
		{"mysql, a huge packet", engi.ServiceMySQL, "\xff\xff\xff\x00", "", "bytes"},
		{"mysql, no end of the version", engi.ServiceMySQL, handshake("\x0a10.11"), "", "type"},
		{"redis", engi.ServiceRedis, "+OK\r\n+PONG\r\n$40\r\n# Server\r\nredis_version:7.0.15\r\n", "7.0.15", ""},
		{"redis loads", engi.ServiceRedis, "+OK\r\n-LOADING Redis is loading the dataset in memory\r\n", "", "loading"},
		{"redis, another password", engi.ServiceRedis, "-WRONGPASS invalid username-password pair\r\n", "", ""},
		{"redis says nothing", engi.ServiceRedis, "", "", "EOF"},
		{"redis says too much", engi.ServiceRedis, strings.Repeat("+", maxGreeting+1), "", "EOF"},
		{"mongodb", engi.ServiceMongoDB, recorded(t, "buildinfo"), "1.24.0", ""},
		{"mongodb asks who it is", engi.ServiceMongoDB, recorded(t, "unauthorized"), "", "refuses"},
		{"mongodb ends within its answer", engi.ServiceMongoDB, recorded(t, "buildinfo")[:500], "", "EOF"},
		{"mongodb, a huge message", engi.ServiceMongoDB, "\xff\xff\xff\x7f\x01\x00\x00\x00\x01\x00\x00\x00\xdd\x07\x00\x00", "", "2147483647 bytes"},
		{"mongodb, a short message", engi.ServiceMongoDB, "\x10\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\xdd\x07\x00\x00", "", "16 bytes"},
		{"mongodb is something else", engi.ServiceMongoDB, "HTTP/1.1 400 Bad Request\r\n\r\n", "", "kind"},
		{"nginx", engi.ServiceNginx, "HTTP/1.1 204 No Content\r\nServer: nginx/1.22.1\r\n\r\n", "1.22.1", ""},
		{"nginx fails", engi.ServiceNginx, "HTTP/1.1 502 Bad Gateway\r\n\r\n", "", "502"},
	} {
		t.Run(test.name, func(t *testing.T) {
			k, err := Find(test.kind, "")
			if err != nil {
				t.Fatal(err)
			}
			version, err := k.greet(answer(t, says(test.say)), Access{User: "app", Password: "p", Database: "app"})
			if version != test.version || (err == nil) != (test.bad == "") || err != nil && !strings.Contains(err.Error(), test.bad) {
				t.Errorf("version %q, error %v; want %q, %q", version, err, test.version, test.bad)
			}
		})
	}
}

// TestMongod starts the mongod of a template, and gives it its user while it is new.
func TestMongod(t *testing.T) {
	if _, err := Mongod("mine", "3.6", nil); !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), "the template mine decides") {
		t.Error(err)
	}
	created := 0
	refused := engi.Errorf(engi.Unavailable, "it refuses")
	var limited []bool
	k, err := Mongod("mine", "latest", &mongodClient{func(ctx context.Context, dial Dial) error {
		c, err := dial(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		if created++; created == 1 {
			return refused
		}
		return nil
	}, &limited})
	if err != nil || k.String() != "MongoDB" || k.Template != "mine" {
		t.Fatal(k, err)
	}
	a, err := k.Access(map[string]string{"MONGO_INITDB_ROOT_PASSWORD": "s3cret"})
	if err != nil {
		t.Fatal(err)
	}
	if c := k.Connection("db", a); c.URL != "mongodb://app:s3cret@db:27017/app?authSource=admin&journal=true" {
		t.Error(c.URL)
	}
	for name, want := range map[string]string{"buildinfo-mongod": "3.6.8", "unauthorized": ""} {
		version, err := k.greet(answer(t, func(c net.Conn) {
			go io.Copy(io.Discard, c)
			io.WriteString(c, recorded(t, name))
		}), a)
		if err != nil || version != want {
			t.Errorf("%s: version %q, %v", name, version, err)
		}
	}
	g := &newGuest{guest: &guest{files: map[string]string{}, says: "it is new\n"}, port: setUpPort, say: "buildinfo-mongod", t: t}
	p, err := k.Start(t.Context(), g, a, map[string]string{"MONGO_INITDB_ROOT_PASSWORD": "s3cret"})
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(g.files, g.procs[0].cmd); strings.Contains(text, "s3cret") {
		t.Errorf("the password is in %s", text)
	}
	if version, err := k.Wait(t.Context(), g, p, a); err != nil || version != "3.6.8" || created != 2 {
		t.Errorf("version %q after %d attempts, %v", version, created, err)
	}
	for range 2 {
		if err := k.Limit(t.Context(), g, a); err != nil {
			t.Error(err)
		}
		g.files[fullFile] = ""
	}
	if !cmp.Equal(limited, []bool{false, true}) {
		t.Errorf("it was limited %v", limited)
	}
	g.port, created = setUpPort, 0
	g.procs[0].end(engi.Exit{Code: 1})
	if _, err := k.Wait(t.Context(), g, p, a); !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), "code 1: it is new") {
		t.Error(err)
	}
}

type mongodClient struct {
	setUp   func(ctx context.Context, dial Dial) error
	limited *[]bool
}

func (c *mongodClient) SetUp(ctx context.Context, dial Dial, _ Access) error {
	return c.setUp(ctx, dial)
}

func (c *mongodClient) Limit(ctx context.Context, dial Dial, _ Access, full bool) error {
	*c.limited = append(*c.limited, full)
	conn, err := dial(ctx)
	if err == nil {
		conn.Close()
	}
	return err
}

func (g *newGuest) Stat(_ context.Context, path string) (engi.FileInfo, error) {
	if _, ok := g.files[path]; !ok {
		return engi.FileInfo{}, engi.Errorf(engi.NotFound, "no file %s", path)
	}
	return engi.FileInfo{}, nil
}

// A newGuest has a new mongod, which serves once the file says that it has its user.
type newGuest struct {
	*guest
	t    *testing.T
	port int // port where it listens
	say  string
}

func (g *newGuest) Write(ctx context.Context, path string, r io.Reader, o engi.WriteOptions) error {
	if path == madeFile {
		g.port = 27017
	}
	return g.guest.Write(ctx, path, r, o)
}

func (g *newGuest) Dial(_ context.Context, port int) (net.Conn, error) {
	if port != g.port {
		return nil, engi.Errorf(engi.Unavailable, "nothing listens")
	}
	mine, theirs := net.Pipe()
	go io.Copy(io.Discard, theirs)
	go func() {
		defer theirs.Close()
		io.WriteString(theirs, recorded(g.t, g.say))
	}()
	return mine, nil
}

// TestSCRAM replays the exchange of RFC 7677, section 3.
func TestSCRAM(t *testing.T) {
	got, err := scram("pencil", "rOprNGfwEbeRWgbNEkqO", "n=user,r=rOprNGfwEbeRWgbNEkqO",
		"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
	want := "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
	if err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if _, err := scram("pencil", "x", "n=,r=x", "r=x1,s=eA==,i=2000000000"); err == nil {
		t.Error("it works as long as the server likes")
	}
}

// A guest runs a server, which is a function.
type guest struct {
	engi.Guest
	mu    sync.Mutex
	files map[string]string
	procs []*process
	serve func(c net.Conn) // nil refuses connections
	says  string           // output of a new process
	hangs bool             // processes ignore all signals but KILL
	ran   []string         // last arguments of commands that are not servers
	fails int              // exit code of those commands
}

type process struct {
	engi.Process
	g     *guest
	cmd   engi.Command
	ended chan struct{}
	exit  engi.Exit
	got   []string // signals received
}

func (g *guest) Write(_ context.Context, path string, r io.Reader, o engi.WriteOptions) error {
	text, err := io.ReadAll(r)
	if o.Mode != 0o600 || o.User != "root" {
		return fmt.Errorf("%s may be read by others", path)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.files[path] = string(text)
	return err
}

func (g *guest) Start(_ context.Context, c engi.Command) (engi.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &process{g: g, cmd: c, ended: make(chan struct{})}
	if c.Tag == "" {
		g.ran = append(g.ran, c.Args[len(c.Args)-1])
		p.exit.Code = g.fails
		close(p.ended)
		return p, nil
	}
	g.procs = append(g.procs, p)
	return p, nil
}

func (g *guest) Attach(_ context.Context, name string) (engi.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := len(g.procs) - 1; i >= 0; i-- {
		if g.procs[i].cmd.Tag == name {
			return g.procs[i], nil
		}
	}
	return nil, engi.Errorf(engi.NotFound, "no process %s", name)
}

func (g *guest) Processes(context.Context) (all []engi.ProcessInfo, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.procs {
		i := engi.ProcessInfo{Tag: p.cmd.Tag}
		select {
		case <-p.ended:
			i.Ended = true
		default:
		}
		all = append(all, i)
	}
	return all, nil
}

func (g *guest) Dial(context.Context, int) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.serve == nil {
		return nil, engi.Errorf(engi.Unavailable, "nothing listens")
	}
	mine, theirs := net.Pipe()
	go g.serve(theirs)
	return mine, nil
}

func (p *process) end(e engi.Exit) {
	select {
	case <-p.ended:
	default:
		p.exit = e
		close(p.ended)
	}
}

func (p *process) Signal(_ context.Context, name string) error {
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	select {
	case <-p.ended:
		return engi.Errorf(engi.NotFound, "it has ended")
	default:
	}
	if p.got = append(p.got, name); name == "KILL" || !p.g.hangs {
		p.end(engi.Exit{Signal: name, Code: -1})
	}
	return nil
}

func (p *process) Wait(ctx context.Context) (engi.Exit, error) {
	select {
	case <-p.ended:
		return p.exit, nil
	case <-ctx.Done():
		return engi.Exit{}, engi.Errorf(engi.Expired, "%v", ctx.Err())
	}
}

func (p *process) Output(ctx context.Context, from int64) iter.Seq2[engi.Chunk, error] {
	return func(yield func(engi.Chunk, error) bool) {
		if !yield(engi.Chunk{Data: []byte(p.g.says)}, nil) {
			return
		}
		if _, err := p.Wait(ctx); err != nil {
			yield(engi.Chunk{}, err)
		}
	}
}

func TestStartWaitStop(t *testing.T) {
	k, err := Find(engi.ServiceMySQL, "")
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{files: map[string]string{}}
	a := Access{User: "app", Database: "app", Password: "s3cret"}
	p, err := k.Start(t.Context(), g, a, map[string]string{"MYSQL_PASSWORD": "s3cret", "TZ": "UTC"})
	if err != nil {
		t.Fatal(err)
	}
	cmd := g.procs[0].cmd
	if strings.Contains(fmt.Sprint(cmd), "s3cret") || cmd.Env["TZ"] != "UTC" {
		t.Errorf("it was started with %+v", cmd)
	}
	if !strings.Contains(g.files["/run/service/settings"], "s3cret") {
		t.Errorf("files %v", g.files)
	}
	go func() {
		time.Sleep(30 * time.Millisecond)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.serve = func(c net.Conn) {
			io.WriteString(c, "\x0b\x00\x00\x00\x0a10.11.19\x00x")
			c.Close()
		}
	}()
	if version, err := k.Wait(t.Context(), g, p, a); err != nil || version != "10.11.19" {
		t.Errorf("version %q, %v", version, err)
	}
	// A second start ends the first server before it starts another one.
	if _, err := k.Start(t.Context(), g, a, nil); err != nil || len(g.procs) != 2 || !cmp.Equal(g.procs[0].got, []string{"TERM"}) {
		t.Errorf("%d processes, the first got %v; %v", len(g.procs), g.procs[0].got, err)
	}
	if _, err := k.Check(t.Context(), g, a); err != nil {
		t.Error(err)
	}
	g.says = "one\ntwo\n"
	if text, err := k.Logs(t.Context(), g, 5); err != nil || text != "two\n" {
		t.Errorf("logs %q, %v", text, err)
	}
	if err := errors.Join(k.Stop(t.Context(), g), k.Stop(t.Context(), g)); err != nil || !cmp.Equal(g.procs[1].got, []string{"TERM"}) {
		t.Errorf("it got %v, %v", g.procs[1].got, err)
	}
	if !cmp.Equal(g.ran, []string{"mysql"}) { // the first server was ended once, before the second start
		t.Errorf("commands for %v", g.ran)
	}
	g.fails = 1
	if _, err := k.Start(t.Context(), g, a, nil); !engi.Is(err, engi.Unavailable) || len(g.procs) != 2 {
		t.Errorf("over what an earlier server has left: %v", err)
	}
	// A child process of the server still greets.
	if _, err := k.Check(t.Context(), g, a); !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a server that has ended: %v", err)
	}
	if _, err := k.Start(t.Context(), &guest{files: map[string]string{}}, a, nil); err != nil {
		t.Error(err)
	}
}

// TestServersThatEnd starts a server that prints why it does not start, and one that never listens.
func TestServersThatEnd(t *testing.T) {
	k, err := Find(engi.ServiceRedis, "")
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{files: map[string]string{}, says: "the disk is full\n"}
	p, err := k.Start(t.Context(), g, Access{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.procs[0].end(engi.Exit{Code: 3})
	if _, err := k.Wait(t.Context(), g, p, Access{}); !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), "code 3: the disk is full") {
		t.Errorf("%v", err)
	}
	if p, err = k.Start(t.Context(), g, Access{}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := k.Wait(ctx, g, p, Access{}); !engi.Is(err, engi.Expired) {
		t.Errorf("%v", err)
	}
	if _, err := k.Greet(t.Context(), g, Access{}); !engi.Is(err, engi.Unavailable) {
		t.Errorf("%v", err)
	}
}

// FuzzGreet reads arbitrary greetings of servers.
func FuzzGreet(f *testing.F) {
	for i := range kinds {
		for _, say := range []string{"", "+OK\r\n+PONG\r\n$40\r\n# Server\r\n", "\x10\x00\x00\x00\x0a10.11\x00", "R\x00\x00\x00\x08\x00\x00\x00\x00Z\x00\x00\x00\x05I", "HTTP/1.1 204 No Content\r\n\r\n", "E\x00\x00\x00\x0aC28P01\x00", "\x1a\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\xdd\x07\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00"} {
			f.Add(i, say)
		}
	}
	f.Fuzz(func(t *testing.T, kind int, say string) {
		k := kinds[uint(kind)%uint(len(kinds))]
		version, err := k.greet(answer(t, func(c net.Conn) {
			go io.Copy(io.Discard, c)
			io.WriteString(c, say)
		}), Access{User: "app", Password: "p", Database: "app"})
		if err != nil && version != "" || len(version) > maxGreeting {
			t.Errorf("%s: version %.100q and %v", k.Type, version, err)
		}
	})
}
