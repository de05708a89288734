package rest

import (
	"io"
	"io/fs"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/guesthttp"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

type aFile struct {
	ID   string `path:"id" doc:"of the sandbox"`
	Path string `query:"path" required:"true" doc:"absolute path inside"`
}

type getFile struct {
	ID    string `path:"id" doc:"of the sandbox"`
	Path  string `query:"path" required:"true" doc:"absolute path inside"`
	Range string `header:"Range" doc:"one range of bytes" example:"bytes=0-1023"`
	TE    string `header:"TE" doc:"with trailers, the answer ends with a hash of the file and has no Content-Length"`
	Want  string `header:"Engi-Want-Hash" enum:"sha256,crc32c" default:"sha256" doc:"which hash the answer ends with, in the trailer Engi-Sha256 or Engi-Crc32c"`
}

type putFile struct {
	ID   string `path:"id" doc:"of the sandbox"`
	Path string `query:"path" required:"true" doc:"absolute path inside; parents are made"`
	Mode string `query:"mode" doc:"permission bits in octal; absent means 0644" example:"0755"`
	User string `query:"user" maxLength:"64" doc:"whom it belongs to; absent means the template's user"`
	Hash string `header:"Engi-Sha256" doc:"SHA-256 of the content, in hex; what does not match changes nothing"`
}

type listDir struct {
	ID    string `path:"id" doc:"of the sandbox"`
	Path  string `query:"path" required:"true" doc:"absolute path of a directory inside"`
	Depth int    `query:"depth" minimum:"1" maximum:"64" default:"1" doc:"how many levels deep"`
}

type watchDir struct {
	ID        string `path:"id" doc:"of the sandbox"`
	Path      string `query:"path" required:"true" doc:"absolute path of a directory inside"`
	Recursive bool   `query:"recursive" doc:"directories below it too"`
}

type getArchive struct {
	ID     string `path:"id" doc:"of the sandbox"`
	Path   string `query:"path" required:"true" doc:"absolute path inside"`
	Format string `query:"format" enum:"tar,tar.gz,zip" default:"tar" doc:"of the archive"`
}

func (s *server) serveFiles() {
	handle(s, s.opGetFile(), s.getFile)
	handle(s, s.opPutFile(), s.putFile)
	handle(s, s.opRemoveFile(), s.removeFile)
	handle(s, s.opStatFile(), s.statFile)
	handle(s, s.opListDir(), s.listDir)
	handle(s, s.opMakeDir(), s.makeDir)
	handle(s, s.opMoveFile(), s.moveFile)
	handle(s, s.opWatchDir(), s.watchDir)
	handle(s, s.opGetArchive(), s.getArchive)
	handle(s, s.opPutArchive(), s.putArchive)
}

// enterAt enters a sandbox for work on a path.
func (s *server) enterAt(r *http.Request, id, path string) (engi.Guest, func(), error) {
	if err := guesthttp.CheckPath("query.path", path); err != nil {
		return nil, nil, err
	}
	g, _, release, err := s.enter(r, id)
	return g, release, err
}

func (s *server) getFile(w http.ResponseWriter, r *http.Request, in *getFile) error {
	g, release, err := s.enterAt(r, in.ID, in.Path)
	if err != nil {
		return err
	}
	defer release()
	d, cancel := s.desk(w, r)
	defer cancel()
	f, err := g.Open(d.Ctx, in.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	return d.Download(in.Path, f, sizeOfFile(f))
}

// sizeOfFile returns what is known of an open file; -1 if nothing is.
func sizeOfFile(f io.Reader) int64 {
	switch f := f.(type) {
	case interface{ Size() int64 }:
		return f.Size()
	case interface{ Stat() (fs.FileInfo, error) }:
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return info.Size()
		}
	}
	return -1
}

func modeOf(text string) (fs.FileMode, error) {
	if text == "" {
		return 0, nil
	}
	m, err := v1.ParseMode(text)
	if err != nil {
		return 0, httpio.Invalid([]v1.Fault{{Field: "query.mode", Detail: err.Error()}})
	}
	return fs.FileMode(m), nil
}

func (s *server) putFile(w http.ResponseWriter, r *http.Request, in *putFile) error {
	mode, err := modeOf(in.Mode)
	if err != nil {
		return err
	}
	g, release, err := s.enterAt(r, in.ID, in.Path)
	if err != nil {
		return err
	}
	defer release()
	d, cancel := s.desk(w, r)
	defer cancel()
	x, err := d.Upload(in.Path, func(body io.Reader) error {
		return g.Write(d.Ctx, in.Path, body, engi.WriteOptions{Mode: mode, User: in.User})
	})
	if err != nil {
		return whole(d.Ctx, err)
	}
	return s.reply(w, http.StatusOK, x)
}

func (s *server) removeFile(w http.ResponseWriter, r *http.Request, in *aFile) error {
	g, release, err := s.enterAt(r, in.ID, in.Path)
	if err != nil {
		return err
	}
	defer release()
	if err := g.Remove(r.Context(), in.Path); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) statFile(w http.ResponseWriter, r *http.Request, in *aFile) error {
	g, release, err := s.enterAt(r, in.ID, in.Path)
	if err != nil {
		return err
	}
	defer release()
	x, err := g.Stat(r.Context(), in.Path)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, guesthttp.InfoOf(x))
}

func (s *server) listDir(w http.ResponseWriter, r *http.Request, in *listDir) error {
	g, release, err := s.enterAt(r, in.ID, in.Path)
	if err != nil {
		return err
	}
	defer release()
	xs, err := g.List(r.Context(), in.Path, in.Depth)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, guesthttp.InfoOf))
}

func (s *server) makeDir(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	q, err := decode[v1.PathRequest](s, w, r)
	if err != nil {
		return err
	}
	if err := guesthttp.CheckPath("path", q.Path); err != nil {
		return err
	}
	g, _, release, err := s.enter(r, in.ID)
	if err != nil {
		return err
	}
	defer release()
	if err := g.MakeDir(r.Context(), q.Path); err != nil {
		return err
	}
	x, err := g.Stat(r.Context(), q.Path)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusCreated, guesthttp.InfoOf(x))
}

func (s *server) moveFile(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	q, err := decode[v1.MoveRequest](s, w, r)
	if err != nil {
		return err
	}
	for field, p := range map[string]string{"from": q.From, "to": q.To} {
		if err := guesthttp.CheckPath(field, p); err != nil {
			return err
		}
	}
	g, _, release, err := s.enter(r, in.ID)
	if err != nil {
		return err
	}
	defer release()
	if err := g.Move(r.Context(), q.From, q.To); err != nil {
		return err
	}
	x, err := g.Stat(r.Context(), q.To)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, guesthttp.InfoOf(x))
}

func (s *server) watchDir(w http.ResponseWriter, r *http.Request, in *watchDir) error {
	form, err := httpio.Negotiate(r, httpio.NDJSON, httpio.SSE)
	if err != nil {
		return err
	}
	if err := guesthttp.CheckPath("query.path", in.Path); err != nil {
		return err
	}
	g, id, release, err := s.enter(r, in.ID)
	if err != nil {
		return err
	}
	defer release()
	leave, err := s.watches.Join(id)
	if err != nil {
		return err
	}
	defer leave()
	d, cancel := s.desk(w, r)
	defer cancel()
	err = d.Watch(form, g, in.Path, in.Recursive)
	if s.gone(r) {
		return nil
	}
	return whole(d.Ctx, err)
}

func (s *server) getArchive(w http.ResponseWriter, r *http.Request, in *getArchive) error {
	g, release, err := s.enterAt(r, in.ID, in.Path)
	if err != nil {
		return err
	}
	defer release()
	d, cancel := s.desk(w, r)
	defer cancel()
	f, err := g.Pack(d.Ctx, in.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	return d.Pack(in.Path, in.Format, f)
}

func (s *server) putArchive(w http.ResponseWriter, r *http.Request, in *aFile) error {
	g, release, err := s.enterAt(r, in.ID, in.Path)
	if err != nil {
		return err
	}
	defer release()
	d, cancel := s.desk(w, r)
	defer cancel()
	if err := d.Unpack(func(body io.Reader) error { return g.Unpack(d.Ctx, in.Path, body) }); err != nil {
		return whole(d.Ctx, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// fileOperation begins the description of one on files, of a sandbox or a
// volume.
func (s *server) fileOperation(method, base, act, id, summary, description string, status int) huma.Operation {
	tag := "files"
	if strings.HasPrefix(base, "/v1/volumes") {
		tag, id = "volumes", strings.Replace(id, "-", "-volume-", 1)
	}
	return s.operation(method, base+"/files"+act, id, tag, summary, description, status)
}

func download(op *huma.Operation, status int, types ...string) {
	code := map[int]string{http.StatusOK: "200", http.StatusPartialContent: "206"}[status]
	if op.Responses[code] == nil {
		op.Responses[code] = &huma.Response{Description: http.StatusText(status)}
	}
	op.Responses[code].Content = map[string]*huma.MediaType{}
	for _, t := range types {
		op.Responses[code].Content[t] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
	}
}

const inSandbox = sandboxes + "/{id}"

func (s *server) opGetFile() huma.Operation { return s.opDownload(inSandbox) }

func (s *server) opDownload(base string) huma.Operation {
	op := s.fileOperation(http.MethodGet, base, "", "get-file", "Download a file",
		"Of any size, always as an attachment of unknown type: programs make these files.", http.StatusOK)
	download(&op, http.StatusOK, "application/octet-stream")
	download(&op, http.StatusPartialContent, "application/octet-stream")
	header(&op, http.StatusOK, v1.SizeHeader, "bytes of the file")
	header(&op, http.StatusPartialContent, "Content-Range", "which bytes these are, of how many")
	return op
}

func (s *server) opPutFile() huma.Operation { return s.opUpload(inSandbox) }

func (s *server) opUpload(base string) huma.Operation {
	op := s.fileOperation(http.MethodPut, base, "", "put-file", "Upload a file",
		"Of any size, streamed. What was there is replaced when all has arrived, and stays as it is if not. Parents are made.", http.StatusOK)
	op.RequestBody = binaryBody()
	answers[v1.Written](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opRemoveFile() huma.Operation { return s.opRemove(inSandbox) }

func (s *server) opRemove(base string) huma.Operation {
	return s.fileOperation(http.MethodDelete, base, "", "remove-file", "Remove a path and all below it", "", http.StatusNoContent)
}

func (s *server) opStatFile() huma.Operation { return s.opStat(inSandbox) }

func (s *server) opStat(base string) huma.Operation {
	op := s.fileOperation(http.MethodGet, base, "/stat", "stat-file", "Describe a file", "Without following a final link.", http.StatusOK)
	answers[v1.FileInfo](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opListDir() huma.Operation { return s.opList(inSandbox) }

func (s *server) opList(base string) huma.Operation {
	op := s.fileOperation(http.MethodGet, base, "/list", "list-files", "List a directory", "In order of paths.", http.StatusOK)
	answers[v1.List[v1.FileInfo]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opMakeDir() huma.Operation { return s.opMkdir(inSandbox) }

func (s *server) opMkdir(base string) huma.Operation {
	op := s.fileOperation(http.MethodPost, base, "/mkdir", "make-directory", "Make a directory", "And its parents; one that exists is a conflict.", http.StatusCreated)
	accepts[v1.PathRequest](s, &op, nil)
	answers[v1.FileInfo](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	return op
}

func (s *server) opMoveFile() huma.Operation {
	op := s.fileOperation(http.MethodPost, inSandbox, "/move", "move-file", "Rename a file or a directory", "", http.StatusOK)
	accepts[v1.MoveRequest](s, &op, nil)
	answers[v1.FileInfo](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opWatchDir() huma.Operation {
	op := s.fileOperation(http.MethodGet, inSandbox, "/watch", "watch-files", "Watch a directory",
		"Streams what happens to files: started once the watch is in force, then changes until the caller leaves.", http.StatusOK)
	answers[v1.FileEvent](s, &op, http.StatusOK, string(httpio.NDJSON), nil)
	answers[v1.FileEvent](s, &op, http.StatusOK, string(httpio.SSE), nil)
	return op
}

func (s *server) opGetArchive() huma.Operation {
	op := s.fileOperation(http.MethodGet, inSandbox, "/archive", "get-archive", "Download a path and all below it as an archive",
		"Names in it begin with the last name of the path.", http.StatusOK)
	download(&op, http.StatusOK, "application/x-tar", "application/gzip", "application/zip")
	return op
}

func (s *server) opPutArchive() huma.Operation {
	op := s.fileOperation(http.MethodPut, inSandbox, "/archive", "put-archive", "Extract an archive below a directory",
		"A tar stream of any size, plain or compressed with gzip. Names that lead out of the directory are refused; what came before them stays.", http.StatusNoContent)
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/x-tar": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
		"application/gzip":  {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
	}}
	return op
}
