// Package webhook sends events to URLs. Every delivery is a run of a durable
// function, one function for each webhook, so that deliveries are recorded with
// the event's position in the log, repeated until they succeed and not lost in a
// crash: a [Manager] is the [function.Source] of these functions.
//
// Requests are signed according to Standard Webhooks, unless a webhook has another
// format. The client decides which addresses are allowed, see package fetch; redirects are
// not followed. It does not store events (package store) and does not run
// functions (package function).
package webhook

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
)

// Limits.
const (
	maxPerOwner = 100 // maximum number of webhooks of an owner
	maxURL      = 2048
	maxSecret   = 256
	maxAnswer   = 64 << 10 // maximum bytes of an answer that are read
	maxOpen     = 1000     // maximum number of unfinished deliveries of one webhook
	concurrent  = 8        // maximum number of concurrent deliveries of one webhook
	retries     = 24       // number of retries, over about 8 hours
	maxBackoff  = 30 * time.Minute
	droppedBeat = time.Minute // minimum time between two events about dropped events
)

// Timeout is the time in which a receiver must answer an attempt.
const Timeout = 15 * time.Second

// functionPrefix is the prefix of the names of functions that deliver.
const functionPrefix = "webhook/"

// A Record is a stored webhook.
type Record struct {
	engi.Webhook
	Sealed []byte // encrypted secret
}

// A Store stores webhooks durably, and appends an event for each change.
type Store interface {
	Put(ctx context.Context, r Record) error
	// Update replaces a webhook, or reports NotFound.
	Update(ctx context.Context, r Record) error
	// Remove deletes a webhook, or reports NotFound.
	Remove(ctx context.Context, id engi.WebhookID) error
	// All returns all webhooks, oldest first.
	All(ctx context.Context) ([]Record, error)
}

// Runs reads the runs of functions; [function.Runner] implements it.
type Runs interface {
	Start(ctx context.Context, function string, event engi.EventID) (engi.FunctionRun, error)
	Runs(ctx context.Context, viewer engi.Viewer, f engi.FunctionFilter) ([]engi.FunctionRun, error)
}

// A Fixed is a webhook of the configuration. It cannot be changed or removed,
// and receives events from the start of the process on.
type Fixed struct {
	engi.Webhook // without ID and times
	Secret       string
}

// A Sealer encrypts secrets; package secret implements it.
type Sealer interface {
	Seal(purpose, value string) []byte
	Unseal(purpose string, sealed []byte) (string, error)
}

// Options configures a Manager. Formats, Fixed and Log may be empty.
type Options struct {
	Store   Store
	Events  engi.EventLog
	Client  *http.Client // client for deliveries; requests that it refuses fail
	Seal    Sealer
	Formats map[string]engi.WebhookFormat
	Fixed   []Fixed
	Log     *slog.Logger // nil discards
}

// A Manager manages webhooks and delivers to them. It implements
// [engi.Webhooks] and [function.Source], and is safe for concurrent use.
type Manager struct {
	o       Options
	client  *http.Client
	formats map[string]engi.WebhookFormat
	runs    Runs // set by Bind

	mu      sync.Mutex
	all     map[engi.WebhookID]*hook                // guarded by mu
	byOwner map[engi.Owner]map[engi.WebhookID]*hook // guarded by mu
	changes sync.Mutex                              // held while a change is stored
}

// A hook is a webhook in use.
type hook struct {
	Record
	secret  string
	fixed   bool
	dropped time.Time // time of the last event about dropped events
}

var (
	_ engi.Webhooks   = (*Manager)(nil)
	_ function.Source = (*Manager)(nil)
)

// Open returns a Manager with the stored webhooks. Bind must be called before
// any method of [engi.Webhooks]. It reports Invalid for bad fixed webhooks.
func Open(ctx context.Context, o Options) (*Manager, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	client := *o.Client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	m := &Manager{o: o, client: &client, formats: map[string]engi.WebhookFormat{engi.WebhookStandard: standard{}}, all: map[engi.WebhookID]*hook{}, byOwner: map[engi.Owner]map[engi.WebhookID]*hook{}}
	maps.Copy(m.formats, o.Formats)
	all, err := o.Store.All(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		secret, err := o.Seal.Unseal(purpose(r.ID), r.Sealed)
		if err != nil {
			o.Log.WarnContext(ctx, "a webhook is disabled", "webhook", r.ID, "error", err)
			r.Enabled, r.Reason = false, "its secret cannot be decrypted: set a new one"
		}
		m.set(&hook{Record: r, secret: secret})
	}
	now := time.Now().UTC()
	for _, f := range o.Fixed {
		f.ID, f.Created, f.Updated, f.Enabled, f.Format = fixedID(f.Name), now, now, true, cmp.Or(f.Format, engi.WebhookStandard)
		if err := m.check(f.Webhook, f.Secret); err != nil {
			return nil, engi.Errorf(engi.Invalid, "webhook %q of the configuration: %w", f.Name, err)
		}
		if m.all[f.ID] != nil {
			return nil, engi.Errorf(engi.Invalid, "there are two webhooks %q in the configuration", f.Name)
		}
		m.set(&hook{Record: Record{Webhook: f.Webhook}, secret: f.Secret, fixed: true})
	}
	return m, nil
}

// Bind sets the runs of deliveries.
func (m *Manager) Bind(r Runs) { m.runs = r }

var errNone = engi.Errorf(engi.NotFound, "there is no such webhook").WithRemedy("'engi webhook list' shows yours")

// check reports Invalid for an invalid webhook.
func (m *Manager) check(w engi.Webhook, secret string) error {
	invalid := func(format string, args ...any) *engi.Error { return engi.Errorf(engi.Invalid, format, args...) }
	u, err := url.Parse(w.URL)
	switch {
	case err != nil, u.Scheme != "https" && u.Scheme != "http", u.Host == "", u.User != nil, len(w.URL) > maxURL:
		return invalid("url: it is not an http or https URL of up to %d bytes without a user", maxURL).WithRemedy("use a URL like https://example.com/hooks/engi")
	case len(w.Name) > 128, strings.ContainsFunc(w.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return invalid("name: it has more than 128 bytes, or characters that are not printable")
	case m.formats[w.Format] == nil:
		return invalid("format: %.40q is not a supported format", w.Format).WithRemedy("use %s", strings.Join(slices.Sorted(maps.Keys(m.formats)), " or "))
	case len(secret) > maxSecret:
		return invalid("secret: it has more than %d bytes", maxSecret)
	}
	if err := (engi.EventFilter{Types: w.Types}).Check(); err != nil {
		return err
	}
	if w.Format == engi.WebhookApproval {
		ip := net.ParseIP(u.Hostname())
		switch {
		case len(w.Types) > 0:
			return invalid("types: a webhook that decides has no types").WithRemedy("leave them out; make another webhook for other events")
		case u.Scheme != "https" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()):
			return invalid("url: decisions are not taken from an unencrypted answer").WithRemedy("use https")
		}
	}
	if w.Format == engi.WebhookStandard || w.Format == engi.WebhookApproval {
		_, err = signingKey(secret)
	}
	return err
}

// Create implements [engi.Webhooks].
func (m *Manager) Create(ctx context.Context, spec engi.WebhookSpec) (_ engi.Webhook, secret string, err error) {
	defer engi.Annotate(&err, "create webhook")
	now := time.Now().UTC()
	r := Record{Webhook: engi.Webhook{
		ID: cmp.Or(spec.ID, engi.NewWebhookID()), Owner: spec.Owner, Name: spec.Name, URL: spec.URL, Types: slices.Clone(spec.Types),
		Format: cmp.Or(spec.Format, engi.WebhookStandard), Enabled: !spec.Disabled, Created: now, Updated: now,
	}}
	secret = cmp.Or(spec.Secret, newSecret())
	if err := m.check(r.Webhook, secret); err != nil {
		return engi.Webhook{}, "", err
	}
	m.changes.Lock()
	defer m.changes.Unlock()
	if n := m.made(spec.Owner); n >= maxPerOwner {
		return engi.Webhook{}, "", engi.Errorf(engi.Exhausted, "there are %d webhooks already", n).WithRemedy("remove one; a webhook may have many types of events")
	}
	r.Sealed = m.o.Seal.Seal(purpose(r.ID), secret)
	if err := m.o.Store.Put(ctx, r); err != nil {
		return engi.Webhook{}, "", err
	}
	m.set(&hook{Record: r, secret: secret})
	return r.Webhook, secret, nil
}

// Get implements [engi.Webhooks].
func (m *Manager) Get(_ context.Context, viewer engi.Viewer, id engi.WebhookID) (engi.Webhook, error) {
	h, err := m.find(viewer, id)
	return h.Webhook, err
}

// List implements [engi.Webhooks].
func (m *Manager) List(_ context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Webhook, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	some := m.all
	if viewer != engi.Everyone {
		some = m.byOwner[viewer.Owner()]
	}
	all := make([]engi.Webhook, 0, len(some))
	for _, h := range some {
		all = append(all, h.Webhook)
	}
	slices.SortFunc(all, func(a, b engi.Webhook) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return engi.Cut(p, all, func(x engi.Webhook) string { return string(x.ID) })
}

// Update implements [engi.Webhooks].
func (m *Manager) Update(ctx context.Context, viewer engi.Viewer, id engi.WebhookID, u engi.WebhookUpdate) (_ engi.Webhook, secret string, err error) {
	defer engi.Annotate(&err, "update webhook %s", id)
	m.changes.Lock()
	defer m.changes.Unlock()
	h, err := m.changeable(viewer, id)
	if err != nil {
		return engi.Webhook{}, "", err
	}
	set(&h.Name, u.Name)
	set(&h.URL, u.URL)
	if u.Types != nil {
		h.Types = slices.Clone(*u.Types)
	}
	if u.Enabled != nil {
		h.Enabled, h.Reason = *u.Enabled, ""
	}
	if u.Secret != nil {
		secret = cmp.Or(*u.Secret, newSecret())
		h.secret, h.Sealed = secret, m.o.Seal.Seal(purpose(id), secret)
	}
	h.Updated = time.Now().UTC()
	if err := m.check(h.Webhook, h.secret); err != nil {
		return engi.Webhook{}, "", err
	}
	if err := m.o.Store.Update(ctx, h.Record); err != nil {
		return engi.Webhook{}, "", err
	}
	m.set(&h)
	return h.Webhook, secret, nil
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// Remove implements [engi.Webhooks].
func (m *Manager) Remove(ctx context.Context, viewer engi.Viewer, id engi.WebhookID) (err error) {
	defer engi.Annotate(&err, "remove webhook %s", id)
	m.changes.Lock()
	defer m.changes.Unlock()
	h, err := m.changeable(viewer, id)
	if err != nil {
		return err
	}
	if err := m.o.Store.Remove(ctx, id); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, id)
	delete(m.byOwner[h.Owner], id)
	return nil
}

// Deliveries implements [engi.Webhooks].
func (m *Manager) Deliveries(ctx context.Context, viewer engi.Viewer, id engi.WebhookID, limit int) ([]engi.WebhookDelivery, error) {
	if _, err := m.find(viewer, id); err != nil {
		return nil, err
	}
	runs, err := m.runs.Runs(ctx, viewer, engi.FunctionFilter{Function: functionPrefix + string(id), Limit: limit})
	all := make([]engi.WebhookDelivery, 0, len(runs))
	for _, r := range runs {
		all = append(all, deliveryOf(id, r))
	}
	return all, err
}

// Redeliver implements [engi.Webhooks].
func (m *Manager) Redeliver(ctx context.Context, viewer engi.Viewer, id engi.WebhookID, event engi.EventID) (_ engi.WebhookDelivery, err error) {
	defer engi.Annotate(&err, "resend event %s to webhook %s", event, id)
	h, err := m.find(viewer, id)
	if err != nil {
		return engi.WebhookDelivery{}, err
	}
	if !h.Enabled {
		return engi.WebhookDelivery{}, engi.Errorf(engi.Conflict, "the webhook is disabled").WithRemedy("enable it first")
	}
	r, err := m.runs.Start(ctx, functionPrefix+string(id), event)
	return deliveryOf(id, r), err
}

func deliveryOf(id engi.WebhookID, r engi.FunctionRun) engi.WebhookDelivery {
	d := engi.WebhookDelivery{ID: r.ID, Webhook: id, Event: r.Event, State: r.State, Attempts: r.Attempt, Error: r.Error, Created: r.Created, Ended: r.Ended}
	var out result
	if json.Unmarshal(r.Output, &out) == nil {
		d.Status = out.Status
	}
	return d
}

func (m *Manager) set(h *hook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[h.ID] = h
	if m.byOwner[h.Owner] == nil {
		m.byOwner[h.Owner] = map[engi.WebhookID]*hook{}
	}
	m.byOwner[h.Owner][h.ID] = h
}

// find returns a copy of a webhook.
func (m *Manager) find(viewer engi.Viewer, id engi.WebhookID) (hook, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.all[id]
	if h == nil || !viewer.Sees(h.Owner) {
		return hook{}, errNone
	}
	return *h, nil
}

func (m *Manager) changeable(viewer engi.Viewer, id engi.WebhookID) (hook, error) {
	h, err := m.find(viewer, id)
	if err == nil && h.fixed {
		err = engi.Errorf(engi.Denied, "the webhook is from the configuration").WithRemedy("change [[webhooks]] there, and restart the server")
	}
	return h, err
}

// made returns the number of an owner's webhooks that are not from the configuration.
func (m *Manager) made(owner engi.Owner) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.byOwner[owner] {
		if !h.fixed {
			n++
		}
	}
	return n
}

// purpose returns the purpose that binds a secret to its webhook.
func purpose(id engi.WebhookID) string { return "webhook " + string(id) }

// Reseal encrypts the secrets of all webhooks again and returns their
// number. Secrets that cannot be decrypted stay unchanged.
func Reseal(ctx context.Context, s Store, seal Sealer) (n int, err error) {
	all, err := s.All(ctx)
	if err != nil {
		return 0, err
	}
	for _, r := range all {
		secret, err := seal.Unseal(purpose(r.ID), r.Sealed)
		if err != nil {
			continue // the secret was already lost
		}
		r.Sealed = seal.Seal(purpose(r.ID), secret)
		if err := s.Update(ctx, r); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// Function implements [function.Source].
func (m *Manager) Function(name string) (function.Function, bool) {
	id, ok := strings.CutPrefix(name, functionPrefix)
	if !ok {
		return function.Function{}, false
	}
	h, err := m.find(engi.Everyone, engi.WebhookID(id))
	if err != nil {
		return function.Function{}, false
	}
	return m.function(&h), true
}

func (m *Manager) function(h *hook) function.Function {
	return function.Function{
		Function: engi.Function{Name: functionPrefix + string(h.ID), Retries: retries, Concurrency: concurrent},
		Owner:    h.Owner, Backoff: function.Backoff{First: 5 * time.Second, Max: maxBackoff}, MaxOpen: maxOpen, Run: m.deliver,
	}
}

// Bound implements [function.Source].
func (m *Manager) Bound(e engi.Event) (all []function.Function) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.all) == 0 || aboutWebhooks(e) {
		return nil
	}
	owners := []engi.Owner{""}
	if e.Owner != "" {
		owners = append(owners, e.Owner)
	}
	for _, owner := range owners {
		for _, h := range m.byOwner[owner] {
			if h.Enabled && !e.Time.Before(h.Created) && m.formats[h.Format] != nil && m.formats[h.Format].Wants(h.Webhook, e) {
				all = append(all, m.function(h))
			}
		}
	}
	return all
}

// aboutWebhooks reports whether webhooks caused an event: its delivery
// would cause the next event, without end.
func aboutWebhooks(e engi.Event) bool {
	switch {
	case engi.WebhookID(e.Subject).Check() == nil:
		return true
	case strings.HasPrefix(e.Type, engi.EventFunctionPrefix):
		var data struct{ Function string }
		return json.Unmarshal(e.Data, &data) == nil && strings.HasPrefix(data.Function, functionPrefix)
	}
	return false
}

// Dropped implements [function.Source].
func (m *Manager) Dropped(ctx context.Context, name string, e engi.Event) {
	id := engi.WebhookID(strings.TrimPrefix(name, functionPrefix))
	m.mu.Lock()
	h := m.all[id]
	quiet := h == nil || time.Since(h.dropped) < droppedBeat
	if !quiet {
		h.dropped = time.Now()
	}
	m.mu.Unlock()
	if quiet {
		return
	}
	m.o.Log.WarnContext(ctx, "events are not sent to a webhook, because too many wait to be", "webhook", id, "event", e.ID)
	data, err := json.Marshal(map[string]any{"event_id": e.ID, "waiting": maxOpen})
	if err == nil {
		_, err = m.o.Events.Append(ctx, engi.EventSpec{Owner: h.Owner, Subject: string(id), Type: engi.EventWebhookDropped, Data: data})
	}
	if err != nil {
		m.o.Log.ErrorContext(ctx, "record dropped events", "webhook", id, "error", err)
	}
}

// A result is the output of a delivery.
type result struct {
	Status int     `json:"status"`
	Millis float64 `json:"took_ms"`
}

// deliver is the code of all delivery functions: it sends one event.
func (m *Manager) deliver(ctx context.Context, r *function.Run) (any, error) {
	id := engi.WebhookID(strings.TrimPrefix(r.Function, functionPrefix))
	return function.Step(ctx, r, "deliver", func(ctx context.Context) (result, error) {
		h, err := m.find(engi.Everyone, id)
		if err != nil {
			return result{}, err
		}
		if !h.Enabled {
			return result{}, engi.Errorf(engi.Conflict, "webhook %s is disabled", id)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		done := make(chan struct{})
		defer close(done)
		go func() {
			select {
			case <-r.Cancelled():
				cancel()
			case <-done:
			}
		}()
		out, err := m.send(ctx, h, r.ID, r.Event)
		if errors.Is(err, errGone) {
			m.disable(ctx, id, "its URL has answered 410 Gone")
		}
		return out, err
	})
}

var errGone = engi.Errorf(engi.Conflict, "the URL has answered 410 Gone: the webhook is disabled now")

// send makes one attempt.
func (m *Manager) send(ctx context.Context, h hook, delivery engi.FunctionRunID, e engi.Event) (result, error) {
	body, header, err := m.formats[h.Format].Request(ctx, h.Webhook, h.secret, delivery, e, time.Now())
	if err != nil {
		return result{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, strings.NewReader(string(body)))
	if err != nil {
		return result{}, engi.Errorf(engi.Invalid, "the URL of the webhook: %v", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "engi-webhook")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	began := time.Now()
	resp, err := m.client.Do(req)
	if err != nil {
		if ours, ok := errors.AsType[*engi.Error](err); ok {
			return result{}, ours
		}
		// Errors of net/http show the URL, which may be secret.
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return result{}, engi.Errorf(engi.Unavailable, "send to %s: %v", req.URL.Host, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // read completely, so that the connection can be reused
	out := result{resp.StatusCode, float64(time.Since(began).Microseconds()) / 1000}
	switch {
	case resp.StatusCode/100 == 2:
		listens, ok := m.formats[h.Format].(engi.WebhookAnswers)
		if !ok {
			return out, nil
		}
		if err != nil {
			return out, engi.Errorf(engi.Unavailable, "read the answer of %s: %v", req.URL.Host, err)
		}
		return out, listens.Answered(ctx, h.Webhook, e, answer)
	case resp.StatusCode == http.StatusGone:
		return out, errGone
	}
	return out, engi.Errorf(engi.Unavailable, "%s has answered with status %d", req.URL.Host, resp.StatusCode).WithRetry(retryAfter(resp))
}

// retryAfter returns the time after which a server wants the next request.
func retryAfter(resp *http.Response) engi.Retry {
	d, err := time.ParseDuration(resp.Header.Get("Retry-After") + "s")
	if err != nil || d < 0 {
		return engi.Retry{}
	}
	return engi.Retry{AfterMillis: min(d, time.Hour).Milliseconds()}
}

// disable stops deliveries to a webhook until a user enables it again.
func (m *Manager) disable(ctx context.Context, id engi.WebhookID, reason string) {
	m.changes.Lock()
	defer m.changes.Unlock()
	h, err := m.find(engi.Everyone, id)
	if err != nil {
		return // the webhook was removed
	}
	h.Enabled, h.Reason, h.Updated = false, reason, time.Now().UTC()
	if !h.fixed {
		err = m.o.Store.Update(context.WithoutCancel(ctx), h.Record)
	}
	if err != nil {
		m.o.Log.ErrorContext(ctx, "disable a webhook", "webhook", id, "error", err)
		return
	}
	m.set(&h)
}

// newSecret returns a new secret for signing.
func newSecret() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(key)
}
