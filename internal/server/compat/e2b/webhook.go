package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// WebhookFormat is the Format of webhooks that send E2B's requests. Their Types
// are also E2B's.
const WebhookFormat = "e2b"

type webhookFormat struct{}

// NewWebhookFormat returns the format named [WebhookFormat].
func NewWebhookFormat() engi.WebhookFormat { return webhookFormat{} }

// Wants implements engi.WebhookFormat.
func (webhookFormat) Wants(w engi.Webhook, e engi.Event) bool {
	v, ok := lifecycleOf(e)
	return ok && (len(w.Types) == 0 || slices.Contains(w.Types, v.Type))
}

// Request implements engi.WebhookFormat. It reports Invalid for an event without
// an equivalent in E2B.
func (webhookFormat) Request(_ context.Context, w engi.Webhook, secret string, delivery engi.FunctionRunID, e engi.Event, _ time.Time) ([]byte, map[string]string, error) {
	v, ok := lifecycleOf(e)
	if !ok {
		return nil, nil, engi.Errorf(engi.Invalid, "event %s of type %.140s is none of a sandbox's life", e.ID, e.Type).
			WithRemedy("GET /events/sandboxes lists the supported types")
	}
	body, err := json.Marshal(v)
	if err != nil {
		return nil, nil, engi.Errorf(engi.Internal, "encode event %s: %v", e.ID, err)
	}
	return body, map[string]string{
		"Content-Type":          "application/json",
		"e2b-webhook-id":        string(w.ID),
		"e2b-delivery-id":       string(delivery),
		"e2b-signature-version": "v1",
		"e2b-signature":         webhookSignature(secret, body),
	}, nil
}

// webhookSignature returns the signature that receivers check. It is not an HMAC, but
// the computation in E2B's documentation.
func webhookSignature(secret string, body []byte) string {
	h := sha256.New()
	h.Write([]byte(secret))
	h.Write(body)
	return base64.RawStdEncoding.EncodeToString(h.Sum(nil))
}

type webhookView struct {
	ID      string    `json:"id"`
	TeamID  string    `json:"teamId"`
	Name    string    `json:"name"`
	Created time.Time `json:"createdAt"`
	Enabled bool      `json:"enabled"`
	URL     string    `json:"url"`
	Events  []string  `json:"events"`
}

func webhookOf(h engi.Webhook) webhookView {
	v := webhookView{ID: string(h.ID), TeamID: team(h.Owner), Name: h.Name, Created: h.Created, Enabled: h.Enabled, URL: h.URL, Events: h.Types}
	if len(v.Events) == 0 {
		v.Events = lifeTypes
	}
	return v
}

// webhookRequest creates or changes a webhook. A nil field is absent.
type webhookRequest struct {
	Name    *string   `json:"name"`
	URL     *string   `json:"url"`
	Enabled *bool     `json:"enabled"`
	Events  *[]string `json:"events"`
	Secret  *string   `json:"signatureSecret"`
}

// check reports Invalid for invalid values of present fields, and removes
// duplicate types.
func (q *webhookRequest) check() error {
	switch {
	case q.URL != nil && *q.URL == "":
		return engi.Errorf(engi.Invalid, "the url is empty")
	case q.Secret != nil && *q.Secret == "":
		return engi.Errorf(engi.Invalid, "the signatureSecret is empty: choose one; engi never shows it again")
	case q.Events == nil:
		return nil
	case len(*q.Events) == 0:
		return engi.Errorf(engi.Invalid, "there are no events: name at least one type, or set enabled to false")
	}
	if err := checkTypes(*q.Events); err != nil {
		return err
	}
	var types []string
	for _, t := range *q.Events {
		if !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	q.Events = &types
	return nil
}

func (s *Server) serveWebhooks() {
	webhooks := func(pattern string, f func(w http.ResponseWriter, r *http.Request, who caller) error) {
		s.handle(pattern, func(w http.ResponseWriter, r *http.Request, who caller) error {
			if s.Webhooks == nil {
				return errNone("webhooks: GET /events/sandboxes tells of the same events")
			}
			return f(w, r, who)
		})
	}
	one := func(pattern string, f func(w http.ResponseWriter, r *http.Request, who caller, h engi.Webhook) error) {
		webhooks(pattern, func(w http.ResponseWriter, r *http.Request, who caller) error {
			missing := engi.Errorf(engi.NotFound, "webhook %.60q not found", r.PathValue("id"))
			id, err := engi.ParseWebhookID(r.PathValue("id"))
			if err != nil {
				return missing
			}
			h, err := s.Webhooks.Get(r.Context(), who.viewer, id)
			if err == nil && h.Format != WebhookFormat || engi.Is(err, engi.NotFound) {
				return missing
			}
			if err != nil {
				return err
			}
			return f(w, r, who, h)
		})
	}
	webhooks("POST /events/webhooks", func(w http.ResponseWriter, r *http.Request, who caller) error {
		var q webhookRequest
		if err := body(w, r, &q); err != nil {
			return err
		}
		for _, field := range []struct {
			name  string
			there bool
		}{{"name", q.Name != nil}, {"url", q.URL != nil}, {"events", q.Events != nil}, {"signatureSecret", q.Secret != nil}} {
			if !field.there {
				return engi.Errorf(engi.Invalid, "%s is missing", field.name)
			}
		}
		if err := q.check(); err != nil {
			return err
		}
		h, err := once(s, r, who, q, idempotency.Creation[engi.Webhook]{
			IDs: []string{string(engi.NewWebhookID())},
			Work: func(ids []string) (engi.Webhook, error) {
				h, _, err := s.Webhooks.Create(r.Context(), engi.WebhookSpec{
					ID: idempotency.FirstID[engi.WebhookID](ids), Owner: who.owner, Name: *q.Name, URL: *q.URL, Types: *q.Events,
					Format: WebhookFormat, Secret: *q.Secret, Disabled: q.Enabled != nil && !*q.Enabled,
				})
				return h, err
			},
			Find: func(ids []string, _ bool) (engi.Webhook, error) {
				return s.Webhooks.Get(r.Context(), who.viewer, engi.WebhookID(ids[0]))
			},
		})
		if err != nil {
			return err
		}
		return respond(w, http.StatusCreated, webhookOf(h))
	})
	webhooks("GET /events/webhooks", func(w http.ResponseWriter, r *http.Request, who caller) error {
		all, err := s.Webhooks.List(r.Context(), who.viewer, engi.Paging{})
		if err != nil {
			return err
		}
		list := []webhookView{}
		for _, h := range all {
			if h.Format == WebhookFormat {
				list = append(list, webhookOf(h))
			}
		}
		return respond(w, http.StatusOK, list)
	})
	one("GET /events/webhooks/{id}", func(w http.ResponseWriter, r *http.Request, who caller, h engi.Webhook) error {
		return respond(w, http.StatusOK, webhookOf(h))
	})
	one("PATCH /events/webhooks/{id}", func(w http.ResponseWriter, r *http.Request, who caller, h engi.Webhook) error {
		var q webhookRequest
		if err := body(w, r, &q); err != nil {
			return err
		}
		if err := q.check(); err != nil {
			return err
		}
		h, _, err := s.Webhooks.Update(r.Context(), who.viewer, h.ID, engi.WebhookUpdate{
			Name: q.Name, URL: q.URL, Types: q.Events, Secret: q.Secret, Enabled: q.Enabled,
		})
		if err != nil {
			return err
		}
		return respond(w, http.StatusOK, webhookOf(h))
	})
	one("DELETE /events/webhooks/{id}", func(w http.ResponseWriter, r *http.Request, who caller, h engi.Webhook) error {
		if err := s.Webhooks.Remove(r.Context(), who.viewer, h.ID); err != nil {
			return err
		}
		return respond(w, http.StatusOK, nil)
	})
}
