package preview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Texts that E2B's clients recognize.
const (
	notFound    = "The sandbox was not found"
	notOpen     = "The sandbox is running but port is not open"
	needsAccess = "This sandbox is private: send its owner's key, or open a signed link"
)

const (
	notPublished  = "Nothing is published here"
	noSuchFile    = "There is no such page"
	pageIsPrivate = "This page is private: send its owner's key, or open a signed link"
	appStarts     = "The app is starting"
	appIsPrivate  = "This app is private: send its owner's key, or open a signed link"
	noPreview     = "The workspace shows nothing here"
	notStarted    = "The workspace is not running"
	ofMembers     = "This preview is private: send the key of somebody who works in the workspace, or open a signed link"
)

// texts holds the messages that differ between sandboxes, apps and published pages.
type texts struct{ noAccess, needsAccess string }

func (t target) texts() texts {
	switch {
	case t.workspace:
		return texts{"The key does not give access to this workspace", ofMembers}
	case t.page:
		return texts{"The key does not give access to this page", pageIsPrivate}
	case t.of != "":
		return texts{"The key does not give access to this app", appIsPrivate}
	}
	return texts{"The key does not give access to this sandbox", needsAccess}
}

// remedies maps messages to instructions for people.
var remedies = map[string]string{
	notFound:      "It may have ended. Check the address, or start a new sandbox.",
	notOpen:       "Start your server inside the sandbox on this port, then load this page again.",
	appStarts:     "This page is loaded again as soon as the app answers.",
	notPublished:  "Check the address, or publish the app: engi app publish APP.",
	pageIsPrivate: "Ask whoever gave you this address for a signed link. Owners get one from: engi app link APP --published.",
	appIsPrivate:  "Ask whoever gave you this address for a signed link. Owners get one from: engi app link APP.",
	noPreview:     "Check the address, or have the workspace show something: engi workspace preview WORKSPACE --static DIR.",
	notStarted:    "Start it: engi workspace start WORKSPACE.",
	ofMembers:     "Ask whoever gave you this address for a signed link. Who works in the workspace gets one from: engi workspace preview WORKSPACE --link, with --service SERVICE for one of its services.",

	needsAccess: "Ask whoever gave you this address for a signed link. Owners get one from: engi sandbox ports ID --link PORT.",
}

// respondError responds with an error of the proxy itself.
func (p *Proxy) respondError(w http.ResponseWriter, r *http.Request, t target, err error) {
	if r.Context().Err() != nil {
		return // the client is gone
	}
	retry := engi.RetryOf(err).AfterMillis
	switch engi.KindOf(err) {
	case engi.NotFound:
		p.refuse(w, r, t, http.StatusBadGateway, notFound)
		return
	case engi.Conflict:
		p.log.Debug("conflict", "sandbox", t.id, "error", err)
		p.refuse(w, r, t, http.StatusConflict, "The sandbox is not awake")
		return
	case engi.Exhausted:
		w.Header().Set("Retry-After", strconv.FormatInt(max(1, (retry+999)/1000), 10))
		p.refuse(w, r, t, http.StatusTooManyRequests, "Too much at once: "+err.Error())
		return
	case engi.Unavailable, engi.Expired:
		w.Header().Set("Retry-After", strconv.FormatInt(max(1, (retry+999)/1000), 10))
		p.log.Debug("unavailable", "sandbox", t.id, "error", err)
		p.refuse(w, r, t, http.StatusServiceUnavailable, "The sandbox does not answer right now")
		return
	}
	p.log.Error("preview", "sandbox", t.id, "port", t.port, "error", err)
	p.refuse(w, r, t, http.StatusInternalServerError, "Internal error; the log of engi has details")
}

// proxyError responds when a request was sent to a service and failed.
func (p *Proxy) proxyError(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	in := x.in
	if in.Context().Err() != nil {
		return // the client is gone
	}
	p.log.Debug("no answer", "sandbox", x.target.id, "port", x.target.port, "error", err)
	if errors.Is(err, errIdle) || errors.Is(context.Cause(r.Context()), errIdle) {
		p.refuse(w, in, x.target, http.StatusGatewayTimeout, "The service sent nothing until the time limit")
		return
	}
	// If the sandbox has ended, report this instead.
	s, gerr := p.o.Sandboxes.Get(in.Context(), engi.Everyone, x.target.id)
	switch {
	case engi.Is(gerr, engi.NotFound), gerr == nil && (s.State == engi.Stopped || s.State == engi.Stopping):
		p.forget(x.target.id)
		p.refuse(w, in, x.target, http.StatusBadGateway, notFound)
		return
	case gerr == nil && s.State != engi.Running:
		p.refuse(w, in, x.target, http.StatusConflict, "The sandbox is "+string(s.State))
		return
	}
	var ours *engi.Error
	if errors.As(err, &ours) {
		if ours.Kind == engi.Unavailable && x.alive() {
			p.refuse(w, in, x.target, http.StatusBadGateway, notOpen)
			return
		}
		p.respondError(w, in, x.target, ours)
		return
	}
	p.refuse(w, in, x.target, http.StatusBadGateway, "The service on this port broke off or gave an answer that is not HTTP")
}

// An errorBody is the response in place of a service. The order of its fields is
// the same as in E2B's proxy.
type errorBody struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Port      int    `json:"port,omitempty"`
	Code      int    `json:"code"`
}

// A pageError is the response in place of a published page or of the preview of a workspace.
type pageError struct {
	Message string `json:"message"`
	Code    int    `json:"code"`
}

// refuse responds in place of a service: with a page for browsers, else JSON.
func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, t target, status int, message string) {
	a := errorBody{SandboxID: t.label, Message: message, Code: status}
	if message != notFound {
		a.Port = t.port
	}
	answer := any(a)
	if t.page || t.workspace {
		a.SandboxID, answer = "", pageError{message, status}
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept")
	var body bytes.Buffer
	if wantsHTML(r) {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors *")
		p.logFailed(page.Execute(&body, struct {
			errorBody
			Title, Remedy string
		}{a, http.StatusText(status), remedies[message]}))
	} else {
		h.Set("Content-Type", "application/json")
		p.logFailed(json.NewEncoder(&body).Encode(answer))
	}
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, err := body.WriteTo(w)
		p.logFailed(err)
	}
}

// logFailed logs that a response could not be sent.
func (p *Proxy) logFailed(err error) {
	if err != nil {
		p.log.Debug("a response was not sent", slog.Any("error", err))
	}
}

// wantsHTML reports whether r is from a browser that will display the response.
func wantsHTML(r *http.Request) bool {
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" && mode != "navigate" {
		return false
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}

var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{{.Code}} {{.Title}}</title>
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; }
main { max-width: 34rem; padding: 2rem; }
h1 { font-size: 1.25rem; font-weight: 600; margin: 0 0 .75rem; }
p { margin: 0 0 .75rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .125rem 1rem; margin: 1.5rem 0 0; font-size: .875rem; opacity: .75; }
dd { margin: 0; font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
</style>
<main>
<h1>{{.Message}}</h1>
{{with .Remedy}}<p>{{.}}</p>{{end}}
<dl>
{{with .SandboxID}}<dt>Sandbox</dt><dd>{{.}}</dd>{{end}}
{{with .Port}}<dt>Port</dt><dd>{{.}}</dd>{{end}}
<dt>Status</dt><dd>{{.Code}} {{.Title}}</dd>
</dl>
</main>
</html>
`))
