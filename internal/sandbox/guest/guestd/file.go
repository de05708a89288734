package guestd

import (
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/tree"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// filePath checks the path in a request, and returns it in the form that this program can open.
func (s *Server) filePath(r *http.Request, key string) (string, error) {
	p := r.URL.Query().Get(key)
	if err := wire.CheckAbsolute(p); err != nil {
		return "", err
	}
	return s.resolve(p, "/"), nil
}

// withPath returns a handler that calls f with the path of the request.
func (s *Server) withPath(f func(w http.ResponseWriter, r *http.Request, path string) error) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		path, err := s.filePath(r, "path")
		if err != nil {
			return err
		}
		return f(w, r, path)
	}
}

func (s *Server) fileRoutes(mux *http.ServeMux) {
	for pattern, f := range map[string]func(http.ResponseWriter, *http.Request, string) error{
		"GET " + wire.Prefix + "file":    s.readFile,
		"PUT " + wire.Prefix + "file":    s.writeFile,
		"GET " + wire.Prefix + "stat":    s.statFile,
		"GET " + wire.Prefix + "list":    s.listDir,
		"POST " + wire.Prefix + "mkdir":  s.makeDir,
		"POST " + wire.Prefix + "move":   s.moveFile,
		"POST " + wire.Prefix + "remove": s.removeFile,
		"GET " + wire.Prefix + "watch":   s.watchDir,
		"GET " + wire.Prefix + "pack":    s.pack,
		"POST " + wire.Prefix + "unpack": s.unpack,
	} {
		mux.Handle(pattern, s.withPath(f))
	}
	mux.Handle("POST "+wire.Prefix+"port/{port}", handlerFunc(s.port))
}

func (s *Server) readFile(w http.ResponseWriter, r *http.Request, path string) error {
	f, err := tree.OpenRegular(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return tree.Classify(err, "stat", path)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if fi.Size() == 0 {
		if all := tree.Unsized(f); all != nil {
			return sendExactly(w, all, -1)
		}
	}
	w.Header().Set("Content-Length", strconv.FormatInt(fi.Size(), 10))
	return sendExactly(w, io.LimitReader(f, fi.Size()), fi.Size())
}

// sendExactly writes size bytes of r, or all of r if size is negative. If it cannot, it aborts the
// answer.
func sendExactly(w io.Writer, r io.Reader, size int64) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 256<<10))
	if err != nil || size >= 0 && n != size {
		panic(http.ErrAbortHandler) // the answer has begun: abort it
	}
	return nil
}

func (s *Server) writeFile(w http.ResponseWriter, r *http.Request, path string) error {
	q := r.URL.Query()
	mode := uint64(0)
	if m := q.Get("mode"); m != "" {
		var err error
		if mode, err = strconv.ParseUint(m, 8, 16); err != nil || mode > 0o777 {
			return engi.Errorf(engi.Invalid, "mode %.20q is not an octal number up to 777", m)
		}
	}
	_, owner, err := s.home(q.Get("user"))
	if err != nil {
		return err
	}
	_, err = tree.Write(path, r.Body, fs.FileMode(mode), owner, func() string {
		if h := r.Trailer.Get(wire.HashHeader); h != "" {
			return h
		}
		return r.Header.Get(wire.HashHeader)
	})
	if err != nil {
		return err
	}
	return noContent(w)
}

// describe adds the names of owners, unknown to package tree, to descriptions. It looks
// up each owner once.
func (s *Server) describe(files []wire.FileInfo) {
	users, groups := map[int]string{}, map[int]string{}
	name := func(names map[int]string, file string, id int) string {
		if _, ok := names[id]; !ok {
			names[id] = s.lookupName(file, id)
		}
		return names[id]
	}
	for i := range files {
		fi := &files[i]
		fi.Owner, fi.Group = name(users, "/etc/passwd", fi.UID), name(groups, "/etc/group", fi.GID)
		fi.Path = s.inside(fi.Path)
		if fi.Target != "" {
			fi.Target = s.inside(fi.Target)
		}
	}
}

func (s *Server) stat(path string) (wire.FileInfo, error) {
	fi, err := tree.Stat(path)
	if err != nil {
		return fi, err
	}
	one := []wire.FileInfo{fi}
	s.describe(one)
	return one[0], nil
}

func (s *Server) statFile(w http.ResponseWriter, r *http.Request, path string) error {
	fi, err := s.stat(path)
	if err != nil {
		return err
	}
	return wire.WriteJSON(w, fi)
}

func (s *Server) listDir(w http.ResponseWriter, r *http.Request, path string) error {
	depth := 1
	if d := r.URL.Query().Get("depth"); d != "" {
		var err error
		if depth, err = strconv.Atoi(d); err != nil || depth < 0 {
			return engi.Errorf(engi.Invalid, "depth %.20q is not a number of levels", d)
		}
	}
	all, err := s.listEntries(path, depth)
	if err != nil {
		return err
	}
	return wire.WriteJSON(w, all)
}

func (s *Server) listEntries(path string, depth int) ([]wire.FileInfo, error) {
	all, err := tree.List(path, depth)
	if err != nil {
		return nil, err
	}
	s.describe(all)
	return all, nil
}

func (s *Server) makeDir(w http.ResponseWriter, r *http.Request, path string) error {
	if err := tree.MakeDir(path, s.settings().owner); err != nil {
		return err
	}
	return noContent(w)
}

func (s *Server) moveFile(w http.ResponseWriter, r *http.Request, path string) error {
	to, err := s.filePath(r, "to")
	if err != nil {
		return err
	}
	if err := tree.Move(path, to, s.settings().owner); err != nil {
		return err
	}
	return noContent(w)
}

func (s *Server) removeFile(w http.ResponseWriter, r *http.Request, path string) error {
	if s.o.Root != "" && path == s.o.Root {
		return engi.Errorf(engi.Denied, "remove /: the root stays")
	}
	if err := tree.Remove(path); err != nil {
		return err
	}
	return noContent(w)
}

func (s *Server) watchDir(w http.ResponseWriter, r *http.Request, path string) error {
	watch, err := tree.NewWatch(path, r.URL.Query().Get("recursive") == "true")
	if err != nil {
		return err
	}
	defer watch.Close()
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/octet-stream")
	buf := wire.AppendFrame(nil, wire.Alive, nil) // the watch has begun
	for {
		if _, err := w.Write(buf); err != nil {
			return nil
		}
		if err := rc.Flush(); err != nil {
			return nil
		}
		ch, err := watch.Next(r.Context())
		if err != nil {
			if r.Context().Err() == nil {
				w.Write(wire.AppendFrame(nil, wire.Failure, wire.EncodeError(err))) // fails if the host has disconnected
			}
			return nil
		}
		ch.Path = s.inside(ch.Path)
		if buf, err = wire.AppendJSON(buf[:0], wire.Change, ch); err != nil {
			return nil
		}
	}
}

func (s *Server) pack(w http.ResponseWriter, r *http.Request, path string) error {
	if _, err := os.Lstat(path); err != nil {
		return tree.Classify(err, "pack", path)
	}
	w.Header().Set("Content-Type", "application/x-tar")
	if err := tree.Pack(w, path); err != nil {
		panic(http.ErrAbortHandler) // the answer has begun: abort it
	}
	return nil
}

func (s *Server) unpack(w http.ResponseWriter, r *http.Request, path string) error {
	if err := tree.Unpack(path, r.Body, s.settings().owner); err != nil {
		return err
	}
	return noContent(w)
}

const dialTimeout = 5 * time.Second

// port connects the request and its answer to a TCP port on loopback.
func (s *Server) port(w http.ResponseWriter, r *http.Request) error {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return engi.Errorf(engi.Invalid, "%.20q is not a port", r.PathValue("port"))
	}
	number := strconv.FormatUint(port, 10)
	conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", number), dialTimeout)
	if err != nil {
		// Some servers listen on IPv6 only.
		if conn, err = net.DialTimeout("tcp", net.JoinHostPort("::1", number), dialTimeout); err != nil {
			return engi.Errorf(engi.Unavailable, "no program listens on port %d", port)
		}
	}
	defer conn.Close()
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	if err := rc.Flush(); err != nil {
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{r.Body}, make([]byte, 64<<10))
		if err != nil {
			conn.Close() // the host closed the stream
			return
		}
		conn.(*net.TCPConn).CloseWrite() // if it fails, so does the read below
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				break
			}
			if err := rc.Flush(); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	conn.Close()
	r.Body.Close() // unblocks the goroutine
	<-done
	return nil
}
