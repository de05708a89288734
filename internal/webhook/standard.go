package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// secretPrefix is the prefix of the secrets of Standard Webhooks.
const secretPrefix = "whsec_"

// signingKey returns the key that a secret of Standard Webhooks encodes, or
// reports Invalid.
func signingKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return nil, engi.Errorf(engi.Invalid, "secret: it is not %s and 24 to 64 bytes in base64", secretPrefix).WithRemedy("leave it out to get a fresh one")
	}
	return key, nil
}

// standard is the format of Standard Webhooks.
type standard struct{}

// Wants implements [engi.WebhookFormat].
func (standard) Wants(w engi.Webhook, e engi.Event) bool {
	return engi.EventFilter{Types: w.Types}.Matches(e)
}

// A payload is the form in which an event is sent.
type payload struct {
	Type      string          `json:"type"`
	Timestamp time.Time       `json:"timestamp"`
	ID        engi.EventID    `json:"id"`
	Seq       int64           `json:"seq"`
	Owner     engi.Owner      `json:"owner,omitempty"`
	Subject   string          `json:"subject"`
	Actor     string          `json:"actor,omitempty"`
	ReplayOf  engi.EventID    `json:"replay_of,omitempty"`
	Data      json.RawMessage `json:"data"`
}

// Request implements [engi.WebhookFormat]. The message has the event's ID, so
// that a receiver recognizes repeated messages.
func (standard) Request(_ context.Context, _ engi.Webhook, secret string, _ engi.FunctionRunID, e engi.Event, at time.Time) ([]byte, map[string]string, error) {
	key, err := signingKey(secret)
	if err != nil {
		return nil, nil, err
	}
	body, err := json.Marshal(payload{Type: e.Type, Timestamp: e.Time.UTC(), ID: e.ID, Seq: e.Seq, Owner: e.Owner, Subject: e.Subject, Actor: e.Actor, ReplayOf: e.Replay, Data: e.Data})
	if err != nil {
		return nil, nil, engi.Errorf(engi.Internal, "encode event %s: %v", e.ID, err)
	}
	stamp := strconv.FormatInt(at.Unix(), 10)
	return body, map[string]string{
		"webhook-id": string(e.ID), "webhook-timestamp": stamp, "webhook-signature": sign(key, string(e.ID), stamp, body),
	}, nil
}

func sign(key []byte, id, stamp string, body []byte) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + stamp + "."))
	h.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// fixedID returns the ID of a webhook of the configuration. The same name always has the
// same ID.
func fixedID(name string) engi.WebhookID {
	sum := sha256.Sum256([]byte("webhook of the configuration: " + name))
	return engi.WebhookID("whk_" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:17])[:26]))
}
