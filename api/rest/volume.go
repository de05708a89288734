package rest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/guesthttp"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

const volumes = "/v1/volumes"

type aVolume struct {
	Name string `path:"name" maxLength:"128" doc:"ID or name of the volume"`
}

type aVolumeFile struct {
	Name string `path:"name" maxLength:"128" doc:"ID or name of the volume"`
	Path string `query:"path" required:"true" doc:"absolute path in the volume"`
}

type getVolumeFile struct {
	Name  string `path:"name" maxLength:"128" doc:"ID or name of the volume"`
	Path  string `query:"path" required:"true" doc:"absolute path in the volume"`
	Range string `header:"Range" doc:"one range of bytes" example:"bytes=0-1023"`
	TE    string `header:"TE" doc:"with trailers, the answer ends with a hash of the file and has no Content-Length"`
	Want  string `header:"Engi-Want-Hash" enum:"sha256,crc32c" default:"sha256" doc:"which hash the answer ends with, in the trailer Engi-Sha256 or Engi-Crc32c"`
}

type putVolumeFile struct {
	Name string `path:"name" maxLength:"128" doc:"ID or name of the volume"`
	Path string `query:"path" required:"true" doc:"absolute path in the volume; parents are made"`
	Mode string `query:"mode" doc:"permission bits in octal; absent means 0644" example:"0755"`
	Hash string `header:"Engi-Sha256" doc:"SHA-256 of the content, in hex; what does not match changes nothing"`
}

type listVolumeDir struct {
	Name  string `path:"name" maxLength:"128" doc:"ID or name of the volume"`
	Path  string `query:"path" required:"true" doc:"absolute path of a directory in the volume"`
	Depth int    `query:"depth" minimum:"1" maximum:"64" default:"1" doc:"how many levels deep"`
}

func (s *server) serveVolumes() {
	handle(s, s.opCreateVolume(), s.createVolume)
	handle(s, s.opListVolumes(), s.listVolumes)
	handle(s, s.opGetVolume(), s.getVolume)
	handle(s, s.opRemoveVolume(), s.removeVolume)
	const in = volumes + "/{name}"
	handle(s, s.opDownload(in), s.getVolumeFile)
	handle(s, s.opUpload(in), s.putVolumeFile)
	handle(s, s.opRemove(in), s.removeVolumeFile)
	handle(s, s.opStat(in), s.statVolumeFile)
	handle(s, s.opList(in), s.listVolumeDir)
	handle(s, s.opMkdir(in), s.makeVolumeDir)
}

func (s *server) createVolume(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	q, err := decode[v1.VolumeRequest](s, w, r)
	if err != nil {
		return err
	}
	if err := needed(s.volumes != nil, "volumes"); err != nil {
		return err
	}
	x, err := s.volumes.Create(r.Context(), engi.VolumeSpec{
		Owner: callOf(r.Context()).key.Owner, Name: q.Name, Capacity: int64(q.Capacity), TTL: q.TTL.Std(),
	})
	if err != nil {
		return err
	}
	w.Header().Set("Location", volumes+"/"+string(x.ID))
	return s.reply(w, http.StatusCreated, volumeOf(x))
}

func (s *server) listVolumes(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	if err := needed(s.volumes != nil, "volumes"); err != nil {
		return err
	}
	xs, err := s.volumes.List(r.Context(), callOf(r.Context()).viewer())
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, volumeOf))
}

func (s *server) getVolume(w http.ResponseWriter, r *http.Request, in *aVolume) error {
	if err := needed(s.volumes != nil, "volumes"); err != nil {
		return err
	}
	x, err := s.volumes.Get(r.Context(), callOf(r.Context()).viewer(), in.Name)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, volumeOf(x))
}

func (s *server) removeVolume(w http.ResponseWriter, r *http.Request, in *aVolume) error {
	if err := needed(s.volumes != nil, "volumes"); err != nil {
		return err
	}
	if err := s.volumes.Remove(r.Context(), callOf(r.Context()).viewer(), in.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// volumeFiles opens a volume's content. The caller closes it.
func (s *server) volumeFiles(ctx context.Context, name, path string) (engi.VolumeFiles, error) {
	if err := needed(s.volumes != nil, "volumes"); err != nil {
		return nil, err
	}
	if err := guesthttp.CheckPath("query.path", path); err != nil {
		return nil, err
	}
	return s.volumes.Files(ctx, callOf(ctx).viewer(), name)
}

func (s *server) getVolumeFile(w http.ResponseWriter, r *http.Request, in *getVolumeFile) error {
	files, err := s.volumeFiles(r.Context(), in.Name, in.Path)
	if err != nil {
		return err
	}
	defer files.Close()
	d, cancel := s.desk(w, r)
	defer cancel()
	f, err := files.Open(d.Ctx, in.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	return d.Download(in.Path, f, sizeOfFile(f))
}

func (s *server) putVolumeFile(w http.ResponseWriter, r *http.Request, in *putVolumeFile) error {
	mode, err := modeOf(in.Mode)
	if err != nil {
		return err
	}
	files, err := s.volumeFiles(r.Context(), in.Name, in.Path)
	if err != nil {
		return err
	}
	defer files.Close()
	var attr engi.FileAttr
	if in.Mode != "" {
		attr.Mode = &mode
	}
	d, cancel := s.desk(w, r)
	defer cancel()
	x, err := d.Upload(in.Path, func(body io.Reader) error {
		_, err := files.Write(d.Ctx, in.Path, body, attr)
		return err
	})
	if err != nil {
		return whole(d.Ctx, err)
	}
	return s.reply(w, http.StatusOK, x)
}

func (s *server) removeVolumeFile(w http.ResponseWriter, r *http.Request, in *aVolumeFile) error {
	files, err := s.volumeFiles(r.Context(), in.Name, in.Path)
	if err != nil {
		return err
	}
	defer files.Close()
	if err := files.Remove(r.Context(), in.Path); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) statVolumeFile(w http.ResponseWriter, r *http.Request, in *aVolumeFile) error {
	files, err := s.volumeFiles(r.Context(), in.Name, in.Path)
	if err != nil {
		return err
	}
	defer files.Close()
	x, err := files.Stat(r.Context(), in.Path)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, guesthttp.InfoOf(x))
}

func (s *server) listVolumeDir(w http.ResponseWriter, r *http.Request, in *listVolumeDir) error {
	files, err := s.volumeFiles(r.Context(), in.Name, in.Path)
	if err != nil {
		return err
	}
	defer files.Close()
	xs, err := files.List(r.Context(), in.Path, in.Depth)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, guesthttp.InfoOf))
}

func (s *server) makeVolumeDir(w http.ResponseWriter, r *http.Request, in *aVolume) error {
	q, err := decode[v1.PathRequest](s, w, r)
	if err != nil {
		return err
	}
	files, err := s.volumeFiles(r.Context(), in.Name, q.Path)
	if err != nil {
		return err
	}
	defer files.Close()
	x, err := files.MakeDir(r.Context(), q.Path, engi.FileAttr{})
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusCreated, guesthttp.InfoOf(x))
}

func (s *server) opCreateVolume() huma.Operation {
	op := s.operation(http.MethodPost, volumes, "create-volume", "volumes", "Make a volume", "An empty one; a name that exists is a conflict.", http.StatusCreated)
	accepts[v1.VolumeRequest](s, &op, map[string]*huma.Example{
		"a gigabyte": {Summary: "of a gigabyte", Value: json.RawMessage(`{"name": "models", "capacity": "1GiB"}`)},
	})
	answers[v1.Volume](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	header(&op, http.StatusCreated, "Location", "path of the volume")
	return op
}

func (s *server) opListVolumes() huma.Operation {
	op := s.operation(http.MethodGet, volumes, "list-volumes", "volumes", "List volumes", "By name.", http.StatusOK)
	answers[v1.List[v1.Volume]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetVolume() huma.Operation {
	op := s.operation(http.MethodGet, volumes+"/{name}", "get-volume", "volumes", "Get a volume", "", http.StatusOK)
	answers[v1.Volume](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opRemoveVolume() huma.Operation {
	return s.operation(http.MethodDelete, volumes+"/{name}", "remove-volume", "volumes", "Delete a volume with all that is in it",
		"A conflict while a sandbox has it.", http.StatusNoContent)
}
