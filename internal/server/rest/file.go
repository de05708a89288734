package rest

import (
	"context"
	"io"
	"io/fs"
	"net/http"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/guesthttp"
	"github.com/engi-dev/engi/internal/server/httpio"
)

type files struct{ sandboxes engi.Sandboxes }

type aFile struct {
	aSandbox
	Path string `query:"path" required:"true" doc:"Absolute path in the sandbox"`
}

// download holds the parameters of a download.
type download struct {
	Range string `header:"Range" doc:"One range of bytes" example:"bytes=0-1023"`
	TE    string `header:"TE" doc:"With trailers, the answer ends with a hash of the file and has no Content-Length"`
	Want  string `header:"Engi-Want-Hash" enum:"sha256,crc32c" default:"sha256" doc:"Hash in the trailer: Engi-Sha256 or Engi-Crc32c"`
}

// upload holds the parameters of an upload.
type upload struct {
	Mode string `query:"mode" doc:"Permission bits in octal; absent means 0644" example:"0755"`
	Hash string `header:"Engi-Sha256" doc:"SHA-256 of the content, in hex; content that does not match changes nothing"`
}

type getFile struct {
	aFile
	download
}

type putFile struct {
	aSandbox
	Path string `query:"path" required:"true" doc:"Absolute path in the sandbox; missing parent directories are created"`
	upload
	User string `query:"user" maxLength:"64" doc:"Owner of the file; absent means the template's user"`
}

type listDir struct {
	aSandbox
	Path  string `query:"path" required:"true" doc:"Absolute path of a directory in the sandbox"`
	Depth int    `query:"depth" minimum:"1" maximum:"64" default:"1" doc:"Number of directory levels to list"`
}

type watchDir struct {
	aSandbox
	Path      string `query:"path" required:"true" doc:"Absolute path of a directory in the sandbox"`
	Recursive bool   `query:"recursive" doc:"Also watch the directories below it"`
}

type getArchive struct {
	aFile
	Format string `query:"format" enum:"tar,tar.gz,zip" default:"tar" doc:"Format of the archive"`
}

// Files returns the routes that read and write files in sandboxes.
func Files(sandboxes engi.Sandboxes) Resource {
	f := &files{sandboxes}
	const path = sandboxPath + "/{id}"
	look, change := reads(engi.ScopeSandboxes), writes(engi.ScopeSandboxes)
	return Resource{tag: "files", about: "files in a sandbox", routes: []Route{
		raw(fileRoute(downloadFile, path, "get-file", look), f.get),
		send(fileRoute(uploadFile, path, "put-file", change), f.put),
		act(fileRoute(removeFile, path, "remove-file", change), func(c *call, in *aFile, _ none) error {
			return f.at(c, in.ID, in.Path, func(g engi.Guest) error { return g.Remove(c, in.Path) })
		}),
		fetch(fileRoute(statFile, path, "stat-file", look), func(c *call, in *aFile) (v1.FileInfo, error) {
			return valueAt(c, f, in.ID, in.Path, func(g engi.Guest) (v1.FileInfo, error) { return to(guesthttp.InfoOf)(g.Stat(c, in.Path)) })
		}),
		list(fileRoute(listFiles, path, "list-files", look), func(c *call, in *listDir) ([]engi.FileInfo, error) {
			return valueAt(c, f, in.ID, in.Path, func(g engi.Guest) ([]engi.FileInfo, error) { return g.List(c, in.Path, in.Depth) })
		}, guesthttp.InfoOf),
		send(fileRoute(makeDir, path, "make-directory", change), f.mkdir),
		send(Route{
			Pattern: "POST " + path + "/files/move", ID: "move-file", Summary: "Rename a file or directory", Access: change,
		}, f.move),
		raw(Route{
			Pattern: "GET " + path + "/files/watch", ID: "watch-files", Summary: "Watch a directory", Access: look,
			Text:    "Streams changes of files: the event started once the watch is active, then one event for each change until the client disconnects.",
			Answers: streamOf[v1.FileChange](nil, httpio.NDJSON, httpio.SSE),
		}, f.watch),
		raw(Route{
			Pattern: "GET " + path + "/files/archive", ID: "get-archive", Summary: "Download a file or directory as an archive", Access: look,
			Text:    "Names in the archive begin with the last element of the path.",
			Answers: []answer{bytesOf(200, "application/x-tar", nil), bytesOf(200, "application/gzip", nil), bytesOf(200, "application/zip", nil)},
		}, f.pack),
		act(Route{
			Pattern: "PUT " + path + "/files/archive", ID: "put-archive", Summary: "Extract an archive into a directory", Access: change,
			Text:    "The body is a tar stream of any size, plain or compressed with gzip. A name that leads out of the directory ends the extraction with an error; files that came before it stay.",
			Uploads: []string{"application/x-tar", "application/gzip"},
		}, f.unpack),
	}}
}

// Routes that sandboxes and volumes have in common.
var (
	downloadFile = Route{
		Pattern: "GET /files", Summary: "Download a file",
		Text: "Returns a file of any size, always as an attachment of type application/octet-stream, because programs in sandboxes write these files.",
		Answers: []answer{
			bytesOf(http.StatusOK, "application/octet-stream", map[string]string{v1.SizeHeader: "bytes of the file"}),
			bytesOf(http.StatusPartialContent, "application/octet-stream", map[string]string{"Content-Range": "which bytes these are, of how many"}),
		},
	}
	uploadFile = Route{
		Pattern: "PUT /files", Summary: "Upload a file", Uploads: []string{"application/octet-stream"},
		Text: "The body is the content, of any size. The file is replaced when the whole body has arrived, and stays unchanged if it does not. Missing parent directories are created.",
	}
	removeFile = Route{Pattern: "DELETE /files", Summary: "Delete a file or directory"}
	statFile   = Route{Pattern: "GET /files/stat", Summary: "Get the metadata of a file", Text: "A symbolic link as the last element is not followed."}
	listFiles  = Route{Pattern: "GET /files/list", Summary: "List a directory", Text: "Entries are ordered by path."}
	makeDir    = Route{Pattern: "POST /files/mkdir", Summary: "Create a directory", Text: "Missing parent directories are created too. A directory that exists is a conflict.", Status: http.StatusCreated}
)

// fileRoute returns r with its pattern below a path.
func fileRoute(r Route, below, id string, a Access) Route {
	r.Pattern = r.method() + " " + below + r.path()
	r.ID, r.Access = id, a
	return r
}

// at calls do with the guest of a sandbox, after a check of the path.
func (f *files) at(c *call, id engi.SandboxID, path string, do func(engi.Guest) error) error {
	if err := guesthttp.CheckPath("query.path", path); err != nil {
		return err
	}
	g, release, err := f.sandboxes.Enter(c, c.viewer(), id)
	if err != nil {
		return err
	}
	defer release()
	return do(g)
}

// valueAt is at for work that returns a value.
func valueAt[T any](c *call, f *files, id engi.SandboxID, path string, do func(engi.Guest) (T, error)) (x T, err error) {
	err = f.at(c, id, path, func(g engi.Guest) (err error) {
		x, err = do(g)
		return err
	})
	return x, err
}

func (f *files) get(c *call, in *getFile, _ none) error {
	return f.at(c, in.ID, in.Path, func(g engi.Guest) error { return downloadFrom(c, in.Path, g.Open) })
}

// sizeOfFile returns the size of an open file; -1 if it is not known.
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

// downloadFrom answers with the file that open returns.
func downloadFrom(c *call, path string, open func(context.Context, string) (io.ReadCloser, error)) error {
	d, cancel := c.guest()
	defer cancel()
	f, err := open(d.Ctx, path)
	if err != nil {
		return err
	}
	defer f.Close()
	return d.Download(path, f, sizeOfFile(f))
}

func modeOf(text string) (fs.FileMode, error) {
	if text == "" {
		return 0, nil
	}
	m, err := v1.ParseMode(text)
	if err != nil {
		return 0, invalid("query.mode", "%v", err)
	}
	return fs.FileMode(m), nil
}

func (f *files) put(c *call, in *putFile, _ none) (v1.Written, error) {
	mode, err := modeOf(in.Mode)
	if err != nil {
		return v1.Written{}, err
	}
	return valueAt(c, f, in.ID, in.Path, func(g engi.Guest) (v1.Written, error) {
		d, cancel := c.guest()
		defer cancel()
		x, err := d.Upload(in.Path, func(body io.Reader) error {
			return g.Write(d.Ctx, in.Path, body, engi.WriteOptions{Mode: mode, User: in.User})
		})
		return x, orEnded(d.Ctx, err)
	})
}

func (f *files) mkdir(c *call, in *aSandbox, q v1.PathRequest) (v1.FileInfo, error) {
	if err := guesthttp.CheckPath("path", q.Path); err != nil {
		return v1.FileInfo{}, err
	}
	return valueAt(c, f, in.ID, q.Path, func(g engi.Guest) (v1.FileInfo, error) {
		if err := g.MakeDir(c, q.Path); err != nil {
			return v1.FileInfo{}, err
		}
		return to(guesthttp.InfoOf)(g.Stat(c, q.Path))
	})
}

func (f *files) move(c *call, in *aSandbox, q v1.MoveRequest) (v1.FileInfo, error) {
	for field, p := range map[string]string{"from": q.From, "to": q.To} {
		if err := guesthttp.CheckPath(field, p); err != nil {
			return v1.FileInfo{}, err
		}
	}
	return valueAt(c, f, in.ID, q.To, func(g engi.Guest) (v1.FileInfo, error) {
		if err := g.Move(c, q.From, q.To); err != nil {
			return v1.FileInfo{}, err
		}
		return to(guesthttp.InfoOf)(g.Stat(c, q.To))
	})
}

func (f *files) watch(c *call, in *watchDir, _ none) error {
	return f.at(c, in.ID, in.Path, func(g engi.Guest) error {
		leave, err := c.s.watches.Join(string(in.ID))
		if err != nil {
			return err
		}
		defer leave()
		d, cancel := c.guest()
		defer cancel()
		err = d.Watch(c.form, g, in.Path, in.Recursive)
		if c.gone() {
			return nil
		}
		return orEnded(d.Ctx, err)
	})
}

func (f *files) pack(c *call, in *getArchive, _ none) error {
	return f.at(c, in.ID, in.Path, func(g engi.Guest) error {
		d, cancel := c.guest()
		defer cancel()
		tar, err := g.Pack(d.Ctx, in.Path)
		if err != nil {
			return err
		}
		defer tar.Close()
		return d.Pack(in.Path, in.Format, tar)
	})
}

func (f *files) unpack(c *call, in *aFile, _ none) error {
	return f.at(c, in.ID, in.Path, func(g engi.Guest) error {
		d, cancel := c.guest()
		defer cancel()
		return orEnded(d.Ctx, d.Unpack(func(body io.Reader) error { return g.Unpack(d.Ctx, in.Path, body) }))
	})
}
