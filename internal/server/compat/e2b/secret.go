package e2b

import (
	"net/http"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

type secretView struct {
	SecretID string            `json:"secretID"`
	Name     string            `json:"name"`
	Version  int               `json:"currentVersion"`
	Metadata map[string]string `json:"metadata"`
	Created  time.Time         `json:"createdAt"`
	Updated  time.Time         `json:"updatedAt"`
}

func secretOf(c engi.Secret) secretView {
	v := secretView{SecretID: string(c.ID), Name: c.Name, Version: c.Version, Metadata: c.Metadata, Created: c.Created, Updated: c.Updated}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	return v
}

type secretRequest struct {
	Name     string            `json:"name"`
	Value    string            `json:"value"`
	Metadata map[string]string `json:"metadata"`
}

// checkMetadata checks metadata against E2B's limits.
func checkMetadata(m map[string]string) error {
	total := 0
	for k, v := range m {
		total += len(k) + len(v)
		if len(k) > 128 || len(v) > 1024 {
			return engi.Errorf(engi.Invalid, "metadata %.40q is too long", k)
		}
	}
	if len(m) > 32 || total > 8192 {
		return engi.Errorf(engi.Invalid, "metadata has over 32 entries or 8192 bytes")
	}
	return nil
}

func (s *Server) serveSecrets() {
	secrets := func(pattern string, f func(w http.ResponseWriter, r *http.Request, who caller, ref string) error) {
		s.handle(pattern, func(w http.ResponseWriter, r *http.Request, who caller) error {
			if s.Secrets == nil {
				return errNone("secrets")
			}
			ref := r.PathValue("id")
			if _, err := engi.ParseSecretID(ref); err != nil {
				ref = strings.ToLower(ref) // references are lower case, like names
			}
			return f(w, r, who, ref)
		})
	}
	secrets("POST /secrets", func(w http.ResponseWriter, r *http.Request, who caller, _ string) error {
		var q secretRequest
		if err := body(w, r, &q); err != nil {
			return err
		}
		if strings.HasPrefix(strings.ToLower(q.Name), "sec_") {
			return engi.Errorf(engi.Invalid, "names that begin with sec_ would look like IDs")
		}
		if err := checkMetadata(q.Metadata); err != nil {
			return err
		}
		return reply(w, http.StatusCreated, secretOf)(once(s, r, who, q, idempotency.Creation[engi.Secret]{
			IDs: []string{string(engi.NewSecretID())},
			Work: func(ids []string) (engi.Secret, error) {
				return s.Secrets.Create(r.Context(), engi.Secret{ID: idempotency.FirstID[engi.SecretID](ids), Owner: who.owner, Name: strings.ToLower(q.Name), Metadata: q.Metadata}, q.Value)
			},
			Find: func(ids []string, _ bool) (engi.Secret, error) { return s.Secrets.Get(r.Context(), who.viewer, ids[0]) },
		}))
	})
	secrets("GET /secrets", func(w http.ResponseWriter, r *http.Request, who caller, _ string) error {
		all, err := s.Secrets.List(r.Context(), who.viewer, engi.Paging{})
		if err != nil {
			return err
		}
		if all, err = paginate(w, r, all, func(c engi.Secret) string { return string(c.ID) }); err != nil {
			return err
		}
		list := make([]secretView, len(all))
		for i, c := range all {
			list[i] = secretOf(c)
		}
		return respond(w, http.StatusOK, list)
	})
	secrets("GET /secrets/{id}", func(w http.ResponseWriter, r *http.Request, who caller, ref string) error {
		return reply(w, http.StatusOK, secretOf)(s.Secrets.Get(r.Context(), who.viewer, ref))
	})
	secrets("POST /secrets/{id}", func(w http.ResponseWriter, r *http.Request, who caller, ref string) error {
		var q secretRequest
		if err := body(w, r, &q); err != nil {
			return err
		}
		if err := checkMetadata(q.Metadata); err != nil {
			return err
		}
		return reply(w, http.StatusOK, secretOf)(s.Secrets.Update(r.Context(), who.viewer, ref, q.Value, q.Metadata, nil))
	})
	secrets("DELETE /secrets/{id}", func(w http.ResponseWriter, r *http.Request, who caller, ref string) error {
		return done(w, s.Secrets.Remove(r.Context(), who.viewer, ref))
	})
}
