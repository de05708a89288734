package rest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/gate/key"
)

type nothing struct{}

type aTemplate struct {
	Name string `path:"name" maxLength:"200" doc:"of the template, or its digest"`
}

func (s *server) serveObjects() {
	handle(s, s.opListTemplates(), s.listTemplates)
	handle(s, s.opGetTemplate(), s.getTemplate)
	handle(s, s.opBuildTemplate(), s.buildTemplate)
	handle(s, s.opRemoveTemplate(), s.removeTemplate)
	handle(s, s.opPruneTemplates(), s.pruneTemplates)
	handle(s, s.opListPools(), s.listPools)
	handle(s, s.opGetNode(), s.getNode)
}

func (s *server) listTemplates(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	xs, err := s.templates.List(r.Context())
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, templateOf))
}

func (s *server) getTemplate(w http.ResponseWriter, r *http.Request, in *aTemplate) error {
	if err := checkTemplateName("path.name", in.Name); err != nil {
		return err
	}
	x, err := s.templates.Get(r.Context(), in.Name)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, templateOf(x))
}

// checkTemplateName keeps out what could never be a name; what can is the
// templates' own business.
func checkTemplateName(field, name string) error {
	if name == "" || len(name) > 200 || strings.ContainsAny(name, "/\\\x00") || strings.HasPrefix(name, ".") {
		return httpio.Invalid([]v1.Fault{{Field: field, Detail: "this cannot be the name of a template"}})
	}
	return nil
}

func (s *server) buildTemplate(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	form, err := httpio.Negotiate(r, httpio.JSON, httpio.SSE, httpio.NDJSON)
	if err != nil {
		return err
	}
	q, err := decode[v1.TemplateRequest](s, w, r)
	if err != nil {
		return err
	}
	if err := checkTemplateName("name", q.Name); err != nil {
		return err
	}
	var definition []byte // nil asks for a built-in one
	if q.Definition != "" {
		definition = []byte(q.Definition)
	}
	ctx, cancel := s.waiting(r)
	defer cancel()
	if form != httpio.JSON {
		return s.streamBuild(ctx, cancel, w, r, form, q.Name, definition)
	}
	t, err := s.templates.Build(ctx, q.Name, definition, func(engi.BuildEvent) {})
	if err != nil {
		return whole(ctx, err)
	}
	return s.reply(w, http.StatusOK, templateOf(t))
}

// streamBuild builds while telling how far it is. Whoever leaves cancels the
// build; finished steps stay cached.
func (s *server) streamBuild(ctx context.Context, cancel context.CancelFunc, w http.ResponseWriter, r *http.Request, f httpio.Format, name string, definition []byte) error {
	events := make(chan engi.BuildEvent)
	type outcome struct {
		template engi.Template
		err      error
	}
	done := make(chan outcome, 1)
	go func() {
		t, err := s.templates.Build(ctx, name, definition, func(e engi.BuildEvent) {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		})
		done <- outcome{t, err}
	}()
	gone := false
	defer func() {
		if gone {
			cancel()
			<-done
		}
	}()

	out := httpio.NewEventWriter(w, f)
	send := func(e v1.BuildEvent) bool {
		if !callOf(r.Context()).wrote && out.Begin() != nil || out.Send(e.Type, "", e) != nil {
			gone = true
			s.gone(r)
		}
		return !gone
	}
	beat := time.NewTicker(s.beat)
	defer beat.Stop()
	for {
		select {
		case e := <-events:
			if !send(buildEventOf(e)) {
				return nil
			}
		case <-beat.C:
			if !callOf(r.Context()).wrote && out.Begin() != nil || out.Beat(v1.BuildEvent{Type: v1.EventHeartbeat}, s.beat) != nil {
				gone = true
				return nil
			}
		case o := <-done:
			err := whole(ctx, o.err)
			if err != nil && !callOf(r.Context()).wrote {
				return err // nothing was said yet, so this can still be said properly
			}
			last := v1.BuildEvent{Type: v1.EventResult}
			if err != nil {
				s.logInternal(r, err)
				p := httpio.Describe(err, callOf(r.Context()).id)
				last = v1.BuildEvent{Type: v1.EventError, Error: &p}
			} else {
				t := templateOf(o.template)
				last.Template = &t
			}
			send(last)
			gone = false // there is nothing left to wait for
			return nil
		}
	}
}

func (s *server) removeTemplate(w http.ResponseWriter, r *http.Request, in *aTemplate) error {
	if err := checkTemplateName("path.name", in.Name); err != nil {
		return err
	}
	if err := s.templates.Remove(r.Context(), in.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) pruneTemplates(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	freed, err := s.templates.Prune(r.Context())
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, v1.Pruned{Freed: v1.Bytes(max(0, freed))})
}

func (s *server) listPools(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	return s.reply(w, http.StatusOK, listOf(s.pools.Pools(r.Context()), poolOf))
}

func (s *server) getNode(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	return s.reply(w, http.StatusOK, v1.Node{
		Version:     s.node.Version,
		API:         "v1",
		Tier:        string(s.node.Tier),
		NotEnforced: append([]string{}, s.node.NotEnforced...),
		Languages:   languages(),
		StartedAt:   s.node.Started.UTC(),
	})
}

type aKey struct {
	ID string `path:"id" maxLength:"64" doc:"of the key"`
}

type postKey struct {
	Idempotency string `header:"Idempotency-Key" maxLength:"255" doc:"a repeated key makes no second key; since the secret cannot be shown again, the answer is a conflict that names the first"`
}

func (s *server) serveKeys() {
	handle(s, s.opListKeys(), s.listKeys)
	handle(s, s.opCreateKey(), s.createKey)
	handle(s, s.opRevokeKey(), s.revokeKey)
}

func (s *server) listKeys(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	xs, err := s.keys.List(r.Context(), callOf(r.Context()).viewer())
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, keyOf))
}

// ownerByDefault is whom keys act for when nobody says otherwise.
const ownerByDefault = "default"

func (s *server) createKey(w http.ResponseWriter, r *http.Request, in *postKey) error {
	q, err := decode[v1.KeyRequest](s, w, r)
	if err != nil {
		return err
	}
	k := engi.Key{Name: q.Name, Owner: engi.Owner(q.Owner), Admin: q.Admin}
	for i, name := range q.Scopes {
		if !slices.Contains(engi.Scopes(), engi.Scope(name)) {
			return httpio.Invalid([]v1.Fault{{Field: fmt.Sprintf("scopes[%d]", i), Detail: fmt.Sprintf("%.40q is not one of %s", name, key.ScopeNames())}})
		}
		k.Scopes = append(k.Scopes, engi.Scope(name))
	}
	if k.Owner == "" && !k.Admin {
		k.Owner = ownerByDefault
	}
	if q.ExpiresIn > 0 {
		k.Expires = time.Now().Add(q.ExpiresIn.Std())
		if k.Expires.Year() > 9999 {
			return httpio.Invalid([]v1.Fault{{Field: "expires_in", Detail: "that is after the year 9999; leave it out for a key that never expires"}})
		}
	}
	if in.Idempotency != "" {
		if text := checkIdempotency(in.Idempotency); text != "" {
			return httpio.Invalid([]v1.Fault{{Field: "header.Idempotency-Key", Detail: text}})
		}
		k.ID = key.IDFor(callOf(r.Context()).key.ID, in.Idempotency)
	}
	made, secret, err := s.keys.Create(r.Context(), k)
	if engi.KindOf(err) == engi.Conflict && k.ID != "" {
		return engi.Errorf(engi.Conflict, "this Idempotency-Key made key %s already, whose secret was shown then", k.ID).
			WithRemedy("if that secret is lost, revoke the key and make another with a new Idempotency-Key")
	}
	if err != nil {
		return err
	}
	answer := keyOf(made)
	answer.Secret = secret
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Location", "/v1/keys/"+made.ID)
	return s.reply(w, http.StatusCreated, answer)
}

func (s *server) revokeKey(w http.ResponseWriter, r *http.Request, in *aKey) error {
	if err := s.keys.Revoke(r.Context(), callOf(r.Context()).viewer(), in.ID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) serveHealth() {
	handle(s, s.opHealth(), s.health)
	handle(s, s.opReadiness(), s.readiness)
}

func (s *server) health(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // the caller may have left
	return nil
}

func (s *server) readiness(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	err := s.pools.Warm(r.Context())
	if s.leaving() {
		err = errLeaving
	}
	if err != nil {
		w.Header().Set("Retry-After", "1")
		return s.reply(w, http.StatusServiceUnavailable, v1.Readiness{Reason: httpio.Describe(err, "").Detail})
	}
	ready := v1.Readiness{Ready: true}
	if s.sessions != nil {
		// Without their packages everything else works.
		if d, err := s.sessions.Dependencies(r.Context()); err == nil && d.State != engi.DependenciesReady {
			ready.Reason = "the packages of sessions are " + map[engi.DependencyState]string{
				engi.DependenciesBuilding: "being installed", engi.DependenciesFailed: "not installed: see GET /v1/dependencies",
			}[d.State]
		}
	}
	return s.reply(w, http.StatusOK, ready)
}
