package rest

import (
	"io"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/guesthttp"
)

const volumePath = "/v1/volumes"

type volumes struct{ engi.Volumes }

type aVolume struct {
	Name string `path:"name" maxLength:"128" doc:"ID or name of the volume"`
}

type aVolumeFile struct {
	aVolume
	Path string `query:"path" required:"true" doc:"Absolute path in the volume"`
}

type getVolumeFile struct {
	aVolumeFile
	download
}

type putVolumeFile struct {
	aVolume
	Path string `query:"path" required:"true" doc:"Absolute path in the volume; missing parent directories are created"`
	upload
}

type listVolumeDir struct {
	aVolume
	Path  string `query:"path" required:"true" doc:"Absolute path of a directory in the volume"`
	Depth int    `query:"depth" minimum:"1" maximum:"64" default:"1" doc:"Number of directory levels to list"`
}

// Volumes returns the routes of volumes, which outlive sandboxes; service may be nil.
func Volumes(service engi.Volumes) Resource {
	v := &volumes{service}
	const one = volumePath + "/{name}"
	look, change := reads(engi.ScopeVolumes), writes(engi.ScopeVolumes)
	return Resource{tag: "volumes", about: "directories that outlive sandboxes", missing: missing(service != nil, "volumes"), routes: []Route{
		create(Route{
			Pattern: "POST " + volumePath, ID: "create-volume", Summary: "Create a volume", Access: change,
			Text:    "Creates an empty volume. A name that exists is a conflict.",
			Creates: "a repeated key returns the first volume instead of creating another", Location: "path of the volume",
			Bodies: []example{{"a gigabyte", "of a gigabyte", `{"name": "models", "capacity": "1GiB"}`}},
		}, engi.NewVolumeID, func(c *call, _ *none, id engi.VolumeID, q v1.VolumeRequest) (engi.Volume, error) {
			return v.Create(c, engi.VolumeSpec{ID: id, Owner: c.owner(), Name: q.Name, Capacity: int64(q.Capacity), TTL: q.TTL.Std()})
		}, func(c *call, id engi.VolumeID) (engi.Volume, error) { return v.Get(c, c.viewer(), string(id)) }, volumeOf),
		paged(Route{Pattern: "GET " + volumePath, ID: "list-volumes", Summary: "List volumes", Text: "Ordered by name.", Access: look}, paging(service, engi.Volumes.List), volumeOf, func(x v1.Volume) string { return x.ID }),
		fetch(Route{Pattern: "GET " + one, ID: "get-volume", Summary: "Get a volume", Access: look},
			func(c *call, in *aVolume) (v1.Volume, error) { return to(volumeOf)(v.Get(c, c.viewer(), in.Name)) }),
		act(Route{
			Pattern: "DELETE " + one, ID: "remove-volume", Summary: "Delete a volume and its files", Access: change,
			Text: "A volume that a sandbox has mounted is a conflict.",
		}, func(c *call, in *aVolume, _ none) error { return v.Remove(c, c.viewer(), in.Name) }),
		raw(fileRoute(downloadFile, one, "get-volume-file", look), func(c *call, in *getVolumeFile, _ none) error {
			return v.files(c, in.Name, in.Path, func(f engi.VolumeFiles) error { return downloadFrom(c, in.Path, f.Open) })
		}),
		send(fileRoute(uploadFile, one, "put-volume-file", change), v.put),
		act(fileRoute(removeFile, one, "remove-volume-file", change), func(c *call, in *aVolumeFile, _ none) error {
			return v.files(c, in.Name, in.Path, func(f engi.VolumeFiles) error { return f.Remove(c, in.Path) })
		}),
		fetch(fileRoute(statFile, one, "stat-volume-file", look), func(c *call, in *aVolumeFile) (v1.FileInfo, error) {
			return valueOf(c, v, in.Name, in.Path, func(f engi.VolumeFiles) (v1.FileInfo, error) { return to(guesthttp.InfoOf)(f.Stat(c, in.Path)) })
		}),
		list(fileRoute(listFiles, one, "list-volume-files", look), func(c *call, in *listVolumeDir) ([]engi.FileInfo, error) {
			return valueOf(c, v, in.Name, in.Path, func(f engi.VolumeFiles) ([]engi.FileInfo, error) { return f.List(c, in.Path, in.Depth) })
		}, guesthttp.InfoOf),
		send(fileRoute(makeDir, one, "make-volume-directory", change), func(c *call, in *aVolume, q v1.PathRequest) (v1.FileInfo, error) {
			return valueOf(c, v, in.Name, q.Path, func(f engi.VolumeFiles) (v1.FileInfo, error) {
				return to(guesthttp.InfoOf)(f.MakeDir(c, q.Path, engi.FileAttr{}))
			})
		}),
	}}
}

// files calls do with the files of a volume, after a check of the path.
func (v *volumes) files(c *call, name, path string, do func(engi.VolumeFiles) error) error {
	if err := guesthttp.CheckPath("query.path", path); err != nil {
		return err
	}
	f, err := v.Files(c, c.viewer(), name)
	if err != nil {
		return err
	}
	defer f.Close()
	return do(f)
}

// valueOf is files for work that returns a value.
func valueOf[T any](c *call, v *volumes, name, path string, do func(engi.VolumeFiles) (T, error)) (x T, err error) {
	err = v.files(c, name, path, func(f engi.VolumeFiles) (err error) {
		x, err = do(f)
		return err
	})
	return x, err
}

func (v *volumes) put(c *call, in *putVolumeFile, _ none) (v1.Written, error) {
	mode, err := modeOf(in.Mode)
	if err != nil {
		return v1.Written{}, err
	}
	var attr engi.FileAttr
	if in.Mode != "" {
		attr.Mode = &mode
	}
	return valueOf(c, v, in.Name, in.Path, func(f engi.VolumeFiles) (v1.Written, error) {
		d, cancel := c.guest()
		defer cancel()
		x, err := d.Upload(in.Path, func(body io.Reader) error {
			_, err := f.Write(d.Ctx, in.Path, body, attr)
			return err
		})
		return x, orEnded(d.Ctx, err)
	})
}

func volumeOf(x engi.Volume) v1.Volume {
	return v1.Volume{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, Capacity: v1.Bytes(max(0, x.Capacity)), Used: v1.Bytes(max(0, x.Used)),
		SandboxID: string(x.Holder), CreatedAt: x.Created.UTC(), AccessedAt: moment(x.Accessed), ExpiresAt: moment(x.Expires),
	}
}
