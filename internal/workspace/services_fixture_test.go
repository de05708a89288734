package workspace_test

import (
	"context"
	"encoding/binary"
	"io"
	"io/fs"
	"iter"
	"net"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A volume holds the data of a server: whether they were created, with which settings, and the
// number of committed rows.
type volume struct {
	engi.Volume
	made     int
	settings string
	rows     int
}

type volumes struct {
	engi.Volumes
	*fixture
}

func (x volumes) Get(_ context.Context, _ engi.Viewer, id string) (v engi.Volume, err error) {
	err = x.act(func() error {
		if x.volumes[engi.VolumeID(id)] == nil {
			return engi.Errorf(engi.NotFound, "there is no such volume")
		}
		v = x.volumes[engi.VolumeID(id)].Volume
		return nil
	})
	return v, err
}

func (x volumes) Create(_ context.Context, spec engi.VolumeSpec) (v engi.Volume, err error) {
	err = x.act(func() error {
		for _, other := range x.volumes {
			if other.Name == spec.Name && other.Owner == spec.Owner {
				return engi.Errorf(engi.Conflict, "there is a volume %s", spec.Name)
			}
		}
		if _, err := fs.Stat(spec.Content, "seed"); err != nil {
			return err
		}
		v = engi.Volume{ID: spec.ID, Owner: spec.Owner, Name: spec.Name, Capacity: 4 << 30, Used: 40 << 20}
		x.volumes[v.ID] = &volume{Volume: v}
		return nil
	})
	return v, err
}

func (x volumes) Remove(_ context.Context, _ engi.Viewer, id string) error {
	return x.act(func() error {
		switch v := x.volumes[engi.VolumeID(id)]; {
		case v == nil:
			return engi.Errorf(engi.NotFound, "there is no such volume")
		case v.Holder != "":
			return engi.Errorf(engi.Conflict, "the volume is in use")
		}
		delete(x.volumes, engi.VolumeID(id))
		return nil
	})
}

// lose ends a sandbox and its processes. The caller holds the lock.
func (w *fixture) lose(id engi.SandboxID) {
	for _, p := range w.boxes[id].procs {
		p.end("KILL")
	}
	for _, m := range w.boxes[id].Volumes {
		w.volumes[engi.VolumeID(m.Volume)].Holder = ""
	}
	delete(w.boxes, id)
}

func (x boxes) Get(_ context.Context, _ engi.Viewer, id engi.SandboxID) (sb engi.Sandbox, err error) {
	err = x.act(func() error {
		if x.boxes[id] == nil {
			return errGone
		}
		sb = x.boxes[id].Sandbox
		return nil
	})
	return sb, err
}

func (x boxes) Samples(_ context.Context, _ engi.Viewer, id engi.SandboxID, from, _ time.Time) (all []engi.Sample, err error) {
	err = x.act(func() error {
		if x.boxes[id] == nil {
			return errGone
		}
		all = []engi.Sample{{Time: from, Memory: 1}, {Time: from, CPU: 2 * time.Second, CPUPercent: 5, Memory: 48 << 20, MemoryLimit: 1 << 30, DiskUsed: 1, DiskCapacity: 2}}
		return nil
	})
	return all, err
}

// A process is a server.
type process struct {
	engi.Process
	w     *fixture
	tag   string
	ended chan struct{}
	exit  engi.Exit
	got   []string // signals received
}

// end ends the process. The caller holds the lock.
func (p *process) end(signal string) {
	if p.alive() {
		p.exit = engi.Exit{Code: -1, Signal: signal}
		close(p.ended)
	}
}

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (g guest) Start(_ context.Context, c engi.Command) (engi.Process, error) {
	var p *process
	err := g.do("start", "", func(b *fakeSandbox) error {
		p = &process{w: g.fixture, tag: c.Tag, ended: make(chan struct{})}
		if c.Tag == "" {
			close(p.ended) // it is done
			return nil
		}
		b.procs = append(b.procs, p)
		if name := b.Notes["service"]; g.broken[name] > 0 {
			g.broken[name]--
			p.end("SEGV")
			return nil
		}
		v := g.volumes[engi.VolumeID(b.Volumes[0].Volume)]
		if v.made == 0 {
			v.made, v.settings = 1, b.files["/run/service/settings"].data
		}
		return nil
	})
	return p, err
}

func (g guest) Attach(_ context.Context, name string) (p engi.Process, err error) {
	err = g.do("attach", name, func(b *fakeSandbox) error {
		for _, q := range b.procs {
			if q.tag == name {
				p = q
			}
		}
		if p == nil {
			return engi.Errorf(engi.NotFound, "there is no process %s", name)
		}
		return nil
	})
	return p, err
}

func (g guest) Processes(context.Context) (all []engi.ProcessInfo, err error) {
	err = g.do("processes", "", func(b *fakeSandbox) error {
		for _, p := range b.procs {
			all = append(all, engi.ProcessInfo{Tag: p.tag, Ended: !p.alive()})
		}
		return nil
	})
	return all, err
}

// Dial connects to a server, which sends the greeting of its protocol.
func (g guest) Dial(_ context.Context, port int) (c net.Conn, err error) {
	err = g.do("dial", "", func(b *fakeSandbox) error {
		if len(b.procs) == 0 || !b.procs[len(b.procs)-1].alive() {
			return engi.Errorf(engi.Unavailable, "nothing listens at port %d", port)
		}
		mine, theirs := net.Pipe()
		c = mine
		g.servers.Go(func() { io.Copy(io.Discard, theirs) })
		g.servers.Go(func() {
			io.WriteString(theirs, greetings[port])
			if port != 27017 { // whose client says more
				theirs.Close()
			}
		})
		return nil
	})
	if err != nil && c != nil {
		c.Close() // the power was cut before the caller got the connection
	}
	return c, err
}

func message(kind byte, body string) string {
	return string(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4))) + body
}

// mongoMessage returns the answer to a request with the fields of a document.
func mongoMessage(to byte, fields string) string {
	doc := string(binary.LittleEndian.AppendUint32(nil, uint32(len(fields)+5))) + fields + "\x00"
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(doc)+21))
	return string(head) + "\x00\x00\x00\x00" + string([]byte{to, 0, 0, 0}) + "\xdd\x07\x00\x00\x00\x00\x00\x00\x00" + doc
}

var greetings = map[int]string{
	5432: message('R', "\x00\x00\x00\x00") + message('S', "server_version\x0015.20\x00") + message('Z', "I"),
	3306: "\x0b\x00\x00\x00\x0a10.11.19\x00x",
	6379: "+OK\r\n+PONG\r\n$22\r\nredis_version:7.0.15\r\n",
	// A mongod refuses the password.
	27017: mongoMessage(1, "\x02version\x00\x06\x00\x00\x003.6.8\x00\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f") + mongoMessage(2, "\x10ok\x00\x00\x00\x00\x00\x02codeName\x00\x15\x00\x00\x00AuthenticationFailed\x00"),
	80:    "HTTP/1.1 204 No Content\r\nServer: nginx/1.22.1\r\n\r\n",
}

func (p *process) Signal(_ context.Context, name string) error {
	return p.w.act(func() error {
		if !p.alive() {
			return engi.Errorf(engi.NotFound, "it has ended")
		}
		p.got = append(p.got, name)
		p.end(name)
		return nil
	})
}

func (p *process) Wait(ctx context.Context) (engi.Exit, error) {
	select {
	case <-p.ended:
		return p.exit, nil
	case <-ctx.Done():
		return engi.Exit{}, engi.Errorf(engi.Expired, "%v", ctx.Err())
	}
}

func (p *process) Output(context.Context, int64) iter.Seq2[engi.Chunk, error] {
	return func(yield func(engi.Chunk, error) bool) { yield(engi.Chunk{Data: []byte("the server says so\n")}, nil) }
}
