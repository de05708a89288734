package e2b

import (
	"io"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/server/httpio"
)

func (s *Server) volume(v engi.Volume, who caller) map[string]any {
	m := map[string]any{"volumeID": v.ID, "name": v.Name, "token": ""}
	if who.writes {
		m["token"] = s.token(toVolume, string(v.ID), who.key)
	}
	if s.Domain != "" {
		m["domain"] = s.Domain
	}
	return m
}

func (s *Server) serveVolumes() {
	volumes := func(pattern string, f func(w http.ResponseWriter, r *http.Request, who caller) error) {
		s.handle(pattern, func(w http.ResponseWriter, r *http.Request, who caller) error {
			if s.Volumes == nil {
				return errNone("volumes")
			}
			return f(w, r, who)
		})
	}
	volumes("POST /volumes", func(w http.ResponseWriter, r *http.Request, who caller) error {
		var q struct {
			Name string `json:"name"`
		}
		if err := body(w, r, &q); err != nil {
			return err
		}
		v, err := once(s, r, who, q, idempotency.Creation[engi.Volume]{
			IDs: []string{string(engi.NewVolumeID())},
			Work: func(ids []string) (engi.Volume, error) {
				return s.Volumes.Create(r.Context(), engi.VolumeSpec{ID: idempotency.FirstID[engi.VolumeID](ids), Owner: who.owner, Name: q.Name})
			},
			Find: func(ids []string, _ bool) (engi.Volume, error) { return s.Volumes.Get(r.Context(), who.viewer, ids[0]) },
		})
		if err != nil {
			return err
		}
		return respond(w, http.StatusCreated, s.volume(v, who))
	})
	volumes("GET /volumes", func(w http.ResponseWriter, r *http.Request, who caller) error {
		all, err := s.Volumes.List(r.Context(), who.viewer, engi.Paging{})
		if err != nil {
			return err
		}
		list := []map[string]any{}
		for _, v := range all {
			list = append(list, map[string]any{"volumeID": v.ID, "name": v.Name})
		}
		return respond(w, http.StatusOK, list)
	})
	volumes("GET /volumes/{id}", func(w http.ResponseWriter, r *http.Request, who caller) error {
		v, err := s.Volumes.Get(r.Context(), who.viewer, r.PathValue("id"))
		if err != nil {
			return err
		}
		return respond(w, http.StatusOK, s.volume(v, who))
	})
	volumes("DELETE /volumes/{id}", func(w http.ResponseWriter, r *http.Request, who caller) error {
		return done(w, s.Volumes.Remove(r.Context(), who.viewer, r.PathValue("id")))
	})

	s.content("GET", "dir", func(w http.ResponseWriter, r *http.Request, f engi.VolumeFiles, at string) error {
		depth, err := number(r, "depth", 1, 1<<20)
		if err != nil {
			return err
		}
		entries, err := f.List(r.Context(), at, max(1, depth))
		if err != nil {
			return err
		}
		list := make([]volumeEntry, len(entries))
		for i, e := range entries {
			list[i] = volumeEntryOf(e)
		}
		return respond(w, http.StatusOK, list)
	})
	s.content("POST", "dir", func(w http.ResponseWriter, r *http.Request, f engi.VolumeFiles, at string) error {
		a, err := attrs(r)
		if err != nil {
			return err
		}
		fi, err := f.MakeDir(r.Context(), at, a)
		if engi.Is(err, engi.Conflict) && r.URL.Query().Get("force") == "true" {
			// With force, the directory may exist.
			if fi, serr := f.Stat(r.Context(), at); serr == nil && fi.Mode.IsDir() {
				return respond(w, http.StatusCreated, volumeEntryOf(fi))
			}
		}
		if err != nil {
			return err
		}
		return respond(w, http.StatusCreated, volumeEntryOf(fi))
	})
	s.content("GET", "path", func(w http.ResponseWriter, r *http.Request, f engi.VolumeFiles, at string) error {
		return reply(w, http.StatusOK, volumeEntryOf)(f.Stat(r.Context(), at))
	})
	s.content("PATCH", "path", func(w http.ResponseWriter, r *http.Request, f engi.VolumeFiles, at string) error {
		var q struct {
			UID  *int    `json:"uid"`
			GID  *int    `json:"gid"`
			Mode *uint32 `json:"mode"`
		}
		if err := body(w, r, &q); err != nil {
			return err
		}
		a := engi.FileAttr{UID: q.UID, GID: q.GID}
		if q.Mode != nil {
			m := fs.FileMode(*q.Mode) & fs.ModePerm
			a.Mode = &m
		}
		return reply(w, http.StatusOK, volumeEntryOf)(f.Change(r.Context(), at, a))
	})
	s.content("DELETE", "path", func(w http.ResponseWriter, r *http.Request, f engi.VolumeFiles, at string) error {
		return done(w, f.Remove(r.Context(), at))
	})
	s.content("GET", "file", func(w http.ResponseWriter, r *http.Request, f engi.VolumeFiles, at string) error {
		fi, err := f.Stat(r.Context(), at)
		if err != nil {
			return err
		}
		in, err := f.Open(r.Context(), at)
		if err != nil {
			return err
		}
		defer in.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		if fi.Mode.IsRegular() {
			w.Header().Set("Content-Length", strconv.FormatInt(fi.Size, 10))
			if n, err := io.Copy(w, io.LimitReader(in, fi.Size)); err != nil || n != fi.Size {
				panic(http.ErrAbortHandler) // the response has started: abort it
			}
			return nil
		}
		if _, err := io.Copy(w, in); err != nil {
			panic(http.ErrAbortHandler)
		}
		return nil
	})
	s.content("PUT", "file", func(w http.ResponseWriter, r *http.Request, f engi.VolumeFiles, at string) error {
		a, err := attrs(r)
		if err != nil {
			return err
		}
		return reply(w, http.StatusCreated, volumeEntryOf)(f.Write(r.Context(), at, r.Body, a))
	})
}

// content serves the files of volumes to clients with a volume's token.
func (s *Server) content(method, what string, f func(w http.ResponseWriter, r *http.Request, f engi.VolumeFiles, at string) error) {
	s.control.HandleFunc(method+" /volumecontent/{id}/"+what, func(w http.ResponseWriter, r *http.Request) {
		err := func() error {
			if s.Volumes == nil {
				return errNone("volumes")
			}
			token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			id, err := engi.ParseVolumeID(r.PathValue("id"))
			if err != nil {
				return engi.Errorf(engi.Anonymous, "this token is not valid for the volume")
			}
			v, err := s.Volumes.Get(r.Context(), engi.Everyone, string(id))
			if err != nil && !missing(err) {
				return err
			}
			if _, err := s.holder(r.Context(), toVolume, string(id), v.Owner, token); err != nil {
				return err
			}
			at := r.URL.Query().Get("path")
			if at == "" || strings.IndexByte(at, 0) >= 0 {
				return engi.Errorf(engi.Invalid, "path %.80q is not a valid path", at)
			}
			files, err := s.Volumes.Files(r.Context(), engi.Everyone, string(id))
			if err != nil {
				return err
			}
			defer files.Close()
			return f(w, r, files, path.Clean("/"+at))
		}()
		if err != nil {
			status := httpio.StatusOf(err)
			if engi.Is(err, engi.Exhausted) {
				status = http.StatusInsufficientStorage
			}
			respond(w, status, map[string]string{"code": engi.KindOf(err).String(), "message": err.Error()}) // encoding cannot fail
		}
	})
}

// number parses an optional number in the query.
func number(r *http.Request, name string, otherwise, most int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		return 0, engi.Errorf(engi.Invalid, "%s %.20q is not between 0 and %d", name, text, most)
	}
	return n, nil
}

func attrs(r *http.Request) (a engi.FileAttr, err error) {
	for _, p := range []struct {
		name string
		set  func(n int)
	}{
		{"uid", func(n int) { a.UID = &n }},
		{"gid", func(n int) { a.GID = &n }},
		{"mode", func(n int) { m := fs.FileMode(n) & fs.ModePerm; a.Mode = &m }},
	} {
		n, err := number(r, p.name, -1, 1<<31-1)
		if err != nil {
			return a, err
		}
		if n >= 0 {
			p.set(n)
		}
	}
	return a, nil
}

type volumeEntry struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`
	Path   string    `json:"path"`
	Size   int64     `json:"size"`
	Mode   uint32    `json:"mode"`
	UID    int       `json:"uid"`
	GID    int       `json:"gid"`
	ATime  time.Time `json:"atime"`
	MTime  time.Time `json:"mtime"`
	CTime  time.Time `json:"ctime"`
	Target string    `json:"target,omitempty"`
}

// volumeEntryOf uses the file's only time in engi for all three times of E2B.
func volumeEntryOf(fi engi.FileInfo) volumeEntry {
	kind := "unknown"
	switch {
	case fi.Mode.IsRegular():
		kind = "file"
	case fi.Mode.IsDir():
		kind = "directory"
	case fi.Mode&fs.ModeSymlink != 0:
		kind = "symlink"
	}
	return volumeEntry{Name: path.Base(fi.Path), Type: kind, Path: fi.Path, Size: fi.Size, Mode: uint32(fi.Mode.Perm()), UID: fi.UID, GID: fi.GID,
		ATime: fi.Modified, MTime: fi.Modified, CTime: fi.Modified, Target: fi.Target}
}
