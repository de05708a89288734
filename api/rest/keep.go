package rest

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

const (
	snapshots = "/v1/snapshots"
	secrets   = "/v1/secrets"
)

type listSnapshots struct {
	Sandbox string `query:"sandbox" doc:"only copies of this one"`
}

type aSnapshot struct {
	Name string `path:"name" maxLength:"128" doc:"ID or name of the snapshot"`
}

type aSecret struct {
	Name string `path:"name" maxLength:"128" doc:"ID or name of the secret"`
}

func (s *server) serveSnapshots() {
	handle(s, s.opListSnapshots(), s.listSnapshots)
	handle(s, s.opGetSnapshot(), s.getSnapshot)
	handle(s, s.opRemoveSnapshot(), s.removeSnapshot)
}

func (s *server) listSnapshots(w http.ResponseWriter, r *http.Request, in *listSnapshots) error {
	if err := needed(s.snapshots != nil, "snapshots"); err != nil {
		return err
	}
	var of engi.SandboxID
	if in.Sandbox != "" {
		var err error
		if of, err = engi.ParseSandboxID(in.Sandbox); err != nil {
			return err
		}
	}
	xs, err := s.snapshots.List(r.Context(), callOf(r.Context()).viewer(), of)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, snapshotOf))
}

func (s *server) getSnapshot(w http.ResponseWriter, r *http.Request, in *aSnapshot) error {
	if err := needed(s.snapshots != nil, "snapshots"); err != nil {
		return err
	}
	x, err := s.snapshots.Get(r.Context(), callOf(r.Context()).viewer(), in.Name)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, snapshotOf(x))
}

func (s *server) removeSnapshot(w http.ResponseWriter, r *http.Request, in *aSnapshot) error {
	if err := needed(s.snapshots != nil, "snapshots"); err != nil {
		return err
	}
	if err := s.snapshots.Remove(r.Context(), callOf(r.Context()).viewer(), in.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) serveSecrets() {
	handle(s, s.opCreateSecret(), s.createSecret)
	handle(s, s.opListSecrets(), s.listSecrets)
	handle(s, s.opGetSecret(), s.getSecret)
	handle(s, s.opUpdateSecret(), s.updateSecret)
	handle(s, s.opRemoveSecret(), s.removeSecret)
}

// checkValue keeps out what could never be a secret's value.
func checkValue(v string) error {
	switch {
	case v == "":
		return httpio.Invalid([]v1.Fault{{Field: "value", Detail: "it is missing"}})
	case len(v) > 64<<10:
		return httpio.Invalid([]v1.Fault{{Field: "value", Detail: "it is longer than 64 KiB"}})
	}
	return nil
}

func (s *server) createSecret(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	q, err := decode[v1.SecretRequest](s, w, r)
	if err != nil {
		return err
	}
	if err := needed(s.secrets != nil, "secrets"); err != nil {
		return err
	}
	if err := checkValue(q.Value); err != nil {
		return err
	}
	x, err := s.secrets.Create(r.Context(), engi.Secret{Owner: callOf(r.Context()).key.Owner, Name: q.Name, Metadata: q.Metadata}, q.Value)
	if err != nil {
		return err
	}
	w.Header().Set("Location", secrets+"/"+string(x.ID))
	return s.reply(w, http.StatusCreated, secretOfRecord(x))
}

func (s *server) listSecrets(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	if err := needed(s.secrets != nil, "secrets"); err != nil {
		return err
	}
	xs, err := s.secrets.List(r.Context(), callOf(r.Context()).viewer())
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, secretOfRecord))
}

func (s *server) getSecret(w http.ResponseWriter, r *http.Request, in *aSecret) error {
	if err := needed(s.secrets != nil, "secrets"); err != nil {
		return err
	}
	x, err := s.secrets.Get(r.Context(), callOf(r.Context()).viewer(), in.Name)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, secretOfRecord(x))
}

func (s *server) updateSecret(w http.ResponseWriter, r *http.Request, in *aSecret) error {
	q, err := decode[v1.SecretUpdate](s, w, r)
	if err != nil {
		return err
	}
	if err := needed(s.secrets != nil, "secrets"); err != nil {
		return err
	}
	if err := checkValue(q.Value); err != nil {
		return err
	}
	var metadata map[string]string
	if q.Metadata != nil {
		if metadata = *q.Metadata; metadata == nil {
			metadata = map[string]string{}
		}
	}
	x, err := s.secrets.Update(r.Context(), callOf(r.Context()).viewer(), in.Name, q.Value, metadata)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, secretOfRecord(x))
}

func (s *server) removeSecret(w http.ResponseWriter, r *http.Request, in *aSecret) error {
	if err := needed(s.secrets != nil, "secrets"); err != nil {
		return err
	}
	if err := s.secrets.Remove(r.Context(), callOf(r.Context()).viewer(), in.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) serveUsage() { handle(s, s.opUsage(), s.getUsage) }

// getUsage counts what the caller has. Sandboxes count with the disk they may
// use, as quotas do.
func (s *server) getUsage(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	ctx, who := r.Context(), callOf(r.Context()).viewer()
	u := v1.Usage{Owner: string(who)}
	if s.quota != nil {
		u.Quota = quotaOf(s.quota(who))
	}
	live, err := s.sandboxes.List(ctx, who, engi.SandboxFilter{Owned: true, Limit: -1})
	if err != nil {
		return err
	}
	for _, x := range live {
		u.Used.Sandboxes++
		u.Used.Disk += v1.Bytes(x.Size.Disk)
		if x.State != engi.Hibernated {
			u.Used.VCPUs += x.Size.VCPUs
			u.Used.Memory += v1.Bytes(x.Size.Memory)
		}
	}
	if s.snapshots != nil {
		xs, err := s.snapshots.List(ctx, who, "")
		if err != nil {
			return err
		}
		for _, x := range xs {
			u.Used.Snapshots++
			u.Used.Disk += v1.Bytes(x.Bytes)
		}
	}
	if s.volumes != nil {
		xs, err := s.volumes.List(ctx, who)
		if err != nil {
			return err
		}
		for _, x := range xs {
			u.Used.Volumes++
			u.Used.Disk += v1.Bytes(x.Capacity)
		}
	}
	if s.spending != nil {
		now := time.Now().UTC()
		xs, err := s.spending.ModelUsage(ctx, who, time.Date(now.Year(), now.Month()-1, 1, 0, 0, 0, 0, time.UTC))
		if err != nil {
			return err
		}
		for _, x := range xs {
			u.Models = append(u.Models, v1.ModelUsage{Day: x.Day.UTC().Format(time.DateOnly), Owner: string(x.Owner), Model: x.Model, TokenUsage: tokensOf(x.Tokens)})
		}
	}
	return s.reply(w, http.StatusOK, u)
}

func (s *server) opListSnapshots() huma.Operation {
	op := s.operation(http.MethodGet, snapshots, "list-snapshots", "snapshots", "List snapshots", "The newest come first.", http.StatusOK)
	answers[v1.List[v1.Snapshot]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetSnapshot() huma.Operation {
	op := s.operation(http.MethodGet, snapshots+"/{name}", "get-snapshot", "snapshots", "Get a snapshot", "", http.StatusOK)
	answers[v1.Snapshot](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opRemoveSnapshot() huma.Operation {
	return s.operation(http.MethodDelete, snapshots+"/{name}", "remove-snapshot", "snapshots", "Let a snapshot go",
		"Its files go when nothing starts from it any more.", http.StatusNoContent)
}

func (s *server) opCreateSecret() huma.Operation {
	op := s.operation(http.MethodPost, secrets, "create-secret", "secrets", "Store a secret", "Encrypted; its value is never shown again. A name that exists is a conflict.", http.StatusCreated)
	accepts[v1.SecretRequest](s, &op, map[string]*huma.Example{
		"a token": {Summary: "a token", Value: json.RawMessage(`{"name": "registry", "value": "t0ken", "metadata": {"for": "ci"}}`)},
	})
	answers[v1.Secret](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	header(&op, http.StatusCreated, "Location", "path of the secret")
	return op
}

func (s *server) opListSecrets() huma.Operation {
	op := s.operation(http.MethodGet, secrets, "list-secrets", "secrets", "List secrets", "By name, without their values.", http.StatusOK)
	answers[v1.List[v1.Secret]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetSecret() huma.Operation {
	op := s.operation(http.MethodGet, secrets+"/{name}", "get-secret", "secrets", "Get a secret", "Without its value.", http.StatusOK)
	answers[v1.Secret](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opUpdateSecret() huma.Operation {
	op := s.operation(http.MethodPut, secrets+"/{name}", "update-secret", "secrets", "Replace a secret's value", "", http.StatusOK)
	accepts[v1.SecretUpdate](s, &op, nil)
	answers[v1.Secret](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opRemoveSecret() huma.Operation {
	return s.operation(http.MethodDelete, secrets+"/{name}", "remove-secret", "secrets", "Delete a secret", "", http.StatusNoContent)
}

func (s *server) opUsage() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/usage", "get-usage", "node", "What you have, and what you may have", "An admin sees everybody's.", http.StatusOK)
	answers[v1.Usage](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}
