package e2b

import (
	"net/http"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

type snapshot struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func snapshotOf(p engi.Snapshot) snapshot {
	v := snapshot{SnapshotID: string(p.ID), Names: []string{}}
	if p.Name != "" {
		v.Names = append(v.Names, p.Name)
	}
	return v
}

// buildSnapshots is the name prefix of snapshots that belong to templates.
const buildSnapshots = "e2b-template-"

func (s *Server) serveSnapshots() {
	s.one("POST /sandboxes/{id}/snapshots", func(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
		var q struct {
			Name string `json:"name"`
		}
		if err := body(w, r, &q); err != nil {
			return err
		}
		if s.Lifecycle == nil {
			return errNone("snapshots")
		}
		if strings.HasPrefix(q.Name, buildSnapshots) {
			return engi.Errorf(engi.Invalid, "names of snapshots must not begin with %s", buildSnapshots)
		}
		return reply(w, http.StatusCreated, snapshotOf)(once(s, r, who, q, idempotency.Creation[engi.Snapshot]{
			IDs: []string{string(engi.NewSnapshotID())},
			Work: func(ids []string) (engi.Snapshot, error) {
				return s.Lifecycle.Snapshot(r.Context(), who.viewer, sandbox.ID, engi.SnapshotSpec{ID: idempotency.FirstID[engi.SnapshotID](ids), Name: strings.TrimSuffix(q.Name, ":"+defaultTag)})
			},
			Find: func(ids []string, _ bool) (engi.Snapshot, error) {
				if s.Snapshots == nil {
					return engi.Snapshot{}, errNone("snapshots")
				}
				return s.Snapshots.Get(r.Context(), who.viewer, ids[0])
			},
		}))
	})
	s.handle("GET /snapshots", func(w http.ResponseWriter, r *http.Request, who caller) error {
		if s.Snapshots == nil {
			return errNone("snapshots")
		}
		q := r.URL.Query()
		var of engi.SandboxID
		if label := q.Get("sandboxID"); label != "" {
			var err error
			if of, err = engi.SandboxOfLabel(label); err != nil {
				return respond(w, http.StatusOK, []snapshot{}) // an invalid ID has no snapshots
			}
		}
		all, err := s.Snapshots.List(r.Context(), who.viewer, of, engi.Paging{})
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(q.Get("name"), ":"+defaultTag)
		list := []snapshot{}
		for _, p := range all {
			if strings.HasPrefix(p.Name, buildSnapshots) || name != "" && p.Name != name && string(p.ID) != name {
				continue
			}
			list = append(list, snapshotOf(p))
		}
		if list, err = paginate(w, r, list, func(p snapshot) string { return p.SnapshotID }); err != nil {
			return err
		}
		return respond(w, http.StatusOK, list)
	})
}
